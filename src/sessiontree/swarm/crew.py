"""The crew: what a strategy works with. It has agents do tasks, and gives back what came of them.

An agent is known by its id, a role and a number unless it has a name: when a swarm goes on in another process, the
strategy runs anew, and whatever an agent of that id has done is found in the session and not done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.core.entries import BranchSummary
from sessiontree.core.merge import merge_details, merged_from, plan_merge
from sessiontree.core.plan import said
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.hooks.bus import Hooks
from sessiontree.ops.merge import merge
from sessiontree.session import Branch
from sessiontree.swarm.account import Account, AgentAccount
from sessiontree.swarm.budget import USED_UP, Budget
from sessiontree.swarm.events import BranchEvent, Event
from sessiontree.swarm.executor import CarryOut, Executor, Work
from sessiontree.swarm.facts import Cancel, Expected, Join, Spawn
from sessiontree.swarm.gate import Bell, Gate, free
from sessiontree.swarm.record import Record, in_thread
from sessiontree.swarm.status import AgentSpec

SETTLE = 0.2
"""Seconds that a strategy has to give out more work, when all its agents wait for a larger budget."""


_group: ContextVar[list[str] | None] = ContextVar("agents of one number", default=None)
"""Agents that belong together, so that they can be cancelled together."""


class AgentResult(Struct, frozen=True, kw_only=True):
    """What came of an agent."""

    agent: str
    branch: str
    ok: bool
    text: str
    """Its last answer."""
    error: str | None = None
    cost: float = 0.0
    tokens: float = 0
    seconds: float = 0.0


class SwarmFailed(SessionTreeError):
    """A strategy cannot go on."""


OnSplit: TypeAlias = Callable[[Sequence[str], int], Awaitable[Sequence[AgentResult]]]
"""Has the parts of a task done; the number is how many parts of it were done before."""


class Slots:
    """How many agents work at the same time. The number may change."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken = 0
        self._bell = Bell()

    def resize(self, count: int) -> None:
        self._count = count
        self._bell.ring()

    async def __aenter__(self) -> None:
        while self._taken >= self._count:
            await self._bell.wait()
        self._taken += 1

    async def __aexit__(self, *_: object) -> None:
        self._taken -= 1
        self._bell.ring()


