"""Dialogs: select, confirm, input, editor and text page, as panels at the bottom of the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, OptionList, TextArea
from textual.widgets.option_list import Option

from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.tui.keys import bind, format_hints
from sessiontree.tui.services.terminal import send_to_clipboard
from sessiontree.tui.widgets.controls import FilterInput, SafeStatic

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
        yield FilterInput(options, placeholder="search")
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
    """Ask for a line of text."""

    HINT = ("Enter to confirm", "Esc to cancel")

    def __init__(self, title: str, *, placeholder: str = "", text: str = "") -> None:
        super().__init__(title)
        self._placeholder = placeholder
        self._text = text

    def compose_question(self) -> ComposeResult:
        yield Input(escape_line(self._text), placeholder=escape_line(self._placeholder), select_on_focus=False)

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
        from sessiontree.tui.services.external_editor import edit_externally

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
