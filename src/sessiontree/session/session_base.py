"""Reading a session: its header, its state, what other writers append, and recovery after an interrupted write."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeAlias
from weakref import WeakSet

from sessiontree.core.entries import Entry, EntryId, Header
from sessiontree.core.heads import (
    Heads,
)
from sessiontree.core.place_names import resolve_place
from sessiontree.core.tree import Tree
from sessiontree.errors import BranchMoved, Conflict, FormatError, InvalidOperation, NotFound, StoreError, format_names
from sessiontree.format.codec import VERSION
from sessiontree.format.session_reader import SessionReader
from sessiontree.session.state import NeedsEarlierLines, SessionState
from sessiontree.store.base import LineChunk, Store

HEADER_READ_SIZE = 1 << 16
"""Bytes read at a time when only the header is wanted."""


class BranchPosition:
    """Where a branch is. `Branch` is the only kind; sessions accept it as a place."""

    session: Any
    name: str
    leaf: EntryId | None


Place: TypeAlias = str | Entry | BranchPosition | None
"""A place by name, an entry, a branch, or `None` for the place before the first entry."""


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
                with self._store.require_unchanged():
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
