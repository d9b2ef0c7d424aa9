"""The search screen: what was said in the sessions of a folder or of all, found while one types.

It gives the hit that was chosen; going there is the app's.
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

from sessiontree import catalog
from sessiontree.commands.text import local_time, short
from sessiontree.core.figures import pluralize
from sessiontree.core.safe import safe
from sessiontree.errors import SessionTreeError
from sessiontree.index.search import Hit
from sessiontree.tui.find import Find
from sessiontree.tui.keys import bind, hints
from sessiontree.tui.line import Line
from sessiontree.tui.looking import look

HITS = 100
"""How many hits are shown."""
PAUSE = 0.15
"""Seconds of no typing before it is searched."""
SHORTEST = 2
"""Fewer letters are not searched for."""


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
        Binding("escape,ctrl+c", "give_up", priority=True),
        bind("session_scope", "scope", priority=True),
    ]

    if TYPE_CHECKING:

        @property
        def app(self) -> App[Any]: ...

    def __init__(self, cwd: str, query: str = "", *, own: str | None = None) -> None:
        super().__init__()
        self._cwd = cwd
        self._own = own
        """The file of the session that is open, whose hits are marked."""
        self._all = False
        self._hits: list[Hit] = []
        self._looking = False
        """Whether what is listed is not yet what was typed: none of it is chosen then."""
        self._title = Line(classes="title")
        self._list = OptionList(markup=False)
        self._query = Find(self._list, query, placeholder="words in any order; role:user, since:7d")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._title
            yield self._query
            yield self._list
            said = hints(self, "enter shows it in its tree", ("session_scope", "this folder/all"), "esc")
            yield Line(said, classes="hint")

    def on_mount(self) -> None:
        self._query.focus()
        self._look()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._look()

    def _look(self) -> None:
        self._looking = True
        self.run_worker(self._looked(self._query.value.strip()), group="look", exclusive=True, exit_on_error=False)

    async def _looked(self, query: str) -> None:
        if len(query) < SHORTEST:
            self._show([])
            self._say("type what you look for")
            return
        self._say("searching …")
        await asyncio.sleep(PAUSE)
        unread: set[str] = set()
        wanted = partial(catalog.search, query, cwd=self._cwd, all=self._all, limit=HITS, unread=unread.add)
        try:
            hits = await look(
                lambda progress: wanted(progress=progress),
                lambda percent: self._say(f"searching, {percent} % …"),
            )
        except SessionTreeError as error:
            self._show([])
            self._say(str(error))
            return
        self._show(hits)
        count = pluralize(len(hits), "hit") if len(hits) < HITS else f"the newest {HITS} hits"
        said = [count if hits else f"nothing matches {query!r}"]
        if unread:
            said.append(f"{len(unread)} file{'' if len(unread) == 1 else 's'} could not be read")
        self._say(", ".join(said))

    def _say(self, note: str) -> None:
        self._title.say(" · ".join(["Search", note, "all folders" if self._all else self._cwd]))

    def _show(self, hits: list[Hit]) -> None:
        self._hits, self._looking = hits, False
        self._list.clear_options()
        words = [word for word in self._query.value.split() if ":" not in word]
        self._list.add_options([Option(self._line(hit, words)) for hit in hits])
        self._list.highlighted = 0 if hits else None

    def _line(self, hit: Hit, words: list[str]) -> Text:
        """Where it is, and below what it says."""
        own = "● " if hit.file == self._own else "  "
        where = [hit.name or hit.session[-8:], hit.role, f"on {hit.branch}" if hit.branch else "left behind"]
        facts = [*where, local_time(hit.timestamp), short(hit.entry), *(["seen"] if hit.in_context else [])]
        shown = Text(f"{own}{safe(' · '.join(facts))}\n", "dim", no_wrap=True, overflow="ellipsis")
        said = Text(f"    {safe(hit.snippet)}", "not dim")
        for word in words:
            said.highlight_regex(re.compile(re.escape(safe(word).strip('"*')), re.IGNORECASE), "bold underline")
        return shown.append_text(said)

    # Keys

    def action_give_up(self) -> None:
        self.dismiss(None)

    def on_input_submitted(self) -> None:
        at = self._list.highlighted
        if at is not None and not self._looking:
            self.dismiss(self._hits[at])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._hits[event.option_index])

    def action_scope(self) -> None:
        self._all = not self._all
        self._look()
