"""Drafts: bodies as entries that can be written, with ids, parents, times, and head records among them.

What they are drafted for is what a session knows when it writes; if others write first, they are drafted anew. Whether
they may be written is not here, nor how: see `session` and `store`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from sessiontree.core.entries import Body, Chain, Custom, Entry, EntryId, JsonObject, Message, is_annotation
from sessiontree.core.heads import Heads
from sessiontree.core.messages import is_complete
from sessiontree.core.normalize import normalize_body, normalize_message
from sessiontree.core.timestamps import format_timestamp
from sessiontree.core.tree import Tree
from sessiontree.errors import InvalidOperation
from sessiontree.format.codec import MemoryLine, get_type, write_entry, write_message
from sessiontree.session.state import SessionState

RECORD_INTERVAL = 256
"""A head record stands among every so many lines."""
MAX_LINES_BEFORE_RECORD = RECORD_INTERVAL - 3
"""When no more lines stand behind the last record, one line can be written without one."""

UNWRITTEN_SOURCE = MemoryLine(b"")
"""The source of a chain that is not written yet."""

_id_pool: list[EntryId] = []
os.register_at_fork(after_in_child=_id_pool.clear)


def generate_id() -> EntryId:
    """A new id of 64 random bits. They are drawn many at a time: asking the system takes as long as writing a line."""
    while True:
        try:
            return _id_pool.pop()
        except IndexError:
            _id_pool.extend(os.urandom(512).hex(" ", 8).split())


class NewEntry(NamedTuple):
    """A body to write."""

    body: Body
    extra: JsonObject | None = None
    """Further fields of its line, in wire form."""
    id: EntryId | None = None
    """The id it is to have, for what is written with it and names it; a new one by default."""


def has_branch_move(items: Iterable[Body | NewEntry]) -> bool:
    """Whether writing these moves the branch that they are written on."""
    for item in items:
        body = item.body if isinstance(item, NewEntry) else item
        if isinstance(body, Message) or not is_annotation(get_type(body), getattr(body, "custom_type", None)):
            return True
    return False


class EntryBatch(NamedTuple):
    """Entries that are to be written, as a tree takes them, and their lines."""

    items: list[Entry | Chain]
    lines: list[bytes]

    @classmethod
    def build_single(cls, entry: Entry) -> EntryBatch:
        return cls([entry], [entry.raw])

    def add(self, entry: Entry) -> None:
        self.items.append(entry)
        self.lines.append(entry.raw)

    def iter_backward(self) -> Iterator[Entry]:
        """The entries, the last one first."""
        at = len(self.lines)
        for item in reversed(self.items):
            for index in reversed(range(len(item) if isinstance(item, Chain) else 1)):
                at -= 1
                entry = item.build_entry(index) if isinstance(item, Chain) else item
                entry.source = MemoryLine(self.lines[at])
                yield entry


class EntryBuilder:
    """Where the ids and times of new entries come from."""

    def __init__(self, new_id: Callable[[], EntryId], now: Callable[[], int]) -> None:
        self.generate_id = new_id
        self._now = now

    def build_chain(
        self,
        loaded: SessionState,
        items: Sequence[Body | NewEntry],
        parent: EntryId | None,
        branch: str | None,
        *,
        heads: Heads | None = None,
    ) -> EntryBatch:
        """New entries of one moment, each under the one before, with head records among them so that none is far.

        `heads` are those of that moment, where something is written before these.
        """
        tree, heads = loaded.tree, loaded.heads if heads is None else heads
        current = heads.current
        said = None if branch == current or branch is None else current
        until_record = RECORD_INTERVAL - 1 - heads.lines_since_record
        above = find_write_parent(tree, parent)
        if len(items) == 1 and until_record > 1 and isinstance(items[0], Message):
            id, line = self.build_message(items[0].message, above, branch, said, tree)
            entry = Entry(
                id=id, parent=above, type="message", line=0, source=UNWRITTEN_SOURCE, branch=branch, current=said
            )
            return EntryBatch([entry], [line])
        rooted = tree.real_count > 0
        first = above
        moved: EntryId | None = None
        now, new_id = self._now(), self.generate_id
        stamp = format_timestamp(now)
        drafted = EntryBatch([], [])
        made, lines = drafted
        given: set[EntryId] | None = None
        """Ids that items came with."""
        ids: list[EntryId] | None = None
        """Of the chain that goes on."""

        def iter_ancestors() -> Iterator[Entry]:
            yield from (entry for entry in drafted.iter_backward() if not entry.is_annotation)
            yield from tree.walk_up(first)

        for item in items:
            if isinstance(item, Message):  # nearly all are
                id, message = new_id(), item.message
                if not is_complete(message):
                    message = normalize_message(message, iter_ancestors, now)
                lines.append(write_message(message, id, above, stamp, branch, said))
                if ids is not None:
                    ids.append(id)
                else:
                    ids = [id]
                    made.append(
                        Chain(ids=ids, parent=above, line=0, source=UNWRITTEN_SOURCE, branch=branch, current=said)
                    )
                above = moved = id
                rooted = True
            else:
                body, extra, id = item if isinstance(item, NewEntry) else (item, None, None)
                if id is None:
                    id = new_id()
                else:
                    given = given or set()
                    _check_id(id, tree, given)
                body = normalize_body(body, id=id, up=iter_ancestors, tree=tree, now=now)
                entry = write_entry(
                    body, id=id, parent=above, timestamp=stamp, branch=branch, current=said, extra=extra
                )
                drafted.add(entry)
                ids = None
                if not entry.is_annotation:
                    above = moved = id
                    rooted = True
                elif not rooted:
                    above = id
            until_record -= 1
            if until_record <= 0:
                now_at = heads.heads if moved is None or branch is None else {**heads.heads, branch: moved}
                beneath = now_at[current] if now_at[current] is not None or rooted else above
                record = self.build_entry(heads.build_record(heads=now_at), beneath, current, current)
                drafted.add(record)
                ids = None
                until_record = RECORD_INTERVAL - 1
                if not rooted:
                    above = record.id
        return drafted

    def build_message(
        self, message: JsonObject, above: EntryId | None, branch: str | None, current: str | None, tree: Tree
    ) -> tuple[EntryId, bytes]:
        """A message that is written by itself: its id and its line."""
        id, now = self.generate_id(), self._now()
        if not is_complete(message):
            message = normalize_message(message, partial(tree.walk_up, above), now)
        return id, write_message(message, id, above, format_timestamp(now), branch, current)

    def build_entry(self, body: Body, parent: EntryId | None, branch: str, current: str) -> Entry:
        """One entry as it is."""
        return write_entry(
            body,
            id=self.generate_id(),
            parent=parent,
            timestamp=format_timestamp(self._now()),
            branch=branch,
            current=None if branch == current else current,
        )

    def build_head_record(self, tree: Tree, record: Custom) -> Entry:
        """A head record, at the leaf that it makes the current one."""
        current: str = record.data["current"]
        return self.build_entry(record, find_write_parent(tree, record.data["heads"][current]), current, current)


def _check_id(id: EntryId, tree: Tree, given: set[EntryId]) -> None:
    if not isinstance(id, str) or not id:  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from outside
        raise InvalidOperation(f"{id!r} is no id of an entry")
    if id in tree or id in given:
        raise InvalidOperation(f"there is an entry {id!r} already")
    given.add(id)


def find_write_parent(tree: Tree, leaf: EntryId | None) -> EntryId | None:
    """The parent of what is written at `leaf`: annotations before the first real entry form its chain."""
    if leaf is not None:
        return leaf
    return None if tree.real_count else tree.last_annotation
