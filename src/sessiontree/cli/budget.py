"""Options that say what may be spent: money, tokens and time. What a budget is and does, is in `swarm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import F

if TYPE_CHECKING:
    from sessiontree.swarm.budget import Budget

BUDGET_LIMITS = (
    ("cost", click.FloatRange, "DOLLARS", "Money that may be spent"),
    ("tokens", click.IntRange, "COUNT", "Tokens that may be used"),
    ("time", click.FloatRange, "SECONDS", "Time at work that it may take"),
)
NO_LIMIT_HINT = "; 0 for no limit"


def budget_options(function: F) -> F:
    """`--max-cost`, `--max-tokens` and `--max-time`."""
    return _add_limit_options(function, "--max-", "", min_open=True)


def budget_override_options(function: F) -> F:
    """The same and `--max-agent-cost`, `--max-agent-tokens` and `--max-agent-time`, in the place of earlier limits."""
    return _add_limit_options(
        _add_limit_options(function, "--max-agent-", f", for each agent{NO_LIMIT_HINT}"), "--max-", NO_LIMIT_HINT
    )


def _add_limit_options(function: F, prefix: str, more: str, *, min_open: bool = False) -> F:
    for name, kind, unit, what in reversed(BUDGET_LIMITS):
        limit = kind(min=0, min_open=min_open)
        function = click.option(f"{prefix}{name}", type=limit, metavar=unit, help=f"{what}{more}.")(function)
    return function


def build_budget(cost: float | None, tokens: int | None, seconds: float | None) -> Budget | None:
    """What the options say; `None` where they say nothing."""
    from sessiontree.swarm.budget import Budget

    return None if cost is tokens is seconds is None else Budget(cost=cost, tokens=tokens, seconds=seconds)


def override_budget(
    before: Budget | None, cost: float | None, tokens: int | None, seconds: float | None
) -> Budget | None:
    """What the options say laid over an earlier budget; `None` where they say nothing."""
    from sessiontree.swarm.budget import override_limits

    said = {"cost": cost, "tokens": tokens, "seconds": seconds}
    return override_limits(before, {kind: limit or None for kind, limit in said.items() if limit is not None})
