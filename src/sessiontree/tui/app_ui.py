"""The `Ui` and the `Host` of the terminal app: how commands, handlers and extensions ask, tell and draw."""

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
from sessiontree.tui.clipboard import send_to_clipboard
from sessiontree.tui.screens.dialogs import ConfirmDialog, EditorDialog, InputDialog, SelectDialog, WidgetDialog
from sessiontree.tui.services.other_processes import is_session_open

if TYPE_CHECKING:
    from sessiontree.agent.permissions import PermissionAnswer, PermissionQuestion
    from sessiontree.commands.controller import SessionController
    from sessiontree.tui.app import SessionApp
    from sessiontree.tui.widgets.permission_panel import PermissionPanel

T = TypeVar("T")

MAX_PANEL_OPTIONS = 8
"""Options that the question panel shows; more are offered in a dialog, which can be searched."""
CUSTOM_TITLE = "An extension asks for your attention."
SEVERITY: dict[Level, Any] = {"info": "information", "warning": "warning", "error": "error"}


class AppUi:
    """Asks by dialogs. `notify` and `status` may be called from any thread.

    What is shown is made text here, whatever it is: the app could not draw it later.
    """

    has_person = True

    def __init__(self, app: SessionApp) -> None:
        self._app = app
        self._thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()

    @property
    def _panel(self) -> PermissionPanel | None:
        """Where to ask while somebody types, so that no key answers that was meant for the editor."""
        panel = self._app.chat.permission
        return panel if panel.is_typing else None

    async def ask(self, screen: Screen[T], title: str | None = None) -> T | None:
        """Show a screen until it is answered. Whoever stops waiting takes the question away.

        While somebody types, a question with a `title` is only announced, until they are ready for it.
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
            self._app.chat.permission.is_typing = False  # the last key was for the question
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
        """Ask about a tool call, beside what is typed."""
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
        """A Textual screen, whose result is returned, or a widget, which is framed and ends by `screen.dismiss`."""
        if isinstance(component, Screen):
            return await self.ask(component, CUSTOM_TITLE)  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(component, Widget):
            return await self.ask(WidgetDialog(component), CUSTOM_TITLE)
        raise TypeError(f"{type(component).__name__} is no screen and no widget of Textual")

    def _call_in_ui_thread(self, do: Callable[[], object]) -> None:
        if threading.get_ident() == self._thread:
            do()
        else:
            self._loop.call_soon_threadsafe(do)


class AppHost:
    """Does for commands what only the app can do."""

    def __init__(self, app: SessionApp) -> None:
        self._app = app

    async def choose_entry(self, desk: SessionController) -> EntryId | None:
        return await self._app.choose_entry("choose an entry")

    async def choose_branch(self, session: Session) -> Branch | None:
        return await self._app.enter_session(session)

    def is_open_elsewhere(self, place: str) -> bool:
        return is_session_open(place)

    def refresh(self) -> None:
        self._app.chat.reload()

    def set_editor_text(self, text: str) -> None:
        self._app.chat.put_in_editor(text)

    def copy(self, text: str) -> str | None:
        return send_to_clipboard(self._app, text)

    def quit(self) -> None:
        self._app.request_quit()
