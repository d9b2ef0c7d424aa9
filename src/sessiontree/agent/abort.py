"""Stopping: the one switch that gives up everything an agent has under way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from sessiontree.hooks.events import Signal

T = TypeVar("T")


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
