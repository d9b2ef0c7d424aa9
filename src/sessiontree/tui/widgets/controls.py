"""Small widgets: text without markup or control sequences, and the search input above a list."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import Input, OptionList, Static

from sessiontree.core.sanitize import escape_lines


class SafeStatic(Static):
    """Text from sessions or extensions, escaped for the terminal."""

    def __init__(self, text: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(escape_lines(text), id=id, classes=classes, markup=False)

    def set_text(self, text: str | Text) -> None:
        self.update(Text(escape_lines(text)) if isinstance(text, str) else text)


class FilterInput(Input):
    """The search input of a list. Keys that it does not need move the highlight; Enter posts `Input.Submitted`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "step(-1)", priority=True),
        Binding("down", "step(1)", priority=True),
        Binding("pageup", "page(-1)", priority=True),
        Binding("pagedown", "page(1)", priority=True),
        Binding("enter", "submit", priority=True),
    ]

    def __init__(self, option_list: OptionList, text: str = "", *, placeholder: str) -> None:
        super().__init__(text, placeholder=placeholder, select_on_focus=False)
        self._option_list = option_list

    def action_step(self, by: int) -> None:
        self._option_list.action_cursor_down() if by > 0 else self._option_list.action_cursor_up()

    def action_page(self, by: int) -> None:
        self._option_list.action_page_down() if by > 0 else self._option_list.action_page_up()
