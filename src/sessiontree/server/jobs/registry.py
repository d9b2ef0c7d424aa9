"""The workshop: one event loop in a thread of its own, where agents, handlers and swarms are at work.

What answers requests has another one, so however busy the workshop is, and whatever an extension does there, requests
are answered and events are sent. It starts when something is to be done for the first time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from sessiontree.store.lock_wait import set_wait_limit

T = TypeVar("T")

AGENT_LOCK_SECONDS = 1.0
"""How long the workshop waits for a lock that another process keeps: everything at work there waits with it."""


class AgentLoop:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have something done, without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work, self._ensure_started())

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done, and wait. It goes on when nobody waits any more: half of a move would be worse."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(work)))

    def _ensure_started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="sessiontree-workshop")
                self._thread.daemon = True  # a tool that cannot be stopped does not keep the program
                self._thread.start()
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        set_wait_limit(AGENT_LOCK_SECONDS)
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def close(self, seconds: float = 5) -> None:
        """Stop what is still at work."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(seconds)
