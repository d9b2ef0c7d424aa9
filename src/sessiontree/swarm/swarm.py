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
from sessiontree.agent.system import SystemPart
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
from sessiontree.swarm.account import Account, Accounts
from sessiontree.swarm.budget import Budget
from sessiontree.swarm.crew import Crew
from sessiontree.swarm.events import BranchEvent, ErrorEvent, Event, EventLog, SwarmEvent, spool_path
from sessiontree.swarm.executor import Executor, LocalExecutor, Work
from sessiontree.swarm.facts import (
    Cancelled,
    Completed,
    Created,
    Destroyed,
    Fact,
    Failed,
    Fork,
    Resumed,
    Scaled,
    Split,
    Started,
    Switched,
)
from sessiontree.swarm.gate import Bell, Gate
from sessiontree.swarm.hold import hold_of
from sessiontree.swarm.record import Record, in_thread
from sessiontree.swarm.status import AgentSpec, SwarmStatus
from sessiontree.swarm.strategies import STRATEGIES, Strategy, strategy_of
from sessiontree.swarm.tools import begun_with
from sessiontree.swarm.worker import Outfit, Worker

LOOK = 1.0
"""Seconds between two looks for what other processes have told the swarm to do."""
SOON = 0.001
"""How long is waited at least: what is left of a budget may be less than a clock can tell. In seconds."""


