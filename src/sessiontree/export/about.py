"""About: what the page says of a session as a whole, and of each of its branches. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from sessiontree.comparison import PathStats, stats_of
from sessiontree.core.entries import Entry, EntryId
from sessiontree.core.figures import short_count
from sessiontree.core.fulltext import speaker
from sessiontree.core.outline import one_line, plain_text
from sessiontree.export.snapshot import Snapshot
from sessiontree.export.view import money, visible


class Figures(Struct, frozen=True, kw_only=True):
    """What happened on a path, as people are told it."""

    name: str
    head: str
    current: bool
    archived: bool
    entries: int
    messages: int
    tool_calls: int
    errors: int
    tokens: str
    cost: str
    time: str
    models: str


class About(Struct, frozen=True, kw_only=True):
    """What the page says of the session as a whole."""

    title: str
    id: str
    cwd: str
    begun: str
    ended: str
    models: list[str]
    tokens: str
    cost: str
    entries: int
    current: str
    branches: list[Figures]
    faults: list[str]
    redacted: bool


def about_of(whole: Snapshot) -> About:
    """The figures of a session."""
    entries = list(whole.tree)
    paths = PathStats(whole.tree)
    all = stats_of("", None, entries)
    faults = [problem.message for problem in whole.problems if problem.severity == "fault"]
    return About(
        title=visible(whole.name or _first_words(entries) or "Unnamed session"),
        id=visible(whole.header.id),
        cwd=visible(whole.header.cwd),
        begun=_day(whole.header.timestamp),
        ended=_day(all.last_activity or ""),
        models=[visible(model) for model in all.models if model != "unknown/unknown"],
        tokens=short_count(all.tokens) if all.tokens else "",
        cost=money(all.cost) if all.cost else "",
        entries=len(entries),
        current=visible(whole.heads.current),
        branches=[_figures(whole, paths, name, head) for name, head in whole.heads.heads.items()],
        faults=[visible(fault) for fault in faults],
        redacted=whole.header.redacted,
    )


def _first_words(entries: Iterable[Entry]) -> str:
    return next((one_line(plain_text(entry))[:80] for entry in entries if speaker(entry) == "user"), "")


def _day(timestamp: str) -> str:
    return visible(timestamp[:16].replace("T", " ")) + (" UTC" if timestamp.endswith("Z") else "")


def _figures(whole: Snapshot, paths: PathStats, name: str, head: EntryId | None) -> Figures:
    known = head if head in whole.tree else None
    stats = paths.of(name, known)
    return Figures(
        name=visible(name),
        head="" if known is None else visible(known),
        current=name == whole.heads.current,
        archived=name in whole.heads.archived,
        entries=stats.entries,
        messages=stats.messages,
        tool_calls=stats.tool_calls,
        errors=stats.errors,
        tokens=short_count(stats.tokens) if stats.tokens else "–",
        cost=money(stats.cost) if stats.cost else "–",
        time=duration(stats.time),
        models=visible(", ".join(model for model in stats.models if model != "unknown/unknown")),
    )


def duration(milliseconds: int) -> str:
    """90000 as `1 min 30 s`."""
    seconds = round(milliseconds / 1000)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600} h"
