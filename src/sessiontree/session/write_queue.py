"""Writes of coroutines: one thread at a time writes to a session, so the event loop never waits for the disk.

Writes that arrive while the thread is busy are done together afterwards, and share one sync of the disk. A write that
has started always ends, even if the task that awaits it is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sessiontree.session.group_commit import GroupedWrite, run_group
from sessiontree.session.session import Session

T = TypeVar("T")

MAX_THREADS = 64
"""The number of writer threads. They are separate from the threads of tools and handlers, which may block for long."""


async def run_write(session: Session, write: Callable[[], T]) -> T:
    """Call `write`, which writes to `session`, in a thread, and return its result.

    Calls for one session are made in order. If the task is cancelled, a call that has not started is dropped. A session
    in memory needs no thread.
    """
    if not session.store.is_blocking:
        return write()
    queue = _queues.get(session)
    if queue is None:
        queue = _queues.setdefault(session, _WriteQueue())
    queued = _QueuedWrite(write, asyncio.get_running_loop())
    queue.add(queued, session)
    return await queued.future


class _QueuedWrite(GroupedWrite):
    """A write of a coroutine."""

    __slots__ = ("future", "loop")

    def __init__(self, write: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(write)
        self.loop, self.future = loop, loop.create_future()

    def run(self) -> None:
        if not self.future.cancelled():
            super().run()


class _WriteQueue:
    """The writes of coroutines to one session."""

    def __init__(self) -> None:
        self._waiting: deque[_QueuedWrite] = deque()
        self._lock = threading.Lock()
        self._is_busy = False
        """Whether a thread does the writes."""

    def add(self, queued: _QueuedWrite, session: Session) -> None:
        with self._lock:
            self._waiting.append(queued)
            if self._is_busy:
                return
            self._is_busy = True
        _get_executor().submit(self._run_all, session)

    def _run_all(self, session: Session) -> None:
        while True:
            if len(self._waiting) > 1:
                group = run_group(self._take_all, session.share_sync)
            else:  # a group of one would only take longer
                group = self._take_all()
                for queued in group:
                    queued.run()
            if not group:
                return
            _report(group)

    def _take_all(self) -> list[_QueuedWrite]:
        with self._lock:
            taken = [*self._waiting]
            self._waiting.clear()
            self._is_busy = bool(taken)
            return taken


def _report(group: Sequence[_QueuedWrite]) -> None:
    """Wake the coroutines, all of one event loop together."""
    for loop in {queued.loop for queued in group}:
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(_set_outcomes, [queued for queued in group if queued.loop is loop])


def _set_outcomes(group: Sequence[_QueuedWrite]) -> None:
    for queued in group:
        if not queued.future.done():
            if queued.error is None:
                queued.future.set_result(queued.result)
            else:
                queued.future.set_exception(queued.error)


@cache
def _get_executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="sessiontree-writer")


_queues: WeakKeyDictionary[Session, _WriteQueue] = WeakKeyDictionary()


def _reset_after_fork() -> None:
    """In a forked child: the threads of the parent do not exist."""
    _queues.clear()
    _get_executor.cache_clear()


os.register_at_fork(after_in_child=_reset_after_fork)
