"""Workplaces: the folder that the agents of a session work in on this server, and what they can reach from there.

A session file names a folder, but does not decide. For a token that is limited to projects it has to lie in one of
them, and a sandbox keeps agents from everything else; without one, such a token runs nothing. For other tokens it has
to lie in the folder that the server was started in, in a project that it was told of, or be a folder that somebody
named when the session was made; otherwise agents work in the server's folder.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from msgspec import Struct

from sessiontree import config
from sessiontree.agent.sandbox import Confinement, SandboxUnavailable, confine, find_sandbox, resolve_project_folder
from sessiontree.core.sanitize import escape_line
from sessiontree.server.auth import Token
from sessiontree.server.http_errors import ApiError

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
