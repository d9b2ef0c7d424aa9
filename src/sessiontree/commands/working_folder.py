"""Chooses the folder that tools work in: the current folder, or the session's folder if the user confirms it."""

from __future__ import annotations

import os

from sessiontree.core.sanitize import escape_line
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Notice
from sessiontree.hooks.ui_protocol import Ui


class WorkingFolder:
    """Remembers which folders the user confirmed."""

    def __init__(self, cwd: str | None) -> None:
        self.start = os.getcwd() if cwd is None else os.path.abspath(cwd)
        """The folder that tools work in unless the user confirms another one."""
        self._is_explicit = cwd is not None
        self._answers: dict[str, bool] = {}
        """The user's answers, by folder."""

    async def choose(self, session_folder: str, ui: Ui, hooks: Hooks, *, has_tools: bool) -> str:
        """Return the folder to work in. If the session has another folder, ask the user whether to use it.

        The name of the folder comes from the session file, which anyone may have written, so it needs a confirmation.
        """
        if not session_folder or _is_same_folder(session_folder, self.start):
            return self.start
        if self._is_explicit and not ui.has_person:
            return self.start
        if session_folder not in self._answers and os.path.isdir(session_folder):
            self._answers[session_folder] = await self._confirm(session_folder, ui, hooks, has_tools=has_tools)
        return session_folder if self._answers.get(session_folder) else self.start

    async def _confirm(self, folder: str, ui: Ui, hooks: Hooks, *, has_tools: bool) -> bool:
        if ui.has_person:
            text = f"The session belongs to {escape_line(folder)}. You are in {escape_line(self.start)}."
            return await ui.confirm("Run tools in the session's folder?", text)
        if has_tools:
            text = f"tools run in {escape_line(self.start)}, not in the session's folder {escape_line(folder)}"
            text += "; use --cwd (--project for a worker) to change it"
            hooks.notify_listeners(Notice(level="info", text=text))
        return False


def _is_same_folder(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
