"""The durable worker: a process that takes jobs from the work database and runs several agents at a time.

One transaction a second renews the worker's lease, takes jobs, and returns which of its jobs were cancelled or lost. If
a worker dies, others continue its jobs from the last stored answer. A worker that was disconnected or suspended for
longer than its lease exits at once. What it still sends is refused: in PostgreSQL, every append carries a token that is
checked in the same transaction; for files, the work database is asked before each write.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import NoReturn, TypeAlias

from sessiontree.config import ProviderLimits, load_config
from sessiontree.errors import SessionTreeError, StoreError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import BeforeToolCall
from sessiontree.model.base import Model
from sessiontree.session import Branch, Session
from sessiontree.store.base import FencedStore, FenceRaised
from sessiontree.swarm.durable.database import JobReport, JobRequest, WorkDatabase, decode_request
from sessiontree.swarm.durable.exactly_once import AnswerStore, IdempotentSession, StoringModel
from sessiontree.swarm.durable.job_queue import (
    CANCELLED,
    LEASE,
    JobQueue,
    TakenJob,
    WorkerInfo,
    WorkerRound,
    build_home_id,
)
from sessiontree.swarm.durable.provider_limits import CallCounter, ProviderGate
from sessiontree.swarm.journal import SwarmJournal
from sessiontree.swarm.swarm import Swarm

LEASE_LOST_EXIT = 75
"""The exit code of a worker that lost its lease."""
SWARM_CHECK_SECONDS = 5.0
"""Seconds between two reads of the session, in case a swarm is cancelled whose process is dead."""
STALE_SECONDS = 5.0
"""Before a call of a model or a tool, the last round must not be older than this."""

WrapModel: TypeAlias = Callable[[Model], Model]
"""Returns the model with its answers stored."""
SwarmOpener: TypeAlias = Callable[[JobRequest, Session, Hooks, WrapModel], AbstractAsyncContextManager[Swarm]]
"""Opens the swarm of a job request in its session, with these hooks and the models and tools of this machine.

It must pass each model through the `WrapModel` function.
"""


class _ActiveJob:
    """A job that this worker has. It becomes unwanted when it is cancelled."""

    def __init__(self, taken: TakenJob, loop: asyncio.AbstractEventLoop) -> None:
        self.taken = taken
        self.is_ending = False
        """Whether the worker is about to give it back."""
        self._loop = loop
        self._unwanted = asyncio.Event()

    def set_unwanted(self) -> None:
        """For any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._unwanted.set)

    @property
    def is_unwanted(self) -> bool:
        return self._unwanted.is_set()

    async def wait_until_unwanted(self) -> None:
        await self._unwanted.wait()


