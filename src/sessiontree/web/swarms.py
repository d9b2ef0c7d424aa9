"""Routes over swarms: making, watching and steering them, and the tree and branches that they work on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import Response

from sessiontree import catalog
from sessiontree.comparison import comparison_to_wire
from sessiontree.core.outline import Filter
from sessiontree.session import compare as compared
from sessiontree.swarm.events import EVENT_TYPES, Event, EventLog, spool_path
from sessiontree.swarm.status import SwarmStatus
from sessiontree.swarm.swarm import Swarm
from sessiontree.web import wire
from sessiontree.web.encoding import encoded
from sessiontree.web.events import QUIET_SECONDS, EventStream, Page
from sessiontree.web.moving import check_name
from sessiontree.web.opened import Opened
from sessiontree.web.paging import Cursor, Limit, page_of
from sessiontree.web.refusals import Refused
from sessiontree.web.rows import branches_of
from sessiontree.web.schema import EVENTS, told
from sessiontree.web.serving import Call, Json, Reads, Running, Said, Writes
from sessiontree.web.sessions import folder_for
from sessiontree.web.streams import Slot
from sessiontree.web.tree import tree_page

router = APIRouter(prefix="/api/swarms")

POLL = 0.1
"""Seconds between two looks into a spool."""
BATCH = 500


@router.get("", **told(wire.Swarms))
def list_swarms(call: Reads, limit: Limit = wire.PAGE, cursor: Cursor = None) -> Json:
    """All swarms of all sessions that the token may see, the newest first."""
    listed = call.serving.swarms.listed(call.token)
    if cursor is not None:  # new ones come first: a page goes on behind the swarm that the last one ended with
        made, _, last = cursor.partition("~")
        listed = [row for row in listed if (row.created_at, row.id) < (made, last)]
    page = listed[:limit]
    following = f"{page[-1].created_at}~{page[-1].id}" if len(listed) > limit else None
    return Json(wire.Swarms(swarms=page, next=following))


@router.post("", **told(wire.MadeSwarm, status=201, takes=wire.NewSwarm))
async def create_swarm(call: Running, said: Annotated[wire.NewSwarm, Depends(Said(wire.NewSwarm))]) -> Json:
    """A swarm in a session, or in a new one, which starts to work unless `start` is false."""
    check_name(said.name)
    await asyncio.to_thread(call.serving.swarms.check, said)
    sessions = call.serving.sessions
    id = said.session
    if id is None:
        folder = folder_for(call, said.cwd)
        id = await asyncio.to_thread(_new_session, said.name, folder)
    opened = await asyncio.to_thread(sessions.hold, id, call.token)
    try:
        made = await call.serving.swarms.create(opened, said, await call.workplace(opened))
        return Json(wire.MadeSwarm(id=made, session_id=opened.session.id), 201)
    finally:
        sessions.let_go(opened)


def _new_session(name: str, folder: str) -> str:
    with catalog.create(name, cwd=folder) as made:
        return made.id


@router.get("/{id}", **told(wire.SwarmInfo))
def get_swarm(call: Reads, id: str) -> Json:
    """What a swarm is, and how far it and its agents have come."""
    with call.serving.swarms.found(id, call.token) as (opened, status):
        return Json(call.serving.swarms.row(opened, status))


@router.get("/{id}/agents", **told(wire.Agents))
def get_agents(call: Reads, id: str, limit: Limit = wire.PAGE, cursor: Cursor = None) -> Json:
    """The agents of a swarm."""
    with call.serving.swarms.found(id, call.token) as (opened, status):
        page, following = page_of(call.serving.swarms.row(opened, status).agents, limit, cursor)
        return Json(wire.Agents(agents=list(page), next=following))


# Steering


@asynccontextmanager
async def _held(call: Call, id: str) -> AsyncGenerator[Opened]:
    opened, _ = await asyncio.to_thread(call.serving.swarms.hold, id, call.token)
    try:
        yield opened
    finally:
        call.serving.sessions.let_go(opened)
        opened.feed.wake()


async def _done(call: Call, id: str, deed: Callable[[Swarm], Awaitable[object]]) -> Json:
    """Do something to a swarm, and tell how it is then."""
    async with _held(call, id) as opened:
        await call.serving.swarms.do(opened, id, deed, await call.workplace(opened))
    return await _status(call, id)


async def _status(call: Call, id: str) -> Json:
    def told_() -> Json:
        with call.serving.swarms.found(id, call.token) as (opened, status):
            return Json(call.serving.swarms.row(opened, status))

    return await asyncio.to_thread(told_)


Empty = Annotated[wire.Nothing, Depends(Said(wire.Nothing, empty=True))]


@router.post("/{id}/pause", **told(wire.SwarmInfo, takes=wire.Nothing, empty=True))
async def pause(call: Running, id: str, said: Empty) -> Json:
    """Let the calls under way come to their end, and begin no more."""
    return await _done(call, id, lambda swarm: swarm.pause())


@router.post("/{id}/resume", **told(wire.SwarmInfo, takes=wire.Resuming, empty=True))
async def resume(
    call: Running, id: str, said: Annotated[wire.Resuming, Depends(Said(wire.Resuming, empty=True))]
) -> Json:
    """Go on with a swarm that is paused, was not started, or whose process died; with larger budgets if given."""
    async with _held(call, id) as opened:
        await call.serving.swarms.resume(opened, id, said, await call.workplace(opened))
    return await _status(call, id)


@router.post("/{id}/stop", **told(wire.SwarmInfo, takes=wire.Nothing, empty=True))
async def stop(call: Running, id: str, said: Empty) -> Json:
    """Give a swarm up. What its agents have stays."""
    return await _done(call, id, lambda swarm: swarm.cancel())


@router.post("/{id}/scale", **told(wire.SwarmInfo, takes=wire.Scaling))
async def scale(call: Running, id: str, said: Annotated[wire.Scaling, Depends(Said(wire.Scaling))]) -> Json:
    """Have another number of agents work."""
    return await _done(call, id, lambda swarm: swarm.scale(said.agents))


@router.post("/{id}/steer", **told(wire.SwarmInfo, takes=wire.SteeringAgent))
async def steer(call: Running, id: str, said: Annotated[wire.SteeringAgent, Depends(Said(wire.SteeringAgent))]) -> Json:
    """Say something to an agent at work in this server."""
    return await _done(call, id, lambda swarm: swarm.steer(said.agent, said.text))


@router.delete("/{id}", **told(wire.SwarmInfo))
async def destroy(call: Running, id: str) -> Json:
    """Give a swarm up, hide its branches and delete its events. Nothing is removed from the session."""
    return await _done(call, id, lambda swarm: swarm.destroy())


# Its tree and branches


def _branching(call: Call, status: SwarmStatus, opened: Opened) -> None:
    if not call.serving.swarms.branches(opened, status.id):
        raise Refused(409, f"swarm {status.name} does not have branching enabled")


@router.get("/{id}/tree", **told(wire.TreePage))
def get_tree(call: Reads, id: str, filter: Filter = "default", limit: Limit = wire.PAGE, cursor: Cursor = None) -> Json:
    """The tree of the session that a swarm works in, as the session's own route tells it."""
    with call.serving.swarms.found(id, call.token) as (opened, status), opened.session.held():
        _branching(call, status, opened)
        return Json(tree_page(opened, filter, limit, cursor), at=opened)


