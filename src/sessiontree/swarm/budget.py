"""Budgets: limits on cost, tokens and running time of a swarm or an agent, and how much of them is used.

Each limit has three levels: warning at 75 %, critical at 90 %, exhausted at 100 %. `budget_enforcement` enforces them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.core.number_text import format_dollars, pluralize
from sessiontree.errors import InvalidOperation

BudgetLevel: TypeAlias = Literal["warning", "critical", "exhausted"]
BudgetKind: TypeAlias = Literal["cost", "tokens", "seconds"]

LEVELS: tuple[tuple[BudgetLevel, float], ...] = (("warning", 0.75), ("critical", 0.9), ("exhausted", 1.0))
"""The fraction of a limit at which each level starts, lowest first."""
KINDS: tuple[BudgetKind, ...] = ("cost", "tokens", "seconds")
_UNITS = {"cost": "dollars", "tokens": "tokens", "seconds": "seconds"}
EXHAUSTED_TEXT = "used up"
"""Part of every pause reason for a budget that is used up."""
UNENFORCEABLE_TEXT = "cannot be enforced"
"""Part of every pause reason for a limit on usage that a model does not report."""


class Spending(NamedTuple):
    """An amount of cost, tokens and running time."""

    cost: float = 0.0
    """US dollars."""
    tokens: float = 0
    seconds: float = 0.0
    """Running time. The clock stops while a swarm is paused or no process runs it."""

    def add(self, other: Spending) -> Spending:
        return Spending(self.cost + other.cost, self.tokens + other.tokens, self.seconds + other.seconds)


class LimitUsage(NamedTuple):
    """How much of one limit is used."""

    kind: BudgetKind
    used: float
    limit: float

    @property
    def fraction(self) -> float:
        return self.used / self.limit if self.limit > 0 else math.inf

    @property
    def reached_levels(self) -> list[BudgetLevel]:
        """The levels that are reached, lowest first."""
        return [level for level, least in LEVELS if self.fraction >= least]

    @property
    def level(self) -> BudgetLevel | None:
        """The highest level that is reached."""
        return self.reached_levels[-1] if self.reached_levels else None

    def __str__(self) -> str:
        if self.kind == "cost":
            return f"{format_dollars(self.used)} of {format_dollars(self.limit)}"
        return f"{self.used:g} of {pluralize(self.limit, _UNITS[self.kind].removesuffix('s'), shown=f'{self.limit:g}')}"


def format_exhausted(usage: LimitUsage) -> str:
    """Return the reason to stop for a limit that is used up."""
    return f"the budget is {EXHAUSTED_TEXT}: {usage}"


def override_limits(base: Budget | None, limits: Mapping[str, float | None]) -> Budget | None:
    """Return `base` with other limits, where `None` means unlimited. Return `None` if `limits` is empty."""
    return replace(base or Budget(), **limits) if limits else None


class Budget(Struct, frozen=True, kw_only=True):
    """Limits on spending; `None` means unlimited."""

    cost: float | None = None
    """US dollars."""
    tokens: int | None = None
    seconds: float | None = None
    """Running time."""

    def check(self) -> None:
        """Raise `InvalidOperation` for a limit that is not a positive number."""
        for kind in KINDS:
            limit = getattr(self, kind)
            if limit is not None and not isinstance(limit, int | float):
                raise InvalidOperation(f"a budget is a number of {_UNITS[kind]}, not {limit!r}")
            if limit is not None and not 0 < limit < math.inf:
                raise InvalidOperation(f"a budget of {limit:g} {_UNITS[kind]} is invalid; use a number above 0")

    def list_usage(self, spending: Spending) -> Iterator[LimitUsage]:
        """Yield how much of each limit is used."""
        for kind in KINDS:
            limit = getattr(self, kind)
            if limit is not None:
                yield LimitUsage(kind, getattr(spending, kind), limit)

    def compute_fraction_used(self, spending: Spending, unreported: Collection[BudgetKind] = ()) -> float | None:
        """Return the largest used fraction of a limit, or `None` without limits or known usage.

        `unreported` lists kinds of usage that models did not report: 0 means unknown for them.
        """
        known = (use for use in self.list_usage(spending) if use.used or use.kind not in unreported)
        return max((use.fraction for use in known), default=None)

    def find_exhausted(self, spending: Spending) -> LimitUsage | None:
        """Return a limit that is used up, or `None`."""
        return next((use for use in self.list_usage(spending) if use.level == "exhausted"), None)

    def explain_unenforceable(self, unreported: Mapping[BudgetKind, str]) -> str | None:
        """Return why a limit cannot be enforced, or `None`. `unreported` maps kinds of usage to model names."""
        if self.cost is not None and "cost" in unreported:
            return f"the cost limit {UNENFORCEABLE_TEXT}: the cost of {unreported['cost']} is unknown"
        if self.tokens is not None and "tokens" in unreported:
            return f"the token limit {UNENFORCEABLE_TEXT}: {unreported['tokens']} does not report its tokens"
        return None

    def compute_time_left(self, spending: Spending) -> float | None:
        """Return the seconds until the next level of the time limit, or `None`."""
        if self.seconds is None:
            return None
        ahead = (least * self.seconds - spending.seconds for _, least in LEVELS)
        return next((left for left in ahead if left > 0), None)


def check_budget(budget: object) -> None:
    """Raise `InvalidOperation` for a value that is not a budget, or for a budget with an invalid limit."""
    if budget is None:
        return
    if not isinstance(budget, Budget):
        shown = budget if isinstance(budget, int | float) and not isinstance(budget, bool) else "…"
        raise InvalidOperation(
            f"a budget is an st.Budget, not {budget!r} ({type(budget).__name__}); for US dollars write "
            f"st.Budget(cost={shown})"
        )
    budget.check()
