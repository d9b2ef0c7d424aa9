"""Options that say what may be spent: money, tokens and time. What a budget is and does, is in `swarm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import F

if TYPE_CHECKING:
    from sessiontree.swarm.budget import Budget

MORE = click.FloatRange(min=0, min_open=True)

LIMITS = (
    ("cost", MORE, "DOLLARS", "Money that may be spent"),
    ("tokens", click.IntRange(1), "COUNT", "Tokens that may be used"),
    ("time", MORE, "SECONDS", "Time at work that it may take"),
)


def budget_options(function: F) -> F:
    """`--max-cost`, `--max-tokens` and `--max-time`."""
    return _options(function, "--max-", "")


def agent_budget_options(function: F) -> F:
    """`--max-agent-cost`, `--max-agent-tokens` and `--max-agent-time`."""
    return _options(function, "--max-agent-", ", for each agent")


def _options(function: F, prefix: str, whose: str) -> F:
    for name, kind, unit, what in reversed(LIMITS):
        function = click.option(f"{prefix}{name}", type=kind, metavar=unit, help=f"{what}{whose}.")(function)
    return function


def budget_of(cost: float | None, tokens: int | None, seconds: float | None) -> Budget | None:
    """What the options say; `None` where they say nothing."""
    from sessiontree.swarm.budget import Budget

    return None if cost is tokens is seconds is None else Budget(cost=cost, tokens=tokens, seconds=seconds)
