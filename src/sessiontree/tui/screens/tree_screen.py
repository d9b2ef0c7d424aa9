"""The tree screen: choose an entry of a session, in the lower half of the terminal.

The screen returns a `TreeChoice` or `None`; the caller navigates. Labels are written immediately.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Literal, TypeAlias

from msgspec.structs import asdict, replace
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from sessiontree.branch_comparison import diff
from sessiontree.config import Config
from sessiontree.core.call_lookup import CallLookup
from sessiontree.core.context_explanation import UNCHANGED, explain
from sessiontree.core.entries import EntryId, Message
from sessiontree.core.entry_text import format_entry_row, format_model, format_readable_text, get_speaker
from sessiontree.core.messages import list_usages, sum_usage
from sessiontree.core.number_text import format_tokens, list_usage, pluralize
from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.core.tree import Tree
from sessiontree.errors import SessionTreeError
from sessiontree.session import Session
from sessiontree.slash_commands import navigation
from sessiontree.slash_commands.formatting import format_id, format_local_time
from sessiontree.slash_commands.host import FilesAnswer
from sessiontree.slash_commands.navigation import (
    SUMMARY_CHOICES,
    SummaryChoice,
    build_focused_choice,
    build_written_choice,
)
from sessiontree.tui.keys import OrderedKeysApp, build_keymap, find_key_errors, format_hints
from sessiontree.tui.screens.compare_view import ComparisonScreen, ComparisonSides, ComparisonView, build_diff_sides
from sessiontree.tui.screens.dialogs import EditorDialog, SelectDialog
from sessiontree.tui.services.terminal import TerminalDriver, send_to_clipboard
from sessiontree.tui.theme import DARK, NOTIFICATION_CSS, THEMES, get_styles, get_theme, has_light_background
from sessiontree.tui.widgets.block_rendering import BlockRenderer
from sessiontree.tui.widgets.transcript import Transcript
from sessiontree.tui.widgets.transcript_blocks import BlockBuilder, TranscriptBlock
from sessiontree.tui.widgets.tree_view import MAX_MARKS, TreeView

MAX_CHARACTERS = 100_000
"""Maximum number of characters shown of an entry. `sessiontree show` prints all."""
MAX_PATH_ENTRIES = 400
"""Maximum number of listed entries of a path."""
SummaryMode: TypeAlias = Literal["ask", "unasked", "none"]
"""Ask whether to summarize the abandoned branch, summarize only by key, or never summarize."""

REST_SECONDS = 0.08
"""Delay until the details of the entry under the cursor are shown."""
PANES = ("conversation", "text", "model", "")
"""What is shown above the tree: the conversation up to the entry, the entry in full, what the model sees, nothing."""
CONVERSATION_ENTRIES = 20
"""How many entries before the one under the cursor are shown."""
MIN_PANEL_ROWS, MIN_PANE_ROWS = 17, 4
"""The tree gets half of the screen, and at least these rows (14 entries) if as many are left above it."""
PANEL_FRAME = 4
"""Columns of the padding around the last line."""


class TreeChoice(SummaryChoice, frozen=True, kw_only=True):
    """The chosen entry, how to summarize the abandoned branch, and what happens to files."""

    entry: EntryId
    files: FilesAnswer = FilesAnswer()


AskFiles: TypeAlias = Callable[[EntryId], Awaitable[FilesAnswer | None]]
"""Asks what to move to an entry if files can be restored there. Returns `None` if the user cancels."""


class TreeScreen(ModalScreen[TreeChoice | None]):
    DEFAULT_CSS = """
    TreeScreen { background: $background 40%; align: left bottom; }
    TreeScreen > .pane {
        height: 1fr; background: $background; padding: 0 2; display: none;
        scrollbar-size-vertical: 1; scrollbar-background: $background; scrollbar-color: $panel;
    }
    TreeScreen > .pane > Static { width: 1fr; height: auto; }
    TreeScreen > ComparisonView { padding: 0 2; display: none; }
    TreeScreen > Transcript { background: $background; display: none; }
    TreeScreen > .panel { background: $surface; border-top: heavy $primary; }
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
        branch: str | None = None,
        at: EntryId | None = None,
        question: str = "",
        ask_files: AskFiles | None = None,
    ) -> None:
        """Show the tree from `branch` (default: the current branch). The cursor starts at `at` or at its head.

        `question` is the title if the entry is chosen for another purpose than navigation.
        """
        super().__init__()
        self._session = session
        self._branch = branch
        self._question = question
        self._ask_files = ask_files
        self._summary_mode = summaries
        self._pane_mode = PANES[0]
        self._notice = ""
        """Message in the last line."""
        self._notice_place: object = None
        """State of the view when the message was set. The message disappears when the state changes."""
        self._labeling: EntryId | None = None
        self._shown_marks: list[EntryId] = []
        self._pending_action: Callable[[], None] | None = None
        """Called when the layout of the rows is finished."""
        self._detail_text = Static(markup=False)
        self._conversation = Transcript()
        self._conversation.can_focus = False
        self._comparison = ComparisonView(titled=True)
        self._comparison.can_focus = False
        self.view = TreeView(session, branch=branch, at=at)

    @property
    def _app(self) -> App[object]:
        return self.app  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="pane", can_focus=False):
            yield self._detail_text
        yield self._conversation
        yield self._comparison
        with Vertical(classes="panel"):
            yield Static(classes="title", markup=False)
            yield self.view
            yield Input(placeholder="Label (empty to remove)", select_on_focus=False)
            yield Static(classes="foot", markup=False)

    def on_mount(self) -> None:
        self._conversation.set_renderer(BlockRenderer(get_styles(self._app.theme)))
        self._show_title()
        self._schedule_details()

    def on_resize(self, event: events.Resize) -> None:
        self._divide_screen(event.size.height)
        self._show_foot()

    def _divide_screen(self, rows: int) -> None:
        """Give the tree its rows. A comparison needs half of the screen, however small it is."""
        least = 0 if len(self.view.marks) == MAX_MARKS else min(MIN_PANEL_ROWS, rows - MIN_PANE_ROWS)
        self.query_one(".panel").styles.height = max(rows // 2, least)

    # Display

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
            subject = self._question or f"on branch {self._branch or self._session.heads.current}"
            title.append(f" · {escape_line(subject)} · type to search", style="dim")
        self.query_one(".title", Static).update(title)
        self._show_foot()

    def _show_foot(self) -> None:
        view = self.view
        at, of = view.cursor_position
        working = f" · {view.progress:.0%}" if view.progress is not None else ""
        nearby = " nearby" if view.is_window else ""
        position = f"{at}/{of}{nearby} · {view.filter}{working} · "
        has_notice = self._notice and self._notice_place == self._view_state
        message = self._notice if has_notice else self._format_hint(self.size.width - PANEL_FRAME - len(position))
        foot = Text(f"{position}{message}", no_wrap=True, overflow="ellipsis")
        self.query_one(".foot", Static).update(foot)

    def _format_hint(self, width: int) -> str:
        """Return the most important keys that fit."""
        return format_hints(
            self,
            ("tree_choose", "choose" if self._question else "go"),
            ("tree_escape", "clear" if self.view.query_text else "close"),
            ("tree_detail", "view"),
            ("tree_all", "default" if self.view.filter == "all" else "all"),
            ("tree_filter", "filter"),
            ("tree_label", "label"),
            ("tree_mark", "mark"),
            ("tree_summarize", "go and summarize"),
            width=width,
        )

    def show_notice(self, text: str) -> None:
        """Show a message in the last line until the cursor moves."""
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
        panes = (self._comparison, self._conversation, self.query_one(".pane", VerticalScroll))
        shown = next((pane for pane in panes if pane.display), panes[-1])
        shown.scroll_relative(y=by * 3, animate=False)

    def action_beside(self) -> None:
        if len(self.view.marks) == MAX_MARKS:
            self.run_worker(self._open_comparison(), group="comparison", exclusive=True)
        else:
            self.show_notice("Mark two entries first")

    async def _open_comparison(self) -> None:
        self._app.push_screen(ComparisonScreen(await asyncio.to_thread(self._build_sides, list(self.view.marks))))

    def _schedule_details(self) -> None:
        """Show the details of the entry under the cursor after a short delay."""
        self.run_worker(self._show_details, group="detail", exclusive=True)

    async def _show_details(self) -> None:
        pane = self.query_one(".pane", VerticalScroll)
        chosen, marks = self.view.selected_entry, list(self.view.marks)
        both = len(marks) == MAX_MARKS
        self._comparison.display = both
        self._divide_screen(self.size.height)
        is_open = not both and chosen is not None
        self._conversation.display = is_open and self._pane_mode == "conversation"
        pane.display = is_open and self._pane_mode in ("text", "model")
        if both:
            if marks != self._shown_marks:
                self._comparison.show_sides(await asyncio.to_thread(self._build_sides, marks))
                self._shown_marks = marks  # not before: a newer call cancels this one while it builds them
        elif self._conversation.display and chosen is not None:
            await asyncio.sleep(REST_SECONDS)
            self._conversation.show_blocks(await asyncio.to_thread(self._build_conversation, chosen))
        elif pane.display and chosen is not None:
            await asyncio.sleep(REST_SECONDS)
            self._detail_text.update(await asyncio.to_thread(self._render_details, chosen))
            pane.scroll_home(animate=False)

    def _build_conversation(self, chosen: EntryId) -> list[TranscriptBlock]:
        """Build the end of the conversation that leads to an entry."""
        tree, builder = self._session.tree, BlockBuilder()
        path = list(islice(tree.walk_up_ids(chosen), CONVERSATION_ENTRIES))
        return [block for id in reversed(path) for block in builder.build_entry(tree[id])]

    def _render_details(self, chosen: EntryId) -> Text:
        return (
            render_context(self._session.tree, chosen)
            if self._pane_mode == "model"
            else render_entry(self._session, chosen)
        )

    def _build_sides(self, marks: list[EntryId]) -> ComparisonSides:
        a, b = marks
        first, second = (f"mark 1 ({format_id(a)})", a), (f"mark 2 ({format_id(b)})", b)
        return build_diff_sides(diff(self._session.tree, first, second))

    # Entry actions

    def action_copy(self) -> None:
        chosen = self.view.selected_entry
        if chosen is not None:
            self.show_notice(send_to_clipboard(self._app, format_readable_text(self._session.tree[chosen])))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the label key during a search, because it is a letter."""
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
            self.show_notice("Label set" if event.value.strip() else "Label removed")
            self.view.refresh_tree()

    def key_escape(self) -> None:
        self._close_label_input()

    def _close_label_input(self) -> None:
        self._labeling = None
        self.query_one(Input).display = False
        self.view.focus()

    # Choice

    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_choose(self) -> None:
        self._run_when_loaded(self._choose)

    def action_summarize(self) -> None:
        if self._summary_mode == "none":
            self.show_notice("Summaries are not available here")
        else:
            self._run_when_loaded(partial(self._choose, summarize=True))

    def _run_when_loaded(self, action: Callable[[], None]) -> None:
        """Run an action on the entry under the cursor. During a layout, wait until it is finished."""
        if self.view.progress is None:
            action()
        else:
            self._pending_action = action

    def _choose(self, *, summarize: bool = False) -> None:
        chosen = self.view.selected_entry
        if chosen is None:
            return
        if self._ask_files is None:
            self._choose_summary(TreeChoice(entry=chosen), summarize)
        else:
            self.run_worker(self._choose_files(self._ask_files, chosen, summarize), group="choose", exclusive=True)

    async def _choose_files(self, ask: AskFiles, chosen: EntryId, summarize: bool) -> None:
        """Ask about files first: without a move of the conversation there is nothing to summarize."""
        try:
            answer = await ask(chosen)
        except SessionTreeError as error:
            self.show_notice(str(error))
            return
        if answer is not None:
            self._choose_summary(TreeChoice(entry=chosen, files=answer), summarize)

    def _choose_summary(self, choice: TreeChoice, summarize: bool) -> None:
        """Close with a choice. Ask first how to summarize what it leaves behind, or summarize without a question."""
        leaves = choice.files.files != "files" and self._leaves_entries_behind(choice.entry)
        if leaves and not summarize and self._summary_mode == "ask":
            self._app.push_screen(
                SelectDialog(navigation.SUMMARY_CHOICE_QUESTION, SUMMARY_CHOICES), partial(self._apply_answer, choice)
            )
        else:
            self.dismiss(replace(choice, summarize=summarize and leaves))

    def _apply_answer(self, choice: TreeChoice, option: int | None) -> None:
        """Close with the selected summary option. Without one, stay in the tree."""

        def close_with(summary: SummaryChoice | None) -> None:
            if summary is not None:
                self.dismiss(replace(choice, **asdict(summary)))

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
        """Return whether navigating to the entry leaves entries of the current path behind."""
        outline = self.view.outline
        if outline is None or outline.shape.leaf is None:
            return False
        shape = outline.shape
        position = shape.positions[chosen]
        while position >= 0 and shape.ids[position] not in shape.path:
            position = shape.parent_positions[position]
        return position < 0 or shape.ids[position] != shape.leaf


class TreeApp(OrderedKeysApp[TreeChoice | None]):
    """The tree of a session as a separate app."""

    CSS = NOTIFICATION_CSS
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, session: Session, settings: Config, *, light: bool = False) -> None:
        super().__init__(driver_class=TerminalDriver, ansi_color="NO_COLOR" in os.environ)
        self._session = session
        self._settings = settings
        for theme in THEMES.values():
            self.register_theme(theme)
        self.theme = "ansi-dark" if self.no_color else get_theme(light, settings.app.theme).name
        self.set_keymap(build_keymap(settings.keys))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {"muted": "ansi_default" if self.no_color else DARK.variables["muted"]}

    def on_mount(self) -> None:
        summaries = "unasked" if self._settings.summary.skip_prompt else "ask"
        self.push_screen(TreeScreen(self._session, summaries=summaries), self.exit)
        for error in find_key_errors(self._settings.keys):
            self.notify(escape_line(error), severity="warning", markup=False)


def choose_entry(session: Session, settings: Config) -> TreeChoice | None:
    """Let the user choose an entry in the terminal."""
    return TreeApp(session, settings, light=has_light_background()).run()


# Details


def render_entry(session: Session, id: EntryId) -> Text:
    """Render an entry in full, with its time, model, tokens and cost."""
    entry = session.tree[id]
    label = session.tree.label(id)
    body = entry.decode()
    sums = [sum_ for usage in list_usages(body) if (sum_ := sum_usage(usage)) is not None]
    facts = [
        format_id(id),
        get_speaker(entry),
        format_local_time(entry.timestamp, seconds=True),
        f"[{label}]" if label else "",
        f"on {entry.branch}" if isinstance(entry.branch, str) else "",
        format_model(body.message) if isinstance(body, Message) else "",
        *list_usage(sum(item.tokens for item in sums), sum(item.cost for item in sums)),
    ]
    words = format_readable_text(entry)
    text = Text(escape_line(" · ".join(fact for fact in facts if fact)), style="bold")
    text.append("\n\n")
    text.append(escape_lines(words[:MAX_CHARACTERS]) or "(no content)", style="not bold")
    if len(words) > MAX_CHARACTERS:
        text.append(
            f"\n\n… {pluralize(len(words) - MAX_CHARACTERS, 'more character')}; `sessiontree show` prints the rest",
            style="dim not bold",
        )
    return text


def render_context(tree: Tree, id: EntryId) -> Text:
    """Render which entries the model sees from an entry, and why."""
    explanation = explain(tree, id)
    entries, calls = explanation.entries, CallLookup(tree)
    reach = sum(item.reaches_model for item in entries)
    text = Text(
        f"From here the model sees {reach} of {pluralize(len(entries), 'entry', 'entries')}, "
        f"about {format_tokens(explanation.tokens)}\n",
        style="bold",
    )
    if len(entries) > MAX_PATH_ENTRIES:
        text.append(f"\n… {len(entries) - MAX_PATH_ENTRIES} earlier", style="dim not bold")
    for item in entries[-MAX_PATH_ENTRIES:]:
        by = f" {format_id(item.represented_by)}" if item.represented_by else ""
        reason = "" if item.reason == UNCHANGED else f" — {escape_line(item.reason + by)}"
        row = escape_line(format_entry_row(item.entry, calls))[:100]
        line = f"\n{'✓' if item.reaches_model else '·'} {row}{reason}"
        text.append(line, style="not bold" if item.reaches_model else "dim not bold")
    return text
