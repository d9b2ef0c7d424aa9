"""The input editor of the chat, with history, collapsed pastes and a completion popup."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import App, RenderResult
from textual.binding import BindingType
from textual.message import Message
from textual.widget import Widget
from textual.widgets import TextArea
from textual.widgets.text_area import EditResult, Selection

from sessiontree.core.number_text import pluralize
from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.hooks.bus import run_in_thread
from sessiontree.slash_commands.registry import is_prompt_line
from sessiontree.tui.keys import bind
from sessiontree.tui.services.input import (
    NO_SUGGESTIONS,
    Completer,
    EditorDraft,
    HistoryItem,
    Suggestions,
    explain_missing_image,
    find_pasted_image,
    format_mention,
    save_clipboard_image,
)
from sessiontree.tui.services.terminal import send_to_clipboard
from sessiontree.tui.widgets.vi_keys import ViKeys

LONG_LINES, LONG_CHARACTERS = 10, 1500
"""A longer paste is shown as a placeholder."""
VISIBLE_SUGGESTIONS = 8
"""Number of suggestions visible at once."""

CHAT_BINDINGS: list[BindingType] = [
    bind("abort", "screen.abort"),
    bind("take_back", "screen.take_back"),
    bind("external_editor", "screen.external_editor"),
    bind("tree", "app.tree"),
    bind("sessions", "app.sessions"),
    bind("models", "app.command('/model')"),
    bind("thinking", "screen.thinking"),
    bind("unfold", "screen.unfold"),
    bind("browse", "screen.browse"),
    bind("page_up", "screen.page(-1)"),
    bind("page_down", "screen.page(1)"),
    bind("permission", "screen.permission"),
    bind("hotkeys", "app.command('/hotkeys')"),
]
"""Bindings of the whole chat. The editor repeats them to override its own."""


class CompletionPopup(Widget):
    """The list of suggestions above the editor."""

    DEFAULT_CSS = """
    CompletionPopup { height: auto; max-height: 8; display: none; padding: 0 1; background: $surface; }
    CompletionPopup.-open { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.suggestions: Suggestions = NO_SUGGESTIONS
        self.text_before = ""
        """The text before the cursor that the suggestions belong to."""
        self.selected_index: int | None = None
        """The suggestion that Enter inserts; `None` if Enter submits the text."""

    def show_suggestions(self, offer: Suggestions, before: str = "") -> None:
        self.suggestions, self.text_before = offer, before
        self.selected_index = 0 if offer.selects_first else None
        self.set_class(bool(offer.choices), "-open")
        self.refresh(layout=True)

    def move_selection(self, by: int) -> None:
        count = len(self.suggestions.choices)
        self.selected_index = (
            (0 if by > 0 else count - 1) if self.selected_index is None else (self.selected_index + by) % count
        )
        self.refresh()

    @property
    def selected_text(self) -> str:
        return self.suggestions.choices[self.selected_index or 0].text

    def render(self) -> RenderResult:
        longest = max((cell_len(choice.text) for choice in self.suggestions.choices), default=0) + 2
        table = Table.grid(padding=(0, 2, 0, 0), expand=False)
        table.add_column(no_wrap=True, overflow="ellipsis", min_width=min(longest, self.size.width))
        table.add_column(no_wrap=True, overflow="ellipsis")
        first = max(
            0,
            min(
                (self.selected_index or 0) - VISIBLE_SUGGESTIONS // 2,
                len(self.suggestions.choices) - VISIBLE_SUGGESTIONS,
            ),
        )
        for index, choice in enumerate(self.suggestions.choices[first : first + VISIBLE_SUGGESTIONS], first):
            mark = "› " if index == self.selected_index else "  "
            style = Style(bold=True) if index == self.selected_index else Style()
            help = Text(escape_line(choice.help), Style(dim=True))
            help.truncate(max(1, self.size.width - longest - 2), overflow="ellipsis")
            table.add_row(Text(mark + escape_line(choice.text), style), help)
        return table


class Editor(TextArea):
    DEFAULT_CSS = """
    Editor, Editor:focus {
        height: auto; max-height: 12; min-height: 1;
        border: none; border-top: solid $panel; border-bottom: solid $panel;
        border-title-color: $muted; border-title-background: $background;
        padding: 0 1; background: $background;
        scrollbar-size-vertical: 1;
    }
    Editor:focus { border-top: solid $secondary 60%; border-bottom: solid $secondary 60%; }
    Editor .text-area--placeholder { color: $muted; }
    Editor.-shell:focus { border-top: solid $warning; border-bottom: solid $warning; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("submit", "submit"),
        bind("follow_up", "follow_up"),
        bind("newline", "newline"),
        bind("complete", "complete"),
        bind("previous", "previous"),
        bind("next", "next"),
        bind("clear", "clear"),
        bind("leave", "leave"),
        bind("paste_image", "paste_image"),
        *CHAT_BINDINGS,
    ]

    if TYPE_CHECKING:

        @property
        def app(self) -> App[Any]: ...

    class Submitted(Message):
        """The user submitted a text."""

        def __init__(self, text: str, *, is_prompt: bool, is_follow_up: bool) -> None:
            super().__init__()
            self.text = text
            self.is_prompt = is_prompt
            """Whether the text is for the model, not a slash command or a shell command."""
            self.is_follow_up = is_follow_up
            """Whether to wait until the agent is done."""

    class QuitRequested(Message):
        """The user wants to quit. Without `is_confirmed`, the app asks for a second key press."""

        def __init__(self, *, is_confirmed: bool) -> None:
            super().__init__()
            self.is_confirmed = is_confirmed

    def __init__(self, choices: CompletionPopup, *, id: str | None = None) -> None:
        self._pastes: dict[str, str] = {}
        """Long pastes by their placeholder in the text."""
        super().__init__(
            id=id,
            soft_wrap=True,
            show_line_numbers=False,
            highlight_cursor_line=False,
            tab_behavior="indent",
            compact=False,
            placeholder="Type a message, / for commands, ! for the shell",
        )
        self.completer: Completer | None = None
        self.is_extension_key: Callable[[str], bool] = lambda key: False
        """Returns whether an extension has bound a key. Such keys override cursor keys."""
        self.vi_keys: ViKeys | None = None
        self._popup = choices
        self._history: list[HistoryItem] = []
        self._history_index = 0
        """Position in the history, counted from the end; 0 outside of it."""
        self._history_text = ""
        """The history text in the editor, to detect edits."""
        self._unsent_text = ""
        """The text before the user entered the history."""

    # Text

    @property
    def full_text(self) -> str:
        """The text with all placeholders replaced by their pastes."""
        return self._paste_pattern.sub(lambda mark: self._pastes[mark[0]], self.text) if self._pastes else self.text

    @property
    def draft(self) -> EditorDraft:
        return EditorDraft(
            text=self.text, pastes={mark: paste for mark, paste in self._pastes.items() if mark in self.text}
        )

    @property
    def _paste_pattern(self) -> re.Pattern[str]:
        """Matches any placeholder. Requires at least one paste."""
        return re.compile("|".join(map(re.escape, self._pastes)))

    def use_vi_keys(self, is_on: bool) -> None:
        if is_on != (self.vi_keys is not None):
            self.border_title = ""
            self.vi_keys = ViKeys(self) if is_on else None

    def set_text(self, text: str) -> None:
        """Replace the text. The user can undo this."""
        self._hide_suggestions()
        self.replace(escape_lines(text), (0, 0), self.document.end)
        self.move_cursor(self.document.end)

    def set_selected_text(self, text: str) -> None:
        """Replace the text and select it, so typing replaces it."""
        self.set_text(text)
        self.select_all()

    def set_prompts(self, prompts: Sequence[str], text: str = "") -> None:
        """Put prompts before a text. A prompt that looks like a command becomes a placeholder, so it stays a prompt."""
        parts = [prompt if is_prompt_line(prompt) else self._add_paste(prompt) for prompt in prompts]
        self.set_text("\n\n".join(filter(None, [*parts, text])))

    def restore_draft(self, draft: EditorDraft) -> None:
        self._pastes = {**self._pastes, **draft.pastes}
        self.set_prompts(draft.queued, draft.text)

    def set_history(self, lines: Iterable[HistoryItem]) -> None:
        """Set the history, oldest first."""
        self._history = list(dict.fromkeys(reversed(list(lines))))[::-1]
        self._history_index = 0

    async def _on_paste(self, event: events.Paste) -> None:
        pasted = escape_lines(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        event.prevent_default()
        event.stop()
        image = find_pasted_image(event.text.strip())
        if image is not None:
            self.insert(format_mention(image))
            return
        long = _count_lines(pasted) > LONG_LINES or len(pasted) > LONG_CHARACTERS
        self.replace(self._add_paste(pasted) if long else pasted, *self.selection, maintain_selection_offset=False)

    def action_paste_image(self) -> None:
        """Insert the image on the clipboard of the desktop, or paste what was copied in the app."""
        self.run_worker(self._paste_image(), group="paste", exclusive=True, exit_on_error=False)

    async def _paste_image(self) -> None:
        image = await asyncio.to_thread(save_clipboard_image)
        if image is not None:
            self.insert(format_mention(image))
        elif self.app.clipboard:
            self.action_paste()
        else:
            self.notify(explain_missing_image(), timeout=5)

    def _add_paste(self, text: str) -> str:
        """Store a text as a paste and return its placeholder."""
        for number in count(len(self._pastes) + 1):
            mark = f"[paste {number}: {pluralize(_count_lines(text), 'line')}, {pluralize(len(text), 'character')}]"
            if mark not in self._pastes:
                self._pastes[mark] = text
                return mark
        raise AssertionError

    # A placeholder is atomic: the cursor cannot enter it, and deleting removes all of it.

    def _find_pastes(self, row: int) -> list[tuple[int, int]]:
        """Return the ranges of placeholders in a line."""
        if not self._pastes or row >= self.document.line_count:
            return []
        return [mark.span() for mark in self._paste_pattern.finditer(self.document.get_line(row))]

    def validate_selection(self, selection: Selection) -> Selection:
        """Move both ends of the selection out of placeholders, in the direction in which they moved.

        The mouse can rest inside a placeholder. A dragged end then moves away from the start of the selection.
        """
        before = self.selection
        start = self._move_outside_paste(selection.start, before.start)
        return Selection(start, self._move_outside_paste(selection.end, start if self._selecting else before.end))

    def _move_outside_paste(self, location: tuple[int, int], before: tuple[int, int]) -> tuple[int, int]:
        row, column = location
        for start, end in self._find_pastes(row):
            if start < column < end:
                return row, end if location > before else start
        return location

    def delete_range(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Delete a part of the text, with the whole of each placeholder in it."""
        self._delete_via_keyboard(start, end)

    def _delete_via_keyboard(self, start: tuple[int, int], end: tuple[int, int]) -> EditResult | None:
        first, last = sorted((start, end))
        if first != last:
            first = next(((first[0], at) for at, to in self._find_pastes(first[0]) if at < first[1] < to), first)
            last = next(((last[0], to) for at, to in self._find_pastes(last[0]) if at < last[1] < to), last)
        return super()._delete_via_keyboard(first, last)

    def on_text_area_changed(self) -> None:
        self.set_class(self.text.startswith("!"), "-shell")
        if self._history_index and self.text != self._history_text:
            self._history_index = 0
        self._update_suggestions()

    # Completion

    @property
    def _text_before_cursor(self) -> str:
        return self.get_text_range((0, 0), self.cursor_location)

    def _update_suggestions(self) -> None:
        before = self._text_before_cursor
        if self.completer is None or not (before.startswith("/") or "@" in before) or self._history_index:
            self._hide_suggestions()
            return
        self.run_worker(partial(self._show_suggestions, before), exclusive=True, group="completion")

    async def _show_suggestions(self, before: str) -> None:
        if self.completer is None:
            return
        offer = await run_in_thread(self.completer.suggest, before)
        if before == self._text_before_cursor:
            whole = len(offer.choices) == 1 and before[offer.start :] == offer.choices[0].text
            self._popup.show_suggestions(NO_SUGGESTIONS if whole else offer, before)

    @property
    def is_completing(self) -> bool:
        return self._popup.has_class("-open")

    def _hide_suggestions(self) -> None:
        if self.is_completing:
            self._popup.show_suggestions(NO_SUGGESTIONS)

    def close_popup(self) -> bool:
        """Close the popup. Return whether it was open."""
        was = self.is_completing
        self._hide_suggestions()
        return was

    @property
    def _is_popup_current(self) -> bool:
        """Whether the suggestions belong to the current text, not to the text before the last key."""
        return self.is_completing and self._popup.text_before == self._text_before_cursor

    def action_complete(self) -> None:
        if self._is_popup_current:
            start, chosen = self._popup.suggestions.start, self._popup.selected_text
            before = self._text_before_cursor
            blank = "" if chosen.endswith("/") else " "
            at = self._find_location(before[:start])
            self.replace(chosen + blank, at, self.cursor_location, maintain_selection_offset=False)
        elif not self._text_before_cursor.strip():
            return
        elif self.completer is not None:
            self.run_worker(
                partial(self._show_suggestions, self._text_before_cursor), exclusive=True, group="completion"
            )

    def _find_location(self, before: str) -> tuple[int, int]:
        row = before.count("\n")
        return row, len(before) - (before.rfind("\n") + 1)

    # Keys

    async def _on_key(self, event: events.Key) -> None:
        """Run the action of a key immediately.

        Textual runs actions only after the key has bubbled up to the app. By then, later letters may already be in the
        text.
        """
        bound = self.screen.active_bindings.get(event.key)
        if bound is not None and bound.binding.id is None and self.is_extension_key(event.key):
            return
        if self.vi_keys is not None and self.vi_keys.handle_key(event):
            event.stop()
            event.prevent_default()
            return
        if bound is not None and bound.enabled and not event.is_printable:
            event.stop()
            event.prevent_default()
            await self.app.run_action(bound.binding.action, bound.node)

    def action_submit(self) -> None:
        """Submit the text. If a suggestion is selected, insert it first."""
        before = self._text_before_cursor
        if (
            self.is_completing
            and not self._is_popup_current
            and self.completer is not None
            and _is_command_name(before)
        ):
            self._popup.show_suggestions(self.completer.suggest(before), before)  # Enter was faster than the worker
        if self._is_popup_current and self._popup.selected_index is not None:
            self.action_complete()
            if not _is_command_name(before):
                return
        row, column = self.cursor_location
        if column and self.document.get_line(row)[column - 1 : column] == "\\":
            self.replace("\n", (row, column - 1), (row, column), maintain_selection_offset=False)
            return
        self._submit(is_follow_up=False)

    def action_follow_up(self) -> None:
        self._submit(is_follow_up=True)

    def _submit(self, *, is_follow_up: bool) -> None:
        text = self.full_text
        if text.strip():
            is_prompt = is_prompt_line(self.text.strip("\n"))  # a paste is never a command
            self._hide_suggestions()
            self.clear_text()
            if self.vi_keys is not None:
                self.vi_keys.enter_insert_mode()
            self.post_message(self.Submitted(text.strip("\n"), is_prompt=is_prompt, is_follow_up=is_follow_up))

    def clear_text(self) -> None:
        self._history_index, self._unsent_text = 0, ""
        self.set_text("")

    def action_newline(self) -> None:
        self.replace("\n", *self.selection, maintain_selection_offset=False)

    def action_previous(self) -> None:
        if self.is_completing:
            self._popup.move_selection(-1)
        elif self.navigator.is_first_wrapped_line(self.cursor_location) and self._history_index < len(self._history):
            if self._history_index == 0:
                self._unsent_text = self.text
            self._show_history(self._history_index + 1)
        else:
            self.action_cursor_up()

    def action_next(self) -> None:
        if self.is_completing:
            self._popup.move_selection(1)
        elif self._history_index and self.navigator.is_last_wrapped_line(self.cursor_location):
            self._show_history(self._history_index - 1)
        else:
            self.action_cursor_down()

    def _show_history(self, to: int) -> None:
        self._history_index = to
        line = self._history[-to] if to else self._unsent_text
        self._history_text = escape_lines(line) if isinstance(line, str) else self._add_paste(line.words)
        self.set_text(self._history_text)

    def action_clear(self) -> None:
        if self.selected_text:
            self._copy_text(self.selected_text)
            self.move_cursor(self.cursor_location)
        elif copied := self.screen.get_selected_text():
            self._copy_text(copied)
            self.screen.clear_selection()
        elif self.text:
            self.clear_text()
        else:
            self.post_message(self.QuitRequested(is_confirmed=False))

    def _copy_text(self, text: str) -> None:
        self.notify(send_to_clipboard(self.app, text), timeout=2)

    def action_leave(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            self.post_message(self.QuitRequested(is_confirmed=True))


def _is_command_name(before: str) -> bool:
    """Return whether a text is a slash command without arguments."""
    return before.startswith("/") and not any(letter.isspace() for letter in before)


def _count_lines(text: str) -> int:
    return text.rstrip("\n").count("\n") + 1
