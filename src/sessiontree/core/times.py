"""Times: ISO timestamps of entries to milliseconds and back. No clock here."""

from __future__ import annotations

from datetime import UTC, datetime

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds(timestamp: str) -> int | None:
    """Milliseconds since the epoch; `None` when `timestamp` is no ISO time."""
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    span = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return span.days * 86_400_000 + span.seconds * 1000 + span.microseconds // 1000


def iso(milliseconds: int) -> str:
    """The ISO time that entries carry: UTC, with milliseconds."""
    from datetime import datetime

    seconds, rest = divmod(milliseconds, 1000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"
