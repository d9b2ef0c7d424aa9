"""The `Swarm` class: create, run, control and inspect several agents that work on one task, each on its own branch.

A `Swarm` is a handle. Its definition and progress are stored in the session, so another process can open the swarm and
continue where the last one stopped. `strategies` divides the task among agents, `agent_runner` runs one agent, and
`budget_enforcement` decides when an agent has to wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from msgspec.structs import replace

from sessiontree.agent.agent_input import describe_value, resolve_tools
from sessiontree.agent.factory import AgentOptions
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.system_prompt import SystemPart
from sessiontree.agent.tool import Tool
from sessiontree.branch_comparison import Comparison
from sessiontree.config import Config
from sessiontree.core.entries import EntryId
from sessiontree.core.place_names import check_branch_name
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError, StoreError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Notice
from sessiontree.model.base import Model
from sessiontree.session import Place, Session, compare
from sessiontree.swarm.agent_runner import (
    AgentResources,
    AgentRunner,
    Executor,
    LocalExecutor,
    SwarmJob,
    select_original_tools,
)
from sessiontree.swarm.budget import Budget, check_budget
from sessiontree.swarm.budget_enforcement import AdmissionControl, ChangeSignal
from sessiontree.swarm.events import BaseSwarmEvent, BranchEvent, ErrorEvent, EventLog, SwarmEvent, build_spool_path
from sessiontree.swarm.journal import SwarmJournal
from sessiontree.swarm.lease import open_lease
from sessiontree.swarm.records import (
    AgentSpec,
    CancelledRecord,
    CompletedRecord,
    CreatedRecord,
    DestroyedRecord,
    FailedRecord,
    ForkAction,
    ResumedRecord,
    ScaledRecord,
    SplitAction,
    StartedRecord,
    SwarmRecord,
    SwarmStatus,
    SwitchedBranchRecord,
)
from sessiontree.swarm.replay import SwarmTracker, TrackedSwarm
from sessiontree.swarm.scheduler import Scheduler
from sessiontree.swarm.strategies import STRATEGIES, Strategy, find_strategy

POLL_INTERVAL = 1.0
"""Seconds between two checks for requests from other processes, such as a pause."""
MIN_WAIT = 0.001
"""Shortest wait in seconds. The time left in a budget can be below the clock's resolution."""


def _read_clock() -> int:
    return time.time_ns() // 1_000_000


