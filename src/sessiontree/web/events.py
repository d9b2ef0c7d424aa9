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
from sessiontree.web.encoding import encoded
from sessiontree.web.opened import Opened, Position, position_at, read_position
from sessiontree.web.refusals import Refused
from sessiontree.web.rendering import Rendered
from sessiontree.web.rows import Telling, path_row, tree_row
from sessiontree.web.schema import EVENTS, told
from sessiontree.web.serving import Call, Reads
from sessiontree.web.streams import Slot
from sessiontree.web.wire import TreeRow

router = APIRouter(prefix="/api/sessions/{id}")

BATCH = 200
"""Entries that are read at once."""
QUIET_SECONDS = 15.0
"""A comment is sent when nothing else was for so long, so that nobody in between takes the connection for dead."""

Page = Annotated[str | None, Header(max_length=100)]
"""Which page asks: a stream that it opens again takes the place of the one before."""

_PLACE = re.compile(r"(\d{1,15}-[0-9a-f]{8})(?:\.([0-9a-f]{8})\.(\d{1,15}))?")


class Come(Struct, frozen=True):
    """How far a client has come."""

    position: Position
    number: int
    """Of what passes by, the last that it has."""

    def id(self, boot: str) -> str:
        return f"{self.position}.{boot}.{self.number}"


@router.get("/events", **told(EVENTS))
async def events(
    call: Reads,
    id: str,
    after: Annotated[str | None, Query(max_length=200)] = None,
    last_event_id: Annotated[str | None, Header(max_length=200)] = None,
    sessiontree_page: Page = None,
) -> Response:
    """Live events: `entry`, `head`, `delta`, `tool`, `run`, `permission`, `queue`, `notice`.

    They go on behind `Last-Event-ID`, or `after`, which may be the ETag of an answer too; without either, from now.
    """
    serving = call.serving
    slot = serving.streams.take(call.token, f"sessions/{id}", sessiontree_page)
    try:
        opened = await asyncio.to_thread(serving.sessions.hold, id, call.token)
        try:
            come = await asyncio.to_thread(_start, opened, last_event_id or after)
        except BaseException:
            serving.sessions.let_go(opened)
            raise
    except BaseException:
        serving.streams.free(slot)
        raise

    def let_go() -> None:
        serving.streams.free(slot)
        serving.sessions.let_go(opened)

    slot.wake = opened.feed.wake
    return EventStream(_stream(call, opened, come, slot), let_go)


class EventStream(StreamingResponse):
    """Events as they come, until the client goes away; then `let_go` is called, however it went."""

    def __init__(self, events: AsyncGenerator[bytes], let_go: Callable[[], None]) -> None:
        super().__init__(events, media_type=EVENTS, headers={"x-accel-buffering": "no"})
        self._events = events
        self._let_go = let_go

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._let_go()
            await self._events.aclose()


def _start(opened: Opened, said: str | None) -> Come:
    """Where a client goes on. Raises `Refused` where it cannot."""
    with opened.session.held():
        if said is None:
            return Come(opened.position, opened.feed.last)
        found = _PLACE.fullmatch(said.strip().strip('"'))
        if found is None:
            raise Refused(400, f"{said[:100]!r} is no place among the events of a session")
        position = read_position(found[1])
        opened.check(position)
        if found[2] != opened.feed.boot:
            return Come(position, opened.feed.since(position.count))
        number = int(found[3])
        if opened.feed.after(number) is None:
            raise Refused(410, "events that were missed are not kept any more: read the session anew")
        return Come(position, number)


async def _stream(call: Call, opened: Opened, come: Come, slot: Slot) -> AsyncGenerator[bytes]:
    serving, feed = call.serving, opened.feed
    with feed.waiting() as something, opened.watch.on():
        heads: JsonObject | None = None
        yield b": listening\n\n"
        quiet = time.monotonic()
        while not (serving.closing or slot.is_over) and serving.tokens.has(call.token):
            something.clear()
            try:
                told, come, heads, full = await asyncio.to_thread(_next, opened, come, heads)
            except (Refused, SessionTreeError) as error:
                yield b"event: resync\ndata: " + encoded(_broken_off(error).wire) + b"\n\n"
                return
            if told:
                yield told
                quiet = time.monotonic()
            if full:
                continue
            try:
                async with asyncio.timeout(max(0.0, quiet + QUIET_SECONDS - time.monotonic())):
                    await something.wait()
            except TimeoutError:
                yield b": quiet\n\n"
                quiet = time.monotonic()


def _broken_off(error: Refused | SessionTreeError) -> Refused:
    """Why a stream does not go on."""
    if isinstance(error, Refused):
        return error
    gone = isinstance(error, NotFound)
    return Refused(410, "the session is gone" if gone else f"the session cannot be read: {error}")


def _next(opened: Opened, come: Come, heads: JsonObject | None) -> tuple[bytes, Come, JsonObject | None, bool]:
    """What a client has not been told yet, how far it has come then, and whether there may be more at once."""
    feed, parts = opened.feed, list[Callable[[], bytes]]()
    opened.refresh()
    session = opened.session
    with session.held():
        opened.check(come.position)
        passing = feed.after(come.number)
        if passing is None:
            raise Refused(410, "this client was too slow: read the session anew")
        waiting = list(reversed(passing))
        start = come.position.count
        entries = session.tree.entries[start : start + BATCH]

        def pass_on(count: int) -> None:
            nonlocal come
            while waiting and waiting[-1].behind <= count:
                event = waiting.pop()
                come = replace(come, number=event.number)
                parts.append(partial(_event, event.kind, event.data, come.id(feed.boot)))

        for count, entry in enumerate(entries, start):
            pass_on(count)
            come = replace(come, position=position_at(session, count + 1))
            row, telling = tree_row(opened, entry), _telling(opened, count)
            parts.append(partial(_entry, row, telling, opened.rendered, come.id(feed.boot)))
        full = len(entries) == BATCH
        if not full:
            pass_on(len(session.tree.entries))
        heads_now = session.heads
        now: JsonObject = {
            "current": heads_now.current,
            "heads": dict(heads_now.heads),
            "archived": sorted(heads_now.archived),
        }
        if now != heads:
            parts.append(partial(_event, "head", encoded(now), come.id(feed.boot)))
    return b"".join(part() for part in parts), come, now, full  # the session is not held any more: this may take long


def _telling(opened: Opened, index: int) -> Telling:
    """What a path tells of an entry; the result of a tool comes with an entry of its own."""
    entry = opened.session.tree.entry_at(index)
    return path_row(opened, entry, entry.decoded(), {})


def _entry(row: TreeRow, telling: Telling, rendered: Rendered, id: str) -> bytes:
    """The event of an entry: what the tree and a path tell of it."""
    told = {**msgspec.to_builtins(row), **msgspec.to_builtins(telling.rendered(rendered))}
    return _event("entry", encoded({"entry": told}), id)


def _event(kind: str, data: bytes, id: str) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (id.encode(), kind.encode(), data)
