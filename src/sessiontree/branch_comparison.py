"""Compares branches (cost, tokens, entries, time) and computes the difference of two places.

Pure functions on trees. Only entries after the common ancestor of all branches count. A winner is named only if the
data supports one. Otherwise the reason is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from sessiontree.core.entries import Body, Entry, EntryId, JsonObject, Message
from sessiontree.core.messages import (
    ToolCall,
    coerce_string,
    get_model,
    get_tool_calls,
    is_failed_turn,
    is_object,
    list_usages,
    sum_usage,
)
from sessiontree.core.number_text import format_dollars, format_tokens
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.core.tree import Tree
from sessiontree.errors import InvalidOperation

METRICS = ("cost", "tokens", "entries", "time")

RECORDED = ("cost", "tokens")
"""Metrics that are known only if an entry records them."""


class BranchStats(Struct, frozen=True, kw_only=True):
    """Statistics of a branch after the common ancestor."""

    name: str
    leaf: EntryId | None
    entries: int
    messages: int
    tool_calls: int
    errors: int
    tokens: float
    cost: float
    seconds: float
    """The time from the first entry to the last."""
    measured: tuple[str, ...]
    """The metrics of `RECORDED` that any entry records."""
    models: tuple[str, ...]
    files: tuple[str, ...]
    tools: tuple[str, ...]
    """Names of the called tools, in order."""
    last_activity: str | None

    def get_metric(self, name: str) -> float:
        return {"cost": self.cost, "tokens": self.tokens, "entries": self.entries, "time": self.seconds}[name]


class Difference(Struct, frozen=True, kw_only=True):
    """How branch `b` differs from branch `a` in one metric."""

    metric: str
    a: str
    b: str
    diff: float
    percent: float | None
    """`None` if the value of `a` is 0."""


class Comparison(Struct, frozen=True, kw_only=True):
    branches: tuple[BranchStats, ...]
    common_ancestor: EntryId | None
    metric: str
    winner: str | None
    reason: str
    """Why the winner won, or why there is none."""
    differences: tuple[Difference, ...]
    """One for every pair of branches and every metric that both have."""


class Diff(Struct, frozen=True, kw_only=True):
    """The difference of two places after their common ancestor."""

    common_ancestor: EntryId | None
    first: tuple[EntryId | None, EntryId | None]
    """The first entry of each side after the common ancestor."""
    entries: tuple[tuple[Entry, ...], tuple[Entry, ...]]
    stats: tuple[BranchStats, BranchStats]


def compare(tree: Tree, branches: Sequence[tuple[str, EntryId | None]], metric: str = "cost") -> Comparison:
    """Compare branches, given by name and head, after their common ancestor."""
    ancestor, stats = _measure(tree, branches, metric)
    winner, reason = _find_winner(stats, metric)
    return Comparison(
        branches=stats,
        common_ancestor=ancestor,
        metric=metric,
        winner=winner,
        reason=reason,
        differences=tuple(
            _compute_difference(name, a, b)
            for i, a in enumerate(stats)
            for b in stats[i + 1 :]
            for name in METRICS
            if name not in RECORDED or (name in a.measured and name in b.measured)
        ),
    )


def find_winner(tree: Tree, branches: Sequence[tuple[str, EntryId | None]], metric: str) -> tuple[str | None, str]:
    """Return the winner of a comparison and why it won, or why there is none. Unlike `compare`, it compares no pairs of
    branches, so it is fast for thousands of them."""
    return _find_winner(_measure(tree, branches, metric)[1], metric)


def _measure(
    tree: Tree, branches: Sequence[tuple[str, EntryId | None]], metric: str
) -> tuple[EntryId | None, tuple[BranchStats, ...]]:
    """Return the common ancestor of branches, and the statistics of each after it."""
    if metric not in METRICS:
        raise InvalidOperation(f"no metric {metric!r}: choose one of {', '.join(METRICS)}")
    if len(branches) < 2:
        raise InvalidOperation("a comparison needs at least two branches")
    ancestor = tree.find_common_ancestor(*(leaf for _, leaf in branches))
    return ancestor, tuple(compute_stats(name, leaf, tree.path(leaf, after=ancestor)) for name, leaf in branches)


def diff(tree: Tree, a: tuple[str, EntryId | None], b: tuple[str, EntryId | None]) -> Diff:
    """Return the entries on each side of the common ancestor of two places."""
    ancestor = tree.find_common_ancestor(a[1], b[1])
    left, right = tree.path(a[1], after=ancestor), tree.path(b[1], after=ancestor)
    return Diff(
        common_ancestor=ancestor,
        first=(left[0].id if left else None, right[0].id if right else None),
        entries=(tuple(left), tuple(right)),
        stats=(compute_stats(a[0], a[1], left), compute_stats(b[0], b[1], right)),
    )


class _Sum(Struct, frozen=True, kw_only=True):
    """Totals of a path from the root to an entry."""

    entries: int = 0
    messages: int = 0
    tool_calls: int = 0
    errors: int = 0
    tokens: float = 0
    cost: float = 0
    measured: frozenset[str] = frozenset()
    started: int | None = None
    ended: int | None = None
    last_activity: str | None = None
    model: str | None = None


class _Mark(Struct, frozen=True, kw_only=True):
    """The model of an entry if it changed, and the tools that the entry calls."""

    model: str | None
    calls: Sequence[ToolCall]


class EntryFacts(Struct, frozen=True, kw_only=True):
    """What an entry adds to statistics."""

    messages: int
    errors: int
    calls: Sequence[ToolCall]
    tokens: float
    cost: float
    measured: frozenset[str]
    model: str | None
    timestamp: str
    time: int | None


FactsById: TypeAlias = dict[EntryId, EntryFacts]
"""Facts that were read before. No body is decoded twice."""


def compute_stats(
    name: str, leaf: EntryId | None, entries: Iterable[Entry], known: FactsById | None = None
) -> BranchStats:
    """Compute statistics of `entries`, oldest first. The facts of each entry are added to `known`."""
    total = _Sum()
    marks: list[_Mark] = []
    for entry in entries:
        total, mark = _add_entry(total, _read_facts(entry, known))
        marks += [mark] if mark is not None else []
    calls = [call for mark in marks for call in mark.calls]
    return _build_stats(
        name,
        leaf,
        total,
        _remove_duplicates(mark.model for mark in marks if mark.model is not None),
        _remove_duplicates(path for call in calls if (path := _get_path(call.arguments))),
        tuple(call.name for call in calls),
    )


MAX_NAMES = 100
"""The maximum number of models and files that `PathStats` lists for a path. Without a limit, deep branches would repeat
the names above them, and the time would be quadratic."""


class _NamedItems(Struct, frozen=True):
    """The first models and files of a path, in order."""

    models: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def add(self, mark: _Mark) -> _NamedItems:
        models, files = self.models, self.files
        if mark.model is not None and len(models) < MAX_NAMES and mark.model not in models:
            models = (*models, mark.model)
        for path in (_get_path(call.arguments) for call in mark.calls):
            if len(files) >= MAX_NAMES:
                break
            if path and path not in files:
                files = (*files, path)
        return self if models is self.models and files is self.files else _NamedItems(models, files)


class PathStats:
    """Computes statistics of whole paths of a tree. Each entry is visited once, even if many paths share it.

    Only the first `MAX_NAMES` models and files are listed, and no tools.
    """

    def __init__(self, tree: Tree, known: FactsById | None = None) -> None:
        self._tree = tree
        self._known = known
        self._sums: dict[EntryId | None, tuple[_Sum, _NamedItems]] = {None: (_Sum(), _NamedItems())}

    def compute(self, name: str, leaf: EntryId | None) -> BranchStats:
        """Compute statistics of the path to `leaf`. They are empty if the leaf is missing from a damaged file."""
        known = leaf if leaf in self._tree else None
        new: list[EntryId] = []
        above: EntryId | None = None
        for id in self._tree.walk_up_ids(known):
            if id in self._sums:
                above = id
                break
            new.append(id)
        total, named = self._sums[above]
        for id in reversed(new):
            total, mark = _add_entry(total, _read_facts(self._tree.peek(id), self._known))
            named = named if mark is None else named.add(mark)
            self._sums[id] = total, named
        return _build_stats(name, leaf, total, named.models, named.files, ())


def count_entry(body: Body) -> tuple[int, int, int]:
    """Return how many messages, tool calls and errors an entry counts as."""
    if not isinstance(body, Message):
        return 0, 0, 0
    message = body.message
    return 1, len(get_tool_calls(message)), int(message.get("isError") is True or is_failed_turn(message))


def _read_facts(entry: Entry, known: FactsById | None) -> EntryFacts:
    if known is not None and entry.id in known:
        return known[entry.id]
    body, timestamp = entry.decode(), entry.timestamp
    message = body.message if isinstance(body, Message) else None
    sums = [sum_ for usage in list_usages(body) if (sum_ := sum_usage(usage)) is not None]
    messages, _, errors = count_entry(body)
    facts = EntryFacts(
        messages=messages,
        errors=errors,
        calls=() if message is None else get_tool_calls(message),
        tokens=sum(item.tokens for item in sums),
        cost=sum(item.cost for item in sums),
        measured=frozenset(what for what in RECORDED for item in sums if getattr(item, what)) if sums else NOTHING,
        model=None if message is None or (named := get_model(message)) is None else "/".join(named),
        timestamp=timestamp,
        time=parse_timestamp(timestamp),
    )
    if known is not None:
        known[entry.id] = facts
    return facts


NOTHING: frozenset[str] = frozenset()


def _add_entry(before: _Sum, facts: EntryFacts) -> tuple[_Sum, _Mark | None]:
    time, model = facts.time, facts.model
    after = _Sum(
        entries=before.entries + 1,
        messages=before.messages + facts.messages,
        tool_calls=before.tool_calls + len(facts.calls),
        errors=before.errors + facts.errors,
        tokens=before.tokens + facts.tokens,
        cost=before.cost + facts.cost,
        measured=before.measured if facts.measured <= before.measured else before.measured | facts.measured,
        started=before.started if time is None else min(time, time if before.started is None else before.started),
        ended=before.ended if time is None else max(time, time if before.ended is None else before.ended),
        last_activity=max(facts.timestamp, before.last_activity or "") or None,
        model=before.model if model is None else model,
    )
    other = None if model == before.model else model
    return after, _Mark(model=other, calls=facts.calls) if facts.calls or other is not None else None


def _build_stats(
    name: str,
    leaf: EntryId | None,
    total: _Sum,
    models: tuple[str, ...],
    files: tuple[str, ...],
    tools: tuple[str, ...],
) -> BranchStats:
    return BranchStats(
        name=name,
        leaf=leaf,
        entries=total.entries,
        messages=total.messages,
        tool_calls=total.tool_calls,
        errors=total.errors,
        tokens=total.tokens,
        cost=_round(total.cost),
        seconds=0.0 if total.started is None or total.ended is None else (total.ended - total.started) / 1000,
        measured=tuple(what for what in RECORDED if what in total.measured),
        models=models,
        files=files,
        tools=tools,
        last_activity=total.last_activity,
    )


def format_usage(stats: BranchStats) -> tuple[str, str]:
    """Format tokens and cost. A metric that no entry records is shown as unknown, not as 0."""
    tokens = format_tokens(stats.tokens) if "tokens" in stats.measured else "tokens unknown"
    cost = format_dollars(stats.cost) if "cost" in stats.measured else "cost unknown"
    return tokens, cost


def _get_path(arguments: Any) -> str:
    if not is_object(arguments):
        return ""
    return coerce_string(arguments.get("path")) or coerce_string(arguments.get("file_path"))


def _remove_duplicates(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def _round(value: float) -> float:
    """Remove binary rounding noise: 0.02, not 0.020000000000000004."""
    return round(value, 10)


def _compute_difference(metric: str, a: BranchStats, b: BranchStats) -> Difference:
    base, other = a.get_metric(metric), b.get_metric(metric)
    change = _round(other - base)
    return Difference(
        metric=metric, a=a.name, b=b.name, diff=change, percent=round(change / base * 100, 6) if base else None
    )


def _find_winner(stats: Sequence[BranchStats], metric: str) -> tuple[str | None, str]:
    missing = [item.name for item in stats if not (metric in item.measured if metric in RECORDED else item.entries)]
    if missing:
        what = f"no recorded {metric}" if metric in RECORDED else "no entries after the common ancestor"
        return None, f"not enough data: {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} {what}"
    ordered = sorted(stats, key=lambda item: item.get_metric(metric))
    if ordered[0].get_metric(metric) == ordered[1].get_metric(metric):
        tied = [item.name for item in stats if item.get_metric(metric) == ordered[0].get_metric(metric)]
        return None, f"a tie: {', '.join(tied)} have the same {metric}"
    return ordered[0].name, f"lowest {metric}"


def comparison_to_wire(comparison: Comparison) -> JsonObject:
    """Return the comparison as the CLI and the REST API print it."""
    return {
        "branches": [stats_to_wire(stats) for stats in comparison.branches],
        "commonAncestor": comparison.common_ancestor,
        "metric": comparison.metric,
        "winner": comparison.winner,
        "reason": comparison.reason,
        "differences": [
            {
                "metric": d.metric,
                "branchA": d.a,
                "branchB": d.b,
                "diff": round(d.diff, 3) if d.metric == "time" else d.diff,
                "percentDiff": d.percent,
            }
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
        "durationMs": round(stats.seconds * 1000),
        "measured": list(stats.measured),
        "models": list(stats.models),
        "files": list(stats.files),
        "lastActivity": stats.last_activity,
    }


def diff_to_wire(result: Diff) -> JsonObject:
    return {
        "commonAncestor": result.common_ancestor,
        "firstDivergence": {"a": result.first[0], "b": result.first[1]},
        "a": _side_to_wire(result, 0),
        "b": _side_to_wire(result, 1),
    }


def _side_to_wire(result: Diff, side: int) -> JsonObject:
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
