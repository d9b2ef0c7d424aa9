"""The state of a session in memory: its tree, its heads and the positions of its lines, up to a cursor.

It starts with the tail of the file, and loads earlier lines when they are needed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Protocol
from weakref import ref

from sessiontree.core.entries import Chain, Entry, EntryId, Header, iter_entries
from sessiontree.core.heads import (
    Heads,
    SkippedEntries,
    find_unreadable,
    is_full_record,
    skip_unreadable,
)
from sessiontree.core.tree import Tree
from sessiontree.errors import Conflict, InvalidOperation
from sessiontree.format.session_reader import SessionReader
from sessiontree.format.tail import find_entry, find_tail, has_id
from sessiontree.store.base import Cursor, LineChunk, Store, get_index

READ_SIZE = 1 << 19
"""Bytes read at a time when the whole session is loaded."""

GROWTH = 3
"""How many times as much as is loaded is read when earlier lines are needed."""

MAX_PARTIAL_SIZE = 1 << 26
"""Earlier lines are read in blocks up to this many bytes; if more are needed, all are."""

MAX_CHECKED_HEADS = 256
"""How many heads are looked for with one question to the store."""


class NeedsEarlierLines(InvalidOperation):
    """Lines before the loaded ones are needed, but they cannot be loaded during a write."""


class SessionOwner(Protocol):
    """The session that a state belongs to."""

    header: Header

    def guard_load(self) -> AbstractContextManager[object]:
        """Return a context in which earlier lines may be loaded. Raises `InvalidOperation` during a write."""
        ...


class SessionState:
    """A session in memory: the positions of its lines, its tree and its heads, up to `cursor`.

    It starts with the end of the file, from the last head record on, and loads earlier lines when a query needs them.
    `load_to` is the only place where it grows backward.
    """

    def __init__(
        self, store: Store, end: LineChunk, owner: SessionOwner | None = None, header_end: int | None = None
    ) -> None:
        """Load the end of a session of version 3 whose header ends at `header_end`; otherwise all of it."""
        self.store = store
        self.cursor, self.unfinished = end.cursor, end.unfinished
        self.cursor_before_others: Cursor | None = None
        """The cursor before the last lines of other writers; `None` once this session has appended after them."""
        self._owner = None if owner is None else ref(owner)
        self._header_end = header_end
        self._is_replaying = False
        self._skipped = SkippedEntries()
        self.missing_heads: set[EntryId] = set()
        """Heads that are not in the tree: damaged, or before its first entry and not checked yet."""
        self.start = 0
        """The offset of the first line that is loaded. 0 if all lines are."""
        self._absent_ids: set[EntryId] = set()
        """Ids that no entry before the first loaded one has."""
        if owner is None or header_end is None or not self._load_tail(owner.header, header_end):
            self.start = 0
            self.reader = SessionReader(store.location, store.fetch)
            self.tree = Tree(self._read_before(None))
            self._replay()

    def _load_tail(self, header: Header, header_end: int) -> bool:
        """Load the lines from the last head record on. Return `False` if they do not determine the heads."""
        self.store.read(self.cursor, before=self.cursor)  # raises `Conflict` if the lines before it have changed
        tail = find_tail(self.store.read_backward(self.cursor), header_end)
        if tail is None:
            return False
        self.start = tail.start
        self.reader = SessionReader.start_at(
            tail.start, header, self.store.location, self.store.fetch, partial(self.load_to, None)
        )
        items = self.reader.feed(tail.data)
        self.tree, self.heads = Tree(items, earlier=self), Heads(partial(self.load_to, None))
        if self.tree.needs_whole:
            return False
        record = next(at for at, item in enumerate(items) if isinstance(item, Entry) and is_full_record(item))
        # What the first record moved is unknown, and whether a summary right after it is a separate merge.
        known, following = record + 1, items[record + 1 : record + 2]
        if any(isinstance(item, Entry) and item.type == "branch_summary" for item in following):
            known += 1
        if not self._try_replay(items[record:known]):
            return False
        self.heads.forget_moves()
        return self._try_replay(items[known:]) and self._check_loaded_heads(set(self.heads.heads.values()))

    def _try_replay(self, items: Sequence[Entry | Chain]) -> bool:
        """Apply lines to the heads of a partial state. Return `False` if they depend on lines before it."""
        try:
            self._is_replaying = True
            self.heads.replay(items, self.tree)
            return True
        except NeedsEarlierLines:
            return False
        finally:
            self._is_replaying = False

    def _check_loaded_heads(self, heads: set[EntryId | None]) -> bool:
        """Return whether the loaded ones of `heads` can be read, and note the others in `missing_heads`."""
        missing = {head for head in heads if head is not None and not self.tree.has_loaded(head)}
        self.missing_heads |= missing
        return not find_unreadable(heads - missing, self.tree)

    @property
    def is_partial(self) -> bool:
        """Whether only the end of the session is loaded."""
        return self.start > 0

    def load_to(self, id: EntryId | None) -> None:
        """Load earlier lines until the entry `id` is in the tree; all of them if it is `None` or in none of them."""
        with self._guard_load():
            if id is None:
                self._load_whole()
            while self.start and id is not None and not self.tree.has_loaded(id):
                self._load_block()

    def load_more(self) -> None:
        """Load a block of earlier lines."""
        with self._guard_load():
            self._load_block()

    def _load_block(self) -> None:
        earlier = self._read_block(self.start, self.cursor)
        if earlier is None:
            self._load_whole()
        else:
            self._prepend(*earlier)

    def has_entry(self, id: EntryId) -> bool:
        """Return whether an entry is before the first one that is loaded."""
        with self._guard_load():
            if id in self._absent_ids:
                return False
            found = has_id(self.store.read_backward(self.cursor, self.start), id) if self.start else None
            if found is not None:
                if not found:
                    self._absent_ids.add(id)
                return found
            self._load_whole()
            return self.tree.has_loaded(id)

    def note_absent(self, ids: Iterable[EntryId]) -> None:
        """Note that no entry before the first loaded one has these ids, so that nobody looks for them there."""
        self._absent_ids.update(ids)

    def check_heads(self, heads: Iterable[EntryId | None]) -> None:
        """Check that heads before the first loaded entry can be read. If one cannot, load all lines."""
        if not self.is_partial or self.missing_heads.isdisjoint(heads):
            return
        with self._guard_load():
            wanted = [head for head in heads if head is not None and head in self.missing_heads]
            while wanted and self.start:
                batch, wanted = wanted[:MAX_CHECKED_HEADS], wanted[MAX_CHECKED_HEADS:]
                if not all(line is not None and line.is_readable for line in self._find_lines(batch)):
                    self._load_whole()
                    return
                self.missing_heads.difference_update(batch)

    def _find_lines(self, ids: Sequence[EntryId]) -> Iterator[Entry | None]:
        """Yield for each id the last line before the first loaded one, found by the index of the store or its bytes."""
        index = get_index(self.store)
        found = None if index is None else index.find_entries(self.cursor, ids)
        for id in ids:
            if found is None:
                yield find_entry(self.store.read_backward(self.cursor, self.start), id)
            else:
                position, raw = found.get(id, (self.start, b""))
                yield find_entry([(raw + b"\n", position)], id) if position < self.start else None

    @contextmanager
    def _guard_load(self) -> Generator[None]:
        if self._is_replaying:
            raise NeedsEarlierLines(f"cannot load {self.store.location} while its heads change")
        owner = None if self._owner is None else self._owner()
        with nullcontext() if owner is None else owner.guard_load():
            yield

    def _read_block(self, end: int, cursor: Cursor) -> tuple[bytes, int] | None:
        """Return the lines before an offset, several times as many as are loaded; `None` if all can be loaded."""
        size, blocks, start = GROWTH * (self.reader.get_offset(self.reader.line_count + 1) - end), list[bytes](), end
        for data, at in self.store.read_backward(cursor, end):
            if at <= (self._header_end or 0) or end - at > MAX_PARTIAL_SIZE:
                return None
            blocks.append(data)
            start = at
            if end - start >= size:
                break
        return b"".join(reversed(blocks)), start

    def _prepend(self, data: bytes, start: int) -> None:
        reader = SessionReader.start_at(
            start, self.reader.header, self.store.location, self.store.fetch, partial(self.load_to, None)
        )
        items = reader.feed(data)
        reader.take_over(self.reader)
        self.tree.prepend(items, self)
        self.reader, self.start = reader, start
        if self.tree.needs_whole:
            self._load_whole()

    def _load_whole(self) -> None:
        """Load all lines before the first loaded one."""
        if not self.start:
            return
        later, self.reader = self.reader, SessionReader(self.store.location, self.store.fetch)
        try:
            items = self._read_before(self.start)
        except BaseException:
            self.reader = later
            raise
        self.reader.take_over(later)
        self.tree.prepend(items, None)
        self.start = 0
        known = self.heads
        self._replay()
        known.__dict__.update(self.heads.__dict__)
        self.heads = known

    def _read_before(self, stop: int | None) -> list[Entry | Chain]:
        """Read the lines up to an offset, by default up to `cursor`."""
        read, end, items, done = None, self.cursor, list[Entry | Chain](), 0
        while read != end and (stop is None or done < stop):
            chunk = self._read_chunk(read, end)
            data = chunk.data if stop is None else chunk.data[: stop - done]
            items += self.reader.feed(data)
            read, done = chunk.cursor, done + len(data)
        # Extending the tree after every chunk would evict its tables from the processor's cache.
        return items

    def _read_chunk(self, after: Cursor | None, end: Cursor) -> LineChunk:
        try:
            return self.store.read(after, before=end, limit=READ_SIZE)
        except Conflict:
            # The last lines may have been rolled back since they were read. `refresh` finds out.
            now = self.store.find_cursor_after_rollback(end) if self.start else None
            if now is None:
                raise
            return self.store.read(after, before=now, limit=READ_SIZE)

    def _replay(self) -> None:
        self._skipped, self.heads = SkippedEntries(), Heads()
        self.heads.replay(self.tree.items, self.tree)
        self._update_heads(set())

    def _update_heads(self, known: set[EntryId | None]) -> None:
        """Move heads away from entries that cannot be read. Heads at `known` entries are not checked."""
        heads = set(self.heads.heads.values())
        if self.is_partial:
            self.missing_heads &= heads
            if self.tree.needs_whole or not self._check_loaded_heads(heads - known):
                self._load_whole()
            return
        self.missing_heads = {head for head in heads if head is not None and head not in self.tree}
        if find_unreadable(heads - known, self.tree):
            self.heads = skip_unreadable(self.heads, self.tree, self._skipped)

    def read_appended(self) -> LineChunk:
        """Return the lines appended since `cursor`."""
        return self.store.read(self.cursor)

    def apply_chunk(self, chunk: LineChunk) -> Sequence[Entry]:
        """Apply lines that other writers appended at `cursor`, and return their entries."""
        items = self.reader.feed(chunk.data)
        before, heads = self.tree.end, set(self.heads.heads.values())
        self._add_items(items)
        entries = self.tree.get_entries_since(before)
        self._update_heads(heads.difference(entry.id for entry in entries))
        if chunk.data:
            self.cursor_before_others = self.cursor
        self.cursor, self.unfinished = chunk.cursor, chunk.unfinished
        return entries

    def replace_state(self, other: SessionState) -> Sequence[Entry]:
        """Take over the state of `other`, in which all lines are loaded, and return the entries that are new."""
        start, known = self.start, {entry.id for entry in iter_entries(self.tree.loaded_items)}
        self.__dict__.update(other.__dict__)
        return [
            entry
            for entry in self.tree.entries
            if entry.id not in known and self.reader.get_offset(entry.line) >= start
        ]

    def add_written(self, batch: tuple[Sequence[Entry | Chain], Sequence[bytes]], cursor: Cursor) -> Sequence[Entry]:
        """Apply entries that this session just appended, given with their lines, and return them."""
        items, lines = batch
        self.reader.add_written(items, lines)
        tree = self.tree
        before, heads = tree.end, self.heads.heads
        self._add_items(items)
        if self.heads.heads is not heads:  # a head record moved them
            self._update_heads(set(heads.values()))
        self.cursor, self.unfinished, self.cursor_before_others = cursor, b"", None
        return tree.get_entries_since(before)

    def add_written_message(
        self, written: tuple[EntryId, EntryId, str, str | None, bytes], cursor: Cursor
    ) -> tuple[Entry]:
        """Apply one message that this session appended at the head of a branch: `add_written` in fewer steps.

        `written` has its id, its parent, its branch, the current branch if it is another one, and its line.
        """
        id, parent, branch, current, line = written
        reader, tree = self.reader, self.tree
        number = reader.add_written_line(line)
        entry = Entry(
            id=id, parent=parent, type="message", number=number, source=reader, branch=branch, current=current
        )
        if self._skipped.entries or not tree.try_append_message(entry):
            self._add_items((entry,))
        elif not self.heads.try_advance(branch, id):
            self.heads.apply(entry, tree)
        self.cursor, self.unfinished, self.cursor_before_others = cursor, b"", None
        return (entry,)

    def _add_items(self, items: Sequence[Entry | Chain]) -> None:
        tree, heads = self.tree, self.heads
        changes = tree.history_changes
        tree.extend(items)
        if self.is_partial:
            if tree.needs_whole or not self._try_replay(items):
                self._load_whole()
            return
        # New lines can change what earlier lines mean. Then the heads are computed again from the first line.
        if tree.history_changes > changes or (
            self._skipped.entries and self._skipped.is_affected_by(items, heads.current)
        ):
            self._replay()
        else:
            heads.replay(items, tree)
