"""The state of a session in memory, and loading it from the store.

`SessionState` has the tree, the heads and the positions of the lines, up to a cursor. `SessionBase` loads it when the
tail of the file is not enough, applies what other writers append, and recovers after an interrupted write.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet, ref

from sessiontree.core.entries import Chain, Entry, EntryId, Header, iter_entries
from sessiontree.core.heads import (
    Heads,
    SkippedEntries,
    find_unreadable,
    is_full_record,
    skip_unreadable,
)
from sessiontree.core.place_names import resolve_place
from sessiontree.core.tree import Tree
from sessiontree.errors import BranchMoved, Conflict, FormatError, InvalidOperation, NotFound, StoreError, format_names
from sessiontree.format.codec import VERSION
from sessiontree.format.session_reader import SessionReader
from sessiontree.format.tail import find_entry, find_tail
from sessiontree.store.base import Cursor, LineChunk, Store

READ_SIZE = 1 << 19
"""Bytes read at a time when the whole session is loaded."""

HEADER_READ_SIZE = 1 << 16
"""Bytes read at a time when only the header is wanted."""

GROWTH = 3
"""How many times as much as is loaded is read when earlier lines are needed."""

MAX_PARTIAL_SIZE = 1 << 26
"""Earlier lines are read in blocks up to this many bytes; if more are needed, all are."""


class NeedsEarlierLines(InvalidOperation):
    """Lines before the loaded ones are needed, but they cannot be loaded during a write."""


class BranchPosition:
    """Where a branch is. `Branch` is the only kind; sessions accept it as a place."""

    session: Any
    name: str
    leaf: EntryId | None


Place: TypeAlias = str | Entry | BranchPosition | None
"""A place by name, an entry, a branch, or `None` for the place before the first entry."""


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
        # What the first record moved is unknown, and whether a summary right after it is a merge of its own.
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
        """Return whether those of `heads` that are loaded can be read, and note the others in `missing_heads`."""
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
            while self.start and id is not None and not self.tree.has_loaded(id):
                earlier = self._read_block(self.start, self.cursor)
                if earlier is None:
                    break
                self._prepend(*earlier)
            if self.start and not (id is not None and self.tree.has_loaded(id)):
                self._load_whole()

    def has_entry(self, id: EntryId) -> bool:
        """Return whether an entry is before the first one that is loaded."""
        with self._guard_load():
            if self.start and self._find_line(id) is not None:
                return True
            self._load_whole()
            return self.tree.has_loaded(id)

    def check_heads(self, heads: Iterable[EntryId | None]) -> None:
        """Check that heads before the first loaded entry can be read. If one cannot, load all lines."""
        if not self.is_partial or self.missing_heads.isdisjoint(heads):
            return
        with self._guard_load():
            for head in [head for head in heads if head is not None and head in self.missing_heads]:
                line = self._find_line(head) if self.start else None
                if line is None or not line.is_readable:
                    self._load_whole()
                    return
                self.missing_heads.discard(line.id)

    def _find_line(self, id: EntryId) -> Entry | None:
        """Return the last line with an id before the first loaded one, found by its bytes."""
        return find_entry(self.store.read_backward(self.cursor, self.start), id)

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
        self, id: EntryId, parent: EntryId, branch: str, current: str | None, line: bytes, cursor: Cursor
    ) -> tuple[Entry]:
        """Apply one message that this session appended at the head of a branch: `add_written` in fewer steps.

        `current` is the current branch if it is another one.
        """
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


class SessionBase:
    """A session that can be read: header, state, and what other writers append."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = threading.RLock()
        self._requires_unchanged = False
        """Whether a write is refused if other writers appended anything since the last read."""
        self._state: SessionState | None = None
        self._writable_state: SessionState | None = None
        """The state, if the session may be written to and no write was interrupted."""
        self._pending_lines: Sequence[bytes] | None = None
        """The lines being written, until they are in the state; empty while lines of other writers are applied."""
        self._is_uncertain = False
        """Whether a write was interrupted and the state may not match the store."""
        self._is_rewriting = False
        self.loaded_branch: str | None = None
        """The branch that was current when the session was loaded; `None` before it is loaded."""
        self._opened_end = store.read_end()
        """Where the lines ended when the session was opened. `refresh` reads what others append later."""
        self._header_end: int | None = None
        """Where the header ends in a session of the current version, which can be loaded from its end."""
        self.header: Header = self._read_header()
        _sessions.add(self)

    def _read_header(self) -> Header:
        """Return the header, reading no more than necessary."""
        reader = SessionReader(self._store.location)
        cursor = None
        while True:
            chunk = self._store.read(cursor, before=self._opened_end.cursor, limit=HEADER_READ_SIZE)
            reader.feed(chunk.data)
            if not (reader.line_count or chunk.data) and self._opened_end.unfinished:
                raise FormatError(self.location, "the first line is incomplete")
            if reader.has_header or not chunk.data:
                if reader.header.version == VERSION:
                    self._header_end = reader.get_offset(len(reader.preamble) + 2)
                return reader.header
            cursor = chunk.cursor

    @property
    def location(self) -> str:
        """The path or address of the session, for messages."""
        return self._store.location

    @property
    def tree(self) -> Tree:
        """The tree. It loads most entries only when they are asked for."""
        return self._load().tree

    @property
    def heads(self) -> Heads:
        state = self._load()
        if state.missing_heads:
            state.check_heads(state.heads.heads.values())
        return state.heads

    @property
    def needs_migration(self) -> bool:
        """Whether the session is in an older version of the format. It is rewritten before the first append."""
        return self.header.version < VERSION

    # Loading

    def _load(self) -> SessionState:
        """Return the state. The first call reads the end of the session."""
        if self._state is not None and not self._is_uncertain:
            return self._state
        with self._mutex:
            known = self._state
            if known is None or self._is_uncertain:
                state = self._load_first() if known is None else self._reload(known)
                if self._state is not known:  # a signal handler loaded it first
                    return self._load()
                self.header = state.reader.header
                if known is None:
                    self.loaded_branch = state.heads.current
                self._state, self._writable_state, self._pending_lines = state, None, None
                self._is_uncertain = self._is_rewriting = False
                return state
            return known

    def _load_first(self) -> SessionState:
        try:
            return self._build_state(self._opened_end)
        except Conflict:
            end = self._store.find_cursor_after_rollback(self._opened_end.cursor)
            if end is None:
                raise
        self._opened_end = LineChunk(b"", end)
        return self._build_state(self._opened_end)

    def _build_state(self, end: LineChunk) -> SessionState:
        return SessionState(self._store, end, self, self._header_end)

    def _load_whole(self) -> SessionState:
        """Return the state with all lines loaded."""
        state = self._load()
        state.tree.load()
        return state

    @contextmanager
    def guard_load(self) -> Generator[None]:
        """Hold the lock while earlier lines are loaded. Raises `InvalidOperation` during a write."""
        with self._mutex:
            self._check_not_writing()
            yield

    def _reload(self, known: SessionState) -> SessionState:
        """Load the session again after an interrupted write.

        The new state has the lines known before, and the lines that were being written if they reached the store. Lines
        of other writers are left to `refresh`.
        """
        pending = b"".join([line + b"\n" for line in self._pending_lines or ()])
        if pending and self._is_rewriting:
            end = self._store.read_end()
            stored = self._store.read(before=end.cursor, limit=len(pending) - 1)
            if stored.data == pending:
                return SessionState(self._store, LineChunk(b"", stored.cursor))
        try:
            state = self._build_state(LineChunk(b"", known.cursor, known.unfinished))
        except Conflict:
            recovered = self._read_after_rollback(known)
            if recovered is None:
                raise
            return recovered
        if pending and not self._is_rewriting:
            with suppress(Conflict):  # the next write raises it
                stored = self._store.read(known.cursor, limit=len(pending) - 1)
                if stored.data == pending:
                    state.apply_chunk(stored)
        return state

    def _check_not_writing(self) -> None:
        """Raise `InvalidOperation` if the caller is a signal handler that interrupted a write in its own thread."""
        if self._pending_lines is not None and not self._is_uncertain:
            raise NeedsEarlierLines(f"cannot use {self.location} from a signal handler during a write")

    # What other writers append

    def refresh(self) -> Sequence[Entry]:
        """Read what other writers have appended, and return it."""
        with self._mutex:
            self._check_not_writing()
            return self._read_appended(self._load())

    def hold_lock(self) -> AbstractContextManager[object]:
        """Return a context in which no other thread writes or refreshes, for consistent reads."""
        return self._mutex

    @contextmanager
    def require_unchanged(self) -> Generator[None]:
        """Hold the lock. Writes raise `Conflict` if other processes have appended anything since the last read."""
        with self._mutex:
            before, self._requires_unchanged = self._requires_unchanged, True
            try:
                yield
            finally:
                self._requires_unchanged = before

    def _read_appended(self, state: SessionState) -> Sequence[Entry]:
        """Apply what other writers have appended, and return it."""
        chunk = self._writable_state = None
        try:
            self._pending_lines = ()
            try:
                chunk = state.read_appended()
            except Conflict:
                recovered = self._read_after_rollback(state)
                if recovered is None:
                    raise
                entries = state.replace_state(recovered)
            else:
                entries = state.apply_chunk(chunk)
            self._pending_lines = None
            return entries
        except StoreError:
            if chunk is None:  # nothing was applied
                self._pending_lines = None
            else:
                self._is_uncertain = True
            raise
        except BaseException:
            self._is_uncertain = True
            raise

    def _read_after_rollback(self, known: SessionState) -> SessionState | None:
        """Load the session again if a writer, whose write failed, removed the last lines that were read.

        The new state has the lines appended since. Return `None` if something else happened to the session.
        """
        for cursor in (self._store.find_cursor_after_rollback(known.cursor), known.cursor_before_others):
            if cursor is not None:
                with suppress(Conflict):
                    state = SessionState(self._store, LineChunk(b"", cursor))
                    state.apply_chunk(state.read_appended())
                    return state
        return None

    def _reset_after_fork(self) -> None:
        """In a forked child: a thread of the parent may have been in the middle of a write."""
        if not self._mutex._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` does
            self._mutex, self._requires_unchanged = threading.RLock(), False
        self._is_uncertain = self._state is not None
        if not self._is_rewriting:
            self._pending_lines = None
        self._writable_state = None

    # Places and heads

    def resolve_place(self, place: Place) -> EntryId | None:
        """Return the entry that `place` names: see `docs/place.md`. Raises `NotFound` or `Ambiguous`."""
        if place is None:
            return None
        if isinstance(place, Entry):
            return self.tree[place.id].id
        if isinstance(place, BranchPosition):
            if place.session is not self:
                raise InvalidOperation(f"branch {place.name!r} belongs to another session")
            return place.leaf
        if not isinstance(place, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise InvalidOperation(f"a place is a name, an entry, a branch or None, not {type(place).__name__}")
        return resolve_place(place, self.tree, self.heads)

    def _get_head(self, branch: str) -> EntryId | None:
        """Return the head of a branch. Raises `NotFound`."""
        if not isinstance(branch, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise InvalidOperation(f"a branch is given by its name, not by {type(branch).__name__}")
        state = self._load()
        heads = state.heads.heads
        if branch not in heads:
            raise NotFound("branch", branch, f"branches: {format_names(list(heads))}")
        if state.missing_heads:
            state.check_heads((heads[branch],))
            heads = state.heads.heads
        return heads[branch]

    def _check_head(self, branch: str, expected: EntryId | None) -> None:
        head = self._get_head(branch)
        if head != expected:
            raise BranchMoved(branch, expected, head)

    def _check_entry_exists(self, head: EntryId | None) -> None:
        """Raise `NotFound` if the entry to write after is not in the tree, because its line is damaged."""
        if head is not None and head not in self.tree:
            names = [name for name, leaf in self.heads.heads.items() if leaf == head]
            hint = f"its line is damaged; move {format_names(names)} to another entry first" if names else ""
            raise NotFound("entry", head, hint)


_sessions: WeakSet[SessionBase] = WeakSet()


def _reset_sessions_after_fork() -> None:
    for session in _sessions:
        session._reset_after_fork()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_reset_sessions_after_fork)
