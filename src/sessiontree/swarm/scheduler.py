"""The scheduler: strategies use it to run agents on tasks and to get their results.

Each agent has an id: its name, or its role and a number. When a swarm resumes in another process, its strategy runs
again from the start; the scheduler finds the finished work of each id in the session and does not repeat it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.core.entries import BranchSummary
from sessiontree.core.operation_plans import build_merge_details, collect_summary_input, get_merge_sources, plan_merge
from sessiontree.errors import BranchMoved, InvalidOperation, SessionTreeError
from sessiontree.hooks.bus import Hooks
from sessiontree.ops.merge import merge
from sessiontree.session import Branch
from sessiontree.swarm.agent_runner import Executor, RunJob, SwarmJob
from sessiontree.swarm.budget import EXHAUSTED_TEXT, Budget
from sessiontree.swarm.budget_enforcement import AdmissionControl, ChangeSignal, can_continue
from sessiontree.swarm.events import BaseSwarmEvent, BranchEvent
from sessiontree.swarm.journal import SwarmJournal
from sessiontree.swarm.records import AgentSpec, CancelAction, ExpectedAgentsRecord, JoinAction, SpawnAction
from sessiontree.swarm.replay import TrackedAgent, TrackedSwarm

BUDGET_CHECK_SECONDS = 1.0
"""How often an agent looks whether the calls of other agents left budget for it. They may run in other processes."""
PAUSE_CHECK_DELAY = 0.2
"""Seconds to wait for new work before the swarm pauses because all agents wait for a larger budget."""
MERGE_ATTEMPTS = 10
"""How often a result is merged into a branch that another writer moves at the same time."""


_agent_group: ContextVar[list[str] | None] = ContextVar("agent_group", default=None)
"""The ids of agents that are cancelled together when the swarm is scaled down."""


class AgentResult(Struct, frozen=True, kw_only=True):
    """The outcome of an agent."""

    agent: str
    branch: str
    ok: bool
    text: str
    """The agent's last answer."""
    error: str | None = None
    cost: float = 0.0
    tokens: float = 0
    seconds: float = 0.0


class SwarmFailed(SessionTreeError):
    """The strategy cannot continue."""


OnSplit: TypeAlias = Callable[[Sequence[str], int], Awaitable[Sequence[AgentResult]]]
"""Runs the parts of a task. The number is how many parts of the task were done earlier."""


class AgentSlots:
    """Limits how many agents run at the same time. The limit may change."""

    def __init__(self, count: int) -> None:
        self._limit = count
        self._taken = 0
        self._changes = ChangeSignal()

    def resize(self, count: int) -> None:
        self._limit = count
        self._changes.notify()

    async def __aenter__(self) -> None:
        while self._taken >= self._limit:
            await self._changes.wait()
        self._taken += 1

    async def __aexit__(self, *_: object) -> None:
        self._taken -= 1
        self._changes.notify()


