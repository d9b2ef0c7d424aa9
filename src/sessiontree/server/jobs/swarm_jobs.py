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

from sessiontree.errors import InvalidOperation
from sessiontree.hooks.events import Notice
from sessiontree.library import catalog
from sessiontree.server import schemas
from sessiontree.server.auth import Token
from sessiontree.server.http_errors import ApiError, make_insufficient_rights
from sessiontree.server.jobs.agent_access import Workspace
from sessiontree.server.jobs.agent_jobs import AgentJobs, publish_notice
from sessiontree.server.jobs.registry import AgentLoop
from sessiontree.server.session_cache import OpenSession, SessionCache
from sessiontree.server.session_locator import SessionLocator
from sessiontree.swarm.budget import Budget, override_limits
from sessiontree.swarm.durable import check_not_with_workers
from sessiontree.swarm.lease import is_leased
from sessiontree.swarm.records import SWARM_RECORD_TYPE
from sessiontree.swarm.replay import SwarmTracker
from sessiontree.swarm.status import END_STATES, AgentSpec, AgentState, SwarmStatus
from sessiontree.swarm.swarm import Swarm

log = logging.getLogger("sessiontree.server")

PAUSE_POLL_SECONDS = 1.0
"""Between two looks at a swarm that is paused."""
TASK_PREVIEW_LENGTH = 300
"""Characters of a task that listings have: clients ask for them again and again."""

NO_PROCESS = "no process works on it"

T = TypeVar("T")


class SwarmAgentBranch(NamedTuple):
    """An agent of a swarm that has a branch: it is at work there, goes on there, or is still to begin there."""

    swarm: str
    """By its id."""
    name: str
    agent: str
    status: AgentState
    local_swarm: Swarm | None
    """The swarm, where this server works on it."""

    @property
    def description(self) -> str:
        return f"agent {self.agent} of swarm {self.name!r}"

    @property
    def is_running(self) -> bool:
        """Whether it is, in this server."""
        return self.local_swarm is not None and self.status == "running"


