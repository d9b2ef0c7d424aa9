"""Drafts: bodies as entries that can be written, with ids, parents, times, and head records among them.

What they are drafted for is what a session knows when it writes; if others write first, they are drafted anew. Whether
they may be written is not here, nor how: see `session` and `store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from sessiontree.core.entries import Body, Custom, Entry, EntryId, JsonObject, Message, is_annotation
from sessiontree.core.filling import filled
from sessiontree.core.times import iso
from sessiontree.core.tree import Tree
from sessiontree.format.codec import type_of, write_entry
from sessiontree.loaded import Loaded

RECORD_EVERY = 256
"""A head record stands among every so many lines."""


class Item(NamedTuple):
    """A body to write."""

    body: Body
    extra: JsonObject | None = None
    """Further fields of its line, in wire form."""
    id: EntryId | None = None
    """The id it is to have, for what is written with it and names it; a new one by default."""


def moves(items: Iterable[Body | Item]) -> bool:
    """Whether writing these moves the branch that they are written on."""
    for item in items:
        body = item.body if isinstance(item, Item) else item
        if isinstance(body, Message) or not is_annotation(type_of(body), getattr(body, "custom_type", None)):
            return True
    return False


class Draft:
    """Where the ids and times of new entries come from."""

    def __init__(self, new_id: Callable[[], EntryId], now: Callable[[], int]) -> None:
        self.new_id = new_id
        self._now = now

    def chain(
        self, loaded: Loaded, items: Iterable[Body | Item], parent: EntryId | None, branch: str | None
    ) -> list[Entry]:
        """New entries, each under the one before, with head records among them so that none is far."""
        tree, heads = loaded.tree, loaded.heads
        current = heads.current
        said = None if branch == current or branch is None else current
        since_record = heads.lines_since_record
        rooted = tree.real_count > 0
        first = above = under(tree, parent)
        moved: EntryId | None = None
        entries: list[Entry] = []

        def up() -> Iterator[Entry]:
            yield from (entry for entry in reversed(entries) if not entry.is_annotation)
            yield from tree.up(first)

        for item in items:
            body, extra, id = item if isinstance(item, Item) else (item, None, None)
            id = id or self.new_id()
            now = self._now()
            body = filled(body, id=id, up=up, tree=tree, now=now)
            entry = write_entry(body, id=id, parent=above, timestamp=iso(now), branch=branch, current=said, extra=extra)
            entries.append(entry)
            since_record += 1
            if entry.type == "message" or not entry.is_annotation:
                above = moved = entry.id
                rooted = True
            elif not rooted:
                above = entry.id
            if since_record >= RECORD_EVERY - 1:
                now_at = heads.heads if moved is None or branch is None else {**heads.heads, branch: moved}
                beneath = now_at[current] if now_at[current] is not None or rooted else above
                entries.append(self.entry(heads.record(heads=now_at), beneath, current, current))
                since_record = 0
                if not rooted:
                    above = entries[-1].id
        return entries

    def entry(self, body: Body, parent: EntryId | None, branch: str, current: str) -> Entry:
        """One entry as it is."""
        return write_entry(
            body,
            id=self.new_id(),
            parent=parent,
            timestamp=iso(self._now()),
            branch=branch,
            current=None if branch == current else current,
        )

    def record(self, tree: Tree, record: Custom) -> Entry:
        """A head record, at the leaf that it makes the current one."""
        current: str = record.data["current"]
        return self.entry(record, under(tree, record.data["heads"][current]), current, current)


def under(tree: Tree, leaf: EntryId | None) -> EntryId | None:
    """The parent of what is written at `leaf`: annotations before the first real entry form its chain."""
    if leaf is not None:
        return leaf
    return None if tree.real_count else tree.last_annotation
