"""Number text: counts and amounts of money for people to read."""

from __future__ import annotations

import math

from sessiontree.core.messages import coerce_number

DOLLAR_DIGITS = 4
"""Digits after the decimal point of an amount in dollars."""

SMALL_AMOUNT = 0.001
"""Smaller amounts get more digits, to show two significant ones."""

MAX_DIGITS = 12
"""The maximum number of digits after the decimal point."""


def format_count(count: object) -> str:
    """Format 12345 as `12k`."""
    value = coerce_number(count)
    if value < 1000:
        return f"{value:g}"
    return f"{value / 1000:.0f}k" if value < 999_500 else f"{value / 1_000_000:.1f}M"


def format_dollars(cost: float) -> str:
    """Format 0.05 as `$0.0500`. Smaller amounts show two significant digits: `$0.00013`."""
    size = abs(cost)
    digits = min(1 - math.floor(math.log10(size)), MAX_DIGITS) if 0 < size < SMALL_AMOUNT else DOLLAR_DIGITS
    return f"{'-' if cost < 0 else ''}${size:.{digits}f}"


def format_cost(cost: float) -> str:
    """Format a cost for running text, with as many digits as needed: 0.05 as `$0.05`."""
    return f"${cost:.2f}" if cost >= 1 else format_dollars(cost).rstrip("0").ljust(5, "0")


def format_metric(metric: str, value: float | None) -> str:
    """Format a value of a metric with its unit: `cost`, `tokens`, `time` in seconds, or the name of a score."""
    if value is None:
        return "-"
    match metric:
        case "cost":
            return format_dollars(value)
        case "tokens":
            return f"{value:,.0f}"
        case "time":
            return f"{round(value, 1) + 0:.1f}s"  # avoid -0.0
        case _:
            return f"{value:.3g}"


def list_usage(tokens: float, cost: float) -> list[str]:
    """Format tokens and cost for running text, without zeros."""
    return [*([format_tokens(tokens)] if tokens else []), *([format_cost(cost)] if cost else [])]


def pluralize(count: float, one: str, several: str | None = None, *, shown: str | None = None) -> str:
    """Format a count with its noun: `1 entry`, `2 entries`. `several` is an irregular plural.

    `shown` replaces the count in the text.
    """
    return f"{count if shown is None else shown} {one if count == 1 else several or f'{one}s'}"


def format_tokens(count: object) -> str:
    """Format 12345 as `12k tokens`."""
    return pluralize(coerce_number(count), "token", shown=format_count(count))
