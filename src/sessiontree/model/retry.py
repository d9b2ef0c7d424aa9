"""A model wrapper that retries failed requests.

It retries only retryable failures (`ModelError.is_retryable`: rate limits, server and network errors, timeouts), and
only before the first event: events that were yielded cannot be withdrawn. If a stream is cut off later, the agent
stores the partial message and sends a new request itself.
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
"""Seconds. If a provider asks for a longer delay, the failure is raised at once."""


class RetryAttempt(Struct, frozen=True, kw_only=True):
    """Passed to `on_retry` before each delay."""

    error: ModelError
    attempt: int
    """The number of the failed attempt, starting at 1."""
    attempts: int
    delay: float
    """In seconds."""


OnRetry: TypeAlias = Callable[[RetryAttempt], None]
Sleep: TypeAlias = Callable[[float], Awaitable[object]]


class RetryingModel:
    """A model around another one that retries failed requests."""

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
            has_started = False
            try:
                async with aclosing(self.model.stream(request)) as events:
                    async for event in events:
                        has_started = True
                        yield event
                return
            except ModelError as error:
                delay = compute_backoff(error, attempt, self.base_delay)
                if has_started or not error.is_retryable or attempt == self.attempts or delay is None:
                    raise
                if self.on_retry is not None:
                    self.on_retry(RetryAttempt(error=error, attempt=attempt, attempts=self.attempts, delay=delay))
            await self._sleep(delay)


def compute_backoff(error: ModelError, attempt: int, base_delay: float) -> float | None:
    """Return the seconds to wait after a failed attempt, or `None` if the provider asks for too many.

    The delay doubles with each attempt. Up to a quarter of it is subtracted at random. This spreads
    the retries of clients that failed at the same time.
    """
    requested = error.retry_after or 0
    if requested > MAX_DELAY:
        return None
    longest = min(base_delay * 2.0 ** (attempt - 1), MAX_DELAY)
    return max(requested, longest * random.uniform(0.75, 1))
