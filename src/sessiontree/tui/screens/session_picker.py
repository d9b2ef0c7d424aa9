"""The session picker: list, search, preview, open, rename, archive and delete sessions."""

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

from sessiontree.core.entries import shorten_to_line
from sessiontree.core.foreign_markup import shorten_user_text
from sessiontree.core.messages import extract_text, get_role
from sessiontree.core.number_text import pluralize
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import SessionTreeError
from sessiontree.library import catalog
from sessiontree.slash_commands.formatting import format_local_time
from sessiontree.tui.keys import bind, format_hints
from sessiontree.tui.screens.dialogs import ConfirmDialog, InputDialog
from sessiontree.tui.services.session_checks import scan_in_thread
from sessiontree.tui.widgets.controls import FilterInput, SafeStatic

if TYPE_CHECKING:
    from sessiontree.library.index.session_summary import SessionSummary
    from sessiontree.session import Session

MAX_PREVIEW_MESSAGES = 24
"""Maximum number of messages in a preview."""
MAX_MESSAGE_LINES = 3
"""Maximum number of lines of a message in a preview."""
TYPING_PAUSE_SECONDS = 0.15
"""Delay after the last key until the content of sessions is searched."""


class SessionRow(NamedTuple):
    summary: SessionSummary
    depth: int
    """Number of forks between this session and its first listed ancestor."""


def build_rows(summaries: Sequence[SessionSummary]) -> list[SessionRow]:
    """Return rows with forks below the session they were forked from. Otherwise keep the order."""
    by_file = {os.path.realpath(summary.file): summary for summary in summaries}
    children: dict[str | None, list[SessionSummary]] = {None: []}
    for summary in summaries:
        parent = os.path.realpath(summary.parent_session) if summary.parent_session else None
        known = parent is not None and parent in by_file and parent != os.path.realpath(summary.file)
        children.setdefault(parent if known else None, []).append(summary)
    rows: list[SessionRow] = []
    pending = [(summary, 0) for summary in reversed(children[None])]
    seen: set[str] = set()
    while pending:
        summary, depth = pending.pop()
        file = os.path.realpath(summary.file)
        if file not in seen:
            seen.add(file)
            rows.append(SessionRow(summary, depth))
            pending += [(child, depth + 1) for child in reversed(children.get(file, []))]
    rows += [SessionRow(summary, 0) for summary in summaries if os.path.realpath(summary.file) not in seen]
    return rows


def filter_rows(rows: Iterable[SessionRow], query: str, found: frozenset[str]) -> list[SessionRow]:
    """Return the rows whose name, first message, id or folder contains all words, or whose file is in `found`."""
    words = query.lower().split()

    def is_match(row: SessionRow) -> bool:
        summary = row.summary
        known = f"{summary.name or ''} {summary.first_message or ''} {summary.id} {summary.cwd}".lower()
        return summary.file in found or all(word in known for word in words)

    return [row for row in rows if is_match(row)]