class SwarmJobs:
    def __init__(self, sessions: SessionCache, runs: AgentJobs, agent_loop: AgentLoop) -> None:
        self._sessions = sessions
        self._runs = runs
        self._agent_loop = agent_loop
        self._locator = SessionLocator(SWARM_RECORD_TYPE, sessions)
        self._running: dict[str, Swarm] = {}
        """Those that this server works on."""
        self._workspaces: dict[str, Workspace] = {}
        """Where their agents work."""
        self._tasks: set[asyncio.Task[None]] = set()

    def find_agent_branches(self, opened: OpenSession) -> dict[str, SwarmAgentBranch]:
        """The branches of a session that agents of swarms have, wherever they work, until they are done."""
        live = {id: swarm for id, swarm in list(self._running.items()) if swarm.session is opened.session}
        return {
            agent.branch: SwarmAgentBranch(
                id, account.created.name, agent.id, account.get_agent_state(agent), live.get(id)
            )
            for id, account in list(self._read_accounts(opened).swarms.items())
            if not account.is_over
            for agent in list(account.agents.values())
            if agent.end_state is None
        }

    def check_idle(self, opened: OpenSession, branch: str) -> None:
        """Raises `InvalidOperation` while an agent of a swarm has a branch."""
        hand = self.find_agent_branches(opened).get(branch)
        if hand is None:
            return
        elsewhere = self._describe_owner(opened, hand)
        left = elsewhere == NO_PROCESS
        what = {"pending": "to begin", "paused": "paused"}.get(hand.status, "left" if left else "at work")
        where = f"; {elsewhere}" if elsewhere else ""
        then = "have it go on" if left or hand.status == "paused" else "wait until it is done"
        raise InvalidOperation(f"{hand.description} is {what} on branch {branch!r}{where}: stop the swarm, or {then}")

    async def steer(self, opened: OpenSession, agent_branch: SwarmAgentBranch, text: str, *, limited: bool) -> None:
        """Say something to an agent that works here. Raises `InvalidOperation` for others, and says where they do."""
        if agent_branch.local_swarm is None:
            raise InvalidOperation(
                f"{agent_branch.description} does not hear this server: {self._describe_owner(opened, agent_branch)}"
            )
        self._check_rights(agent_branch.swarm, limited)
        await agent_branch.local_swarm.steer(agent_branch.agent, text)

    def _check_rights(self, id: str, limited: bool) -> None:
        """Raises `Refused` where somebody whose token is limited speaks to agents that are not."""
        place = self._workspaces.get(id)
        if limited and place is not None and not place.is_limited:
            raise make_insufficient_rights()

    def _describe_owner(self, opened: OpenSession, agent_branch: SwarmAgentBranch) -> str | None:
        """Who works on a swarm that this server does not work on."""
        if agent_branch.local_swarm is not None:
            return None
        return "another process works on it" if is_leased(opened.session, agent_branch.swarm) else NO_PROCESS

    # Reading

    def list_swarms(self, token: Token) -> list[schemas.SwarmListItem]:
        """All swarms that a token may see, the newest first."""
        with closing(self._locator.iter_sessions(token)) as sessions:
            rows = [
                self._build_list_item(opened, status)
                for opened in sessions
                for status in self._read_statuses(opened).values()
            ]
        return sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)

    def _read_statuses(self, opened: OpenSession) -> dict[str, SwarmStatus]:
        with opened.session.hold_lock():
            accounts = self._read_accounts(opened).swarms
            found = {id: account.build_status(None, opened.session.id) for id, account in accounts.items()}
        return {id: self._running[id].status() if id in self._running else status for id, status in found.items()}

    @contextmanager
    def use(self, id: str, token: Token) -> Generator[tuple[OpenSession, SwarmStatus]]:
        """The session of a swarm and how far it has come. Raises `Refused`."""
        opened, status = self.acquire(id, token)
        try:
            yield opened, status
        finally:
            self._sessions.release(opened)

    def acquire(self, id: str, token: Token) -> tuple[OpenSession, SwarmStatus]:
        """The same, held until it is let go of. Raises `Refused`."""
        found = self._locator.acquire(id, token, self._read_statuses)
        if found is None:  # the same where the token may not see it
            raise ApiError(404, f"no swarm {id!r}")
        return found

    def has_branching(self, opened: OpenSession, id: str) -> bool:
        """Whether a swarm has branching enabled."""
        return self._read_accounts(opened).swarms[id].created.branching

    def has_streaming(self, opened: OpenSession, id: str) -> bool:
        """Whether a swarm tells its events."""
        return self._read_accounts(opened).swarms[id].created.streaming

    def _read_accounts(self, opened: OpenSession) -> SwarmTracker:
        return opened.get_or_create(SwarmTracker, lambda: SwarmTracker(opened.session)).read()

    def build_swarm(self, opened: OpenSession, status: SwarmStatus) -> schemas.SwarmResponse:
        """All that is told of a swarm."""
        agents = [schemas.AgentResponse(**msgspec.structs.asdict(agent)) for agent in status.agents]
        row = msgspec.structs.asdict(self._build_list_item(opened, status))
        del row["task"]
        return schemas.SwarmResponse(**row, task=status.task, result=status.result, agents=agents)

    def _build_list_item(self, opened: OpenSession, status: SwarmStatus) -> schemas.SwarmListItem:
        told = msgspec.structs.asdict(status)
        for name in ("agents", "budget", "agent_budget", "budget_used", "task", "result"):
            del told[name]
        used, task = status.budget_used, status.task
        return schemas.SwarmListItem(
            **told,
            task=task if len(task) <= TASK_PREVIEW_LENGTH else f"{task[:TASK_PREVIEW_LENGTH]}…",
            agent_count=len(status.agents),
            budget=_build_budget_response(status.budget),
            agent_budget=_build_budget_response(status.agent_budget),
            budget_used=used if used is None or math.isfinite(used) else None,
            here=status.id in self._running,
            left=status.status == "running"
            and status.id not in self._running
            and not is_leased(opened.session, status.id),
        )

    # Working

    def check_request(self, request: schemas.CreateSwarmRequest) -> None:
        """Refuse a swarm that makes no sense, has no model, or no place to begin, before anything is made for it.

        Raises `Refused`, `NoModel` or `NotFound`.
        """
        empty = catalog.memory()
        try:
            Swarm(empty, request.name, request.task, **_build_options(request))
        except InvalidOperation as error:
            raise ApiError(422, str(error)) from error
        if request.session is None:
            empty.resolve_place(request.at)
        named = {request.model, *(() if isinstance(request.agents, int) else (agent.model for agent in request.agents))}
        for name in sorted(filter(None, named)):
            self._runs.find_model(name)
        if request.model is None and request.session is None:
            self._runs.find_model()

    async def create(self, opened: OpenSession, request: schemas.CreateSwarmRequest, workspace: Workspace) -> str:
        """Make a swarm in a session that is held for it, and start it if that is wanted."""

        async def create_and_start() -> str:
            seat = await self._runs.open_runtime(opened)
            desk = seat.controller
            swarm = await Swarm.create(
                opened.session,
                request.name,
                request.task,
                model=await self._runs.choose_model(seat, opened.session.head, request.model),
                model_of=desk.models.find,
                tools=seat.get_tools(workspace),
                hooks=seat.create_hooks(workspace),
                settings=desk.settings,
                permissions=seat.get_permissions(workspace),
                **_build_options(request),
            )
            if request.start:
                await self._start(opened, swarm, swarm.start(), workspace)
            return swarm.id

        return await self._agent_loop.run(create_and_start())

    async def _start(self, opened: OpenSession, swarm: Swarm, starting: Awaitable[None], workspace: Workspace) -> None:
        """Have a swarm work; its session is held as long as it does."""
        if swarm.id in self._running:
            await starting
            return
        self._running[swarm.id] = swarm  # from now on nobody else takes its branches
        self._workspaces[swarm.id] = workspace
        try:
            await starting
        except BaseException:
            self._remove(swarm.id)
            raise
        if not swarm.is_running:
            self._remove(swarm.id)
            return
        self._sessions.add_user(opened)
        task = asyncio.create_task(self._run(opened, swarm))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, opened: OpenSession, swarm: Swarm) -> None:
        try:
            while swarm.is_running:
                await swarm.wait()
                opened.feed.wake()
                if swarm.is_running:  # it is paused
                    await asyncio.sleep(PAUSE_POLL_SECONDS)
        except Exception:
            log.exception("swarm %s failed", swarm.id)
            publish_notice(
                opened, Notice(level="error", text=f"swarm {swarm.name} stopped; the server's log tells why")
            )
        finally:
            self._remove(swarm.id)
            opened.feed.wake()
            self._sessions.release(opened)

    def _remove(self, id: str) -> None:
        del self._running[id], self._workspaces[id]

    async def run(
        self,
        opened: OpenSession,
        id: str,
        operation: Callable[[Swarm], Awaitable[T]],
        workspace: Workspace | None = None,
    ) -> T:
        """Have something done to a swarm, in the workshop; what makes agents work needs a place."""

        async def run_operation() -> T:
            return await operation(await self._open_swarm(opened, id, workspace))

        return await self._agent_loop.run(run_operation())

    async def resume(
        self, opened: OpenSession, id: str, request: schemas.ResumeSwarmRequest, workspace: Workspace
    ) -> None:
        """Have a swarm go on: one that is paused, was not started, or whose process died."""

        async def resume_swarm(swarm: Swarm) -> None:
            held = swarm.is_held
            if not held:
                await asyncio.to_thread(check_not_with_workers, id, swarm.name)
            known = swarm.status()
            status = known.status
            for agent in known.agents:
                if agent.status not in END_STATES:
                    self._runs.check_idle(opened, agent.branch)
            if status == "paused" or held:
                await self._start(
                    opened,
                    swarm,
                    swarm.resume(
                        budget=_apply_budget_change(known.budget, request.budget),
                        agent_budget=_apply_budget_change(known.agent_budget, request.agent_budget),
                    ),
                    workspace,
                )
            elif request.budget is not None or request.agent_budget is not None:
                raise InvalidOperation(f"swarm {swarm.name} is {status}: a budget changes while it is paused")
            else:
                await self._start(opened, swarm, swarm.start(), workspace)

        await self.run(opened, id, resume_swarm, workspace)

    async def _open_swarm(self, opened: OpenSession, id: str, workspace: Workspace | None) -> Swarm:
        live = self._running.get(id)
        if live is not None:
            self._check_rights(id, workspace is not None and workspace.is_limited)
            return live
        seat = await self._runs.open_runtime(opened)
        desk = seat.controller
        return Swarm.open(
            opened.session,
            id,
            model_of=desk.models.find,
            tools=desk.tools if workspace is None else seat.get_tools(workspace),
            hooks=desk.hooks if workspace is None else seat.create_hooks(workspace),
            settings=desk.settings,
            permissions=desk.permissions if workspace is None else seat.get_permissions(workspace),
        )

    async def close(self) -> None:
        """Stop working on all swarms. Nothing is decided: they can be gone on with."""
        if self._running:
            await self._agent_loop.run(self._detach_all())

    async def _detach_all(self) -> None:
        await asyncio.gather(*(swarm.detach() for swarm in list(self._running.values())), return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)


