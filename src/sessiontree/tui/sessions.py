"""The session picker: which session to go on in. Search, previews, and what one does to sessions as a whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from sessiontree import catalog, shelf
from sessiontree.commands.text import local_time
from sessiontree.core.figures import pluralize
from sessiontree.core.messages import role, text
from sessiontree.core.outline import one_line
from sessiontree.core.safe import safe
from sessiontree.errors import SessionTreeError
from sessiontree.tui.dialogs import Ask, Confirm
from sessiontree.tui.find import Find
from sessiontree.tui.keys import bind, hints
from sessiontree.tui.line import Line
from sessiontree.tui.looking import look

if TYPE_CHECKING:
    from sessiontree.index.reading import SessionSummary
    from sessiontree.session import Session

PREVIEWED = 24
"""How many messages a preview has at most."""
LINES = 3
"""How many lines of each."""
PAUSE = 0.15
"""Seconds of no typing before what is in the files is searched."""


class Row(NamedTuple):
    summary: SessionSummary
    depth: int
    """How many forks lead to it from the first one that is listed."""


def threaded(summaries: Sequence[SessionSummary]) -> list[Row]:
    """Forks below what they were forked from, in the order of the newest among them."""
    by_file = {os.path.realpath(summary.file): summary for summary in summaries}
    children: dict[str | None, list[SessionSummary]] = {None: []}
    for summary in summaries:
        parent = os.path.realpath(summary.parent_session) if summary.parent_session else None
        known = parent is not None and parent in by_file and parent != os.path.realpath(summary.file)
        children.setdefault(parent if known else None, []).append(summary)
    rows: list[Row] = []
    waiting = [(summary, 0) for summary in reversed(children[None])]
    seen: set[str] = set()
    while waiting:
        summary, depth = waiting.pop()
        file = os.path.realpath(summary.file)
        if file not in seen:
            seen.add(file)
            rows.append(Row(summary, depth))
            waiting += [(child, depth + 1) for child in reversed(children.get(file, []))]
    rows += [Row(summary, 0) for summary in summaries if os.path.realpath(summary.file) not in seen]
    return rows


def matching(rows: Iterable[Row], query: str, found: frozenset[str]) -> list[Row]:
    """Rows that have all the words in what is known of them, or in what was said in them."""
    words = query.lower().split()

    def fits(row: Row) -> bool:
        summary = row.summary
        known = f"{summary.name or ''} {summary.first_message or ''} {summary.id} {summary.cwd}".lower()
        return summary.file in found or all(word in known for word in words)

    return [row for row in rows if fits(row)]


class SessionsScreen(ModalScreen[str | None]):
    """Gives the file of the session that was chosen."""

    DEFAULT_CSS = """
    SessionsScreen { background: $background; }
    SessionsScreen > Vertical { padding: 0 2; }
    SessionsScreen .title { text-style: bold; color: $primary; height: 1; }
    SessionsScreen Input, SessionsScreen Input:focus { border: none; height: 1; padding: 0; background: $background; }
    SessionsScreen OptionList, SessionsScreen OptionList:focus {
        border: none; background: $background; height: 1fr; width: 3fr; padding: 0; scrollbar-size-vertical: 1;
    }
    SessionsScreen OptionList > .option-list--option-highlighted { background: $panel; text-style: bold; }
    SessionsScreen:nocolor OptionList > .option-list--option-highlighted { text-style: bold underline; }
    SessionsScreen #preview { width: 2fr; height: 1fr; padding: 0 0 0 2; border-left: solid $panel; }
    SessionsScreen.-narrow Horizontal { layout: vertical; }
    SessionsScreen.-narrow OptionList { width: 100%; }
    SessionsScreen.-narrow #preview {
        width: 100%; height: 7; border-left: none; border-top: solid $panel; padding: 0;
    }
    SessionsScreen .hint { color: $muted; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "give_up", priority=True),
        bind("session_scope", "scope", priority=True),
        bind("session_named", "named", priority=True),
        bind("session_archived", "archived", priority=True),
        bind("session_rename", "rename", priority=True),
        bind("session_archive", "archive", priority=True),
        bind("session_delete", "delete", priority=True),
    ]
    NARROW = 100

    if TYPE_CHECKING:

        @property
        def app(self) -> App[Any]: ...

    def __init__(self, cwd: str, *, own: Session | None = None) -> None:
        """The sessions of a folder; `own` is the one that is open, which is marked."""
        super().__init__()
        self._cwd = cwd
        self._session = own
        self._own = None if own is None else own.kept_at
        self._all = False
        self._only_named = False
        self._archived = False
        self._rows: list[Row] = []
        self._shown: list[Row] = []
        self._found: frozenset[str] = frozenset()
        self._title = Line(classes="title")
        self._list = OptionList(markup=False)
        self._search = Find(self._list, placeholder="search names, first messages, and what was said")
        self._preview = Line(id="preview")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._title
            yield self._search
            with Horizontal():
                yield self._list
                yield self._preview
            said = hints(
                self,
                "enter opens",
                ("session_scope", "this folder/all"),
                ("session_named", "named"),
                ("session_archived", "archived"),
                ("session_rename", "rename"),
                ("session_archive", "archive"),
                ("session_delete", "delete"),
                "esc",
            )
            yield Line(said, classes="hint")

    def on_mount(self) -> None:
        self.set_class(self.size.width < self.NARROW, "-narrow")
        self._search.focus()
        self._load()

    def on_resize(self) -> None:
        self.set_class(self.size.width < self.NARROW, "-narrow")

    # Listing

    def _load(self) -> None:
        self.run_worker(self._listed(), exclusive=True, group="list", exit_on_error=False)

    async def _listed(self) -> None:
        self._say("reading …")
        try:
            listed = await look(
                lambda progress: catalog.sessions(self._cwd, all=self._all, archived=self._archived, progress=progress),
                lambda percent: self._say(f"reading, {percent} % …"),
            )
        except SessionTreeError as error:
            self._say(str(error))
            return
        self._rows = threaded([summary for summary in listed if summary.name or not self._only_named])
        self._narrow()

    def _say(self, note: str = "") -> None:
        where = "all folders" if self._all else self._cwd
        kinds = [word for word, on in (("named", self._only_named), ("archived", self._archived)) if on]
        count = f"{len(self._shown)} of {len(self._rows)}"
        self._title.say(" · ".join(["Sessions", note or count, *kinds, where]))

    def _narrow(self) -> None:
        at = self._at
        self._shown = matching(self._rows, self._search.value, self._found)
        self._list.clear_options()
        self._list.add_options([Option(self._line(row)) for row in self._shown])
        files = [row.summary.file for row in self._shown]
        wanted = at.file if at is not None else self._own
        self._list.highlighted = files.index(wanted) if wanted in files else 0 if files else None
        if not files:
            self._preview.say("")
        self._say("" if self._shown else self._nothing())

    def _nothing(self) -> str:
        if self._search.value:
            return "nothing matches; esc, or clear the search"
        if self._only_named:
            said = ["none has a name", hints(self, ("session_named", "shows all"))]
        elif self._archived:
            said = ["none is archived", hints(self, ("session_archived", "goes back"))]
        else:
            said = ["there are none", "" if self._all else hints(self, ("session_scope", "shows all folders"))]
        return "; ".join(filter(None, said))

    def _line(self, row: Row) -> Text:
        summary = row.summary
        title = summary.name or summary.first_message or "(empty)"
        when = local_time(summary.modified)
        own = "●" if summary.file == self._own else " "
        fork = f"{'  ' * (row.depth - 1)}└ " if row.depth else ""
        count = f"  {pluralize(summary.message_count, 'message')}"
        named = "bold" if summary.name else ""
        shown = Text.assemble((f"{own} {when}  {fork}", "dim"), (safe(one_line(title)), named), (count, "dim"))
        if summary.branch_count > 1:
            shown.append(f", {summary.branch_count} branches", "dim")
        if summary.damaged:
            shown.append("  damaged", "bold")
        if self._all:
            shown.append(f"  {safe(summary.cwd)}", "dim")
        shown.no_wrap, shown.overflow = True, "ellipsis"
        return shown

    @property
    def _at(self) -> SessionSummary | None:
        at = self._list.highlighted
        return self._shown[at].summary if at is not None and at < len(self._shown) else None

    # Searching and previewing

    def on_input_changed(self, event: Input.Changed) -> None:
        self._found = frozenset()
        self._narrow()
        self.run_worker(self._search_inside(event.value), exclusive=True, group="search", exit_on_error=False)

    async def _search_inside(self, query: str) -> None:
        await asyncio.sleep(PAUSE)
        if len(query.strip()) < 3:
            return
        try:
            found = await look(
                lambda progress: catalog.sessions_with(query, cwd=self._cwd, all=self._all, progress=progress),
                lambda percent: self._say(f"searching, {percent} % …"),
            )
        except SessionTreeError as error:
            self._say(str(error))
            return
        self._found = frozenset(found)
        self._narrow()

    def on_option_list_option_highlighted(self) -> None:
        if self._at is not None:
            self.run_worker(self._previewed(self._at), exclusive=True, group="preview", exit_on_error=False)
        else:
            self._preview.say("")

    async def _previewed(self, summary: SessionSummary) -> None:
        await asyncio.sleep(0.05)
        room = self._preview.content_size
        shown = await asyncio.to_thread(preview, summary, max(room.width, 1), room.height)
        if self._at is summary:
            self._preview.say(shown)

    # Keys

    def action_give_up(self) -> None:
        if self._search.value:
            self._search.value = ""
        else:
            self.dismiss(None)

    def on_input_submitted(self) -> None:
        if self._at is not None:
            self.dismiss(self._at.file)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._shown[event.option_index].summary.file)

    def action_scope(self) -> None:
        self._all = not self._all
        self._load()

    def action_named(self) -> None:
        self._only_named = not self._only_named
        self._load()

    def action_archived(self) -> None:
        self._archived = not self._archived
        self._load()

    def action_rename(self) -> None:
        summary = self._at
        if summary is None:
            return

        def rename(name: str | None) -> None:
            if name is not None:
                self._change(lambda: self._rename(summary.file, name or None))

        self.app.push_screen(Ask("Name of the session (empty takes it away)", text=summary.name or ""), rename)

    def action_archive(self) -> None:
        summary = self._at
        if summary is not None:
            self._change(lambda: shelf.archive(summary.file, archived=not summary.archived))

    def action_delete(self) -> None:
        summary = self._at
        if summary is None:
            return
        if summary.file == self._own:
            self.notify("this session is open: it is not deleted", severity="warning")
            return

        def delete(sure: bool | None) -> None:
            if sure:
                self._change(lambda: shelf.delete(summary.file))

        title = summary.name or summary.first_message or summary.id
        self.app.push_screen(
            Confirm(
                "Delete this session?", f"{one_line(title)}\nIt goes to the trash; `delete --restore` brings it back."
            ),
            delete,
        )

    def _rename(self, file: str, name: str | None) -> None:
        if self._session is not None and file == self._own:
            self._session.rename(name)
            return
        with catalog.open(file) as session:
            session.rename(name)

    def _change(self, change: object) -> None:
        assert callable(change)
        try:
            change()
        except (SessionTreeError, OSError) as error:
            self.notify(safe(str(error)), severity="error", markup=False)
        self._load()


def preview(summary: SessionSummary, width: int, height: int) -> Text:
    """The last messages of a session, from the end of its file: as many as there is room for, the newest below."""
    try:
        with catalog.open(summary.file, read_only=True) as session:
            messages = session.context().messages[-PREVIEWED:]
    except (SessionTreeError, OSError) as error:
        return Text(safe(str(error)))
    shown = [Text(safe(summary.damage), "bold")] if summary.damage else []
    at, room = len(shown), height - sum(_height(text, width) for text in shown)
    for message in reversed(messages):
        words = one_line(text(message.get("content")))
        if words:
            user = role(message) == "user"
            said = Text.assemble(("› " if user else "  ", "bold"), (safe(words), "" if user else "dim"))
            said.truncate(LINES * width - 1, overflow="ellipsis")
            room -= _height(said, width)
            if room < 0:
                break
            shown.insert(at, said)
    return Text("\n").join(shown)


def _height(text: Text, width: int) -> int:
    """How many rows a text takes, as it is drawn."""
    return len(Content(text.plain).wrap(width))