class Crew:
    def __init__(
        self,
        record: Record,
        gate: Gate,
        bell: Bell,
        executor: Executor,
        carry_out: CarryOut,
        emit: Callable[[Event, str | None, str | None], None],
        hooks: Hooks,
    ) -> None:
        self._record = record
        self._gate = gate
        self._bell = bell
        self._executor = executor
        self._carry_out = carry_out
        self._emit = emit
        self._hooks = hooks
        self._numbers: dict[str, int] = {}
        self._seen_to: set[str] = set()
        """Agents that a strategy waits for."""
        self._spawning = asyncio.Lock()
        """One after the other, so that no two take the same branch."""
        self._busy = 0
        """How many agents are being made ready, at work, or about to be."""
        self._delayed = 0
        """How many wait until they are tried again."""
        self._pausing: asyncio.Future[None] | None = None
        self._starved: set[str] = set()
        """Agents that wait for a larger budget."""
        self._slots = Slots(self.agents)

    @property
    def _account(self) -> Account:
        return self._record.account

    @property
    def task(self) -> str:
        return self._account.created.task

    @property
    def agents(self) -> int:
        """How many agents are to work; `scale` changes it."""
        return self._account.wanted

    @property
    def specs(self) -> Sequence[AgentSpec]:
        """What was said of single agents."""
        return self._account.created.specs

    @property
    def parts(self) -> Sequence[str] | None:
        """The parts of the task, where they were given."""
        return self._account.created.parts

    @property
    def branches(self) -> Sequence[tuple[str, str | None]]:
        """Branches that were made for agents to work on, each with what was said of it."""
        begun = self._record.session.heads.info
        return [(name, begun[name].description if name in begun else None) for name in self._account.branches]

    @property
    def stuck(self) -> bool:
        """Whether agents wait that are not done, and none is at work: only `resume` changes that, once it is paused."""
        return not self._busy and any(agent.ended is None for agent in self._account.agents.values())

    def scaled(self) -> None:
        """Told when another number of agents is to work."""
        self._slots.resize(self.agents)
        self._bell.ring()

    async def expect(self, agents: int) -> None:
        """Say how many agents there will be in all, for the progress that is shown."""
        account = self._account
        if account.expected != agents:
            await self._record.tell(Expected(swarm=self._record.id, agents=agents))

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
        """Have an agent do a task, and wait until it has completed or failed. It is told the `prompt`, or the task.

        The results that it `reads` are merged into its branch before it begins; its own is merged into the swarm's
        branch at the end, if it `joins` and no other agent reads it. It works on a branch of its own, or on one that
        was made for it. With `on_split` it may have parts of its task done by others.
        """
        id = name or self._next_id(role)
        if id in self._seen_to:
            raise InvalidOperation(f"two agents are called {id!r}")
        group = _group.get()
        if group is not None:
            group.append(id)
        spawn = Spawn(
            swarm=self._record.id,
            role=role,
            task=task,
            prompt=prompt,
            branch=branch or f"{self._account.created.name}/{id}",
            model=model,
            budget=budget,
            reads=tuple(result.agent for result in reads),
            parent=parent,
            joins=joins and parent is None,
            begins=True,
        )
        self._seen_to.add(id)
        try:
            await self._make_ready(id, spawn)
            await self._see_to(id, on_split)
        finally:
            self._seen_to.discard(id)
        return self._result(id)

    async def _make_ready(self, id: str, spawn: Spawn) -> None:
        """Have an agent and its branch be there, with what it reads."""
        self._busy += 1
        try:
            async with self._spawning:
                agent = await self._spawned(id, spawn)
            if agent.ended is None and not agent.begun:
                await self._merge_into(self._branch(agent), [self._agent(read) for read in spawn.reads])
        finally:
            self._done_something()

    def _next_id(self, role: str) -> str:
        number = self._numbers[role] = self._numbers.get(role, 0) + 1
        return f"{role}-{number}"

    async def _spawned(self, id: str, spawn: Spawn) -> AgentAccount:
        """The agent, made if it is not there, and again at work if it was cancelled."""
        session, account = self._record.session, self._account
        known = account.agents.get(id)
        if known is not None:
            if known.ended == "cancelled":
                await self._record.did(id, replace(spawn, branch=known.branch))
            return known
        holder = next((agent for agent in account.agents.values() if agent.branch == spawn.branch), None)
        if holder is not None:
            raise InvalidOperation(f"agent {holder.id!r} holds the branch {spawn.branch!r} already")
        if spawn.branch not in session.heads.heads:
            at = account.start if account.branch == account.own else session.branch(account.branch).leaf
            await in_thread(self._make_branch, spawn.branch, at)
            self._emit(BranchEvent(name=spawn.branch, entry=session.branch(spawn.branch).leaf), id, spawn.branch)
        await self._record.did(id, spawn)
        return self._agent(id)

    def _make_branch(self, name: str, at: str | None) -> None:
        session = self._record.session
        session.create_branch(name, at=None if at is None else session.tree[at], current=False)

    async def _see_to(self, id: str, on_split: OnSplit | None) -> None:
        """Have an agent work whenever it may, until it has come to its end."""
        work = self._work(self._agent(id), on_split is not None)
        failures = self._agent(id).failures
        while (agent := self._agent(id)).ended is None:
            if agent.parts and on_split is not None:
                await self._join(agent, await on_split(agent.parts, agent.joined))
                continue
            if agent.failures > failures:
                failures = agent.failures
                self._delayed += 1
                try:
                    await asyncio.sleep(agent.retry or 0)
                finally:
                    self._delayed -= 1
            self._busy += 1
            try:
                async with self._slots:
                    while self._may_work(self._agent(id)) and await self._gate.admits(id):
                        await self._executor.run(work, self._carry_out)
                        await self._record.look()
                        if self._agent(id).failures > failures:
                            break
            finally:
                self._done_something()
            agent = self._agent(id)
            if agent.ended is None and not agent.parts and agent.failures == failures:
                await self._wait_for_leave(id)

    def _work(self, agent: AgentAccount, may_split: bool) -> Work:
        return Work(
            session=self._record.session.id,
            swarm=self._record.id,
            agent=agent.id,
            prompt=agent.spawn.prompt or agent.spawn.task,
            model=agent.spawn.model or self._account.created.model,
            may_split=may_split,
        )

    def _may_work(self, agent: AgentAccount) -> bool:
        account = self._account
        return account.status == "running" and free(account, agent)

    async def _wait_for_leave(self, id: str) -> None:
        """Wait while the swarm is paused, or the agent's budget is used up."""
        starved = self._account.exhausted(self._agent(id))
        if starved:
            self._starved.add(id)
            self._settle()
        try:
            while (agent := self._agent(id)).ended is None and not self._may_work(agent):
                await self._bell.wait()
        finally:
            self._starved.discard(id)

    def _done_something(self) -> None:
        self._busy -= 1
        self._bell.ring()
        self._settle()

    def _settle(self) -> None:
        """When nobody works any more but some wait for a larger budget, have the swarm pause: they cannot go on."""
        if self._starved and not self._busy and not self._delayed:
            asyncio.get_running_loop().call_later(SETTLE, self._settled)

    def _settled(self) -> None:
        pausing = self._pausing is not None and not self._pausing.done()
        idle = not self._busy and not self._delayed and not pausing
        if self._starved and idle and self._account.status == "running":
            names = ", ".join(sorted(self._starved))
            self._pausing = asyncio.ensure_future(self._gate.pause(f"the budget of {names} is {USED_UP}"))

    # Results

    def _agent(self, id: str) -> AgentAccount:
        return self._account.agents[id]

    def _branch(self, agent: AgentAccount) -> Branch:
        return self._record.session.branch(agent.branch)

    def _result(self, id: str) -> AgentResult:
        agent = self._agent(id)
        cost, tokens, seconds = agent.spending(None)
        return AgentResult(
            agent=id,
            branch=agent.branch,
            ok=agent.ended == "completed",
            text=agent.text,
            error="it was cancelled" if agent.ended == "cancelled" else agent.error,
            cost=cost,
            tokens=tokens,
            seconds=seconds,
        )

    async def _join(self, agent: AgentAccount, results: Sequence[AgentResult]) -> None:
        """Put the results of an agent's parts on its branch; those that failed are told of too."""
        await self._merge_into(self._branch(agent), [self._agent(result.agent) for result in results])
        deed = Join(swarm=self._record.id, agents=tuple(result.agent for result in results))
        await self._record.did(agent.id, deed)

    async def join(self) -> None:
        """Merge the results that no other agent has read into the swarm's own branch."""
        account = self._account
        await self._merge_into(self._record.session.branch(account.own), account.unread)

    async def _merge_into(self, into: Branch, agents: Sequence[AgentAccount]) -> None:
        """Merge the results of agents into a branch, each once."""
        session = into.session
        for agent in agents:
            merged = {id for entry in session.tree.up(into.leaf) for id in merged_from(entry)}
            if not agent.begun or agent.end in merged:
                continue
            words = agent.text if agent.ended == "completed" else f"It came to nothing: {agent.error}"
            summary = f"Result of {agent.id}:\n\n{words}"
            if self._is_where_it_was(agent, into):
                await merge(self._branch(agent), into, hooks=self._hooks, summary=summary)
            else:
                # Somebody has taken its branch elsewhere. What the agent came to is there all the same.
                body = BranchSummary(summary=summary, abandoned_leaf=agent.end, details=merge_details([agent.end]))
                await in_thread(into.append, body)

    def _is_where_it_was(self, agent: AgentAccount, into: Branch) -> bool:
        """Whether what the agent said is on its branch, so that this can be merged."""
        session, end = self._record.session, agent.end
        if end is None or session.heads.heads.get(agent.branch) != end:
            return False
        return bool(said(session.tree, end, plan_merge(session.tree, end, into.leaf)).messages)

    async def all(self, runs: Iterable[Coroutine[Any, Any, AgentResult]]) -> list[AgentResult]:
        """What came of several runs at the same time, in their order."""
        tasks = [asyncio.create_task(run) for run in runs]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def each(self, run: Callable[[int], Awaitable[AgentResult]]) -> list[AgentResult]:
        """What came of `run(number)` for every number from 1 to `agents`, all at the same time.

        Scaling up runs more of them; scaling down cancels those with the highest numbers that are not done.
        """
        tasks: dict[int, asyncio.Task[AgentResult]] = {}
        groups: dict[int, list[str]] = {}

        async def one(number: int) -> AgentResult:
            _group.set(groups[number])
            return await run(number)

        try:
            while True:
                for number in range(1, self.agents + 1):
                    if number not in tasks:
                        groups[number] = []
                        tasks[number] = asyncio.create_task(one(number))
                        tasks[number].add_done_callback(lambda _: self._bell.ring())
                dropped = [number for number, task in tasks.items() if number > self.agents and not task.done()]
                for number in dropped:
                    tasks[number].cancel()
                for number in dropped:
                    await self._dropped(tasks.pop(number), groups[number])
                for task in tasks.values():
                    if task.done():
                        task.result()  # a fault is everybody's
                if all(task.done() for task in tasks.values()):
                    return [tasks[number].result() for number in sorted(tasks)]
                await self._bell.wait()
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _dropped(self, task: asyncio.Task[AgentResult], agents: Sequence[str]) -> None:
        await asyncio.wait([task])
        for id in agents:
            agent = self._account.agents.get(id)
            if agent is not None and agent.ended is None:
                await self._record.did(id, Cancel(swarm=self._record.id))
