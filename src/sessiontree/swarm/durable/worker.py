"""The durable worker: a process that takes jobs from the work database and runs several agents at a time.

A worker holds a lease. If it dies, other workers continue its jobs from the last stored answer. If it was disconnected
or suspended for too long, it finds its lease expired and exits at once without writing, because its jobs have moved to
other workers.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import NoReturn, TypeAlias

from dbos import DBOS, DBOSClient, WorkflowStatus

from sessiontree.errors import SessionTreeError, StoreError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import BeforeToolCall
from sessiontree.model.base import Model
from sessiontree.session import Branch, Session
from sessiontree.swarm.durable.database import (
    QUEUE,
    WORKFLOW,
    JobReport,
    JobRequest,
    WorkDatabase,
    decode_request,
    encode,
)
from sessiontree.swarm.durable.exactly_once import AnswerStore, IdempotentSession, StoringModel
from sessiontree.swarm.durable.worker_roster import LEASE, Roster, WorkerInfo, build_home_id
from sessiontree.swarm.journal import SwarmJournal
from sessiontree.swarm.swarm import Swarm

POLL_INTERVAL = 1.0
"""Seconds between two checks whether a job was cancelled or assigned to another worker."""
MAX_RECOVERIES = 10
"""How often a job is run again after its worker died, because the job itself may cause the crash."""
LEASE_LOST_EXIT = 75
"""The exit code of a worker that lost its lease."""

WrapModel: TypeAlias = Callable[[Model], Model]
"""Returns the model with its answers stored."""
SwarmOpener: TypeAlias = Callable[[JobRequest, Session, Hooks, WrapModel], AbstractAsyncContextManager[Swarm]]
"""Opens the swarm of a job request in its session, with these hooks and the models and tools of this machine.

