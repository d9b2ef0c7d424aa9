"""Abort a run: cancel its tasks, and stop waiting for its handlers."""

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
    """Cancels all tasks of an agent."""

    def __init__(self) -> None:
        self.signal = Signal()
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that `abort` cancels."""
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
        """Allow new tasks after an abort."""
        self.signal = Signal()


class AbortableHooks:
    """The hooks of one run. An abort cancels the current handlers; handlers called after it share a grace period."""

    def __init__(self, hooks: Hooks, signal: Signal) -> None:
        self._hooks = hooks
        self._signal = signal
        self._deadline: float | None = None
        """The end of the grace period, in the time of the event loop."""

    async def emit(self, event: Event) -> None:
        """Emit an event. Stop waiting for handlers when the run is aborted."""
        with suppress(OperationStopped):
            await self._wait_for(event, self._hooks.emit(event))

    async def ask(self, event: E) -> tuple[E, Answer]:
        """Return the event as changed by the handlers, and their answer. Raises `OperationStopped` after an abort."""
        return await self._wait_for(event, self._hooks.ask(event))

    async def _wait_for(self, event: Event, work: Awaitable[T]) -> T:
        if not self._signal.aborted and not self._hooks.has_handlers(event):
            return await work  # listeners do not block
        now = asyncio.get_running_loop().time()
        if self._signal.aborted and self._deadline is None:
            self._deadline = now + GRACE_SECONDS
        return await wait_with_grace(self._signal, work, max(0.0, (self._deadline or now) - now))
