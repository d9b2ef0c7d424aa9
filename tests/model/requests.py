"""Helpers for tests of models: a request, and the events before a failure."""

from __future__ import annotations

import pytest

from sessiontree.model.base import Model, ModelError, ModelEvent, Request

HELLO = Request(messages=[{"role": "user", "content": "Hello"}])


async def collect_failure(model: Model, request: Request = HELLO) -> tuple[list[ModelEvent], ModelError]:
    """Return the events before a failure, and the failure. There must be one."""
    seen: list[ModelEvent] = []

    async def ask() -> None:
        async for event in model.stream(request):
            seen.append(event)

    with pytest.raises(ModelError) as caught:
        await ask()
    return seen, caught.value
