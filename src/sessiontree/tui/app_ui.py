"""The app's `Ui` and `Host`: how commands, handlers and extensions ask questions and show messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from textual.screen import Screen
from textual.widget import Widget

from sessiontree.core.entries import EntryId
from sessiontree.core.sanitize import escape_lines
from sessiontree.hooks.ui_protocol import Level
from sessiontree.session import Branch, Session
from sessiontree.tui.screens.dialogs import ConfirmDialog, EditorDialog, InputDialog, SelectDialog, WidgetDialog
from sessiontree.tui.services.other_processes import is_session_open
from sessiontree.tui.services.terminal import send_to_clipboard

if TYPE_CHECKING:
    from sessiontree.agent.permissions import PermissionAnswer, PermissionQuestion
    from sessiontree.commands.controller import SessionController
    from sessiontree.tui.app import SessionApp  # cycle: the app creates it, and it calls the app
    from sessiontree.tui.widgets.permission_panel import PermissionPanel

T = TypeVar("T")

MAX_PANEL_OPTIONS = 8
"""Maximum number of options in the question panel. Longer lists open a searchable dialog."""
CUSTOM_TITLE = "An extension asks for your attention."
SEVERITY: dict[Level, Any] = {"info": "information", "warning": "warning", "error": "error"}


class AppUi:
    """Asks questions with dialogs. `notify` and `status` may be called from any thread.

    All arguments are converted to text here. An error while drawing could not be reported to the caller.
    """

    has_person = True

    def __init__(self, app: SessionApp) -> None:
        self._app = app
        self._thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()

    @property
    def _panel(self) -> PermissionPanel | None:
        """The question panel if the user is typing. A dialog would take keys that are meant for the editor."""
        panel = self._app.chat.permission
        return panel if panel.is_typing else None

    async def ask(self, screen: Screen[T], title: str | None = None) -> T | None:
        """Show a screen and wait for its result. Cancelling this call closes the screen.

        If the user is typing, a screen with a `title` is announced in the panel first.
        """
        panel = None if title is None else self._panel
        if panel is not None and title is not None and await panel.choose(title, "", ["Answer", "Cancel"]) != 0:
            return None
        answered: asyncio.Future[T | None] = self._loop.create_future()

        def set_answer(answer: T | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        await self._app.push_screen(screen, set_answer)
        try:
            return await answered
        finally:
            self._app.chat.permission.is_typing = False  # the last key answered the question
            if answered.cancelled() and screen in self._app.screen_stack:
                screen.dismiss(None)

    async def select(self, title: str, options: Sequence[str], *, at: str | None = None) -> str | None:
        rows = [str(option) for option in options]
        panel = self._panel
        if panel is not None and len(rows) <= MAX_PANEL_OPTIONS:
            chosen = await panel.choose(str(title), "", rows)
        else:
            at_row = options.index(at) if at in options else 0
            chosen = await self.ask(SelectDialog(str(title), rows, at=at_row), str(title))
        return None if chosen is None else options[chosen]

    async def confirm(self, title: str, text: str = "", *, default: bool = False) -> bool:
        panel = self._panel
        if panel is not None:
            labels = ["Yes", "No"] if default else ["No", "Yes"]
            chosen = await panel.choose(str(title), str(text), labels)
            return chosen is not None and labels[chosen] == "Yes"
        return bool(await self.ask(ConfirmDialog(str(title), str(text), default=default)))

    async def ask_permission(self, question: PermissionQuestion) -> PermissionAnswer | None:
        """Ask about a tool call in the panel, so the user can keep typing."""
        chat = self._app.chat
        chat.show_activity("waiting for your permission")
        try:
            return await chat.permission.ask(question)
        finally:
            chat.show_activity("working")

    async def input(self, title: str, *, placeholder: str = "") -> str | None:
        return await self.ask(InputDialog(str(title), placeholder=str(placeholder)), str(title))

    async def editor(self, title: str, text: str = "") -> str | None:
        return await self.ask(EditorDialog(str(title), str(text)), str(title))

    def notify(self, text: str, level: Level = "info") -> None:
        shown, severity = escape_lines(str(text)), SEVERITY[level]
        self._call_in_ui_thread(lambda: self._app.notify(shown, severity=severity, markup=False))

    def status(self, key: str, text: str | None) -> None:
        shown = None if text is None else str(text)
        self._call_in_ui_thread(lambda: self._app.chat.set_status(key, shown))

    async def custom(self, component: Any) -> Any:
        """Show a Textual screen or widget and return its result. A widget ends with `self.screen.dismiss(value)`."""
        if isinstance(component, Screen):
            return await self.ask(component, CUSTOM_TITLE)  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(component, Widget):
            return await self.ask(WidgetDialog(component), CUSTOM_TITLE)
        raise TypeError(f"expected a Textual screen or widget, got {type(component).__name__}")

    def _call_in_ui_thread(self, do: Callable[[], object]) -> None:
        if threading.get_ident() == self._thread:
            do()
        else:
            self._loop.call_soon_threadsafe(do)


class AppHost:
    """Gives commands access to the app."""

    def __init__(self, app: SessionApp) -> None:
        self._app = app

    async def choose_entry(self, controller: SessionController) -> EntryId | None:
        return await self._app.choose_entry("Choose an entry")

    async def choose_branch(self, session: Session) -> Branch | None:
        return await self._app.enter_session(session)

    def is_open_elsewhere(self, place: str) -> bool:
        return is_session_open(place)

    def refresh(self) -> None:
        self._app.chat.reload()

    def set_editor_text(self, text: str) -> None:
        self._app.chat.edit_message(text)

    def copy(self, text: str) -> str | None:
        return send_to_clipboard(self._app, text)

    def quit(self) -> None:
        self._app.request_quit()
