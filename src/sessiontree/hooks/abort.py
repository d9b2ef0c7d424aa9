"""Abort operations and runs: cancel their tasks, and stop waiting for handlers.

After an abort, handlers and tools get a grace period to finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Answer, Event, Signal

T = TypeVar("T")
E = TypeVar("E", bound=Event)

GRACE_SECONDS = 5.0
"""How long handlers and tools may still run after an abort, in seconds."""


class OperationStopped(Exception):
    """A handler cancelled the operation, or the signal aborted it.

    Operations catch it and report it in their outcome; callers never see it.
    """

    def __init__(self, *, aborted: bool, by: str = "") -> None:
        super().__init__("aborted" if aborted else "cancelled")
        self.aborted = aborted
        self.by = by
        """The handler or extension that cancelled."""


async def ask_hooks(hooks: Hooks, event: E, signal: Signal) -> tuple[E, Answer]:
    """Return the event as changed by the handlers, and their answer. Raises `OperationStopped`."""
    changed, answer = await run_unless_aborted(signal, hooks.ask(event))
    if answer.cancel:
        raise OperationStopped(aborted=False, by=answer.cancelled_by)
    return changed, answer


async def emit_event(hooks: Hooks, event: Event, signal: Signal) -> None:
    """Emit an event. After an abort, handlers get a short grace period."""
    with suppress(OperationStopped):
        await wait_with_grace(signal, hooks.emit(event), GRACE_SECONDS)


async def wait_with_grace(signal: Signal, work: Awaitable[T], grace: float) -> T:
    """Return the result of `work`.

    Raises `OperationStopped` when the signal aborts. If it has aborted before, `work` gets `grace` seconds.
    """
    if not signal.aborted:
        return await run_unless_aborted(signal, work)
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({working}, timeout=grace)
        if not working.done():
            raise OperationStopped(aborted=True)
        return working.result()
    finally:
        working.cancel()


async def run_unless_aborted(signal: Signal, work: Awaitable[T]) -> T:
    """Return the result of `work`. Raises `OperationStopped` and cancels `work` when the signal aborts."""
    working = asyncio.ensure_future(work)
    try:
        await signal.wait_while_running(working)
        if signal.aborted:
            raise OperationStopped(aborted=True)
        return working.result()
    finally:
        working.cancel()
        if not working.done() or signal.aborted:
            await asyncio.gather(working, return_exceptions=True)


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
        if not self._signal.aborted and self._hooks.try_emit(event):
            return
        with suppress(OperationStopped):
            await self._wait_for(self._hooks.emit(event))

    async def ask(self, event: E) -> tuple[E, Answer]:
        """Return the event as changed by the handlers, and their answer. Raises `OperationStopped` after an abort."""
        if not self._signal.aborted and self._hooks.try_emit(event):
            return event, (event.answer or Answer)()
        return await self._wait_for(self._hooks.ask(event))

    async def _wait_for(self, work: Awaitable[T]) -> T:
        now = asyncio.get_running_loop().time()
        if self._signal.aborted and self._deadline is None:
            self._deadline = now + GRACE_SECONDS
        return await wait_with_grace(self._signal, work, max(0.0, (self._deadline or now) - now))
