"""Figures: counts and money as people read them. No colours and no widths here."""

from __future__ import annotations

import math

from sessiontree.core.messages import coerce_number

DOLLAR_DIGITS = 4
"""Behind the point of dollars."""

SMALL_AMOUNT = 0.001
"""Dollars of which four digits would leave less than two that count."""

MAX_DIGITS = 12
"""Digits of what is next to nothing."""


def format_count(count: object) -> str:
    """12345 as `12k`."""
    value = coerce_number(count)
    if value < 1000:
        return f"{value:g}"
    return f"{value / 1000:.0f}k" if value < 999_500 else f"{value / 1_000_000:.1f}M"


def format_dollars(cost: float) -> str:
    """0.05 as `$0.0500`, and what four digits cannot tell with the two that count: `$0.00013`."""
    size = abs(cost)
    digits = min(1 - math.floor(math.log10(size)), MAX_DIGITS) if 0 < size < SMALL_AMOUNT else DOLLAR_DIGITS
    return f"{'-' if cost < 0 else ''}${size:.{digits}f}"


def pluralize(count: float, one: str, several: str | None = None, *, shown: str | None = None) -> str:
    """A count with its noun: `1 entry`, `2 entries`. `several` is the plural where it is not `one` with an s.

    `shown` is the count as text, where it is not written out.
    """
    return f"{count if shown is None else shown} {one if count == 1 else several or f'{one}s'}"


def format_tokens(count: object) -> str:
    """12345 as `12k tokens`."""
    return pluralize(coerce_number(count), "token", shown=format_count(count))
