"""The question panel: asks about a tool call, or for an extension, without taking what is being typed.

The editor keeps the keyboard while somebody types. The panel takes it when the editor is empty and no key was pressed
for a moment since the question was drawn, or when it is asked for by its key. Until then no key counts as an answer,
and a letter that is typed later goes to the editor. Whether a call needs an answer is decided in `agent.permissions`.

A question that follows from a person's own command may come as a dialog, with the keyboard: `is_typing` says whether
it would be answered by a key that was meant for something else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text
from textual import events
from textual.widget import Widget

from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.tui.keys import format_hints

if TYPE_CHECKING:
    from sessiontree.agent.permissions import PermissionAnswer, PermissionQuestion, Scope
    from sessiontree.tui.app import SessionApp

GRACE_SECONDS = 0.8
"""Seconds without a key, since the question was drawn, after which the panel takes the keyboard."""
TICK_SECONDS = 0.1
MAX_LINES = 12
"""Lines of a call that are shown; the last option shows all."""
MAX_LINE_CHARACTERS = 400
"""Letters of a line that are shown."""


class PanelOption(NamedTuple):
    label: str
    action: str
    """The answer, or `why` and `all`: to say why not, and to see the whole call."""


class PanelQuestion(NamedTuple):
    title: str
    note: str
    """Stands behind the title."""
    detail: str
    options: list[PanelOption]
    reminder: str
    """Told where something else covers the question."""


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
        """Whether the last key was meant for a text, or said one, so that the next one may be, too."""
        self._question_lock = asyncio.Lock()
        self._pending_answer: asyncio.Future[tuple[str | None, str | None]] | None = None
        """The action that was chosen, none for escape, and why not."""
        self._shown_at: float | None = None
        """When the question was on the screen first, by the clock."""
        self._typed_at = float("-inf")
        self._focused_at = 0.0
        """When the panel got the keyboard, by the clock that keys are stamped with."""

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
        """Ask which one of several; `None` for none."""
        options = [
            PanelOption(escape_line(label)[:MAX_LINE_CHARACTERS], str(index)) for index, label in enumerate(labels)
        ]
        waits = "A question waits for your answer. Go back to the chat."
        action, _ = await self._ask_question(PanelQuestion(escape_line(title), "", detail, options, waits))
        return None if action is None else int(action)

    async def _ask_question(self, question: PanelQuestion) -> tuple[str | None, str | None]:
        """Show a question until it is answered, one at a time. Whoever stops waiting takes it away."""
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

    # Having the keyboard

    def note_key(self, event: events.Key | events.Paste) -> None:
        """Somebody has pressed a key, anywhere."""
        self._typed_at = self.clock()
        if isinstance(event, events.Paste) or event.is_printable:
            self.is_typing = True
        else:
            self.is_typing = event.key == "enter" and self.app.screen is self.screen

    def note_command(self) -> None:
        """What was sent was a command, which may ask at once: whoever gave it waits for that."""
        self.is_typing = False

    def check_focus(self) -> None:
        """Take the keyboard once the question was on the screen for a while and nobody typed since."""
        if self.question is None:
            return
        if self.app.screen is not self.screen:
            self._shown_at = None  # something else covers it
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
            self._forward_to_editor(event)  # it was pressed before the panel had the keyboard
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
        """Let the editor have a key that is no answer; those with another meaning in the chat keep it."""
        editor = self.app.chat.editor
        if event.is_printable and event.character:
            editor.focus()
            editor.insert(event.character)
            event.stop()
            event.prevent_default()

    def on_click(self, event: events.Click) -> None:
        """A click chooses nothing: it marks an option and gives the panel the keyboard."""
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
                self.is_typing = False  # whoever chose this waits for the dialog
                self.run_worker(self._ask_why(), exit_on_error=False)
            case "all":
                self.app.show_page("" if self.question is None else self.question.detail)
            case _:
                self._resolve(option.action)

    async def _ask_why(self) -> None:
        answer = self._pending_answer
        reason = await self.app.ui.input("Why not? The model is told.")
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
            text.append("↑ ↓ and Enter to answer · Esc for no · type to go on in the editor", "dim")
        else:
            text.append(
                f"{format_hints(self.screen, ('permission', 'to answer'))} · what you type goes to the editor", "dim"
            )
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
            text.append(f"  … {max(0, len(lines) - MAX_LINES)} more lines\n", "dim")
        return text
