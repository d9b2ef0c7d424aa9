"""The editor: where a person types. History, long pastes, completion and undo; what becomes of the text is not here."""

from __future__ import annotations

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

from sessiontree.commands.registry import is_prompt_line
from sessiontree.core.number_text import pluralize
from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.hooks.invoke import run_in_thread
from sessiontree.tui.clipboard import send_to_clipboard
from sessiontree.tui.keys import bind
from sessiontree.tui.services.completion import NO_SUGGESTIONS, Completer, Suggestions
from sessiontree.tui.services.drafts import EditorDraft, HistoryItem

LONG_LINES, LONG_CHARACTERS = 10, 1500
"""A paste that is longer stands as one word in the editor."""
VISIBLE_SUGGESTIONS = 8
"""How many choices are seen at once."""

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
"""What keys do in the whole chat. The editor has them too: they win over its own."""


class CompletionPopup(Widget):
    """What a word can become."""

    DEFAULT_CSS = """
    Choices { height: auto; max-height: 8; display: none; padding: 0 1; background: $surface; }
    Choices.-open { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.suggestions: Suggestions = NO_SUGGESTIONS
        self.text_before = ""
        """The text before the cursor that the offer is for."""
        self.selected_index: int | None = None
        """The choice that Enter takes; with none, Enter takes what is typed."""

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
            table.add_row(Text(mark + escape_line(choice.text), style), Text(escape_line(choice.help), Style(dim=True)))
        return table


class Editor(TextArea):
    DEFAULT_CSS = """
    Editor, Editor:focus {
        height: auto; max-height: 12; min-height: 1;
        border: none; border-top: solid $panel; border-bottom: solid $panel;
        padding: 0 1; background: $background;
        scrollbar-size-vertical: 1;
    }
    Editor:focus { border-top: solid $secondary 60%; border-bottom: solid $secondary 60%; }
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
        *CHAT_BINDINGS,
    ]

    if TYPE_CHECKING:

        @property
        def app(self) -> App[Any]: ...

    class Submitted(Message):
        """The person is done with a text."""

        def __init__(self, text: str, *, words: bool, later: bool) -> None:
            super().__init__()
            self.text = text
            self.is_prompt = words
            """Whether it is for the model, and neither a command nor for the shell."""
            self.is_follow_up = later
            """Whether it can wait until the agent is done."""

    class QuitRequested(Message):
        """The person wants to quit, or asks how; `sure` when it was asked for in earnest."""

        def __init__(self, *, sure: bool) -> None:
            super().__init__()
            self.is_confirmed = sure

    def __init__(self, choices: CompletionPopup, *, id: str | None = None) -> None:
        self._pastes: dict[str, str] = {}
        """Long pastes by what stands for them in the text."""
        super().__init__(
            id=id,
            soft_wrap=True,
            show_line_numbers=False,
            highlight_cursor_line=False,
            tab_behavior="indent",
            compact=False,
            placeholder="Say something, or / for commands, ! for the shell",
        )
        self.completer: Completer | None = None
        self.is_extension_key: Callable[[str], bool] = lambda key: False
        """Which keys extensions have: they win over those that only move the cursor."""
        self._popup = choices
        self._history: list[HistoryItem] = []
        self._history_index = 0
        """How far back in the history one is."""
        self._history_text = ""
        """What is there of it, until it is changed."""
        self._unsent_text = ""
        """What was there before one went back."""

    # The text

    @property
    def full_text(self) -> str:
        """The text, with what was pasted in full."""
        return self._paste_pattern.sub(lambda mark: self._pastes[mark[0]], self.text) if self._pastes else self.text

    @property
    def draft(self) -> EditorDraft:
        return EditorDraft(
            text=self.text, pastes={mark: said for mark, said in self._pastes.items() if mark in self.text}
        )

    @property
    def _paste_pattern(self) -> re.Pattern[str]:
        """Matches what stands for a paste. There is at least one."""
        return re.compile("|".join(map(re.escape, self._pastes)))

    def set_text(self, text: str) -> None:
        """Another text, which can be undone."""
        self._hide_suggestions()
        self.replace(escape_lines(text), (0, 0), self.document.end)
        self.move_cursor(self.document.end)

    def set_selected_text(self, text: str) -> None:
        """Put a text in place of this one, selected, so that what is typed next replaces it."""
        self.set_text(text)
        self.select_all()

    def set_prompts(self, words: Sequence[str], text: str = "") -> None:
        """What was for the model before a text. It is for the model again, whatever it begins with."""
        marked = [said if is_prompt_line(said) else self._add_paste(said) for said in words]
        self.set_text("\n\n".join(filter(None, [*marked, text])))

    def restore_draft(self, draft: EditorDraft) -> None:
        self._pastes = {**self._pastes, **draft.pastes}
        self.set_prompts(draft.queued, draft.text)

    def set_history(self, lines: Iterable[HistoryItem]) -> None:
        """What was said before, oldest first."""
        self._history = list(dict.fromkeys(reversed(list(lines))))[::-1]
        self._history_index = 0

    async def _on_paste(self, event: events.Paste) -> None:
        pasted = escape_lines(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        event.prevent_default()
        event.stop()
        long = _count_lines(pasted) > LONG_LINES or len(pasted) > LONG_CHARACTERS
        self.replace(self._add_paste(pasted) if long else pasted, *self.selection, maintain_selection_offset=False)

    def _add_paste(self, text: str) -> str:
        """What stands for a text."""
        for number in count(len(self._pastes) + 1):
            mark = f"[paste {number}: {pluralize(_count_lines(text), 'line')}, {pluralize(len(text), 'character')}]"
            if mark not in self._pastes:
                self._pastes[mark] = text
                return mark
        raise AssertionError

    # A paste is one unit: the cursor stands before or behind it, and nothing deletes a part of it.

    def _find_pastes(self, row: int) -> list[tuple[int, int]]:
        """Where pastes are in a line."""
        if not self._pastes or row >= self.document.line_count:
            return []
        return [mark.span() for mark in self._paste_pattern.finditer(self.document.get_line(row))]

    def validate_selection(self, selection: Selection) -> Selection:
        """Keep both ends out of pastes: each goes on in the direction in which it moved.

        The mouse may rest inside a paste, so what it drags goes on away from where the selection begins.
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
        """Whether there was something to close."""
        was = self.is_completing
        self._hide_suggestions()
        return was

    @property
    def _is_popup_current(self) -> bool:
        """Whether the choices are for the text as it is now, and not as it was before the last key."""
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
        """Do what a key is bound to here and now.

        Textual does so only when the key has come up to the app, by when letters that were typed after it may be in
        the text already, or before it, those that were typed before may not be.
        """
        bound = self.screen.active_bindings.get(event.key)
        if bound is not None and bound.binding.id is None and self.is_extension_key(event.key):
            return
        if bound is not None and bound.enabled and not event.is_printable:
            event.stop()
            event.prevent_default()
            await self.app.run_action(bound.binding.action, bound.node)

    def action_submit(self) -> None:
        """Submit the text as it is typed, unless a choice is highlighted: then take that one first."""
        before = self._text_before_cursor
        if (
            self.is_completing
            and not self._is_popup_current
            and self.completer is not None
            and _is_command_name(before)
        ):
            self._popup.show_suggestions(self.completer.suggest(before), before)  # Enter came before the choices did
        if self._is_popup_current and self._popup.selected_index is not None:
            self.action_complete()
            if not _is_command_name(before):
                return
        row, column = self.cursor_location
        if column and self.document.get_line(row)[column - 1 : column] == "\\":
            self.replace("\n", (row, column - 1), (row, column), maintain_selection_offset=False)
            return
        self._submit(later=False)

    def action_follow_up(self) -> None:
        self._submit(later=True)

    def _submit(self, *, later: bool) -> None:
        said = self.full_text
        if said.strip():
            words = is_prompt_line(self.text.strip("\n"))  # what stands behind a mark was not typed
            self._hide_suggestions()
            self.clear_text()
            self.post_message(self.Submitted(said.strip("\n"), words=words, later=later))

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
            self.post_message(self.QuitRequested(sure=False))

    def _copy_text(self, text: str) -> None:
        self.notify(send_to_clipboard(self.app, text), timeout=2)

    def action_leave(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            self.post_message(self.QuitRequested(sure=True))


def _is_command_name(before: str) -> bool:
    """Whether a text is the name of a command so far."""
    return before.startswith("/") and not any(letter.isspace() for letter in before)


def _count_lines(text: str) -> int:
    return text.rstrip("\n").count("\n") + 1
