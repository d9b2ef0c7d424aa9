"""Timestamps: converts ISO timestamps of entries to milliseconds and back. It never reads the clock."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_timestamp(timestamp: str) -> int | None:
    """Return milliseconds since the epoch; `None` if `timestamp` is not an ISO time."""
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    span = moment - EPOCH
    return span.days * 86_400_000 + span.seconds * 1000 + span.microseconds // 1000


@lru_cache(maxsize=2)
def format_timestamp(milliseconds: int) -> str:
    """Return the ISO time for an entry: UTC, with milliseconds. Times outside the calendar are clamped.

    The result is cached, because formatting a time takes longer than writing a line.
    """
    return f"{_format_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=2)
def _format_second(seconds: int) -> str:
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        moment = datetime.max if seconds > 0 else datetime.min
    return moment.isoformat()[:19]
