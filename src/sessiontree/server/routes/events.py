"""The route of live events: server-sent events that a client can resume.

The id of an event contains the client's position in the session and the number of the last transient event.
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
from sessiontree.server.http_errors import ApiError
from sessiontree.server.live_events import StreamSlot
from sessiontree.server.openapi import EVENTS, describe_route
from sessiontree.server.response_content import HtmlCache, encode_json
from sessiontree.server.routes.tree import UnrenderedPathRow, build_path_row, build_tree_row
from sessiontree.server.schemas import TreeRow
from sessiontree.server.session_cache import OpenSession, SessionPosition, compute_position, parse_position

router = APIRouter(prefix="/api/sessions/{id}")

BATCH = 200
"""Maximum entries per read."""
KEEPALIVE_SECONDS = 15.0
"""After this time without events, a comment is sent: proxies then keep the connection open."""

PageHeader = Annotated[str | None, Header(max_length=100)]
"""Identifies the page: a stream that it opens again replaces the previous one."""

_EVENT_ID = re.compile(r"(\d{1,15}-[0-9a-f]{8})(?:\.([0-9a-f]{8})\.(\d{1,15}))?")


class StreamPosition(Struct, frozen=True):
    """The position of a client in the stream."""

    position: SessionPosition
    number: int
    """The number of its last transient event."""

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
    """Stream live events: `entry`, `head`, `delta`, `tool`, `run`, `permission`, `queue`, `snapshot`,
    `notice`.

    The stream continues after `Last-Event-ID` or `after`, which may be the ETag of a response; otherwise it starts now.
    """
    state = call.state
    slot = state.streams.open_slot(call.token, f"sessions/{id}", sessiontree_page)
    try:
        opened = await asyncio.to_thread(state.sessions.acquire, id, call.token)
        try:
            position = await asyncio.to_thread(_find_start, opened, last_event_id or after)
        except BaseException:
            state.sessions.release(opened)
            raise
    except BaseException:
        state.streams.close_slot(slot)
        raise

    def release() -> None:
        state.streams.close_slot(slot)
        state.sessions.release(opened)

    slot.wake = opened.feed.wake
    return EventStream(_stream_events(call, opened, position, slot), release)


class EventStream(StreamingResponse):
    """Streams events until the client disconnects, then calls `release`."""

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
    """Return the position from which a client continues. Raises `ApiError` if it cannot."""
    with opened.session.hold_lock():
        if last_event_id is None:
            return StreamPosition(opened.position, opened.feed.last)
        found = _EVENT_ID.fullmatch(last_event_id.strip().strip('"'))
        if found is None:
            raise ApiError(400, f"{last_event_id[:100]!r} is not an event id of this session")
        position = parse_position(found[1])
        opened.check_position(position)
        if found[2] != opened.feed.feed_id:
            return StreamPosition(position, opened.feed.find_start(position.count))
        number = int(found[3])
        if opened.feed.read_after(number) is None:
            raise ApiError(410, "missed events are no longer available; load the session again")
        return StreamPosition(position, number)


async def _stream_events(
    call: RequestContext, opened: OpenSession, position: StreamPosition, slot: StreamSlot
) -> AsyncGenerator[bytes]:
    state, feed = call.state, opened.feed
    with feed.subscribe() as changed, opened.watcher.watch():
        heads: JsonObject | None = None
        yield b": listening\n\n"
        last_sent = time.monotonic()
        while not (state.is_closing or slot.is_replaced) and state.tokens.is_valid(call.token):
            changed.clear()
            try:
                data, position, heads, has_more = await asyncio.to_thread(_read_next, opened, position, heads)
            except (ApiError, SessionTreeError) as error:
                yield b"event: resync\ndata: " + encode_json(_make_stream_error(error).payload) + b"\n\n"
                return
            if data:
                yield data
                last_sent = time.monotonic()
            if has_more:
                continue
            try:
                async with asyncio.timeout(max(0.0, last_sent + KEEPALIVE_SECONDS - time.monotonic())):
                    await changed.wait()
            except TimeoutError:
                yield b": quiet\n\n"
                last_sent = time.monotonic()


def _make_stream_error(error: ApiError | SessionTreeError) -> ApiError:
    """Return the error that ends a stream."""
    if isinstance(error, ApiError):
        return error
    gone = isinstance(error, NotFound)
    return ApiError(410, "the session was deleted" if gone else f"cannot read the session: {error}")


def _read_next(
    opened: OpenSession, position: StreamPosition, heads: JsonObject | None
) -> tuple[bytes, StreamPosition, JsonObject | None, bool]:
    """Return the next events, the new position, the heads, and whether more entries are available."""
    feed, parts = opened.feed, list[Callable[[], bytes]]()
    opened.refresh()
    session = opened.session
    with session.hold_lock():
        opened.check_position(position.position)
        buffered = feed.read_after(position.number)
        if buffered is None:
            raise ApiError(410, "this client was too slow; load the session again")
        pending = list(reversed(buffered))
        start = position.position.count
        entries = session.tree.entries[start : start + BATCH]

        def append_transient_events(count: int) -> None:
            nonlocal position
            while pending and pending[-1].entry_count <= count:
                event = pending.pop()
                position = replace(position, number=event.number)
                parts.append(partial(_format_event, event.kind, event.data, position.format_id(feed.feed_id)))

        for count, entry in enumerate(entries, start):
            append_transient_events(count)
            position = replace(position, position=compute_position(session, count + 1))
            row, path_row = build_tree_row(opened, entry), _build_path_row(opened, count)
            parts.append(
                partial(_format_entry_event, row, path_row, opened.html_cache, position.format_id(feed.feed_id))
            )
        has_more = len(entries) == BATCH
        if not has_more:
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
        has_more,
    )  # rendering may take long: the session is not locked here


def _build_path_row(opened: OpenSession, index: int) -> UnrenderedPathRow:
    """Build the path row of an entry. Tool results arrive with their own entries."""
    entry = opened.session.tree.get_entry_at(index)
    return build_path_row(opened, entry, entry.decode(), {})


def _format_entry_event(tree_row: TreeRow, path_row: UnrenderedPathRow, html_cache: HtmlCache, id: str) -> bytes:
    """Format the event of an entry, with the fields of its tree row and its path row."""
    fields = {**msgspec.to_builtins(tree_row), **msgspec.to_builtins(path_row.render(html_cache))}
    return _format_event("entry", encode_json({"entry": fields}), id)


def _format_event(kind: str, data: bytes, id: str) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (id.encode(), kind.encode(), data)
