"""The tree screen: choosing a place of a session, in the lower half of the terminal.

It moves nothing. It returns a `Choice`, or nothing; whoever opened it navigates. Labels are written at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

from msgspec.structs import asdict
from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from sessiontree.commands import navigation
from sessiontree.commands.formatting import format_id
from sessiontree.commands.navigation import SUMMARY_CHOICES, SummaryChoice, build_focused_choice, build_written_choice
from sessiontree.comparison import diff
from sessiontree.config import Config
from sessiontree.core.entries import EntryId
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import SessionTreeError
from sessiontree.session import Session
from sessiontree.tui.clipboard import send_to_clipboard
from sessiontree.tui.keys import build_keymap, find_key_errors, format_hints
from sessiontree.tui.ordered import OrderedKeysApp
from sessiontree.tui.screens.compare_view import ComparisonScreen, ComparisonSides, ComparisonView, build_diff_sides
from sessiontree.tui.screens.dialogs import EditorDialog, SelectDialog
from sessiontree.tui.services.terminal import TerminalDriver
from sessiontree.tui.theme import DARK, LIGHT, NOTIFICATION_CSS, get_theme, has_light_background
from sessiontree.tui.tree_detail import get_entry_text, render_context, render_entry
from sessiontree.tui.widgets.tree_view import MAX_MARKS, TreeView

SummaryMode: TypeAlias = Literal["ask", "unasked", "none"]
"""Whether one asks for a summary of what is left, makes one only by its own key, or none can be made."""

REST_SECONDS = 0.08
"""The details of an entry are shown once the cursor has rested on it so long."""
PANES = ("", "text", "model")


class TreeChoice(SummaryChoice, frozen=True, kw_only=True):
    """The entry that was chosen, and what is to become of what is left."""

    entry: EntryId


class TreeScreen(ModalScreen[TreeChoice | None]):
    DEFAULT_CSS = """
    TreeScreen { background: $background 40%; align: left bottom; }
    TreeScreen > .pane {
        height: 1fr; background: $background; padding: 0 2; display: none;
        scrollbar-size-vertical: 1; scrollbar-background: $background; scrollbar-color: $panel;
    }
    TreeScreen > .pane > Static { width: 1fr; height: auto; }
    TreeScreen > Beside { padding: 0 2; display: none; }
    TreeScreen > .panel { height: 50%; min-height: 6; background: $surface; border-top: heavy $primary; }
    TreeScreen .title, TreeScreen .foot { height: 1; padding: 0 2; text-wrap: nowrap; text-overflow: ellipsis; }
    TreeScreen .foot { color: $muted; }
    TreeScreen Input, TreeScreen Input:focus {
        height: 1; border: none; padding: 0 2; background: $panel; display: none;
    }
    """
    AUTO_FOCUS = "TreeView"

    def __init__(
        self,
        session: Session,
        *,
        summaries: SummaryMode = "ask",
        pane: bool = False,
        branch: str | None = None,
        at: EntryId | None = None,
        question: str = "",
    ) -> None:
        """The tree as it is seen from a branch, the current one by default, with the cursor there or at `at`.

        `question` says what an entry is chosen for, where that is not to go there.
        """
        super().__init__()
        self._session = session
        self._branch = branch
        self._question = question
        self._summary_mode = summaries
        self._pane_mode = "text" if pane else ""
        self._notice = ""
        """What was done last."""
        self._notice_place: object = None
        """Where the cursor was then: what was done is told until one goes on."""
        self._hint = ""
        """The keys that one needs most, as they are bound."""
        self._labeling: EntryId | None = None
        self._shown_marks: list[EntryId] = []
        self._pending_action: Callable[[], None] | None = None
        """What is to be done once the rows are there that were asked for."""
        self._detail_text = Static(markup=False)
        """What the pane says."""
        self._comparison = ComparisonView(titled=True)
        self._comparison.can_focus = False
        self.view = TreeView(session, branch=branch, at=at)

    @property
    def _app(self) -> App[object]:
        return self.app  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="pane", can_focus=False):
            yield self._detail_text
        yield self._comparison
        with Vertical(classes="panel"):
            yield Static(classes="title", markup=False)
            yield self.view
            yield Input(placeholder="label (empty takes it away)", select_on_focus=False)
            yield Static(classes="foot", markup=False)

    def on_mount(self) -> None:
        self._hint = format_hints(
            self,
            ("tree_choose", "choose" if self._question else "go"),
            ("tree_escape", "leave"),
            ("tree_detail", "details"),
            ("tree_label", "label"),
            ("tree_mark", "mark"),
            ("tree_filter", "filter"),
        )
        self._show_title()
        self._schedule_details()

    # What is shown

    def on_tree_view_changed(self, event: TreeView.Changed) -> None:
        self._show_title()
        self._schedule_details()
        if self._pending_action is not None and self.view.progress is None:
            then, self._pending_action = self._pending_action, None
            then()

    def on_tree_view_progressed(self, event: TreeView.Progressed) -> None:
        self._show_foot()

    def on_tree_view_cancelled(self, event: TreeView.Cancelled) -> None:
        self.dismiss(None)

    def _show_title(self) -> None:
        view = self.view
        name = escape_line(self._session.name or "unnamed")
        title = Text(no_wrap=True, overflow="ellipsis")
        title.append(name, style="bold")
        if view.query_text:
            title.append("  search: ")
            title.append(escape_line(view.query_text), style="bold reverse")
        else:
            asked = self._question or f"on branch {self._branch or self._session.heads.current}"
            title.append(f" · {escape_line(asked)} · type to search", style="dim")
        self.query_one(".title", Static).update(title)
        self._show_foot()

    def _show_foot(self) -> None:
        view = self.view
        at, of = view.cursor_position
        working = f" · {view.progress:.0%}" if view.progress is not None else ""
        said = self._notice if self._notice and self._notice_place == self._view_state else self._hint
        foot = Text(f"{at}/{of} · {view.filter}{working} · {said}", no_wrap=True, overflow="ellipsis")
        self.query_one(".foot", Static).update(foot)

    def show_notice(self, text: str) -> None:
        """Say something in the last line."""
        self._notice, self._notice_place = escape_line(text), self._view_state
        self._show_foot()

    @property
    def _view_state(self) -> object:
        view = self.view
        return view.selected_entry, view.filter, view.query_text, tuple(view.marks)

    # Details

    def action_detail(self) -> None:
        self._pane_mode = PANES[(PANES.index(self._pane_mode) + 1) % len(PANES)]
        self.view.marks = self.view.marks if self._pane_mode else []
        self._schedule_details()

    def action_detail_scroll(self, by: int) -> None:
        shown = self._comparison if self._comparison.display else self.query_one(".pane", VerticalScroll)
        shown.scroll_relative(y=by * 3, animate=False)

    def action_beside(self) -> None:
        if len(self.view.marks) == MAX_MARKS:
            self.run_worker(self._open_comparison(), group="beside", exclusive=True)
        else:
            self.show_notice("mark two entries first")

    async def _open_comparison(self) -> None:
        self._app.push_screen(ComparisonScreen(await asyncio.to_thread(self._build_sides, list(self.view.marks))))

    def _schedule_details(self) -> None:
        """Show the details of where the cursor is, once it stays there."""
        self.run_worker(self._show_details, group="detail", exclusive=True)

    async def _show_details(self) -> None:
        pane = self.query_one(".pane", VerticalScroll)
        chosen, marks = self.view.selected_entry, list(self.view.marks)
        both = len(marks) == MAX_MARKS
        self._comparison.display = both
        pane.display = not both and bool(self._pane_mode) and chosen is not None
        if both:
            if marks != self._shown_marks:
                self._shown_marks = marks
                self._comparison.show_sides(await asyncio.to_thread(self._build_sides, marks))
        elif pane.display and chosen is not None:
            await asyncio.sleep(REST_SECONDS)
            self._detail_text.update(await asyncio.to_thread(self._render_details, chosen))
            pane.scroll_home(animate=False)

    def _render_details(self, chosen: EntryId) -> Text:
        return (
            render_context(self._session.tree, chosen)
            if self._pane_mode == "model"
            else render_entry(self._session, chosen)
        )

    def _build_sides(self, marks: list[EntryId]) -> ComparisonSides:
        a, b = marks
        return build_diff_sides(diff(self._session.tree, (f"1 {format_id(a)}", a), (f"2 {format_id(b)}", b)))

    # What is done with an entry

    def action_copy(self) -> None:
        if self.view.selected_entry is not None:
            self.show_notice(send_to_clipboard(self._app, get_entry_text(self._session.tree[self.view.selected_entry])))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The key of labels is a letter, which belongs to a search that has begun."""
        return not (action == "label" and self.view.query_text)

    def action_label(self) -> None:
        if self.view.selected_entry is not None:
            self._labeling = self.view.selected_entry
            field = self.query_one(Input)
            field.value = self._session.tree.label(self._labeling) or ""
            field.display = True
            field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        labeled = self._labeling
        self._close_label_input()
        if labeled is None or (self._session.tree.label(labeled) or "") == event.value.strip():
            return
        try:
            self._session.label(self._session.tree[labeled], event.value)
        except SessionTreeError as error:
            self.show_notice(str(error))
        else:
            self.show_notice("labeled" if event.value.strip() else "the label is gone")
            self.view.refresh_tree()

    def key_escape(self) -> None:
        self._close_label_input()

    def _close_label_input(self) -> None:
        self._labeling = None
        self.query_one(Input).display = False
        self.view.focus()

    # Choosing

    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_choose(self) -> None:
        self._run_when_loaded(lambda: self._choose(asks=self._summary_mode == "ask"))

    def action_summarize(self) -> None:
        if self._summary_mode == "none":
            self.show_notice("no summary can be made here")
        else:
            self._run_when_loaded(self._choose_with_summary)

    def _run_when_loaded(self, do: Callable[[], None]) -> None:
        """Do something with the entry under the cursor; while rows are being made, with the one that will be there."""
        if self.view.progress is None:
            do()
        else:
            self._pending_action = do

    def _choose_with_summary(self) -> None:
        chosen = self.view.selected_entry
        if chosen is not None:
            self.dismiss(TreeChoice(entry=chosen, summarize=self._leaves_entries_behind(chosen)))

    def _choose(self, *, asks: bool) -> None:
        chosen = self.view.selected_entry
        if chosen is None:
            return
        if asks and self._leaves_entries_behind(chosen):
            self._app.push_screen(
                SelectDialog(navigation.SUMMARY_CHOICE_QUESTION, SUMMARY_CHOICES), partial(self._apply_answer, chosen)
            )
        else:
            self.dismiss(TreeChoice(entry=chosen))

    def _apply_answer(self, chosen: EntryId, option: int | None) -> None:
        """Do what was said about what is left; without an answer, one is in the tree again."""

        def close_with(said: SummaryChoice | None) -> None:
            if said is not None:
                self.dismiss(TreeChoice(entry=chosen, **asdict(said)))

        answer = None if option is None else SUMMARY_CHOICES[option]
        if answer == navigation.SUMMARIZE_WITH_FOCUS:
            self._app.push_screen(
                EditorDialog(navigation.FOCUS_QUESTION), lambda focus: close_with(build_focused_choice(focus))
            )
        elif answer == navigation.WRITE_SUMMARY:
            self._app.push_screen(
                EditorDialog(navigation.SUMMARY_QUESTION), lambda words: close_with(build_written_choice(words))
            )
        elif answer is not None:
            close_with(SummaryChoice(summarize=answer == navigation.SUMMARIZE))

    def _leaves_entries_behind(self, chosen: EntryId) -> bool:
        """Whether going there leaves a part of the path behind."""
        outline = self.view.outline
        if outline is None or outline.shape.leaf is None:
            return False
        shape = outline.shape
        position = shape.positions[chosen]
        while position >= 0 and shape.ids[position] not in shape.path:
            position = shape.parent_positions[position]
        return position < 0 or shape.ids[position] != shape.leaf


class TreeApp(OrderedKeysApp[TreeChoice | None]):
    """The tree of a session by itself."""

    CSS = NOTIFICATION_CSS
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, session: Session, settings: Config, *, light: bool = False) -> None:
        super().__init__(driver_class=TerminalDriver, ansi_color="NO_COLOR" in os.environ)
        self._session = session
        self._settings = settings
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = "ansi-dark" if self.no_color else get_theme(light).name
        self.set_keymap(build_keymap(settings.keys))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {"muted": "ansi_default" if self.no_color else DARK.variables["muted"]}

    def on_mount(self) -> None:
        summaries = "unasked" if self._settings.summary.skip_prompt else "ask"
        self.push_screen(TreeScreen(self._session, summaries=summaries, pane=True), self.exit)
        for fault in find_key_errors(self._settings.keys):
            self.notify(escape_line(fault), severity="warning", markup=False)


def choose_entry(session: Session, settings: Config) -> TreeChoice | None:
    """Have a place chosen in the terminal."""
    return TreeApp(session, settings, light=has_light_background()).run()
