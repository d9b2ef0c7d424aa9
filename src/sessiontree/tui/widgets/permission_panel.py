"""The question panel: ask about a tool call, or for an extension, without interrupting the user's typing.

The panel takes the focus when the editor is empty and no key was pressed for `GRACE_SECONDS`, or when the user presses
its key. Until then no key counts as an answer. A letter typed in the panel goes to the editor. `agent.permissions`
decides which tool calls need an answer.

A question that follows from the user's own command can use a dialog instead. `is_typing` tells whether a dialog could
receive a key that was meant for the editor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import chop_cells
from rich.text import Text
from textual import events
from textual.geometry import Size
from textual.widget import Widget

from sessiontree.core.number_text import pluralize
from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.tui.keys import format_hints

if TYPE_CHECKING:
    from sessiontree.agent.permissions import PermissionAnswer, PermissionQuestion, Scope
    from sessiontree.tui.app import SessionApp  # cycle: the app creates it, and it calls the app

GRACE_SECONDS = 0.8
"""Time without a key press, after the question appears, until the panel takes the focus."""
TICK_SECONDS = 0.1
MAX_LINES = 12
"""Maximum rows of a tool call shown in the panel. The last option shows all."""
MIN_LINES = 2
"""Rows of a tool call that are shown even if the terminal is very low."""
MAX_OPTION_LINES = 3
"""Maximum rows of the chosen answer, which may have a long rule. The others have one row."""
MAX_LINE_CHARACTERS = 400
"""Characters shown of a line."""
MAX_HEIGHT_FRACTION = 0.6
LOW_TERMINAL_ROWS = 30
"""In a terminal with fewer rows, the list of steps is hidden while a question waits."""


class PanelOption(NamedTuple):
    label: str
    action: str
    """The answer, `why` to decline with a reason, or `all` to show the whole call."""


class PanelQuestion(NamedTuple):
    title: str
    note: str
    """Shown after the title."""
    detail: str
    options: list[PanelOption]
    reminder: str
    """Notification if another screen covers the question."""


class PanelRow(NamedTuple):
    text: str
    style: str = ""
    option: int | None = None
    """The index of the option in this row."""
    note: str = ""
    """Shown after the text."""


SHOW_ALL = PanelOption("Show the whole call", "all")
LABELS: dict[Scope, str] = {
    "once": "Allow once",
    "session": "Allow for this session",
    "always": "Always allow in this folder",
    "no": "No",
}


class PermissionPanel(Widget, can_focus=True):
    DEFAULT_CSS = """
    PermissionPanel { height: auto; max-height: 80%; display: none; padding: 0 1; background: $surface;
        border-top: heavy $warning; overflow-y: auto; }
    PermissionPanel.-shown { display: block; }
    """

    if TYPE_CHECKING:

        @property
        def app(self) -> SessionApp: ...

    def __init__(self) -> None:
        super().__init__()
        self.clock = time.monotonic
        self.question: PanelQuestion | None = None
        self.selected_index = 0
        self.is_typing = False
        """Whether the last key typed or submitted text, so the next one may belong to a text too."""
        self._question_lock = asyncio.Lock()
        self._pending_answer: asyncio.Future[tuple[str | None, str | None]] | None = None
        """The chosen action (`None` for Esc) and the reason for declining."""
        self._shown_at: float | None = None
        """When the question became visible."""
        self._typed_at = float("-inf")
        self._focused_at = 0.0
        """When the panel got the focus, on the clock of key events."""

    def on_mount(self) -> None:
        self.set_interval(TICK_SECONDS, self.check_focus)

    # Asking

    async def ask(self, question: PermissionQuestion) -> PermissionAnswer:
        """Ask about a tool call."""
        from sessiontree.agent.permissions import PermissionAnswer

        action, reason = await self._ask_question(
            PanelQuestion(
                title=f"Allow {escape_line(question.tool)}?",
                note=escape_line(question.why),
                detail=question.detail,
                options=self._build_permission_options(question),
                reminder="A tool call needs your permission. Go back to the chat to answer.",
            )
        )
        scopes: dict[str | None, Scope] = {scope: scope for scope in question.scopes}
        return PermissionAnswer(scope=scopes.get(action, "no"), reason=reason)

    async def choose(self, title: str, detail: str, labels: Sequence[str]) -> int | None:
        """Ask the user to choose a label. Return its index, or `None`."""
        options = [
            PanelOption(escape_line(label)[:MAX_LINE_CHARACTERS], str(index)) for index, label in enumerate(labels)
        ]
        waits = "A question is waiting. Go back to the chat to answer."
        action, _ = await self._ask_question(PanelQuestion(escape_line(title), "", detail, options, waits))
        return None if action is None else int(action)

    async def _ask_question(self, question: PanelQuestion) -> tuple[str | None, str | None]:
        """Show a question until it is answered, one at a time. Cancelling this call removes it."""
        async with self._question_lock:
            self._pending_answer = asyncio.get_running_loop().create_future()
            self.question, self.selected_index, self._shown_at = question, 0, None
            self.add_class("-shown")
            self.screen.set_class(self.app.size.height < LOW_TERMINAL_ROWS, "-asking")
            self.refresh(layout=True)
            if self.app.screen is not self.screen:
                self.app.notify(question.reminder, severity="warning")
            try:
                return await self._pending_answer
            finally:
                self.question = self._pending_answer = None
                self.remove_class("-shown")
                self.screen.remove_class("-asking")
                if self.has_focus:
                    self.app.chat.editor.focus()

    def _build_permission_options(self, question: PermissionQuestion) -> list[PanelOption]:
        rule = None if question.rule is None else escape_line(question.rule.replace("\n", "⏎"))[:MAX_LINE_CHARACTERS]
        found = [
            PanelOption(f"{LABELS[scope]}: {rule}" if scope in ("session", "always") else LABELS[scope], scope)
            for scope in question.scopes
        ]
        found.append(PanelOption("No, and tell the model why…", "why"))
        return found

    # Focus

    def note_key(self, event: events.Key | events.Paste) -> None:
        """Record a key press anywhere in the app."""
        self._typed_at = self.clock()
        if isinstance(event, events.Paste) or event.is_printable:
            self.is_typing = True
        else:
            self.is_typing = event.key == "enter" and self.app.screen is self.screen

    def note_command(self) -> None:
        """Record that the user ran a command. It may open a dialog at once, because the user expects it."""
        self.is_typing = False

    def check_focus(self) -> None:
        """Take the focus if the question has been visible for a while without a key press."""
        if self.question is None:
            return
        if self.app.screen is not self.screen:
            self._shown_at = None  # covered by another screen
            return
        now = self.clock()
        if self._shown_at is None:
            self._shown_at = now
            return
        editor = self.app.chat.editor
        quiet = now - max(self._shown_at, self._typed_at)
        if quiet >= GRACE_SECONDS and editor.has_focus and not editor.text:
            self.focus_panel()

    def focus_panel(self) -> None:
        if self.question is not None:
            self._focused_at = time.monotonic()
            self.focus()
            self.refresh(layout=True)

    def on_blur(self) -> None:
        self.refresh(layout=True)

    async def on_key(self, event: events.Key) -> None:
        if self.question is None or event.time < self._focused_at:
            self._forward_to_editor(event)  # pressed before the panel had the focus
            return
        options = self._list_options(self.question, self.content_size.width)
        match event.key:
            case "up" | "down":
                self.selected_index = (self.selected_index + (1 if event.key == "down" else -1)) % len(options)
                self.refresh(layout=True)
            case "enter":
                self._apply_option(options[min(self.selected_index, len(options) - 1)])
            case "escape":
                self._resolve(None)
            case "tab":
                self.app.chat.editor.focus()
            case _:
                self._forward_to_editor(event)
                return
        event.stop()
        event.prevent_default()

    def _forward_to_editor(self, event: events.Key) -> None:
        """Insert a printable key into the editor. Other keys keep their meaning in the chat."""
        editor = self.app.chat.editor
        if event.is_printable and event.character:
            editor.focus()
            editor.insert(event.character)
            event.stop()
            event.prevent_default()

    def on_click(self, event: events.Click) -> None:
        """Select an option and focus the panel. A click never answers the question."""
        if self.question is None:
            return
        rows = self._build_rows(self.content_size.width)
        row = event.y - 1 + int(self.scroll_y)
        option = rows[row].option if 0 <= row < len(rows) else None
        if option is not None:
            self.selected_index = option
        self.focus_panel()

    def _apply_option(self, option: PanelOption) -> None:
        match option.action:
            case "why":
                self.is_typing = False  # the user expects the dialog
                self.run_worker(self._ask_why(), exit_on_error=False)
            case "all":
                self.app.show_page("" if self.question is None else self.question.detail)
            case _:
                self._resolve(option.action)

    async def _ask_why(self) -> None:
        answer = self._pending_answer
        reason = await self.app.ui.input("Reason (sent to the model)")
        if reason is not None and answer is self._pending_answer:
            self._resolve("no", reason)

    def _resolve(self, action: str | None, reason: str | None = None) -> None:
        if self._pending_answer is not None and not self._pending_answer.done():
            self._pending_answer.set_result((action, reason))

    # Drawing

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._build_rows(width))

    def render(self) -> Text:
        rows = self._build_rows(self.content_size.width)
        lines = (Text.assemble((row.text, row.style), (row.note, "dim")) for row in rows)
        return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)

    def _build_rows(self, width: int) -> list[PanelRow]:
        """Return the rows of the panel. The options and the hint are always visible, so a long call is cut first."""
        question = self.question
        if question is None:
            return []
        options = self._list_options(question, width)
        rows = [*(PanelRow(row, "bold") for row in _wrap(question.title, width, indent=""))]
        if question.note:
            rows[-1] = rows[-1]._replace(note=f" {question.note}")
        rows += self._list_detail_rows(question, width)
        for index, option in enumerate(options):
            chosen = index == self.selected_index and self.has_focus
            lines = _wrap(f"{'❯' if chosen else ' '} {option.label}", width, indent="  ")
            shown = lines[: MAX_OPTION_LINES if chosen else 1]
            if len(shown) < len(lines):
                shown[-1] = f"{shown[-1][:-1]}…"
            rows += [PanelRow(line, "bold reverse" if chosen else "", index) for line in shown]
        if self.has_focus:
            hint = "↑ ↓ and Enter to answer · Esc for no · type to continue in the editor"
        else:
            hint = f"{format_hints(self.screen, ('permission', 'to answer'))} · typing goes to the editor"
        return [*rows, PanelRow(hint, "dim")]

    def _list_options(self, question: PanelQuestion, width: int) -> list[PanelOption]:
        """Return the options, and one to show the whole call if the panel has no room for it."""
        needs_all = len(self._wrap_detail(question, width)) > self._get_detail_room(question)
        is_cut = any(len(line) > MAX_LINE_CHARACTERS for line in question.detail.split("\n"))
        return [*question.options, SHOW_ALL] if needs_all or is_cut else question.options

    def _get_detail_room(self, question: PanelQuestion) -> int:
        """Return how many rows of the call fit, next to the border, the title, the options and the hint."""
        room = int(self.app.size.height * MAX_HEIGHT_FRACTION) - 3 - len(question.options)
        return max(MIN_LINES, min(MAX_LINES, room))

    def _wrap_detail(self, question: PanelQuestion, width: int) -> list[str]:
        detail = escape_lines(question.detail).rstrip("\n")
        lines = detail.split("\n") if detail else []
        return [row for line in lines for row in _wrap(f"  {line[:MAX_LINE_CHARACTERS]}", width, indent="  ")]

    def _list_detail_rows(self, question: PanelQuestion, width: int) -> list[PanelRow]:
        rows, room = self._wrap_detail(question, width), self._get_detail_room(question)
        if len(rows) <= room:
            return [PanelRow(row) for row in rows]
        shown = max(MIN_LINES, room - 2)  # the count of the others, and the option that shows all, need a row each
        rest = f"  … {pluralize(len(rows) - shown, 'more line')}"
        return [*(PanelRow(row) for row in rows[:shown]), PanelRow(rest, "dim")]


def _wrap(text: str, width: int, *, indent: str) -> list[str]:
    """Return a line as rows of at most `width` cells. All rows but the first are indented."""
    if width <= len(indent) + 1:
        return [text]
    first, *_ = chop_cells(text, width) or [""]
    rest = text[len(first) :]
    return [first, *(indent + row for row in chop_cells(rest, width - len(indent)))] if rest else [first]
