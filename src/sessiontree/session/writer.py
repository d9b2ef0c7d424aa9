"""Writing entries to a session: building their lines, appending them, and retrying when another writer was first.

`EntryBuilder` gives new entries their ids, parents, times and head records. `SessionWriter` appends them to the store.
If another writer appended first, the entries are built again for the new state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial
from threading import get_ident
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from sessiontree.core.entries import Body, Chain, Custom, Entry, EntryId, JsonObject, Label, Message, is_annotation
from sessiontree.core.heads import Heads
from sessiontree.core.message_input import check_message
from sessiontree.core.messages import is_complete
from sessiontree.core.normalize import check_body, normalize_body, normalize_message
from sessiontree.core.timestamps import format_timestamp, parse_timestamp
from sessiontree.core.tree import Tree
from sessiontree.errors import BranchMoved, Conflict, InvalidOperation, ReadOnly, StoreError
from sessiontree.format.codec import VERSION, MemoryLine, get_type, write_entry, write_message
from sessiontree.session import group_commit
from sessiontree.session.group_commit import GroupCommit
from sessiontree.session.state import Place, SessionBase, SessionState
from sessiontree.store.base import Cursor, Store

RECORD_INTERVAL = 256
"""A head record with the heads of all branches is written at least every this many lines."""
MAX_LINES_BEFORE_RECORD = RECORD_INTERVAL - 3
"""Up to this many lines after the last head record, a single line can be written without a new one."""
MAX_REWRITE_ATTEMPTS = 10
"""How often an older file is rewritten while another program keeps appending to it."""
MAX_APPEND_ATTEMPTS = 1000
"""How often `append_at_head` tries again while other writers keep moving the branch."""

UNWRITTEN_SOURCE = MemoryLine(b"")
"""The source of a chain that is not written yet."""

_id_pool: list[EntryId] = []
os.register_at_fork(after_in_child=_id_pool.clear)


def generate_id() -> EntryId:
    """Return a new id of 64 random bits. The pool is filled 64 at a time: each system call is as slow as an append."""
    while True:
        try:
            return _id_pool.pop()
        except IndexError:
            _id_pool.extend(os.urandom(512).hex(" ", 8).split())


class Item(NamedTuple):
    """A body to write, with more than the body itself."""

    body: Body
    extra: JsonObject | None = None
    """Further fields of its line, in wire form."""
    id: EntryId | None = None
    """The id to use, if entries written together refer to each other; a new one by default."""
    is_copy: bool = False
    """Whether the body is that of a stored entry, which may hold what an older program wrote."""
    parent: Place | UnsetType = UNSET
    """The id of an earlier item, or a place in the session as it is before the batch.

    By default an item follows the item before it, or goes to the head of `branch` if it names one.
    """
    timestamp: str | None = None
    """When it was written, as an ISO time like the one of an entry, in UTC if it names no zone; now by default."""
    branch: str | UnsetType | None = UNSET
    """The branch that it moves, `None` for no branch; by default that of the item before."""

    @property
    def is_placed(self) -> bool:
        """Whether the item has a parent, a time or a branch of its own."""
        return self.parent is not UNSET or self.timestamp is not None or self.branch is not UNSET


class Anchor(Enum):
    """Where an item without a parent goes."""

    HEAD = auto()
    """To the head of its branch."""
    PREVIOUS = auto()
    """After the item before it."""


class PlacedItem(NamedTuple):
    """An item of a batch, with its id, its branch and its place."""

    item: Item
    id: EntryId
    branch: str | None
    anchor: EntryId | Anchor | None


def has_branch_move(items: Iterable[Body | Item]) -> bool:
    """Return whether writing these entries moves the head of their branch. Annotations do not."""
    for item in items:
        body = item.body if isinstance(item, Item) else item
        if isinstance(body, Message) or not is_annotation(get_type(body), getattr(body, "custom_type", None)):
            return True
    return False


class EntryBatch(NamedTuple):
    """Entries to write, as the tree takes them, and their lines."""

    items: list[Entry | Chain]
    lines: list[bytes]

    @classmethod
    def build_single(cls, entry: Entry) -> EntryBatch:
        return cls([entry], [entry.raw])

    def add(self, entry: Entry) -> None:
        self.items.append(entry)
        self.lines.append(entry.raw)

    def iter_backward(self) -> Iterator[Entry]:
        """Yield the entries, the last one first."""
        at = len(self.lines)
        for item in reversed(self.items):
            for index in reversed(range(len(item) if isinstance(item, Chain) else 1)):
                at -= 1
                entry = item.build_entry(index) if isinstance(item, Chain) else item
                entry.source = MemoryLine(self.lines[at])
                yield entry


class EntryBuilder:
    """Builds entries with new ids and the current time."""

    def __init__(self, new_id: Callable[[], EntryId], now: Callable[[], int]) -> None:
        self.generate_id = new_id
        self._now = now

    def build_chain(
        self,
        state: SessionState,
        items: Sequence[Body | Item],
        parent: EntryId | None,
        branch: str | None,
        *,
        heads: Heads | None = None,
    ) -> EntryBatch:
        """Build entries with one timestamp, each the child of the one before, and a head record when one is due.

        `heads` are the heads before these entries, if they differ from those of `state`.
        """
        tree, heads = state.tree, state.heads if heads is None else heads
        current = heads.current
        named_current = None if branch == current or branch is None else current
        until_record = RECORD_INTERVAL - 1 - heads.lines_since_record
        above = find_write_parent(tree, parent)
        if len(items) == 1 and until_record > 1 and isinstance(items[0], Message):
            id, line = self.build_message(items[0].message, above, branch, named_current, tree)
            entry = Entry(
                id=id,
                parent=above,
                type="message",
                number=0,
                source=UNWRITTEN_SOURCE,
                branch=branch,
                current=named_current,
            )
            return EntryBatch([entry], [line])
        has_root = tree.has_real_entries
        first = above
        moved: EntryId | None = None
        now, new_id = self._now(), self.generate_id
        stamp = format_timestamp(now)
        batch = EntryBatch([], [])
        built, lines = batch
        given: set[EntryId] | None = None
        """Ids that came with the items."""
        ids: list[EntryId] | None = None
        """The ids of the chain that the next message extends."""

        def iter_ancestors() -> Iterator[Entry]:
            yield from (entry for entry in batch.iter_backward() if not entry.is_annotation)
            yield from tree.walk_up(first)

        for item in items:
            if isinstance(item, Message):  # the common case
                id, message = new_id(), check_message(item.message)
                if not is_complete(message):
                    message = normalize_message(message, iter_ancestors, now)
                lines.append(write_message(message, id, above, stamp, branch, named_current))
                if ids is not None:
                    ids.append(id)
                else:
                    ids = [id]
                    built.append(
                        Chain(
                            ids=ids,
                            parent=above,
                            number=0,
                            source=UNWRITTEN_SOURCE,
                            branch=branch,
                            current=named_current,
                        )
                    )
                above = moved = id
                has_root = True
            else:
                body, extra, id, is_copy = item[:4] if isinstance(item, Item) else (item, None, None, False)
                if id is None:
                    id = new_id()
                else:
                    given = given or set()
                    check_new_id(id, tree, given)
                if not is_copy:
                    body = check_body(body)
                body = normalize_body(body, id=id, up=iter_ancestors, tree=tree, now=now)
                entry = write_entry(
                    body, id=id, parent=above, timestamp=stamp, branch=branch, current=named_current, extra=extra
                )
                batch.add(entry)
                ids = None
                if not entry.is_annotation:
                    above = moved = id
                    has_root = True
                elif not has_root:
                    above = id
            until_record -= 1
            if until_record <= 0:
                new_heads = heads.heads if moved is None or branch is None else {**heads.heads, branch: moved}
                leaf = new_heads[current]
                record_parent = leaf if leaf is not None or has_root else above
                record = self.build_entry(heads.build_record(heads=new_heads), record_parent, current, current)
                batch.add(record)
                ids = None
                until_record = RECORD_INTERVAL - 1
                if not has_root:
                    above = record.id
        return batch

    def build_placed(self, state: SessionState, placed: Iterable[PlacedItem], point: Entry | None = None) -> EntryBatch:
        """Build entries that have places, times and branches of their own, and head records when they are due.

        `point` is the branch point of a new branch, which is written before them.
        """
        tree, current = state.tree, state.heads.current
        heads = dict(state.heads.heads)
        until_record = RECORD_INTERVAL - 1 - state.heads.lines_since_record
        has_root = tree.has_real_entries
        last_annotation = None if has_root else tree.last_annotation
        now, batch = self._now(), EntryBatch([], [])
        built: dict[EntryId, Entry] = {}
        previous: EntryId | None = None

        def find_parent(leaf: EntryId | None) -> EntryId | None:  # as `find_write_parent`, with this batch
            return leaf if leaf is not None or has_root else last_annotation

        def iter_ancestors(leaf: EntryId | None) -> Iterator[Entry]:
            while leaf in built:
                entry = built[leaf]
                if not entry.is_annotation:
                    yield entry
                leaf = entry.parent
            yield from tree.walk_up(leaf)

        if point is not None:
            assert isinstance(point.branch, str)
            batch.add(point)
            built[point.id] = point
            previous, has_root = point.id, True
            heads[point.branch] = point.id
            current = point.branch if point.current is None else current
            until_record -= 1
        for item, id, branch, anchor in placed:
            if id in tree:  # another writer was first
                raise InvalidOperation(f"entry {id!r} already exists")
            if anchor is Anchor.HEAD:
                assert branch is not None
                above = heads[branch]
            else:
                above = previous if anchor is Anchor.PREVIOUS else anchor
            time = now if item.timestamp is None else _read_time(item.timestamp)
            body = item.body if item.is_copy else check_body(item.body)
            # A label may be for any earlier item, on whatever path.
            up = partial(iter, [*built.values()]) if isinstance(body, Label) else partial(iter_ancestors, above)
            entry = write_entry(
                normalize_body(body, id=id, up=up, tree=tree, now=time),
                id=id,
                parent=find_parent(above),
                timestamp=format_timestamp(time),
                branch=branch,
                current=None if branch == current or branch is None else current,
                extra=item.extra,
            )
            batch.add(entry)
            built[id] = entry
            if entry.is_annotation:
                previous, last_annotation = above, id
            else:
                previous, has_root = id, True
                if branch is not None:
                    heads[branch] = id
            until_record -= 1
            if until_record <= 0:
                record = state.heads.build_record(current=current, heads=dict(heads))
                entry = self.build_entry(record, find_parent(heads[current]), current, current)
                batch.add(entry)
                last_annotation = entry.id
                until_record = RECORD_INTERVAL - 1
        return batch

    def build_message(
        self, message: JsonObject, above: EntryId | None, branch: str | None, current: str | None, tree: Tree
    ) -> tuple[EntryId, bytes]:
        """Build one message, and return its id and its line."""
        id, now = self.generate_id(), self._now()
        message = check_message(message)
        if not is_complete(message):
            message = normalize_message(message, partial(tree.walk_up, above), now)
        return id, write_message(message, id, above, format_timestamp(now), branch, current)

    def build_entry(self, body: Body, parent: EntryId | None, branch: str, current: str) -> Entry:
        """Build one entry from a body that needs no normalizing."""
        return write_entry(
            body,
            id=self.generate_id(),
            parent=parent,
            timestamp=format_timestamp(self._now()),
            branch=branch,
            current=None if branch == current else current,
        )

    def build_head_record(self, tree: Tree, record: Custom) -> Entry:
        """Build a head record as a child of the head of the branch that it makes current."""
        current: str = record.data["current"]
        return self.build_entry(record, find_write_parent(tree, record.data["heads"][current]), current, current)


def check_new_id(id: EntryId, tree: Tree, given: set[EntryId]) -> None:
    """Raise `InvalidOperation` for an invalid id, and for one that the tree or `given` has; add it to `given`."""
    if not isinstance(id, str) or not id:  # pyright: ignore[reportUnnecessaryIsInstance] - the caller may not check types
        raise InvalidOperation(f"{id!r} is not a valid entry id")
    if id in tree or id in given:
        raise InvalidOperation(f"entry {id!r} already exists")
    given.add(id)


def check_bodies(bodies: Iterable[Body | Item]) -> list[Body | Item]:
    """Return the bodies as a list. Raises `InvalidOperation` for a single body, which needs no list but `append`."""
    kind: type[object] = type(bodies)  # taken here: the checks below narrow the type
    if isinstance(bodies, str | Mapping | Item) or not isinstance(bodies, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
        raise InvalidOperation(
            f'extend needs a list such as [st.user("hi")], not {kind.__name__}; use append for one entry'
        )
    return list(bodies)


def _read_time(timestamp: str) -> int:
    """Return an ISO time in milliseconds since the epoch. Raises `InvalidOperation`."""
    milliseconds = parse_timestamp(timestamp) if isinstance(timestamp, str) else None  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
    if milliseconds is None:
        raise InvalidOperation(f'a timestamp is an ISO time such as "2026-03-01T09:30:00.000Z", not {timestamp!r}')
    return milliseconds


def find_write_parent(tree: Tree, leaf: EntryId | None) -> EntryId | None:
    """Return the parent of an entry written after `leaf`. Annotations before the first real entry form a chain."""
    if leaf is not None:
        return leaf
    return None if tree.has_real_entries else tree.last_annotation


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
        if extra is not None or parent is not UNSET or not isinstance(body, Message):
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
                add = partial(state.add_written_message, id, head, target, current, line)
                entries = self._append_lines(state, before, (line,), add)
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
        """Write items of which some have a parent, a time or a branch of their own."""
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
                _read_time(item.timestamp)  # nothing is written if it is wrong
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
        return self._append_lines(state, before, batch.lines, partial(state.add_written, batch))

    def _append_lines(
        self,
        state: SessionState,
        before: Cursor,
        lines: Sequence[bytes],
        add: Callable[[Cursor], Sequence[Entry]],
    ) -> Sequence[Entry] | None:
        """Append lines that were built at `before`, and apply them with `add(cursor)`; see `_append_batch`."""
        cursor = None
        try:
            self._pending_lines = lines
            cursor = self._store.append(lines, after=before)
            self._has_written = True
            entries = self._find_written(state, lines) if cursor is before else add(cursor)
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
        """Replace all lines by those of version 3. The session is loaded again afterwards."""
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
