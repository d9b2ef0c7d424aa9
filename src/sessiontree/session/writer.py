"""Writing entries to a session: appending their lines, and retrying when another writer was first.

If another writer appended first, the entries are built again for the new state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import TypeVar

from msgspec import UNSET, UnsetType

from sessiontree.core.entries import Body, Custom, Entry, EntryId, JsonObject, Message
from sessiontree.errors import BranchMoved, Conflict, InvalidOperation, ReadOnly, StoreError
from sessiontree.format.codec import VERSION
from sessiontree.session import group_commit
from sessiontree.session.entry_builder import (
    RECORD_INTERVAL,
    Anchor,
    EntryBatch,
    EntryBuilder,
    Item,
    PlacedItem,
    check_bodies,
    check_new_id,
    generate_id,
    has_branch_move,
    read_time,
)
from sessiontree.session.group_commit import GroupCommit
from sessiontree.session.session_base import Place, SessionBase
from sessiontree.session.state import SessionState
from sessiontree.store.base import Cursor, Store

MAX_LINES_BEFORE_RECORD = RECORD_INTERVAL - 3
"""Up to this many lines after the last head record, a single line can be written without a new one."""
MAX_REWRITE_ATTEMPTS = 10
"""How often an older file is rewritten while another program keeps appending to it."""
MAX_APPEND_ATTEMPTS = 1000
"""How often `append_at_head` tries again while other writers keep moving the branch."""

Written = TypeVar("Written")


class SessionWriter(SessionBase):
    """A session that entries can be appended to."""

    def __init__(
        self,
        store: Store,
        *,
        read_only: str | None = None,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], EntryId] = generate_id,
    ) -> None:
        super().__init__(store)
        self._builder = EntryBuilder(new_id, now)
        self._group_commit = GroupCommit()
        self._shares_syncs = store.syncs_appends
        self._has_written = False
        self._is_closed = False
        self._read_only = read_only if store.read_only is None else store.read_only
        if self.header.version > VERSION:
            self._read_only = f"format version {self.header.version} is newer than this program"
        elif self.header.redacted:
            self._read_only = "it is a redacted export; a model would take the gaps for real content"

    @property
    def read_only(self) -> str | None:
        """Why the session cannot be written to; `None` if it can."""
        return self._read_only

    def append(
        self,
        body: Body,
        *,
        parent: Place | UnsetType = UNSET,
        branch: str | UnsetType | None = UNSET,
        extra: JsonObject | None = None,
        expected: EntryId | UnsetType | None = UNSET,
    ) -> Entry:
        """Write one entry and return it.

        The entry goes to the head of `branch`, by default the current one, or below an explicit `parent`, and the
        branch moves to it. With `branch=None` and a parent, it is a late result and no branch moves. `extra` has
        further fields of the line, in wire form.

        Raises `BranchMoved`, with nothing written, if another writer has moved the branch or if its head is not the
        `expected` entry.
        """
        if not isinstance(body, Message) or extra is not None or parent is not UNSET:
            return self._write((body if extra is None else Item(body, extra),), parent, branch, expected)[0]
        if self._shares_syncs and get_ident() != group_commit.main_thread and self._is_write_waiting():
            write = partial(SessionWriter.append, self, body, branch=branch, expected=expected)
            return self._group_commit.run(write, self.share_sync)
        # The common case, a message at the head of a branch, takes fewer steps.
        with self._mutex:
            state = self._writable_state
            if state is None or self._pending_lines is not None:
                state = self._prepare_write()
            while True:
                heads, before = state.heads, state.cursor
                target, current = heads.current, None
                if branch is not UNSET and branch != target:
                    target, current = branch, target
                head = None if target is None else heads.heads.get(target)
                if (
                    target is None
                    or head is None
                    or head in state.missing_heads
                    or heads.lines_since_record > MAX_LINES_BEFORE_RECORD
                    or (expected is not UNSET and expected != head)
                ):
                    return self._write((body,), parent, branch, expected)[0]
                id, line = self._builder.build_message(body.message, head, target, current, state.tree)
                written = (id, head, target, current, line)
                entries = self._append_lines(state, before, (line,), state.add_written_message, written)
                if entries is not None:
                    return entries[0]
                branch = target
                self._check_head(target, head)

    def extend(
        self,
        bodies: Iterable[Body | Item],
        *,
        parent: Place | UnsetType = UNSET,
        branch: str | UnsetType | None = UNSET,
        expected: EntryId | UnsetType | None = UNSET,
    ) -> Sequence[Entry]:
        """Write entries as a chain, all or none, as `append` does for one.

        An `Item` has more than a body: its own id, parent, time or branch.
        """
        items = check_bodies(bodies)
        if Item in map(type, items) and any(item.is_placed for item in items if isinstance(item, Item)):
            return self._write_placed(items, parent, branch, expected)
        return self._write(items, parent, branch, expected)

    def append_at_head(self, build: Callable[[], Item], *, branch: str | UnsetType = UNSET) -> Entry:
        """Append an entry at the head of a branch, and retry at the new head if another writer moves the branch.

        `build` is called for every attempt, since the body may depend on the head. Raises `BranchMoved` after
        `MAX_APPEND_ATTEMPTS`.
        """
        for attempt in range(MAX_APPEND_ATTEMPTS):
            body, extra = build()[:2]
            try:
                return self.append(body, branch=branch, extra=extra)
            except BranchMoved:
                if attempt == MAX_APPEND_ATTEMPTS - 1:
                    raise
        raise AssertionError

    @contextmanager
    def share_sync(self) -> Generator[None]:
        """Hold the lock. What this thread writes shares one sync, and is safe on the disk when the context ends.

        The end of the context raises `StoreError` if the sync fails. Then nothing of it is in the session.
        """
        with self._mutex:
            group = None
            try:
                with self._store.share_sync() as group:
                    yield
                    if self._pending_lines is None:
                        self._pending_lines = ()  # a sync is a write, too
            except StoreError:
                if self._state is not None and group is not None and group.start is not None:
                    self._state.cursor_before_others = group.start
                    self._is_uncertain = True
                raise
            finally:
                if not self._pending_lines:
                    self._pending_lines = None

    def _is_write_waiting(self) -> bool:
        """Return whether a write of this thread would have to wait for another thread: then it joins a group."""
        mutex = self._mutex
        if not mutex.acquire(blocking=False):
            return True
        mutex.release()
        is_owned: bool = mutex._is_owned()  # type: ignore[attr-defined]  # as `threading.Condition` does
        return self._group_commit.has_leader and not is_owned

    def _reset_after_fork(self) -> None:
        super()._reset_after_fork()
        self._group_commit = GroupCommit()

    def use_id_generator(self, new_id: Callable[[], EntryId]) -> None:
        """Take the ids of new entries from `new_id`. They must be new in this session."""
        self._builder.generate_id = new_id

    def generate_id(self) -> EntryId:
        """Return a new id, for a `Item` that other entries refer to."""
        return self._builder.generate_id()

    def _write(
        self,
        items: Sequence[Body | Item],
        parent: Place | UnsetType,
        branch: str | UnsetType | None,
        expected: EntryId | UnsetType | None,
    ) -> Sequence[Entry]:
        if self._shares_syncs and get_ident() != group_commit.main_thread and self._is_write_waiting():
            return self._group_commit.run(lambda: self._write(items, parent, branch, expected), self.share_sync)
        with self._mutex:
            state = self._prepare_write()
            target = state.heads.current if isinstance(branch, UnsetType) else branch
            if target is None and parent is UNSET:
                raise InvalidOperation("an entry without a branch needs a parent")
            head = None if target is None else self._get_head(target)
            expected_head = head if isinstance(expected, UnsetType) else expected
            explicit = UNSET if parent is UNSET else self.resolve_place(parent)
            while True:
                if target is not None and head != expected_head and (expected is not UNSET or has_branch_move(items)):
                    raise BranchMoved(target, expected_head, head)
                before, above = state.cursor, head if isinstance(explicit, UnsetType) else explicit
                self._check_entry_exists(above)
                entries = self._append_batch(state, before, self._builder.build_chain(state, items, above, target))
                if entries is not None:
                    break
                head = None if target is None else self._get_head(target)
            return entries if len(entries) == len(items) else [entry for entry in entries if not entry.is_head_record]

    def _write_placed(
        self,
        items: Sequence[Body | Item],
        parent: Place | UnsetType,
        branch: str | UnsetType | None,
        expected: EntryId | UnsetType | None,
    ) -> Sequence[Entry]:
        """Write items of which some set their own parent, time or branch."""
        with self._mutex:
            state = self._prepare_write()
            target = state.heads.current if isinstance(branch, UnsetType) else branch
            placed = self._place_items(items, parent, target)
            moving = {place.branch for place in placed if has_branch_move((place.item,))}
            heads = {name: self._get_head(name) for name in moving if name is not None}
            if target is not None and not isinstance(expected, UnsetType):
                heads[target] = expected
            while True:
                for name, head in heads.items():
                    self._check_head(name, head)
                for place in placed:
                    if place.branch is not None and place.anchor is Anchor.HEAD:
                        self._check_entry_exists(self._get_head(place.branch))
                entries = self._append_batch(state, state.cursor, self._builder.build_placed(state, placed))
                if entries is not None:
                    return [entry for entry in entries if not entry.is_head_record]

    def _place_items(
        self, items: Sequence[Body | Item], parent: Place | UnsetType, branch: str | None
    ) -> list[PlacedItem]:
        """Find the branch and the parent of every item. `parent` and `branch` are for the first one."""
        placed: list[PlacedItem] = []
        ids: set[EntryId] = set()
        for each in items:
            item = each if isinstance(each, Item) else Item(each)
            if item.timestamp is not None:
                read_time(item.timestamp)  # nothing is written if it is wrong
            if not isinstance(item.branch, UnsetType):
                branch = item.branch
            if branch is not None:
                self._get_head(branch)
            own = item.parent if placed or item.parent is not UNSET else parent
            anchor: EntryId | Anchor | None
            if not isinstance(own, UnsetType):
                anchor = own if isinstance(own, str) and own in ids else self.resolve_place(own)
                if anchor not in ids:
                    self._check_entry_exists(anchor)
            elif isinstance(item.branch, str) or not placed:
                anchor = Anchor.HEAD
                if branch is None:
                    raise InvalidOperation("an entry without a branch needs a parent")
            else:
                anchor = Anchor.PREVIOUS
            id = self.generate_id() if item.id is None else item.id
            check_new_id(id, self.tree, ids)
            placed.append(PlacedItem(item, id, branch, anchor))
        return placed

    def _commit(self, build: Callable[[], EntryBatch]) -> Sequence[Entry]:
        """Append the batch that `build` returns. If another writer appended first, call `build` again."""
        state = self._load()
        while True:
            before = state.cursor
            entries = self._append_batch(state, before, build())
            if entries is not None:
                return entries

    def _append_batch(self, state: SessionState, before: Cursor, batch: EntryBatch) -> Sequence[Entry] | None:
        """Append a batch that was built at `before`, and apply it.

        If another writer appended first, apply its lines instead and return `None`. After an interrupt the state is
        marked as uncertain, and the next use loads it again.
        """
        return self._append_lines(state, before, batch.lines, state.add_written, batch)

    def _append_lines(
        self,
        state: SessionState,
        before: Cursor,
        lines: Sequence[bytes],
        add: Callable[[Written, Cursor], Sequence[Entry]],
        written: Written,
    ) -> Sequence[Entry] | None:
        """Append lines that were built at `before`, and apply them with `add(written, cursor)`; see `_append_batch`."""
        cursor = None
        try:
            self._pending_lines = lines
            cursor = self._store.append(lines, after=before)
            self._has_written = True
            entries = self._find_written(state, lines) if cursor is before else add(written, cursor)
            self._pending_lines = None
            return entries
        # A second signal may arrive here; make no calls.
        except StoreError as error:
            if cursor is not None:
                self._is_uncertain = True
                raise
            self._pending_lines = None
            refusal = error
        except BaseException:
            self._is_uncertain = True
            raise
        self._read_conflicting(state, before, refusal)
        del refusal  # its traceback refers to this frame
        return None

    def _read_conflicting(self, state: SessionState, before: Cursor, refusal: StoreError) -> None:
        """Apply what other writers appended since `before`. If they appended nothing, raise `refusal`."""
        if isinstance(refusal, Conflict) and not self._requires_unchanged:
            self._read_appended(state)
        if state.cursor == before:
            raise refusal

    def _find_written(self, state: SessionState, lines: Sequence[bytes]) -> list[Entry]:
        """Return the entries of lines just appended, if another program wrote in between and all has to be read."""
        written = set(lines)
        found = [entry for entry in self._read_appended(state) if entry.raw in written]
        if len(found) < len(lines):
            raise StoreError(self.location, "the lines just written are not in the session")
        return found

    def _prepare_write(self) -> SessionState:
        """Return the state if the session can be written to. A file of an older version is rewritten first."""
        if self._is_closed:
            raise InvalidOperation(f"{self.location} is closed")
        if self._read_only is not None:
            raise ReadOnly(self.location, self._read_only)
        self._check_not_writing()
        if self.needs_migration:
            branch, head = self.heads.current, self.heads.leaf
            self.migrate()
            self._check_head(branch, head)
        self._writable_state = self._load()
        return self._writable_state

    def migrate(self) -> bool:
        """Rewrite a file of an older version atomically, with a backup. Return whether it was necessary."""
        with self._mutex:
            self._check_not_writing()
            state = self._load()
            if not self.needs_migration:
                return False
            if self._read_only is not None:
                raise ReadOnly(self.location, self._read_only)
            for attempt in range(MAX_REWRITE_ATTEMPTS):
                before = state.cursor
                try:
                    self._rewrite(state)
                    break
                except Conflict:
                    self._read_appended(state)  # another program appended in the older version
                    if state.cursor == before or attempt == MAX_REWRITE_ATTEMPTS - 1:
                        raise
            self._load()
            return True

    def _rewrite(self, state: SessionState) -> None:
        """Replace all lines by lines of version 3. The session is loaded again afterwards."""
        lines = state.reader.read_all_lines()
        try:
            self._pending_lines, self._is_rewriting = lines, True
            self._store.replace(lines, after=state.cursor)
        finally:  # whatever happened, loading finds out which file is in place
            self._is_uncertain = True

    def close(self) -> None:
        """Close the store. If the last line is not at the current head, a head record is appended first."""
        with self._mutex:
            if self._is_closed:
                return
            self._check_not_writing()
            try:
                if self._has_written and not self._is_at_last_line():
                    self._commit(self._build_heads_batch)
            finally:
                self._is_closed, self._writable_state = True, None
                self._store.close()

    def _is_at_last_line(self) -> bool:
        state = self._load()
        return state.heads.is_at_last_line(state.tree)

    def _build_heads_batch(self, record: Custom | None = None) -> EntryBatch:
        """Build a batch with one head record, by default with the heads as they are."""
        record = self.heads.build_record() if record is None else record
        return EntryBatch.build_single(self._builder.build_head_record(self.tree, record))