class Scheduler:
    """Runs the agents of one swarm for a strategy."""

    def __init__(
        self,
        journal: SwarmJournal,
        admission: AdmissionControl,
        changes: ChangeSignal,
        executor: Executor,
        run_job: RunJob,
        emit: Callable[[BaseSwarmEvent, str | None, str | None], None],
        hooks: Hooks,
    ) -> None:
        self._journal = journal
        self._admission = admission
        self._changes = changes
        self._executor = executor
        self._run_job = run_job
        self._emit = emit
        self._hooks = hooks
        self._role_counts: dict[str, int] = {}
        self._active_ids: set[str] = set()
        """Agents that the strategy waits for."""
        self._spawn_lock = asyncio.Lock()
        """Prevents two agents from using the same branch."""
        self._busy_count = 0
        """Number of agents that are being prepared, wait for a slot, or run."""
        self._delayed_count = 0
        """Number of agents that wait for a retry."""
        self._pause_task: asyncio.Future[None] | None = None
        self._waiting_for_budget: set[str] = set()
        """Agents that wait for a larger budget."""
        self._slots = AgentSlots(self.agents)

    @property
    def _state(self) -> TrackedSwarm:
        return self._journal.state

    @property
    def task(self) -> str:
        return self._state.created.task

    @property
    def agents(self) -> int:
        """The requested number of agents. `Swarm.scale` changes it."""
        return self._state.wanted

    @property
    def specs(self) -> Sequence[AgentSpec]:
        """The settings of individual agents."""
        return self._state.created.specs

    @property
    def parts(self) -> Sequence[str] | None:
        """The parts of the task, if the swarm was created with parts."""
        return self._state.created.parts

    @property
    def branches(self) -> Sequence[tuple[str, str | None]]:
        """Branches that were created for agents with `Swarm.create_branch`, each with its description."""
        info = self._journal.session.heads.info
        return [(name, info[name].description if name in info else None) for name in self._state.branches]

    @property
    def is_stuck(self) -> bool:
        """Whether all unfinished agents wait. If the swarm is paused, only `resume` changes that."""
        return not self._busy_count and any(agent.end_state is None for agent in self._state.agents.values())

    def apply_scale(self) -> None:
        """Apply a changed number of agents."""
        self._slots.resize(self.agents)
        self._changes.notify()

    async def expect(self, agents: int) -> None:
        """Record how many agents there will be in total. Progress is computed from it."""
        if self._state.expected != agents:
            await self._journal.append_record(ExpectedAgentsRecord(swarm=self._journal.id, agents=agents))

    async def run(
        self,
        task: str,
        *,
        prompt: str | None = None,
        role: str = "worker",
        name: str | None = None,
        reads: Sequence[AgentResult] = (),
        model: str | None = None,
        budget: Budget | None = None,
        branch: str | None = None,
        parent: str | None = None,
        joins: bool = True,
        on_split: OnSplit | None = None,
    ) -> AgentResult:
        """Run an agent on a task and wait until it completes or fails. Its prompt is `prompt`, or the task.

        The results in `reads` are merged into the agent's branch before it starts. The agent's own result is merged
        into the swarm's branch at the end if `joins` is true and no other agent reads it. The agent works on a new
        branch, or on `branch`. With `on_split` it may delegate parts of its task.
        """
        id = name or self._allocate_id(role)
        if id in self._active_ids:
            raise InvalidOperation(f"two agents have the name {id!r}")
        group = _agent_group.get()
        if group is not None:
            group.append(id)
        spawn = SpawnAction(
            swarm=self._journal.id,
            role=role,
            task=task,
            prompt=prompt,
            branch=branch or f"{self._state.created.name}/{id}",
            model=model,
            budget=budget,
            reads=tuple(result.agent for result in reads),
            parent=parent,
            joins=joins and parent is None,
            begins=True,
        )
        self._active_ids.add(id)
        try:
            await self._prepare(id, spawn)
            await self._run_to_end(id, on_split)
        finally:
            self._active_ids.discard(id)
        return self._build_result(id)

    async def _prepare(self, id: str, spawn: SpawnAction) -> None:
        """Create the agent and its branch if needed, and merge the results it reads."""
        self._busy_count += 1
        try:
            async with self._spawn_lock:
                agent = await self._spawn(id, spawn)
            if agent.end_state is None and not agent.started:
                await self._merge_results(self._get_branch(agent), [self._get_agent(read) for read in spawn.reads])
        finally:
            self._end_activity()

    def _allocate_id(self, role: str) -> str:
        number = self._role_counts[role] = self._role_counts.get(role, 0) + 1
        return f"{role}-{number}"

    async def _spawn(self, id: str, spawn: SpawnAction) -> TrackedAgent:
        """Return the agent. Create it if it does not exist, and restart it if it was cancelled."""
        session, state = self._journal.session, self._state
        known = state.agents.get(id)
        if known is not None:
            if known.end_state == "cancelled":
                await self._journal.append_action(id, replace(spawn, branch=known.branch))
            return known
        holder = next((agent for agent in state.agents.values() if agent.branch == spawn.branch), None)
        if holder is not None:
            raise InvalidOperation(f"agent {holder.id!r} already uses the branch {spawn.branch!r}")
        if spawn.branch not in session.heads.heads:
            at = state.start_entry if state.branch == state.own_branch else session.branch(state.branch).leaf
            await self._journal.run_in_thread(self._create_branch, spawn.branch, at)
            self._emit(BranchEvent(name=spawn.branch, entry=session.branch(spawn.branch).leaf), id, spawn.branch)
        await self._journal.append_action(id, spawn)
        return self._get_agent(id)

    def _create_branch(self, name: str, at: str | None) -> None:
        session = self._journal.session
        session.create_branch(name, at=None if at is None else session.tree[at], current=False)

    async def _run_to_end(self, id: str, on_split: OnSplit | None) -> None:
        """Run an agent whenever it is admitted, until it ends."""
        job = self._build_job(self._get_agent(id), on_split is not None)
        failures = self._get_agent(id).failures
        while (agent := self._get_agent(id)).end_state is None:
            if agent.parts and on_split is not None:
                await self._join_parts(agent, await on_split(agent.parts, agent.joined_parts))
                continue
            if agent.failures > failures:
                failures = agent.failures
                self._delayed_count += 1
                try:
                    await asyncio.sleep(agent.retry_delay or 0)
                finally:
                    self._delayed_count -= 1
            self._busy_count += 1
            try:
                async with self._slots:
                    while self._can_work(self._get_agent(id)) and await self._admission.admit(id):
                        await self._executor.run(job, self._run_job)
                        await self._journal.refresh()
                        if self._get_agent(id).failures > failures:
                            break
            finally:
                self._end_activity()
            agent = self._get_agent(id)
            if agent.end_state is None and not agent.parts and agent.failures == failures:
                await self._wait_until_allowed(id)

    def _build_job(self, agent: TrackedAgent, may_split: bool) -> SwarmJob:
        return SwarmJob(
            session=self._journal.session.id,
            swarm=self._journal.id,
            agent=agent.id,
            prompt=agent.spawn.prompt or agent.spawn.task,
            model=agent.spawn.model or self._state.created.model,
            may_split=may_split,
        )

    def _can_work(self, agent: TrackedAgent) -> bool:
        state = self._state
        return state.status == "running" and can_continue(state, agent)

    async def _wait_until_allowed(self, id: str) -> None:
        """Wait while the swarm is paused, the agent's budget is used up, or others may use the rest of the budget."""
        try:
            while (agent := self._get_agent(id)).end_state is None:
                self._note_waiting(id, self._state.is_exhausted(agent))
                if not self._can_work(agent):
                    await self._changes.wait()
                elif self._admission.has_budget_for_call(agent):
                    break
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(BUDGET_CHECK_SECONDS):  # `wait_for` may lose a cancellation
                            await self._changes.wait()
                    await self._journal.refresh()
        finally:
            self._waiting_for_budget.discard(id)

    def _note_waiting(self, id: str, is_exhausted: bool) -> None:
        """Note whether an agent waits for a larger budget of its own. It may become exhausted while it waits."""
        if not is_exhausted:
            self._waiting_for_budget.discard(id)
        elif id not in self._waiting_for_budget:
            self._waiting_for_budget.add(id)
            self._schedule_pause_check()

    def _end_activity(self) -> None:
        self._busy_count -= 1
        self._changes.notify()
        self._schedule_pause_check()

    def _schedule_pause_check(self) -> None:
        """Pause the swarm soon if no agent runs and some wait for a larger budget: only `resume` can help them."""
        if self._waiting_for_budget and not self._busy_count and not self._delayed_count:
            asyncio.get_running_loop().call_later(PAUSE_CHECK_DELAY, self._pause_if_waiting_for_budget)

    def _pause_if_waiting_for_budget(self) -> None:
        pausing = self._pause_task is not None and not self._pause_task.done()
        idle = not self._busy_count and not self._delayed_count and not pausing
        if self._waiting_for_budget and idle and self._state.status == "running":
            names = ", ".join(sorted(self._waiting_for_budget))
            self._pause_task = asyncio.ensure_future(
                self._admission.pause(f"the budget of {names} is {EXHAUSTED_TEXT}")
            )

    # Results

    def _get_agent(self, id: str) -> TrackedAgent:
        return self._state.agents[id]

    def _get_branch(self, agent: TrackedAgent) -> Branch:
        return self._journal.session.branch(agent.branch)

    def _build_result(self, id: str) -> AgentResult:
        agent = self._get_agent(id)
        cost, tokens, seconds = agent.compute_spending(None)
        return AgentResult(
            agent=id,
            branch=agent.branch,
            ok=agent.end_state == "completed",
            text=agent.text,
            error="the agent was cancelled" if agent.end_state == "cancelled" else agent.error,
            cost=cost,
            tokens=tokens,
            seconds=seconds,
        )

    async def _join_parts(self, agent: TrackedAgent, results: Sequence[AgentResult]) -> None:
        """Merge the results of an agent's parts, including failures, into its branch."""
        await self._merge_results(self._get_branch(agent), [self._get_agent(result.agent) for result in results])
        action = JoinAction(swarm=self._journal.id, agents=tuple(result.agent for result in results))
        await self._journal.append_action(agent.id, action)

    async def join(self) -> None:
        """Merge the results that no other agent reads into the swarm's own branch."""
        state = self._state
        await self._merge_results(self._journal.session.branch(state.own_branch), state.unread_agents)

    async def _merge_results(self, into: Branch, agents: Sequence[TrackedAgent]) -> None:
        """Merge the results of agents into a branch, unless they are already merged."""
        for agent in agents:
            for attempts_left in reversed(range(MERGE_ATTEMPTS)):
                try:
                    await self._merge_result(into, agent)
                    break
                except BranchMoved:  # a person moved the branch in between: merge at its new place
                    if not attempts_left:
                        raise

    async def _merge_result(self, into: Branch, agent: TrackedAgent) -> None:
        merged = {id for entry in into.session.tree.walk_up(into.leaf) for id in get_merge_sources(entry)}
        if not agent.started or agent.end_entry in merged:
            return
        text = agent.text if agent.end_state == "completed" else f"Failed: {agent.error}"
        summary = f"Result of {agent.id}:\n\n{text}"
        if self._is_branch_unmoved(agent, into):
            # Each agent keeps its files; a person decides which of them are merged.
            await merge(self._get_branch(agent), into, hooks=self._hooks, summary=summary, with_files=False)
        else:
            # The agent's branch was moved. Its result is still known from its last entry.
            body = BranchSummary(
                summary=summary, abandoned_leaf=agent.end_entry, details=build_merge_details([agent.end_entry])
            )
            await self._journal.run_in_thread(into.append, body)

    def _is_branch_unmoved(self, agent: TrackedAgent, into: Branch) -> bool:
        """Whether the agent's branch still ends at its result, which makes a normal merge possible."""
        session, end = self._journal.session, agent.end_entry
        if end is None or session.heads.heads.get(agent.branch) != end:
            return False
        return bool(collect_summary_input(session.tree, end, plan_merge(session.tree, end, into.leaf)).messages)

    async def gather(self, runs: Iterable[Coroutine[Any, Any, AgentResult]]) -> list[AgentResult]:
        """Run several agents at the same time and return their results in order."""
        tasks = [asyncio.create_task(run) for run in runs]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def run_each(self, run: Callable[[int], Awaitable[AgentResult]]) -> list[AgentResult]:
        """Call `run(number)` for every number from 1 to `agents` at the same time, and return the results.

        Scaling up starts more runs. Scaling down cancels unfinished runs with the highest numbers.
        """
        tasks: dict[int, asyncio.Task[AgentResult]] = {}
        groups: dict[int, list[str]] = {}

        async def run_one(number: int) -> AgentResult:
            _agent_group.set(groups[number])
            return await run(number)

        try:
            while True:
                for number in range(1, self.agents + 1):
                    if number not in tasks:
                        groups[number] = []
                        tasks[number] = asyncio.create_task(run_one(number))
                        tasks[number].add_done_callback(lambda _: self._changes.notify())
                dropped = [number for number, task in tasks.items() if number > self.agents and not task.done()]
                for number in dropped:
                    tasks[number].cancel()
                for number in dropped:
                    await self._cancel_dropped(tasks.pop(number), groups[number])
                for task in tasks.values():
                    if task.done():
                        task.result()  # an exception in one run ends all of them
                if all(task.done() for task in tasks.values()):
                    return [tasks[number].result() for number in sorted(tasks)]
                await self._changes.wait()
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _cancel_dropped(self, task: asyncio.Task[AgentResult], agents: Sequence[str]) -> None:
        await asyncio.wait([task])
        for id in agents:
            agent = self._state.agents.get(id)
            if agent is not None and agent.end_state is None:
                await self._journal.append_action(id, CancelAction(swarm=self._journal.id))
