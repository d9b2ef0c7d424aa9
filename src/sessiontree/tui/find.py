"""The line above a list, in which one types what to look for there.

The keys that a line has no use for move in the list. What is listed, and what becomes of the choice, is the screen's.
"""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Input, OptionList


class FilterInput(Input):
    """Enter is told as `Input.Submitted`: what is highlighted in the list is chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "step(-1)", priority=True),
        Binding("down", "step(1)", priority=True),
        Binding("pageup", "page(-1)", priority=True),
        Binding("pagedown", "page(1)", priority=True),
        Binding("enter", "submit", priority=True),
    ]

    def __init__(self, listed: OptionList, text: str = "", *, placeholder: str) -> None:
        super().__init__(text, placeholder=placeholder, select_on_focus=False)
        self._option_list = listed

    def action_step(self, by: int) -> None:
        self._option_list.action_cursor_down() if by > 0 else self._option_list.action_cursor_up()

    def action_page(self, by: int) -> None:
        self._option_list.action_page_down() if by > 0 else self._option_list.action_page_up()
