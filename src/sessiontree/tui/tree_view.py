"""The tree on the screen: a cursor on rows that are drawn when they are seen.

Moving, folding, filtering and searching happen here; what is done with the chosen entry is the screen's. What takes a
look at the whole tree is done in slices of a frame, while the rows from before stay.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
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

from sessiontree.core.entries import EntryId
from sessiontree.core.figures import pluralize
from sessiontree.core.fulltext import fold
from sessiontree.core.outline import FILTERS, Calls, Outline, Shape, Steps, lay_out, row_text, survey, tell_hidden
from sessiontree.core.safe import safe
from sessiontree.session import Session
from sessiontree.tui.keys import bind
from sessiontree.tui.tree_folds import Folds

FRAME = 0.012
"""How long the work on a whole tree goes on before keys and the screen have their turn, in seconds."""
TOLD_SECONDS = 0.1
"""How often it is told how far that work is."""
GROWN_SECONDS = 1.0
"""How often it is looked whether the session has grown."""
CURSOR_SHARE, OTHER_SHARE = 4, 2
"""Connectors take a quarter of the width at most in the row of the cursor, and half of it in any other row."""
TEXT_ROOM = 20
"""So many of them belong to its text, whatever stands behind it."""
NAME_ROOM = 24
MOST_NAMES = 3
"""So many branches are named in a row."""
GUTTER = 2
MARKS = 2
TEXTS_KEPT = 1000


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
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"tree--{part}" for part in ("cursor", "rail", "path", "label", "branch", "aside")
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
        """The cursor, the rows, the search or the marks are others."""

    class Working(Message):
        """The work on new rows has come further."""

    class Left(Message):
        """Nothing is to be chosen."""

    def __init__(self, session: Session, *, branch: str | None = None, at: EntryId | None = None) -> None:
        """The tree as it is seen from `branch`, the current one by default, with the cursor there or at `at`."""
        super().__init__()
        self._branch = branch
        self.filter = "default"
        self.query_text = ""
        self.marks: list[EntryId] = []
        self.progress: float | None = None
        """How far the work on new rows is; `None` when nothing is being worked on."""
        self.outline: Outline | None = None
        self._session = session
        self._wanted = at if at is not None else self._leaf
        """The entry that the cursor is to be on; where it is hidden, the cursor is as near as can be."""
        self._folds: Folds | None = None
        self._cursor = 0
        """The row under the cursor."""
        self._shape: Shape | None = None
        self._surveying: Steps[Shape] | None = None
        self._working: Worker[None] | None = None
        self._seen = (0, self._leaf)
        self._calls = Calls(session.tree)
        self._texts: dict[EntryId, str] = {}
        self._names: dict[int, list[str]] = {}
        """The branches at each row."""
        self._names_hidden: dict[int, list[str]] = {}
        """The branches whose heads are hidden, by the nearest row above."""
        self._active: int | None = None
        self._active_hidden: int | None = None

    @property
    def _leaf(self) -> EntryId | None:
        """The active leaf, unless damage took it away."""
        heads = self._session.heads
        leaf = heads.leaf if self._branch is None else heads.heads.get(self._branch)
        return leaf if leaf in self._session.tree else None

    @property
    def chosen(self) -> EntryId | None:
        """The entry under the cursor."""
        return self.outline.id(self._cursor) if self.outline is not None and len(self.outline) else None

    @property
    def place(self) -> tuple[int, int]:
        """The number of the cursor's row, and how many there are."""
        return (self._cursor + 1, len(self.outline)) if self.outline is not None and len(self.outline) else (0, 0)

    def on_mount(self) -> None:
        self._survey()
        self.set_interval(GROWN_SECONDS, self.look_again)

    # Rows

    def look_again(self) -> None:
        """Take in what has come to the session, and labels that have changed."""
        if self._surveying is None and self._seen != (len(self._session.tree.items), self._leaf):
            self._survey()
        self._name_branches()
        self.refresh()

    def _survey(self) -> None:
        tree, leaf = self._session.tree, self._leaf
        self._seen = len(tree.items), leaf
        self._surveying = survey(tree, leaf, self._shape)
        self._arrange()

    def _arrange(self) -> None:
        """Make the rows for what is to be shown: at once if that takes no longer than a frame."""
        if self._working is not None:
            self._working.cancel()
        steps = self._laid_out()
        come = _advance(steps)
        if isinstance(come, Outline):
            self._arranged(come)
        else:
            self.progress = come
            self.post_message(self.Changed())
            self._working = self.run_worker(partial(self._go_on, steps))

    async def _go_on(self, steps: Steps[Outline]) -> None:
        told = time.monotonic()
        while not isinstance(come := _advance(steps), Outline):
            self.progress, now = come, time.monotonic()
            if now - told > TOLD_SECONDS:
                told = now
                self.post_message(self.Working())
            await asyncio.sleep(0)
        self._arranged(come)

    def _laid_out(self) -> Steps[Outline]:
        if self._surveying is not None:
            # A survey that another arrangement has begun is gone on with.
            while True:
                try:
                    yield next(self._surveying) * 0.7
                except StopIteration as stop:
                    self._shape, self._surveying = stop.value, None
                    break
        assert self._shape is not None
        return (yield from lay_out(self._shape, self.filter, tuple(fold(self.query_text).split())))

    def _arranged(self, outline: Outline) -> None:
        older, folds = self.outline, Folds(outline)
        grown = older is not None and (older.filter, older.words) == (outline.filter, outline.words)
        if older is not None and self._folds is not None and grown:
            folds.take_over(self._folds, older)
        self.outline, self._folds, self.progress = outline, folds, None
        self._cursor = 0
        self._name_branches()
        self._resize()
        if len(outline):
            self._go_to(self._row_for(self._wanted), keep=True)
        self.refresh()
        self.post_message(self.Changed())

    def _row_for(self, id: EntryId | None) -> int:
        """The row of an entry, or the nearest shown one above, or else the next one that is shown."""
        assert self.outline is not None
        row = self.outline.nearest(id)
        if row is not None:
            return row
        position = self.outline.shape.positions.get(id, 0) if id is not None else 0
        return min(bisect_left(self.outline.rows, position), len(self.outline) - 1)

    def _resize(self) -> None:
        assert self._folds is not None
        self.virtual_size = Size(self._width, len(self._folds))

    def on_resize(self, event: events.Resize) -> None:
        if self._folds is not None and len(self._folds):
            self._resize()
            self._go_to(self._cursor, keep=True)

    # The cursor

    def _go_to(self, row: int, *, keep: bool = False, still: bool = False) -> None:
        """Put the cursor on a row, or on the one that it is folded under; with `keep`, it would still be elsewhere.

        That row comes to the middle, unless rows are to stay `still`.
        """
        assert self.outline is not None
        assert self._folds is not None
        pan, before = self._pan, self._cursor
        line = self._folds.line(row)
        self._cursor = self._folds.row(line)
        if not keep:
            self._wanted = self.chosen
        if not still:
            self._scroll(line - max(self.size.height, 1) // 2)
        if pan != self._pan:
            self.refresh()
        else:
            self.refresh_line(self._folds.line(before))
            self.refresh_line(line)
        self.post_message(self.Changed())

    def _scroll(self, top: int) -> None:
        self.scroll_to(y=max(0, top), animate=False, immediate=True, force=True)  # the scrollbar may be yet to come

    def _move(self, by: int, *, wraps: bool = False) -> None:
        if self._folds is None or not len(self._folds):
            return
        line, last = self._folds.line(self._cursor) + by, len(self._folds) - 1
        line = line % (last + 1) if wraps else min(max(line, 0), last)
        self._go_to(self._folds.row(line))

    def action_step(self, by: int) -> None:
        self._move(by, wraps=True)

    def action_page(self, by: int) -> None:
        self._move(by * max(1, self.size.height - 1))

    def action_edge(self, end: int) -> None:
        if self._folds is not None:
            self._move(len(self._folds) if end else -len(self._folds))

    def action_turn(self, by: int) -> None:
        if self.outline is None or self._folds is None:
            return
        turns, row = self.outline.turns, self._cursor
        if by > 0 and row in self._folds:
            row = self.outline.below(row).stop - 1
        at = bisect_right(turns, row) if by > 0 else bisect_left(turns, row) - 1
        if 0 <= at < len(turns):
            self._go_to(turns[at])

    def action_fold(self) -> None:
        """Fold the segment; from inside it, go to its beginning; where nothing is to fold, to the one above."""
        if self.outline is None or self._folds is None or not len(self.outline):
            return
        row, first = self._cursor, self.outline.segment(self._cursor).start
        if row != first:
            self._go_to(first)
        elif self._folds.fold(row):
            self._folded()
        else:
            above = self.outline.above(row)
            self._go_to(row if above is None else above)

    def action_unfold(self) -> None:
        """Unfold the segment; where nothing is folded, go to the next one."""
        if self.outline is None or self._folds is None or not len(self.outline):
            return
        if self._folds.unfold(self._cursor):
            self._folded()
        else:
            self._go_to(min(self.outline.segment(self._cursor).stop, len(self.outline) - 1))

    def _folded(self) -> None:
        self._resize()
        self._go_to(self._cursor)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        line = self.scroll_offset.y + event.y
        if self._folds is not None and line < len(self._folds):
            self._go_to(self._folds.row(line), still=True)

    # Filters and searching

    def action_cycle(self, by: int) -> None:
        self._show(FILTERS[(FILTERS.index(self.filter) + by) % len(FILTERS)])

    def action_filter(self, filter: str) -> None:
        """Show by a filter; by the one that is on, no longer."""
        self._show("default" if filter == self.filter else filter)

    def _show(self, filter: str) -> None:
        self.filter = filter
        self._arrange()

    def action_escape(self) -> None:
        if self.query_text:
            self._search("")
        else:
            self.post_message(self.Left())

    def on_key(self, event: events.Key) -> None:
        """What is typed is searched for."""
        if event.key == "backspace":
            self._search(self.query_text[:-1])
        elif event.is_printable and event.character is not None:
            self._search(self.query_text + event.character)
        else:
            return
        event.stop()
        event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        self._search(self.query_text + " ".join(event.text.split()))
        event.stop()

    def _search(self, query: str) -> None:
        if query != self.query_text:
            self.query_text = query
            self._arrange()
            self.post_message(self.Changed())

    # Marks

    def action_mark(self) -> None:
        """Mark the entry, or take its mark away; the older of three goes."""
        chosen = self.chosen
        if chosen is None:
            return
        if chosen in self.marks:
            self.marks.remove(chosen)
        else:
            self.marks = [*self.marks, chosen][-MARKS:]
        self.refresh()
        self.post_message(self.Changed())

    # Drawing

    @property
    def _width(self) -> int:
        return self.scrollable_content_region.width

    @property
    def _pan(self) -> int:
        """How many columns on the left are out of sight, so that the row under the cursor has room for its text."""
        if self.outline is None or not len(self.outline):
            return 0
        return max(0, self.outline.width(self._cursor) - self._width // CURSOR_SHARE)

    def text(self, id: EntryId) -> str:
        """What the row of an entry says, safe for a terminal."""
        text = self._texts.get(id)
        if text is None:
            if len(self._texts) >= TEXTS_KEPT:
                self._texts.clear()
            text = self._texts[id] = safe(row_text(self._session.tree[id], self._calls))
        return text

    def render_line(self, y: int) -> Strip:
        line, width = self.scroll_offset.y + y, self._width
        if self.outline is None or self._folds is None or line >= len(self._folds):
            why = f"  {self._why_empty()}" if y == 0 and self.outline is not None and not len(self.outline) else ""
            return Strip([Segment(why, self.rich_style)]).adjust_cell_length(width, self.rich_style)
        row = self._folds.row(line)
        at_cursor = row == self._cursor
        style = self.rich_style + self.get_component_rich_style("tree--cursor") if at_cursor else self.rich_style
        parts = self._parts(self.outline, self._folds, row, width)
        return Strip([Segment(text, style + part) for text, part in parts if text]).adjust_cell_length(width, style)

    def _why_empty(self) -> str:
        count = len(self._session.tree)
        if not count:
            return "There is nothing in this session yet."
        if self.query_text:
            return f'No matches for "{safe(self.query_text)}" in the filter {self.filter}. Esc clears the search.'
        return f"The filter {self.filter} hides {pluralize(count, 'entry', 'entries')}. Ctrl+O is the next one."

    def _parts(self, outline: Outline, folds: Folds, row: int, width: int) -> list[tuple[str, Style]]:
        """The pieces of a row with their styles. The text gives way to what stands behind it."""
        id, look = outline.id(row), self._look
        mark = str(self.marks.index(id) + 1) if id in self.marks else " "
        label = self._session.tree.label(id)
        lead = [
            (("›" if row == self._cursor else " ") + mark, look("label")),
            (self._prefix(outline, folds, row, width), look("rail")),
            ("• " if outline.on_path(row) else "", look("path")),
            (f"[{_brief(label)}] " if label else "", look("label")),
        ]
        names = self._names.get(row, [])
        tail = [(f" ({_brief(name)})", look("branch")) for name in names[:MOST_NAMES]]
        if len(names) > MOST_NAMES:
            tail.append((f" (and {len(names) - MOST_NAMES} more)", look("branch")))
        if row in folds:
            tail.append((f" (+{len(outline.below(row))})", look("aside")))
        if row == self._active:
            tail.append((" ← active", look("path")))
        if hidden := self._hidden(outline, folds, row):
            tail.append((f" {hidden}", look("aside")))
        taken = sum(cell_len(text) for text, _ in [*lead, *tail])
        text = self.text(id)
        room = max(width - taken, min(TEXT_ROOM, cell_len(text)))
        text = _cut(text, room)
        quiet = text.startswith("[")
        return [*lead, (text, look("aside") if quiet else Style.null()), *tail]

    def _hidden(self, outline: Outline, folds: Folds, row: int) -> str:
        """What is said of heads that the filter, the search or a fold hides below a row."""
        names, active = self._names_hidden.get(row, []), row == self._active_hidden
        if row in folds:
            below = outline.below(row)
            inside = (self._names, self._names_hidden)
            names = [*names, *(name for named in inside for at in named if at in below for name in named[at])]
            active = active or self._active in below or self._active_hidden in below
        shown = [_brief(name) for name in names[:MOST_NAMES]]
        if len(names) > MOST_NAMES:
            shown.append(f"and {len(names) - MOST_NAMES} more")
        return tell_hidden(shown, active)

    def _prefix(self, outline: Outline, folds: Folds, row: int, width: int) -> str:
        """Connectors, as far as the pan leaves them in sight, with the sign of what can be folded."""
        full = outline.width(row)
        room = min(max(0, full - self._pan), width // OTHER_SHARE)
        prefix = outline.prefix(row, room)
        sign = "⊞" if row in folds else "⊟" if full and outline.below(row) else ""
        if sign and len(prefix) > 1:
            prefix = f"{prefix[:-2]}{sign} "
        elif row in folds:
            prefix = f"{sign} "
        return f"…{prefix[1:]}" if len(prefix) > 2 and room < full else prefix

    def _look(self, part: str) -> Style:
        return self.get_component_rich_style(f"tree--{part}", partial=True)

    def _name_branches(self) -> None:
        if self.outline is not None:
            self._names = self.outline.branches(self._session.heads)
            self._names_hidden = self.outline.branches_hidden(self._session.heads)
            self._active, self._active_hidden = self.outline.active, self.outline.active_hidden


def _brief(name: str) -> str:
    """A label or the name of a branch, safe, and no longer than leaves room for the text."""
    return _cut(safe(name), NAME_ROOM)


def _cut(text: str, room: int) -> str:
    return text if cell_len(text) <= room else set_cell_size(text, room - 1) + "…"


def _advance(steps: Steps[Outline]) -> Outline | float:
    """Go on with the steps until it is time for others: what they made, or how far they are."""
    until = time.monotonic() + FRAME
    while True:
        try:
            progress = next(steps)
        except StopIteration as stop:
            return stop.value
        if time.monotonic() > until:
            return progress