class DurableWorker:
    """A worker process."""

    def __init__(
        self,
        open_swarm: SwarmOpener,
        *,
        database: str | None = None,
        concurrency: int = 4,
        lease: float = LEASE,
        limits: Mapping[str, ProviderLimits] | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`limits` has the limits of providers, which all workers of the database share; by default those of the
        configuration. `report` is called with log lines."""
        self.id = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._open_swarm = open_swarm
        self._concurrency = concurrency
        self._lease = lease
        self._database = WorkDatabase(database)
        self._queue = JobQueue(self._database)
        self._gate = ProviderGate(
            CallCounter(self._database), self.id, load_config().limits if limits is None else limits
        )
        self._report = report
        self._jobs: dict[str, _ActiveJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._stopped = threading.Event()
        self._wake = threading.Event()
        """Ends the pause before the next round."""
        self._renewed_at = 0.0
        """Monotonic time of the last renewal of the lease."""
        self._round_at = 0.0
        """Monotonic time at which the last successful round began."""
        self._round_done = asyncio.Event()
        self._swarm_checks: dict[str, tuple[float, bool]] = {}
        """When the session of each swarm was last read to see whether it is over, and whether it was."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run jobs until `stop` is set. Then calls in progress finish, and other workers get the remaining work.

        Raises `StoreError` if the database is not available at the start.
        """
        await asyncio.to_thread(self._database.migrate)
        host, home = socket.gethostname(), build_home_id()
        me = WorkerInfo(id=self.id, host=host, home=home, concurrency=self._concurrency)
        self._renewed_at = time.monotonic()
        await asyncio.to_thread(self._queue.register, me, self._lease)
        loop = asyncio.get_running_loop()
        rounds = threading.Thread(target=self._run_rounds, args=(loop,), daemon=True)
        watch = threading.Thread(target=self._watch_lease, daemon=True)
        self._report(
            f"worker {self.id} takes jobs from {self._database.display_name}, at most {self._concurrency} at a time"
        )
        rounds.start()
        watch.start()
        try:
            await stop.wait()
            self._stopping.set()
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            self._stopped.set()
            self._wake.set()
            await asyncio.to_thread(rounds.join)
            with suppress(StoreError):  # its lease expires
                await asyncio.to_thread(self._queue.retire, self.id)
            self._database.close()

    def abandon(self, code: int) -> NoReturn:
        """Exit the process at once. Other workers get its jobs."""
        with suppress(StoreError):
            self._queue.retire(self.id)
        os._exit(code)

    # The lease

    def _run_rounds(self, loop: asyncio.AbstractEventLoop) -> None:
        """Renew the lease and take jobs, in a loop. A thread, since a tool may block the event loop."""
        while not self._stopped.is_set():
            self._wake.clear()
            with suppress(StoreError):  # the next round retries, until the lease expires
                self._do_round(loop)
            self._wake.wait(self._database.poll_interval)

    def _do_round(self, loop: asyncio.AbstractEventLoop) -> None:
        before = time.monotonic()
        renew = before > self._renewed_at + self._lease / 5
        free = 0 if self._stopping.is_set() else self._concurrency - len(self._jobs)
        known = dict(self._jobs)
        if not (renew or free > 0 or known):
            return
        found = self._queue.do_round(self.id, renew=renew, free=free)
        if found is None:
            self._exit_without_lease("its lease expired and other workers took over its jobs")
        if renew:
            self._renewed_at = before
        self._apply_round(found, known)
        self._round_at = before
        for taken in found.taken:
            self._jobs[taken.id] = _ActiveJob(taken, loop)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._start_jobs, found)

    def _apply_round(self, found: WorkerRound, known: dict[str, _ActiveJob]) -> None:
        for id, job in known.items():
            state = found.held.get(id)
            if state is None and not job.is_ending:
                self._exit_without_lease(f"another worker took over the job {id}")
            if state == CANCELLED:
                job.set_unwanted()

    def _start_jobs(self, found: WorkerRound) -> None:
        done, self._round_done = self._round_done, asyncio.Event()
        done.set()
        for taken in found.taken:
            task = asyncio.create_task(self._run_and_end(self._jobs[taken.id]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _watch_lease(self) -> None:
        """Exit when the lease expires. The rounds cannot do this: they may hang on an unreachable database."""
        while not self._stopped.wait(self._lease / 10):
            if time.monotonic() - self._renewed_at > self._lease:
                self._exit_without_lease(f"the database was unreachable for {self._lease:g} s")

    def _exit_without_lease(self, reason: str) -> NoReturn:
        """Exit the process at once, because another worker may write to the same branches."""
        self._report(f"worker {self.id} exits: {reason}")
        os._exit(LEASE_LOST_EXIT)

    async def _wait_for_fresh_round(self) -> None:
        """Return at once if a recent round found the jobs of this worker unchanged; else wait for the next one."""
        while time.monotonic() - self._round_at > STALE_SECONDS:
            done = self._round_done
            self._wake.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._database.poll_interval):
                    await done.wait()

    def _check_before_write(self, id: str) -> None:
        """Exit the process if another worker has the job. For sessions in files."""
        if not self._queue.is_mine(id, self.id):
            self._exit_without_lease(f"another worker took over the job {id}")

    # Jobs

    async def _run_and_end(self, job: _ActiveJob) -> None:
        """Run a job, and end it in the database. The lease limits how long that may take."""
        id = job.taken.id
        end = partial(self._queue.finish, id, self.id, JobReport())
        try:
            if not await self._run_job(job):
                end = partial(self._queue.release, id, self.id)
        except FenceRaised:
            self._exit_without_lease(f"another worker took over the job {id}")
        except SessionTreeError as error:
            end = partial(self._queue.finish, id, self.id, JobReport(error=str(error)))
        except Exception as error:  # noqa: BLE001 - an extension may raise anything; the swarm's process gets it
            end = partial(self._queue.finish, id, self.id, JobReport(error=f"{type(error).__name__}: {error}"))
        job.is_ending = True
        while True:
            with suppress(StoreError):
                await asyncio.to_thread(end)
                break
            await asyncio.sleep(self._database.poll_interval)
        del self._jobs[id]
        self._wake.set()

    async def _run_job(self, active: _ActiveJob) -> bool:
        """Run a job. Return false if other workers have to continue it."""
        id, request = active.taken.id, decode_request(active.taken.request)
        job = request.work
        session = await asyncio.to_thread(self._open_session, active.taken, request.where)
        journal, hooks = SwarmJournal(session, job.swarm), Hooks()
        answers = AnswerStore(
            partial(self._queue.load_answers, id),
            partial(self._queue.store_answer, id, self.id),
            lambda: self._exit_without_lease(f"another worker took over the job {id}"),
        )

        def is_unwanted() -> bool:
            return self._stopping.is_set() or active.is_unwanted

        async def check_before_request() -> None:
            await self._wait_for_fresh_round()
            if is_unwanted():
                raise asyncio.CancelledError

        async def check_before_call(event: BeforeToolCall, context: object) -> None:
            await self._wait_for_fresh_round()

        def get_branch() -> Branch:
            return session.branch(journal.state.agents[job.agent].branch)

        def wrap_model(model: Model) -> Model:
            return StoringModel(self._gate.wrap(model, is_unwanted), get_branch, answers, check_before_request)

        hooks.on(BeforeToolCall, check_before_call, source="the worker's lease")
        try:
            async with self._open_swarm(request, session, hooks, wrap_model) as swarm:
                self._report(f"agent {job.agent} of swarm {swarm.name} is running")
                await self._wait_while_wanted(active, journal, asyncio.create_task(swarm.run_job(job)))
                state = journal.state.agents[job.agent].end_state
                self._report(f"agent {job.agent} of swarm {swarm.name} is {state or 'interrupted'}")
                return not self._stopping.is_set() or state is not None
        finally:
            await asyncio.to_thread(session.close)

    def _open_session(self, taken: TakenJob, where: str) -> Session:
        """Open the session of a job, and exclude earlier workers of its agent."""
        session = IdempotentSession.open_at(where, taken.id)
        if isinstance(session.store, FencedStore):
            session.store.raise_fence(taken.id.rpartition("/")[0], taken.token)
        else:
            session.before_write = partial(self._check_before_write, taken.id)
        return session

    async def _wait_while_wanted(self, active: _ActiveJob, journal: SwarmJournal, run: asyncio.Task[None]) -> None:
        """Wait until the job is over. Cancel it if it is cancelled or if the swarm is over."""
        watch = asyncio.create_task(self._wait_until_unwanted(active, journal))
        try:
            await asyncio.wait([run, watch], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (run, watch):
                task.cancel()
            await asyncio.wait([run, watch])
        for task in (run, watch):
            if not task.cancelled():
                task.result()

    async def _wait_until_unwanted(self, active: _ActiveJob, journal: SwarmJournal) -> None:
        """Wait until the job is cancelled or the swarm is over. A swarm that is over at the start asks no model."""
        while not active.is_unwanted:
            with suppress(TimeoutError):
                async with asyncio.timeout(SWARM_CHECK_SECONDS):
                    await active.wait_until_unwanted()
            if not active.is_unwanted and await self._is_over(journal):
                return

    async def _is_over(self, journal: SwarmJournal) -> bool:
        """Return whether a swarm is over. One of its agents in this worker reads the session for all of them."""
        now = time.monotonic()
        checked_at, was_over = self._swarm_checks.get(journal.id, (float("-inf"), False))
        if was_over or now < checked_at + SWARM_CHECK_SECONDS:
            return was_over
        self._swarm_checks[journal.id] = now, False
        is_over = (await journal.refresh()).is_over
        self._swarm_checks[journal.id] = now, is_over
        return is_over