It must pass each model through the `WrapModel` function.
"""


class DurableWorker:
    """A worker process."""

    def __init__(
        self,
        open_swarm: SwarmOpener,
        *,
        database: str | None = None,
        concurrency: int = 4,
        lease: float = LEASE,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`report` is called with log lines."""
        self.id = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._open_swarm = open_swarm
        self._concurrency = concurrency
        self._database = WorkDatabase(database)
        self._roster = Roster(self._database, lease)
        self._report = report
        self._slots = asyncio.Semaphore(concurrency)
        self._active_jobs: dict[str, JobRequest] = {}
        self._renew_lock = threading.Lock()
        self._stopping = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = threading.Event()
        self._launched = False
        self._renewed_at = 0.0
        """Monotonic time of the last renewal of the lease."""
        self._client: DBOSClient | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run jobs until `stop` is set. Then calls in progress finish, and other workers get the remaining work.

        Raises `StoreError` if the database cannot be reached at the start.
        """
        await asyncio.to_thread(self._database.migrate)
        await asyncio.to_thread(self._roster.create_table)
        self._client = await asyncio.to_thread(self._database.create_client)
        host, home = socket.gethostname(), build_home_id()
        me = WorkerInfo(id=self.id, host=host, home=home, concurrency=self._concurrency)
        await asyncio.to_thread(self._roster.register, me)
        self._renewed_at = time.monotonic()
        threads = [threading.Thread(target=target, daemon=True) for target in (self._run_heartbeat, self._watch_lease)]
        for thread in threads:
            thread.start()
        try:
            await self._launch()
            await asyncio.to_thread(self._recover_jobs)
            self._launched = True
            self._report(
                f"worker {self.id} takes jobs from {self._database.display_name}, at most {self._concurrency} at a time"
            )
            await stop.wait()
            self._stopping.set()
            await self._idle.wait()
        finally:
            self._stopped.set()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            await asyncio.to_thread(self._roster.retire, self.id)
            await asyncio.to_thread(self._client.destroy)
            self._roster.close()
            DBOS.destroy()  # last, because it shuts down the event loop's default thread pool

    def abandon(self, code: int) -> NoReturn:
        """Exit the process at once. Other workers get its jobs."""
        with suppress(StoreError):
            self._roster.retire(self.id)
        os._exit(code)

    async def _launch(self) -> None:
        DBOS(config=self._database.build_config(self.id))
        DBOS.workflow(name=WORKFLOW, max_recovery_attempts=MAX_RECOVERIES)(self._build_workflow())
        DBOS.launch()
        # The queue stores one concurrency for all workers; `self._slots` enforces the limit of this worker.
        await DBOS.register_queue_async(
            QUEUE,
            worker_concurrency=self._concurrency,
            polling_interval_sec=self._database.poll_interval,
            on_conflict="always_update",
        )

    def _build_workflow(self) -> Callable[[str], object]:
        async def run_workflow(request: str) -> str:
            id = DBOS.workflow_id
            assert id is not None
            return encode(await self._accept_job(id, decode_request(request)))

        return run_workflow

    # The lease

    def _run_heartbeat(self) -> None:
        """Renew the lease and recover the jobs of dead workers, in a loop."""
        while not self._stopped.wait(self._roster.lease / 5):
            before = time.monotonic()
            with suppress(StoreError):  # the next round retries, until the lease expires
                if not self._renew():
                    self._exit_without_lease("its lease expired and other workers took over its jobs")
                self._renewed_at = before
                if self._launched:
                    self._recover_jobs()

    def _renew(self) -> bool:
        """Renew the lease and store the running jobs. The lock makes the last write contain the last state."""
        with self._renew_lock:
            return self._roster.renew(self.id, list(self._active_jobs))

    def _watch_lease(self) -> None:
        """Exit when the lease expires. The heartbeat cannot do this: it may hang on an unreachable database."""
        while not self._stopped.wait(self._roster.lease / 10):
            if time.monotonic() - self._renewed_at > self._roster.lease:
                self._exit_without_lease(f"the database was unreachable for {self._roster.lease:g} s")

    def _recover_jobs(self) -> None:
        """Put the jobs of dead workers back into the queue. Several workers may try; only the first has an effect."""
        dead = self._roster.mark_dead()
        try:
            if dead:
                DBOS._recover_pending_workflows(dead)  # pyright: ignore[reportPrivateUsage] - no public API
        except Exception as error:  # noqa: BLE001 - DBOS does not document what it raises; the next round retries
            self._report(f"could not recover the jobs of dead workers: {type(error).__name__}: {error}")

    def _exit_without_lease(self, reason: str) -> NoReturn:
        """Exit the process at once, because another worker may write to the same branches."""
        self._report(f"worker {self.id} exits: {reason}")
        os._exit(LEASE_LOST_EXIT)

    async def _publish_jobs(self) -> None:
        """Store the running jobs as soon as the database can be reached. `_watch_lease` limits the wait."""
        while True:
            with suppress(StoreError):
                if not await asyncio.to_thread(self._renew):
                    self._exit_without_lease("its lease expired")
                return
            await asyncio.sleep(POLL_INTERVAL)

    def _get_status(self, id: str) -> WorkflowStatus | None:
        assert self._client is not None
        found = self._client.list_workflows(workflow_ids=[id], load_input=False, load_output=False)
        return found[0] if found else None

    def _is_mine(self, id: str) -> bool:
        """Whether the job is assigned to this worker."""
        status = self._get_status(id)
        return status is not None and status.status == "PENDING" and status.executor_id == self.id

    def _is_wanted(self, id: str) -> bool:
        """Whether a running job is still wanted. Exits the process if the job belongs to another worker."""
        status = self._get_status(id)
        if status is not None and status.status == "CANCELLED":
            return False
        if status is None or status.status != "PENDING" or status.executor_id != self.id:
            # The other worker may have finished the job, which deletes it.
            self._exit_without_lease(f"another worker took over the job {id}")
        return True

    # Jobs

    async def _accept_job(self, id: str, request: JobRequest) -> JobReport:
        async with self._slots:
            if self._stopping.is_set():
                await asyncio.Event().wait()  # another worker gets the job when this process ends
            self._active_jobs[id] = request
            self._idle.clear()
            try:
                await self._publish_jobs()
                if not await asyncio.to_thread(self._is_mine, id):
                    return JobReport()  # the job was cancelled before it started
                return await self._run_job(id, request)
            except SessionTreeError as error:
                return JobReport(error=str(error))
            finally:
                del self._active_jobs[id]
                await self._publish_jobs()
                if not self._active_jobs:
                    self._idle.set()

    async def _run_job(self, id: str, request: JobRequest) -> JobReport:
        job = request.work
        session = await asyncio.to_thread(IdempotentSession.open_at, request.where, id, partial(self._is_wanted, id))
        journal, hooks = SwarmJournal(session, job.swarm), Hooks()
        answers = AnswerStore(lambda: self._exit_without_lease(f"another worker took over the job {id}"))

        async def check_before_request() -> None:
            if self._stopping.is_set() or not await asyncio.to_thread(self._is_wanted, id):
                raise asyncio.CancelledError

        async def check_before_call(event: BeforeToolCall, context: object) -> None:
            await asyncio.to_thread(self._is_wanted, id)

        def get_branch() -> Branch:
            return session.branch(journal.state.agents[job.agent].branch)

        def wrap_model(model: Model) -> Model:
            return StoringModel(model, get_branch, answers, check_before_request)

        hooks.on(BeforeToolCall, check_before_call, source="the worker's lease")
        try:
            async with self._open_swarm(request, session, hooks, wrap_model) as swarm:
                self._report(f"agent {job.agent} of swarm {swarm.name} is running")
                await self._wait_while_wanted(id, journal, asyncio.create_task(swarm.run_job(job)))
                state = journal.state.agents[job.agent].end_state or "interrupted"
                self._report(f"agent {job.agent} of swarm {swarm.name} is {state}")
            return JobReport()
        finally:
            await asyncio.to_thread(session.close)

    async def _wait_while_wanted(self, id: str, journal: SwarmJournal, run: asyncio.Task[None]) -> None:
        """Wait until the job is over. Cancel it if `_wait_until_unwanted` returns first."""
        watch = asyncio.create_task(self._wait_until_unwanted(id, journal))
        try:
            await asyncio.wait([run, watch], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (run, watch):
                task.cancel()
            await asyncio.wait([run, watch])
        for task in (run, watch):
            if not task.cancelled():
                task.result()

    async def _wait_until_unwanted(self, id: str, journal: SwarmJournal) -> None:
        """Wait until the job is cancelled or the swarm is over."""
        while await asyncio.to_thread(self._is_wanted, id) and not (await journal.refresh()).is_over:
            await asyncio.sleep(POLL_INTERVAL)
