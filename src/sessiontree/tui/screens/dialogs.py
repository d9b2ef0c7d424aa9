"""Dialogs: select, confirm, input, editor and text page; and the `Ui` of the app, which asks questions with them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Input, OptionList, TextArea
from textual.widgets.option_list import Option

from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.hooks.ui_protocol import Level
from sessiontree.tui.keys import bind, format_hints
from sessiontree.tui.services.terminal import edit_externally, send_to_clipboard
from sessiontree.tui.widgets.controls import FilterInput, SafeStatic

if TYPE_CHECKING:
    from sessiontree.agent.permissions import PermissionAnswer, PermissionQuestion
    from sessiontree.tui.app import SessionApp  # cycle: the app creates it, and it calls the app
    from sessiontree.tui.widgets.permission_panel import PermissionPanel

T = TypeVar("T")

_CANCELLED_TEXTS: WeakKeyDictionary[App[Any], dict[str, str]] = WeakKeyDictionary()
"""Texts of cancelled editor dialogs, by app and title."""


class Dialog(ModalScreen[T | None]):
    """A panel with a title and a line of hints. Esc returns `None`."""

    DEFAULT_CSS = """
    Dialog { align: center bottom; background: $background 40%; }
    Dialog > .panel {
        width: 100%; height: auto; max-height: 95%;
        background: $surface; border-top: heavy $primary; padding: 0 2;
    }
    Dialog .title { text-style: bold; height: auto; }
    Dialog .hint { color: $muted; height: auto; margin-top: 1; }
    Dialog OptionList, Dialog OptionList:focus {
        background: $surface; border: none; height: auto; max-height: 50vh; padding: 0;
    }
    Dialog Input, Dialog Input:focus { border: none; background: $surface; height: 1; padding: 0; margin: 0; }
    Dialog TextArea, Dialog TextArea:focus { border: none; background: $surface; height: 40vh; padding: 0; }
    Dialog OptionList > .option-list--option-highlighted { background: $panel; text-style: bold; }
    Dialog:nocolor OptionList > .option-list--option-highlighted { text-style: bold underline; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "cancel", "cancel", priority=True)]
    HINT: ClassVar[tuple[str | tuple[str, str], ...]] = ("Enter to select", "Esc to cancel")

    if TYPE_CHECKING:

        @property
        def app(self) -> App[Any]: ...

    def __init__(self, title: str) -> None:
        super().__init__()
        self._question = title

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel"):
            yield SafeStatic(self._question, classes="title")
            yield from self.compose_question()
            yield SafeStatic(format_hints(self, *self.HINT), classes="hint")

    def compose_question(self) -> ComposeResult:
        yield from ()

    def action_cancel(self) -> None:
        self.dismiss(None)


class SelectDialog(Dialog[int]):
    """Select one of several lines. Typing filters the lines by words."""

    HINT = ("type to search", "Enter to select", "Esc to cancel")

    def __init__(self, title: str, rows: Sequence[str], *, at: int = 0) -> None:
        super().__init__(title)
        self._rows = [escape_line(row) for row in rows]
        self._initial_row = at
        self._matches: list[int] = []

    def compose_question(self) -> ComposeResult:
        options = OptionList(markup=False)
        yield FilterInput(options, placeholder="Search")
        yield options

    def on_mount(self) -> None:
        self._filter_rows("")
        if self._rows:
            self.query_one(OptionList).highlighted = self._initial_row

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter_rows(event.value)

    def _filter_rows(self, query: str) -> None:
        words = query.lower().split()
        self._matches = [index for index, row in enumerate(self._rows) if all(word in row.lower() for word in words)]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(
            [Option(Text(self._rows[index], no_wrap=True, overflow="ellipsis")) for index in self._matches]
        )
        options.highlighted = 0 if self._matches else None

    def on_input_submitted(self) -> None:
        at = self.query_one(OptionList).highlighted
        if at is not None:
            self.dismiss(self._matches[at])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._matches[event.option_index])