class Swarm:
    """A handle on one swarm of a session."""

    def __init__(
        self,
        session: Session,
        name: str,
        task: str,
        *,
        agents: int | Sequence[AgentSpec] = 2,
        max_agents: int | None = None,
        strategy: str | Strategy = "parallel",
        parts: Sequence[str] | None = None,
        model: Model | str | None = None,
        model_of: Callable[[str], Model] | None = None,
        tools: Sequence[Tool | Callable[..., Any]] | None = (),
        hooks: Hooks | None = None,
        settings: Config | None = None,
        system: str | Sequence[SystemPart] | None = None,
        thinking: str | None = None,
        permissions: Permissions | None = None,
        snapshots: bool = False,
        budget: Budget | None = None,
        agent_budget: Budget | None = None,
        at: Place = "HEAD",
        retries: int = 3,
        enable_branching: bool = True,
        enable_event_streaming: bool = True,
        executor: Executor | None = None,
        now: Callable[[], int] = _read_clock,
    ) -> None:
        """Define a swarm. Nothing is written to the session until `create` or `start`.

        `agents` is the number of agents, or one `AgentSpec` for each. `max_agents` limits `scale`. `model` is a model
        or a model name; `model_of` finds other models by name. Pass `tools=None` if the executor chooses the tools.
        `at` is the place where agents start. Without `permissions`, agents may use all of their tools. With
        `snapshots`, agents that may change files work in private folders, and their files are saved.
        """
        _check_types(session, name, task, agents)
        found_tools = None if tools is None else resolve_tools(tools)
        specs = () if isinstance(agents, int) else tuple(agents)
        count = agents if isinstance(agents, int) else len(specs)
        _check_agent_count(count, max_agents)
        if not task.strip():
            raise InvalidOperation("the task is empty")
        if not all(part.strip() for part in parts or ()):
            raise InvalidOperation("a part of the task is empty")
        if retries < 0:
            raise InvalidOperation(f"retries must be 0 or more, not {retries}")
        for limits in (budget, agent_budget, *(spec.budget for spec in specs)):
            check_budget(limits)
        check_branch_name(name)
        _check_agent_names(name, [spec.name for spec in specs if spec.name])
        self._strategy: Strategy | None = find_strategy(strategy) if isinstance(strategy, str) else strategy
        self._start_place = at
        model_name = model if isinstance(model, str) or model is None else model.info.name
        self._definition = CreatedRecord(
            swarm=session.generate_id(),
            session=session.id,
            name=name,
            task=task,
            strategy=strategy if isinstance(strategy, str) else getattr(strategy, "__name__", type(strategy).__name__),
            agents=count,
            max_agents=max_agents,
            specs=specs,
            parts=None if parts is None else tuple(parts),
            model=model_name,
            tools=None if found_tools is None else tuple(found_tools),
            system=system if isinstance(system, str) or system is None else tuple(system),
            thinking=thinking,
            budget=budget,
            agent_budget=agent_budget,
            retries=retries,
            branching=enable_branching,
            streaming=enable_event_streaming,
        )
        options = AgentOptions(
            tools=tuple((found_tools or {}).values()),
            system=system,
            settings=settings or Config(),
            thinking=thinking,
            permissions=permissions,
            snapshots=snapshots,
        )
        resources = AgentResources.create(model, model_of, settings, hooks, options)
        self._tool_names = self._definition.tools
        self._set_up(session, self._definition.swarm, resources, executor, now)

    def _set_up(
        self,
        session: Session,
        id: str,
        resources: AgentResources,
        executor: Executor | None,
        now: Callable[[], int],
    ) -> None:
        self.session = session
        self.id = id
        self._resources = resources
        self._executor: Executor = LocalExecutor() if executor is None else executor
        self._now = now
        self._journal = SwarmJournal(session, id)
        self._changes = ChangeSignal()
        self._admission = AdmissionControl(self._journal, self._changes, self._emit, now)
        self._runner = AgentRunner(self._journal, self._admission, resources, self._emit)
        self._scheduler: Scheduler | None = None
        self._task: asyncio.Task[None] | None = None
        self._lease = open_lease(session, id)
        self._event_log: EventLog | None = None

    @classmethod
    async def create(cls, session: Session, name: str, task: str, **options: Any) -> Swarm:
        """Create a swarm and write it to the session. Takes the same arguments as `Swarm`."""
        swarm = cls(session, name, task, **options)
        await swarm._ensure_created()
        return swarm

    @classmethod
    def open(
        cls,
        session: Session,
        id: str,
        *,
        strategy: Strategy | None = None,
        model: Model | str | None = None,
        model_of: Callable[[str], Model] | None = None,
        tools: Sequence[Tool] = (),
        hooks: Hooks | None = None,
        settings: Config | None = None,
        system: str | Sequence[SystemPart] | None = None,
        thinking: str | None = None,
        permissions: Permissions | None = None,
        snapshots: bool = False,
        override_saved: bool = False,
        executor: Executor | None = None,
        now: Callable[[], int] = _read_clock,
    ) -> Swarm:
        """Open a swarm of the session by its id or name. `start` then resumes it; finished work is not repeated.

        Pass models, tools, hooks, `snapshots` and a custom strategy again: they are not stored. Agents use the same
        tools as before, out of `tools`. The stored system prompt and thinking level apply unless you pass others. With
        `override_saved`, agents use exactly what you pass, whatever is stored.
        """
        swarms = SwarmTracker(session, id).read().swarms  # reads the whole session if it has no swarm with this id
        named = [key for key, state in swarms.items() if state.created.name == id]
        if id not in swarms and not named:
            raise NotFound("swarm", id, f"swarms: {', '.join(swarms) or 'none'}")
        created = swarms[id if id in swarms else named[0]].created
        swarm = cls.__new__(cls)
        swarm._definition, swarm._start_place = created, None
        swarm._strategy = strategy or STRATEGIES.get(created.strategy)
        options = AgentOptions(
            tools=tools,
            system=created.system if system is None and not override_saved else system,
            settings=settings or Config(),
            thinking=created.thinking if thinking is None and not override_saved else thinking,
            permissions=permissions,
            snapshots=snapshots,
        )
        resources = AgentResources.create(model, model_of, settings, hooks, options)
        swarm._tool_names = None if override_saved else created.tools
        swarm._set_up(session, created.swarm, resources, executor, now)
        return swarm

    # State

    @property
    def name(self) -> str:
        """The name, with a number appended if another swarm of the session had it first."""
        return self._definition.name

    @property
    def _state(self) -> TrackedSwarm:
        return self._journal.state

    @property
    def is_running(self) -> bool:
        """Whether this process runs the swarm."""
        return self._task is not None and not self._task.done()

    @property
    def is_held(self) -> bool:
        """Whether any process runs the swarm."""
        return self.is_running or self._lease.is_held

    def status(self) -> SwarmStatus:
        """Return the current status, read from the session."""
        if not self._journal.exists:
            raise InvalidOperation(f"swarm {self._definition.name} is not in the session yet; create it first")
        if not self.is_running:
            self.session.refresh()  # another process may be running it
        state = self._state
        live = self.is_running and state.status == "running"
        return state.build_status(self._now() if live else None, self.session.id)

    @property
    def is_streaming(self) -> bool:
        """Whether event streaming is enabled."""
        return self._definition.streaming

    @property
    def events(self) -> EventLog:
        """The event log. Raises `InvalidOperation` if event streaming is disabled."""
        if not self._definition.streaming:
            raise InvalidOperation(f"swarm {self.name} does not have event streaming enabled")
        if self._event_log is None:
            self._event_log = EventLog(None if self.session.address is None else build_spool_path(self.id))
        return self._event_log

    def _emit(self, event: BaseSwarmEvent, agent: str | None = None, branch: str | None = None) -> None:
        if not self._definition.streaming:
            return
        try:
            self.events.append(replace(event, swarm=self.id, agent=agent, branch=branch))
        except StoreError as error:  # agents keep working: their results are in the session
            self._resources.hooks.notify_listeners(Notice(level="error", text=f"swarm events were lost: {error}"))

    # Running

    async def _ensure_created(self) -> None:
        if self._journal.exists:
            return
        session = self.session
        start = session.resolve_place(self._start_place)
        branch = await self._journal.run_in_thread(self._journal.create_own_branch, self._definition.name, start)
        self._definition = replace(self._definition, name=branch)
        await self._journal.append_record(self._definition)
        self._emit(BranchEvent(name=branch, entry=session.branch(branch).leaf), None, branch)
        self._emit(SwarmEvent(status="created"))

    async def start(self) -> None:
        """Start the agents. A swarm that was interrupted resumes where it stopped."""
        await self._ensure_created()
        if self.is_running:
            raise InvalidOperation(f"swarm {self.name} is already running")
        state = await self._journal.refresh()
        if state.is_over:
            raise InvalidOperation(f"swarm {self.name} is {state.status}; create a new swarm to try again")
        if self._strategy is None:
            raise InvalidOperation(
                f"swarm {self.name} uses the custom strategy {state.created.strategy!r}; pass it as `strategy`"
            )
        self._select_tools()
        if not await self._lease.acquire_async():
            raise InvalidOperation(f"another process is running swarm {self.name}")
        try:
            await self._append_and_emit(StartedRecord(swarm=self.id), SwarmEvent(status="running"))
        except BaseException:
            self._lease.release()
            raise
        self._scheduler = Scheduler(
            self._journal,
            self._admission,
            self._changes,
            self._executor,
            self._runner.run_job,
            self._emit,
            self._resources.hooks,
        )
        self._task = asyncio.create_task(self._run_and_monitor(self._strategy, self._scheduler))
        self._task.add_done_callback(self._on_task_done)

    def _select_tools(self) -> None:
        """Limit the agents to the tools they had before. Raises `InvalidOperation` if one is missing."""
        options = self._resources.options
        tools = select_original_tools(f"swarm {self.name}", self._tool_names, options.tools)
        self._resources.options = replace(options, tools=tools)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._lease.release()
        self._changes.notify()

    async def wait(self) -> SwarmStatus:
        """Wait until the swarm ends, or until it is paused and no call is in progress."""
        task, scheduler = self._task, self._scheduler
        while task is not None and scheduler is not None and not task.done():
            if self._state.status == "paused" and scheduler.is_stuck:
                break
            await self._changes.wait()
        if task is not None and task.done() and not task.cancelled():
            task.result()
        return self.status()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the agents of this process. Another process, or a later `start`, can resume the swarm."""
        await self.detach()

    async def run(self) -> SwarmStatus:
        """Start the swarm and wait. Cancelling this coroutine stops the agents; you can start the swarm again."""
        await self.start()
        try:
            return await self.wait()
        except asyncio.CancelledError:
            await self.detach()
            raise

    async def detach(self) -> None:
        """Stop running the swarm in this process after agents have saved their state. `start` resumes it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def executor(self) -> Executor:
        """What runs the agents."""
        return self._executor

    async def run_job(self, job: SwarmJob) -> None:
        """Run one agent's job in this process. Executors call this in the processes they run agents in.

        The agent uses the tools of this handle, not the ones the swarm was created with.
        """
        unregister = self._runner.register_handlers()
        try:
            await self._runner.run_job(job)
        finally:
            unregister()

    async def _run_and_monitor(self, strategy: Strategy, scheduler: Scheduler) -> None:
        unregister = self._runner.register_handlers()
        monitor = asyncio.create_task(self._monitor(scheduler))
        monitor.add_done_callback(lambda _: self._changes.notify())
        work = asyncio.ensure_future(self._run_strategy(strategy, scheduler))
        try:
            await asyncio.wait([monitor, work], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                monitor.result()  # the monitor returns if another process ended the swarm or took it over
                if self._lease.is_lost:
                    self._runner.hand_over()
                    self._executor.hand_over(self.id)
        finally:
            for task in (monitor, work):
                task.cancel()
            await asyncio.gather(monitor, work, return_exceptions=True)
            unregister()

    async def _run_strategy(self, strategy: Strategy, scheduler: Scheduler) -> None:
        try:
            result = await strategy(scheduler)
            await scheduler.join()
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a custom strategy may raise anything
            reason = str(error) if isinstance(error, SessionTreeError) else f"{type(error).__name__}: {error}"
            self._emit(ErrorEvent(message=reason))
            await self._append_and_emit(
                FailedRecord(swarm=self.id, reason=reason), SwarmEvent(status="failed", reason=reason)
            )
        else:
            failed = [agent.id for agent in self._state.agents.values() if agent.end_state == "failed"]
            reason = f"{', '.join(failed)} failed" if failed else None
            record = CompletedRecord(swarm=self.id, result=result, reason=reason)
            await self._append_and_emit(record, SwarmEvent(status="completed", reason=reason))

    async def _monitor(self, scheduler: Scheduler) -> None:
        """Enforce time limits and apply requests from other processes until the swarm ends or is taken over."""
        while True:
            left = self._admission.compute_time_left()
            await asyncio.sleep(POLL_INTERVAL if left is None else min(max(left, MIN_WAIT), POLL_INTERVAL))
            before = self._state.status, self._state.wanted
            await self._admission.record_levels()
            state = await self._admission.pause_if_exhausted()
            if (state.status, state.wanted) != before:
                scheduler.apply_scale()
            if state.is_over or self._lease.is_lost:
                return

    async def _append_and_emit(self, record: SwarmRecord, event: BaseSwarmEvent) -> None:
        await self._journal.append_record(record)
        self._emit(event)
        self._changes.notify()

    # Control

    async def pause(self, reason: str | None = None) -> None:
        """Start no more calls; calls in progress finish. Use `wait` to wait for them."""
        self._check_status(await self._journal.refresh(), "running")
        await self._admission.pause(reason)

    async def resume(self, *, budget: Budget | None = None, agent_budget: Budget | None = None) -> None:
        """Resume after a pause, with new budgets if you pass them. If no process runs the swarm, this one does."""
        for limits in (budget, agent_budget):
            check_budget(limits)
        self._check_status(await self._journal.refresh(), "paused")
        record = ResumedRecord(swarm=self.id, budget=budget, agent_budget=agent_budget)
        await self._append_and_emit(record, SwarmEvent(status="running"))
        if not self.is_held:
            await self.start()

    async def scale(self, agents: int) -> None:
        """Change the number of agents.

        This is the total number of agents with `parallel`, the number of stages with `pipeline`, and otherwise the
        number of agents that run at the same time.
        """
        state = await self._journal.refresh()
        _check_agent_count(agents, state.created.max_agents)
        if state.is_over:
            raise InvalidOperation(f"swarm {self.name} is {state.status} and cannot be scaled")
        await self._journal.append_record(ScaledRecord(swarm=self.id, agents=agents))
        if self._scheduler is not None:
            self._scheduler.apply_scale()

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel the swarm. Agents are aborted; their work so far stays in the session."""
        state = await self._journal.refresh()
        if state.is_over:
            raise InvalidOperation(f"swarm {self.name} is already {state.status}")
        await self._append_and_emit(
            CancelledRecord(swarm=self.id, reason=reason), SwarmEvent(status="cancelled", reason=reason)
        )
        await self.detach()

    async def destroy(self) -> None:
        """Cancel the swarm, archive its branches and delete its events. Nothing is removed from the session."""
        state = await self._journal.refresh()
        if state.status == "destroyed":
            return
        if not state.is_over:
            await self.cancel()
        await self._append_and_emit(DestroyedRecord(swarm=self.id), SwarmEvent(status="destroyed"))
        await self._journal.run_in_thread(self._journal.archive_branches)
        if self._definition.streaming:
            self.events.delete()
        self._lease.delete()

    def _check_status(self, state: TrackedSwarm, status: str) -> None:
        if state.status != status:
            raise InvalidOperation(f"swarm {self.name} is {state.status}, not {status}")

    async def steer(self, agent: str, text: str) -> None:
        """Send a message to an agent in this process. The agent gets it after the tool calls of its current turn."""
        if agent not in self._state.agents:
            raise NotFound("agent", agent, f"agents: {', '.join(self._state.agents) or 'none'}")
        if self._state.agents[agent].end_state is not None:
            raise InvalidOperation(f"agent {agent} is {self._state.agents[agent].end_state} and takes no more messages")
        if not self.is_running:
            runner = "another process is" if self.is_held else "no process is"
            raise InvalidOperation(f"agent {agent} does not run in this process; {runner} running swarm {self.name}")
        await self._runner.steer(agent, text)

    # Branches

    def _check_branching(self) -> None:
        if not self._definition.branching:
            raise InvalidOperation(f"swarm {self.name} does not have branching enabled")

    async def _check_not_over(self) -> None:
        """Raise `InvalidOperation` if the swarm is over, so no agent would start on the branch."""
        state = await self._journal.refresh()
        if state.is_over:
            raise InvalidOperation(
                f"swarm {self.name} is {state.status}: no agent would start on the branch; "
                "create or switch branches of the session instead"
            )

    async def create_branch(self, name: str, description: str | None = None, *, at: Place = None) -> EntryId:
        """Create a branch for an agent, at `at` or where new agents start. Return the id of its first entry.

        With `parallel`, new agents use these branches first, in order. Running agents stay where they are.
        """
        self._check_branching()
        await self._ensure_created()
        await self._check_not_over()
        session, state = self.session, self._state
        own = state.branch == state.own_branch
        place = at if at is not None else session.tree[state.start_entry] if own else state.branch
        branch = await self._journal.run_in_thread(
            lambda: session.create_branch(name, at=place, description=description, current=False)
        )
        entry = branch.leaf
        assert entry is not None
        await self._journal.append_action(self.id, SplitAction(swarm=self.id, name=name))
        self._emit(BranchEvent(name=name, entry=entry), None, name)
        return entry

    async def switch_branch(self, name: str) -> None:
        """Make new agents start at the head of another branch. Running agents stay where they are."""
        self._check_branching()
        await self._ensure_created()
        await self._check_not_over()
        self.session.branch(name)
        await self._journal.append_record(SwitchedBranchRecord(swarm=self.id, branch=name))

    def compare_branches(self, names: Sequence[str], metric: str = "cost") -> Comparison:
        """Compare branches, or the branches of agents, from where they diverge, by cost or another metric."""
        self._check_branching()
        agents = self._state.agents
        return compare(self.session, [agents[name].branch if name in agents else name for name in names], metric)

    async def fork_session(self, at: Place = "HEAD", name: str | None = None) -> Session:
        """Fork the path to a place into a new session, and record the fork in this one."""
        from sessiontree.ops.fork import fork_session

        self._check_branching()
        await self._ensure_created()
        outcome = await fork_session(self.session, at, hooks=self._resources.hooks, name=name)
        if outcome.session is None:
            raise InvalidOperation(f"{outcome.cancelled_by or 'a handler'} cancelled the fork")
        action = ForkAction(swarm=self.id, session=outcome.session.id, at=outcome.session.forked_from)
        await self._journal.append_action(self.id, action)
        return outcome.session


def _check_types(session: object, name: object, task: object, agents: object) -> None:
    """Raise `InvalidOperation` for an argument of the wrong type."""
    if not isinstance(session, Session):
        hint = f"; open a session with st.open({session!r}) first" if isinstance(session, str) else ""
        raise InvalidOperation(f"a swarm works on a session, not on {describe_value(session)}{hint}")
    for what, value in (("name", name), ("task", task)):
        if not isinstance(value, str):
            raise InvalidOperation(f"the {what} of a swarm is text, not {describe_value(value)}")
    specs: Any = agents
    if isinstance(agents, bool | str) or not isinstance(agents, int | Sequence):
        raise InvalidOperation(f"agents is a number, or a list of st.AgentSpec, not {describe_value(agents)}")
    for spec in () if isinstance(agents, int) else specs:
        if not isinstance(spec, AgentSpec):
            raise InvalidOperation(
                f"agents is a number, or a list of st.AgentSpec, not a list with {describe_value(spec)}"
            )


def _check_agent_count(agents: int, maximum: int | None) -> None:
    if agents < 1:
        raise InvalidOperation(f"a swarm needs at least 1 agent, not {agents}")
    if maximum is not None and agents > maximum:
        raise InvalidOperation(f"at most {maximum} agents are allowed, not {agents}")


def _check_agent_names(swarm: str, agents: Sequence[str]) -> None:
    for name in agents:
        check_branch_name(f"{swarm}/{name}")
        if agents.count(name) > 1:
            raise InvalidOperation(f"two agents have the name {name!r}")
