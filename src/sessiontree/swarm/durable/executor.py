"""The durable executor: sends the jobs of a swarm's agents to workers and waits for them.

It runs in the process that runs the swarm's strategy. If that process dies, workers finish their jobs; the next process
finds the running jobs and waits for them. The executor also relays events of workers that do not share its home folder.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from msgspec.structs import replace

from sessiontree.core.entries import AgentAction, Entry, JsonObject, Message, iter_entries
from sessiontree.core.messages import coerce_string, extract_text, get_role, get_tool_calls, sum_usage
from sessiontree.errors import StoreError
from sessiontree.library import catalog
from sessiontree.session import Session
from sessiontree.swarm.agent_runner import MAX_TOOL_TEXT, RunJob, SwarmJob
from sessiontree.swarm.durable.database import JobRequest, WorkDatabase, build_id_prefix, decode_report
from sessiontree.swarm.durable.job_queue import (
    ACTIVE_STATES,
    CANCELLED,
    DONE,
    JobQueue,
    JobStatus,
    WorkerInfo,
    build_home_id,
)
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

RELAY_INTERVAL = 1.0
"""Seconds between two reads of the session for events of other machines."""


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
        self._queue: JobQueue | None = None
        self._waiters: dict[str, asyncio.Future[JobStatus]] = {}
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
            queue = await self._connect()
            # Before the job is sent: the relay would miss what a fast worker writes before it reads the session.
            relay = await asyncio.to_thread(EventRelay, self._session, job) if self._session.file is None else None
            try:
                id = await asyncio.to_thread(queue.find_active, build_id_prefix(job)) or await self._submit(queue, job)
                status = await self._wait_for_job(queue, job, id, relay)
            finally:
                if relay is not None:
                    relay.close()
            await asyncio.to_thread(queue.delete, id)
        if status.state == DONE:
            report = decode_report(status.report or "{}")
            if report.error is not None:
                raise StoreError(self._location, f"a worker could not run agent {job.agent}: {report.error}")
        elif status.state != CANCELLED:
            raise StoreError(self._location, f"agent {job.agent} was abandoned after repeated worker crashes")

    async def _wait_for_job(self, queue: JobQueue, job: SwarmJob, id: str, relay: EventRelay | None) -> JobStatus:
        """Wait until a job is over. If this process is cancelled, cancel the job, unless another process runs it."""
        if relay is not None:
            self._relays[id] = relay
        try:
            return await self._wait_for_end(queue, id)
        except asyncio.CancelledError:
            if job.swarm not in self._handed_over:
                await self._cancel(queue, id)
            raise
        finally:
            self._relays.pop(id, None)

    def hand_over(self, swarm: str) -> None:
        self._handed_over.add(swarm)

    async def list_workers(self) -> list[WorkerInfo]:
        """Return the live workers. Raises `StoreError`."""
        queue = await self._connect()
        return await asyncio.to_thread(queue.list_workers)

    async def close(self) -> None:
        """Close the database connections. Jobs that were sent stay in the database."""
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.wait([self._poll_task])
        self._database.close()

    async def _connect(self) -> JobQueue:
        async with self._connect_lock:
            if self._queue is None:
                await asyncio.to_thread(self._database.migrate)
                self._queue = JobQueue(self._database)
            return self._queue

    # Sending

    async def _submit(self, queue: JobQueue, job: SwarmJob) -> str:
        prefix = build_id_prefix(job)
        await self._wait_until_released(queue, prefix)
        id = prefix + os.urandom(8).hex()
        request = JobRequest(
            work=job, where=self._location, tools=self._tools, system=self._system, thinking=self._thinking
        )
        await asyncio.to_thread(queue.submit, id, request)
        return id

    async def _cancel(self, queue: JobQueue, id: str) -> None:
        """Cancel a job and wait until its worker has saved the agent's state."""
        await asyncio.to_thread(queue.cancel, id)
        await self._wait_until_released(queue, id)
        await asyncio.to_thread(queue.delete, id)

    async def _wait_until_released(self, queue: JobQueue, prefix: str) -> None:
        """Wait until no live worker runs a job whose id has this prefix."""
        while await asyncio.to_thread(queue.is_held, prefix):
            await asyncio.sleep(self._database.poll_interval)

    # Waiting

    async def _wait_for_end(self, queue: JobQueue, id: str) -> JobStatus:
        """Wait until a job is over and return its final status."""
        future = self._waiters[id] = asyncio.get_running_loop().create_future()
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.create_task(self._poll(queue))
        try:
            return await future
        finally:
            del self._waiters[id]

    async def _poll(self, queue: JobQueue) -> None:
        """Poll all running jobs in one query until none is left."""
        while self._waiters:
            ids = list(self._waiters)
            try:
                found = await asyncio.to_thread(queue.get_statuses, ids)
                missing = set(ids) - {status.id for status in found}
                if missing:
                    label = "job" if len(missing) == 1 else "jobs"
                    raise StoreError(self._database.display_name, f"{label} {', '.join(sorted(missing))} not found")
                await self._relay_events(queue, found)
            except StoreError as error:
                for future in self._waiters.values():
                    if not future.done():
                        future.set_exception(error)
                return
            for status in found:
                future = self._waiters.get(status.id)
                if future is not None and not future.done() and status.state not in ACTIVE_STATES:
                    future.set_result(status)
            await asyncio.sleep(self._database.poll_interval)

    async def _relay_events(self, queue: JobQueue, found: Sequence[JobStatus]) -> None:
        """Relay events of workers on other machines, at intervals and when a job is over."""
        now = time.monotonic()
        if not self._relays or (
            now < self._last_relay + RELAY_INTERVAL and all(status.state in ACTIVE_STATES for status in found)
        ):
            return
        self._last_relay = now
        await asyncio.to_thread(self._session.refresh)
        for status in found:
            relay, worker = self._relays.get(status.id), status.runner
            if relay is None or worker is None:
                continue
            if worker not in self._worker_homes:
                workers = await asyncio.to_thread(queue.list_workers)
                self._worker_homes |= {one.id: one.home for one in workers}
            await asyncio.to_thread(relay.relay_new, emit=self._worker_homes.get(worker, self._home) != self._home)


def has_active_jobs(swarm: str, database: str | None = None) -> bool:
    """Whether workers have unfinished jobs of the swarm with this id. Raises `StoreError`."""
    jobs = WorkDatabase(database)
    try:
        return jobs.has_tables() and JobQueue(jobs).find_active(f"{swarm}/") is not None
    finally:
        jobs.close()
