"""All of a session in memory: where its lines are, its tree and its heads, kept in step with its store.

`Session` makes one when something is asked that the end of the file cannot tell. What an entry means is not here: see
`core`. What may be written is not here either: see `session`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessiontree.core.entries import Chain, Entry, EntryId
from sessiontree.core.heads import Heads, SkippedEntries, find_unreadable, skip_unreadable
from sessiontree.core.tree import Tree
from sessiontree.format.session_reader import SessionReader
from sessiontree.store.base import Cursor, LineChunk, Store

READ_SIZE = 1 << 19
"""How much is read at once, in bytes."""


class SessionState:
    """All of a session: its lines' places, its tree and its heads, as far as `cursor`."""

    has_missing_heads = False
    """Whether heads of branches are missing, or were."""

    def __init__(self, store: Store, end: LineChunk) -> None:
        self.store = store
        self.reader = SessionReader(store.location, store.fetch)
        self.tree = Tree()
        self.cursor, self.unfinished = end.cursor, end.unfinished
        self.cursor_before_others: Cursor | None = None
        """Where it was read up to before the last lines that others wrote; `None` once more was written behind them."""
        read = None
        items: list[Entry | Chain] = []
        while read != end.cursor:
            chunk = store.read(read, before=end.cursor, limit=READ_SIZE)
            items += self.reader.feed(chunk.data)
            read = chunk.cursor
        # When all is read: chunk by chunk, what is read would push the tree's tables out of the processor's cache.
        self.tree.extend(items)
        self._replay()

    def _replay(self) -> None:
        self._skipped, self.heads = SkippedEntries(), Heads()
        self.heads.replay(self.tree.items, self.tree)
        self._update_heads(set())

    def _update_heads(self, known: set[EntryId | None]) -> None:
        """Leave what cannot be read, where heads are elsewhere than at places known to be readable."""
        self.has_missing_heads = any(head is not None and head not in self.tree for head in self.heads.heads.values())
        if find_unreadable(set(self.heads.heads.values()) - known, self.tree):
            self.heads = skip_unreadable(self.heads, self.tree, self._skipped)

    def read_appended(self) -> LineChunk:
        """What was appended since."""
        return self.store.read(self.cursor)

    def apply_chunk(self, chunk: LineChunk) -> Sequence[Entry]:
        """Take in what was appended since, or the beginning of it."""
        items = self.reader.feed(chunk.data)
        before, heads = self.tree.count, set(self.heads.heads.values())
        self._add_items(items)
        entries = self.tree.get_entries_from(before)
        self._update_heads(heads.difference(entry.id for entry in entries))
        if chunk.data:
            self.cursor_before_others = self.cursor
        self.cursor, self.unfinished = chunk.cursor, chunk.unfinished
        return entries

    def replace_state(self, other: SessionState) -> Sequence[Entry]:
        """Become what `other` is, at once. Returns the entries that are new."""
        known = {entry.id for entry in self.tree.get_entries_from(0)}
        self.__dict__.update(other.__dict__)
        return [entry for entry in self.tree.get_entries_from(0) if entry.id not in known]

    def add_written(self, items: Sequence[Entry | Chain], lines: Sequence[bytes], cursor: Cursor) -> Sequence[Entry]:
        """Take in what was just appended here, and return it."""
        self.reader.add_written(items, lines)
        tree = self.tree
        before, heads = tree.count, self.heads.heads
        self._add_items(items)
        if self.heads.heads is not heads:  # a head record says where they are
            self._update_heads(set(heads.values()))
        self.cursor, self.unfinished, self.cursor_before_others = cursor, b"", None
        return tree.get_entries_from(before)

    def add_written_message(
        self, id: EntryId, parent: EntryId, branch: str, current: str | None, line: bytes, cursor: Cursor
    ) -> Entry:
        """`wrote` for one message below the head of a branch."""
        reader, tree = self.reader, self.tree
        number = reader.add_written_line(line)
        entry = Entry(id=id, parent=parent, type="message", line=number, source=reader, branch=branch, current=current)
        if self._skipped.entries or not tree.try_append_message(entry):
            self._add_items((entry,))
        elif not self.heads.try_advance(branch, id):
            self.heads.apply(entry, tree)
        self.cursor, self.unfinished, self.cursor_before_others = cursor, b"", None
        return entry

    def _add_items(self, items: Sequence[Entry | Chain]) -> None:
        tree, heads = self.tree, self.heads
        upsets = tree.history_changes
        tree.extend(items)
        # Lines before may mean something else by now, as for whoever reads all anew.
        if tree.history_changes > upsets or (
            self._skipped.entries and self._skipped.is_affected_by(items, heads.current)
        ):
            self._replay()
        else:
            heads.replay(items, tree)
