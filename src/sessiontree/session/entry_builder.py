"""Building the lines of new entries: their ids, parents, times and head records."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType

from sessiontree.core.entries import Body, Chain, Custom, Entry, EntryId, JsonObject, Label, Message, is_annotation
from sessiontree.core.heads import Heads
from sessiontree.core.message_input import check_message
from sessiontree.core.normalize import check_body, normalize_body, normalize_message
from sessiontree.core.ready_messages import is_ready
from sessiontree.core.timestamps import format_timestamp, parse_timestamp
from sessiontree.core.tree import Tree
from sessiontree.errors import InvalidOperation
from sessiontree.format.codec import ChainWriter, MemoryLine, get_type, write_entry, write_message
from sessiontree.session.session_base import Place
from sessiontree.session.state import SessionState

RECORD_INTERVAL = 256
"""A head record with the heads of all branches is written at least every this many lines."""

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
        """Whether the item sets its own parent, time or branch."""
        return self.parent is not UNSET or self.timestamp is not None or self.branch is not UNSET


class Anchor(Enum):
    """Where an item without a parent goes."""

    HEAD = auto()
    """To the head of its branch."""
    PREVIOUS = auto()
    """After the item before it."""


class PlacedItem(Struct, frozen=True):
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

        `heads` are the heads before these entries, if they differ from the heads of `state`.
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
        write_in_chain = ChainWriter(stamp, branch, named_current).write
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
                id, message = new_id(), item.message
                if not is_ready(message):
                    message = normalize_message(check_message(message), iter_ancestors, now)
                lines.append(write_in_chain(message, id, above))
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
        for place in placed:
            item, id, branch, anchor = place.item, place.id, place.branch, place.anchor
            if id in tree:  # another writer was first
                raise InvalidOperation(f"entry {id!r} already exists")
            if anchor is Anchor.HEAD:
                assert branch is not None
                above = heads[branch]
            else:
                above = previous if anchor is Anchor.PREVIOUS else anchor
            time = now if item.timestamp is None else read_time(item.timestamp)
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
        if not is_ready(message):
            message = normalize_message(check_message(message), partial(tree.walk_up, above), now)
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


def read_time(timestamp: str) -> int:
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