def _wall_clock() -> int:
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
        now: Callable[[], int] = _wall_clock,
    ) -> None:
        """A swarm that is not in the session yet: `create` and `start` write it there.

        `agents` is how many work, or what each of them is to be; `max_agents` how many `scale` may ask for. `model` is
        a model or the name of one; `model_of` finds others by name. `tools` is `None` where it is left to an executor.
        `at` is where agents begin. Without `permissions`, agents may use all of their tools.
        """
        specs = () if isinstance(agents, int) else tuple(agents)
        count = agents if isinstance(agents, int) else len(specs)
        _check_count(count, max_agents)
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
        _check_names(name, [spec.name for spec in specs if spec.name])
        self._strategy: Strategy | None = strategy_of(strategy) if isinstance(strategy, str) else strategy
        self._at = at
        model_name = model if isinstance(model, str) or model is None else model.info.name
        self._draft = Created(
            swarm=session.new_id(),
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
        outfit = Outfit(
            model_of=_finder(model, model_of, settings),
            tools=tools or (),
            hooks=Hooks() if hooks is None else hooks,
            settings=settings,
            system=system,
            thinking=thinking,
            permissions=permissions,
        )
        self._named = self._draft.tools
        self._equip(session, self._draft.swarm, outfit, executor, now)

    def _equip(
        self,
        session: Session,
        id: str,
        outfit: Outfit,
        executor: Executor | None,
        now: Callable[[], int],
    ) -> None:
        self.session = session
        self.id = id
        self._outfit = outfit
        self._executor: Executor = LocalExecutor() if executor is None else executor
        self._now = now
        self._record = Record(session, id)
        self._bell = Bell()
        self._gate = Gate(self._record, self._bell, self._emit, now)
        self._worker = Worker(self._record, self._gate, outfit, self._emit)
        self._crew: Crew | None = None
        self._task: asyncio.Task[None] | None = None
        self._hold = hold_of(session, id)
        self._log: EventLog | None = None

    @classmethod
    async def create(cls, session: Session, name: str, task: str, **options: Any) -> Swarm:
        """A swarm, written into the session: takes what `Swarm` takes."""
        swarm = cls(session, name, task, **options)
        await swarm._create()
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
        anew: bool = False,
        executor: Executor | None = None,
        now: Callable[[], int] = _wall_clock,
    ) -> Swarm:
        """A swarm that is in the session, by its id or name. `start` then goes on with it, finished work aside.

        What belongs to the program is given again: models, tools, hooks, and a strategy of one's own. Of the tools,
        agents have those that they had before; the system prompt and the thinking level are as before where none is
        given. `anew` they have what is given, whatever they had.
        """
        accounts = Accounts(session).read().swarms
        named = [key for key, account in accounts.items() if account.created.name == id]
        if id not in accounts and not named:
            raise NotFound("swarm", id, f"there are {', '.join(accounts)}" if accounts else "there are none")
        created = accounts[id if id in accounts else named[0]].created
        swarm = cls.__new__(cls)
        swarm._draft, swarm._at = created, None
        swarm._strategy = strategy or STRATEGIES.get(created.strategy)
        outfit = Outfit(
            model_of=_finder(model, model_of, settings),
            tools=tools,
            hooks=Hooks() if hooks is None else hooks,
            settings=settings,
            system=created.system if system is None and not anew else system,
            thinking=created.thinking if thinking is None and not anew else thinking,
            permissions=permissions,
        )
        swarm._named = None if anew else created.tools
        swarm._equip(session, created.swarm, outfit, executor, now)
        return swarm

    # What it is

    @property
    def name(self) -> str:
        """Its name: with a number, if another swarm of the session had it first."""
        return self._draft.name

    @property
    def _account(self) -> Account:
        return self._record.account

    @property
    def running(self) -> bool:
        """Whether this process works on it."""
        return self._task is not None and not self._task.done()

    @property
    def held(self) -> bool:
        """Whether any process works on it."""
        return self.running or self._hold.taken

    def status(self) -> SwarmStatus:
        """How far it has come, as the session tells."""
        if not self._record.known:
            raise InvalidOperation(f"swarm {self._draft.name} is not in the session yet: create it first")
        if not self.running:
            self.session.refresh()  # another process may be at work
        account = self._account
        live = self.running and account.status == "running"
        return account.status_at(self._now() if live else None, self.session.id)

    @property
    def streams(self) -> bool:
        """Whether it tells its events."""
        return self._draft.streaming

    @property
    def events(self) -> EventLog:
        """What happens, as it happens. Raises `InvalidOperation` when it is turned off."""
        if not self._draft.streaming:
            raise InvalidOperation(f"swarm {self.name} does not have event streaming enabled")
        if self._log is None:
            self._log = EventLog(None if self.session.kept_at is None else spool_path(self.id))
        return self._log

    def _emit(self, event: Event, agent: str | None = None, branch: str | None = None) -> None:
        if not self._draft.streaming:
            return
        try:
            self.events.append(replace(event, swarm=self.id, agent=agent, branch=branch))
        except StoreError as error:  # the work goes on: what is done is in the session
            self._outfit.hooks.show(Notice(level="error", text=f"events are lost: {error}"))

    # Running

    async def _create(self) -> None:
        if self._record.known:
            return
        session = self.session
        start = session.place(self._at)
        branch = await in_thread(_own_branch, session, self._draft.name, start)
        self._draft = replace(self._draft, name=branch)
        await self._record.tell(self._draft)
        self._emit(BranchEvent(name=branch, entry=session.branch(branch).leaf), None, branch)
        self._emit(SwarmEvent(status="created"))

    async def start(self) -> None:
        """Have the agents work. A swarm that was stopped, by its process or a pause, goes on where it was."""
        await self._create()
        if self.running:
            raise InvalidOperation(f"swarm {self.name} is running already")
        account = await self._record.look()
        if account.over:
            raise InvalidOperation(f"swarm {self.name} is {account.status}: make a new one to try again")
        if self._strategy is None:
            raise InvalidOperation(f"the strategy {account.created.strategy!r} of swarm {self.name} has to be given")
        self._choose_tools()
        if not await self._hold.taken_over():
            raise InvalidOperation(f"another process works on swarm {self.name}")
        try:
            await self._say(Started(swarm=self.id), SwarmEvent(status="running"))
        except BaseException:
            self._hold.let_go()
            raise
        self._crew = Crew(
            self._record,
            self._gate,
            self._bell,
            self._executor,
            self._worker.carry_out,
            self._emit,
            self._outfit.hooks,
        )
        self._task = asyncio.create_task(self._work(self._strategy, self._crew))
        self._task.add_done_callback(self._ended)

    def _choose_tools(self) -> None:
        """Have agents use the tools that they had before, and no others. Raises `InvalidOperation`."""
        self._outfit.tools = begun_with(f"swarm {self.name}", self._named, self._outfit.tools)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._hold.let_go()
        self._bell.ring()

    async def wait(self) -> SwarmStatus:
        """Wait until it has come to its end, or is paused and the calls under way are over."""
        task, crew = self._task, self._crew
        while task is not None and crew is not None and not task.done():
            if self._account.status == "paused" and crew.stuck:
                break
            await self._bell.wait()
        if task is not None and task.done() and not task.cancelled():
            task.result()
        return self.status()

    async def run(self) -> SwarmStatus:
        """Start it and wait. Cancelling this stops the agents; the swarm can be started again."""
        await self.start()
        try:
            return await self.wait()
        except asyncio.CancelledError:
            await self.leave()
            raise

    async def leave(self) -> None:
        """Stop working on it here, once what agents have is written down. Nothing is decided: `start` goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def carry_out(self, work: Work) -> None:
        """Carry out the work of one agent in this process: for executors that run agents in others.

        The agent has the tools that are given here, whatever the swarm was begun with.
        """
        off = self._worker.watch()
        try:
            await self._worker.carry_out(work)
        finally:
            off()

    async def _work(self, strategy: Strategy, crew: Crew) -> None:
        off = self._worker.watch()
        watching = asyncio.create_task(self._watch(crew))
        watching.add_done_callback(lambda _: self._bell.ring())
        working = asyncio.ensure_future(self._carried_through(strategy, crew))
        try:
            await asyncio.wait([watching, working], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            else:
                watching.result()  # it ends when another process has ended the swarm, or works on it now
                if self._hold.lost:
                    self._worker.give_way()
                    self._executor.give_way(self.id)
        finally:
            for task in (watching, working):
                task.cancel()
            await asyncio.gather(watching, working, return_exceptions=True)
            off()

    async def _carried_through(self, strategy: Strategy, crew: Crew) -> None:
        try:
            result = await strategy(crew)
            await crew.join()
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a strategy may raise anything, and it is to be told
            reason = str(error) if isinstance(error, SessionTreeError) else f"{type(error).__name__}: {error}"
            self._emit(ErrorEvent(message=reason))
            await self._say(Failed(swarm=self.id, reason=reason), SwarmEvent(status="failed", reason=reason))
        else:
            failed = [agent.id for agent in self._account.agents.values() if agent.ended == "failed"]
            reason = f"{', '.join(failed)} failed" if failed else None
            fact = Completed(swarm=self.id, result=result, reason=reason)
            await self._say(fact, SwarmEvent(status="completed", reason=reason))

    async def _watch(self, crew: Crew) -> None:
        """See to budgets of time, and to what other processes have told the swarm to do, until they end it."""
        while True:
            left = self._gate.time_left()
            await asyncio.sleep(LOOK if left is None else min(max(left, SOON), LOOK))
            before = self._account.status, self._account.wanted
            await self._gate.note()
            account = await self._gate.pause_if_used_up()
            if (account.status, account.wanted) != before:
                crew.scaled()
            if account.over or self._hold.lost:
                return

    async def _say(self, fact: Fact, event: Event) -> None:
        await self._record.tell(fact)
        self._emit(event)
        self._bell.ring()

    # Steering

    async def pause(self, reason: str | None = None) -> None:
        """Let the calls under way come to their end, and begin no more. `wait` waits for that."""
        self._check(await self._record.look(), "running")
        await self._gate.pause(reason)

    async def resume(self, *, budget: Budget | None = None, agent_budget: Budget | None = None) -> None:
        """Go on after a pause, with larger budgets if they are given. Where nobody works on it, this process does."""
        for limits in (budget, agent_budget):
            if limits is not None:
                limits.check()
        self._check(await self._record.look(), "paused")
        fact = Resumed(swarm=self.id, budget=budget, agent_budget=agent_budget)
        await self._say(fact, SwarmEvent(status="running"))
        if not self.held:
            await self.start()

    async def scale(self, agents: int) -> None:
        """Have another number of agents work.

        With `parallel` there are so many then; with `pipeline` so many stages; otherwise so many work at the same time.
        """
        account = await self._record.look()
        _check_count(agents, account.created.max_agents)
        if account.over:
            raise InvalidOperation(f"swarm {self.name} is {account.status}: it cannot be scaled")
        await self._record.tell(Scaled(swarm=self.id, agents=agents))
        if self._crew is not None:
            self._crew.scaled()

    async def cancel(self, reason: str | None = None) -> None:
        """Give it up: agents are aborted, and what they have stays."""
        account = await self._record.look()
        if account.over:
            raise InvalidOperation(f"swarm {self.name} is {account.status} already")
        await self._say(Cancelled(swarm=self.id, reason=reason), SwarmEvent(status="cancelled", reason=reason))
        await self.leave()

    async def destroy(self) -> None:
        """Give it up, hide its branches, and delete its events. Nothing is removed from the session."""
        account = await self._record.look()
        if account.status == "destroyed":
            return
        if not account.over:
            await self.cancel()
        await self._say(Destroyed(swarm=self.id), SwarmEvent(status="destroyed"))
        await in_thread(self._hide_branches)
        if self._draft.streaming:
            self.events.delete()
        self._hold.delete()

    def _hide_branches(self) -> None:
        session, account = self.session, self._account
        own = account.own
        agents = {agent.branch for agent in account.agents.values()}
        there = set(session.heads.heads) - {session.heads.current} - session.heads.archived
        hidden = sorted((agents | set(account.branches)) & there)
        if hidden and own in session.heads.heads:
            head = session.heads.heads[own]
            session.move(None if head is None else session.tree[head], branch=own, archive=hidden)
        if own in there:
            session.archive_branch(own)

    def _check(self, account: Account, status: str) -> None:
        if account.status != status:
            raise InvalidOperation(f"swarm {self.name} is {account.status}, not {status}")

    async def steer(self, agent: str, text: str) -> None:
        """Say something to an agent at work here, which hears it as soon as the tool calls of its turn are done."""
        if agent not in self._account.agents:
            raise NotFound("agent", agent, f"there are {', '.join(self._account.agents) or 'none'}")
        if self._account.agents[agent].ended is not None:
            raise InvalidOperation(f"agent {agent} is done: it hears nothing more")
        if not self.running:
            who = "another process" if self.held else "no process"
            raise InvalidOperation(f"agent {agent} is not at work here: {who} works on swarm {self.name}")
        await self._worker.steer(agent, text)

    # Branches

    def _check_branching(self) -> None:
        if not self._draft.branching:
            raise InvalidOperation(f"swarm {self.name} does not have branching enabled")

    async def _check_going_on(self) -> None:
        """Raises `InvalidOperation` when no further agent can begin anywhere."""
        account = await self._record.look()
        if account.over:
            raise InvalidOperation(
                f"swarm {self.name} is {account.status}: no agent of it would begin on another branch; "
                "change the branches of the session instead"
            )

    async def create_branch(self, name: str, description: str | None = None, *, at: Place = None) -> EntryId:
        """A branch for an agent to work on, where further agents would begin or at a place; gives its first entry.

        With `parallel`, agents that are not there yet take such branches first, in their order. Nobody is moved.
        """
        self._check_branching()
        await self._create()
        await self._check_going_on()
        session, account = self.session, self._account
        own = account.branch == account.own
        place = at if at is not None else session.tree[account.start] if own else account.branch
        branch = await in_thread(lambda: session.create_branch(name, at=place, description=description, current=False))
        entry = branch.leaf
        assert entry is not None
        await self._record.did(self.id, Split(swarm=self.id, name=name))
        self._emit(BranchEvent(name=name, entry=entry), None, name)
        return entry

    async def switch_branch(self, name: str) -> None:
        """Have agents that are not there yet begin at the head of another branch. Nobody is moved."""
        self._check_branching()
        await self._create()
        await self._check_going_on()
        self.session.branch(name)
        await self._record.tell(Switched(swarm=self.id, branch=name))

    def compare_branches(self, names: Sequence[str], metric: str = "cost") -> Comparison:
        """What branches, or agents, cost and did after they parted, and which is ahead, if the figures tell."""
        self._check_branching()
        agents = self._account.agents
        return compare(self.session, [agents[name].branch if name in agents else name for name in names], metric)

    async def fork_session(self, at: Place = "HEAD", name: str | None = None) -> Session:
        """A new session with the path to a place. This one is not touched, but for a note of it."""
        from sessiontree.ops.fork import fork

        self._check_branching()
        await self._create()
        outcome = await fork(self.session, at, hooks=self._outfit.hooks, name=name)
        if outcome.session is None:
            raise InvalidOperation("a handler did not let the session be forked")
        deed = Fork(swarm=self.id, session=outcome.session.id, at=outcome.session.forked_from)
        await self._record.did(self.id, deed)
        return outcome.session


def _check_count(agents: int, most: int | None) -> None:
    if agents < 1:
        raise InvalidOperation(f"a swarm has one agent or more, not {agents}")
    if most is not None and agents > most:
        raise InvalidOperation(f"there can be {most} agents at most, not {agents}")


def _check_names(swarm: str, agents: Sequence[str]) -> None:
    for name in agents:
        check_branch_name(f"{swarm}/{name}")
        if agents.count(name) > 1:
            raise InvalidOperation(f"two agents are called {name!r}")


def _own_branch(session: Session, name: str, start: EntryId | None) -> str:
    """Make the swarm's own branch, with a number if another has its name."""
    number = 1
    while True:
        own = name if number == 1 else f"{name}-{number}"
        if not any(branch == own or branch.startswith(f"{own}/") for branch in session.heads.heads):
            session.create_branch(own, at=None if start is None else session.tree[start], current=False)
            return own
        number += 1


def _finder(
    model: Model | str | None, model_of: Callable[[str], Model] | None, settings: Config | None
) -> Callable[[str | None], Model]:
    """Finds the model of a name: the one that was given, or by `model_of`, or among all there are."""

    def found(name: str | None) -> Model:
        if model is not None and not isinstance(model, str) and name in (None, model.info.name):
            return model
        if name is not None and model_of is not None:
            return model_of(name)
        from sessiontree.model.find import find

        return find(name or (model if isinstance(model, str) else None), settings)

    return found
