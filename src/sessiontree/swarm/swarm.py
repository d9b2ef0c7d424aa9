"""Swarms: several agents at work on one task, each on a branch of its own, and everything that can be asked of them.

A `Swarm` is a handle. What it is and what was done stands in its session, so one that was opened in another process
goes on where the last one stopped. How agents share the task is in `strategies`, how one works in `worker`, when one
has to wait in `gate`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from sessiontree.agent.permissions import Permissions
from sessiontree.agent.system_prompt import SystemPart
from sessiontree.agent.tool import Tool
from sessiontree.comparison import Comparison
from sessiontree.config import Config
from sessiontree.core.entries import EntryId
from sessiontree.core.places import check_branch_name
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError, StoreError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Notice
from sessiontree.model.base import Model
from sessiontree.session import Place, Session, compare
from sessiontree.swarm.admission import AdmissionControl, ChangeSignal
from sessiontree.swarm.agent_runner import AgentResources, AgentRunner, select_original_tools
from sessiontree.swarm.budget import Budget
from sessiontree.swarm.events import BaseSwarmEvent, BranchEvent, ErrorEvent, EventLog, SwarmEvent, build_spool_path
from sessiontree.swarm.executor import Executor, LocalExecutor, SwarmJob
from sessiontree.swarm.journal import SwarmJournal, run_in_thread
from sessiontree.swarm.lease import open_lease
from sessiontree.swarm.records import (
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
    SwitchedBranchRecord,
)
from sessiontree.swarm.replay import SwarmTracker, TrackedSwarm
from sessiontree.swarm.scheduler import Scheduler
from sessiontree.swarm.status import AgentSpec, SwarmStatus
from sessiontree.swarm.strategies import STRATEGIES, Strategy, find_strategy

POLL_INTERVAL = 1.0
"""Seconds between two looks for what other processes have told the swarm to do."""
MIN_WAIT = 0.001
"""How long is waited at least: what is left of a budget may be less than a clock can tell. In seconds."""


def _read_clock() -> int:
    return time.time_ns() // 1_000_000


class Swarm:
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
        tools: Sequence[Tool] | None = (),
        hooks: Hooks | None = None,
        settings: Config | None = None,
        system: str | Sequence[SystemPart] | None = None,
        thinking: str | None = None,
        permissions: Permissions | None = None,
        budget: Budget | None = None,
        agent_budget: Budget | None = None,
        at: Place = "HEAD",
        retries: int = 3,
        enable_branching: bool = True,
        enable_event_streaming: bool = True,
        executor: Executor | None = None,
        now: Callable[[], int] = _read_clock,
    ) -> None:
        """A swarm that is not in the session yet: `create` and `start` write it there.

        `agents` is how many work, or what each of them is to be; `max_agents` how many `scale` may ask for. `model` is
        a model or the name of one; `model_of` finds others by name. `tools` is `None` where it is left to an executor.
        `at` is where agents begin. Without `permissions`, agents may use all of their tools.
        """
        specs = () if isinstance(agents, int) else tuple(agents)
        count = agents if isinstance(agents, int) else len(specs)
        _check_agent_count(count, max_agents)
        if not task.strip():
            raise InvalidOperation("there is no task")
        if not all(part.strip() for part in parts or ()):
            raise InvalidOperation("a part of the task says nothing")
        if retries < 0:
            raise InvalidOperation(f"retries are 0 or more, not {retries}")
        for limits in (budget, agent_budget, *(spec.budget for spec in specs)):
            if limits is not None:
                limits.check()
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
            tools=None if tools is None else tuple(tool.name for tool in tools),
            system=system if isinstance(system, str) or system is None else tuple(system),
            thinking=thinking,
            budget=budget,
            agent_budget=agent_budget,
            retries=retries,
            branching=enable_branching,
            streaming=enable_event_streaming,
        )
        outfit = AgentResources(
            find_model=_build_model_finder(model, model_of, settings),
            tools=tools or (),
            hooks=Hooks() if hooks is None else hooks,
            settings=settings,
            system=system,
            thinking=thinking,
            permissions=permissions,
        )
        self._tool_names = self._definition.tools
        self._set_up(session, self._definition.swarm, outfit, executor, now)

    def _set_up(
        self,
        session: Session,
        id: str,
        outfit: AgentResources,
        executor: Executor | None,
        now: Callable[[], int],
    ) -> None:
        self.session = session
        self.id = id
        self._resources = outfit
        self._executor: Executor = LocalExecutor() if executor is None else executor
        self._now = now
        self._journal = SwarmJournal(session, id)
        self._changes = ChangeSignal()
        self._admission = AdmissionControl(self._journal, self._changes, self._emit, now)
        self._runner = AgentRunner(self._journal, self._admission, outfit, self._emit)
        self._scheduler: Scheduler | None = None
        self._task: asyncio.Task[None] | None = None
        self._lease = open_lease(session, id)
        self._event_log: EventLog | None = None

    @classmethod
    async def create(cls, session: Session, name: str, task: str, **options: Any) -> Swarm:
        """A swarm, written into the session: takes what `Swarm` takes."""
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
        override_saved: bool = False,
        executor: Executor | None = None,
        now: Callable[[], int] = _read_clock,
    ) -> Swarm:
        """A swarm that is in the session, by its id or name. `start` then goes on with it, finished work aside.

        What belongs to the program is given again: models, tools, hooks, and a strategy of one's own. Of the tools,
        agents have those that they had before; the system prompt and the thinking level are as before where none is
        given. `anew` they have what is given, whatever they had.
        """
        accounts = SwarmTracker(session).read().swarms
        named = [key for key, account in accounts.items() if account.created.name == id]
        if id not in accounts and not named:
            raise NotFound("swarm", id, f"there are {', '.join(accounts)}" if accounts else "there are none")
        created = accounts[id if id in accounts else named[0]].created
        swarm = cls.__new__(cls)
        swarm._definition, swarm._start_place = created, None
        swarm._strategy = strategy or STRATEGIES.get(created.strategy)
        outfit = AgentResources(
            find_model=_build_model_finder(model, model_of, settings),
            tools=tools,
            hooks=Hooks() if hooks is None else hooks,
            settings=settings,
            system=created.system if system is None and not override_saved else system,
            thinking=created.thinking if thinking is None and not override_saved else thinking,
            permissions=permissions,
        )
        swarm._tool_names = None if override_saved else created.tools
        swarm._set_up(session, created.swarm, outfit, executor, now)
        return swarm

    # What it is

    @property
    def name(self) -> str:
        """Its name: with a number, if another swarm of the session had it first."""
        return self._definition.name

    @property
    def _state(self) -> TrackedSwarm:
        return self._journal.state

    @property
    def is_running(self) -> bool:
        """Whether this process works on it."""
        return self._task is not None and not self._task.done()

    @property
    def is_held(self) -> bool:
        """Whether any process works on it."""
        return self.is_running or self._lease.is_held

    def status(self) -> SwarmStatus:
        """How far it has come, as the session tells."""
        if not self._journal.exists:
            raise InvalidOperation(f"swarm {self._definition.name} is not in the session yet: create it first")
        if not self.is_running:
            self.session.refresh()  # another process may be at work
        account = self._state
        live = self.is_running and account.status == "running"
        return account.build_status(self._now() if live else None, self.session.id)

    @property
    def is_streaming(self) -> bool:
        """Whether it tells its events."""
        return self._definition.streaming

    @property
    def events(self) -> EventLog:
        """What happens, as it happens. Raises `InvalidOperation` when it is turned off."""
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
        except StoreError as error:  # the work goes on: what is done is in the session
            self._resources.hooks.notify_listeners(Notice(level="error", text=f"events are lost: {error}"))

    # Running

    async def _ensure_created(self) -> None:
        if self._journal.exists:
            return
        session = self.session
        start = session.resolve_place(self._start_place)
        branch = await run_in_thread(_create_own_branch, session, self._definition.name, start)
        self._definition = replace(self._definition, name=branch)
        await self._journal.append_record(self._definition)
        self._emit(BranchEvent(name=branch, entry=session.branch(branch).leaf), None, branch)
        self._emit(SwarmEvent(status="created"))

    async def start(self) -> None:
        """Have the agents work. A swarm that was stopped, by its process or a pause, goes on where it was."""
        await self._ensure_created()
        if self.is_running:
            raise InvalidOperation(f"swarm {self.name} is running already")
        account = await self._journal.refresh()
        if account.is_over:
            raise InvalidOperation(f"swarm {self.name} is {account.status}: make a new one to try again")
        if self._strategy is None:
            raise InvalidOperation(f"the strategy {account.created.strategy!r} of swarm {self.name} has to be given")
        self._select_tools()
        if not await self._lease.acquire_async():
            raise InvalidOperation(f"another process works on swarm {self.name}")
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
        """Have agents use the tools that they had before, and no others. Raises `InvalidOperation`."""
        self._resources.tools = select_original_tools(f"swarm {self.name}", self._tool_names, self._resources.tools)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._lease.release()
        self._changes.notify()

    async def wait(self) -> SwarmStatus:
        """Wait until it has come to its end, or is paused and the calls under way are over."""
        task, crew = self._task, self._scheduler
        while task is not None and crew is not None and not task.done():
            if self._state.status == "paused" and crew.is_stuck:
                break
            await self._changes.wait()
        if task is not None and task.done() and not task.cancelled():
            task.result()
        return self.status()

    async def run(self) -> SwarmStatus:
        """Start it and wait. Cancelling this stops the agents; the swarm can be started again."""
        await self.start()
        try:
            return await self.wait()
        except asyncio.CancelledError:
            await self.detach()
            raise

    async def detach(self) -> None:
        """Stop working on it here, once what agents have is written down. Nothing is decided: `start` goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def run_job(self, job: SwarmJob) -> None:
        """Carry out the work of one agent in this process: for executors that run agents in others.

        The agent has the tools that are given here, whatever the swarm was begun with.
        """
        off = self._runner.register_handlers()
        try:
            await self._runner.run_job(job)
        finally:
            off()

    async def _run_and_monitor(self, strategy: Strategy, scheduler: Scheduler) -> None:
        off = self._runner.register_handlers()
        watching = asyncio.create_task(self._monitor(scheduler))
        watching.add_done_callback(lambda _: self._changes.notify())
        working = asyncio.ensure_future(self._run_strategy(strategy, scheduler))
        try:
            await asyncio.wait([watching, working], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            else:
                watching.result()  # it ends when another process has ended the swarm, or works on it now
                if self._lease.is_lost:
                    self._runner.hand_over()
                    self._executor.hand_over(self.id)
        finally:
            for task in (watching, working):
                task.cancel()
            await asyncio.gather(watching, working, return_exceptions=True)
            off()

    async def _run_strategy(self, strategy: Strategy, scheduler: Scheduler) -> None:
        try:
            result = await strategy(scheduler)
            await scheduler.join()
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a strategy may raise anything, and it is to be told
            reason = str(error) if isinstance(error, SessionTreeError) else f"{type(error).__name__}: {error}"
            self._emit(ErrorEvent(message=reason))
            await self._append_and_emit(
                FailedRecord(swarm=self.id, reason=reason), SwarmEvent(status="failed", reason=reason)
            )
        else:
            failed = [agent.id for agent in self._state.agents.values() if agent.end_state == "failed"]
            reason = f"{', '.join(failed)} failed" if failed else None
            fact = CompletedRecord(swarm=self.id, result=result, reason=reason)
            await self._append_and_emit(fact, SwarmEvent(status="completed", reason=reason))

    async def _monitor(self, scheduler: Scheduler) -> None:
        """See to budgets of time, and to what other processes have told the swarm to do, until they end it."""
        while True:
            left = self._admission.compute_time_left()
            await asyncio.sleep(POLL_INTERVAL if left is None else min(max(left, MIN_WAIT), POLL_INTERVAL))
            before = self._state.status, self._state.wanted
            await self._admission.record_levels()
            account = await self._admission.pause_if_exhausted()
            if (account.status, account.wanted) != before:
                scheduler.apply_scale()
            if account.is_over or self._lease.is_lost:
                return

    async def _append_and_emit(self, fact: SwarmRecord, event: BaseSwarmEvent) -> None:
        await self._journal.append_record(fact)
        self._emit(event)
        self._changes.notify()

    # Steering

    async def pause(self, reason: str | None = None) -> None:
        """Let the calls under way come to their end, and begin no more. `wait` waits for that."""
        self._check_status(await self._journal.refresh(), "running")
        await self._admission.pause(reason)

    async def resume(self, *, budget: Budget | None = None, agent_budget: Budget | None = None) -> None:
        """Go on after a pause, with larger budgets if they are given. Where nobody works on it, this process does."""
        for limits in (budget, agent_budget):
            if limits is not None:
                limits.check()
        self._check_status(await self._journal.refresh(), "paused")
        fact = ResumedRecord(swarm=self.id, budget=budget, agent_budget=agent_budget)
        await self._append_and_emit(fact, SwarmEvent(status="running"))
        if not self.is_held:
            await self.start()

    async def scale(self, agents: int) -> None:
        """Have another number of agents work.

        With `parallel` there are so many then; with `pipeline` so many stages; otherwise so many work at the same time.
        """
        account = await self._journal.refresh()
        _check_agent_count(agents, account.created.max_agents)
        if account.is_over:
            raise InvalidOperation(f"swarm {self.name} is {account.status}: it cannot be scaled")
        await self._journal.append_record(ScaledRecord(swarm=self.id, agents=agents))
        if self._scheduler is not None:
            self._scheduler.apply_scale()

    async def cancel(self, reason: str | None = None) -> None:
        """Give it up: agents are aborted, and what they have stays."""
        account = await self._journal.refresh()
        if account.is_over:
            raise InvalidOperation(f"swarm {self.name} is {account.status} already")
        await self._append_and_emit(
            CancelledRecord(swarm=self.id, reason=reason), SwarmEvent(status="cancelled", reason=reason)
        )
        await self.detach()

    async def destroy(self) -> None:
        """Give it up, hide its branches, and delete its events. Nothing is removed from the session."""
        account = await self._journal.refresh()
        if account.status == "destroyed":
            return
        if not account.is_over:
            await self.cancel()
        await self._append_and_emit(DestroyedRecord(swarm=self.id), SwarmEvent(status="destroyed"))
        await run_in_thread(self._hide_branches)
        if self._definition.streaming:
            self.events.delete()
        self._lease.delete()

    def _hide_branches(self) -> None:
        session, account = self.session, self._state
        own = account.own_branch
        agents = {agent.branch for agent in account.agents.values()}
        there = set(session.heads.heads) - {session.heads.current} - session.heads.archived
        hidden = sorted((agents | set(account.branches)) & there)
        if hidden and own in session.heads.heads:
            head = session.heads.heads[own]
            session.move(None if head is None else session.tree[head], branch=own, archive=hidden)
        if own in there:
            session.archive_branch(own)

    def _check_status(self, account: TrackedSwarm, status: str) -> None:
        if account.status != status:
            raise InvalidOperation(f"swarm {self.name} is {account.status}, not {status}")

    async def steer(self, agent: str, text: str) -> None:
        """Say something to an agent at work here, which hears it as soon as the tool calls of its turn are done."""
        if agent not in self._state.agents:
            raise NotFound("agent", agent, f"there are {', '.join(self._state.agents) or 'none'}")
        if self._state.agents[agent].end_state is not None:
            raise InvalidOperation(f"agent {agent} is done: it hears nothing more")
        if not self.is_running:
            who = "another process" if self.is_held else "no process"
            raise InvalidOperation(f"agent {agent} is not at work here: {who} works on swarm {self.name}")
        await self._runner.steer(agent, text)

    # Branches

    def _check_branching(self) -> None:
        if not self._definition.branching:
            raise InvalidOperation(f"swarm {self.name} does not have branching enabled")

    async def _check_not_over(self) -> None:
        """Raises `InvalidOperation` when no further agent can begin anywhere."""
        account = await self._journal.refresh()
        if account.is_over:
            raise InvalidOperation(
                f"swarm {self.name} is {account.status}: no agent of it would begin on another branch; "
                "change the branches of the session instead"
            )

    async def create_branch(self, name: str, description: str | None = None, *, at: Place = None) -> EntryId:
        """A branch for an agent to work on, where further agents would begin or at a place; gives its first entry.

        With `parallel`, agents that are not there yet take such branches first, in their order. Nobody is moved.
        """
        self._check_branching()
        await self._ensure_created()
        await self._check_not_over()
        session, account = self.session, self._state
        own = account.branch == account.own_branch
        place = at if at is not None else session.tree[account.start_entry] if own else account.branch
        branch = await run_in_thread(
            lambda: session.create_branch(name, at=place, description=description, current=False)
        )
        entry = branch.leaf
        assert entry is not None
        await self._journal.append_action(self.id, SplitAction(swarm=self.id, name=name))
        self._emit(BranchEvent(name=name, entry=entry), None, name)
        return entry

    async def switch_branch(self, name: str) -> None:
        """Have agents that are not there yet begin at the head of another branch. Nobody is moved."""
        self._check_branching()
        await self._ensure_created()
        await self._check_not_over()
        self.session.branch(name)
        await self._journal.append_record(SwitchedBranchRecord(swarm=self.id, branch=name))

    def compare_branches(self, names: Sequence[str], metric: str = "cost") -> Comparison:
        """What branches, or agents, cost and did after they parted, and which is ahead, if the figures tell."""
        self._check_branching()
        agents = self._state.agents
        return compare(self.session, [agents[name].branch if name in agents else name for name in names], metric)

    async def fork_session(self, at: Place = "HEAD", name: str | None = None) -> Session:
        """A new session with the path to a place. This one is not touched, but for a note of it."""
        from sessiontree.ops.fork import fork

        self._check_branching()
        await self._ensure_created()
        outcome = await fork(self.session, at, hooks=self._resources.hooks, name=name)
        if outcome.session is None:
            raise InvalidOperation("a handler did not let the session be forked")
        deed = ForkAction(swarm=self.id, session=outcome.session.id, at=outcome.session.forked_from)
        await self._journal.append_action(self.id, deed)
        return outcome.session


def _check_agent_count(agents: int, maximum: int | None) -> None:
    if agents < 1:
        raise InvalidOperation(f"a swarm has one agent or more, not {agents}")
    if maximum is not None and agents > maximum:
        raise InvalidOperation(f"there can be {maximum} agents at most, not {agents}")


def _check_agent_names(swarm: str, agents: Sequence[str]) -> None:
    for name in agents:
        check_branch_name(f"{swarm}/{name}")
        if agents.count(name) > 1:
            raise InvalidOperation(f"two agents are called {name!r}")


def _create_own_branch(session: Session, name: str, start: EntryId | None) -> str:
    """Make the swarm's own branch, with a number if another has its name."""
    number = 1
    while True:
        own = name if number == 1 else f"{name}-{number}"
        if not any(branch == own or branch.startswith(f"{own}/") for branch in session.heads.heads):
            session.create_branch(own, at=None if start is None else session.tree[start], current=False)
            return own
        number += 1


def _build_model_finder(
    model: Model | str | None, model_of: Callable[[str], Model] | None, settings: Config | None
) -> Callable[[str | None], Model]:
    """Finds the model of a name: the one that was given, or by `model_of`, or among all there are."""

    def find_model(name: str | None) -> Model:
        if model is not None and not isinstance(model, str) and name in (None, model.info.name):
            return model
        if name is not None and model_of is not None:
            return model_of(name)
        from sessiontree.model.selection import find_model

        return find_model(name or (model if isinstance(model, str) else None), settings)

    return find_model
