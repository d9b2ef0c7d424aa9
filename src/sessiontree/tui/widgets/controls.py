"""Small widgets: text without control sequences, the search input above a list, the status line and the queue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import Input, OptionList, Static

from sessiontree.agent.tools.todo_tool import TodoItem, format_item
from sessiontree.core.sanitize import escape_line, escape_lines


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


SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
MAX_QUEUED = 5
"""Maximum number of queued prompts that are shown."""


class StatusLine(SafeStatic):
    """The current activity with a spinner and its duration. Hidden when idle."""

    DEFAULT_CSS = """
    StatusLine { height: auto; padding: 0 1; color: $accent; display: none; }
    StatusLine.-shown { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.activity = ""
        """Label of the current activity, empty when idle."""
        self.hint = ""
        self._start = 0.0
        self._countdown_end: float | None = None

    def on_mount(self) -> None:
        self.set_interval(0.12, self._update_spinner)

    def show_activity(self, label: str, countdown: float | None = None) -> None:
        """Show a label, or hide the line if it is empty. `countdown` counts down seconds."""
        if label and not self.activity:
            self._start = time.monotonic()
        self.activity = label
        self._countdown_end = None if countdown is None else time.monotonic() + countdown
        self.set_class(bool(label), "-shown")
        self._update_spinner()

    def _update_spinner(self) -> None:
        if self.activity:
            now = time.monotonic()
            spinner = SPINNER[int((now - self._start) * 8) % len(SPINNER)]
            end = self._countdown_end
            label = f"{spinner} {escape_line(self.activity)}"
            elapsed = f"{now - self._start:.0f} s" if end is None else ""
            label += "" if end is None else f" in {max(0.0, end - now):.0f} s"
            parts = [label, elapsed, self.hint]
            self.set_text(" · ".join(filter(None, parts)))


MAX_TODO_LINES = 6


class TodoLines(SafeStatic):
    """The list that the agent keeps with the todo tool. Hidden when it is empty or done."""

    DEFAULT_CSS = """
    TodoLines { height: auto; padding: 0 1; color: $foreground; display: none; }
    TodoLines.-shown { display: block; }
    """

    def show_items(self, items: Sequence[TodoItem]) -> None:
        """Show the items around the first one that is not done."""
        left = [index for index, item in enumerate(items) if item.status != "done"]
        self.set_class(bool(left), "-shown")
        if not left:
            return
        first = max(0, min(left[0] - 1, len(items) - MAX_TODO_LINES))
        lines = [
            Text(
                escape_line(format_item(item)),
                "dim" if item.status == "done" else "",
                no_wrap=True,
                overflow="ellipsis",
            )
            for item in items[first : first + MAX_TODO_LINES]
        ]
        done = f"{len(items) - len(left)} of {len(items)} done"
        self.set_text(Text("\n").join([*lines, Text(done, "dim")]))


class QueueLines(SafeStatic):
    """The first queued prompts and their number. Hidden when the queue is empty."""

    DEFAULT_CSS = """
    QueueLines { height: auto; padding: 0 1; color: $muted; display: none; }
    QueueLines.-shown { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.prompts: tuple[str, ...] = ()
        self.hint = ""

    def show_prompts(self, steering: tuple[str, ...], follow_up: tuple[str, ...] = ()) -> None:
        """Show prompts that are sent after the current step, then prompts that are sent after the run."""
        prompts = self.prompts = (*steering, *follow_up)
        self.set_class(bool(prompts), "-shown")
        lines: list[Text] = []
        for index, text in enumerate(prompts[:MAX_QUEUED]):
            when = " · after this step" if index < len(steering) else " · after the run"
            line = Text(f"⋯ {escape_line(' '.join(text.split()))}", no_wrap=True)
            line.truncate(max(self.screen.size.width - len(when) - 2, 8), overflow="ellipsis")
            lines.append(line.append(when, "dim"))
        hint = " · ".join(filter(None, [f"{len(prompts)} queued", self.hint])) if prompts else ""
        self.set_text(Text("\n").join([*lines, Text(hint, "dim")]))
