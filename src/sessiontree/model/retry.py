"""Trying again: a model round another one, which asks again when a failure may pass.

Only failures that may pass (`ModelError.passing`: too many requests, a fault of the server or the network, a timeout)
are tried again, and only while nothing of the answer has been yielded: what was shown cannot be taken back. When a
stream breaks off in the middle, the agent writes down what has arrived and asks again itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

from msgspec import Struct

from sessiontree.model.base import Model, ModelError, ModelEvent, ModelInfo, Request

MAX_DELAY = 60.0
"""Seconds. A provider that asks for more is not waited for: the failure is raised at once."""


class RetryAttempt(Struct, frozen=True, kw_only=True):
    """Told before each wait."""

    error: ModelError
    attempt: int
    """Which attempt failed, from 1."""
    attempts: int
    delay: float


OnRetry: TypeAlias = Callable[[RetryAttempt], None]
Sleep: TypeAlias = Callable[[float], Awaitable[object]]


class RetryingModel:
    def __init__(
        self,
        model: Model,
        *,
        attempts: int = 4,
        base_delay: float = 2.0,
        on_retry: OnRetry | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.model = model
        self.attempts = attempts
        self.base_delay = base_delay
        self.on_retry = on_retry
        self._sleep = sleep

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        for attempt in range(1, self.attempts + 1):
            begun = False
            try:
                async with aclosing(self.model.stream(request)) as events:
                    async for event in events:
                        begun = True
                        yield event
                return
            except ModelError as error:
                delay = compute_backoff(error, attempt, self.base_delay)
                if begun or not error.is_retryable or attempt == self.attempts or delay is None:
                    raise
                if self.on_retry is not None:
                    self.on_retry(RetryAttempt(error=error, attempt=attempt, attempts=self.attempts, delay=delay))
            await self._sleep(delay)


def compute_backoff(error: ModelError, attempt: int, base_delay: float) -> float | None:
    """Seconds to wait after the failure of an attempt; `None` when the provider asks for too many.

    Each wait is twice as long as the one before, less up to a quarter by chance, so that many who failed together do
    not come back together.
    """
    asked = error.retry_after or 0
    if asked > MAX_DELAY:
        return None
    longest = min(base_delay * 2.0 ** (attempt - 1), MAX_DELAY)
    return max(asked, longest * random.uniform(0.75, 1))
