"""Routes for swarms and experiments: create, watch, control, and the tree and branches that swarms work on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import Response

from sessiontree.branch_comparison import comparison_to_wire
from sessiontree.core.outline import Filter
from sessiontree.library import catalog
from sessiontree.server import schemas
from sessiontree.server.app_state import (
    Cursor,
    JsonResponse,
    Limit,
    ReadContext,
    RequestBody,
    RequestContext,
    RunContext,
    WriteContext,
)
from sessiontree.server.http_errors import ApiError
from sessiontree.server.live_events import StreamSlot
from sessiontree.server.openapi import EVENTS, describe_route
from sessiontree.server.response_content import encode_json, get_page
from sessiontree.server.routes.branches import use_session, validate_branch_name
from sessiontree.server.routes.events import KEEPALIVE_SECONDS, EventStream, PageHeader
from sessiontree.server.routes.sessions import resolve_session_folder
from sessiontree.server.routes.tree import build_branch_list, build_tree_page
from sessiontree.server.session_cache import OpenSession
from sessiontree.session import compare as compared
from sessiontree.swarm.events import EVENT_TYPES, BaseSwarmEvent, EventLog, build_spool_path
from sessiontree.swarm.experiment.experiment import build_result_json
from sessiontree.swarm.experiment.experiment import list_experiments as list_session_experiments
from sessiontree.swarm.records import SwarmStatus
from sessiontree.swarm.swarm import Swarm

router = APIRouter(prefix="/api")

POLL_SECONDS = 0.1
"""How often to read new events."""
BATCH = 500


@router.get("/swarms", **describe_route(schemas.SwarmListResponse))
def list_swarms(call: ReadContext, limit: Limit = schemas.DEFAULT_PAGE_SIZE, cursor: Cursor = None) -> JsonResponse:
    """List the swarms of all sessions that the token may see, newest first."""
    swarms = call.state.swarms.list_swarms(call.token)
    if cursor is not None:  # new swarms come first, so continue after the last swarm of the previous page
        created, tilde, last = cursor.partition("~")
        if not tilde:
            raise ApiError(400, f"invalid cursor {cursor[:100]!r}")
        swarms = [row for row in swarms if (row.created_at, row.id) < (created, last)]
    page = swarms[:limit]
    next_cursor = f"{page[-1].created_at}~{page[-1].id}" if len(swarms) > limit else None
    return JsonResponse(schemas.SwarmListResponse(swarms=page, next=next_cursor))


@router.post("/swarms", **describe_route(schemas.CreateSwarmResponse, status=201, request=schemas.CreateSwarmRequest))
async def create_swarm(
    call: RunContext, request: Annotated[schemas.CreateSwarmRequest, Depends(RequestBody(schemas.CreateSwarmRequest))]
) -> JsonResponse:
    """Create a swarm in a session or in a new one, and start it unless `start` is false."""
    validate_branch_name(request.name)
    await asyncio.to_thread(call.state.swarms.check_request, request)
    sessions = call.state.sessions
    id = request.session
    if id is None:
        folder = resolve_session_folder(call, request.cwd)
        id = await asyncio.to_thread(_create_session, request.name, folder)
    opened = await asyncio.to_thread(sessions.acquire, id, call.token)
    try:
        swarm_id = await call.state.swarms.create(opened, request, await call.find_workspace(opened))
        return JsonResponse(schemas.CreateSwarmResponse(id=swarm_id, session_id=opened.session.id), 201)
    finally:
        sessions.release(opened)


def _create_session(name: str, folder: str) -> str:
    with catalog.create_session(name, cwd=folder) as session:
        return session.id


@router.get("/swarms/{id}", **describe_route(schemas.SwarmResponse))
def get_swarm(call: ReadContext, id: str) -> JsonResponse:
    """Return the state of a swarm and its agents."""
    with call.state.swarms.use(id, call.token) as (opened, status):
        return JsonResponse(call.state.swarms.build_swarm(opened, status))


@router.get("/swarms/{id}/agents", **describe_route(schemas.AgentListResponse))
def get_agents(
    call: ReadContext, id: str, limit: Limit = schemas.DEFAULT_PAGE_SIZE, cursor: Cursor = None
) -> JsonResponse:
    """List the agents of a swarm."""
    with call.state.swarms.use(id, call.token) as (opened, status):
        page, next_cursor = get_page(call.state.swarms.build_swarm(opened, status).agents, limit, cursor)
        return JsonResponse(schemas.AgentListResponse(agents=list(page), next=next_cursor))


# Control


@asynccontextmanager
async def _use_swarm(call: RequestContext, id: str) -> AsyncGenerator[OpenSession]:
    opened, _ = await asyncio.to_thread(call.state.swarms.acquire, id, call.token)
    try:
        yield opened
    finally:
        call.state.sessions.release(opened)
        opened.feed.wake()


async def _run_operation(
    call: RequestContext, id: str, operation: Callable[[Swarm], Awaitable[object]]
) -> JsonResponse:
    """Apply an operation to a swarm and respond with its new state."""
    async with _use_swarm(call, id) as opened:
        await call.state.swarms.run(opened, id, operation, await call.find_workspace(opened))
    return await _respond_with_status(call, id)


async def _respond_with_status(call: RequestContext, id: str) -> JsonResponse:
    def build_response() -> JsonResponse:
        with call.state.swarms.use(id, call.token) as (opened, status):
            return JsonResponse(call.state.swarms.build_swarm(opened, status))

    return await asyncio.to_thread(build_response)


EmptyBody = Annotated[schemas.EmptyRequest, Depends(RequestBody(schemas.EmptyRequest, allow_empty=True))]


@router.post(
    "/swarms/{id}/pause", **describe_route(schemas.SwarmResponse, request=schemas.EmptyRequest, allow_empty=True)
)
async def pause(call: RunContext, id: str, request: EmptyBody) -> JsonResponse:
    """Pause a swarm. Model calls that are in progress finish first."""
    return await _run_operation(call, id, lambda swarm: swarm.pause())


@router.post(
    "/swarms/{id}/resume", **describe_route(schemas.SwarmResponse, request=schemas.ResumeSwarmRequest, allow_empty=True)
)
async def resume(
    call: RunContext,
    id: str,
    request: Annotated[schemas.ResumeSwarmRequest, Depends(RequestBody(schemas.ResumeSwarmRequest, allow_empty=True))],
) -> JsonResponse:
    """Resume a swarm that is paused, was not started, or whose process died. The request may change its budgets."""
    async with _use_swarm(call, id) as opened:
        await call.state.swarms.resume(opened, id, request, await call.find_workspace(opened))
    return await _respond_with_status(call, id)


@router.post(
    "/swarms/{id}/stop", **describe_route(schemas.SwarmResponse, request=schemas.EmptyRequest, allow_empty=True)
)
async def stop(call: RunContext, id: str, request: EmptyBody) -> JsonResponse:
    """Stop a swarm. The work of its agents is kept."""
    return await _run_operation(call, id, lambda swarm: swarm.cancel())


@router.post("/swarms/{id}/scale", **describe_route(schemas.SwarmResponse, request=schemas.ScaleSwarmRequest))
async def scale(
    call: RunContext,
    id: str,
    request: Annotated[schemas.ScaleSwarmRequest, Depends(RequestBody(schemas.ScaleSwarmRequest))],
) -> JsonResponse:
    """Change the number of agents."""
    return await _run_operation(call, id, lambda swarm: swarm.scale(request.agents))


@router.post("/swarms/{id}/steer", **describe_route(schemas.SwarmResponse, request=schemas.SteerAgentRequest))
async def steer(
    call: RunContext,
    id: str,
    request: Annotated[schemas.SteerAgentRequest, Depends(RequestBody(schemas.SteerAgentRequest))],
) -> JsonResponse:
    """Send a message to an agent that this server is running."""
    return await _run_operation(call, id, lambda swarm: swarm.steer(request.agent, request.text))


@router.delete("/swarms/{id}", **describe_route(schemas.SwarmResponse))
async def destroy(call: RunContext, id: str) -> JsonResponse:
    """Stop a swarm, archive its branches and delete its events. Nothing is removed from the session."""
    return await _run_operation(call, id, lambda swarm: swarm.destroy())


# Tree and branches


def _check_branching(call: RequestContext, status: SwarmStatus, opened: OpenSession) -> None:
    if not call.state.swarms.has_branching(opened, status.id):
        raise ApiError(409, f"swarm {status.name} does not have branching enabled")


@router.get("/swarms/{id}/tree", **describe_route(schemas.TreePage))
def get_tree(
    call: ReadContext,
    id: str,
    filter: Filter = "default",
    limit: Limit = schemas.DEFAULT_PAGE_SIZE,
    cursor: Cursor = None,
) -> JsonResponse:
    """Return the tree of the session that a swarm works in."""
    with call.state.swarms.use(id, call.token) as (opened, status), opened.session.hold_lock():
        _check_branching(call, status, opened)
        return JsonResponse(build_tree_page(opened, filter, limit, cursor), at=opened)


@router.get("/swarms/{id}/branches", **describe_route(schemas.BranchListResponse))
def get_branches(
    call: ReadContext, id: str, limit: Limit = schemas.DEFAULT_PAGE_SIZE, cursor: Cursor = None
) -> JsonResponse:
    """List the branches of the session that a swarm works in. New agents start at `current`."""
    with call.state.swarms.use(id, call.token) as (opened, status), opened.session.hold_lock():
        _check_branching(call, status, opened)
        branches = build_branch_list(opened.session, limit, cursor)
        return JsonResponse(msgspec.structs.replace(branches, current=status.current_branch), at=opened)


@router.post(
    "/swarms/{id}/branches",
    **describe_route(schemas.CreateBranchResponse, status=201, request=schemas.CreateBranchRequest),
)
async def create_branch(
    call: WriteContext,
    id: str,
    request: Annotated[schemas.CreateBranchRequest, Depends(RequestBody(schemas.CreateBranchRequest))],
) -> JsonResponse:
    """Create a branch for an agent of a swarm. No agent is moved."""
    validate_branch_name(request.name)
    async with _use_swarm(call, id) as opened:
        entry = await call.state.swarms.run(
            opened, id, lambda swarm: swarm.create_branch(request.name, request.description, at=request.at)
        )
    return JsonResponse(schemas.CreateBranchResponse(entry_id=entry, name=request.name), 201)


@router.post(
    "/swarms/{id}/switch-branch", **describe_route(schemas.CurrentBranchResponse, request=schemas.SwitchBranchRequest)
)
async def switch_branch(
    call: WriteContext,
    id: str,
    request: Annotated[schemas.SwitchBranchRequest, Depends(RequestBody(schemas.SwitchBranchRequest))],
) -> JsonResponse:
    """Let future agents start at the head of another branch."""
    async with _use_swarm(call, id) as opened:
        await call.state.swarms.run(opened, id, lambda swarm: swarm.switch_branch(request.branch))
        return JsonResponse(
            schemas.CurrentBranchResponse(current=request.branch, leaf=opened.session.branch(request.branch).leaf)
        )


@router.post("/swarms/{id}/compare", **describe_route(schemas.CompareResponse, request=schemas.CompareRequest))
def compare(
    call: ReadContext, id: str, request: Annotated[schemas.CompareRequest, Depends(RequestBody(schemas.CompareRequest))]
) -> JsonResponse:
    """Compare branches or agents from their common ancestor."""
    with call.state.swarms.use(id, call.token) as (opened, status), opened.session.hold_lock():
        _check_branching(call, status, opened)
        agents = {agent.id: agent.branch for agent in status.agents}
        branches = [agents.get(name, name) for name in request.branches]
        return JsonResponse(comparison_to_wire(compared(opened.session, branches, request.metric)), at=opened)


# Events


@router.get("/swarms/{id}/events", **describe_route(schemas.SwarmEventsResponse, EVENTS))
async def get_events(
    call: ReadContext,
    id: str,
    after: Annotated[int, Query(ge=0, le=1 << 53)] = 0,
    types: Annotated[str | None, Query(max_length=500)] = None,
    agent: Annotated[str | None, Query(max_length=300)] = None,
    limit: Limit = 1000,
    accept: Annotated[str, Header()] = "",
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    sessiontree_page: PageHeader = None,
) -> Response:
    """Return the events of a swarm after a number. `types` is a comma-separated list.

    If the client accepts `text/event-stream`, the events are streamed; otherwise the available ones are returned.
    """
    state = call.state
    wanted = None if types is None else frozenset(types.split(","))
    unknown = sorted((wanted or frozenset()) - frozenset(EVENT_TYPES))
    if unknown:
        raise ApiError(422, f"unknown event types {', '.join(unknown)}; types: {', '.join(EVENT_TYPES)}")
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit()):
            raise ApiError(400, f"invalid event number {last_event_id!r}")
        after = int(last_event_id)
    opened, status = await asyncio.to_thread(state.swarms.acquire, id, call.token)
    try:
        if not state.swarms.has_streaming(opened, status.id):
            raise ApiError(409, f"event streaming is disabled for swarm {status.name}")
        log = EventLog(build_spool_path(id))
        last = await asyncio.to_thread(lambda: log.last)
        if after > last:
            raise ApiError(410, f"event {after} not found; the last event is {last}")
        if EVENTS not in accept:
            events = await asyncio.to_thread(log.read, after, wanted, agent, limit)
            return JsonResponse(
                schemas.SwarmEventsResponse(events=[msgspec.to_builtins(event) for event in events], last=last)
            )
        slot = state.streams.open_slot(call.token, f"swarms/{id}", sessiontree_page)
    except BaseException:
        state.sessions.release(opened)
        raise

    def release() -> None:
        state.streams.close_slot(slot)
        state.sessions.release(opened)

    return EventStream(_stream_events(call, slot, log, after, wanted, agent), release)


async def _stream_events(
    call: RequestContext, slot: StreamSlot, log: EventLog, after: int, types: frozenset[str] | None, agent: str | None
) -> AsyncGenerator[bytes]:
    state = call.state
    yield b": listening\n\n"
    last_sent = time.monotonic()
    try:
        while not (state.is_closing or slot.is_replaced) and state.tokens.is_valid(call.token):
            events = await asyncio.to_thread(log.read, after, limit=BATCH)
            wanted = [event for event in events if _is_wanted(event, types, agent)]
            if wanted:
                yield b"".join(
                    b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), encode_json(event))
                    for event in wanted
                )
                last_sent = time.monotonic()
            elif time.monotonic() - last_sent > KEEPALIVE_SECONDS:
                yield b": quiet\n\n"
                last_sent = time.monotonic()
            if events:
                after = events[-1].seq
            else:
                await asyncio.sleep(POLL_SECONDS)
    finally:
        log.close()


def _is_wanted(event: BaseSwarmEvent, types: frozenset[str] | None, agent: str | None) -> bool:
    return (types is None or event.type in types) and agent in (None, event.agent)


# Experiments


@router.get("/sessions/{id}/experiments", **describe_route(schemas.ExperimentListResponse))
def list_experiments(
    call: ReadContext, id: str, limit: Limit = schemas.DEFAULT_PAGE_SIZE, cursor: Cursor = None
) -> JsonResponse:
    """List the experiments of a session with their results so far, oldest first."""
    with call.read_session(id) as opened:
        page, next_cursor = get_page(list_session_experiments(opened.session), limit, cursor)
        results = [build_result_json(result) for result in page]
        return JsonResponse(schemas.ExperimentListResponse(experiments=results, next=next_cursor), at=opened)


@router.post(
    "/sessions/{id}/experiments",
    **describe_route(schemas.CreateExperimentResponse, status=202, request=schemas.CreateExperimentRequest),
)
async def create_experiment(
    call: RunContext,
    id: str,
    request: Annotated[schemas.CreateExperimentRequest, Depends(RequestBody(schemas.CreateExperimentRequest))],
) -> JsonResponse:
    """Start an experiment: run several arms from one place, each several times, and compare them."""
    async with use_session(call, id) as opened:
        return JsonResponse(
            await call.state.experiments.create(opened, request, await call.find_workspace(opened)), 202
        )


@router.get("/experiments/{id}", **describe_route(schemas.ExperimentResponse))
def get_experiment(call: ReadContext, id: str) -> JsonResponse:
    """Return the progress and results of an experiment."""
    return JsonResponse(call.state.experiments.get_state(id, call.token))


@router.post(
    "/experiments/{id}/stop",
    **describe_route(schemas.ExperimentResponse, request=schemas.EmptyRequest, allow_empty=True),
)
async def stop_experiment(call: RunContext, id: str, request: EmptyBody) -> JsonResponse:
    """Stop an experiment. Finished runs keep their results."""
    experiments = call.state.experiments
    state = await asyncio.to_thread(experiments.get_state, id, call.token)
    await experiments.stop(state.session_id, id)
    return JsonResponse(await asyncio.to_thread(experiments.get_state, id, call.token))
