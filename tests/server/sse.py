"""Reading server-sent events in tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import httpx


class ServerSentEvent(NamedTuple):
    id: str
    kind: str
    data: Any


async def read_events(lines: AsyncIterator[str]) -> AsyncIterator[ServerSentEvent]:
    """Yield the events in the lines of a stream."""
    fields: dict[str, str] = {}
    async for line in lines:
        if not line and fields:
            yield ServerSentEvent(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
            fields = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


async def read_until(
    client: httpx.AsyncClient,
    path: str,
    is_last: Callable[[ServerSentEvent], bool],
    *,
    last: str | None = None,
    seconds: float = 30,
    **params: Any,
) -> list[ServerSentEvent]:
    """Return the events of a stream up to the first for which `is_last` is true."""
    headers = {"accept": "text/event-stream"} | ({} if last is None else {"last-event-id": last})
    heard: list[ServerSentEvent] = []
    async with asyncio.timeout(seconds), client.stream("GET", path, headers=headers, params=params) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for event in read_events(answer.aiter_lines()):
            heard.append(event)
            if is_last(event):
                break
    return heard
