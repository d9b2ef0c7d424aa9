"""Places side by side: what each of them says from where they part, with its figures on top.

Columns where there is room for two, otherwise one under the other; all of it scrolls together. What is shown is made of
a tree, and nothing here changes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip

from sessiontree.commands.text import short
from sessiontree.comparison import BranchStats, Comparison, Diff, took
from sessiontree.core.entries import Entry
from sessiontree.core.safe import safe
from sessiontree.core.tree import Tree
from sessiontree.tui.blocks import Block, Blocks, Renderer
from sessiontree.tui.drawing import Pen
from sessiontree.tui.keys import bind, hints
from sessiontree.tui.line import Line
from sessiontree.tui.theme import look_of

MOST = 100
"""So many entries of a side are shown; `sessiontree log` has all."""
COLUMN = 44
"""So wide a column is at least."""
GAP = 3


class Side(Struct, frozen=True, kw_only=True):
    """One of the places."""

    name: str
    figures: tuple[str, ...]
    blocks: tuple[Block, ...]
    more: int
    """How many entries are not shown."""


class Sides(Struct, frozen=True, kw_only=True):
    title: str
    sides: tuple[Side, ...]


def of_diff(diff: Diff, renderers: Mapping[str, Renderer] | None = None) -> Sides:
    """Two places, from where their paths part."""
    names = [safe(stats.name) for stats in diff.stats]
    return Sides(
        title=f"{names[0]} and {names[1]} part at {safe(short(diff.common_ancestor))}",
        sides=tuple(_side(stats, entries, renderers) for stats, entries in zip(diff.stats, diff.entries, strict=True)),
    )


def of_comparison(tree: Tree, comparison: Comparison, renderers: Mapping[str, Renderer] | None = None) -> Sides:
    """Branches, from where they part, and which one is ahead."""
    ahead = f"ahead: {comparison.winner} ({comparison.reason})" if comparison.winner else comparison.reason
    parting = comparison.common_ancestor
    return Sides(
        title=safe(f"{', '.join(stats.name for stats in comparison.branches)} · {ahead}"),
        sides=tuple(_side(stats, tree.abandoned(stats.leaf, parting), renderers) for stats in comparison.branches),
    )


def _side(stats: BranchStats, entries: Sequence[Entry], renderers: Mapping[str, Renderer] | None) -> Side:
    return Side(
        name=safe(stats.name),
        figures=figures(stats),
        blocks=tuple(Blocks(renderers).of(entries[:MOST])),
        more=max(0, len(entries) - MOST),
    )


def figures(stats: BranchStats) -> tuple[str, ...]:
    """What a branch took and touched, in three lines."""
    tokens, cost = took(stats)
    return (
        f"{_count(stats.entries, 'entry', 'entries')} · {_count(stats.tool_calls, 'tool call', 'tool calls')}"
        f" · {_count(stats.errors, 'error', 'errors')}",
        f"{tokens} · {cost} · {stats.time / 1000:.1f} s",
        safe(" · ".join(filter(None, [", ".join(_known(stats.models)), _files(stats.files)]))),
    )


def _known(models: Sequence[str]) -> list[str]:
    return [model for model in models if not model.endswith("/unknown")]


def _files(files: Sequence[str]) -> str:
    return f"{'file' if len(files) == 1 else 'files'} {', '.join(files)}" if files else ""


def _count(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


class Beside(ScrollView, can_focus=True):
    """The sides as columns that scroll together."""

    DEFAULT_CSS = """
    Beside {
        height: 1fr; background: $background; overflow-x: hidden; scrollbar-gutter: stable;
        scrollbar-size-vertical: 1; scrollbar-background: $background; scrollbar-color: $panel;
    }
    """

    def __init__(self, sides: Sides | None = None, *, titled: bool = False) -> None:
        super().__init__()
        self._sides = () if sides is None else sides.sides
        self._title = ""
        self._titled = titled
        """Whether the title stands above the figures."""
        self._first = 0
        """The first column in sight, where there are more than fit."""
        self._unfolded = False
        self._head: list[Strip] = []
        self._lines: list[Strip] = []

    if TYPE_CHECKING:

        @property
        def app(self) -> App[Any]: ...

    def show(self, sides: Sides) -> None:
        self._sides, self._title, self._first = sides.sides, sides.title, 0
        self._arrange()
        self.scroll_home(animate=False)

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()

    def unfold(self) -> None:
        """Unfold what is folded, or fold it again."""
        self._unfolded = not self._unfolded
        self._arrange()

    def action_page_up(self) -> None:
        self._page(-1)

    def action_page_down(self) -> None:
        self._page(1)

    def _page(self, by: int) -> None:
        """A page is what is in sight below the figures, but for a line."""
        self.scroll_relative(y=by * max(1, self.size.height - len(self._head) - 1), animate=False)

    def action_scroll_left(self) -> None:
        self._turn(-1)

    def action_scroll_right(self) -> None:
        self._turn(1)

    def _turn(self, by: int) -> None:
        """Have other columns in sight."""
        first = min(max(0, self._first + by), len(self._sides) - self._fitting)
        if first != self._first:
            self._first = first
            self._arrange()

    # Lines

    @property
    def _width(self) -> int:
        return self.scrollable_content_region.width

    @property
    def _fitting(self) -> int:
        """How many columns there is room for; fewer than two are none."""
        return min(len(self._sides), (self._width + GAP) // (COLUMN + GAP))

    def _arrange(self) -> None:
        if not self._width or not self._sides:
            return
        pen = Pen(look_of(self.app.theme))
        self._head, self._lines = self._columns(pen) if self._fitting > 1 else self._stacked(pen)
        if self._titled:
            self._head[:0] = _cut([(self._title, pen.look.strong)], self._width)
        self.virtual_size = Size(self._width, len(self._head) + len(self._lines))
        self.refresh()

    def _columns(self, pen: Pen) -> tuple[list[Strip], list[Strip]]:
        count = self._fitting
        shown = self._sides[self._first : self._first + count]
        width = (self._width - GAP * (count - 1)) // count
        bar = [Segment(" │ ", pen.look.muted)]
        heads = [
            _cut([(side.name, pen.look.strong), *((line, pen.look.muted) for line in side.figures)], width)
            for side in shown
        ]
        rule = [[Segment("─" * width, pen.look.muted)]] * count
        return (
            [*_rows(heads, width, bar), Strip(_joined(rule, [Segment("─┼─", pen.look.muted)]))],
            _rows([self._drawn(side, pen, width) for side in shown], width, bar),
        )

    def _stacked(self, pen: Pen) -> tuple[list[Strip], list[Strip]]:
        width, look = self._width, pen.look
        head = [
            *_cut([(f"{side.name}: {' · '.join(side.figures[:2])}", look.strong) for side in self._sides], width),
            Strip([Segment("─" * width, look.muted)]),
        ]
        lines: list[Strip] = []
        for side in self._sides:
            rule = f"── {side.name} "
            lines += _cut([(rule.ljust(width, "─"), look.user)], width)
            lines += self._drawn(side, pen, width)
        return head, lines

    def _drawn(self, side: Side, pen: Pen, width: int) -> list[Strip]:
        lines: list[Strip] = []
        for block in side.blocks:
            lines += [*pen.lines(block, width, self._unfolded), Strip([])]
        note = f"… {side.more} more" if side.more else "" if side.blocks else "(nothing of its own)"
        return [*lines, *_cut([(note, pen.look.muted)], width)] if note else lines

    def render_line(self, y: int) -> Strip:
        width, style = self.size.width, self.rich_style
        at = y - len(self._head)
        lines, at = (self._head, y) if at < 0 else (self._lines, at + self.scroll_offset.y)
        strip = lines[at] if at < len(lines) else Strip([])
        return strip.extend_cell_length(width, style).crop(0, width).apply_style(style)


def _cut(lines: Sequence[tuple[str, Style]], width: int) -> list[Strip]:
    strips: list[Strip] = []
    for words, style in lines:
        text = Text(words, no_wrap=True)
        text.truncate(width, overflow="ellipsis")
        strips.append(Strip([Segment(text.plain, style)]))
    return strips


def _rows(columns: Sequence[Sequence[Strip]], width: int, bar: list[Segment]) -> list[Strip]:
    """Columns put together line by line."""
    height = max(map(len, columns))
    blank = [Segment(" " * width)]
    return [
        Strip(
            _joined(
                [
                    list(column[row].crop(0, width).adjust_cell_length(width)) if row < len(column) else blank
                    for column in columns
                ],
                bar,
            )
        )
        for row in range(height)
    ]


def _joined(parts: Sequence[Sequence[Segment]], bar: list[Segment]) -> list[Segment]:
    segments = list(parts[0])
    for part in parts[1:]:
        segments += [*bar, *part]
    return segments


class BesideScreen(ModalScreen[None]):
    """Places side by side on the whole screen."""

    DEFAULT_CSS = """
    BesideScreen { background: $background; }
    BesideScreen > Vertical { padding: 0 2; }
    BesideScreen .title { text-style: bold; color: $primary; height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    BesideScreen .hint { color: $muted; height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """
    AUTO_FOCUS = "Beside"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c,q,enter", "close", priority=True),
        bind("unfold", "unfold"),
    ]

    def __init__(self, sides: Sides) -> None:
        super().__init__()
        self._sides = sides

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Line(self._sides.title, classes="title")
            yield Beside(self._sides)
            others = "← → other columns" if len(self._sides.sides) > 2 else ""
            yield Line(hints(self, "↑ ↓ scroll", others, ("unfold", "unfold"), "esc closes"), classes="hint")

    def action_unfold(self) -> None:
        self.query_one(Beside).unfold()

    def action_close(self) -> None:
        self.dismiss(None)
