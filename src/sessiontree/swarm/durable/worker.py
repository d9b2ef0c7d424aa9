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
from sessiontree.swarm.durable.database import QUEUE, Database
from sessiontree.swarm.durable.once import OnceSession
from sessiontree.swarm.durable.order import WORKFLOW, Order, Report, encoded, order_of
from sessiontree.swarm.durable.roster import LEASE, Roster, WorkerInfo, this_home
from sessiontree.swarm.durable.steps import KeptModel, Steps
from sessiontree.swarm.record import Record
from sessiontree.swarm.swarm import Swarm

LOOK = 1.0
"""Seconds between two looks whether work was given up or taken away."""
ATTEMPTS = 10
"""How often work is taken up again after its worker died of it, perhaps."""
ENDED = 75
"""The exit code of a worker that lost its lease."""

Keep: TypeAlias = Callable[[Model], Model]
"""The model, with its answers kept."""
Opener: TypeAlias = Callable[[Order, Session, Hooks, Keep], AbstractAsyncContextManager[Swarm]]
"""Opens the swarm of an order in its session, with these hooks, and models and tools of this machine.

Each model is to be kept.
"""


class DurableWorker:
    def __init__(
        self,
        opener: Opener,
        *,
        database: str | None = None,
        concurrency: int = 4,
        lease: float = LEASE,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`tell` is told what happens, in sentences."""
        self.id = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._opener = opener
        self._concurrency = concurrency
        self._database = Database(database)
        self._roster = Roster(self._database, lease)
        self._tell = tell
        self._slots = asyncio.Semaphore(concurrency)
        self._under_way: dict[str, Order] = {}
        self._renewing = threading.Lock()
        self._leaving = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = threading.Event()
        self._launched = False
        self._renewed = 0.0
        """When the lease was renewed last."""
        self._client: DBOSClient | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Take work until `stop`; then let the calls under way come to their end, and leave the rest to others.

        Raises `StoreError` when the database cannot be reached at the start.
        """
        await asyncio.to_thread(self._database.make)
        await asyncio.to_thread(self._roster.make)
        self._client = await asyncio.to_thread(self._database.client)
        host, home = socket.gethostname(), this_home()
        me = WorkerInfo(id=self.id, host=host, home=home, concurrency=self._concurrency)
        await asyncio.to_thread(self._roster.enter, me)
        self._renewed = time.monotonic()
        threads = [threading.Thread(target=target, daemon=True) for target in (self._beat, self._guard)]
        for thread in threads:
            thread.start()
        try:
            await self._launch()
            await asyncio.to_thread(self._take_up)
            self._launched = True
            self._tell(f"worker {self.id} takes work from {self._database.shown}, {self._concurrency} at a time")
            await stop.wait()
            self._leaving.set()
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
        DBOS(config=self._database.config(self.id))
        DBOS.workflow(name=WORKFLOW, max_recovery_attempts=ATTEMPTS)(self._workflow())
        DBOS.launch()
        # What is handed to each worker at a time is kept with the queue, for all of them; the slots here are our own.
        await DBOS.register_queue_async(
            QUEUE,
            worker_concurrency=self._concurrency,
            polling_interval_sec=self._database.poll,
            on_conflict="always_update",
        )

    def _workflow(self) -> Callable[[str], object]:
        async def agent(order: str) -> str:
            id = DBOS.workflow_id
            assert id is not None
            return encoded(await self._taken(id, order_of(order)))

        return agent

    # The lease

    def _beat(self) -> None:
        """Renew the lease, and look for dead workers, again and again."""
        while not self._stopped.wait(self._roster.lease / 5):
            before = time.monotonic()
            with suppress(StoreError):  # it is tried again, until the lease is over
                if not self._renew():
                    self._lost("others took it for dead, since it had not been heard of for too long")
                self._renewed = before
                if self._launched:
                    self._take_up()

    def _renew(self) -> bool:
        """Renew the lease, and say what is under way: one at a time, so that the last word is about the last state."""
        with self._renewing:
            return self._roster.renew(self.id, list(self._under_way))

    def _guard(self) -> None:
        """See that the lease holds. Renewing it may wait without end, for a database that is out of reach."""
        while not self._stopped.wait(self._roster.lease / 10):
            if time.monotonic() - self._renewed > self._roster.lease:
                self._lost(f"it could not reach the database for {self._roster.lease:g} s")

    def _take_up(self) -> None:
        """Put the work of dead workers back into the queue. Whoever does it first has done it."""
        dead = self._roster.dead()
        try:
            if dead:
                DBOS._recover_pending_workflows(dead)  # pyright: ignore[reportPrivateUsage] - there is no other way
        except Exception as error:  # noqa: BLE001 - what DBOS raises is not for us to know; it is tried again
            self._tell(f"the work of dead workers could not be taken up: {type(error).__name__}: {error}")

    def _lost(self, reason: str) -> NoReturn:
        """End the process, so that nothing more is written."""
        self._tell(f"worker {self.id} ends at once: {reason}")
        os._exit(ENDED)

    async def _note(self) -> None:
        """Say what is under way now, as soon as the database can be reached: the guard sees to it that this ends."""
        while True:
            with suppress(StoreError):
                if not await asyncio.to_thread(self._renew):
                    self._lost("others took it for dead")
                return
            await asyncio.sleep(LOOK)

    def _status(self, id: str) -> WorkflowStatus | None:
        assert self._client is not None
        found = self._client.list_workflows(workflow_ids=[id], load_input=False, load_output=False)
        return found[0] if found else None

    def _mine(self, id: str) -> bool:
        """Whether the work is this worker's."""
        status = self._status(id)
        return status is not None and status.status == "PENDING" and status.executor_id == self.id

    def _wanted(self, id: str) -> bool:
        """Whether work under way is wanted still. Ends the process if it is somebody else's."""
        status = self._status(id)
        if status is not None and status.status == "CANCELLED":
            return False
        if status is None or status.status != "PENDING" or status.executor_id != self.id:
            self._lost(f"the work {id} was taken up by another")  # or done by now, and deleted
        return True

    # The work

    async def _taken(self, id: str, order: Order) -> Report:
        async with self._slots:
            if self._leaving.is_set():
                await asyncio.Event().wait()  # it is another's as soon as this process has ended
            self._under_way[id] = order
            self._idle.clear()
            try:
                await self._note()
                if not await asyncio.to_thread(self._mine, id):
                    return Report()  # it was given up before it began
                return await self._carried_out(id, order)
            except SessionTreeError as error:
                return Report(error=str(error))
            finally:
                del self._under_way[id]
                await self._note()
                if not self._under_way:
                    self._idle.set()

    async def _carried_out(self, id: str, order: Order) -> Report:
        work = order.work
        session = await asyncio.to_thread(OnceSession.at, order.where, id, partial(self._wanted, id))
        record, hooks = Record(session, work.swarm), Hooks()
        steps = Steps(lambda: self._lost(f"the work {id} was taken up by another"))

        async def before_request() -> None:
            if self._leaving.is_set() or not await asyncio.to_thread(self._wanted, id):
                raise asyncio.CancelledError

        async def before_call(event: BeforeToolCall, context: object) -> None:
            await asyncio.to_thread(self._wanted, id)

        def branch() -> Branch:
            return session.branch(record.account.agents[work.agent].branch)

        def keep(model: Model) -> Model:
            return KeptModel(model, branch, steps, before_request)

        hooks.on(BeforeToolCall, before_call, source="the worker's lease")
        try:
            async with self._opener(order, session, hooks, keep) as swarm:
                self._tell(f"agent {work.agent} of swarm {swarm.name} is at work")
                await self._watched(id, record, asyncio.create_task(swarm.carry_out(work)))
                state = record.account.agents[work.agent].ended or "put aside"
                self._tell(f"agent {work.agent} of swarm {swarm.name} is {state}")
            return Report()
        finally:
            await asyncio.to_thread(session.close)

    async def _watched(self, id: str, record: Record, working: asyncio.Task[None]) -> None:
        """Wait until the work is over, or somebody has given it up."""
        watching = asyncio.create_task(self._given_up(id, record))
        try:
            await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.wait([working, watching])
        for task in (working, watching):
            if not task.cancelled():
                task.result()

    async def _given_up(self, id: str, record: Record) -> None:
        """Waits until the work is not wanted any more: by itself, or with the whole swarm."""
        while await asyncio.to_thread(self._wanted, id) and not (await record.look()).over:
            await asyncio.sleep(LOOK)
