"""Budgets: what a swarm or one of its agents may spend, and how much of it is gone. Who is stopped for it is not here.

Money, tokens and time at work are counted. Each limit has three levels: a warning at 75 %, critical at 90 %, exhausted
at 100 %.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.errors import InvalidOperation

BudgetLevel: TypeAlias = Literal["warning", "critical", "exhausted"]
BudgetKind: TypeAlias = Literal["cost", "tokens", "seconds"]

LEVELS: tuple[tuple[BudgetLevel, float], ...] = (("warning", 0.75), ("critical", 0.9), ("exhausted", 1.0))
"""From what fraction of a limit each level holds, lowest first."""
KINDS: tuple[BudgetKind, ...] = ("cost", "tokens", "seconds")
_UNITS = {"cost": "dollars", "tokens": "tokens", "seconds": "seconds"}
EXHAUSTED_TEXT = "used up"
"""In the reason of every pause for a budget that is."""
UNENFORCEABLE_TEXT = "cannot be kept"
"""In the reason of every pause for a limit on what models do not tell."""


class Spending(NamedTuple):
    """What was spent."""

    cost: float = 0.0
    """US dollars."""
    tokens: float = 0
    seconds: float = 0.0
    """Time at work: while a swarm is paused or nobody runs it, none passes."""

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
    def level(self) -> BudgetLevel | None:
        return next((level for level, least in reversed(LEVELS) if self.fraction >= least), None)

    def __str__(self) -> str:
        return f"{self.kind} {self.used:g} of {self.limit:g}"


def override_limits(base: Budget | None, limits: Mapping[str, float | None]) -> Budget | None:
    """A budget with the limits that are given, where `None` is no limit; gives `None` where none is given."""
    return replace(base or Budget(), **limits) if limits else None


class Budget(Struct, frozen=True, kw_only=True):
    """Limits on what may be spent; what is `None` has none."""

    cost: float | None = None
    """US dollars."""
    tokens: int | None = None
    seconds: float | None = None
    """Time at work."""

    def check(self) -> None:
        """Raise `InvalidOperation` for a limit that is no amount."""
        for kind in KINDS:
            limit = getattr(self, kind)
            if limit is not None and not 0 < limit < math.inf:
                raise InvalidOperation(f"a budget of {limit:g} {_UNITS[kind]} is no amount: give a number above 0")

    def list_usage(self, spending: Spending) -> Iterator[LimitUsage]:
        """How much of each limit is used."""
        for kind in KINDS:
            limit = getattr(self, kind)
            if limit is not None:
                yield LimitUsage(kind, getattr(spending, kind), limit)

    def compute_fraction_used(self, spending: Spending, unreported: Collection[BudgetKind] = ()) -> float | None:
        """The largest fraction of a limit that is used; `None` where nothing is limited, or nobody knows.

        `untold` is what models did not tell: where that is 0, nobody has measured it.
        """
        known = (use for use in self.list_usage(spending) if use.used or use.kind not in unreported)
        return max((use.fraction for use in known), default=None)

    def find_exhausted(self, spending: Spending) -> LimitUsage | None:
        """A limit that is used up."""
        return next((use for use in self.list_usage(spending) if use.level == "exhausted"), None)

    def explain_unenforceable(self, unreported: Mapping[BudgetKind, str]) -> str | None:
        """Why a limit cannot be kept. `untold` has models that did not tell what they took, by what of it."""
        if self.cost is not None and "cost" in unreported:
            return f"the limit on cost {UNENFORCEABLE_TEXT}: what {unreported['cost']} costs is not known"
        if self.tokens is not None and "tokens" in unreported:
            return f"the limit on tokens {UNENFORCEABLE_TEXT}: how many {unreported['tokens']} takes is not known"
        return None

    def compute_time_left(self, spending: Spending) -> float | None:
        """Seconds until the next level of the limit on time; `None` where none is ahead."""
        if self.seconds is None:
            return None
        ahead = (least * self.seconds - spending.seconds for _, least in LEVELS)
        return next((left for left in ahead if left > 0), None)