def _build_options(request: schemas.CreateSwarmRequest) -> dict[str, Any]:
    """What a swarm is to be, but for what belongs to this server."""
    return {
        "agents": request.agents
        if isinstance(request.agents, int)
        else [_build_agent_spec(agent) for agent in request.agents],
        "max_agents": request.max_agents,
        "strategy": request.strategy,
        "parts": request.parts,
        "budget": build_budget(request.budget),
        "agent_budget": build_budget(request.agent_budget),
        "at": request.at,
        "retries": request.retries,
        "enable_branching": request.enable_branching,
        "enable_event_streaming": request.enable_event_streaming,
    }


def _build_budget_response(budget: Budget | None) -> schemas.BudgetResponse | None:
    return None if budget is None else schemas.BudgetResponse(**msgspec.structs.asdict(budget))


def _apply_budget_change(before: Budget | None, request: schemas.BudgetChangeRequest | None) -> Budget | None:
    """The budget that a swarm goes on with, where it is another."""
    given = {} if request is None else msgspec.structs.asdict(request)
    return override_limits(before, {kind: limit for kind, limit in given.items() if limit is not msgspec.UNSET})


def build_budget(request: schemas.BudgetRequest | None) -> Budget | None:
    return None if request is None else Budget(cost=request.cost, tokens=request.tokens, seconds=request.seconds)


def _build_agent_spec(request: schemas.SwarmAgentRequest) -> AgentSpec:
    return AgentSpec(name=request.name, task=request.task, model=request.model, budget=build_budget(request.budget))
