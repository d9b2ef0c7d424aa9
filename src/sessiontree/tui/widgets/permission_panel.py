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

from rich.text import Text
from textual import events
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
"""Lines of a tool call shown in the panel. The last option shows all."""
MAX_LINE_CHARACTERS = 400
"""Characters shown of a line."""


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


LABELS: dict[Scope, str] = {
    "once": "Allow once",
    "session": "Allow for this session",
    "always": "Always allow in this folder",
    "no": "No",
}


class PermissionPanel(Widget, can_focus=True):
    DEFAULT_CSS = """
    PermissionPanel { height: auto; max-height: 60%; display: none; padding: 0 1; background: $surface;
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
            self.refresh(layout=True)
            if self.app.screen is not self.screen:
                self.app.notify(question.reminder, severity="warning")
            try:
                return await self._pending_answer
            finally:
                self.question = self._pending_answer = None
                self.remove_class("-shown")
                if self.has_focus:
                    self.app.chat.editor.focus()

    def _build_permission_options(self, question: PermissionQuestion) -> list[PanelOption]:
        rule = None if question.rule is None else escape_line(question.rule.replace("\n", "⏎"))[:MAX_LINE_CHARACTERS]
        found = [
            PanelOption(f"{LABELS[scope]}: {rule}" if scope in ("session", "always") else LABELS[scope], scope)
            for scope in question.scopes
        ]
        found.append(PanelOption("No, and tell the model why…", "why"))
        if self._is_truncated(question.detail):
            found.append(PanelOption("Show the whole call", "all"))
        return found

    @staticmethod
    def _is_truncated(detail: str) -> bool:
        lines = detail.split("\n")
        return len(lines) > MAX_LINES or any(len(line) > MAX_LINE_CHARACTERS for line in lines)

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
        match event.key:
            case "up" | "down":
                self.selected_index = (self.selected_index + (1 if event.key == "down" else -1)) % len(
                    self.question.options
                )
                self.refresh()
            case "enter":
                self._apply_option(self.question.options[self.selected_index])
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
        first = len(self._render_head(self.question).plain.split("\n")) - 1
        row = event.y - 1 + int(self.scroll_y) - first
        if 0 <= row < len(self.question.options):
            self.selected_index = row
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

    def render(self) -> Text:
        if self.question is None:
            return Text()
        text = self._render_head(self.question)
        for index, option in enumerate(self.question.options):
            chosen = index == self.selected_index and self.has_focus
            text.append(f"{'❯' if chosen else ' '} {option.label}\n", "bold reverse" if chosen else "")
        if self.has_focus:
            text.append("↑ ↓ and Enter to answer · Esc for no · type to continue in the editor", "dim")
        else:
            text.append(f"{format_hints(self.screen, ('permission', 'to answer'))} · typing goes to the editor", "dim")
        return text

    def _render_head(self, question: PanelQuestion) -> Text:
        lines = (
            [line[:MAX_LINE_CHARACTERS] for line in escape_lines(question.detail).split("\n")]
            if question.detail
            else []
        )
        text = Text()
        text.append(f"{question.title} ", "bold")
        text.append(f"{question.note}\n", "dim")
        for line in lines[:MAX_LINES]:
            text.append(f"  {line}\n")
        if self._is_truncated(question.detail):
            text.append(f"  … {pluralize(max(0, len(lines) - MAX_LINES), 'more line')}\n", "dim")
        return text
