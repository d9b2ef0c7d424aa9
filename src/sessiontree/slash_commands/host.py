"""What surrounds a controller: its front end (`Host`), and the folder that tools work in (`WorkingFolder`).

`Host` has the actions of a front end that commands need, besides the dialogs of `Ui`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from sessiontree.core.entries import EntryId
from sessiontree.core.sanitize import escape_line
from sessiontree.files.restore_plan import RestorePlan
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Notice
from sessiontree.hooks.ui_protocol import Ui
from sessiontree.ops.move_files import FilesChoice

if TYPE_CHECKING:
    from sessiontree.session import Branch, Session
    from sessiontree.slash_commands.controller import (
        SessionController,  # cycle: a host serves the controller that it is given to
    )

FILES_QUESTION = "What should move?"
FILES_CHOICES: dict[str, FilesChoice] = {
    "Conversation": "conversation",
    "Conversation and files": "both",
    "Files only": "files",
}


def list_files_choices(plan: RestorePlan) -> dict[str, FilesChoice]:
    """Return what a user can choose to move, by label. What reverts a restore of files alone moves no conversation."""
    return {label: choice for label, choice in FILES_CHOICES.items() if choice != "both" or not plan.is_files_only}


class FilesAnswer(Struct, frozen=True, kw_only=True):
    """What the user wants to move, and the conflicts to restore as well."""

    files: FilesChoice = "conversation"
    take: tuple[str, ...] = ()


class Host(Protocol):
    async def choose_entry(self, controller: SessionController) -> EntryId | None:
        """Show the tree and return the entry that the user chooses, or `None`."""
        ...

    async def choose_files(self, controller: SessionController, plan: RestorePlan) -> FilesAnswer | None:
        """Show which files a move can restore and return what the user wants to move, or `None` to cancel."""
        ...

    async def choose_branch(self, session: Session) -> Branch | None:
        """Return the branch to use in a session that the controller is about to enter.

        It may belong to the same session, opened again. Return `None` to stay in the current session.
        """
        ...

    def is_open_elsewhere(self, place: str) -> bool:
        """Whether another program has the session open."""
        ...

    def refresh(self) -> None:
        """Redraw the conversation after a change of the session or the branch."""
        ...

    def set_editor_text(self, text: str) -> None: ...

    def copy(self, text: str) -> str | None:
        """Copy a text to the clipboard. Return a message for the user, or `None` without a clipboard."""
        ...

    def quit(self) -> None: ...


class HeadlessHost:
    """A host without a front end. It keeps the text that would be in the editor."""

    def __init__(self) -> None:
        self.editor = ""
        self.has_quit = False

    async def choose_entry(self, controller: SessionController) -> EntryId | None:
        return None

    async def choose_files(self, controller: SessionController, plan: RestorePlan) -> FilesAnswer | None:
        choices = list_files_choices(plan)
        answer = await controller.ui.select(f"{FILES_QUESTION} {plan.summary}", tuple(choices))
        return None if answer is None else FilesAnswer(files=choices[answer])

    async def choose_branch(self, session: Session) -> Branch:
        return session.head

    def is_open_elsewhere(self, place: str) -> bool:
        return False

    def refresh(self) -> None:
        pass

    def set_editor_text(self, text: str) -> None:
        self.editor = text

    def copy(self, text: str) -> str | None:
        return None

    def quit(self) -> None:
        self.has_quit = True


class WorkingFolder:
    """Chooses the folder that tools work in: the current folder, or the session's folder if the user confirms it."""

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