class ConfirmDialog(Dialog[bool]):
    """Ask a yes/no question."""

    HINT = ("Y for yes", "N for no", "Enter for the default", "Esc for no")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)"),
        Binding("n", "answer(False)"),
        Binding("enter", "default"),
    ]

    def __init__(self, title: str, text: str = "", *, default: bool = False) -> None:
        super().__init__(title)
        self._text = text
        self._default = default

    def compose_question(self) -> ComposeResult:
        if self._text:
            yield SafeStatic(self._text)
        yield SafeStatic("[Y/n]" if self._default else "[y/N]")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)

    def action_default(self) -> None:
        self.dismiss(self._default)

    def action_cancel(self) -> None:
        self.dismiss(False)


class InputDialog(Dialog[str]):
    """Ask for a line of text. A secret one is shown as dots."""

    HINT = ("Enter to confirm", "Esc to cancel")

    def __init__(self, title: str, *, placeholder: str = "", text: str = "", is_secret: bool = False) -> None:
        super().__init__(title)
        self._placeholder = placeholder
        self._text = text
        self._is_secret = is_secret

    def compose_question(self) -> ComposeResult:
        yield Input(
            escape_line(self._text),
            placeholder=escape_line(self._placeholder),
            password=self._is_secret,
            select_on_focus=False,
        )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class EditorDialog(Dialog[str]):
    """Edit a longer text. A dialog without a text restores the text that was cancelled last."""

    HINT = ("Ctrl+S to save", ("external_editor", "for $EDITOR"), "Esc to cancel")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "done", priority=True),
        Binding("ctrl+c", "copy", priority=True),
        bind("external_editor", "external_editor", priority=True),
    ]

    def __init__(self, title: str, text: str = "") -> None:
        super().__init__(title)
        self._text = text

    @property
    def _cancelled_texts(self) -> dict[str, str]:
        return _CANCELLED_TEXTS.setdefault(self.app, {})

    def compose_question(self) -> ComposeResult:
        text = self._text or self._cancelled_texts.pop(self._question, "")
        yield TextArea(escape_lines(text), soft_wrap=True, tab_behavior="indent", highlight_cursor_line=False)

    def on_mount(self) -> None:
        area = self.query_one(TextArea)
        area.move_cursor(area.document.end)

    def action_done(self) -> None:
        self.dismiss(self.query_one(TextArea).text)

    def action_copy(self) -> None:
        """Copy the selection. If the text is empty, cancel, as this key does in other dialogs."""
        area = self.query_one(TextArea)
        if area.selected_text:
            self.notify(send_to_clipboard(self.app, area.selected_text), timeout=2)
        elif not area.text:
            self.dismiss(None)

    def action_cancel(self) -> None:
        text = self.query_one(TextArea).text
        if not self._text and text.strip():
            self._cancelled_texts[self._question] = text
        self.dismiss(None)

    def action_external_editor(self) -> None:
        area = self.query_one(TextArea)

        def replace_text(text: str) -> None:
            area.text = escape_lines(text)

        edit_externally(self.app, area.text, replace_text)


class PageDialog(Dialog[None]):
    """Show a text, such as a table."""

    DEFAULT_CSS = """
    PageDialog VerticalScroll { height: auto; max-height: 70vh; scrollbar-size-vertical: 1; }
    PageDialog .text { width: auto; }
    """
    HINT = ("↑ ↓ to scroll", "Esc to close")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,q", "cancel")]

    def __init__(self, title: str, text: str | Text) -> None:
        super().__init__(title)
        self._text = text

    def compose_question(self) -> ComposeResult:
        with VerticalScroll():
            line = SafeStatic(classes="text")
            line.set_text(self._text)
            yield line

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


class WidgetDialog(Dialog[Any]):
    """Show a widget of an extension. It closes the dialog with `self.screen.dismiss(value)`."""

    HINT = ("Esc to close",)

    def __init__(self, widget: Widget) -> None:
        super().__init__("")
        self._widget = widget

    def compose_question(self) -> ComposeResult:
        yield self._widget

    def on_mount(self, event: events.Mount) -> None:
        if self._widget.focusable:
            self._widget.focus()


MAX_PANEL_OPTIONS = 8
"""Maximum number of options in the question panel. Longer lists open a searchable dialog."""
CUSTOM_TITLE = "An extension needs your input"
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
