"""The model dialog: choose a model, filter by typing, and keep favorites at the top."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from sessiontree.core.sanitize import escape_line
from sessiontree.errors import StoreError
from sessiontree.tui.keys import bind
from sessiontree.tui.screens.dialogs import Dialog
from sessiontree.tui.widgets.controls import FilterInput

CONNECT_ROW = "Add a provider or a server…"
"""The last row, which opens the setup."""
CONNECT = ""
"""The result for the last row."""


class ModelDialog(Dialog[str]):
    """Choose one of several models. Returns its name, or `CONNECT`."""

    HINT = ("type to search", "Enter to select", ("model_favorite", "to star"), "Esc to cancel")
    BINDINGS: ClassVar[list[BindingType]] = [bind("model_favorite", "favorite", priority=True)]

    def __init__(
        self,
        names: Sequence[str],
        *,
        current: str | None = None,
        favorites: Sequence[str] = (),
        toggle_favorite: Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        super().__init__("Model · the choice is the default from now on")
        self._models: list[str] = list(dict.fromkeys([current, *names] if current else names))
        self._current = current
        self._favorites = favorites
        self._toggle = toggle_favorite
        self._listed: list[str] = []

    def compose_question(self) -> ComposeResult:
        options = OptionList(markup=False)
        yield FilterInput(options, placeholder="Search")
        yield options

    def on_mount(self) -> None:
        self._fill("", self._current)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._fill(event.value, None)

    def _fill(self, query: str, at: str | None) -> None:
        """Show the names that match, favorites first, with the highlight on `at` or on the first."""
        words = query.lower().split()
        found = [name for name in self._models if all(word in name.lower() for word in words)]
        found.sort(key=lambda name: name not in self._favorites)
        self._listed = [*found, CONNECT]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(self._format(name)) for name in self._listed])
        options.highlighted = self._listed.index(at) if at in self._listed else 0

    def _format(self, name: str) -> Text:
        if name == CONNECT:
            return Text(f"  {CONNECT_ROW}")
        star = "★" if name in self._favorites else " "
        current = "  (current)" if name == self._current else ""
        return Text(f"{star} {escape_line(name)}{current}", no_wrap=True, overflow="ellipsis")

    @property
    def _highlighted(self) -> str:
        at = self.query_one(OptionList).highlighted
        return CONNECT if at is None else self._listed[at]

    def action_favorite(self) -> None:
        name = self._highlighted
        if name == CONNECT or self._toggle is None:
            return
        try:
            self._favorites = self._toggle(name)
        except StoreError as error:
            self.notify(str(error), severity="error", markup=False)
        self._fill(self.query_one(Input).value, name)

    def on_input_submitted(self) -> None:
        self.dismiss(self._highlighted)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._listed[event.option_index])