class SessionsScreen(ModalScreen[str | None]):
    """Returns the file of the chosen session."""

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
        Binding("escape,ctrl+c", "cancel", priority=True),
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
        """List the sessions of a folder. `own` is the open session, which is marked."""
        super().__init__()
        self._cwd = cwd
        self._session = own
        self._own_file = None if own is None else own.address
        self._all_folders = False
        self._only_named = False
        self._show_archived = False
        self._rows: list[SessionRow] = []
        self._visible_rows: list[SessionRow] = []
        self._found_files: frozenset[str] = frozenset()
        self._title_line = SafeStatic(classes="title")
        self._option_list = OptionList(markup=False)
        self._filter_input = FilterInput(self._option_list, placeholder="Search names and messages")
        self._preview_pane = SafeStatic(id="preview")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._title_line
            yield self._filter_input
            with Horizontal():
                yield self._option_list
                yield self._preview_pane
            hints = format_hints(
                self,
                "Enter to open",
                ("session_scope", "all folders"),
                ("session_named", "named"),
                ("session_archived", "archived"),
                ("session_rename", "rename"),
                ("session_archive", "archive"),
                ("session_delete", "delete"),
                "Esc to cancel",
            )
            whole = "\u00a0"  # break the line between hints only
            yield SafeStatic(hints.replace(" ", whole).replace(f"{whole}·{whole}", " · "), classes="hint")

    def on_mount(self) -> None:
        self.set_class(self.size.width < self.NARROW, "-narrow")
        self._filter_input.focus()
        self._start_listing()

    def on_resize(self) -> None:
        self.set_class(self.size.width < self.NARROW, "-narrow")

    # Listing

    def _start_listing(self) -> None:
        self.run_worker(self._list_sessions(), exclusive=True, group="list", exit_on_error=False)

    async def _list_sessions(self) -> None:
        self._set_title("reading…")
        try:
            listed = await scan_in_thread(
                lambda progress: catalog.sessions(
                    self._cwd, all=self._all_folders, archived=self._show_archived, others=True, progress=progress
                ),
                lambda percent: self._set_title(f"reading… {percent}%"),
            )
        except SessionTreeError as error:
            self._set_title(str(error))
            return
        self._rows = build_rows([summary for summary in listed if summary.name or not self._only_named])
        self._update_rows()

    def _set_title(self, note: str = "") -> None:
        where = "all folders" if self._all_folders else self._cwd
        kinds = [word for word, on in (("named", self._only_named), ("archived", self._show_archived)) if on]
        count = f"{len(self._visible_rows)} of {len(self._rows)}"
        self._title_line.set_text(" · ".join(["Sessions", note or count, *kinds, where]))

    def _update_rows(self) -> None:
        at = self._selected
        self._visible_rows = filter_rows(self._rows, self._filter_input.value, self._found_files)
        self._option_list.clear_options()
        self._option_list.add_options([Option(self._format_row(row)) for row in self._visible_rows])
        files = [row.summary.file for row in self._visible_rows]
        wanted = at.file if at is not None else self._own_file
        self._option_list.highlighted = files.index(wanted) if wanted in files else 0 if files else None
        if not files:
            self._preview_pane.set_text("")
        self._set_title("" if self._visible_rows else self._explain_empty())

    def _explain_empty(self) -> str:
        if self._filter_input.value:
            return "no matches · Esc to clear the search"
        if self._only_named:
            parts = ["no named sessions", format_hints(self, ("session_named", "to show all"))]
        elif self._show_archived:
            parts = ["no archived sessions", format_hints(self, ("session_archived", "to go back"))]
        else:
            parts = [
                "no sessions",
                "" if self._all_folders else format_hints(self, ("session_scope", "to show all folders")),
            ]
        return " · ".join(filter(None, parts))

    def _format_row(self, row: SessionRow) -> Text:
        summary = row.summary
        title = summary.name or summary.first_message or "(empty)"
        when = format_local_time(summary.modified)
        own = "●" if summary.file == self._own_file else " "
        fork = f"{'  ' * (row.depth - 1)}└ " if row.depth else ""
        count = f"  {pluralize(summary.message_count, 'message')}"
        named = "bold" if summary.name else ""
        shown = Text.assemble(
            (f"{own} {when}  {fork}", "dim"), (escape_line(shorten_to_line(title)), named), (count, "dim")
        )
        if summary.branch_count > 1:
            shown.append(f", {summary.branch_count} branches", "dim")
        if summary.source is not None:
            shown.append(f"  {summary.source}", "bold")
        if summary.is_damaged:
            shown.append("  damaged", "bold")
        if self._all_folders:
            shown.append(f"  {escape_line(summary.cwd)}", "dim")
        shown.no_wrap, shown.overflow = True, "ellipsis"
        return shown

    @property
    def _selected(self) -> SessionSummary | None:
        at = self._option_list.highlighted
        return self._visible_rows[at].summary if at is not None and at < len(self._visible_rows) else None

    # Search and preview

    def on_input_changed(self, event: Input.Changed) -> None:
        self._found_files = frozenset()
        self._update_rows()
        self.run_worker(self._search_messages(event.value), exclusive=True, group="search", exit_on_error=False)

    async def _search_messages(self, query: str) -> None:
        await asyncio.sleep(TYPING_PAUSE_SECONDS)
        if len(query.strip()) < 3:
            return
        try:
            found = await scan_in_thread(
                lambda progress: catalog.find_matching_sessions(
                    query, cwd=self._cwd, all=self._all_folders, progress=progress
                ),
                lambda percent: self._set_title(f"searching… {percent}%"),
            )
        except SessionTreeError as error:
            self._set_title(str(error))
            return
        self._found_files = frozenset(found)
        self._update_rows()

    def on_option_list_option_highlighted(self) -> None:
        if self._selected is not None:
            self.run_worker(self._show_preview(self._selected), exclusive=True, group="preview", exit_on_error=False)
        else:
            self._preview_pane.set_text("")

    async def _show_preview(self, summary: SessionSummary) -> None:
        await asyncio.sleep(0.05)
        room = self._preview_pane.content_size
        shown = await asyncio.to_thread(render_preview, summary, max(room.width, 1), room.height)
        if self._selected is summary:
            self._preview_pane.set_text(shown)

    # Keys

    def action_cancel(self) -> None:
        if self._filter_input.value:
            self._filter_input.value = ""
        else:
            self.dismiss(None)

    def on_input_submitted(self) -> None:
        if self._selected is not None:
            self.dismiss(self._selected.file)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._visible_rows[event.option_index].summary.file)

    def action_scope(self) -> None:
        self._all_folders = not self._all_folders
        self._start_listing()

    def action_named(self) -> None:
        self._only_named = not self._only_named
        self._start_listing()

    def action_archived(self) -> None:
        self._show_archived = not self._show_archived
        self._start_listing()

    def action_rename(self) -> None:
        summary = self._selected
        if summary is None:
            return

        def rename(name: str | None) -> None:
            if name is not None:
                self._apply_change(lambda: self._rename(summary.file, name or None))

        self.app.push_screen(InputDialog("Session name (empty to remove)", text=summary.name or ""), rename)

    def action_archive(self) -> None:
        summary = self._selected
        if summary is not None:
            self._apply_change(lambda: catalog.archive(summary.file, archived=not summary.archived))

    def action_delete(self) -> None:
        summary = self._selected
        if summary is None:
            return
        if summary.file == self._own_file:
            self.notify("Cannot delete the open session", severity="warning")
            return

        def delete(sure: bool | None) -> None:
            if sure:
                self._apply_change(lambda: catalog.delete(summary.file))

        title = summary.name or summary.first_message or summary.id
        self.app.push_screen(
            ConfirmDialog(
                "Delete this session?",
                f"{shorten_to_line(title)}\nIt is moved to the trash. `sessiontree delete --restore` restores it.",
            ),
            delete,
        )

    def _rename(self, file: str, name: str | None) -> None:
        if self._session is not None and file == self._own_file:
            self._session.rename(name)
            return
        with catalog.open(file) as session:
            session.rename(name)

    def _apply_change(self, change: object) -> None:
        assert callable(change)
        try:
            change()
        except (SessionTreeError, OSError) as error:
            self.notify(escape_line(str(error)), severity="error", markup=False)
        self._start_listing()


def render_preview(summary: SessionSummary, width: int, height: int) -> Text:
    """Render the last messages of a session that fit into the given size, newest last."""
    try:
        with catalog.open(summary.file, read_only=True) as session:
            messages = session.context().messages[-MAX_PREVIEW_MESSAGES:]
    except (SessionTreeError, OSError) as error:
        return Text(escape_line(str(error)))
    shown = [Text(escape_line(summary.damage), "bold")] if summary.damage else []
    at, room = len(shown), height - sum(_measure_height(text, width) for text in shown)
    for message in reversed(messages):
        user = get_role(message) == "user"
        words = (shorten_user_text if user else shorten_to_line)(extract_text(message.get("content")))
        if words:
            line = Text.assemble(("› " if user else "  ", "bold"), (escape_line(words), "" if user else "dim"))
            line.truncate(MAX_MESSAGE_LINES * width - 1, overflow="ellipsis")
            room -= _measure_height(line, width)
            if room < 0:
                break
            shown.insert(at, line)
    return Text("\n").join(shown)


def _measure_height(text: Text, width: int) -> int:
    """Return the number of rows of a wrapped text."""
    return len(Content(text.plain).wrap(width))
