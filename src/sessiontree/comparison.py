"""Comparison: what branches cost and did after they parted, and how two places differ.

Pure: trees in, values out. Only what comes after the common ancestor of all branches counts.
A winner is named only when the figures tell one; otherwise the reason is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from sessiontree.core.entries import Body, BranchSummary, Compaction, Entry, EntryId, JsonObject, Message, Opaque, Usage
from sessiontree.core.messages import (
    is_object,
    model_of,
    role,
    spent,
    stopped_abnormally,
    string,
    tool_calls,
)
from sessiontree.core.times import milliseconds
from sessiontree.core.tree import Tree
from sessiontree.errors import InvalidOperation

METRICS = ("cost", "tokens", "entries", "time")


class BranchStats(Struct, frozen=True, kw_only=True):
    """What happened on one branch after the branches parted."""

    name: str
    leaf: EntryId | None
    entries: int
    messages: int
    tool_calls: int
    errors: int
    tokens: float
    cost: float
    time: int
    """Milliseconds from the first entry to the last."""
    measured: tuple[str, ...]
    """Which of `cost` and `tokens` any entry records."""
    models: tuple[str, ...]
    files: tuple[str, ...]
    tools: tuple[str, ...]
    """Names of the tools called, in order."""
    last_activity: str | None

    def metric(self, name: str) -> float:
        return {"cost": self.cost, "tokens": self.tokens, "entries": self.entries, "time": self.time}[name]


class Difference(Struct, frozen=True, kw_only=True):
    """How branch `b` differs from branch `a` by one metric."""

    metric: str
    a: str
    b: str
    diff: float
    percent: float | None
    """`None` where the figure of `a` is 0."""


class Comparison(Struct, frozen=True, kw_only=True):
    branches: tuple[BranchStats, ...]
    common_ancestor: EntryId | None
    metric: str
    winner: str | None
    reason: str
    """Why the winner won, or why there is none."""
    differences: tuple[Difference, ...]


class Diff(Struct, frozen=True, kw_only=True):
    """Two places, from where their paths part."""

    common_ancestor: EntryId | None
    first: tuple[EntryId | None, EntryId | None]
    """The first entry of each side behind the common ancestor."""
    entries: tuple[tuple[Entry, ...], tuple[Entry, ...]]
    stats: tuple[BranchStats, BranchStats]


def compare(tree: Tree, branches: Sequence[tuple[str, EntryId | None]], metric: str = "cost") -> Comparison:
    """Compare branches, given by name and head, from where they part."""
    if metric not in METRICS:
        raise InvalidOperation(f"no metric {metric!r}: choose one of {', '.join(METRICS)}")
    if len(branches) < 2:
        raise InvalidOperation("comparing takes two branches or more")
    ancestor = tree.common_ancestor(*(leaf for _, leaf in branches))
    stats = tuple(stats_of(name, leaf, _after(tree, leaf, ancestor)) for name, leaf in branches)
    winner, reason = _winner(stats, metric)
    return Comparison(
        branches=stats,
        common_ancestor=ancestor,
        metric=metric,
        winner=winner,
        reason=reason,
        differences=tuple(
            _difference(name, a, b) for i, a in enumerate(stats) for b in stats[i + 1 :] for name in METRICS
        ),
    )


def diff(tree: Tree, a: tuple[str, EntryId | None], b: tuple[str, EntryId | None]) -> Diff:
    """What stands on each side of the common ancestor of two places."""
    ancestor = tree.common_ancestor(a[1], b[1])
    left, right = _after(tree, a[1], ancestor), _after(tree, b[1], ancestor)
    return Diff(
        common_ancestor=ancestor,
        first=(left[0].id if left else None, right[0].id if right else None),
        entries=(tuple(left), tuple(right)),
        stats=(stats_of(a[0], a[1], left), stats_of(b[0], b[1], right)),
    )


def _after(tree: Tree, leaf: EntryId | None, ancestor: EntryId | None) -> list[Entry]:
    entries: list[Entry] = []
    for entry in tree.up(leaf):
        if entry.id == ancestor:
            break
        entries.append(entry)
    entries.reverse()
    return entries


def stats_of(name: str, leaf: EntryId | None, entries: Sequence[Entry]) -> BranchStats:
    """Sums over `entries`, oldest first."""
    messages = [entry.body.message for entry in entries if isinstance(entry.body, Message)]
    calls = [call for message in messages for call in tool_calls(message)]
    sums = [sum_ for entry in entries for usage in usages(entry.body) if (sum_ := spent(usage)) is not None]
    times = [time for entry in entries if (time := milliseconds(entry.timestamp)) is not None]
    return BranchStats(
        name=name,
        leaf=leaf,
        entries=len(entries),
        messages=len(messages),
        tool_calls=len(calls),
        errors=sum(message.get("isError") is True or stopped_abnormally(message) for message in messages),
        tokens=sum(item.tokens for item in sums),
        cost=_rounded(sum(item.cost for item in sums)),
        time=max(times) - min(times) if times else 0,
        measured=tuple(name for name in ("cost", "tokens") if any(getattr(item, name) for item in sums)),
        models=_unique("/".join(model) for message in messages if (model := model_of(message)) is not None),
        files=_unique(path for call in calls if (path := _path(call.arguments))),
        tools=tuple(call.name for call in calls),
        last_activity=max((entry.timestamp for entry in entries if entry.timestamp), default=None),
    )


def usages(body: Body) -> list[Any]:
    """The usage objects of an entry: what it records as spent."""
    match body:
        case Message(message) if role(message) in ("assistant", "toolResult"):
            return [message.get("usage")]
        case Usage(usage=usage) | Compaction(usage=usage) | BranchSummary(usage=usage):
            return [usage]
        case Opaque(type="model_usage", fields=fields):
            return [fields.get("usage")]
        case _:
            return []


def _path(arguments: Any) -> str:
    if not is_object(arguments):
        return ""
    return string(arguments.get("path")) or string(arguments.get("file_path"))


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def _rounded(value: float) -> float:
    """Without the noise of binary fractions: 0.02, not 0.020000000000000004."""
    return round(value, 10)


def _difference(metric: str, a: BranchStats, b: BranchStats) -> Difference:
    base, other = a.metric(metric), b.metric(metric)
    change = _rounded(other - base)
    return Difference(
        metric=metric, a=a.name, b=b.name, diff=change, percent=round(change / base * 100, 6) if base else None
    )


def _winner(stats: Sequence[BranchStats], metric: str) -> tuple[str | None, str]:
    missing = [
        item.name for item in stats if not (metric in item.measured if metric in ("cost", "tokens") else item.entries)
    ]
    if missing:
        what = f"no recorded {metric}" if metric in ("cost", "tokens") else "no entries after the branches part"
        return None, f"not enough data: {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} {what}"
    ordered = sorted(stats, key=lambda item: item.metric(metric))
    if ordered[0].metric(metric) == ordered[1].metric(metric):
        tied = [item.name for item in stats if item.metric(metric) == ordered[0].metric(metric)]
        return None, f"a tie: {', '.join(tied)} have the same {metric}"
    return ordered[0].name, f"lowest {metric}"


def comparison_to_wire(comparison: Comparison) -> JsonObject:
    """As commands and the REST interface give it."""
    return {
        "branches": [stats_to_wire(stats) for stats in comparison.branches],
        "commonAncestor": comparison.common_ancestor,
        "metric": comparison.metric,
        "winner": comparison.winner,
        "reason": comparison.reason,
        "differences": [
            {"metric": d.metric, "branchA": d.a, "branchB": d.b, "diff": d.diff, "percentDiff": d.percent}
            for d in comparison.differences
        ],
    }


def stats_to_wire(stats: BranchStats) -> JsonObject:
    return {
        "branchId": stats.name,
        "name": stats.name,
        "leaf": stats.leaf,
        "entryCount": stats.entries,
        "messageCount": stats.messages,
        "toolCalls": stats.tool_calls,
        "errors": stats.errors,
        "totalTokens": stats.tokens,
        "totalCost": stats.cost,
        "durationMs": stats.time,
        "measured": list(stats.measured),
        "models": list(stats.models),
        "files": list(stats.files),
        "lastActivity": stats.last_activity,
    }


def diff_to_wire(result: Diff) -> JsonObject:
    return {
        "commonAncestor": result.common_ancestor,
        "firstDivergence": {"a": result.first[0], "b": result.first[1]},
        "a": _side(result, 0),
        "b": _side(result, 1),
    }


def _side(result: Diff, side: int) -> JsonObject:
    stats = result.stats[side]
    return {
        "place": stats.name,
        "leaf": stats.leaf,
        "entries": [entry.id for entry in result.entries[side]],
        "tools": list(stats.tools),
        "files": list(stats.files),
        "totalCost": stats.cost,
        "totalTokens": stats.tokens,
    }
