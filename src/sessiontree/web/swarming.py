"""Swarms of the server: found in the sessions they belong to, and at work in the workshop.

What a swarm is stands in its session, so those of other processes are told of, paused and stopped as well, and keep
their branches here too; only what is said to an agent takes the process that it works in. Who may see a swarm is who
may see its session.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from sessiontree import catalog
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.events import Notice
from sessiontree.swarm.account import Accounts
from sessiontree.swarm.budget import Budget, laid_over
from sessiontree.swarm.durable import check_no_worker_has
from sessiontree.swarm.facts import SWARM
from sessiontree.swarm.hold import is_worked_on
from sessiontree.swarm.status import OVER, AgentSpec, AgentState, SwarmStatus
from sessiontree.swarm.swarm import Swarm
from sessiontree.web import wire
from sessiontree.web.mentions import Homes
from sessiontree.web.opened import Opened, OpenSessions
from sessiontree.web.refusals import Refused, more_rights
from sessiontree.web.runs import Runs, tell_notice
from sessiontree.web.tokens import Token
from sessiontree.web.workplace import Workplace
from sessiontree.web.workshop import Workshop

log = logging.getLogger("sessiontree.web")

PAUSED_SECONDS = 1.0
"""Between two looks at a swarm that is paused."""
BEGINNING = 300
"""Characters of a task that listings have: clients ask for them again and again."""

NOBODY = "no process works on it"

T = TypeVar("T")


class Hand(NamedTuple):
    """An agent of a swarm that has a branch: it is at work there, goes on there, or is still to begin there."""

    swarm: str
    """By its id."""
    name: str
    agent: str
    status: AgentState
    here: Swarm | None
    """The swarm, where this server works on it."""

    @property
    def whose(self) -> str:
        return f"agent {self.agent} of swarm {self.name!r}"

    @property
    def at_work(self) -> bool:
        """Whether it is, in this server."""
        return self.here is not None and self.status == "running"


class Swarms:
    def __init__(self, sessions: OpenSessions, runs: Runs, workshop: Workshop) -> None:
        self._sessions = sessions
        self._runs = runs
        self._workshop = workshop
        self._homes = Homes(SWARM, sessions)
        self._live: dict[str, Swarm] = {}
        """Those that this server works on."""
        self._places: dict[str, Workplace] = {}
        """Where their agents work."""
        self._tasks: set[asyncio.Task[None]] = set()

    def hands(self, opened: Opened) -> dict[str, Hand]:
        """The branches of a session that agents of swarms have, wherever they work, until they are done."""
        live = {id: swarm for id, swarm in list(self._live.items()) if swarm.session is opened.session}
        return {
            agent.branch: Hand(id, account.created.name, agent.id, account.state_of(agent), live.get(id))
            for id, account in list(self._accounts(opened).swarms.items())
            if not account.over
            for agent in list(account.agents.values())
            if agent.ended is None
        }

    def at_rest(self, opened: Opened, branch: str) -> None:
        """Raises `InvalidOperation` while an agent of a swarm has a branch."""
        hand = self.hands(opened).get(branch)
        if hand is None:
            return
        elsewhere = self._elsewhere(opened, hand)
        left = elsewhere == NOBODY
        what = {"pending": "to begin", "paused": "paused"}.get(hand.status, "left" if left else "at work")
        where = f"; {elsewhere}" if elsewhere else ""
        then = "have it go on" if left or hand.status == "paused" else "wait until it is done"
        raise InvalidOperation(f"{hand.whose} is {what} on branch {branch!r}{where}: stop the swarm, or {then}")

    async def steer(self, opened: Opened, hand: Hand, text: str, *, limited: bool) -> None:
        """Say something to an agent that works here. Raises `InvalidOperation` for others, and says where they do."""
        if hand.here is None:
            raise InvalidOperation(f"{hand.whose} does not hear this server: {self._elsewhere(opened, hand)}")
        self._check_rights(hand.swarm, limited)
        await hand.here.steer(hand.agent, text)

    def _check_rights(self, id: str, limited: bool) -> None:
        """Raises `Refused` where somebody whose token is limited speaks to agents that are not."""
        place = self._places.get(id)
        if limited and place is not None and not place.is_limited:
            raise more_rights()

    def _elsewhere(self, opened: Opened, hand: Hand) -> str | None:
        """Who works on a swarm that this server does not work on."""
        if hand.here is not None:
            return None
        return "another process works on it" if is_worked_on(opened.session, hand.swarm) else NOBODY

    # Reading

    def listed(self, token: Token) -> list[wire.SwarmRow]:
        """All swarms that a token may see, the newest first."""
        with closing(self._homes.held(token)) as sessions:
            rows = [self._row(opened, status) for opened in sessions for status in self._statuses(opened).values()]
        return sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)

    def _statuses(self, opened: Opened) -> dict[str, SwarmStatus]:
        with opened.session.held():
            accounts = self._accounts(opened).swarms
            found = {id: account.status_at(None, opened.session.id) for id, account in accounts.items()}
        return {id: self._live[id].status() if id in self._live else status for id, status in found.items()}

    @contextmanager
    def found(self, id: str, token: Token) -> Generator[tuple[Opened, SwarmStatus]]:
        """The session of a swarm and how far it has come. Raises `Refused`."""
        opened, status = self.hold(id, token)
        try:
            yield opened, status
        finally:
            self._sessions.let_go(opened)

    def hold(self, id: str, token: Token) -> tuple[Opened, SwarmStatus]:
        """The same, held until it is let go of. Raises `Refused`."""
        found = self._homes.hold(id, token, self._statuses)
        if found is None:  # the same where the token may not see it
            raise Refused(404, f"no swarm {id!r}")
        return found

    def branches(self, opened: Opened, id: str) -> bool:
        """Whether a swarm has branching enabled."""
        return self._accounts(opened).swarms[id].created.branching

    def streams(self, opened: Opened, id: str) -> bool:
        """Whether a swarm tells its events."""
        return self._accounts(opened).swarms[id].created.streaming

    def _accounts(self, opened: Opened) -> Accounts:
        return opened.kept(Accounts, lambda: Accounts(opened.session)).read()

    def row(self, opened: Opened, status: SwarmStatus) -> wire.SwarmInfo:
        """All that is told of a swarm."""
        agents = [wire.Agent(**msgspec.structs.asdict(agent)) for agent in status.agents]
        row = msgspec.structs.asdict(self._row(opened, status))
        del row["task"]
        return wire.SwarmInfo(**row, task=status.task, result=status.result, agents=agents)

    def _row(self, opened: Opened, status: SwarmStatus) -> wire.SwarmRow:
        told = msgspec.structs.asdict(status)
        for name in ("agents", "budget", "agent_budget", "budget_used", "task", "result"):
            del told[name]
        used, task = status.budget_used, status.task
        return wire.SwarmRow(
            **told,
            task=task if len(task) <= BEGINNING else f"{task[:BEGINNING]}…",
            agent_count=len(status.agents),
            budget=_limited(status.budget),
            agent_budget=_limited(status.agent_budget),
            budget_used=used if used is None or math.isfinite(used) else None,
            here=status.id in self._live,
            left=status.status == "running"
            and status.id not in self._live
            and not is_worked_on(opened.session, status.id),
        )

    # Working

    def check(self, said: wire.NewSwarm) -> None:
        """Refuse a swarm that makes no sense, has no model, or no place to begin, before anything is made for it.

        Raises `Refused`, `NoModel` or `NotFound`.
        """
        empty = catalog.memory()
        try:
            Swarm(empty, said.name, said.task, **_asked(said))
        except InvalidOperation as error:
            raise Refused(422, str(error)) from error
        if said.session is None:
            empty.place(said.at)
        named = {said.model, *(() if isinstance(said.agents, int) else (agent.model for agent in said.agents))}
        for name in sorted(filter(None, named)):
            self._runs.find(name)
        if said.model is None and said.session is None:
            self._runs.find()

    async def create(self, opened: Opened, said: wire.NewSwarm, place: Workplace) -> str:
        """Make a swarm in a session that is held for it, and start it if that is wanted."""

        async def make() -> str:
            seat = await self._runs.seat(opened)
            desk = seat.desk
            swarm = await Swarm.create(
                opened.session,
                said.name,
                said.task,
                model=await self._runs.model(seat, opened.session.head, said.model),
                model_of=desk.models.find,
                tools=seat.tools_at(place),
                hooks=seat.hooks_at(place),
                settings=desk.settings,
                permissions=seat.permissions_at(place),
                **_asked(said),
            )
            if said.start:
                await self._begin(opened, swarm, swarm.start(), place)
            return swarm.id

        return await self._workshop.do(make())

    async def _begin(self, opened: Opened, swarm: Swarm, begun: Awaitable[None], place: Workplace) -> None:
        """Have a swarm work; its session is held as long as it does."""
        if swarm.id in self._live:
            await begun
            return
        self._live[swarm.id] = swarm  # from now on nobody else takes its branches
        self._places[swarm.id] = place
        try:
            await begun
        except BaseException:
            self._forget(swarm.id)
            raise
        if not swarm.running:
            self._forget(swarm.id)
            return
        self._sessions.hold_again(opened)
        task = asyncio.create_task(self._see_through(opened, swarm))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see_through(self, opened: Opened, swarm: Swarm) -> None:
        try:
            while swarm.running:
                await swarm.wait()
                opened.feed.wake()
                if swarm.running:  # it is paused
                    await asyncio.sleep(PAUSED_SECONDS)
        except Exception:
            log.exception("swarm %s failed", swarm.id)
            tell_notice(opened, Notice(level="error", text=f"swarm {swarm.name} stopped; the server's log tells why"))
        finally:
            self._forget(swarm.id)
            opened.feed.wake()
            self._sessions.let_go(opened)

    def _forget(self, id: str) -> None:
        del self._live[id], self._places[id]

    async def do(
        self, opened: Opened, id: str, deed: Callable[[Swarm], Awaitable[T]], place: Workplace | None = None
    ) -> T:
        """Have something done to a swarm, in the workshop; what makes agents work needs a place."""

        async def work() -> T:
            return await deed(await self._swarm(opened, id, place))

        return await self._workshop.do(work())

    async def resume(self, opened: Opened, id: str, said: wire.Resuming, place: Workplace) -> None:
        """Have a swarm go on: one that is paused, was not started, or whose process died."""

        async def go_on(swarm: Swarm) -> None:
            held = swarm.held
            if not held:
                await asyncio.to_thread(check_no_worker_has, id, swarm.name)
            known = swarm.status()
            status = known.status
            for agent in known.agents:
                if agent.status not in OVER:
                    self._runs.at_rest(opened, agent.branch)
            if status == "paused" or held:
                await self._begin(
                    opened,
                    swarm,
                    swarm.resume(
                        budget=_relimited(known.budget, said.budget),
                        agent_budget=_relimited(known.agent_budget, said.agent_budget),
                    ),
                    place,
                )
            elif said.budget is not None or said.agent_budget is not None:
                raise InvalidOperation(f"swarm {swarm.name} is {status}: a budget changes while it is paused")
            else:
                await self._begin(opened, swarm, swarm.start(), place)

        await self.do(opened, id, go_on, place)

    async def _swarm(self, opened: Opened, id: str, place: Workplace | None) -> Swarm:
        live = self._live.get(id)
        if live is not None:
            self._check_rights(id, place is not None and place.is_limited)
            return live
        seat = await self._runs.seat(opened)
        desk = seat.desk
        return Swarm.open(
            opened.session,
            id,
            model_of=desk.models.find,
            tools=desk.tools if place is None else seat.tools_at(place),
            hooks=desk.hooks if place is None else seat.hooks_at(place),
            settings=desk.settings,
            permissions=desk.permissions if place is None else seat.permissions_at(place),
        )

    async def close(self) -> None:
        """Stop working on all swarms. Nothing is decided: they can be gone on with."""
        if self._live:
            await self._workshop.do(self._leave())

    async def _leave(self) -> None:
        await asyncio.gather(*(swarm.leave() for swarm in list(self._live.values())), return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)


def _asked(said: wire.NewSwarm) -> dict[str, Any]:
    """What a swarm is to be, but for what belongs to this server."""
    return {
        "agents": said.agents if isinstance(said.agents, int) else [_spec(agent) for agent in said.agents],
        "max_agents": said.max_agents,
        "strategy": said.strategy,
        "parts": said.parts,
        "budget": budget_of(said.budget),
        "agent_budget": budget_of(said.agent_budget),
        "at": said.at,
        "retries": said.retries,
        "enable_branching": said.enable_branching,
        "enable_event_streaming": said.enable_event_streaming,
    }


def _limited(budget: Budget | None) -> wire.Limited | None:
    return None if budget is None else wire.Limited(**msgspec.structs.asdict(budget))


def _relimited(before: Budget | None, said: wire.Relimiting | None) -> Budget | None:
    """The budget that a swarm goes on with, where it is another."""
    given = {} if said is None else msgspec.structs.asdict(said)
    return laid_over(before, {kind: limit for kind, limit in given.items() if limit is not msgspec.UNSET})


def budget_of(said: wire.Limits | None) -> Budget | None:
    return None if said is None else Budget(cost=said.cost, tokens=said.tokens, seconds=said.seconds)


def _spec(said: wire.NewAgent) -> AgentSpec:
    return AgentSpec(name=said.name, task=said.task, model=said.model, budget=budget_of(said.budget))
