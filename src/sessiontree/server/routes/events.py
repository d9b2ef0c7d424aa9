"""The route of a session's live events: server-sent events that can be taken up again where they broke off.

What an event's id says: how many entries the client has, with a mark of the last one; and of what passes by, the
number it has come to. What is told and kept is in `live`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query
from fastapi.responses import Response, StreamingResponse
from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from sessiontree.core.entries import JsonObject
from sessiontree.errors import NotFound, SessionTreeError
from sessiontree.server.app_state import ReadContext, RequestContext
from sessiontree.server.entry_rows import UnrenderedPathRow, build_path_row, build_tree_row
from sessiontree.server.http_errors import ApiError
from sessiontree.server.live_events import StreamSlot
from sessiontree.server.openapi import EVENTS, describe_route
from sessiontree.server.rendering import HtmlCache, encode_json
from sessiontree.server.schemas import TreeRow
from sessiontree.server.session_cache import OpenSession, SessionPosition, compute_position, parse_position

router = APIRouter(prefix="/api/sessions/{id}")

BATCH = 200
"""Entries that are read at once."""
KEEPALIVE_SECONDS = 15.0
"""A comment is sent when nothing else was for so long, so that nobody in between takes the connection for dead."""

PageHeader = Annotated[str | None, Header(max_length=100)]
"""Which page asks: a stream that it opens again takes the place of the one before."""

_EVENT_ID = re.compile(r"(\d{1,15}-[0-9a-f]{8})(?:\.([0-9a-f]{8})\.(\d{1,15}))?")


class StreamPosition(Struct, frozen=True):
    """How far a client has come."""

    position: SessionPosition
    number: int
    """Of what passes by, the last that it has."""

    def format_id(self, boot: str) -> str:
        return f"{self.position}.{boot}.{self.number}"


@router.get("/events", **describe_route(EVENTS))
async def events(
    call: ReadContext,
    id: str,
    after: Annotated[str | None, Query(max_length=200)] = None,
    last_event_id: Annotated[str | None, Header(max_length=200)] = None,
    sessiontree_page: PageHeader = None,
) -> Response:
    """Live events: `entry`, `head`, `delta`, `tool`, `run`, `permission`, `queue`, `notice`.

    They go on behind `Last-Event-ID`, or `after`, which may be the ETag of an answer too; without either, from now.
    """
    serving = call.state
    slot = serving.streams.open_slot(call.token, f"sessions/{id}", sessiontree_page)
    try:
        opened = await asyncio.to_thread(serving.sessions.acquire, id, call.token)
        try:
            come = await asyncio.to_thread(_find_start, opened, last_event_id or after)
        except BaseException:
            serving.sessions.release(opened)
            raise
    except BaseException:
        serving.streams.close_slot(slot)
        raise

    def release() -> None:
        serving.streams.close_slot(slot)
        serving.sessions.release(opened)

    slot.wake = opened.feed.wake
    return EventStream(_stream_events(call, opened, come, slot), release)


class EventStream(StreamingResponse):
    """Events as they come, until the client goes away; then `let_go` is called, however it went."""

    def __init__(self, events: AsyncGenerator[bytes], release: Callable[[], None]) -> None:
        super().__init__(events, media_type=EVENTS, headers={"x-accel-buffering": "no"})
        self._events = events
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()
            await self._events.aclose()


def _find_start(opened: OpenSession, last_event_id: str | None) -> StreamPosition:
    """Where a client goes on. Raises `Refused` where it cannot."""
    with opened.session.hold_lock():
        if last_event_id is None:
            return StreamPosition(opened.position, opened.feed.last)
        found = _EVENT_ID.fullmatch(last_event_id.strip().strip('"'))
        if found is None:
            raise ApiError(400, f"{last_event_id[:100]!r} is no place among the events of a session")
        position = parse_position(found[1])
        opened.check_position(position)
        if found[2] != opened.feed.feed_id:
            return StreamPosition(position, opened.feed.find_start(position.count))
        number = int(found[3])
        if opened.feed.read_after(number) is None:
            raise ApiError(410, "events that were missed are not kept any more: read the session anew")
        return StreamPosition(position, number)


async def _stream_events(
    call: RequestContext, opened: OpenSession, position: StreamPosition, slot: StreamSlot
) -> AsyncGenerator[bytes]:
    serving, feed = call.state, opened.feed
    with feed.subscribe() as something, opened.watcher.watch():
        heads: JsonObject | None = None
        yield b": listening\n\n"
        quiet = time.monotonic()
        while not (serving.is_closing or slot.is_replaced) and serving.tokens.is_valid(call.token):
            something.clear()
            try:
                told, position, heads, full = await asyncio.to_thread(_read_next, opened, position, heads)
            except (ApiError, SessionTreeError) as error:
                yield b"event: resync\ndata: " + encode_json(_make_stream_error(error).payload) + b"\n\n"
                return
            if told:
                yield told
                quiet = time.monotonic()
            if full:
                continue
            try:
                async with asyncio.timeout(max(0.0, quiet + KEEPALIVE_SECONDS - time.monotonic())):
                    await something.wait()
            except TimeoutError:
                yield b": quiet\n\n"
                quiet = time.monotonic()


def _make_stream_error(error: ApiError | SessionTreeError) -> ApiError:
    """Why a stream does not go on."""
    if isinstance(error, ApiError):
        return error
    gone = isinstance(error, NotFound)
    return ApiError(410, "the session is gone" if gone else f"the session cannot be read: {error}")


def _read_next(
    opened: OpenSession, position: StreamPosition, heads: JsonObject | None
) -> tuple[bytes, StreamPosition, JsonObject | None, bool]:
    """What a client has not been told yet, how far it has come then, and whether there may be more at once."""
    feed, parts = opened.feed, list[Callable[[], bytes]]()
    opened.refresh()
    session = opened.session
    with session.hold_lock():
        opened.check_position(position.position)
        passing = feed.read_after(position.number)
        if passing is None:
            raise ApiError(410, "this client was too slow: read the session anew")
        waiting = list(reversed(passing))
        start = position.position.count
        entries = session.tree.entries[start : start + BATCH]

        def append_transient_events(count: int) -> None:
            nonlocal position
            while waiting and waiting[-1].entry_count <= count:
                event = waiting.pop()
                position = replace(position, number=event.number)
                parts.append(partial(_format_event, event.kind, event.data, position.format_id(feed.feed_id)))

        for count, entry in enumerate(entries, start):
            append_transient_events(count)
            position = replace(position, position=compute_position(session, count + 1))
            row, telling = build_tree_row(opened, entry), _build_path_row(opened, count)
            parts.append(
                partial(_format_entry_event, row, telling, opened.html_cache, position.format_id(feed.feed_id))
            )
        full = len(entries) == BATCH
        if not full:
            append_transient_events(len(session.tree.entries))
        heads_now = session.heads
        now: JsonObject = {
            "current": heads_now.current,
            "heads": dict(heads_now.heads),
            "archived": sorted(heads_now.archived),
        }
        if now != heads:
            parts.append(partial(_format_event, "head", encode_json(now), position.format_id(feed.feed_id)))
    return (
        b"".join(part() for part in parts),
        position,
        now,
        full,
    )  # the session is not held any more: this may take long


def _build_path_row(opened: OpenSession, index: int) -> UnrenderedPathRow:
    """What a path tells of an entry; the result of a tool comes with an entry of its own."""
    entry = opened.session.tree.get_entry_at(index)
    return build_path_row(opened, entry, entry.decode(), {})


def _format_entry_event(row: TreeRow, telling: UnrenderedPathRow, rendered: HtmlCache, id: str) -> bytes:
    """The event of an entry: what the tree and a path tell of it."""
    told = {**msgspec.to_builtins(row), **msgspec.to_builtins(telling.render(rendered))}
    return _format_event("entry", encode_json({"entry": told}), id)


def _format_event(kind: str, data: bytes, id: str) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (id.encode(), kind.encode(), data)
