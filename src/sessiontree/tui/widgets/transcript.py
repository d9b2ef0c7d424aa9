"""The transcript widget: a scrollable list of blocks that are rendered when they become visible.

It follows new blocks while its end is visible, folds blocks, and supports text selection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.timer import Timer

from sessiontree.core.number_text import pluralize
from sessiontree.tui.keys import bind
from sessiontree.tui.services.terminal import send_to_clipboard
from sessiontree.tui.theme import DARK, build_styles
from sessiontree.tui.widgets.block_rendering import BlockRenderer
from sessiontree.tui.widgets.transcript_blocks import BlockKind, TranscriptBlock

FRAME_SECONDS = 1 / 20
"""Minimum time between two redraws of streamed text."""
LOAD_DISTANCE = 2
"""Earlier entries are requested when the user scrolls this close to the top, in lines."""


class Transcript(ScrollView, can_focus=True):
    DEFAULT_CSS = """
    Transcript {
        height: 1fr;
        background: $background;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
        scrollbar-background: $background;
        scrollbar-color: $panel;
        padding: 0 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("block_up", "step(-1)"),
        bind("block_down", "step(1)"),
        bind("block_fold", "fold"),
        bind("block_copy", "copy"),
        bind("block_first", "go_to(0)"),
        bind("block_last", "go_to(-1)"),
        bind("browse_end", "end"),
    ]

    if TYPE_CHECKING:

        @property
        def app(self) -> App[Any]: ...

    class EarlierRequested(Message):
        """The user scrolled to the top; earlier entries should be loaded."""

    class BrowsingEnded(Message):
        """The user finished browsing the blocks."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.blocks: list[TranscriptBlock] = []
        self.is_unfolded = False
        """Whether foldable blocks are expanded by default."""
        self.earlier_count = 0
        """Number of earlier entries that are not loaded."""
        self._renderer = BlockRenderer(build_styles(DARK))
        self._block_tops: list[int] = []
        self._total_height = 0
        self._selected_index: int | None = None
        """The selected block while browsing."""
        self._earlier_requested = False
        self._is_following = True
        """Whether to keep the end visible when blocks are added."""
        self.streaming: list[TranscriptBlock] = []
        """Blocks of the answer being streamed."""
        self._changed_blocks: set[TranscriptBlock] = set()
        self._frame_timer: Timer | None = None

    # Content

    def show_blocks(self, blocks: Iterable[TranscriptBlock], *, earlier: int = 0) -> None:
        """Replace all blocks."""
        self.blocks, self.earlier_count, self._selected_index, self._earlier_requested = (
            list(blocks),
            earlier,
            None,
            False,
        )
        self._is_following = True
        self._update_layout(0)

    def prepend(self, blocks: Iterable[TranscriptBlock], *, earlier: int) -> None:
        """Insert blocks before all others, without moving the visible ones on the screen."""
        before = self._total_height
        added = list(blocks)
        self.blocks, self.earlier_count, self._earlier_requested = [*added, *self.blocks], earlier, False
        if self._selected_index is not None:
            self._selected_index += len(added)
        self._update_layout(0, follow=False)
        self.scroll_to(y=self.scroll_offset.y + self._total_height - before, animate=False, immediate=True)

    def append(self, *blocks: TranscriptBlock) -> None:
        first = len(self.blocks)
        self.blocks += blocks
        self._update_layout(first)

    def replace_blocks(self, old: list[TranscriptBlock], new: list[TranscriptBlock]) -> None:
        """Replace some blocks with others. If none of the old blocks is shown, append the new ones."""
        present = [block for block in old if block in self.blocks]
        first = self.blocks.index(present[0]) if present else len(self.blocks)
        for before, after in zip(old, new, strict=False):
            after.is_unfolded = before.is_unfolded
        kept = [block for block in self.blocks if block not in present]
        self.blocks = [*kept[:first], *new, *kept[first:]]
        self._update_layout(first)

    def update_block(self, block: TranscriptBlock) -> None:
        """Render a block again after it has changed."""
        block.invalidate()
        if block in self.blocks[-8:]:
            self._update_layout(len(self.blocks) - 1 - self.blocks[::-1].index(block))
        elif block in self.blocks:
            self._update_layout(self.blocks.index(block))

    def unfold_all(self, unfolded: bool) -> None:
        self.is_unfolded = unfolded
        for block in self.blocks:
            block.is_unfolded = None
        self._update_layout(0)

    def set_renderer(self, pen: BlockRenderer) -> None:
        """Render all blocks with another renderer."""
        self._renderer = pen
        self._update_layout(0)

    # Streaming

    def append_delta(self, kind: BlockKind, text: str, name: str | None = None) -> None:
        """Append streamed text to the last block, or start a new block. `name` starts a tool call."""
        last = self.streaming[-1] if self.streaming else None
        if last is None or last.kind != kind or name is not None:
            last = TranscriptBlock(kind, head=f"{name} …" if kind == "tool" else "", state="live")
            self.streaming.append(last)
            self.append(last)
        if kind == "tool":
            last.render_cache["length"] = last.render_cache.get("length", 0) + len(text)
            last.head = f"{last.head.partition(' …')[0]} … {pluralize(last.render_cache['length'], 'character')}"
        else:
            last.text += text
        self.schedule_update(last)

    def end_stream(self, blocks: list[TranscriptBlock]) -> None:
        """Replace the streamed blocks with the blocks of the written entry."""
        self.replace_blocks(self.streaming, blocks)
        self.streaming = []

    def schedule_update(self, block: TranscriptBlock) -> None:
        """Render a block again in the next frame."""
        self._changed_blocks.add(block)
        if self._frame_timer is None:
            self._frame_timer = self.set_timer(FRAME_SECONDS, self._update_changed)

    def _update_changed(self) -> None:
        self._frame_timer = None
        changed, self._changed_blocks = self._changed_blocks, set()
        for block in changed:
            self.update_block(block)

    # Layout

    @property
    def _width(self) -> int:
        return max(self.scrollable_content_region.width, 12)

    def _render_lines(self, index: int) -> list[Strip]:
        return self._renderer.render(self.blocks[index], self._width, self.is_unfolded)

    def _update_layout(self, first: int, *, follow: bool = True) -> None:
        """Compute the positions of all blocks from index `first` on."""
        if not self.size.width:
            return
        del self._block_tops[first:]
        top = 0
        if first:
            top = self._block_tops[first - 1] + len(self._render_lines(first - 1)) + self._count_gap(first - 1)
        for index in range(first, len(self.blocks)):
            self._block_tops.append(top)
            top += len(self._render_lines(index)) + self._count_gap(index)
        self._total_height = top
        self.virtual_size = Size(self._width, top)
        self.refresh()
        if follow and self._is_following and self._selected_index is None:
            self.scroll_to_end()

    def scroll_to_end(self) -> None:
        """Scroll to the end and follow new blocks."""
        self._is_following = True
        self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True, force=True)

    def _count_gap(self, index: int) -> int:
        """Return the number of blank lines after a block: none between two notes."""
        kinds = [block.kind for block in self.blocks[index : index + 2]]
        return 0 if kinds == ["note", "note"] else 1

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._update_layout(0)

    def on_resize(self, event: events.Resize) -> None:
        self._update_layout(0)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._is_following = new_value >= self.max_scroll_y - 1
        if (
            new_value <= LOAD_DISTANCE
            and self.earlier_count
            and not self._earlier_requested
            and self._total_height > self.size.height
        ):
            self._earlier_requested = True
            self.post_message(self.EarlierRequested())

    # Drawing

    def render_line(self, y: int) -> Strip:
        top, width, style = self.scroll_offset.y + y, self.size.width, self.rich_style
        index = bisect_right(self._block_tops, top) - 1
        if index < 0:
            return Strip.blank(width, style)
        lines = self._render_lines(index)
        row = top - self._block_tops[index]
        if row >= len(lines):
            return Strip.blank(width, style)
        strip = lines[row].extend_cell_length(width, style).crop(0, width).apply_style(style)
        if index == self._selected_index and row == 0 and self.has_focus:
            strip = _apply_style(strip, Style(reverse=True))
        selection = self.text_selection
        span = None if selection is None else selection.get_span(top)
        if span is not None:
            style = self.screen.get_component_rich_style("screen--selection")
            strip = _highlight_span(strip, span, Style(reverse=True) if self.app.no_color else style)
        return strip.apply_offsets(0, top)

    @property
    def allow_select(self) -> bool:
        return True

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        lines: list[str] = []
        for index in range(len(self.blocks)):
            lines += [strip.text.rstrip() for strip in self._render_lines(index)]
            lines += [""] * self._count_gap(index)
        return selection.extract("\n".join(lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    # Browsing

    def focus_on_click(self) -> bool:
        """Keep the focus in the editor. A click only selects text or folds a block."""
        return False

    def on_click(self, event: events.Click) -> None:
        index = bisect_right(self._block_tops, self.scroll_offset.y + event.y - self.gutter.top) - 1
        if 0 <= index < len(self.blocks) and not self.screen.selections:
            row = self.scroll_offset.y + event.y - self.gutter.top - self._block_tops[index]
            if row == 0:
                self._toggle_fold(index)

    def _toggle_fold(self, index: int) -> None:
        block = self.blocks[index]
        if block.is_foldable:
            block.is_unfolded = not (self.is_unfolded if block.is_unfolded is None else block.is_unfolded)
            self._update_layout(index, follow=False)

    def on_focus(self) -> None:
        if self.blocks:
            self.action_go_to(-1)

    def on_blur(self) -> None:
        self._selected_index = None
        self.refresh()

    def action_step(self, by: int) -> None:
        at = len(self.blocks) - 1 if self._selected_index is None else self._selected_index
        if self.blocks:
            self.action_go_to(max(0, min(at + by, len(self.blocks) - 1)))

    def action_go_to(self, index: int) -> None:
        if not self.blocks:
            return
        self._selected_index = index % len(self.blocks)
        top = self._block_tops[self._selected_index]
        last = top + len(self._render_lines(self._selected_index))
        seen = self.scroll_offset.y
        if top < seen or last - top >= self.size.height:
            self.scroll_to(y=top, animate=False, immediate=True)
        elif last > seen + self.size.height:
            self.scroll_to(y=last - self.size.height, animate=False, immediate=True)
        self.refresh()

    def action_fold(self) -> None:
        if self._selected_index is not None:
            self._toggle_fold(self._selected_index)

    def action_copy(self) -> None:
        if self._selected_index is not None:
            block = self.blocks[self._selected_index]
            self.notify(send_to_clipboard(self.app, block.text or block.head), timeout=2)

    def action_end(self) -> None:
        self.scroll_to_end()
        self.post_message(self.BrowsingEnded())


def _highlight_span(strip: Strip, span: tuple[int, int], style: Style) -> Strip:
    """Apply a style to a range of characters."""
    text = strip.text
    first, last = span[0], len(text) if span[1] == -1 else span[1]
    start, end = cell_len(text[:first]), cell_len(text[:last])
    if start >= end:
        return strip
    return Strip.join([strip.crop(0, start), _apply_style(strip.crop(start, end), style), strip.crop(end)])


def _apply_style(strip: Strip, style: Style) -> Strip:
    """Apply a style on top of the styles of the strip."""
    return Strip([Segment(text, style if own is None else own + style, control) for text, own, control in strip])
