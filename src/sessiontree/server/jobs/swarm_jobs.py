"""Swarms that this server runs, and swarms of other processes that it finds in sessions.

The state of a swarm is stored in its session, so this server can also show, pause and stop swarms of other processes.
Only steering an agent needs the process that runs it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from sessiontree.agent.system_prompt import join_parts
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.events import Notice
from sessiontree.library import catalog
from sessiontree.server import schemas
from sessiontree.server.auth import Token
from sessiontree.server.http_errors import ApiError, make_insufficient_rights
from sessiontree.server.jobs.agent_access import Workspace
from sessiontree.server.jobs.agent_jobs import AgentJobs, publish_notice
from sessiontree.server.jobs.job_registry import STOPPED, AgentLoop, Job, JobRegistry
from sessiontree.server.session_cache import OpenSession, SessionCache, SessionLocator
from sessiontree.swarm.agent_runner import select_original_tools
from sessiontree.swarm.budget import Budget, override_limits
from sessiontree.swarm.durable import check_not_with_workers
from sessiontree.swarm.durable.executor import DurableExecutor
from sessiontree.swarm.lease import is_leased
from sessiontree.swarm.records import END_STATES, SWARM_RECORD_TYPE, AgentSpec, AgentState, SwarmStatus
from sessiontree.swarm.replay import SwarmTracker
from sessiontree.swarm.swarm import Swarm

log = logging.getLogger("sessiontree.server")

PAUSE_POLL_SECONDS = 1.0
"""How often to check whether a paused swarm has been resumed."""
TASK_PREVIEW_LENGTH = 300
"""Characters of a task in listings, which clients poll."""

T = TypeVar("T")


class SwarmAgentBranch(NamedTuple):
    """A branch that belongs to an unfinished agent of a swarm."""

    swarm: str
    """The id of the swarm."""
    name: str
    """The name of the swarm."""
    agent: str
    status: AgentState
    local_swarm: Swarm | None
    """The swarm, if this server runs it."""

    @property
    def description(self) -> str:
        return f"agent {self.agent} of swarm {self.name!r}"

    @property
    def is_running(self) -> bool:
        """Whether this server is running the agent."""
        return self.local_swarm is not None and self.status == "running"


class SwarmJobs:
    """The swarms of this server. A job has the key `("swarm", id)`."""

    def __init__(self, jobs: JobRegistry, sessions: SessionCache, runs: AgentJobs, agent_loop: AgentLoop) -> None:
        self._jobs = jobs
        self._sessions = sessions
        self._runs = runs
        self._agent_loop = agent_loop
        self._locator = SessionLocator(SWARM_RECORD_TYPE, sessions)

    def _get_local(self, id: str) -> Swarm | None:
        """Return a swarm that this server runs."""
        job = self._jobs.get("swarm", id)
        return None if job is None else job.worker

    def find_agent_branches(self, opened: OpenSession) -> dict[str, SwarmAgentBranch]:
        """Return the branches of unfinished swarm agents in a session, whichever process runs them."""
        local: dict[str, Swarm] = {
            job.key[1]: job.worker for job in self._jobs.list_jobs("swarm") if job.worker.session is opened.session
        }
        return {
            agent.branch: SwarmAgentBranch(
                id, replay.created.name, agent.id, replay.get_agent_state(agent), local.get(id)
            )
            for id, replay in list(self._read_swarms(opened).swarms.items())
            if not replay.is_over
            for agent in list(replay.agents.values())
            if agent.end_state is None
        }

    def check_idle(self, opened: OpenSession, branch: str) -> None:
        """Raises `InvalidOperation` if the branch belongs to an unfinished agent of a swarm."""
        found = self.find_agent_branches(opened).get(branch)
        if found is None:
            return
        is_orphaned = found.local_swarm is None and not is_leased(opened.session, found.swarm)
        state = {"pending": "waiting to start", "paused": "paused"}.get(found.status, "running")
        if is_orphaned and state == "running":
            state = "interrupted"
        owner = "" if found.local_swarm is not None else f"; {self._describe_owner(opened, found)}"
        remedy = "resume it" if is_orphaned or found.status == "paused" else "wait until it finishes"
        raise InvalidOperation(
            f"{found.description} is {state} on branch {branch!r}{owner}: stop the swarm, or {remedy}"
        )

    async def steer(self, opened: OpenSession, agent_branch: SwarmAgentBranch, text: str, *, limited: bool) -> None:
        """Queue a message for an agent. Raises `InvalidOperation` if another process runs it."""
        if agent_branch.local_swarm is None:
            owner = self._describe_owner(opened, agent_branch)
            raise InvalidOperation(f"cannot steer {agent_branch.description} from this server: {owner}")
        self._check_rights(agent_branch.swarm, limited)
        await agent_branch.local_swarm.steer(agent_branch.agent, text)

    def _check_rights(self, id: str, limited: bool) -> None:
        """Raises `ApiError` if the token is limited to projects and the agents of the swarm are not."""
        job = self._jobs.get("swarm", id)
        if limited and job is not None and job.workspace is not None and not job.workspace.is_limited:
            raise make_insufficient_rights()

    def _describe_owner(self, opened: OpenSession, agent_branch: SwarmAgentBranch) -> str:
        """Return a sentence about the process that runs a swarm, if it is not this server."""
        return "another process runs it" if is_leased(opened.session, agent_branch.swarm) else "no process runs it"

    # Reading

    def list_swarms(self, token: Token) -> list[schemas.SwarmListItem]:
        """Return all swarms that a token may see, newest first."""
        with closing(self._locator.iter_sessions(token)) as sessions:
            items = [
                self._build_list_item(opened, status)
                for opened in sessions
                for status in self._read_statuses(opened).values()
            ]
        return sorted(items, key=lambda item: (item.created_at, item.id), reverse=True)

    def _read_statuses(self, opened: OpenSession) -> dict[str, SwarmStatus]:
        with opened.session.hold_lock():
            swarms = self._read_swarms(opened).swarms
            statuses = {id: swarm.build_status(None, opened.session.id) for id, swarm in swarms.items()}
        local = {id: swarm for id in statuses if (swarm := self._get_local(id)) is not None}
        return {id: local[id].status() if id in local else status for id, status in statuses.items()}

    @contextmanager
    def use(self, id: str, token: Token) -> Generator[tuple[OpenSession, SwarmStatus]]:
        """Yield the session and the status of a swarm. The session stays open inside this context."""
        opened, status = self.acquire(id, token)
        try:
            yield opened, status
        finally:
            self._sessions.release(opened)

    def acquire(self, id: str, token: Token) -> tuple[OpenSession, SwarmStatus]:
        """Return the session and the status of a swarm. The caller releases the session. Raises `ApiError`."""
        found = self._locator.acquire(id, token, self._read_statuses)
        if found is None:  # also if the token may not see it
            raise ApiError(404, f"swarm {id!r} not found")
        return found

    def has_branching(self, opened: OpenSession, id: str) -> bool:
        return self._read_swarms(opened).swarms[id].created.branching

    def has_streaming(self, opened: OpenSession, id: str) -> bool:
        return self._read_swarms(opened).swarms[id].created.streaming

    def _read_swarms(self, opened: OpenSession) -> SwarmTracker:
        return opened.get_or_create(SwarmTracker, lambda: SwarmTracker(opened.session)).read()

    def build_swarm(self, opened: OpenSession, status: SwarmStatus) -> schemas.SwarmResponse:
        agents = [schemas.AgentResponse(**msgspec.structs.asdict(agent)) for agent in status.agents]
        item = msgspec.structs.asdict(self._build_list_item(opened, status))
        del item["task"]
        return schemas.SwarmResponse(**item, task=status.task, result=status.result, agents=agents)

    def _build_list_item(self, opened: OpenSession, status: SwarmStatus) -> schemas.SwarmListItem:
        fields = msgspec.structs.asdict(status)
        for name in ("agents", "budget", "agent_budget", "budget_used", "task", "result"):
            del fields[name]
        used, task = status.budget_used, status.task
        is_local = self._get_local(status.id) is not None
        return schemas.SwarmListItem(
            **fields,
            task=task if len(task) <= TASK_PREVIEW_LENGTH else f"{task[:TASK_PREVIEW_LENGTH]}…",
            agent_count=len(status.agents),
            budget=_build_budget_response(status.budget),
            agent_budget=_build_budget_response(status.agent_budget),
            budget_used=used if used is None or math.isfinite(used) else None,
            here=is_local,
            left=status.status == "running" and not is_local and not is_leased(opened.session, status.id),
        )

    # Running

    def check_request(self, request: schemas.CreateSwarmRequest) -> None:
        """Validate a request, its models and its starting place before anything is created.

        Raises `ApiError`, `NoModel` or `NotFound`.
        """
        empty = catalog.memory()
        try:
            Swarm(empty, request.name, request.task, **_build_options(request))
        except InvalidOperation as error:
            raise ApiError(422, str(error)) from error
        if request.session is None:
            empty.resolve_place(request.at)
        names = {request.model, *(() if isinstance(request.agents, int) else (agent.model for agent in request.agents))}
        for name in sorted(filter(None, names)):
            self._runs.find_model(name)
        if request.model is None and request.session is None:
            self._runs.find_model()

    async def create(self, opened: OpenSession, request: schemas.CreateSwarmRequest, workspace: Workspace) -> str:
        """Create a swarm in an open session, start it if the request asks for it, and return its id."""

        _check_workers_allowed(request.durable, workspace)

        async def create_and_start() -> str:
            runtime = await self._runs.open_runtime(opened)
            controller = runtime.controller
            tools = select_original_tools(f"swarm {request.name}", request.tools, runtime.get_tools(workspace))
            swarm = await Swarm.create(
                opened.session,
                request.name,
                request.task,
                model=await self._runs.choose_model(runtime, opened.session.head, request.model),
                model_of=controller.models.find,
                tools=None if request.durable and request.tools is None else tools,
                hooks=runtime.create_hooks(workspace),
                settings=controller.settings,
                permissions=runtime.get_permissions(workspace),
                executor=DurableExecutor(opened.session, tools=request.tools) if request.durable else None,
                **_build_options(request),
            )
            if request.start:
                await self._start(opened, swarm, swarm.start(), workspace)
            return swarm.id

        return await self._agent_loop.run(create_and_start())

    async def _start(self, opened: OpenSession, swarm: Swarm, starting: Awaitable[None], workspace: Workspace) -> None:
        """Await `starting`, then run the swarm as a job until it ends."""
        if self._get_local(swarm.id) is not None:
            await starting
            return
        job = Job(key=("swarm", swarm.id), opened=opened, worker=swarm, stop=swarm.detach, workspace=workspace)
        self._jobs.add(job)  # before it starts: no other job may take its branches
        try:
            await starting
        except BaseException:
            self._jobs.remove(job)
            raise
        if not swarm.is_running:
            self._jobs.remove(job)
            return

        def publish_failure(error: str | None) -> None:
            if error is not None and error != STOPPED:
                log.error("swarm %s: %s", swarm.id, escape_line(error))  # clients must not see paths of the server
                publish_notice(opened, Notice(level="error", text=f"swarm {swarm.name} stopped; see the server log"))

        self._jobs.start(job, _run_swarm(opened, swarm), publish_failure)

    async def run(
        self,
        opened: OpenSession,
        id: str,
        operation: Callable[[Swarm], Awaitable[T]],
        workspace: Workspace | None = None,
        *,
        durable: bool = False,
    ) -> T:
        """Apply an operation to a swarm in the agent loop. Operations that start agents need a workspace."""

        async def run_operation() -> T:
            return await operation(await self._open_swarm(opened, id, workspace, durable=durable))

        return await self._agent_loop.run(run_operation())

    async def resume(
        self, opened: OpenSession, id: str, request: schemas.ResumeSwarmRequest, workspace: Workspace
    ) -> None:
        """Resume a swarm that is paused, was not started, or whose process died."""

        _check_workers_allowed(request.durable, workspace)

        async def resume_swarm(swarm: Swarm) -> None:
            is_held = swarm.is_held
            if not is_held and not request.durable:
                await asyncio.to_thread(check_not_with_workers, id, swarm.name)
            known = swarm.status()
            status = known.status
            for agent in known.agents:
                if agent.status not in END_STATES:
                    self._runs.check_idle(opened, agent.branch)
            if status == "paused" or is_held:
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
                raise InvalidOperation(f"swarm {swarm.name} is {status}; pause it to change its budget")
            else:
                await self._start(opened, swarm, swarm.start(), workspace)

        await self.run(opened, id, resume_swarm, workspace, durable=request.durable)

    async def _open_swarm(
        self, opened: OpenSession, id: str, workspace: Workspace | None, *, durable: bool = False
    ) -> Swarm:
        local = self._get_local(id)
        if local is not None:
            self._check_rights(id, workspace is not None and workspace.is_limited)
            return local
        runtime = await self._runs.open_runtime(opened)
        controller = runtime.controller
        return Swarm.open(
            opened.session,
            id,
            model_of=controller.models.find,
            tools=controller.tools if workspace is None else runtime.get_tools(workspace),
            hooks=controller.hooks if workspace is None else runtime.create_hooks(workspace),
            settings=controller.settings,
            permissions=controller.permissions if workspace is None else runtime.get_permissions(workspace),
            executor=self._create_executor(opened, id) if durable else None,
            override_saved=durable,
        )

    def _create_executor(self, opened: OpenSession, id: str) -> DurableExecutor:
        created = self._read_swarms(opened).swarms[id].created
        system = join_parts(created.system) if isinstance(created.system, tuple) else created.system
        return DurableExecutor(opened.session, tools=created.tools, system=system, thinking=created.thinking)


async def _run_swarm(opened: OpenSession, swarm: Swarm) -> None:
    try:
        while swarm.is_running:
            await swarm.wait()
            opened.feed.wake()
            if swarm.is_running:  # it is paused
                await asyncio.sleep(PAUSE_POLL_SECONDS)
    finally:
        if isinstance(swarm.executor, DurableExecutor):
            await swarm.executor.close()


def _check_workers_allowed(durable: bool, workspace: Workspace) -> None:
    """Raises `ApiError` if the token is limited to projects: workers are not."""
    if durable and workspace.is_limited:
        raise make_insufficient_rights()


def _build_options(request: schemas.CreateSwarmRequest) -> dict[str, Any]:
    """Return the options of a swarm that come from the request."""
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
    """Return the budget with the changes of a request, or `None` if nothing changes."""
    given = {} if request is None else msgspec.structs.asdict(request)
    return override_limits(before, {kind: limit for kind, limit in given.items() if limit is not msgspec.UNSET})


def build_budget(request: schemas.BudgetRequest | None) -> Budget | None:
    return None if request is None else Budget(cost=request.cost, tokens=request.tokens, seconds=request.seconds)


def _build_agent_spec(request: schemas.SwarmAgentRequest) -> AgentSpec:
    return AgentSpec(name=request.name, task=request.task, model=request.model, budget=build_budget(request.budget))
