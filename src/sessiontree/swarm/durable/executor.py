"""The durable executor: sends the jobs of a swarm's agents to workers and waits for them.

It runs in the process that runs the swarm's strategy. If that process dies, workers finish their jobs; the next process
finds the running jobs and waits for them. The executor also relays events of workers that do not share its home folder.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from dbos import DBOSClient, WorkflowStatus, WorkflowStatusString
from dbos import error as dbos_error
from msgspec.structs import replace
from sqlalchemy.exc import ProgrammingError, SQLAlchemyError

from sessiontree.core.entries import AgentAction, Entry, JsonObject, Message, iter_entries
from sessiontree.core.messages import coerce_string, extract_text, get_role, get_tool_calls, sum_usage
from sessiontree.errors import StoreError
from sessiontree.library import catalog
from sessiontree.session import Session
from sessiontree.swarm.agent_runner import MAX_TOOL_TEXT, RunJob, SwarmJob
from sessiontree.swarm.durable.database import (
    APPLICATION,
    QUEUE,
    VERSION,
    WORKFLOW,
    JobRequest,
    WorkDatabase,
    build_id_prefix,
    decode_report,
    describe_error,
    encode,
)
from sessiontree.swarm.durable.worker_roster import Roster, WorkerInfo, build_home_id
from sessiontree.swarm.events import (
    AgentComplete,
    AgentFail,
    AgentStart,
    BaseSwarmEvent,
    ErrorEvent,
    EventLog,
    SwarmTextDelta,
    SwarmToolCallEnd,
    SwarmToolCallStart,
    SwarmTurnEnd,
    SwarmTurnStart,
    build_spool_path,
)
from sessiontree.swarm.journal import SwarmJournal
from sessiontree.swarm.records import CompleteAction, FailAction, read_action
from sessiontree.swarm.replay import TrackedAgent

POLL_INTERVAL = 0.2
"""Seconds between two checks of running jobs."""
RELAY_INTERVAL = 1.0
"""Seconds between two reads of the session for events of other machines."""

ACTIVE_STATES = frozenset(
    {WorkflowStatusString.ENQUEUED.value, WorkflowStatusString.PENDING.value, WorkflowStatusString.DELAYED.value}
)
"""States of unfinished jobs."""

T = TypeVar("T")


class EventRelay:
    """Writes the events of an agent on another machine to the local event log.

    A worker with the same home folder writes its events to the log itself. For other workers, events are derived from
    the entries they write: they arrive about a second later, and as whole messages instead of deltas.
    """

    def __init__(self, session: Session, job: SwarmJob) -> None:
        self._job = job
        self._session = session
        self._journal = SwarmJournal(session, job.swarm)
        self._log = EventLog(build_spool_path(job.swarm))
        self._read_count = len(session.tree.items)
        self._turns = self._agent.turns
        self._started = self._agent.started

    @property
    def _agent(self) -> TrackedAgent:
        return self._journal.state.agents[self._job.agent]

    def relay_new(self, *, emit: bool) -> None:
        """Read new entries, and write events for them if `emit` is true. Raises `StoreError`."""
        items = self._session.tree.items[self._read_count :]
        self._read_count += len(items)
        is_streaming, branch = self._journal.state.created.streaming, self._agent.branch
        for entry in iter_entries(items):
            if entry.branch == branch:
                for event in self._build_events(entry):
                    if emit and is_streaming:
                        self._log.append(replace(event, swarm=self._job.swarm, agent=self._job.agent, branch=branch))

    def _build_events(self, entry: Entry) -> Iterator[BaseSwarmEvent]:
        body = entry.body
        if isinstance(body, Message):
            if not self._started:
                self._started = True
                spawn = self._agent.spawn
                yield AgentStart(task=spawn.task, role=spawn.role, model=self._job.model)
            if get_role(body.message) == "assistant":
                yield from self._build_turn_events(entry, body.message)
            elif get_role(body.message) == "toolResult":
                message, text = body.message, extract_text(body.message.get("content"))[:MAX_TOOL_TEXT]
                call, tool = (
                    coerce_string(message.get("toolCallId")) or "",
                    coerce_string(message.get("toolName")) or "",
                )
                yield SwarmToolCallEnd(call=call, tool=tool, ok=message.get("isError") is not True, text=text)
        elif isinstance(body, AgentAction):
            yield from self._build_action_events(body)

    def _build_turn_events(self, entry: Entry, message: JsonObject) -> Iterator[BaseSwarmEvent]:
        self._turns += 1
        sums = sum_usage(message.get("usage"))
        yield SwarmTurnStart(number=self._turns)
        if text := extract_text(message.get("content")):
            yield SwarmTextDelta(delta=text)
        for call in get_tool_calls(message):
            yield SwarmToolCallStart(call=call.id, tool=call.name, arguments=call.arguments)
        cost, tokens = (0.0, 0) if sums is None else (sums.cost, sums.tokens)
        yield SwarmTurnEnd(number=self._turns, entry=entry.id, cost=cost, tokens=tokens)

    def _build_action_events(self, body: AgentAction) -> Iterator[BaseSwarmEvent]:
        match read_action(body):
            case CompleteAction():
                cost, tokens, seconds = self._agent.compute_spending(None)
                yield AgentComplete(text=self._agent.text, cost=cost, tokens=tokens, seconds=seconds)
            case FailAction(error=error, attempt=attempt, retry=None):
                yield AgentFail(error=error, attempts=attempt)
            case FailAction(error=error):
                yield ErrorEvent(message=error)
            case _:
                pass

    def close(self) -> None:
        self._log.close()


class DurableExecutor:
    """Runs jobs in worker processes, on this machine or others."""

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
        """The session must be in a file or a database.

        `database` is the argument of `WorkDatabase`. `concurrency` limits the agents that run at the same time.
        `tools` lists the tools that agents may use. Workers get `tools`, `system` and `thinking` with each job.
        """
        self._location = catalog.build_worker_location(session)
        self._tools = None if tools is None else tuple(tools)
        self._system, self._thinking = system, thinking
        self._slots = nullcontext() if concurrency is None else asyncio.Semaphore(concurrency)
        self._database = WorkDatabase(database)
        self._connect_lock = asyncio.Lock()
        self._client: DBOSClient | None = None
        self._roster: Roster | None = None
        self._waiters: dict[str, asyncio.Future[WorkflowStatus]] = {}
        self._session = session
        self._relays: dict[str, EventRelay] = {}
        self._home = build_home_id()
        self._worker_homes: dict[str, str] = {}
        """Home folder ids by worker id."""
        self._last_relay = 0.0
        self._poll_task: asyncio.Task[None] | None = None
        self._handed_over: set[str] = set()
        """Swarms that another process runs now."""

    async def run(self, job: SwarmJob, run_locally: RunJob) -> None:
        self._handed_over.discard(job.swarm)
        async with self._slots:
            client, roster = await self._connect()
            # Before the job is sent: the relay would miss what a fast worker writes before it reads the session.
            relay = await asyncio.to_thread(EventRelay, self._session, job) if self._session.file is None else None
            try:
                id = await self._find_active(client, job) or await self._submit(client, roster, job)
                status = await self._wait_for_job(client, roster, job, id, relay)
            finally:
                if relay is not None:
                    relay.close()
            await self._call(client.delete_workflow, id)
        if status.status == WorkflowStatusString.SUCCESS.value:
            report = decode_report(str(status.output))
            if report.error is not None:
                raise StoreError(self._location, f"a worker could not run agent {job.agent}: {report.error}")
        elif status.status != WorkflowStatusString.CANCELLED.value:
            raise StoreError(self._location, f"agent {job.agent} was abandoned after repeated worker crashes")

    async def _wait_for_job(
        self, client: DBOSClient, roster: Roster, job: SwarmJob, id: str, relay: EventRelay | None
    ) -> WorkflowStatus:
        """Wait until a job is over. If this process is cancelled, cancel the job, unless another process runs it."""
        if relay is not None:
            self._relays[id] = relay
        try:
            return await self._wait_for_end(client, roster, id)
        except asyncio.CancelledError:
            if job.swarm not in self._handed_over:
                await self._cancel(client, roster, id)
            raise
        finally:
            self._relays.pop(id, None)

    def hand_over(self, swarm: str) -> None:
        self._handed_over.add(swarm)

    async def list_workers(self) -> list[WorkerInfo]:
        """Return the live workers. Raises `StoreError`."""
        _, roster = await self._connect()
        return await self._call(roster.list_alive)

    async def close(self) -> None:
        """Close the database connections. Jobs that were sent stay in the database."""
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.wait([self._poll_task])
        if self._client is not None:
            await asyncio.to_thread(self._client.destroy)
        if self._roster is not None:
            self._roster.close()

    async def _connect(self) -> tuple[DBOSClient, Roster]:
        async with self._connect_lock:
            if self._client is None or self._roster is None:
                roster = Roster(self._database)
                await asyncio.to_thread(self._database.migrate)
                await asyncio.to_thread(roster.create_table)
                self._client, self._roster = await asyncio.to_thread(self._database.create_client), roster
            return self._client, self._roster

    async def _call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        try:
            return await asyncio.to_thread(function, *args, **options)
        except (SQLAlchemyError, dbos_error.DBOSException) as error:
            raise StoreError(self._database.display_name, describe_error(error)) from error

    # Sending

    async def _find_active(self, client: DBOSClient, job: SwarmJob) -> str | None:
        """Return the id of an unfinished request that another process sent for this agent, or `None`."""
        prefix = build_id_prefix(job)
        found = await self._call(
            client.list_workflows,
            workflow_id_prefix=prefix,
            status=sorted(ACTIVE_STATES),
            load_input=False,
            load_output=False,
            application_name=APPLICATION,
        )
        return next((status.workflow_id for status in found if status.workflow_id.startswith(prefix)), None)

    async def _submit(self, client: DBOSClient, roster: Roster, job: SwarmJob) -> str:
        prefix = build_id_prefix(job)
        await self._wait_until_released(roster, lambda id: id.startswith(prefix))
        id = prefix + os.urandom(8).hex()
        request = JobRequest(
            work=job, where=self._location, tools=self._tools, system=self._system, thinking=self._thinking
        )
        await self._call(
            client.enqueue,
            {"workflow_name": WORKFLOW, "queue_name": QUEUE, "workflow_id": id, "app_version": VERSION},
            encode(request),
        )
        return id

    async def _cancel(self, client: DBOSClient, roster: Roster, id: str) -> None:
        """Cancel a job and wait until its worker has saved the agent's state."""
        await self._call(client.cancel_workflow, id)
        await self._wait_until_released(roster, lambda other: other == id)
        await self._call(client.delete_workflow, id)

    async def _wait_until_released(self, roster: Roster, is_match: Callable[[str], bool]) -> None:
        """Wait until no live worker runs a job whose id matches."""
        while any(is_match(id) for worker in await self._call(roster.list_alive) for id in worker.work):
            await asyncio.sleep(POLL_INTERVAL)

    # Waiting

    async def _wait_for_end(self, client: DBOSClient, roster: Roster, id: str) -> WorkflowStatus:
        """Wait until a job is over and return its final status."""
        future = self._waiters[id] = asyncio.get_running_loop().create_future()
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.create_task(self._poll(client, roster))
        try:
            return await future
        finally:
            del self._waiters[id]

    async def _poll(self, client: DBOSClient, roster: Roster) -> None:
        """Poll all running jobs in one query until none is left."""
        while self._waiters:
            ids = list(self._waiters)
            try:
                found = await self._call(client.list_workflows, workflow_ids=ids, load_input=False)
                missing = set(ids) - {status.workflow_id for status in found}
                if missing:
                    label = "job" if len(missing) == 1 else "jobs"
                    raise StoreError(self._database.display_name, f"{label} {', '.join(sorted(missing))} not found")
                await self._relay_events(roster, found)
            except StoreError as error:
                for future in self._waiters.values():
                    if not future.done():
                        future.set_exception(error)
                return
            for status in found:
                future = self._waiters.get(status.workflow_id)
                if future is not None and not future.done() and status.status not in ACTIVE_STATES:
                    future.set_result(status)
            await asyncio.sleep(POLL_INTERVAL)

    async def _relay_events(self, roster: Roster, found: Sequence[WorkflowStatus]) -> None:
        """Relay events of workers on other machines, at intervals and when a job is over."""
        now = time.monotonic()
        if not self._relays or (
            now < self._last_relay + RELAY_INTERVAL and all(status.status in ACTIVE_STATES for status in found)
        ):
            return
        self._last_relay = now
        await asyncio.to_thread(self._session.refresh)
        for status in found:
            relay, worker = self._relays.get(status.workflow_id), status.executor_id
            if relay is None or worker is None:
                continue
            if worker not in self._worker_homes:
                self._worker_homes |= {one.id: one.home for one in await self._call(roster.list_alive)}
            await asyncio.to_thread(relay.relay_new, emit=self._worker_homes.get(worker, self._home) != self._home)


def has_active_jobs(swarm: str, database: str | None = None) -> bool:
    """Whether workers have unfinished jobs of the swarm with this id. Raises `StoreError`."""
    jobs = WorkDatabase(database)
    if jobs.file is not None and not os.path.exists(jobs.file):
        return False
    client = jobs.create_client()
    try:
        return bool(client.list_workflows(workflow_id_prefix=f"{swarm}/", status=sorted(ACTIVE_STATES), limit=1))
    except ProgrammingError:  # the job tables do not exist, or this role may not read them
        return False
    except SQLAlchemyError as error:
        if "no such table" in str(error):  # SQLite's message for missing tables
            return False
        raise StoreError(jobs.display_name, describe_error(error)) from error
    finally:
        client.destroy()
