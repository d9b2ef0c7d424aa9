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

from sessiontree.commands.command import is_words
from sessiontree.core.figures import pluralize
from sessiontree.core.safe import safe, safe_lines
from sessiontree.hooks.calling import in_thread
from sessiontree.tui.clipboard import send_to_clipboard
from sessiontree.tui.completion import NOTHING, Completer, Offer
from sessiontree.tui.drafts import Draft, Line
from sessiontree.tui.keys import bind

LONG_LINES, LONG_LETTERS = 10, 1500
"""A paste that is longer stands as one word in the editor."""
SHOWN = 8
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


class Choices(Widget):
    """What a word can become."""

    DEFAULT_CSS = """
    Choices { height: auto; max-height: 8; display: none; padding: 0 1; background: $surface; }
    Choices.-open { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.offer: Offer = NOTHING
        self.before = ""
        """The text before the cursor that the offer is for."""
        self.at: int | None = None
        """The choice that Enter takes; with none, Enter takes what is typed."""

    def show(self, offer: Offer, before: str = "") -> None:
        self.offer, self.before = offer, before
        self.at = 0 if offer.replaces_typed else None
        self.set_class(bool(offer.choices), "-open")
        self.refresh(layout=True)

    def step(self, by: int) -> None:
        count = len(self.offer.choices)
        self.at = (0 if by > 0 else count - 1) if self.at is None else (self.at + by) % count
        self.refresh()

    @property
    def chosen(self) -> str:
        return self.offer.choices[self.at or 0].text

    def render(self) -> RenderResult:
        longest = max((cell_len(choice.text) for choice in self.offer.choices), default=0) + 2
        table = Table.grid(padding=(0, 2, 0, 0), expand=False)
        table.add_column(no_wrap=True, overflow="ellipsis", min_width=min(longest, self.size.width))
        table.add_column(no_wrap=True, overflow="ellipsis")
        first = max(0, min((self.at or 0) - SHOWN // 2, len(self.offer.choices) - SHOWN))
        for index, choice in enumerate(self.offer.choices[first : first + SHOWN], first):
            mark = "› " if index == self.at else "  "
            style = Style(bold=True) if index == self.at else Style()
            table.add_row(Text(mark + safe(choice.text), style), Text(safe(choice.help), Style(dim=True)))
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

    class Said(Message):
        """The person is done with a text."""

        def __init__(self, text: str, *, words: bool, later: bool) -> None:
            super().__init__()
            self.text = text
            self.words = words
            """Whether it is for the model, and neither a command nor for the shell."""
            self.later = later
            """Whether it can wait until the agent is done."""

    class Leave(Message):
        """The person wants to quit, or asks how; `sure` when it was asked for in earnest."""

        def __init__(self, *, sure: bool) -> None:
            super().__init__()
            self.sure = sure

    def __init__(self, choices: Choices, *, id: str | None = None) -> None:
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
        self.claimed: Callable[[str], bool] = lambda key: False
        """Which keys extensions have: they win over those that only move the cursor."""
        self._choices = choices
        self._history: list[Line] = []
        self._back = 0
        """How far back in the history one is."""
        self._shown = ""
        """What is there of it, until it is changed."""
        self._typed = ""
        """What was there before one went back."""

    # The text

    @property
    def words(self) -> str:
        """The text, with what was pasted in full."""
        return self._pattern.sub(lambda mark: self._pastes[mark[0]], self.text) if self._pastes else self.text

    @property
    def draft(self) -> Draft:
        return Draft(text=self.text, pastes={mark: said for mark, said in self._pastes.items() if mark in self.text})

    @property
    def _pattern(self) -> re.Pattern[str]:
        """Matches what stands for a paste. There is at least one."""
        return re.compile("|".join(map(re.escape, self._pastes)))

    def put(self, text: str) -> None:
        """Another text, which can be undone."""
        self._close()
        self.replace(safe_lines(text), (0, 0), self.document.end)
        self.move_cursor(self.document.end)

    def put_selected(self, text: str) -> None:
        """Put a text in place of this one, selected, so that what is typed next replaces it."""
        self.put(text)
        self.select_all()

    def put_words(self, words: Sequence[str], text: str = "") -> None:
        """What was for the model before a text. It is for the model again, whatever it begins with."""
        marked = [said if is_words(said) else self._mark(said) for said in words]
        self.put("\n\n".join(filter(None, [*marked, text])))

    def put_draft(self, draft: Draft) -> None:
        self._pastes = {**self._pastes, **draft.pastes}
        self.put_words(draft.queued, draft.text)

    def remember(self, lines: Iterable[Line]) -> None:
        """What was said before, oldest first."""
        self._history = list(dict.fromkeys(reversed(list(lines))))[::-1]
        self._back = 0

    async def _on_paste(self, event: events.Paste) -> None:
        pasted = safe_lines(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        event.prevent_default()
        event.stop()
        long = _lines(pasted) > LONG_LINES or len(pasted) > LONG_LETTERS
        self.replace(self._mark(pasted) if long else pasted, *self.selection, maintain_selection_offset=False)

    def _mark(self, text: str) -> str:
        """What stands for a text."""
        for number in count(len(self._pastes) + 1):
            mark = f"[paste {number}: {pluralize(_lines(text), 'line')}, {pluralize(len(text), 'character')}]"
            if mark not in self._pastes:
                self._pastes[mark] = text
                return mark
        raise AssertionError

    # A paste is one unit: the cursor stands before or behind it, and nothing deletes a part of it.

    def _spans(self, row: int) -> list[tuple[int, int]]:
        """Where pastes are in a line."""
        if not self._pastes or row >= self.document.line_count:
            return []
        return [mark.span() for mark in self._pattern.finditer(self.document.get_line(row))]

    def validate_selection(self, selection: Selection) -> Selection:
        """Keep both ends out of pastes: each goes on in the direction in which it moved.

        The mouse may rest inside a paste, so what it drags goes on away from where the selection begins.
        """
        before = self.selection
        start = self._outside(selection.start, before.start)
        return Selection(start, self._outside(selection.end, start if self._selecting else before.end))

    def _outside(self, location: tuple[int, int], before: tuple[int, int]) -> tuple[int, int]:
        row, column = location
        for start, end in self._spans(row):
            if start < column < end:
                return row, end if location > before else start
        return location

    def _delete_via_keyboard(self, start: tuple[int, int], end: tuple[int, int]) -> EditResult | None:
        first, last = sorted((start, end))
        if first != last:
            first = next(((first[0], at) for at, to in self._spans(first[0]) if at < first[1] < to), first)
            last = next(((last[0], to) for at, to in self._spans(last[0]) if at < last[1] < to), last)
        return super()._delete_via_keyboard(first, last)

    def on_text_area_changed(self) -> None:
        self.set_class(self.text.startswith("!"), "-shell")
        if self._back and self.text != self._shown:
            self._back = 0
        self._look_for_choices()

    # Completion

    @property
    def _before(self) -> str:
        return self.get_text_range((0, 0), self.cursor_location)

    def _look_for_choices(self) -> None:
        before = self._before
        if self.completer is None or not (before.startswith("/") or "@" in before) or self._back:
            self._close()
            return
        self.run_worker(partial(self._offer, before), exclusive=True, group="completion")

    async def _offer(self, before: str) -> None:
        if self.completer is None:
            return
        offer = await in_thread(self.completer.offer, before)
        if before == self._before:
            whole = len(offer.choices) == 1 and before[offer.start :] == offer.choices[0].text
            self._choices.show(NOTHING if whole else offer, before)

    @property
    def completing(self) -> bool:
        return self._choices.has_class("-open")

    def _close(self) -> None:
        if self.completing:
            self._choices.show(NOTHING)

    def close_choices(self) -> bool:
        """Whether there was something to close."""
        was = self.completing
        self._close()
        return was

    @property
    def _offers_now(self) -> bool:
        """Whether the choices are for the text as it is now, and not as it was before the last key."""
        return self.completing and self._choices.before == self._before

    def action_complete(self) -> None:
        if self._offers_now:
            start, chosen = self._choices.offer.start, self._choices.chosen
            before = self._before
            blank = "" if chosen.endswith("/") else " "
            at = self._location_of(before[:start])
            self.replace(chosen + blank, at, self.cursor_location, maintain_selection_offset=False)
        elif not self._before.strip():
            return
        elif self.completer is not None:
            self.run_worker(partial(self._offer, self._before), exclusive=True, group="completion")

    def _location_of(self, before: str) -> tuple[int, int]:
        row = before.count("\n")
        return row, len(before) - (before.rfind("\n") + 1)

    # Keys

    async def _on_key(self, event: events.Key) -> None:
        """Do what a key is bound to here and now.

        Textual does so only when the key has come up to the app, by when letters that were typed after it may be in
        the text already, or before it, those that were typed before may not be.
        """
        bound = self.screen.active_bindings.get(event.key)
        if bound is not None and bound.binding.id is None and self.claimed(event.key):
            return
        if bound is not None and bound.enabled and not event.is_printable:
            event.stop()
            event.prevent_default()
            await self.app.run_action(bound.binding.action, bound.node)

    def action_submit(self) -> None:
        """Submit the text as it is typed, unless a choice is highlighted: then take that one first."""
        before = self._before
        if self.completing and not self._offers_now and self.completer is not None and _is_name(before):
            self._choices.show(self.completer.offer(before), before)  # Enter came before the choices did
        if self._offers_now and self._choices.at is not None:
            self.action_complete()
            if not _is_name(before):
                return
        row, column = self.cursor_location
        if column and self.document.get_line(row)[column - 1 : column] == "\\":
            self.replace("\n", (row, column - 1), (row, column), maintain_selection_offset=False)
            return
        self._say(later=False)

    def action_follow_up(self) -> None:
        self._say(later=True)

    def _say(self, *, later: bool) -> None:
        said = self.words
        if said.strip():
            words = is_words(self.text.strip("\n"))  # what stands behind a mark was not typed
            self._close()
            self.clear_words()
            self.post_message(self.Said(said.strip("\n"), words=words, later=later))

    def clear_words(self) -> None:
        self._back, self._typed = 0, ""
        self.put("")

    def action_newline(self) -> None:
        self.replace("\n", *self.selection, maintain_selection_offset=False)

    def action_previous(self) -> None:
        if self.completing:
            self._choices.step(-1)
        elif self.navigator.is_first_wrapped_line(self.cursor_location) and self._back < len(self._history):
            if self._back == 0:
                self._typed = self.text
            self._go_back(self._back + 1)
        else:
            self.action_cursor_up()

    def action_next(self) -> None:
        if self.completing:
            self._choices.step(1)
        elif self._back and self.navigator.is_last_wrapped_line(self.cursor_location):
            self._go_back(self._back - 1)
        else:
            self.action_cursor_down()

    def _go_back(self, to: int) -> None:
        self._back = to
        line = self._history[-to] if to else self._typed
        self._shown = safe_lines(line) if isinstance(line, str) else self._mark(line.words)
        self.put(self._shown)

    def action_clear(self) -> None:
        if self.selected_text:
            self._copy(self.selected_text)
            self.move_cursor(self.cursor_location)
        elif copied := self.screen.get_selected_text():
            self._copy(copied)
            self.screen.clear_selection()
        elif self.text:
            self.clear_words()
        else:
            self.post_message(self.Leave(sure=False))

    def _copy(self, text: str) -> None:
        self.notify(send_to_clipboard(self.app, text), timeout=2)

    def action_leave(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            self.post_message(self.Leave(sure=True))


def _is_name(before: str) -> bool:
    """Whether a text is the name of a command so far."""
    return before.startswith("/") and not any(letter.isspace() for letter in before)


def _lines(text: str) -> int:
    return text.rstrip("\n").count("\n") + 1
