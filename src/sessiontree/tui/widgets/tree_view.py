"""The tree widget: rows of a session tree with a cursor, folding, filters and search.

Rows are rendered when they become visible. Work on the whole tree runs in slices of one frame, while the old rows stay
visible. The tree screen handles the selected entry.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.worker import Worker

from sessiontree.core import entries
from sessiontree.core.call_lookup import CallLookup
from sessiontree.core.entries import EntryId
from sessiontree.core.entry_text import format_entry_row
from sessiontree.core.messages import has_failed
from sessiontree.core.number_text import pluralize
from sessiontree.core.outline import FILTERS, Outline, Steps, TreeShape, format_hidden, lay_out, survey_tree
from sessiontree.core.sanitize import escape_line
from sessiontree.core.search_text import fold
from sessiontree.core.tree_rows import survey_window
from sessiontree.files.file_records import count_changed_files
from sessiontree.session import Session
from sessiontree.tui.keys import bind, format_hints
from sessiontree.tui.widgets.tree_folds import TreeFolds

FRAME_SECONDS = 0.012
"""Duration of a slice of work on the whole tree. Keys and drawing run between slices."""
PROGRESS_SECONDS = 0.1
"""Minimum time between two progress messages."""
REFRESH_SECONDS = 1.0
"""Interval between checks for new entries."""
CURSOR_SHARE, OTHER_SHARE = 4, 2
"""Connectors take at most 1/4 of the width in the cursor row and 1/2 in other rows."""
MIN_TEXT_WIDTH = 20
"""Columns reserved for the text of a row."""
MAX_NAME_WIDTH = 24
MAX_NAMES = 3
"""Maximum number of branch names in a row."""
MAX_MARKS = 2
TEXT_CACHE_SIZE = 1000
MAX_WHOLE_TREE, WINDOW_ENTRIES = 20_000, 4_000
"""A larger tree is laid out as a whole only when the user leaves the entries around the cursor, or searches."""
ITEMS_PER_STEP = 10_000
"""Items that are searched for records of files between two pauses."""


class TreeView(ScrollView, can_focus=True):
    DEFAULT_CSS = """
    TreeView {
        height: 1fr; background: $surface; overflow-x: hidden;
        scrollbar-size-vertical: 1; scrollbar-background: $surface; scrollbar-color: $panel;
    }
    TreeView > .tree--cursor { background: $panel; text-style: bold; }
    TreeView:nocolor > .tree--cursor { text-style: reverse; }
    TreeView > .tree--rail { color: $muted; }
    TreeView > .tree--path { color: $success; }
    TreeView > .tree--label { color: $warning; }
    TreeView > .tree--branch { color: $primary; }
    TreeView > .tree--aside { color: $muted; }
    TreeView > .tree--failed { color: $error; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"tree--{part}" for part in ("cursor", "rail", "path", "label", "branch", "aside", "failed")
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("tree_up", "step(-1)", priority=True),
        bind("tree_down", "step(1)", priority=True),
        bind("tree_page_up", "page(-1)", priority=True),
        bind("tree_page_down", "page(1)", priority=True),
        bind("tree_first", "edge(0)", priority=True),
        bind("tree_last", "edge(1)", priority=True),
        bind("tree_turn_up", "turn(-1)", priority=True),
        bind("tree_turn_down", "turn(1)", priority=True),
        bind("tree_fold", "fold", priority=True),
        bind("tree_unfold", "unfold", priority=True),
        bind("tree_escape", "escape", priority=True),
        bind("tree_filter", "cycle(1)", priority=True),
        bind("tree_filter_back", "cycle(-1)", priority=True),
        bind("tree_default", "filter('default')", priority=True),
        bind("tree_no_tools", "filter('no-tools')", priority=True),
        bind("tree_user_only", "filter('user-only')", priority=True),
        bind("tree_labeled_only", "filter('labeled-only')", priority=True),
        bind("tree_all", "filter('all')", priority=True),
        bind("tree_mark", "mark", priority=True),
        bind("tree_beside", "screen.beside", priority=True),
        bind("tree_choose", "screen.choose", priority=True),
        bind("tree_summarize", "screen.summarize", priority=True),
        bind("tree_cancel", "screen.cancel", priority=True),
        bind("tree_label", "screen.label", priority=True),
        bind("tree_copy", "screen.copy", priority=True),
        bind("tree_detail", "screen.detail", priority=True),
        bind("tree_detail_up", "screen.detail_scroll(-1)", priority=True),
        bind("tree_detail_down", "screen.detail_scroll(1)", priority=True),
    ]

    class Changed(Message):
        """The cursor, the rows, the search or the marks changed."""

    class Progressed(Message):
        """The layout of new rows made progress."""

    class Cancelled(Message):
        """The user closed the tree without a choice."""

    def __init__(self, session: Session, *, branch: str | None = None, at: EntryId | None = None) -> None:
        """Show the tree from `branch` (default: the current branch). The cursor starts at `at` or at its head."""
        super().__init__()
        self._branch = branch
        self.filter = "default"
        self.query_text = ""
        self.marks: list[EntryId] = []
        self.progress: float | None = None
        """Progress of the layout from 0 to 1; `None` if it is finished."""
        self.outline: Outline | None = None
        self._session = session
        self._target = at if at is not None else self._leaf
        """The entry the user moved to. If it is hidden, the cursor is on the nearest visible row."""
        self._folds: TreeFolds | None = None
        self._cursor = 0
        """Row of the cursor."""
        self.is_window = session.tree.count > MAX_WHOLE_TREE
        """Whether only the rows around the cursor are laid out."""
        self._pending_move: Callable[[], None] | None = None
        """The move that needs the whole tree."""
        self._shape: TreeShape | None = None
        self._survey_steps: Steps[TreeShape] | None = None
        self._layout_worker: Worker[None] | None = None
        self._surveyed_state = (0, self._leaf)
        self._calls = CallLookup(session.tree)
        self._texts: dict[EntryId, str] = {}
        self._failures: dict[EntryId, bool] = {}
        self._branch_names: dict[int, list[str]] = {}
        """Names of the branches whose head is in a row."""
        self._hidden_branch_names: dict[int, list[str]] = {}
        """Names of the branches whose head is hidden, by the nearest visible row above."""
        self._changed_files: Counter[EntryId] = Counter()
        """How many files each tool call changed."""
        self._counted_items = 0
        self._active_row: int | None = None
        self._hidden_active_row: int | None = None

    @property
    def _leaf(self) -> EntryId | None:
        """The active leaf; `None` if it is missing in a damaged session."""
        heads = self._session.heads
        leaf = heads.leaf if self._branch is None else heads.heads.get(self._branch)
        return leaf if leaf in self._session.tree else None

    @property
    def selected_entry(self) -> EntryId | None:
        """Id of the entry under the cursor."""
        return self.outline.get_id(self._cursor) if self.outline is not None and len(self.outline) else None

    @property
    def cursor_position(self) -> tuple[int, int]:
        """Number of the cursor row, from 1, and number of rows."""
        return (self._cursor + 1, len(self.outline)) if self.outline is not None and len(self.outline) else (0, 0)

    def on_mount(self) -> None:
        self._start_survey()
        self.set_interval(REFRESH_SECONDS, self.refresh_tree)

    # Rows

    def refresh_tree(self) -> None:
        """Show new entries and changed labels."""
        if self._survey_steps is None and self._surveyed_state != (len(self._session.tree.items), self._leaf):
            self._start_survey()
        self._update_branch_names()
        self.refresh()

    def _start_survey(self) -> None:
        tree, leaf = self._session.tree, self._leaf
        self._surveyed_state = len(tree.items), leaf
        if self.is_window:
            self._shape = survey_window(tree, leaf, self._target, WINDOW_ENTRIES)
        else:
            self._survey_steps = survey_tree(tree, leaf, self._shape)
        self._start_layout()

    def _leave_window(self, then: Callable[[], None] | None = None) -> bool:
        """Start to lay out the whole tree, and call `then` afterwards. Return `False` if only that is shown."""
        if not self.is_window:
            return False
        self.is_window, self._shape, self._pending_move = False, None, then
        self._start_survey()
        return True

    def _start_layout(self) -> None:
        """Lay out the rows. If this takes longer than one slice, continue in a worker."""
        if self._layout_worker is not None:
            self._layout_worker.cancel()
        steps = self._build_outline()
        result = _advance(steps)
        if isinstance(result, Outline):
            self._show_outline(result)
        else:
            self.progress = result
            self.post_message(self.Changed())
            self._layout_worker = self.run_worker(partial(self._continue_layout, steps))

    async def _continue_layout(self, steps: Steps[Outline]) -> None:
        last_report = time.monotonic()
        while not isinstance(result := _advance(steps), Outline):
            self.progress, now = result, time.monotonic()
            if now - last_report > PROGRESS_SECONDS:
                last_report = now
                self.post_message(self.Progressed())
            await asyncio.sleep(0)
        self._show_outline(result)

    def _build_outline(self) -> Steps[Outline]:
        if self._survey_steps is not None:
            # Continue a survey that an earlier layout has started.
            while True:
                try:
                    yield next(self._survey_steps) * 0.7
                except StopIteration as stop:
                    self._shape, self._survey_steps = stop.value, None
                    break
        assert self._shape is not None
        items = self._session.tree.items
        while self._counted_items < len(items):
            part = items[self._counted_items : self._counted_items + ITEMS_PER_STEP]
            self._changed_files += count_changed_files(part, self._session.tree)
            self._counted_items += len(part)
            yield 0.7
        return (yield from lay_out(self._shape, self.filter, tuple(fold(self.query_text).split())))

    def _show_outline(self, outline: Outline) -> None:
        if not len(outline) and self._leave_window():
            return  # the filter may show rows elsewhere
        older, folds = self.outline, TreeFolds(outline)
        grown = older is not None and (older.filter, older.words) == (outline.filter, outline.words)
        if older is not None and self._folds is not None and grown:
            folds.copy_folds(self._folds, older)
        self.outline, self._folds, self.progress = outline, folds, None
        self._cursor = 0
        self._update_branch_names()
        self._update_size()
        if len(outline):
            self._move_to(self._find_row(self._target), keep=True)
        if self._pending_move is not None:
            then, self._pending_move = self._pending_move, None
            then()
        self.refresh()
        self.post_message(self.Changed())

    def _find_row(self, id: EntryId | None) -> int:
        """Return the row of an entry, of its nearest visible ancestor, or of the next visible entry."""
        assert self.outline is not None
        row = self.outline.find_row(id)
        if row is not None:
            return row
        position = self.outline.shape.positions.get(id, 0) if id is not None else 0
        return min(bisect_left(self.outline.rows, position), len(self.outline) - 1)

    def _update_size(self) -> None:
        assert self._folds is not None
        self.virtual_size = Size(self._width, len(self._folds))

    def on_resize(self, event: events.Resize) -> None:
        if self._folds is not None and len(self._folds):
            self._update_size()
            self._move_to(self._cursor, keep=True)

    # Cursor

    def _move_to(self, row: int, *, keep: bool = False, still: bool = False) -> None:
        """Move the cursor to a row, or to the fold that hides it.

        With `keep`, the target entry does not change. With `still`, the view does not scroll to center the row.
        """
        assert self.outline is not None
        assert self._folds is not None
        pan, before = self._hidden_columns, self._cursor
        line = self._folds.get_line(row)
        self._cursor = self._folds.get_row(line)
        if not keep:
            self._target = self.selected_entry
        if not still:
            self._scroll_to_line(line - max(self.size.height, 1) // 2)
        if pan != self._hidden_columns:
            self.refresh()
        else:
            self.refresh_line(self._folds.get_line(before))
            self.refresh_line(line)
        self.post_message(self.Changed())

    def _scroll_to_line(self, top: int) -> None:
        self.scroll_to(
            y=max(0, top), animate=False, immediate=True, force=True
        )  # the virtual size may not be applied yet

    def _move_by(self, by: int, *, wraps: bool = False) -> None:
        if self._folds is None or not len(self._folds):
            return
        line, last = self._folds.get_line(self._cursor) + by, len(self._folds) - 1
        if not 0 <= line <= last and self._leave_window(partial(self._move_by, by, wraps=wraps)):
            return
        line = line % (last + 1) if wraps else min(max(line, 0), last)
        self._move_to(self._folds.get_row(line))

    def action_step(self, by: int) -> None:
        self._move_by(by, wraps=True)

    def action_page(self, by: int) -> None:
        self._move_by(by * max(1, self.size.height - 1))

    def action_edge(self, end: int) -> None:
        if self._folds is not None and not self._leave_window(partial(self.action_edge, end)):
            self._move_by(len(self._folds) if end else -len(self._folds))

    def action_turn(self, by: int) -> None:
        if self.outline is None or self._folds is None:
            return
        turns, row = self.outline.turns, self._cursor
        if by > 0 and row in self._folds:
            row = self.outline.get_foldable(row).stop - 1
        at = bisect_right(turns, row) if by > 0 else bisect_left(turns, row) - 1
        if 0 <= at < len(turns):
            self._move_to(turns[at])
        else:
            self._leave_window(partial(self.action_turn, by))

    def action_fold(self) -> None:
        """Fold the segment. Inside a segment, go to its start; if there is nothing to fold, to the one above."""
        if self.outline is None or self._folds is None or not len(self.outline):
            return
        row, first = self._cursor, self.outline.get_segment(self._cursor).start
        if row != first:
            self._move_to(first)
        elif self._folds.fold(row):
            self._update_folds()
        else:
            above = self.outline.find_segment_above(row)
            self._move_to(row if above is None else above)

    def action_unfold(self) -> None:
        """Unfold the segment, or go to the next one."""
        if self.outline is None or self._folds is None or not len(self.outline):
            return
        if self._folds.unfold(self._cursor):
            self._update_folds()
        else:
            self._move_to(min(self.outline.get_segment(self._cursor).stop, len(self.outline) - 1))

    def _update_folds(self) -> None:
        self._update_size()
        self._move_to(self._cursor)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        line = self.scroll_offset.y + event.y
        if self._folds is not None and line < len(self._folds):
            self._move_to(self._folds.get_row(line), still=True)

    # Filters and search

    def action_cycle(self, by: int) -> None:
        self._set_filter(FILTERS[(FILTERS.index(self.filter) + by) % len(FILTERS)])

    def action_filter(self, filter: str) -> None:
        """Apply a filter, or return to the default filter if it is active."""
        self._set_filter("default" if filter == self.filter else filter)

    def _set_filter(self, filter: str) -> None:
        self.filter = filter
        self._start_layout()

    def action_escape(self) -> None:
        if self.query_text:
            self._set_query("")
        else:
            self.post_message(self.Cancelled())

    def on_key(self, event: events.Key) -> None:
        """Add typed characters to the search."""
        if event.key == "backspace":
            self._set_query(self.query_text[:-1])
        elif event.is_printable and event.character is not None:
            self._set_query(self.query_text + event.character)
        else:
            return
        event.stop()
        event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        self._set_query(self.query_text + " ".join(event.text.split()))
        event.stop()

    def _set_query(self, query: str) -> None:
        if query != self.query_text:
            self.query_text = query
            if not self._leave_window():
                self._start_layout()
            self.post_message(self.Changed())

    # Marks

    def action_mark(self) -> None:
        """Toggle the mark of the entry. A third mark replaces the oldest one."""
        chosen = self.selected_entry
        if chosen is None:
            return
        if chosen in self.marks:
            self.marks.remove(chosen)
        else:
            self.marks = [*self.marks, chosen][-MAX_MARKS:]
        self.refresh()
        self.post_message(self.Changed())

    # Drawing

    @property
    def _width(self) -> int:
        return self.scrollable_content_region.width

    @property
    def _hidden_columns(self) -> int:
        """Number of columns hidden on the left, to make room for the text of the cursor row."""
        if self.outline is None or not len(self.outline):
            return 0
        return max(0, self.outline.get_width(self._cursor) - self._width // CURSOR_SHARE)

    def get_row_text(self, id: EntryId) -> str:
        """Return the text of an entry's row, escaped for the terminal."""
        text = self._texts.get(id)
        if text is None:
            if len(self._texts) >= TEXT_CACHE_SIZE:
                self._texts.clear()
            text = self._texts[id] = escape_line(format_entry_row(self._session.tree[id], self._calls))
        return text

    def _is_failed(self, id: EntryId) -> bool:
        """Return whether the row of an entry has the sign for failures."""
        failed = self._failures.get(id)
        if failed is None:
            if len(self._failures) >= TEXT_CACHE_SIZE:
                self._failures.clear()
            body = self._session.tree[id].decode()
            failed = self._failures[id] = isinstance(body, entries.Message) and has_failed(body.message)
        return failed

    def render_line(self, y: int) -> Strip:
        line, width = self.scroll_offset.y + y, self._width
        if self.outline is None or self._folds is None or line >= len(self._folds):
            why = f"  {self._explain_empty()}" if y == 0 and self.outline is not None and not len(self.outline) else ""
            return Strip([Segment(why, self.rich_style)]).adjust_cell_length(width, self.rich_style)
        row = self._folds.get_row(line)
        at_cursor = row == self._cursor
        style = self.rich_style + self.get_component_rich_style("tree--cursor") if at_cursor else self.rich_style
        parts = self._build_parts(self.outline, self._folds, row, width)
        return Strip([Segment(text, style + part) for text, part in parts if text]).adjust_cell_length(width, style)

    def _explain_empty(self) -> str:
        count = len(self._session.tree)
        if not count:
            return "This session is empty."
        if self.query_text:
            found = f'No matches for "{escape_line(self.query_text)}" in the filter {self.filter}'
            return " · ".join(filter(None, [found, format_hints(self.screen, ("tree_escape", "to clear the search"))]))
        hidden = f"The filter {self.filter} hides {pluralize(count, 'entry', 'entries')}"
        return " · ".join(filter(None, [hidden, format_hints(self.screen, ("tree_filter", "for the next filter"))]))

    def _build_parts(self, outline: Outline, folds: TreeFolds, row: int, width: int) -> list[tuple[str, Style]]:
        """Return the parts of a row with their styles. The text is truncated to make room for the others."""
        id, style = outline.get_id(row), self._get_part_style
        mark = str(self.marks.index(id) + 1) if id in self.marks else " "
        label = self._session.tree.label(id)
        lead = [
            (("›" if row == self._cursor else " ") + mark, style("label")),
            (self._build_prefix(outline, folds, row, width), style("rail")),
            ("• " if outline.is_on_path(row) else "", style("path")),
            (f"[{_shorten_name(label)}] " if label else "", style("label")),
            ("✗ " if self._is_failed(id) else "", style("failed")),
        ]
        names = self._branch_names.get(row, [])
        tail = [(f" ({_shorten_name(name)})", style("branch")) for name in names[:MAX_NAMES]]
        if len(names) > MAX_NAMES:
            tail.append((f" (and {len(names) - MAX_NAMES} more)", style("branch")))
        if files := self._changed_files[id]:
            tail.append((f" · {pluralize(files, 'file')}", style("aside")))
        if row in folds:
            tail.append((f" (+{len(outline.get_foldable(row))})", style("aside")))
        if row == self._active_row:
            tail.append((" ← active", style("path")))
        if hidden := self._format_hidden(outline, folds, row):
            tail.append((f" {hidden}", style("aside")))
        taken = sum(cell_len(text) for text, _ in [*lead, *tail])
        text = self.get_row_text(id)
        room = max(width - taken, min(MIN_TEXT_WIDTH, cell_len(text)))
        text = _truncate(text, room)
        quiet = text.startswith("[")
        return [*lead, (text, style("aside") if quiet else Style.null()), *tail]

    def _format_hidden(self, outline: Outline, folds: TreeFolds, row: int) -> str:
        """Describe the branch heads that a filter, a search or a fold hides below a row."""
        names, active = self._hidden_branch_names.get(row, []), row == self._hidden_active_row
        if row in folds:
            below = outline.get_foldable(row)
            inside = (self._branch_names, self._hidden_branch_names)
            names = [*names, *(name for named in inside for at in named if at in below for name in named[at])]
            active = active or self._active_row in below or self._hidden_active_row in below
        shown = [_shorten_name(name) for name in names[:MAX_NAMES]]
        if len(names) > MAX_NAMES:
            shown.append(f"and {len(names) - MAX_NAMES} more")
        return format_hidden(shown, active)

    def _build_prefix(self, outline: Outline, folds: TreeFolds, row: int, width: int) -> str:
        """Return the visible connectors of a row, with a sign if it can be folded."""
        full = outline.get_width(row)
        room = min(max(0, full - self._hidden_columns), width // OTHER_SHARE)
        prefix = outline.draw_prefix(row, room)
        sign = "⊞" if row in folds else "⊟" if full and outline.get_foldable(row) else ""
        if sign and len(prefix) > 1:
            prefix = f"{prefix[:-2]}{sign} "
        elif row in folds:
            prefix = f"{sign} "
        return f"…{prefix[1:]}" if len(prefix) > 2 and room < full else prefix

    def _get_part_style(self, part: str) -> Style:
        return self.get_component_rich_style(f"tree--{part}", partial=True)

    def _update_branch_names(self) -> None:
        if self.outline is not None:
            self._branch_names = self.outline.find_branches(self._session.heads)
            self._hidden_branch_names = self.outline.find_hidden_branches(self._session.heads)
            self._active_row, self._hidden_active_row = self.outline.active, self.outline.active_hidden


def _shorten_name(name: str) -> str:
    """Escape and shorten a label or branch name."""
    return _truncate(escape_line(name), MAX_NAME_WIDTH)


def _truncate(text: str, room: int) -> str:
    return text if cell_len(text) <= room else set_cell_size(text, room - 1) + "…"


def _advance(steps: Steps[Outline]) -> Outline | float:
    """Run steps for one slice. Return the outline, or the progress if it is not finished."""
    deadline = time.monotonic() + FRAME_SECONDS
    while True:
        try:
            progress = next(steps)
        except StopIteration as stop:
            return stop.value
        if time.monotonic() > deadline:
            return progress
