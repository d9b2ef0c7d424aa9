"""The search screen: full-text search in the sessions of one or all folders, while the user types.

It returns the chosen hit; the app navigates to it.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from sessiontree.core.number_text import pluralize
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import SessionTreeError
from sessiontree.library import catalog
from sessiontree.library.index.session_search import Hit
from sessiontree.slash_commands.formatting import format_local_time
from sessiontree.tui.keys import bind, format_hints
from sessiontree.tui.services.session_checks import scan_in_thread
from sessiontree.tui.widgets.controls import FilterInput, SafeStatic

MAX_HITS = 100
"""Maximum number of hits."""
TYPING_PAUSE_SECONDS = 0.15
"""Delay after the last key until the search starts."""
MIN_QUERY_LENGTH = 2
"""Shorter queries are not searched."""


class SearchScreen(ModalScreen[Hit | None]):
    DEFAULT_CSS = """
    SearchScreen { background: $background; }
    SearchScreen > Vertical { padding: 0 2; }
    SearchScreen .title { text-style: bold; color: $primary; height: 1; }
    SearchScreen Input, SearchScreen Input:focus { border: none; height: 1; padding: 0; background: $background; }
    SearchScreen OptionList, SearchScreen OptionList:focus {
        border: none; background: $background; height: 1fr; padding: 0; scrollbar-size-vertical: 1;
    }
    SearchScreen OptionList > .option-list--option-highlighted { background: $panel; text-style: none; }
    SearchScreen:nocolor OptionList > .option-list--option-highlighted { text-style: bold underline; }
    SearchScreen .hint { color: $muted; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "cancel", priority=True),
        bind("session_scope", "scope", priority=True),
    ]

    if TYPE_CHECKING:

        @property
        def app(self) -> App[Any]: ...

    def __init__(self, cwd: str, query: str = "", *, own: str | None = None) -> None:
        super().__init__()
        self._cwd = cwd
        self._own_file = own
        """File of the open session, whose hits are marked."""
        self._all_folders = False
        self._hits: list[Hit] = []
        self._is_stale = False
        """Whether the list does not match the query yet. Enter is ignored then."""
        self._title_line = SafeStatic(classes="title")
        self._option_list = OptionList(markup=False)
        self._filter_input = FilterInput(self._option_list, query, placeholder="Search words, role:user, since:7d")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._title_line
            yield self._filter_input
            yield self._option_list
            hints = format_hints(
                self, "Enter to show in the tree", ("session_scope", "for all folders"), "Esc to cancel"
            )
            yield SafeStatic(hints, classes="hint")

    def on_mount(self) -> None:
        self._filter_input.focus()
        self._start_search()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._start_search()

    def _start_search(self) -> None:
        self._is_stale = True
        self.run_worker(
            self._search(self._filter_input.value.strip()), group="look", exclusive=True, exit_on_error=False
        )

    async def _search(self, query: str) -> None:
        if len(query) < MIN_QUERY_LENGTH:
            self._show_hits([])
            self._set_title("type to search")
            return
        self._set_title("searching…")
        await asyncio.sleep(TYPING_PAUSE_SECONDS)
        unread: set[str] = set()
        wanted = partial(
            catalog.search,
            query,
            cwd=self._cwd,
            all=self._all_folders,
            others=True,
            limit=MAX_HITS,
            on_unreadable=unread.add,
        )
        try:
            hits = await scan_in_thread(
                lambda progress: wanted(progress=progress),
                lambda percent: self._set_title(f"searching… {percent}%"),
            )
        except SessionTreeError as error:
            self._show_hits([])
            self._set_title(str(error))
            return
        self._show_hits(hits)
        count = pluralize(len(hits), "match", "matches") if len(hits) < MAX_HITS else f"newest {MAX_HITS} matches"
        parts = [count if hits else f'no matches for "{query}"']
        if unread:
            parts.append(f"{pluralize(len(unread), 'file')} could not be read")
        self._set_title(", ".join(parts))

    def _set_title(self, note: str) -> None:
        self._title_line.set_text(" · ".join(["Search", note, "all folders" if self._all_folders else self._cwd]))

    def _show_hits(self, hits: list[Hit]) -> None:
        self._hits, self._is_stale = hits, False
        self._option_list.clear_options()
        words = [word for word in self._filter_input.value.split() if ":" not in word]
        self._option_list.add_options([Option(self._format_hit(hit, words)) for hit in hits])
        self._option_list.highlighted = 0 if hits else None

    def _format_hit(self, hit: Hit, words: list[str]) -> Text:
        """Format a hit as two lines: its location and its text."""
        own = "● " if hit.file == self._own_file else "  "
        where = [hit.name or hit.session[-8:], hit.role, f"on {hit.branch}" if hit.branch else "no branch"]
        facts = [
            *where,
            format_local_time(hit.timestamp),
            *(["in context"] if hit.in_context else []),
        ]
        shown = Text(f"{own}{escape_line(' · '.join(facts))}\n", "dim", no_wrap=True, overflow="ellipsis")
        snippet = Text(f"    {escape_line(hit.snippet)}", "not dim")
        for word in words:
            snippet.highlight_regex(
                re.compile(re.escape(escape_line(word).strip('"*')), re.IGNORECASE), "bold underline"
            )
        return shown.append_text(snippet)

    # Keys

    def action_cancel(self) -> None:
        self.dismiss(None)

    def on_input_submitted(self) -> None:
        at = self._option_list.highlighted
        if at is not None and not self._is_stale:
            self.dismiss(self._hits[at])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._hits[event.option_index])

    def action_scope(self) -> None:
        self._all_folders = not self._all_folders
        self._start_search()
