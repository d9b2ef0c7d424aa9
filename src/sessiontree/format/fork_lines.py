"""Fork lines: the lines of a new session that starts as a copy of a path.

Copied lines keep their bytes. If a parent or a compaction's anchor changes, only that value is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sessiontree.core.entries import Body, Compaction, Entry, EntryId, Label, SessionInfo, read_raws
from sessiontree.core.heads import MAIN, build_first_record
from sessiontree.core.operation_plans import ForkPlan
from sessiontree.errors import InvalidOperation
from sessiontree.format.codec import ANCHOR, MemoryLine, read_body, read_line, set_parent, write_entry
from sessiontree.format.json_line import LINE_LIMIT, NotJson, write_value
from sessiontree.format.splice import set_value


def build_fork_lines(plan: ForkPlan, *, name: str | None, now: str, new_id: Callable[[], EntryId]) -> list[bytes]:
    """Return the lines after the header: the path, its current labels, and a head record that makes it `main`.

    Raises `InvalidOperation` if damage would change the context of the fork.
    """
    return read_parts(build_fork_parts(plan, name=name, now=now, new_id=new_id))


def read_parts(parts: Sequence[Entry | bytes]) -> list[bytes]:
    """Return all parts of a fork as lines."""
    copied = read_raws(part for part in parts if isinstance(part, Entry))
    return [next(copied) if isinstance(part, Entry) else part for part in parts]


def build_fork_parts(
    plan: ForkPlan, *, name: str | None, now: str, new_id: Callable[[], EntryId]
) -> list[Entry | bytes]:
    """Return the parts of a fork. A line that does not change is represented by its entry."""
    changed = read_raws(entry for entry in plan.entries if _is_changed(entry, plan))
    lines: list[Entry | bytes] = []
    last: EntryId | None = None
    for entry in plan.entries:
        if _is_changed(entry, plan):
            parent = plan.parents.get(entry.id, entry.parent)
            lines.append(reparent_line(entry, next(changed), parent, plan.anchors.get(entry.id)))
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
        annotate(build_first_record(MAIN, {MAIN: plan.leaf}), now, plan.leaf if plan.leaf is not None else last)
    return lines


def reparent_line(entry: Entry, raw: bytes, parent: EntryId | None, anchor: EntryId | None = None) -> bytes:
    """Return the line of `entry` with another parent, and with another anchor if one is given.

    Raises `InvalidOperation` if the new line would be read as something else, which can happen if the line is damaged.
    """
    line = raw if parent == entry.parent else set_parent(raw, parent)
    if anchor is not None:
        line = set_value(line, ANCHOR, write_value(anchor))
    if not _is_same(entry, raw, line, parent, anchor):
        raise InvalidOperation(
            f"entry {entry.id!r} on line {entry.line} is damaged and cannot be copied below {parent or 'root'!r};"
            " copy from the file that `sessiontree doctor --repair` writes"
        )
    return line


def _is_same(entry: Entry, raw: bytes, line: bytes, parent: EntryId | None, anchor: EntryId | None) -> bool:
    """Return whether `line` reads as the same entry as `raw`, except for the intended changes."""
    if len(line) > LINE_LIMIT:
        return False
    try:
        copy = read_line(line, entry.line, MemoryLine(line))
    except NotJson:
        return False
    body, expected = read_body(line), read_body(raw)
    if anchor is not None and isinstance(expected, Compaction):
        expected = replace(expected, first_kept=anchor)
    return (copy.id, copy.type, copy.parent, copy.branch, copy.current, copy.custom_type, body) == (
        *(entry.id, entry.type, parent, entry.branch, entry.current, entry.custom_type),
        expected,
    )


def _is_changed(entry: Entry, plan: ForkPlan) -> bool:
    return entry.id in plan.parents or entry.id in plan.anchors
