"""About: what the page says of a session as a whole, and of each of its branches. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from msgspec import Struct

from sessiontree.comparison import PathStats, stats_of
from sessiontree.core.entries import Entry, EntryId
from sessiontree.core.figures import short_count
from sessiontree.core.fulltext import speaker
from sessiontree.core.outline import one_line, plain_text
from sessiontree.export.snapshot import Snapshot
from sessiontree.export.view import money, visible

MOST_BRANCHES = 1000
"""Branches whose figures are in the page: a browser is slow with longer tables."""
MOST_MODELS = 20


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
    """The first `MOST_BRANCHES`."""
    branch_count: int
    faults: list[str]
    redacted: bool


def about_of(whole: Snapshot) -> About:
    """The figures of a session."""
    tree = whole.tree
    paths = PathStats(tree)
    all = stats_of("", None, map(tree.peek, tree.ids()))
    faults = [problem.message for problem in whole.problems if problem.severity == "fault"]
    return About(
        title=visible(whole.name or _first_words(map(tree.peek, tree.ids())) or "Unnamed session"),
        id=visible(whole.header.id),
        cwd=visible(whole.header.cwd),
        begun=_day(whole.header.timestamp),
        ended=_day(all.last_activity or ""),
        models=_models(all.models),
        tokens=short_count(all.tokens) if all.tokens else "",
        cost=money(all.cost) if all.cost else "",
        entries=len(tree),
        current=visible(whole.heads.current),
        branches=[
            _figures(whole, paths, name, head) for name, head in islice(whole.heads.heads.items(), MOST_BRANCHES)
        ],
        branch_count=len(whole.heads.heads),
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
        models=", ".join(_models(stats.models)),
    )


def _models(names: Iterable[str]) -> list[str]:
    """The names of models, the first ones where there are many."""
    known = [visible(name) for name in names if name != "unknown/unknown"]
    return known if len(known) <= MOST_MODELS else [*known[:MOST_MODELS], f"and {len(known) - MOST_MODELS} more"]


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
