"""Forks: the lines of a new session that begins as a part of another. Pure.

Copied lines keep their bytes; where a parent or a compaction's anchor changes, only that value does.
"""

from __future__ import annotations

from collections.abc import Callable

from sessiontree.core.entries import Body, Custom, EntryId, Label, SessionInfo
from sessiontree.core.heads import MAIN
from sessiontree.core.plan import ForkPlan
from sessiontree.format.codec import ANCHOR, PARENT, write_entry, write_value
from sessiontree.format.jsonl import raws
from sessiontree.format.splice import set_value


def path_fork_lines(plan: ForkPlan, *, name: str | None, now: str, new_id: Callable[[], EntryId]) -> list[bytes]:
    """The lines behind the header: the path, its live labels, and a head record that makes it `main`."""
    lines: list[bytes] = []
    last: EntryId | None = None
    for entry, raw in zip(plan.entries, raws(plan.entries), strict=True):
        if entry.id in plan.parents:
            raw = set_value(raw, PARENT, write_value(plan.parents[entry.id]))
        if entry.id in plan.anchors:
            raw = set_value(raw, ANCHOR, write_value(plan.anchors[entry.id]))
        lines.append(raw)
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
        heads = Custom(
            custom_type="sessiontree.head", data={"current": MAIN, "heads": {MAIN: plan.leaf}, "reset": True}
        )
        annotate(heads, now, plan.leaf if plan.leaf is not None else last)
    return lines
