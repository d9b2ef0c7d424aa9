"""What agents of this server may do: their workspaces, and permission questions that clients answer.

A session file names a folder, but does not decide where agents work. With a token that is limited to projects, the
folder must be in one of them, and a sandbox limits the agents to it; without a sandbox, such a token cannot run agents.
With other tokens, the folder must be in the folder of the server, in a project that the server was started with, or a
folder that a client named when it created the session. Otherwise agents work in the folder of the server.
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
from sessiontree.agent.factory import AgentOptions, load_agent_options
from sessiontree.agent.permissions import Asker, PermissionAnswer, PermissionQuestion
from sessiontree.agent.sandbox import Confinement, SandboxUnavailable, confine, find_sandbox, resolve_project_folder
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
    """The folder of an agent and the sandbox that limits it."""

    cwd: str
    confinement: Confinement | None
    note: str | None = None
    """A warning for the user."""

    @property
    def is_limited(self) -> bool:
        """Whether agents can reach only their project."""
        return self.confinement is not None and self.confinement.is_limited


class WorkspaceResolver:
    """Decides in which folder the agents of a session work."""

    def __init__(self, cwd: str, projects: Iterable[str] = ()) -> None:
        self._cwd = cwd
        self._projects = {cwd, *projects}
        self._has_warned = False

    def allow_folder(self, folder: str) -> None:
        """Allow agents of sessions in `folder` to work there, after a client with the scope `run` named it."""
        self._projects.add(folder)

    def find_folder(self, named: str) -> str:
        """Return the folder in which agents work for a session that names one, without limits by a token."""
        return resolve_project_folder(named, self._projects) or self._cwd

    def check_token(self, token: Token) -> None:
        """Raise `ApiError` if the token is limited to projects and this machine has no sandbox."""
        if token.projects is not None:
            try:
                find_sandbox(config.load_config().tools.user)
            except SandboxUnavailable as error:
                raise _make_no_sandbox_error(error) from error

    def find(self, token: Token, folder: str) -> Workspace:
        """Return the workspace of a session that names `folder`. Raises `ApiError`."""
        user = config.load_config().tools.user
        if token.projects is not None:
            inside = resolve_project_folder(folder, token.projects)
            if inside is None:
                raise ApiError(403, "the folder of the session is outside the projects of the token", code="outside")
            try:
                return Workspace(cwd=inside, confinement=confine(inside, limited=True, user=user))
            except SandboxUnavailable as error:
                raise _make_no_sandbox_error(error) from error
        inside = resolve_project_folder(folder, self._projects)
        note = None
        if inside is None and folder and os.path.isdir(folder):
            note = f"tools work in {escape_line(self._cwd)}, not in the session folder {escape_line(folder)}"
            note += "; start the server with --project to allow it"
        cwd = inside or self._cwd
        try:
            return Workspace(cwd=cwd, confinement=confine(cwd, limited=False, user=user), note=note)
        except SandboxUnavailable as error:
            if not self._has_warned:
                log.warning("%s; tokens that are limited to projects cannot run agents", escape_line(error.reason))
                self._has_warned = True
            return Workspace(cwd=cwd, confinement=None, note=note)


def _make_no_sandbox_error(error: SandboxUnavailable) -> ApiError:
    return ApiError(403, f"a token that is limited to projects cannot run agents here: {error}", code="no_sandbox")


MAX_DETAIL_LENGTH = 20_000
"""Maximum characters of a tool call in its question. The session contains all of it."""


class OpenQuestion(msgspec.Struct, frozen=True, eq=False):
    """An unanswered permission question."""

    question: schemas.PermissionQuestionResponse
    answer: asyncio.Future[PermissionAnswer]
    is_limited: bool
    """Whether the agent is limited to its project."""


class PermissionBroker:
    """The permissions of this server's agents, and their open questions. Questions live in the agent loop."""

    def __init__(self, mode: PermissionMode | None = None, allow: tuple[str, ...] = (), seconds: float = 300) -> None:
        """`mode` is the default mode, and the most lenient one that a request may name.

        A question that is not answered within `seconds` counts as denied.
        """
        self._mode: PermissionMode | None = mode
        self._allow = allow
        self._seconds = seconds
        self._open_questions: dict[str, dict[str, OpenQuestion]] = {}
        """By session file and question id."""

    def load_options(self, settings: Config, cwd: str) -> AgentOptions:
        """Return the options of the server's agents, with the user's permission rules. Raises `ConfigError`."""
        return load_agent_options(settings, mode=self._mode, allow=self._allow, cwd=cwd)

    @property
    def default_mode(self) -> PermissionMode:
        """The default mode, and the most lenient one that a request may name."""
        if self._mode is not None:
            return self._mode
        try:
            return config.load_config().permissions.mode or "ask"
        except SessionTreeError:
            return "ask"

    def check_mode(self, mode: PermissionMode | None) -> None:
        """Raises `ApiError` for a mode that is more lenient than the mode of this server."""
        modes, limit = config.CHOICES["mode"], self.default_mode
        if mode is not None and modes.index(mode) > modes.index(limit):
            raise ApiError(
                403,
                f"this server allows modes up to {limit}; for {mode}, start it with `--permission-mode {mode}`",
            )

    # Asking

    def create_asker(self, opened: OpenSession, branch: str, run: str, *, limited: bool) -> Asker:
        """Return an asker that publishes the questions of a run, which may be `limited` to its project."""

        async def ask(question: PermissionQuestion) -> PermissionAnswer | None:
            id = secrets.token_hex(4)
            pending = schemas.PermissionQuestionResponse(
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
            open_question = OpenQuestion(pending, asyncio.get_running_loop().create_future(), limited)
            self._open_questions.setdefault(opened.file, {})[id] = open_question
            publish = partial(_publish, opened)
            publish({"status": "asked", **msgspec.to_builtins(pending)})
            status = "withdrawn"
            try:
                async with asyncio.timeout(self._seconds):
                    answer = await open_question.answer
                status = "answered"
                return answer
            except TimeoutError:
                status = "expired"
                return None
            finally:
                self._remove(opened.file, id)
                publish({"status": status, "id": id, "branch": branch, "run": run})

        return ask

    def _remove(self, file: str, id: str) -> None:
        questions = self._open_questions[file]
        del questions[id]
        if not questions:
            del self._open_questions[file]

    # Answering

    def list_questions(self, opened: OpenSession) -> list[schemas.PermissionQuestionResponse]:
        return [pending.question for pending in list(self._open_questions.get(opened.file, {}).values())]

    async def answer(
        self, opened: OpenSession, id: str, request: schemas.PermissionAnswerRequest, *, limited: bool
    ) -> schemas.PermissionQuestionResponse:
        """Answer a question of a session. Raises `NotFound` if it is no longer open, or `ApiError`.

        A token that is `limited` to projects cannot allow anything to an agent without limits.
        """
        question = self._open_questions.get(opened.file, {}).get(id)
        if question is None or question.answer.done():
            raise NotFound("question", id, "it was already answered, it expired, or its run has ended")
        if limited and not question.is_limited and request.answer != "no":
            raise make_insufficient_rights()
        if request.answer not in question.question.scopes:
            raise ApiError(
                422, f"invalid answer {request.answer}; this question accepts {', '.join(question.question.scopes)}"
            )
        question.answer.set_result(PermissionAnswer(scope=request.answer, reason=request.reason))
        return question.question


def _publish(opened: OpenSession, data: dict[str, object]) -> None:
    count: Callable[[], int] = lambda: len(opened.session.tree.entries)  # noqa: E731
    opened.feed.publish("permission", data, count)
