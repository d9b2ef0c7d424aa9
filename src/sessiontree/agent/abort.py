"""Stopping: the one switch that gives up everything an agent has under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Answer, Event, Signal
from sessiontree.ops.hook_requests import GRACE_SECONDS, OperationStopped, wait_with_grace

T = TypeVar("T")
E = TypeVar("E", bound=Event)


class AbortController:
    def __init__(self) -> None:
        self.signal = Signal()
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work that `abort` cancels."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.signal.aborted:
            task.cancel()
        return task

    def abort(self) -> None:
        self.signal.abort()
        for task in tuple(self._tasks):
            task.cancel()

    def reset(self) -> None:
        """Go on after an abort."""
        self.signal = Signal()


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
