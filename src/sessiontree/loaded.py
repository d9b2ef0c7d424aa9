"""All of a session in memory: where its lines are, its tree and its heads, kept in step with its store.

`Session` makes one when something is asked that the end of the file cannot tell. What an entry means is not here: see
`core`. What may be written is not here either: see `session`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessiontree.core.entries import Chain, Entry, EntryId
from sessiontree.core.heads import Heads, Passed, leave_unreadable, unreadable_among
from sessiontree.core.tree import Tree
from sessiontree.format.jsonl import Reader
from sessiontree.store.base import Chunk, Cursor, Store

READ_AHEAD = 1 << 19
"""How much is read at once, in bytes."""


class Loaded:
    """All of a session: its lines' places, its tree and its heads, as far as `cursor`."""

    has_lost = False
    """Whether heads of branches are missing, or were."""

    def __init__(self, store: Store, end: Chunk) -> None:
        self.store = store
        self.reader = Reader(store.where, store.fetch)
        self.tree = Tree()
        self.cursor, self.unfinished = end.cursor, end.unfinished
        self.before_others: Cursor | None = None
        """Where it was read up to before the last lines that others wrote; `None` once more was written behind them."""
        read = None
        items: list[Entry | Chain] = []
        while read != end.cursor:
            chunk = store.read(read, before=end.cursor, limit=READ_AHEAD)
            items += self.reader.feed(chunk.data)
            read = chunk.cursor
        # When all is read: chunk by chunk, what is read would push the tree's tables out of the processor's cache.
        self.tree.extend(items)
        self._replay()

    def _replay(self) -> None:
        self._passed, self.heads = Passed(), Heads()
        self.heads.replay(self.tree.items, self.tree)
        self._look_at_heads(set())

    def _look_at_heads(self, known: set[EntryId | None]) -> None:
        """Leave what cannot be read, where heads are elsewhere than at places known to be readable."""
        self.has_lost = any(head is not None and head not in self.tree for head in self.heads.heads.values())
        if unreadable_among(set(self.heads.heads.values()) - known, self.tree):
            self.heads = leave_unreadable(self.heads, self.tree, self._passed)

    def unseen(self) -> Chunk:
        """What was appended since."""
        return self.store.read(self.cursor)

    def take(self, chunk: Chunk) -> Sequence[Entry]:
        """Take in what was appended since, or the beginning of it."""
        items = self.reader.feed(chunk.data)
        before, heads = self.tree.count, set(self.heads.heads.values())
        self._index(items)
        entries = self.tree.entries_from(before)
        self._look_at_heads(heads.difference(entry.id for entry in entries))
        if chunk.data:
            self.before_others = self.cursor
        self.cursor, self.unfinished = chunk.cursor, chunk.unfinished
        return entries

    def replace_with(self, other: Loaded) -> Sequence[Entry]:
        """Become what `other` is, at once. Returns the entries that are new."""
        known = {entry.id for entry in self.tree.entries_from(0)}
        self.__dict__.update(other.__dict__)
        return [entry for entry in self.tree.entries_from(0) if entry.id not in known]

    def wrote(self, items: Sequence[Entry | Chain], lines: Sequence[bytes], cursor: Cursor) -> Sequence[Entry]:
        """Take in what was just appended here, and return it."""
        self.reader.wrote(items, lines)
        tree = self.tree
        before, heads = tree.count, self.heads.heads
        self._index(items)
        if self.heads.heads is not heads:  # a head record says where they are
            self._look_at_heads(set(heads.values()))
        self.cursor, self.unfinished, self.before_others = cursor, b"", None
        return tree.entries_from(before)

    def wrote_message(
        self, id: EntryId, parent: EntryId, branch: str, current: str | None, line: bytes, cursor: Cursor
    ) -> Entry:
        """`wrote` for one message below the head of a branch."""
        reader, tree = self.reader, self.tree
        number = reader.wrote_one(line)
        entry = Entry(id=id, parent=parent, type="message", line=number, source=reader, branch=branch, current=current)
        if self._passed.entries or not tree.grow(entry):
            self._index((entry,))
        elif not self.heads.go_on(branch, id):
            self.heads.apply(entry, tree)
        self.cursor, self.unfinished, self.before_others = cursor, b"", None
        return entry

    def _index(self, items: Sequence[Entry | Chain]) -> None:
        tree, heads = self.tree, self.heads
        upsets = tree.upsets
        tree.extend(items)
        # Lines before may mean something else by now, as for whoever reads all anew.
        if tree.upsets > upsets or (self._passed.entries and self._passed.concerns(items, heads.current)):
            self._replay()
        else:
            heads.replay(items, tree)
