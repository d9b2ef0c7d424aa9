"""Serving: everything that one server holds, from its start to its end, and what a request may do with it.

A route has a `Call`: the server, the token, and the way to a session. There is no other way to one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import Response
from fastapi.routing import APIRoute

from sessiontree.commands.models import Models
from sessiontree.config import PermissionMode
from sessiontree.core.misfit import misfit
from sessiontree.core.safe import safe
from sessiontree.errors import Conflict, InvalidOperation, SessionTreeError, few
from sessiontree.store.waiting import limited_to
from sessiontree.web.encoding import encoded
from sessiontree.web.export_jobs import ExportJobs
from sessiontree.web.guard import Hosts, Limits
from sessiontree.web.opened import Opened, OpenSessions, Position
from sessiontree.web.permissions import PermissionDesk
from sessiontree.web.refusals import Refused
from sessiontree.web.runs import Runs
from sessiontree.web.streams import Streams
from sessiontree.web.swarming import Swarms
from sessiontree.web.tokens import Scope, Token, Tokens
from sessiontree.web.trials import Trials
from sessiontree.web.wire import Asked
from sessiontree.web.workplace import Workplace, Workplaces
from sessiontree.web.workshop import Workshop

if TYPE_CHECKING:
    from sessiontree.model.find import Offer

log = logging.getLogger("sessiontree.web")

T = TypeVar("T")

HELD_SECONDS = 1.0
"""How long a lock is waited for while a session is held, so that nobody else can read it."""

TOKEN = "sessiontree.token"
"""Where the scope of a request has its token."""


class Serving:
    def __init__(
        self,
        *,
        hosts: Hosts,
        tokens: Tokens,
        limits: Limits | None = None,
        allow_run: bool = False,
        models: Models | None = None,
        cwd: str | None = None,
        projects: Iterable[str] = (),
        permission_mode: PermissionMode | None = None,
        allow: tuple[str, ...] = (),
    ) -> None:
        self.hosts = hosts
        self.tokens = tokens
        self.limits = Limits() if limits is None else limits
        self.allow_run = allow_run
        self.cwd = os.getcwd() if cwd is None else cwd
        """The folder of sessions that are made without one."""
        self.workplaces = Workplaces(self.cwd, projects)
        self.began = time.monotonic()
        self.workshop = Workshop()
        self.sessions = OpenSessions(self.limits)
        self.models = models
        self.permissions = PermissionDesk(permission_mode, allow, self.limits.permission_seconds)
        self.runs = Runs(self.workshop, models, self.workplaces.folder, self.permissions)
        self.swarms = Swarms(self.sessions, self.runs, self.workshop)
        self.trials = Trials(self.sessions, self.runs, self.workshop)
        self.exports = ExportJobs(self.limits)
        self.streams = Streams(self.limits)
        self.closing = False

    def offers(self) -> list[Offer]:
        """The models that there are: those that `/model` lists, and those that cannot be used."""
        from sessiontree.model.find import Offer, list_models

        if self.models is None:
            return list_models()
        names = self.models.names()
        return [Offer(name=name, usable=True, reason="given", default=name == names[0]) for name in names]

    def at_rest(self, opened: Opened, branch: str) -> None:
        """Raises `InvalidOperation` while an agent is at work on a branch: it cannot be moved under it."""
        self.runs.at_rest(opened, branch)
        self.swarms.at_rest(opened, branch)
        self.trials.at_rest(opened, branch)

    async def steer(self, opened: Opened, branch: str | None, text: str, *, limited: bool) -> str:
        """Say something to the agent at work on a branch, in the workshop. Raises `InvalidOperation` where none is.

        One whose token is `limited` to projects speaks only to agents that are limited too.
        """
        name = opened.session.heads.current if branch is None else branch
        hand = self.swarms.hands(opened).get(name)
        if hand is None:
            return await self.runs.steer(opened, branch, text, limited=limited)
        await self.swarms.steer(opened, hand, text, limited=limited)
        return name

    async def abort(self, opened: Opened, branch: str | None) -> str:
        """Give up the run on a branch, in the workshop. Raises `InvalidOperation` where none is, or a swarm's."""
        name = opened.session.heads.current if branch is None else branch
        hand = self.swarms.hands(opened).get(name)
        if hand is not None:
            raise InvalidOperation(f"branch {name!r} is worked on by swarm {hand.name!r}: that can be stopped")
        return await self.runs.abort(opened, branch)

    async def tidy(self) -> None:
        """Close sessions that nobody asks for, and throw away exports that nobody fetches."""
        self.exports.tidy()
        await self._leave(self.sessions.idle())

    async def _leave(self, leaving: Iterable[Opened]) -> None:
        """Close sessions; one that cannot be closed keeps no other open."""
        for opened in leaving:
            try:
                await self.runs.leave(opened)
            except SessionTreeError as error:
                log.warning("%s is let go of as it is: %s", safe(opened.file), safe(str(error)))

    def leave_off(self) -> None:
        """Take nothing new on, and send those who listen away."""
        self.closing = True
        for opened in self.sessions.open_now():
            opened.feed.wake()

    async def close(self) -> None:
        """Give up what runs, and let go of everything."""
        self.leave_off()
        self.exports.close()
        await self.swarms.close()
        await self.trials.close()
        await self.runs.close()
        await self._leave(self.sessions.idle(everything=True))
        self.workshop.close()