@router.get("/{id}/branches", **told(wire.Branches))
def get_branches(call: Reads, id: str, limit: Limit = wire.PAGE, cursor: Cursor = None) -> Json:
    """The branches of the session that a swarm works in; `current` is where its further agents begin."""
    with call.serving.swarms.found(id, call.token) as (opened, status), opened.session.held():
        _branching(call, status, opened)
        branches = branches_of(opened.session, limit, cursor)
        return Json(msgspec.structs.replace(branches, current=status.current_branch), at=opened)


@router.post("/{id}/branches", **told(wire.MadeBranch, status=201, takes=wire.NewBranch))
async def create_branch(call: Writes, id: str, said: Annotated[wire.NewBranch, Depends(Said(wire.NewBranch))]) -> Json:
    """A branch for an agent of a swarm to work on. Nobody is moved."""
    check_name(said.name)
    async with _held(call, id) as opened:
        entry = await call.serving.swarms.do(
            opened, id, lambda swarm: swarm.create_branch(said.name, said.description, at=said.at)
        )
    return Json(wire.MadeBranch(entry_id=entry, name=said.name), 201)


@router.post("/{id}/switch-branch", **told(wire.Here, takes=wire.Switch))
async def switch_branch(call: Writes, id: str, said: Annotated[wire.Switch, Depends(Said(wire.Switch))]) -> Json:
    """Have agents that are not there yet begin at the head of another branch."""
    async with _held(call, id) as opened:
        await call.serving.swarms.do(opened, id, lambda swarm: swarm.switch_branch(said.branch))
        return Json(wire.Here(current=said.branch, leaf=opened.session.branch(said.branch).leaf))


