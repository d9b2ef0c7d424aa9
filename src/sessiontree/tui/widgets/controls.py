"""Lines of text that come from sessions and extensions: never markup, never a control sequence."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static

from sessiontree.core.sanitize import escape_lines


class SafeStatic(Static):
    def __init__(self, text: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(escape_lines(text), id=id, classes=classes, markup=False)

    def set_text(self, text: str | Text) -> None:
        self.update(Text(escape_lines(text)) if isinstance(text, str) else text)
