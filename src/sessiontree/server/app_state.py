"""The state of a server, and the context of a request.

Routes reach sessions only through a `RequestContext`, which checks the token.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import msgspec
from fastapi import Depends, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import Response
from fastapi.routing import APIRoute

from sessiontree.config import PermissionMode
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import Conflict, InvalidOperation, SessionTreeError, describe_validation_error, format_names
from sessiontree.library import catalog
from sessiontree.server.audit_log import AuditLog
from sessiontree.server.auth import Scope, Token, TokenStore
from sessiontree.server.http_errors import ApiError
from sessiontree.server.jobs.agent_access import PermissionBroker, Workspace, WorkspaceResolver
from sessiontree.server.jobs.agent_jobs import AgentJobs
from sessiontree.server.jobs.experiment_jobs import ExperimentJobs
from sessiontree.server.jobs.export_jobs import ExportJobs
from sessiontree.server.jobs.job_registry import AgentLoop, JobRegistry
from sessiontree.server.jobs.swarm_jobs import SwarmJobs
from sessiontree.server.live_events import StreamRegistry
from sessiontree.server.reply_store import ReplyStore
from sessiontree.server.request_checks import AllowedHosts, ServerLimits
from sessiontree.server.response_content import encode_json
from sessiontree.server.schemas import MAX_PAGE_SIZE, RequestModel
from sessiontree.server.session_cache import OpenSession, SessionCache, SessionPosition
from sessiontree.server.usage_overview import AnswerCache
from sessiontree.slash_commands.models import Models
from sessiontree.store.lock import limit_wait

if TYPE_CHECKING:
    from sessiontree.model.selection import ModelCandidate

log = logging.getLogger("sessiontree.server")

T = TypeVar("T")

WRITE_LOCK_SECONDS = 1.0
"""How long a write waits for the lock of another process. Other requests wait as long."""

READINESS_SECONDS = 1.0
"""How long the result of a readiness check is used."""
READINESS_TIMEOUT = 3.0
"""Seconds after which a store that does not answer counts as unreachable."""

TOKEN_KEY = "sessiontree.token"
"""The key of the token in the ASGI scope of a request."""


class ReadinessCheck:
    """Whether the place of the sessions can be reached. For one event loop.

    Anybody may ask, so all requests of about a second share one check.
    """

    def __init__(self) -> None:
        self._check: asyncio.Task[bool] | None = None
        self._started = 0.0

    async def check(self) -> bool:
        if self._check is None or (self._check.done() and time.monotonic() - self._started > READINESS_SECONDS):
            self._started = time.monotonic()
            self._check = asyncio.create_task(asyncio.to_thread(_is_store_reachable))
        done, _ = await asyncio.wait([self._check], timeout=READINESS_TIMEOUT)
        return bool(done) and self._check.result()


def _is_store_reachable() -> bool:
    try:
        catalog.check_store_reachable()
    except SessionTreeError:
        return False
    return True


class AppState:
    """Everything that a server holds from its start to its shutdown."""

    def __init__(
        self,
        *,
        hosts: AllowedHosts,
        tokens: TokenStore,
        limits: ServerLimits | None = None,
        allow_run: bool = False,
        models: Models | None = None,
        cwd: str | None = None,
        projects: Iterable[str] = (),
        permission_mode: PermissionMode | None = None,
        allow: tuple[str, ...] = (),
    ) -> None:
        self.hosts = hosts
        self.tokens = tokens
        self.limits = ServerLimits() if limits is None else limits
        self.allow_run = allow_run
        self.cwd = os.getcwd() if cwd is None else cwd
        """The folder of new sessions that name none."""
        self.workspaces = WorkspaceResolver(self.cwd, projects)
        self.started_at = time.monotonic()
        self.agent_loop = AgentLoop()
        self.sessions = SessionCache(self.limits)
        self.models = models
        self.permissions = PermissionBroker(permission_mode, allow, self.limits.permission_seconds)
        self.jobs = JobRegistry(self.sessions, self.agent_loop)
        self.runs = AgentJobs(self.jobs, self.agent_loop, models, self.workspaces.find_folder, self.permissions)
        self.swarms = SwarmJobs(self.jobs, self.sessions, self.runs, self.agent_loop)
        self.experiments = ExperimentJobs(self.jobs, self.sessions, self.runs, self.agent_loop)
        self.exports = ExportJobs(self.limits)
        self.streams = StreamRegistry(self.limits)
        self.audit = AuditLog()
        self.answers = AnswerCache()
        self.replies = ReplyStore()
        self.is_closing = False
        self.readiness = ReadinessCheck()
        self.response_counts: Counter[int] = Counter()
        """How many responses were sent, by status."""

    def list_models(self) -> list[ModelCandidate]:
        """Return all models, including unusable ones."""
        from sessiontree.model.selection import ModelCandidate, list_models

        if self.models is None:
            return list_models()
        names = self.models.list_names()
        return [ModelCandidate(name=name, usable=True, reason="given", default=name == names[0]) for name in names]

    def check_idle(self, opened: OpenSession, branch: str) -> None:
        """Raises `InvalidOperation` if an agent, a swarm or an experiment is running on the branch."""
        self.runs.check_idle(opened, branch)
        self.swarms.check_idle(opened, branch)
        self.experiments.check_idle(opened, branch)

    async def steer(
        self, opened: OpenSession, branch: str | None, text: str, *, limited: bool, author: str = ""
    ) -> str:
        """Queue a message for the agent on a branch, and return the branch name. Call it in the agent loop.

        A token that is `limited` to projects can steer only agents that are limited too. Raises `InvalidOperation` if
        no agent is running.
        """
        name = opened.session.heads.current if branch is None else branch
        agent_branch = self.swarms.find_agent_branches(opened).get(name)
        if agent_branch is None:
            return await self.runs.steer(opened, branch, text, limited=limited, author=author)
        await self.swarms.steer(opened, agent_branch, text, limited=limited)
        return name

    async def abort(self, opened: OpenSession, branch: str | None) -> str:
        """Abort the agent on a branch, and return the branch name. Call it in the agent loop.

        Raises `InvalidOperation` if no agent is running, or if it belongs to a swarm.
        """
        name = opened.session.heads.current if branch is None else branch
        agent_branch = self.swarms.find_agent_branches(opened).get(name)
        if agent_branch is not None:
            raise InvalidOperation(f"branch {name!r} belongs to swarm {agent_branch.name!r}; stop the swarm instead")
        return await self.runs.abort(opened, branch)

    async def clean_up(self) -> None:
        """Close idle sessions and delete expired exports."""
        self.exports.remove_expired()
        await self._close_sessions(self.sessions.remove_idle())

    async def _close_sessions(self, sessions: Iterable[OpenSession]) -> None:
        """Close sessions. A failure does not keep the others open."""
        for opened in sessions:
            try:
                await self.runs.close_session(opened)
            except SessionTreeError as error:
                log.warning("cannot close %s cleanly: %s", escape_line(opened.file), escape_line(str(error)))

    def begin_shutdown(self) -> None:
        """Refuse new requests and end all event streams."""
        self.is_closing = True
        for opened in self.sessions.list_open():
            opened.feed.wake()

    async def close(self) -> None:
        """Stop all jobs and close all sessions."""
        self.begin_shutdown()
        self.exports.close()
        await asyncio.to_thread(self.audit.close)
        await asyncio.to_thread(self.replies.close)
        await self.jobs.close()
        await self._close_sessions(self.sessions.remove_idle(everything=True))
        self.agent_loop.close()


class RequestContext:
    """A request: its token, and access to the sessions that the token may see."""

    def __init__(
        self,
        state: AppState,
        token: Token,
        url: str = "",
        if_match: str | None = None,
        if_none_match: str | None = None,
    ) -> None:
        self._if_none_match = if_none_match
        self.state = state
        self.token = token
        self._url = url
        """Path and query of the request, the cache key of its response."""
        self._if_match = if_match

    @contextmanager
    def read_session(self, id: str) -> Generator[OpenSession]:
        """Lock a session for reading. Raises `ApiError`."""
        with self.state.sessions.read(id, self.token) as opened:
            yield opened

    def respond_cached(
        self, id: str, make: Callable[[OpenSession], T], finish: Callable[[OpenSession, T], Any] | None = None
    ) -> JsonResponse:
        """Respond with a value that depends only on the session. It is cached until the session changes.

        `make` runs while the session is locked, `finish` afterwards; slow work belongs into `finish`.
        """
        with self.state.sessions.use(id, self.token) as opened:
            session = opened.session
            with session.hold_lock():
                at, body = opened.position, opened.get_response(self._url)
                if self._has_current(f'"{at}"'):
                    return JsonResponse.build_unchanged(f'"{at}"')
                if body is not None:
                    return JsonResponse(msgspec.Raw(body), at=at)
                made = make(opened)
            body = encode_json(made if finish is None else finish(opened, made))
            with session.hold_lock():
                if opened.session is session:
                    opened.cache_response(self._url, at, body)
            return JsonResponse(msgspec.Raw(body), at=at)

    def respond_hashed(self, value: Any) -> JsonResponse:
        """Respond with a value that depends on more than one session. Its ETag is a hash."""
        body = encode_json(value)
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if self._has_current(tag):
            return JsonResponse.build_unchanged(tag)
        response = JsonResponse(msgspec.Raw(body))
        response.headers["etag"] = tag
        return response

    def _has_current(self, tag: str) -> bool:
        """Return whether the client has the response with that ETag."""
        wanted = () if self._if_none_match is None else self._if_none_match.split(",")
        return any(one.strip().removeprefix("W/") == tag for one in wanted)

    @contextmanager
    def write_session(self, id: str) -> Generator[OpenSession]:
        """Lock a session for writing, if it matches the `If-Match` header. Raises `ApiError`."""
        with self.state.sessions.use(id, self.token) as opened:
            for pause in self.state.sessions.wait_for_lock(opened):
                time.sleep(pause)
            with limit_wait(WRITE_LOCK_SECONDS), self._lock_session(opened):
                self.check_if_match(opened)
                try:
                    yield opened
                except Conflict:
                    if self._if_match is None:
                        raise
                    raise _make_changed_error() from None
        opened.feed.wake()

    def _lock_session(self, opened: OpenSession) -> AbstractContextManager[object]:
        """Lock the session in this process; with an `If-Match` header, against other processes too."""
        session = opened.session
        return session.hold_lock() if self._if_match is None else session.require_unchanged()

    @contextmanager
    def use_session(self, id: str) -> Generator[OpenSession]:
        """Keep a session open for a long operation, without locking it. Raises `ApiError`."""
        with self.state.sessions.use(id, self.token) as opened:
            with opened.session.hold_lock():
                self.check_if_match(opened)
            yield opened
        opened.feed.wake()

    def check_if_match(self, opened: OpenSession) -> None:
        """Raises `ApiError` if the session does not match the `If-Match` header."""
        if self._if_match is None or self._if_match.strip() == "*":
            return
        wanted = [tag.strip() for tag in self._if_match.split(",")]
        if f'"{opened.position}"' not in wanted:
            raise _make_changed_error()

    def check_can_run(self) -> None:
        """Raises `ApiError` if this request may not call a model."""
        if "run" not in self.token.scopes:
            raise _make_missing_scope_error("run")
        if not self.state.allow_run:
            raise ApiError(403, "this server does not run agents; start it with --allow-run", code="no_runs")

    async def find_workspace(self, opened: OpenSession) -> Workspace:
        """Return the workspace of agents in a session, for this token. Raises `ApiError`."""
        return await asyncio.to_thread(self.state.workspaces.find, self.token, opened.session.cwd)


def _make_changed_error() -> ApiError:
    return ApiError(412, "the session has changed; load it again")


def _make_missing_scope_error(scope: Scope) -> ApiError:
    return ApiError(403, f"the token does not have the scope {scope!r}")


def _check_query(request: Request) -> None:
    """Reject unknown and repeated query parameters: ignoring one could return more than the client asked for."""
    if not request.query_params:
        return
    route: APIRoute = request.scope["route"]
    known = list(_iter_query_names(route.dependant))
    unknown = sorted({name for name in request.query_params if name not in known})
    if unknown:
        takes = f"this route takes {', '.join(known)}" if known else "this route takes none"
        raise ApiError(422, f"unknown query parameter {format_names([repr(name[:100]) for name in unknown])}; {takes}")
    repeated = [name for name in known if len(request.query_params.getlist(name)) > 1]
    if repeated:
        raise ApiError(422, f"query parameter {repeated[0]!r} was sent more than once; send it once")


def _iter_query_names(dependant: Dependant) -> Iterator[str]:
    """Yield the names of the query parameters of a route."""
    for inner in dependant.dependencies:
        yield from _iter_query_names(inner)
    for parameter in dependant.query_params:
        yield parameter.alias


def _create_context(request: Request, scope: Scope) -> RequestContext:
    token: Token = request.scope[TOKEN_KEY]
    if scope not in token.scopes:
        raise _make_missing_scope_error(scope)
    _check_query(request)
    state: AppState = request.app.state.app_state
    if state.is_closing:
        raise ApiError(503, "the server is shutting down")
    return RequestContext(
        state,
        token,
        f"{request.url.path}?{request.url.query}",
        request.headers.get("if-match"),
        request.headers.get("if-none-match"),
    )


async def require_read(request: Request) -> RequestContext:
    return _create_context(request, "read")


async def require_write(request: Request) -> RequestContext:
    return _create_context(request, "write")


async def require_run(request: Request) -> RequestContext:
    call = _create_context(request, "run")
    call.check_can_run()
    await asyncio.to_thread(call.state.workspaces.check_token, call.token)
    return call


ReadContext = Annotated[RequestContext, Depends(require_read)]
WriteContext = Annotated[RequestContext, Depends(require_write)]
RunContext = Annotated[RequestContext, Depends(require_run)]

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)]
Cursor = Annotated[str | None, Query(max_length=600)]
"""The size and the start of a page. `response_content` builds pages."""


class RequestBody:
    """Decodes the body of a request. Use as `Annotated[Schema, Depends(RequestBody(Schema))]`."""

    def __init__(self, schema: type[RequestModel], *, allow_empty: bool = False) -> None:
        self._schema = schema
        self._allow_empty = allow_empty

    async def __call__(self, request: Request) -> Any:
        raw = await request.body()
        if not raw.strip() and self._allow_empty:
            raw = b"{}"
        try:
            return msgspec.json.decode(raw, type=self._schema)
        except msgspec.ValidationError as error:
            raise ApiError(422, ": ".join(filter(None, describe_validation_error(error, "field")))) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(400, f"the body is not valid JSON: {error}") from None


class JsonResponse(Response):
    media_type = "application/json"

    def __init__(
        self, content: Any = None, status_code: int = 200, *, at: OpenSession | SessionPosition | None = None
    ) -> None:
        """Encode `content`. `at` is the session or position that becomes the ETag."""
        super().__init__(encode_json(content), status_code)
        if at is not None:
            self.headers["etag"] = f'"{at.position if isinstance(at, OpenSession) else at}"'

    @classmethod
    def build_unchanged(cls, tag: str) -> Self:
        """Return the response to a client that has the current one."""
        response = cls()
        response.status_code, response.body = 304, b""
        response.headers["etag"] = tag
        del response.headers["content-length"]
        return response