@router.post("/{id}/compare", **told(wire.Compared, takes=wire.Comparing))
def compare(call: Reads, id: str, said: Annotated[wire.Comparing, Depends(Said(wire.Comparing))]) -> Json:
    """What branches, or agents, cost and did after they parted."""
    with call.serving.swarms.found(id, call.token) as (opened, status), opened.session.held():
        _branching(call, status, opened)
        agents = {agent.id: agent.branch for agent in status.agents}
        branches = [agents.get(name, name) for name in said.branches]
        return Json(comparison_to_wire(compared(opened.session, branches, said.metric)), at=opened)


# Events


@router.get("/{id}/events", **told(wire.SwarmEvents, EVENTS))
async def get_events(
    call: Reads,
    id: str,
    after: Annotated[int, Query(ge=0, le=1 << 53)] = 0,
    types: Annotated[str | None, Query(max_length=500)] = None,
    agent: Annotated[str | None, Query(max_length=300)] = None,
    limit: Limit = 1000,
    accept: Annotated[str, Header()] = "",
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    sessiontree_page: Page = None,
) -> Response:
    """What happens in a swarm, behind a number; types are joined by commas.

    As server-sent events where the client accepts `text/event-stream`, otherwise those that there are.
    """
    serving = call.serving
    wanted = None if types is None else frozenset(types.split(","))
    unknown = sorted((wanted or frozenset()) - frozenset(EVENT_TYPES))
    if unknown:
        raise Refused(422, f"there are no events {', '.join(unknown)}: there are {', '.join(EVENT_TYPES)}")
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit()):
            raise Refused(400, f"{last_event_id!r} is no number of an event")
        after = int(last_event_id)
    opened, status = await asyncio.to_thread(serving.swarms.hold, id, call.token)
    try:
        if not serving.swarms.streams(opened, status.id):
            raise Refused(409, f"swarm {status.name} does not have event streaming enabled")
        log = EventLog(spool_path(id))
        last = await asyncio.to_thread(lambda: log.last)
        if after > last:
            raise Refused(410, f"there is no event {after}: the last one is {last}")
        if EVENTS not in accept:
            events = await asyncio.to_thread(log.read, after, wanted, agent, limit)
            return Json(wire.SwarmEvents(events=[msgspec.to_builtins(event) for event in events], last=last))
        slot = serving.streams.take(call.token, f"swarms/{id}", sessiontree_page)
    except BaseException:
        serving.sessions.let_go(opened)
        raise

    def let_go() -> None:
        serving.streams.free(slot)
        serving.sessions.let_go(opened)

    return EventStream(_stream(call, slot, log, after, wanted, agent), let_go)


async def _stream(
    call: Call, slot: Slot, log: EventLog, after: int, types: frozenset[str] | None, agent: str | None
) -> AsyncGenerator[bytes]:
    serving = call.serving
    yield b": listening\n\n"
    quiet = time.monotonic()
    try:
        while not (serving.closing or slot.is_over) and serving.tokens.has(call.token):
            events = await asyncio.to_thread(log.read, after, limit=BATCH)
            shown = [event for event in events if _is_wanted(event, types, agent)]
            if shown:
                yield b"".join(
                    b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), encoded(event))
                    for event in shown
                )
                quiet = time.monotonic()
            elif time.monotonic() - quiet > QUIET_SECONDS:
                yield b": quiet\n\n"
                quiet = time.monotonic()
            if events:
                after = events[-1].seq
            else:
                await asyncio.sleep(POLL)
    finally:
        log.close()


def _is_wanted(event: Event, types: frozenset[str] | None, agent: str | None) -> bool:
    return (types is None or event.type in types) and agent in (None, event.agent)
