"""Compare branches or entries side by side, from their common ancestor, with statistics at the top.

The sides are columns that scroll together. Without room for two columns, they are stacked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from msgspec import Struct, structs
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

from sessiontree.branch_comparison import BranchStats, Comparison, Diff, format_usage
from sessiontree.core.entries import Entry, EntryId
from sessiontree.core.number_text import pluralize
from sessiontree.core.sanitize import escape_line
from sessiontree.core.tree import Tree
from sessiontree.ops.compare_files import FilesComparison
from sessiontree.slash_commands.formatting import format_id
from sessiontree.tui.keys import bind, format_hints
from sessiontree.tui.theme import get_styles
from sessiontree.tui.widgets.block_rendering import BlockRenderer
from sessiontree.tui.widgets.controls import SafeStatic
from sessiontree.tui.widgets.files_diff import FilesDiff, render_files
from sessiontree.tui.widgets.transcript_blocks import BlockBuilder, EntryRenderer, TranscriptBlock

MAX_ENTRIES = 100
"""Maximum number of entries shown of a side. `sessiontree log` prints all."""
MIN_COLUMN_WIDTH = 44
"""Minimum width of a column."""
GAP = 3
CompareFiles: TypeAlias = Callable[[EntryId | None, EntryId | None], Awaitable[FilesComparison | None]]
"""Compares the files of two places; `None` if no agent changed files."""


class ComparisonSide(Struct, frozen=True, kw_only=True):
    """One of the compared branches or entries."""

    name: str
    stats: tuple[str, ...]
    blocks: tuple[TranscriptBlock, ...]
    hidden_count: int
    """Number of entries that are not shown."""


class ComparisonSides(Struct, frozen=True, kw_only=True):
    title: str
    sides: tuple[ComparisonSide, ...]
    files: tuple[FilesDiff, ...] = ()
    """How the files of the first side differ from the files of each other side."""


async def add_files(sides: ComparisonSides, stats: Sequence[BranchStats], compare: CompareFiles) -> ComparisonSides:
    """Return the sides with the differences of their files, if agents changed any."""
    first, *others = stats
    found = [(other.name, await compare(first.leaf, other.leaf)) for other in others]
    files = (FilesDiff(a=first.name, b=name, found=one) for name, one in found if one is not None)
    return structs.replace(sides, files=tuple(files))


def build_diff_sides(diff: Diff, renderers: Mapping[str, EntryRenderer] | None = None) -> ComparisonSides:
    """Build the sides of a diff of two places."""
    names = [escape_line(stats.name) for stats in diff.stats]
    ancestor = diff.common_ancestor
    place = "the root" if ancestor is None else f"entry {escape_line(format_id(ancestor))}"
    return ComparisonSides(
        title=f"{names[0]} and {names[1]} diverge at {place}",
        sides=tuple(
            _build_side(stats, entries, renderers) for stats, entries in zip(diff.stats, diff.entries, strict=True)
        ),
    )


def build_comparison_sides(
    tree: Tree, comparison: Comparison, renderers: Mapping[str, EntryRenderer] | None = None
) -> ComparisonSides:
    """Build the sides of a comparison of branches, with the leading branch in the title."""
    result = f"winner: {comparison.winner} ({comparison.reason})" if comparison.winner else comparison.reason
    parting = comparison.common_ancestor
    return ComparisonSides(
        title=escape_line(f"{', '.join(stats.name for stats in comparison.branches)} · {result}"),
        sides=tuple(
            _build_side(stats, tree.find_abandoned(stats.leaf, parting), renderers) for stats in comparison.branches
        ),
    )


def _build_side(
    stats: BranchStats, entries: Sequence[Entry], renderers: Mapping[str, EntryRenderer] | None
) -> ComparisonSide:
    return ComparisonSide(
        name=escape_line(stats.name),
        stats=format_stats(stats),
        blocks=tuple(BlockBuilder(renderers).build_all(entries[:MAX_ENTRIES])),
        hidden_count=max(0, len(entries) - MAX_ENTRIES),
    )


def format_stats(stats: BranchStats) -> tuple[str, ...]:
    """Return the statistics of a branch as three lines."""
    counts = (
        pluralize(stats.entries, "entry", "entries"),
        pluralize(stats.tool_calls, "tool call"),
        pluralize(stats.errors, "error"),
    )
    usage = format_usage(stats) if {"tokens", "cost"} & set(stats.measured) else ("usage unknown",)
    return (
        " · ".join(counts),
        " · ".join([*usage, f"{stats.seconds:.1f} s"]),
        escape_line(" · ".join(filter(None, [", ".join(_drop_unknown(stats.models)), _format_files(stats.files)]))),
    )


def _drop_unknown(models: Sequence[str]) -> list[str]:
    return [model for model in models if not model.endswith("/unknown")]


def _format_files(files: Sequence[str]) -> str:
    return f"{'file' if len(files) == 1 else 'files'} {', '.join(files)}" if files else ""


class ComparisonView(ScrollView, can_focus=True):
    """A widget that shows the sides as columns."""

    DEFAULT_CSS = """
    ComparisonView {
        height: 1fr; background: $background; overflow-x: hidden; scrollbar-gutter: stable;
        scrollbar-size-vertical: 1; scrollbar-background: $background; scrollbar-color: $panel;
    }
    """

    def __init__(self, sides: ComparisonSides | None = None, *, titled: bool = False) -> None:
        super().__init__()
        self._columns_shown = () if sides is None else sides.sides
        self._files = () if sides is None else sides.files
        self._title = ""
        self._has_title = titled
        """Whether to show the title above the statistics."""
        self._first_column = 0
        """First visible column."""
        self._unfolded = False
        self._head_lines: list[Strip] = []
        self._body_lines: list[Strip] = []

    if TYPE_CHECKING:

        @property
        def app(self) -> App[Any]: ...

    def show_sides(self, sides: ComparisonSides) -> None:
        self._columns_shown, self._title, self._first_column = sides.sides, sides.title, 0
        self._files = sides.files
        self._rebuild_lines()
        self.scroll_home(animate=False)

    def on_resize(self, event: events.Resize) -> None:
        self._rebuild_lines()

    def toggle_folds(self) -> None:
        """Expand or collapse all blocks."""
        self._unfolded = not self._unfolded
        self._rebuild_lines()

    def action_page_up(self) -> None:
        self._scroll_page(-1)

    def action_page_down(self) -> None:
        self._scroll_page(1)

    def _scroll_page(self, by: int) -> None:
        """Scroll by the visible height below the statistics, minus one line."""
        self.scroll_relative(y=by * max(1, self.size.height - len(self._head_lines) - 1), animate=False)

    def action_scroll_left(self) -> None:
        self._shift_columns(-1)

    def action_scroll_right(self) -> None:
        self._shift_columns(1)

    def _shift_columns(self, by: int) -> None:
        """Show the next or previous columns."""
        first = min(max(0, self._first_column + by), len(self._columns_shown) - self._column_count)
        if first != self._first_column:
            self._first_column = first
            self._rebuild_lines()

    # Lines

    @property
    def _width(self) -> int:
        return self.scrollable_content_region.width

    @property
    def _column_count(self) -> int:
        """Number of columns that fit."""
        return min(len(self._columns_shown), (self._width + GAP) // (MIN_COLUMN_WIDTH + GAP))

    def _rebuild_lines(self) -> None:
        if not self._width or not self._columns_shown:
            return
        renderer = BlockRenderer(get_styles(self.app.theme))
        self._head_lines, self._body_lines = (
            self._render_columns(renderer) if self._column_count > 1 else self._render_stacked(renderer)
        )
        files = [
            line
            for one in self._files
            for line in render_files(
                one, renderer.styles, self._width, unfolded=self._unfolded, columns=self._column_count > 1
            )
        ]
        self._body_lines = [*files, *self._body_lines]
        if self._has_title:
            self._head_lines[:0] = _truncate_lines([(self._title, renderer.styles.strong)], self._width)
        self.virtual_size = Size(self._width, len(self._head_lines) + len(self._body_lines))
        self.refresh()

    def _render_columns(self, renderer: BlockRenderer) -> tuple[list[Strip], list[Strip]]:
        count = self._column_count
        shown = self._columns_shown[self._first_column : self._first_column + count]
        width = (self._width - GAP * (count - 1)) // count
        bar = [Segment(" │ ", renderer.styles.muted)]
        heads = [
            _truncate_lines(
                [(side.name, renderer.styles.strong), *((line, renderer.styles.muted) for line in side.stats)], width
            )
            for side in shown
        ]
        rule = [[Segment("─" * width, renderer.styles.muted)]] * count
        return (
            [*_join_columns(heads, width, bar), Strip(_join_segments(rule, [Segment("─┼─", renderer.styles.muted)]))],
            _join_columns([self._render_side(side, renderer, width) for side in shown], width, bar),
        )

    def _render_stacked(self, renderer: BlockRenderer) -> tuple[list[Strip], list[Strip]]:
        width, look = self._width, renderer.styles
        head = [
            *_truncate_lines(
                [(f"{side.name}: {' · '.join(side.stats[:2])}", look.strong) for side in self._columns_shown], width
            ),
            Strip([Segment("─" * width, look.muted)]),
        ]
        lines: list[Strip] = []
        for side in self._columns_shown:
            rule = f"── {side.name} "
            lines += _truncate_lines([(rule.ljust(width, "─"), look.user)], width)
            lines += self._render_side(side, renderer, width)
        return head, lines

    def _render_side(self, side: ComparisonSide, renderer: BlockRenderer, width: int) -> list[Strip]:
        lines: list[Strip] = []
        for block in side.blocks:
            lines += [*renderer.render(block, width, self._unfolded), Strip([])]
        note = f"… {side.hidden_count} more" if side.hidden_count else "" if side.blocks else "(no entries)"
        return [*lines, *_truncate_lines([(note, renderer.styles.muted)], width)] if note else lines

    def render_line(self, y: int) -> Strip:
        width, style = self.size.width, self.rich_style
        at = y - len(self._head_lines)
        lines, at = (self._head_lines, y) if at < 0 else (self._body_lines, at + self.scroll_offset.y)
        strip = lines[at] if at < len(lines) else Strip([])
        return strip.extend_cell_length(width, style).crop(0, width).apply_style(style)


def _truncate_lines(lines: Sequence[tuple[str, Style]], width: int) -> list[Strip]:
    strips: list[Strip] = []
    for words, style in lines:
        text = Text(words, no_wrap=True)
        text.truncate(width, overflow="ellipsis")
        strips.append(Strip([Segment(text.plain, style)]))
    return strips


def _join_columns(columns: Sequence[Sequence[Strip]], width: int, bar: list[Segment]) -> list[Strip]:
    """Join columns line by line."""
    height = max(map(len, columns))
    blank = [Segment(" " * width)]
    return [
        Strip(
            _join_segments(
                [
                    list(column[row].crop(0, width).adjust_cell_length(width)) if row < len(column) else blank
                    for column in columns
                ],
                bar,
            )
        )
        for row in range(height)
    ]


def _join_segments(parts: Sequence[Sequence[Segment]], bar: list[Segment]) -> list[Segment]:
    segments = list(parts[0])
    for part in parts[1:]:
        segments += [*bar, *part]
    return segments


class ComparisonScreen(ModalScreen[None]):
    """A comparison on the whole screen."""

    DEFAULT_CSS = """
    ComparisonScreen { background: $background; }
    ComparisonScreen > Vertical { padding: 0 2; }
    ComparisonScreen .title {
        text-style: bold; color: $primary; height: 1; text-wrap: nowrap; text-overflow: ellipsis;
    }
    ComparisonScreen .hint { color: $muted; height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """
    AUTO_FOCUS = "ComparisonView"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c,q,enter", "close", priority=True),
        bind("unfold", "unfold"),
    ]

    def __init__(self, sides: ComparisonSides) -> None:
        super().__init__()
        self._sides = sides

    def compose(self) -> ComposeResult:
        with Vertical():
            yield SafeStatic(self._sides.title, classes="title")
            yield ComparisonView(self._sides)
            others = "← → for more columns" if len(self._sides.sides) > 2 else ""
            yield SafeStatic(
                format_hints(self, "↑ ↓ to scroll", others, ("unfold", "to expand"), "Esc to close"), classes="hint"
            )

    def action_unfold(self) -> None:
        self.query_one(ComparisonView).toggle_folds()

    def action_close(self) -> None:
        self.dismiss(None)
