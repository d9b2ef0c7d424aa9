"""Markdown: cut into pieces that can be drawn by themselves, and drawn by Rich in the way of the app."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from rich import markdown as rich_markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def split_pieces(words: str) -> list[str]:
    """Markdown cut where a blank line ends a piece for sure: not in a fence, and not before what is set in."""
    found: list[str] = []
    piece: list[str] = []
    fence, blank = "", False
    for line in words.split("\n"):
        marked = FENCE.match(line)
        if not fence and blank and piece and line.strip() and not line[0].isspace():
            found.append("\n".join(piece))
            piece = []
        if marked is not None:
            mark = marked[1]
            if not fence:
                fence = mark
            elif mark.startswith(fence) and not line.strip(" `~"):
                fence = ""
        blank = not line.strip() and not fence
        piece.append(line)
    if any(line.strip() for line in piece):
        found.append("\n".join(piece))
    return found


class _Heading(rich_markdown.Heading):
    """On the left, without a frame."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _CodeBlock(rich_markdown.CodeBlock):
    """On the background of the app, with a rail at its left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        syntax = Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, background_color="default")
        rail = Segment("│ ", console.get_style("markdown.hr"))
        for line in console.render_lines(syntax, options.update(width=max(options.max_width - 2, 8)), pad=False):
            yield from (rail, *map(_strip_background, line), Segment.line())


def _strip_background(segment: Segment) -> Segment:
    """Without a background: that of the app shows through."""
    text, style, control = segment
    if style is None:
        return segment
    return Segment(text, Style(color=style.color, bold=style.bold, italic=style.italic), control)


class Markdown(rich_markdown.Markdown):
    """Without links that a terminal follows, and with HTML shown as it stands. `code` is a style of Pygments."""

    elements: ClassVar[dict[str, Any]] = {
        **rich_markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
    }
    parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")

    def __init__(self, markup: str, code: str) -> None:
        super().__init__("", code_theme=code, hyperlinks=False)
        self.markup = markup
        self.parsed = self.parser.parse(markup.expandtabs(4))
