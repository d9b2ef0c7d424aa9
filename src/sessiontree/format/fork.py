"""Forks: the lines of a new session that begins as a part of another. Pure.

Copied lines keep their bytes; where a parent or a compaction's anchor changes, only that value does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sessiontree.core.entries import Body, Entry, EntryId, Label, SessionInfo, raws
from sessiontree.core.heads import MAIN, first_record
from sessiontree.core.plan import ForkPlan
from sessiontree.format.codec import ANCHOR, PARENT, write_entry, write_value
from sessiontree.format.splice import set_value


def path_fork_lines(plan: ForkPlan, *, name: str | None, now: str, new_id: Callable[[], EntryId]) -> list[bytes]:
    """The lines behind the header: the path, its live labels, and a head record that makes it `main`."""
    return lines_of(path_fork_parts(plan, name=name, now=now, new_id=new_id))


def lines_of(parts: Sequence[Entry | bytes]) -> list[bytes]:
    """Parts of a fork, all as lines."""
    copied = raws(part for part in parts if isinstance(part, Entry))
    return [next(copied) if isinstance(part, Entry) else part for part in parts]


def path_fork_parts(
    plan: ForkPlan, *, name: str | None, now: str, new_id: Callable[[], EntryId]
) -> list[Entry | bytes]:
    """The same, with the entries themselves in the place of lines that stay as they are."""
    changed = raws(entry for entry in plan.entries if _changes(entry, plan))
    lines: list[Entry | bytes] = []
    last: EntryId | None = None
    for entry in plan.entries:
        if _changes(entry, plan):
            raw = next(changed)
            if entry.id in plan.parents:
                raw = set_value(raw, PARENT, write_value(plan.parents[entry.id]))
            if entry.id in plan.anchors:
                raw = set_value(raw, ANCHOR, write_value(plan.anchors[entry.id]))
            lines.append(raw)
        else:
            lines.append(entry)
        last = entry.id

    def annotate(body: Body, timestamp: str, parent: EntryId | None) -> EntryId:
        entry = write_entry(body, id=new_id(), parent=parent, timestamp=timestamp, branch=MAIN)
        lines.append(entry.raw)
        return entry.id

    for setter in plan.labels:
        assert isinstance(setter.body, Label)
        last = annotate(setter.body, setter.timestamp, last)
    if name is not None:
        last = annotate(SessionInfo(name), now, last)
    if plan.entries:
        annotate(first_record(MAIN, {MAIN: plan.leaf}), now, plan.leaf if plan.leaf is not None else last)
    return lines


def _changes(entry: Entry, plan: ForkPlan) -> bool:
    return entry.id in plan.parents or entry.id in plan.anchors
