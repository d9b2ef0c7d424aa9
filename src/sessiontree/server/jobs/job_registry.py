"""The event loop that agents run in, and the registry of jobs that this server is running."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

from sessiontree.core.sanitize import escape_line
from sessiontree.errors import SessionTreeError
from sessiontree.server.http_errors import INTERNAL_ERROR
from sessiontree.server.jobs.agent_access import Workspace
from sessiontree.server.session_cache import OpenSession, SessionCache
from sessiontree.store.lock import set_wait_limit

log = logging.getLogger("sessiontree.server")

T = TypeVar("T")

AGENT_LOCK_SECONDS = 1.0
"""How long the agent loop waits for a lock of another process. Every job in the loop waits with it."""
STOP_SECONDS = 10.0
"""How long to wait for stopped jobs to end."""
STOPPED = "stopped"
"""The error of a job that was cancelled."""


class AgentLoop:
    """An event loop in its own thread, in which agents, hooks and swarms run.

    Requests are handled in another loop, so a busy agent or a slow extension does not delay responses and events. The
    thread starts with the first job.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Schedule a coroutine without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work, self._ensure_started())

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. It continues if the caller is cancelled: half a move is worse."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(work)))

    def _ensure_started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="sessiontree-agents")
                self._thread.daemon = True  # a tool that cannot be stopped must not keep the program alive
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
        """Cancel the remaining tasks and stop the thread."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(seconds)


JobKey: TypeAlias = tuple[str, ...]
"""The kind of a job and what identifies it among its kind, for example `("swarm", id)`."""


class Job(Struct, eq=False, kw_only=True):
    """An agent, a swarm or an experiment that this server is running."""

    key: JobKey
    opened: OpenSession
    worker: Any
    stop: Callable[[], Coroutine[Any, Any, None]]
    """Ask the worker to stop; its task ends soon after."""
    workspace: Workspace | None = None
    task: asyncio.Task[None] | None = None
    """`None` until the job has started."""


class JobRegistry:
    """All jobs that this server is running. Jobs start and stop in the agent loop; any thread may look them up."""

    def __init__(self, sessions: SessionCache, agent_loop: AgentLoop) -> None:
        self._sessions = sessions
        self._agent_loop = agent_loop
        self._jobs: dict[JobKey, Job] = {}

    def get(self, *key: str) -> Job | None:
        return self._jobs.get(key)

    def list_jobs(self, *prefix: str) -> list[Job]:
        """Return the jobs whose key starts with `prefix`."""
        return [job for key, job in list(self._jobs.items()) if key[: len(prefix)] == prefix]

    def add(self, job: Job) -> None:
        """Register a job before it starts. No other job can then take its place."""
        self._jobs[job.key] = job

    def remove(self, job: Job) -> None:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]

    def start(
        self,
        job: Job,
        work: Coroutine[Any, Any, str | None],
        on_end: Callable[[str | None], None] = lambda error: None,
    ) -> None:
        """Start the task of a job. Its session stays open until the task ends.

        `work` returns an error message or `None`. `on_end` gets that message, or the message of an exception, after the
        job was removed.
        """
        self.add(job)
        self._sessions.add_user(job.opened)
        job.task = asyncio.create_task(self._run(job, work, on_end))

    async def _run(self, job: Job, work: Coroutine[Any, Any, str | None], on_end: Callable[[str | None], None]) -> None:
        error: str | None = INTERNAL_ERROR
        try:
            error = await work
        except asyncio.CancelledError:
            error = STOPPED
        except SessionTreeError as failure:
            error = str(failure)
        except Exception:
            log.exception("%s job of %s failed", job.key[0], escape_line(job.opened.file))
        finally:
            self.remove(job)
            on_end(error)
            job.opened.feed.wake()
            self._sessions.release(job.opened)

    async def stop(self, jobs: Iterable[Job]) -> None:
        """Stop jobs and wait until they have written their last entries. Runs in the agent loop."""
        stopping = list(jobs)
        await asyncio.gather(*(job.stop() for job in stopping), return_exceptions=True)
        tasks = [job.task for job in stopping if job.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)

    async def close(self) -> None:
        """Stop all jobs."""
        jobs = self.list_jobs()
        if jobs:
            await self._agent_loop.run(self.stop(jobs))
