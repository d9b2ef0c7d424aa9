"""The durable worker: a process that takes work and carries it out, several agents at a time.

It holds a lease. When it dies, others take up what it had, from the last answer that was kept. When it was only cut
off, or slept, it finds its lease gone and ends at once, writing nothing more: its work is somebody else's by then.
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
from sessiontree.swarm.durable.roster import LEASE, Roster, WorkerInfo, build_home_id
from sessiontree.swarm.journal import SwarmJournal
from sessiontree.swarm.swarm import Swarm

POLL_INTERVAL = 1.0
"""Seconds between two looks whether work was given up or taken away."""
MAX_RECOVERIES = 10
"""How often work is taken up again after its worker died of it, perhaps."""
LEASE_LOST_EXIT = 75
"""The exit code of a worker that lost its lease."""

WrapModel: TypeAlias = Callable[[Model], Model]
"""The model, with its answers kept."""
SwarmOpener: TypeAlias = Callable[[JobRequest, Session, Hooks, WrapModel], AbstractAsyncContextManager[Swarm]]
"""Opens the swarm of an order in its session, with these hooks, and models and tools of this machine.

Each model is to be kept.
"""


class DurableWorker:
    def __init__(
        self,
        open_swarm: SwarmOpener,
        *,
        database: str | None = None,
        concurrency: int = 4,
        lease: float = LEASE,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`tell` is told what happens, in sentences."""
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
        """When the lease was renewed last."""
        self._client: DBOSClient | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Take work until `stop`; then let the calls under way come to their end, and leave the rest to others.

        Raises `StoreError` when the database cannot be reached at the start.
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
                f"worker {self.id} takes work from {self._database.display_name}, {self._concurrency} at a time"
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
            DBOS.destroy()  # it takes the threads of this loop with it

    def abandon(self, code: int) -> NoReturn:
        """End the process at once. What is under way is for others."""
        with suppress(StoreError):
            self._roster.retire(self.id)
        os._exit(code)

    async def _launch(self) -> None:
        DBOS(config=self._database.build_config(self.id))
        DBOS.workflow(name=WORKFLOW, max_recovery_attempts=MAX_RECOVERIES)(self._build_workflow())
        DBOS.launch()
        # What is handed to each worker at a time is kept with the queue, for all of them; the slots here are our own.
        await DBOS.register_queue_async(
            QUEUE,
            worker_concurrency=self._concurrency,
            polling_interval_sec=self._database.poll_interval,
            on_conflict="always_update",
        )

    def _build_workflow(self) -> Callable[[str], object]:
        async def run_workflow(order: str) -> str:
            id = DBOS.workflow_id
            assert id is not None
            return encode(await self._accept_job(id, decode_request(order)))

        return run_workflow

    # The lease

    def _run_heartbeat(self) -> None:
        """Renew the lease, and look for dead workers, again and again."""
        while not self._stopped.wait(self._roster.lease / 5):
            before = time.monotonic()
            with suppress(StoreError):  # it is tried again, until the lease is over
                if not self._renew():
                    self._exit_without_lease("others took it for dead, since it had not been heard of for too long")
                self._renewed_at = before
                if self._launched:
                    self._recover_jobs()

    def _renew(self) -> bool:
        """Renew the lease, and say what is under way: one at a time, so that the last word is about the last state."""
        with self._renew_lock:
            return self._roster.renew(self.id, list(self._active_jobs))

    def _watch_lease(self) -> None:
        """See that the lease holds. Renewing it may wait without end, for a database that is out of reach."""
        while not self._stopped.wait(self._roster.lease / 10):
            if time.monotonic() - self._renewed_at > self._roster.lease:
                self._exit_without_lease(f"it could not reach the database for {self._roster.lease:g} s")

    def _recover_jobs(self) -> None:
        """Put the work of dead workers back into the queue. Whoever does it first has done it."""
        dead = self._roster.mark_dead()
        try:
            if dead:
                DBOS._recover_pending_workflows(dead)  # pyright: ignore[reportPrivateUsage] - there is no other way
        except Exception as error:  # noqa: BLE001 - what DBOS raises is not for us to know; it is tried again
            self._report(f"the work of dead workers could not be taken up: {type(error).__name__}: {error}")

    def _exit_without_lease(self, reason: str) -> NoReturn:
        """End the process, so that nothing more is written."""
        self._report(f"worker {self.id} ends at once: {reason}")
        os._exit(LEASE_LOST_EXIT)

    async def _publish_jobs(self) -> None:
        """Say what is under way now, as soon as the database can be reached: the guard sees to it that this ends."""
        while True:
            with suppress(StoreError):
                if not await asyncio.to_thread(self._renew):
                    self._exit_without_lease("others took it for dead")
                return
            await asyncio.sleep(POLL_INTERVAL)

    def _get_status(self, id: str) -> WorkflowStatus | None:
        assert self._client is not None
        found = self._client.list_workflows(workflow_ids=[id], load_input=False, load_output=False)
        return found[0] if found else None

    def _is_mine(self, id: str) -> bool:
        """Whether the work is this worker's."""
        status = self._get_status(id)
        return status is not None and status.status == "PENDING" and status.executor_id == self.id

    def _is_wanted(self, id: str) -> bool:
        """Whether work under way is wanted still. Ends the process if it is somebody else's."""
        status = self._get_status(id)
        if status is not None and status.status == "CANCELLED":
            return False
        if status is None or status.status != "PENDING" or status.executor_id != self.id:
            self._exit_without_lease(f"the work {id} was taken up by another")  # or done by now, and deleted
        return True

    # The work

    async def _accept_job(self, id: str, request: JobRequest) -> JobReport:
        async with self._slots:
            if self._stopping.is_set():
                await asyncio.Event().wait()  # it is another's as soon as this process has ended
            self._active_jobs[id] = request
            self._idle.clear()
            try:
                await self._publish_jobs()
                if not await asyncio.to_thread(self._is_mine, id):
                    return JobReport()  # it was given up before it began
                return await self._run_job(id, request)
            except SessionTreeError as error:
                return JobReport(error=str(error))
            finally:
                del self._active_jobs[id]
                await self._publish_jobs()
                if not self._active_jobs:
                    self._idle.set()

    async def _run_job(self, id: str, request: JobRequest) -> JobReport:
        work = request.work
        session = await asyncio.to_thread(IdempotentSession.open_at, request.where, id, partial(self._is_wanted, id))
        record, hooks = SwarmJournal(session, work.swarm), Hooks()
        steps = AnswerStore(lambda: self._exit_without_lease(f"the work {id} was taken up by another"))

        async def check_before_request() -> None:
            if self._stopping.is_set() or not await asyncio.to_thread(self._is_wanted, id):
                raise asyncio.CancelledError

        async def check_before_call(event: BeforeToolCall, context: object) -> None:
            await asyncio.to_thread(self._is_wanted, id)

        def get_branch() -> Branch:
            return session.branch(record.state.agents[work.agent].branch)

        def wrap_model(model: Model) -> Model:
            return StoringModel(model, get_branch, steps, check_before_request)

        hooks.on(BeforeToolCall, check_before_call, source="the worker's lease")
        try:
            async with self._open_swarm(request, session, hooks, wrap_model) as swarm:
                self._report(f"agent {work.agent} of swarm {swarm.name} is at work")
                await self._wait_while_wanted(id, record, asyncio.create_task(swarm.run_job(work)))
                state = record.state.agents[work.agent].end_state or "put aside"
                self._report(f"agent {work.agent} of swarm {swarm.name} is {state}")
            return JobReport()
        finally:
            await asyncio.to_thread(session.close)

    async def _wait_while_wanted(self, id: str, record: SwarmJournal, working: asyncio.Task[None]) -> None:
        """Wait until the work is over, or somebody has given it up."""
        watching = asyncio.create_task(self._wait_until_unwanted(id, record))
        try:
            await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.wait([working, watching])
        for task in (working, watching):
            if not task.cancelled():
                task.result()

    async def _wait_until_unwanted(self, id: str, record: SwarmJournal) -> None:
        """Waits until the work is not wanted any more: by itself, or with the whole swarm."""
        while await asyncio.to_thread(self._is_wanted, id) and not (await record.refresh()).is_over:
            await asyncio.sleep(POLL_INTERVAL)
