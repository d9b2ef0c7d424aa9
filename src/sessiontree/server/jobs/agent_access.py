"""Permissions over HTTP: questions about tool calls that runs of this server wait for, and their answers.

A run that was started with a permission mode has somebody to ask: the question is an event of the session, and a
request answers it. Nobody answering in time is a no. Everything here happens in the workshop, but for looking.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from sessiontree import config
from sessiontree.agent.permissions import Asker, PermissionAnswer, PermissionQuestion
from sessiontree.agent.sandbox import Confinement, SandboxUnavailable, confine, find_sandbox, resolve_project_folder
from sessiontree.agent.setup import AgentOptions, load_agent_options
from sessiontree.config import Config, PermissionMode
from sessiontree.core.sanitize import escape_line
from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import NotFound, SessionTreeError
from sessiontree.server import schemas
from sessiontree.server.auth import Token
from sessiontree.server.http_errors import ApiError, make_insufficient_rights

if TYPE_CHECKING:
    from sessiontree.server.session_cache import OpenSession

log = logging.getLogger("sessiontree.server")


class Workspace(Struct, frozen=True, kw_only=True):
    cwd: str
    confinement: Confinement | None
    note: str | None = None
    """What a person should know of it."""

    @property
    def is_limited(self) -> bool:
        """Whether agents there reach nothing but their project."""
        return self.confinement is not None and self.confinement.is_limited


class WorkspaceResolver:
    def __init__(self, cwd: str, projects: Iterable[str] = ()) -> None:
        self._cwd = cwd
        self._projects = {cwd, *projects}
        self._has_warned = False

    def allow_folder(self, folder: str) -> None:
        """Let agents of sessions in `folder` work there: somebody who may run agents has named it."""
        self._projects.add(folder)

    def find_folder(self, named: str) -> str:
        """Return the folder of a session that names one, for those who may see all of this server."""
        return resolve_project_folder(named, self._projects) or self._cwd

    def check_token(self, token: Token) -> None:
        """Raises `Refused` for a token that is limited to projects where nothing keeps agents inside them."""
        if token.projects is not None:
            try:
                find_sandbox(config.load().tools.user)
            except SandboxUnavailable as error:
                raise _make_no_sandbox_error(error) from error

    def find(self, token: Token, folder: str) -> Workspace:
        """Return where the agents of a session work that names `folder`. Raises `Refused`."""
        user = config.load().tools.user
        if token.projects is not None:
            inside = resolve_project_folder(folder, token.projects)
            if inside is None:
                raise ApiError(403, "the folder of the session is not in the token's projects", code="outside")
            try:
                return Workspace(cwd=inside, confinement=confine(inside, limited=True, user=user))
            except SandboxUnavailable as error:
                raise _make_no_sandbox_error(error) from error
        inside = resolve_project_folder(folder, self._projects)
        note = None
        if inside is None and folder and os.path.isdir(folder):
            note = f"tools work in {escape_line(self._cwd)}, not in {escape_line(folder)}, the session's folder"
            note += "; start the server with --project to let them"
        cwd = inside or self._cwd
        try:
            return Workspace(cwd=cwd, confinement=confine(cwd, limited=False, user=user), note=note)
        except SandboxUnavailable as error:
            if not self._has_warned:
                log.warning("%s; tokens for single projects run no agents", escape_line(error.reason))
                self._has_warned = True
            return Workspace(cwd=cwd, confinement=None, note=note)


def _make_no_sandbox_error(error: SandboxUnavailable) -> ApiError:
    return ApiError(403, f"a token for single projects runs no agents here: {error}", code="no_sandbox")


MAX_DETAIL_LENGTH = 20_000
"""Characters of a call that its question tells; the session has all of it."""


class OpenQuestion(msgspec.Struct, frozen=True, eq=False):
    """A question that is open."""

    question: schemas.PermissionQuestionResponse
    answer: asyncio.Future[PermissionAnswer]
    is_limited: bool
    """Whether the agent that asks is kept in its project."""


class PermissionBroker:
    """What runs of one server may do, and what they wait for."""

    def __init__(self, mode: PermissionMode | None = None, allow: tuple[str, ...] = (), seconds: float = 300) -> None:
        """`mode` holds where a request names none, and is the most lenient that one may name.

        A question is open for so many `seconds`.
        """
        self._mode: PermissionMode | None = mode
        self._allow = allow
        self._seconds = seconds
        self._open_questions: dict[str, dict[str, OpenQuestion]] = {}
        """By the file of the session, and by id."""

    def load_options(self, settings: Config, cwd: str) -> AgentOptions:
        """Return the options of the server's agents, with the user's permission rules. Raises `ConfigError`."""
        return load_agent_options(settings, mode=self._mode, allow=self._allow, cwd=cwd)

    @property
    def default_mode(self) -> PermissionMode:
        """What holds where a request names no mode, and the most lenient that one may name."""
        if self._mode is not None:
            return self._mode
        try:
            return config.load().permissions.mode or "ask"
        except SessionTreeError:
            return "ask"

    def check_mode(self, mode: PermissionMode | None) -> None:
        """Refuse a mode that is more lenient than this server's own: whoever runs the server decides that."""
        modes, limit = config.CHOICES["mode"], self.default_mode
        if mode is not None and modes.index(mode) > modes.index(limit):
            raise ApiError(
                403,
                f"this server allows no mode beyond {limit}; {mode} takes `sessiontree serve --permission-mode {mode}`",
            )

    # Asking

    def create_asker(self, opened: OpenSession, branch: str, run: str, *, limited: bool) -> Asker:
        """Asks whoever listens to a session about the calls of a run, which may be `limited` to its project."""

        async def ask(question: PermissionQuestion) -> PermissionAnswer | None:
            id = secrets.token_hex(4)
            told = schemas.PermissionQuestionResponse(
                id=id,
                branch=branch,
                run=run,
                tool=question.tool,
                does=question.does,
                title=question.title,
                detail=question.detail[:MAX_DETAIL_LENGTH],
                cut=len(question.detail) > MAX_DETAIL_LENGTH,
                why=question.why,
                rule=question.rule if question.rule is None or len(question.rule) <= MAX_DETAIL_LENGTH else None,
                scopes=list(question.scopes),
                expires=format_timestamp(int((time.time() + self._seconds) * 1000)),
            )
            waiting = OpenQuestion(told, asyncio.get_running_loop().create_future(), limited)
            self._open_questions.setdefault(opened.file, {})[id] = waiting
            tell = partial(_publish, opened)
            tell({"status": "asked", **msgspec.to_builtins(told)})
            status = "withdrawn"
            try:
                async with asyncio.timeout(self._seconds):
                    answer = await waiting.answer
                status = "answered"
                return answer
            except TimeoutError:
                status = "expired"
                return None
            finally:
                self._remove(opened.file, id)
                tell({"status": status, "id": id, "branch": branch, "run": run})

        return ask

    def _remove(self, file: str, id: str) -> None:
        questions = self._open_questions[file]
        del questions[id]
        if not questions:
            del self._open_questions[file]

    # Answering

    def list_questions(self, opened: OpenSession) -> list[schemas.PermissionQuestionResponse]:
        return [waiting.question for waiting in list(self._open_questions.get(opened.file, {}).values())]

    async def answer(
        self, opened: OpenSession, id: str, request: schemas.PermissionAnswerRequest, *, limited: bool
    ) -> schemas.PermissionQuestionResponse:
        """Answer a question of a session. Raises `NotFound` for one that is not open any more, or `Refused`.

        One whose token is `limited` to projects allows nothing to an agent that is not.
        """
        waiting = self._open_questions.get(opened.file, {}).get(id)
        if waiting is None or waiting.answer.done():
            raise NotFound("question", id, "it was answered, its time is over, or its run has ended")
        if limited and not waiting.is_limited and request.answer != "no":
            raise make_insufficient_rights()
        if request.answer not in waiting.question.scopes:
            raise ApiError(422, f"this question takes {', '.join(waiting.question.scopes)}, not {request.answer}")
        waiting.answer.set_result(PermissionAnswer(scope=request.answer, reason=request.reason))
        return waiting.question


def _publish(opened: OpenSession, data: dict[str, object]) -> None:
    count: Callable[[], int] = lambda: len(opened.session.tree.entries)  # noqa: E731
    opened.feed.publish("permission", data, count)