class Call:
    """One request: who asks, and what it may do."""

    def __init__(self, serving: Serving, token: Token, asked: str = "", if_match: str | None = None) -> None:
        self.serving = serving
        self.token = token
        self._asked = asked
        """The address of the request."""
        self._if_match = if_match

    @contextmanager
    def reading(self, id: str) -> Generator[Opened]:
        """A session as it is, which nobody changes meanwhile. Raises `Refused`."""
        with self.serving.sessions.reading(id, self.token) as opened:
            yield opened

    def told(self, id: str, make: Callable[[Opened], T], finish: Callable[[Opened, T], Any] | None = None) -> Json:
        """An answer that follows from what is in a session alone: made once, and kept until it is written to.

        `finish` does what takes long, with what was made, while the session is not held.
        """
        with self.serving.sessions.kept(id, self.token) as opened:
            session = opened.session
            with session.held():
                at, body = opened.position, opened.answered(self._asked)
                if body is not None:
                    return Json(msgspec.Raw(body), at=at)
                made = make(opened)
            body = encoded(made if finish is None else finish(opened, made))
            with session.held():
                if opened.session is session:
                    opened.keep_answer(self._asked, at, body)
            return Json(msgspec.Raw(body), at=at)

    @contextmanager
    def writing(self, id: str) -> Generator[Opened]:
        """A session to write to, if it is as the request says. Raises `Refused`."""
        with self.serving.sessions.kept(id, self.token) as opened:
            for pause in self.serving.sessions.pauses(opened):
                time.sleep(pause)
            with limited_to(HELD_SECONDS), self._held(opened):
                self.check(opened)
                try:
                    yield opened
                except Conflict:
                    if self._if_match is None:
                        raise
                    raise _changed() from None
        opened.feed.wake()

    def _held(self, opened: Opened) -> AbstractContextManager[object]:
        """Nobody else writes; where the request says what it has seen, no other process either."""
        session = opened.session
        return session.held() if self._if_match is None else session.unchanged()

    @contextmanager
    def working(self, id: str) -> Generator[Opened]:
        """A session for something that takes its time, and is not held meanwhile. Raises `Refused`."""
        with self.serving.sessions.kept(id, self.token) as opened:
            with opened.session.held():
                self.check(opened)
            yield opened
        opened.feed.wake()

    def check(self, opened: Opened) -> None:
        """Raises `Refused` where the session has changed since what the request says it has seen."""
        if self._if_match is None or self._if_match.strip() == "*":
            return
        wanted = [tag.strip() for tag in self._if_match.split(",")]
        if f'"{opened.position}"' not in wanted:
            raise _changed()

    def needs_run(self) -> None:
        """Raises `Refused` where no model may be asked for this token."""
        if "run" not in self.token.scopes:
            raise _lacks("run")
        if not self.serving.allow_run:
            raise Refused(403, "this server asks no model: it was started without --allow-run", code="no_runs")

    async def workplace(self, opened: Opened) -> Workplace:
        """Where the agents of a session work for this token. Raises `Refused`."""
        return await asyncio.to_thread(self.serving.workplaces.find, self.token, opened.session.cwd)


def _changed() -> Refused:
    return Refused(412, "the session has changed since: read it anew")


def _lacks(scope: Scope) -> Refused:
    return Refused(403, f"the token does not have the scope {scope!r}")


def _check_query(request: Request) -> None:
    """Refuse parameters that the route does not know: an ignored one may have been meant to leave something out."""
    if not request.query_params:
        return
    route: APIRoute = request.scope["route"]
    known = list(_named_in(route.dependant))
    unknown = sorted({name for name in request.query_params if name not in known})
    if unknown:
        takes = f"this route takes {', '.join(known)}" if known else "this route takes none"
        raise Refused(422, f"unknown query parameter {few([repr(name[:100]) for name in unknown])}; {takes}")


def _named_in(dependant: Dependant) -> Iterator[str]:
    """The names of the query parameters of a route."""
    for inner in dependant.dependencies:
        yield from _named_in(inner)
    for parameter in dependant.query_params:
        yield parameter.alias


def _call(request: Request, scope: Scope) -> Call:
    token: Token = request.scope[TOKEN]
    if scope not in token.scopes:
        raise _lacks(scope)
    _check_query(request)
    serving: Serving = request.app.state.serving
    if serving.closing:
        raise Refused(503, "the server is closing")
    return Call(serving, token, f"{request.url.path}?{request.url.query}", request.headers.get("if-match"))


async def reads(request: Request) -> Call:
    return _call(request, "read")


async def writes(request: Request) -> Call:
    return _call(request, "write")


async def runs(request: Request) -> Call:
    call = _call(request, "run")
    call.needs_run()
    await asyncio.to_thread(call.serving.workplaces.check, call.token)
    return call


Reads = Annotated[Call, Depends(reads)]
Writes = Annotated[Call, Depends(writes)]
Running = Annotated[Call, Depends(runs)]


class Said:
    """What the body of a request says, in a shape. For `Annotated[Shape, Depends(Said(Shape))]`."""

    def __init__(self, shape: type[Asked], *, empty: bool = False) -> None:
        self._shape = shape
        self._empty = empty

    async def __call__(self, request: Request) -> Any:
        raw = await request.body()
        if not raw.strip() and self._empty:
            raw = b"{}"
        try:
            return msgspec.json.decode(raw, type=self._shape)
        except msgspec.ValidationError as error:
            raise Refused(422, ": ".join(filter(None, misfit(error, "field")))) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(400, f"the body is no JSON: {error}") from None


class Json(Response):
    media_type = "application/json"

    def __init__(self, content: Any = None, status_code: int = 200, *, at: Opened | Position | None = None) -> None:
        """An answer; `at` says of which session it tells as it is now, or how far it goes."""
        super().__init__(encoded(content), status_code)
        if at is not None:
            self.headers["etag"] = f'"{at.position if isinstance(at, Opened) else at}"'
