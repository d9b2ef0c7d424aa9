"""Lines of text that come from sessions and extensions: never markup, never a control sequence."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static

from sessiontree.core.safe import safe_lines


class Line(Static):
    def __init__(self, text: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(safe_lines(text), id=id, classes=classes, markup=False)

    def say(self, text: str | Text) -> None:
        self.update(Text(safe_lines(text)) if isinstance(text, str) else text)
