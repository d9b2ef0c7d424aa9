"""The `Ui` and the `Host` of the terminal app: how commands, handlers and extensions ask, tell and draw."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from textual.screen import Screen
from textual.widget import Widget

from sessiontree.core.entries import EntryId
from sessiontree.core.safe import safe_lines
from sessiontree.hooks.ui import Level
from sessiontree.session import Branch, Session
from sessiontree.tui.clipboard import send_to_clipboard
from sessiontree.tui.dialogs import Ask, Chooser, Confirm, Framed, Write
from sessiontree.tui.presence import is_open

if TYPE_CHECKING:
    from sessiontree.agent.permissions import PermissionAnswer, PermissionQuestion
    from sessiontree.commands.desk import Desk
    from sessiontree.tui.app import SessionApp

T = TypeVar("T")

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

    async def ask(self, screen: Screen[T]) -> T | None:
        """Show a screen until it is answered. Whoever stops waiting takes the question away."""
        answered: asyncio.Future[T | None] = self._loop.create_future()

        def settle(answer: T | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        await self._app.push_screen(screen, settle)
        try:
            return await answered
        finally:
            if answered.cancelled() and screen in self._app.screen_stack:
                screen.dismiss(None)

    async def select(self, title: str, options: Sequence[str], *, at: str | None = None) -> str | None:
        rows = [str(option) for option in options]
        chosen = await self.ask(Chooser(str(title), rows, at=options.index(at) if at in options else 0))
        return None if chosen is None else options[chosen]

    async def confirm(self, title: str, text: str = "", *, default: bool = False) -> bool:
        return bool(await self.ask(Confirm(str(title), str(text), default=default)))

    async def ask_permission(self, question: PermissionQuestion) -> PermissionAnswer | None:
        """Ask about a tool call, beside what is typed."""
        chat = self._app.chat
        chat.do("waiting for your permission")
        try:
            return await chat.permission.ask(question)
        finally:
            chat.do("working")

    async def input(self, title: str, *, placeholder: str = "") -> str | None:
        return await self.ask(Ask(str(title), placeholder=str(placeholder)))

    async def editor(self, title: str, text: str = "") -> str | None:
        return await self.ask(Write(str(title), str(text)))

    def notify(self, text: str, level: Level = "info") -> None:
        shown, severity = safe_lines(str(text)), SEVERITY[level]
        self._soon(lambda: self._app.notify(shown, severity=severity, markup=False))

    def status(self, key: str, text: str | None) -> None:
        shown = None if text is None else str(text)
        self._soon(lambda: self._app.chat.set_status(key, shown))

    async def custom(self, component: Any) -> Any:
        """A Textual screen, whose result is returned, or a widget, which is framed and ends by `screen.dismiss`."""
        if isinstance(component, Screen):
            return await self.ask(component)  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(component, Widget):
            return await self.ask(Framed(component))
        raise TypeError(f"{type(component).__name__} is no screen and no widget of Textual")

    def _soon(self, do: Callable[[], object]) -> None:
        if threading.get_ident() == self._thread:
            do()
        else:
            self._loop.call_soon_threadsafe(do)


class AppHost:
    """Does for commands what only the app can do."""

    def __init__(self, app: SessionApp) -> None:
        self._app = app

    async def choose_entry(self, desk: Desk) -> EntryId | None:
        return await self._app.choose_entry("choose an entry")

    async def arrive(self, session: Session) -> Branch | None:
        return await self._app.arrive(session)

    def open_elsewhere(self, place: str) -> bool:
        return is_open(place)

    def changed(self) -> None:
        self._app.chat.reload()

    def put_in_editor(self, text: str) -> None:
        self._app.chat.put_in_editor(text)

    def copy(self, text: str) -> str | None:
        return send_to_clipboard(self._app, text)

    def quit(self) -> None:
        self._app.leave()
