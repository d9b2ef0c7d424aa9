"""Builds the summary at the top of the HTML page: the session and the statistics of its branches. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from msgspec import Struct

from sessiontree.comparison import PathStats, compute_stats
from sessiontree.core.entries import Entry, EntryId, shorten_to_line
from sessiontree.core.entry_text import format_entry, get_speaker
from sessiontree.core.number_text import format_count
from sessiontree.export.entry_view import format_cost, make_visible
from sessiontree.export.snapshot import Snapshot

MAX_BRANCHES = 1000
"""The maximum number of branches in the page. Browsers are slow with longer tables."""
MAX_MODELS = 20


class BranchFigures(Struct, frozen=True, kw_only=True):
    """Statistics of a branch as text."""

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


class PageSummary(Struct, frozen=True, kw_only=True):
    """The summary of a session."""

    title: str
    id: str
    cwd: str
    started: str
    ended: str
    models: list[str]
    tokens: str
    cost: str
    entries: int
    current: str
    branches: list[BranchFigures]
    """The first `MAX_BRANCHES` branches."""
    branch_count: int
    faults: list[str]
    redacted: bool


def build_summary(whole: Snapshot) -> PageSummary:
    """Build the summary of a session."""
    tree = whole.tree
    paths = PathStats(tree)
    all = compute_stats("", None, map(tree.peek, tree.iter_ids()))
    faults = [problem.message for problem in whole.problems if problem.severity == "fault"]
    return PageSummary(
        title=make_visible(whole.name or _find_first_words(map(tree.peek, tree.iter_ids())) or "Unnamed session"),
        id=make_visible(whole.header.id),
        cwd=make_visible(whole.header.cwd),
        started=_format_time(whole.header.timestamp),
        ended=_format_time(all.last_activity or ""),
        models=_format_models(all.models),
        tokens=format_count(all.tokens) if all.tokens else "",
        cost=format_cost(all.cost) if all.cost else "",
        entries=len(tree),
        current=make_visible(whole.heads.current),
        branches=[
            _build_figures(whole, paths, name, head) for name, head in islice(whole.heads.heads.items(), MAX_BRANCHES)
        ],
        branch_count=len(whole.heads.heads),
        faults=[make_visible(fault) for fault in faults],
        redacted=whole.header.redacted,
    )


def _find_first_words(entries: Iterable[Entry]) -> str:
    return next((shorten_to_line(format_entry(entry))[:80] for entry in entries if get_speaker(entry) == "user"), "")


def _format_time(timestamp: str) -> str:
    return make_visible(timestamp[:16].replace("T", " ")) + (" UTC" if timestamp.endswith("Z") else "")


def _build_figures(whole: Snapshot, paths: PathStats, name: str, head: EntryId | None) -> BranchFigures:
    known = head if head in whole.tree else None
    stats = paths.compute(name, known)
    return BranchFigures(
        name=make_visible(name),
        head="" if known is None else make_visible(known),
        current=name == whole.heads.current,
        archived=name in whole.heads.archived,
        entries=stats.entries,
        messages=stats.messages,
        tool_calls=stats.tool_calls,
        errors=stats.errors,
        tokens=format_count(stats.tokens) if stats.tokens else "–",
        cost=format_cost(stats.cost) if stats.cost else "–",
        time=format_duration(stats.time),
        models=", ".join(_format_models(stats.models)),
    )


def _format_models(names: Iterable[str]) -> list[str]:
    """Return the names of the models, shortened if there are many."""
    known = [make_visible(name) for name in names if name != "unknown/unknown"]
    return known if len(known) <= MAX_MODELS else [*known[:MAX_MODELS], f"and {len(known) - MAX_MODELS} more"]


def format_duration(milliseconds: int) -> str:
    """Format a duration: 90000 ms as `1 min 30 s`."""
    seconds = round(milliseconds / 1000)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600} h"
