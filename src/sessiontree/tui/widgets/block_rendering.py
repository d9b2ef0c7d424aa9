"""Render transcript blocks as lines of a given width, escaped for the terminal.

Markdown is rendered piece by piece and unchanged pieces are cached, so the cost of a streamed answer does not grow with
its length.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from sessiontree.core.number_text import pluralize
from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.tui.theme import TranscriptStyles
from sessiontree.tui.widgets.transcript_blocks import TranscriptBlock

FOLDED_LINES = 5
"""Lines of tool output shown when a block is collapsed."""
FOLDED_DIFF_LINES = 16
GUTTER = 2
TAB_WIDTH = 4
NO_NEWLINE = "\\ No newline at end of file"
MAX_LINES = 4000
"""Maximum number of lines of an expanded block. `/export` writes all of them."""


class BlockRenderer:
    """Renders blocks in one set of styles."""

    def __init__(self, styles: TranscriptStyles, *, unfold_hint: str = "") -> None:
        """`unfold_hint` names the key that expands a block."""
        self.styles = styles
        self._unfold_hint = unfold_hint
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            theme=styles.markdown,
            width=80,
            legacy_windows=False,
            no_color=False,
        )

    def render(self, block: TranscriptBlock, width: int, unfolded: bool) -> list[Strip]:
        """Render a block as lines of at most `width` cells."""
        is_open = (unfolded if block.is_unfolded is None else block.is_unfolded) or not block.is_foldable
        key = (width, is_open, id(self))
        cached = block.render_cache.get("lines")
        if cached is None or cached[0] != key:
            cached = block.render_cache["lines"] = (key, self._render_block(block, max(width, 12), is_open))
        return cached[1]

    def _render_block(self, block: TranscriptBlock, width: int, is_open: bool) -> list[Strip]:
        styles, inner = self.styles, width - GUTTER
        match block.kind:
            case "user":
                lines = self._render_plain(block.text, inner - 1)
                bar = Segment("▌ ", styles.user + styles.panel)
                return [
                    _build_row([bar, *_apply_background(line, styles.panel)], width, styles.panel) for line in lines
                ]
            case "answer":
                return _indent(self._render_markdown(block, inner))
            case "thought":
                return self._render_thought(
                    block, "✻", styles.muted, is_open, "thinking", styles.muted + Style(italic=True), inner
                )
            case "tool":
                return self._render_tool(block, is_open, inner)
            case "summary":
                head = [
                    _build_row([Segment("◆ ", styles.warning), Segment(escape_line(block.head), styles.strong)], width)
                ]
                body = self._render_markdown(block, inner) if is_open else self._render_excerpt(block.text, inner)
                return [*_crop_lines(head, width), *_indent(body)]
            case "custom":
                head = _build_row(
                    [Segment("▪ ", styles.warning), Segment(escape_line(block.head), styles.warning)], width
                )
                body = (
                    self._render_markdown(block, inner)
                    if block.component is None
                    else self._render_component(block, inner)
                )
                return [*_crop_lines([head], width), *_indent(body)]
            case "note":
                return _indent_with_mark(
                    self._render_plain(block.text, inner, styles.muted), Segment("· ", styles.muted)
                )
            case "output":
                return _indent(self._render_table(block.text, inner, styles.muted))
            case "error":
                return _indent_with_mark(
                    self._render_plain(block.text, inner, styles.error), Segment("✗ ", styles.error)
                )

    # Parts

    def _render_tool(self, block: TranscriptBlock, is_open: bool, width: int) -> list[Strip]:
        styles = self.styles
        mark = {"live": styles.warning, "done": styles.success, "failed": styles.error}[block.state]
        sign = {"live": "○ ", "done": "● ", "failed": "✗ "}[block.state]
        head = self._render_plain(block.head, width, styles.strong)
        if not is_open and len(head) > 2:
            head = [*head[:1], _build_row([Segment("…", styles.muted)], width)]
        return [*_indent_with_mark(head, Segment(sign, mark)), *_indent(self._render_output(block, is_open, width))]

    def _render_output(self, block: TranscriptBlock, is_open: bool, width: int) -> list[Strip]:
        output = block.text.rstrip("\n").split("\n") if block.text.strip() else []
        limit = MAX_LINES if is_open else FOLDED_DIFF_LINES if block.is_diff else FOLDED_LINES
        hidden = len(output) - limit
        shown = output if hidden <= 1 else output[-limit:] if block.shows_tail else output[:limit]
        style = self.styles.error if block.state == "failed" else self.styles.muted
        lines = (
            self._render_diff(shown, width)
            if block.is_diff
            else self._render_file(shown, width)
            if shown and block.text == block.file_content
            else self._render_plain("\n".join(shown), width, style)
            if shown
            else []
        )
        if not is_open:
            lines = _limit_lines(lines, limit + 1, block.shows_tail)
        if hidden <= 1:
            return lines
        note = ", ".join(filter(None, [f"… {pluralize(hidden, 'more line')}", "" if is_open else self._unfold_hint]))
        more = _build_row([Segment(note, self.styles.muted + Style(italic=True))], width).crop(0, width)
        return [more, *lines] if block.shows_tail else [*lines, more]

    def _render_diff(self, lines: Sequence[str], width: int) -> list[Strip]:
        """Render a unified diff with line numbers. Text in another format is left as it is."""
        styles = self.styles
        sign_styles = {"+": styles.success, "-": styles.error}
        numbered = list(_number_diff_lines(lines))
        digits = max((len(number) for number, _, _ in numbered), default=0)
        lead = digits + 1 if digits and digits + 12 < width else 0
        strips: list[Strip] = []
        for number, sign, words in numbered:
            style = sign_styles.get(sign, styles.muted)
            line = f"{sign} {words}" if number else words
            first, *others = self._render_plain(line, width - lead, style)
            strips.append(Strip([Segment(f"{number:>{digits}} " if lead else "", styles.muted), *first]))
            strips += [Strip([Segment(" " * lead), *other]) for other in others]
        return strips

    def _render_file(self, lines: Sequence[str], width: int) -> list[Strip]:
        """Render the content of a written file with line numbers."""
        digits = len(str(len(lines)))
        strips: list[Strip] = []
        for number, line in enumerate(lines, 1):
            first, *others = self._render_plain(line, max(width - digits - 1, 1), self.styles.success)
            strips.append(Strip([Segment(f"{number:>{digits}} ", self.styles.muted), *first]))
            strips += [Strip([Segment(" " * (digits + 1)), *other]) for other in others]
        return strips

    def _render_thought(
        self, block: TranscriptBlock, sign: str, mark: Style, is_open: bool, head: str, style: Style, width: int
    ) -> list[Strip]:
        if is_open:
            return _indent_with_mark(self._render_plain(block.text.strip(), width, style), Segment(f"{sign} ", mark))
        live = block.state == "live"
        words = " ".join(escape_lines(block.text[-400:] if live else block.text[:400]).split())
        text = Text(f"{head}{' … ' if live else ': '}{words}", style=style, no_wrap=True)
        if live and text.cell_len > width:
            text = Text(f"{head} … {_take_end(words, width - len(head) - 3)}", style=style, no_wrap=True)
        text.truncate(width, overflow="ellipsis")
        return [_build_row([Segment(f"{sign} ", mark), *self._build_segments(text)], width + GUTTER)]

    def _render_excerpt(self, words: str, width: int) -> list[Strip]:
        """Render the start of a collapsed text."""
        text = Text(" ".join(escape_lines(words[: width * 4]).split()), style=self.styles.muted, no_wrap=True)
        text.truncate(width, overflow="ellipsis")
        return [Strip(list(self._build_segments(text)))]

    def _render_plain(self, words: str, width: int, style: Style | None = None) -> list[Strip]:
        strips: list[Strip] = []
        for line in escape_lines(words).split("\n"):
            text = Text(line.expandtabs(TAB_WIDTH), style=style or "", end="")
            for piece in text.wrap(self._console, width, overflow="fold", tab_size=TAB_WIDTH) or [text]:
                strips.append(Strip(list(self._build_segments(piece))))
        return strips

    def _render_table(self, words: str, width: int, style: Style) -> list[Strip]:
        """Render lines of a table. The last column wraps below itself."""
        strips: list[Strip] = []
        for line in escape_lines(words).expandtabs(TAB_WIDTH).split("\n"):
            before_last = re.match(r".*\S\s{2,}(?=\S)", line[: width * 2 // 3]) if cell_len(line) > width else None
            lead = "" if before_last is None else before_last[0]
            first, *others = self._render_plain(line[len(lead) :], width - cell_len(lead), style)
            strips.append(Strip([Segment(lead, style), *first]))
            strips += [Strip([Segment(" " * cell_len(lead)), *other]) for other in others]
        return strips

    def _build_segments(self, text: Text) -> Iterator[Segment]:
        styled = Segment.apply_style(text.render(self._console), self._console.get_style(text.style))
        return (segment for segment in styled if segment.text)

    def _render_component(self, block: TranscriptBlock, width: int) -> list[Strip]:
        """Render the component of an extension. If Rich fails, show it as text."""
        try:
            return self._render_rich(block.component, width)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - runs code of the extension
            text = block.text or repr(block.component)
            block.component = None
            block.text = f"{text}\n\n(cannot draw the result of the renderer: {type(error).__name__}: {error})"
            return self._render_markdown(block, width)

    # Markdown

    def _render_markdown(self, block: TranscriptBlock, width: int) -> list[Strip]:
        """Render Markdown, reusing unchanged pieces from the cache."""
        key = (width, id(self))
        cached: list[tuple[str, list[Strip]]] = block.render_cache.get("pieces", [])
        if block.render_cache.get("pieces_key") != key:
            cached = []
        now: list[tuple[str, list[Strip]]] = []
        from sessiontree.tui.widgets.markdown import split_pieces

        for index, piece in enumerate(split_pieces(block.text)):
            if index < len(cached) and cached[index][0] == piece:
                now.append(cached[index])
            else:
                now.append((piece, self._render_piece(piece, width)))
        block.render_cache["pieces"], block.render_cache["pieces_key"] = now, key
        lines: list[Strip] = []
        for _, strips in now:
            lines += [Strip([]), *strips] if lines else strips
        return lines

    def _render_rich(self, component: Any, width: int) -> list[Strip]:
        """Render a Rich renderable without control sequences."""
        options = self._console.options.update(width=width, highlight=False)
        lines = self._console.render_lines(component, options, pad=False)
        return [
            Strip([Segment(escape_line(text), style) for text, style, control in line if text and not control])
            for line in lines
        ]

    def _render_piece(self, words: str, width: int) -> list[Strip]:
        from sessiontree.tui.widgets.markdown import Markdown  # slow import, not needed for the first frame

        strips = self._render_rich(Markdown(escape_lines(words), self.styles.code), width)
        while strips and not strips[-1].text.strip():
            strips.pop()
        while strips and not strips[0].text.strip():
            strips.pop(0)
        return strips


# Lines


HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@.*")


def _number_diff_lines(lines: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield line number, sign and text of each line of a diff. A removed line has its old number."""
    old = new = old_left = new_left = 0
    has_hunk = False
    for line in lines:
        sign, words = line[:1], line[1:]
        if sign == "-" and old_left:
            yield str(old), sign, words
            old, old_left = old + 1, old_left - 1
        elif sign == "+" and new_left:
            yield str(new), sign, words
            new, new_left = new + 1, new_left - 1
        elif sign in ("", " ") and old_left and new_left:
            yield str(new), " ", words
            old, new, old_left, new_left = old + 1, new + 1, old_left - 1, new_left - 1
        elif (hunk := HUNK.fullmatch(line)) is not None:
            if has_hunk:
                yield "", "", "⋯"
            has_hunk = True
            old, old_left, new, new_left = (1 if part is None else int(part) for part in hunk.groups())
        elif line == NO_NEWLINE:
            yield "", "", "  (no newline at end of file)"
        elif not line.startswith(("--- ", "+++ ")):
            yield "", sign, line


def _build_row(segments: Iterable[Segment], width: int, style: Style | None = None) -> Strip:
    strip = Strip(list(segments))
    return strip if style is None else strip.extend_cell_length(width, style)


def _apply_background(line: Strip, style: Style) -> list[Segment]:
    return [Segment(segment.text, style + segment.style if segment.style else style) for segment in line]


def _indent(lines: Iterable[Strip]) -> list[Strip]:
    return [Strip([Segment(" " * GUTTER), *line]) for line in lines]


def _indent_with_mark(lines: list[Strip], mark: Segment) -> list[Strip]:
    """Indent lines and put a mark before the first."""
    return [Strip([mark, *line]) for line in lines[:1]] + _indent(lines[1:])


def _crop_lines(lines: Iterable[Strip], width: int) -> list[Strip]:
    return [line.crop(0, width) for line in lines]


def _limit_lines(lines: list[Strip], limit: int, tail: bool) -> list[Strip]:
    """Limit the lines of a collapsed block. Wrapping can turn one long line into many."""
    return lines if len(lines) <= 2 * limit else lines[-limit:] if tail else lines[:limit]


def _take_end(words: str, width: int) -> str:
    return words[-max(width - 1, 1) :]
