"""Handlers in a run: asked and told like anywhere, but aborting the run ends the waiting for them.

How their answers combine is in `hooks.bus`; what a run does without an answer, in `loop`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Answer, Event, Signal
from sessiontree.ops.hook_requests import GRACE_SECONDS, OperationStopped, wait_with_grace

T = TypeVar("T")
E = TypeVar("E", bound=Event)


class AbortableHooks:
    """The handlers of one run. Those that work when it is aborted are given up at once; those that are called
    afterwards, about what had arrived and about the end, have a little time together."""

    def __init__(self, hooks: Hooks, signal: Signal) -> None:
        self._hooks = hooks
        self._signal = signal
        self._deadline: float | None = None
        """Until when an aborted run waits, by the clock of its loop."""

    async def emit(self, event: Event) -> None:
        """Tell of something that has happened, for as long as the run waits."""
        with suppress(OperationStopped):
            await self._wait_for(event, self._hooks.emit(event))

    async def ask(self, event: E) -> tuple[E, Answer]:
        """The event as the handlers changed it, and their answer. Raises `Stopped` if the run no longer waits."""
        return await self._wait_for(event, self._hooks.ask(event))

    async def _wait_for(self, event: Event, work: Awaitable[T]) -> T:
        if not self._signal.aborted and not self._hooks.has_handlers(event):
            return await work  # listeners take no time that could be given up
        now = asyncio.get_running_loop().time()
        if self._signal.aborted and self._deadline is None:
            self._deadline = now + GRACE_SECONDS
        return await wait_with_grace(self._signal, work, max(0.0, (self._deadline or now) - now))
