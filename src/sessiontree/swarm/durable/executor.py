"""The durable executor: sends the work of a swarm's agents to workers, and waits until they have done it.

It belongs to the process that runs the swarm's strategy. When that dies, workers go on with what they have; the next
one finds it under way, and waits for it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from dbos import DBOSClient, WorkflowStatus, WorkflowStatusString
from dbos import error as dbos_error
from sqlalchemy.exc import ProgrammingError, SQLAlchemyError

from sessiontree.errors import InvalidOperation, StoreError
from sessiontree.session import Session
from sessiontree.store.postgres.address import default, is_address, parse
from sessiontree.swarm.durable.database import APPLICATION, QUEUE, VERSION, Database, said
from sessiontree.swarm.durable.order import WORKFLOW, Order, beginning, encoded, report_of
from sessiontree.swarm.durable.relay import Relay
from sessiontree.swarm.durable.roster import Roster, WorkerInfo, this_home
from sessiontree.swarm.executor import CarryOut, Work

POLL = 0.2
"""Seconds between two looks for what workers have done."""
LOOK = 1.0
"""Seconds between two looks for what those on other machines have written."""

WAITING = frozenset(
    {WorkflowStatusString.ENQUEUED.value, WorkflowStatusString.PENDING.value, WorkflowStatusString.DELAYED.value}
)
"""States of work that is not over."""

T = TypeVar("T")


class DurableExecutor:
    """Has work carried out by workers, wherever they are."""

    def __init__(
        self,
        session: Session,
        *,
        database: str | None = None,
        concurrency: int | None = None,
        tools: Sequence[str] | None = None,
        system: str | None = None,
        thinking: str | None = None,
    ) -> None:
        """For the swarms of a session in a file or a database.

        `database` is as for `Database`; `concurrency` is how many agents are at work at the same time. `tools` names
        the only ones that they may use, and `system` and `thinking` are as for `Swarm`: workers get them with the work.
        """
        self._where = _where(session)
        self._tools = None if tools is None else tuple(tools)
        self._system, self._thinking = system, thinking
        self._slots = nullcontext() if concurrency is None else asyncio.Semaphore(concurrency)
        self._database = Database(database)
        self._opening = asyncio.Lock()
        self._client: DBOSClient | None = None
        self._roster: Roster | None = None
        self._waited: dict[str, asyncio.Future[WorkflowStatus]] = {}
        self._session = session
        self._relays: dict[str, Relay] = {}
        self._home = this_home()
        self._homes: dict[str, str] = {}
        """Those of workers."""
        self._relayed = 0.0
        self._polling: asyncio.Task[None] | None = None
        self._elsewhere: set[str] = set()
        """Swarms that another process works on now."""

    async def run(self, work: Work, carry_out: CarryOut) -> None:
        self._elsewhere.discard(work.swarm)
        async with self._slots:
            client, roster = await self._opened()
            id = await self._under_way(client, work) or await self._sent(client, roster, work)
            try:
                if self._session.file is None:
                    self._relays[id] = await asyncio.to_thread(Relay, self._session, work)
                status = await self._over(client, roster, id)
            except asyncio.CancelledError:
                if work.swarm not in self._elsewhere:
                    await self._give_up(client, roster, id)
                raise
            finally:
                relay = self._relays.pop(id, None)
                if relay is not None:
                    relay.close()
            await self._called(client.delete_workflow, id)
        if status.status == WorkflowStatusString.SUCCESS.value:
            report = report_of(str(status.output))
            if report.error is not None:
                raise StoreError(self._where, f"a worker could not work on agent {work.agent}: {report.error}")
        elif status.status != WorkflowStatusString.CANCELLED.value:
            raise StoreError(self._where, f"the work of agent {work.agent} was given up, since workers died of it")

    def give_way(self, swarm: str) -> None:
        self._elsewhere.add(swarm)

    async def workers(self) -> list[WorkerInfo]:
        """The workers that are there. Raises `StoreError`."""
        _, roster = await self._opened()
        return await self._called(roster.alive)

    async def close(self) -> None:
        """Let go of the database. What was sent stays there."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        if self._client is not None:
            await asyncio.to_thread(self._client.destroy)
        if self._roster is not None:
            self._roster.close()

    async def _opened(self) -> tuple[DBOSClient, Roster]:
        async with self._opening:
            if self._client is None or self._roster is None:
                roster = Roster(self._database)
                await asyncio.to_thread(self._database.make)
                await asyncio.to_thread(roster.make)
                self._client, self._roster = await asyncio.to_thread(self._database.client), roster
            return self._client, self._roster

    async def _called(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        try:
            return await asyncio.to_thread(function, *args, **options)
        except (SQLAlchemyError, dbos_error.DBOSException) as error:
            raise StoreError(self._database.shown, said(error)) from error

    # Sending

    async def _under_way(self, client: DBOSClient, work: Work) -> str | None:
        """What was sent before, by a process that has died since, and is not over."""
        start = beginning(work)
        found = await self._called(
            client.list_workflows,
            workflow_id_prefix=start,
            status=sorted(WAITING),
            load_input=False,
            load_output=False,
            application_name=APPLICATION,
        )
        return next((status.workflow_id for status in found if status.workflow_id.startswith(start)), None)

    async def _sent(self, client: DBOSClient, roster: Roster, work: Work) -> str:
        start = beginning(work)
        await self._nobody_has(roster, lambda id: id.startswith(start))
        id = start + os.urandom(8).hex()
        order = Order(work=work, where=self._where, tools=self._tools, system=self._system, thinking=self._thinking)
        await self._called(
            client.enqueue,
            {"workflow_name": WORKFLOW, "queue_name": QUEUE, "workflow_id": id, "app_version": VERSION},
            encoded(order),
        )
        return id

    async def _give_up(self, client: DBOSClient, roster: Roster, id: str) -> None:
        """Have the work stopped, and wait until the worker has written down what it has."""
        await self._called(client.cancel_workflow, id)
        await self._nobody_has(roster, lambda other: other == id)
        await self._called(client.delete_workflow, id)

    async def _nobody_has(self, roster: Roster, meant: Callable[[str], bool]) -> None:
        """Wait until no worker that lives has such work under way."""
        while any(meant(id) for worker in await self._called(roster.alive) for id in worker.work):
            await asyncio.sleep(POLL)

    # Waiting

    async def _over(self, client: DBOSClient, roster: Roster, id: str) -> WorkflowStatus:
        """How the work ended."""
        future = self._waited[id] = asyncio.get_running_loop().create_future()
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(client, roster))
        try:
            return await future
        finally:
            del self._waited[id]

    async def _poll(self, client: DBOSClient, roster: Roster) -> None:
        """Look for all that is waited for at once, as long as anything is."""
        while self._waited:
            ids = list(self._waited)
            try:
                found = await self._called(client.list_workflows, workflow_ids=ids, load_input=False)
                gone = set(ids) - {status.workflow_id for status in found}
                if gone:
                    raise StoreError(self._database.shown, f"the work {', '.join(sorted(gone))} is not there any more")
                await self._relay(roster, found)
            except StoreError as error:
                for future in self._waited.values():
                    if not future.done():
                        future.set_exception(error)
                return
            for status in found:
                future = self._waited.get(status.workflow_id)
                if future is not None and not future.done() and status.status not in WAITING:
                    future.set_result(status)
            await asyncio.sleep(POLL)

    async def _relay(self, roster: Roster, found: Sequence[WorkflowStatus]) -> None:
        """Tell what workers elsewhere have written, once in a while and when one is done."""
        now = time.monotonic()
        if not self._relays or (now < self._relayed + LOOK and all(status.status in WAITING for status in found)):
            return
        self._relayed = now
        await asyncio.to_thread(self._session.refresh)
        for status in found:
            relay, worker = self._relays.get(status.workflow_id), status.executor_id
            if relay is None or worker is None:
                continue
            if worker not in self._homes:
                self._homes |= {one.id: one.home for one in await self._called(roster.alive)}
            await asyncio.to_thread(relay.look, tell=self._homes.get(worker, self._home) != self._home)


def is_with_workers(swarm: str, database: str | None = None) -> bool:
    """Whether work of a swarm, by its id, was sent to workers and is not over. Raises `StoreError`."""
    where = Database(database)
    if where.file is not None and not os.path.exists(where.file):
        return False
    client = where.client()
    try:
        return bool(client.list_workflows(workflow_id_prefix=f"{swarm}/", status=sorted(WAITING), limit=1))
    except ProgrammingError:  # no tables for work, or none that this role may read
        return False
    except SQLAlchemyError as error:
        if "no such table" in str(error):  # as SQLite says it
            return False
        raise StoreError(where.shown, said(error)) from error
    finally:
        client.destroy()


def _where(session: Session) -> str:
    """How workers name the session. In the database that all of them use, each has an address of its own for it."""
    if session.file is not None:
        return os.path.abspath(session.file)
    if not is_address(session.where):
        raise InvalidOperation("no worker can open a session that is in memory: it has to be a file or in a database")
    usual = default()
    return session.id if usual is not None and parse(session.where).shown == usual.shown else session.where
