"""Split Markdown into independent pieces and render it with Rich in the style of the app."""

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
    """Split Markdown at blank lines outside of code fences and before unindented text."""
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
    """Left-aligned, without a frame."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _CodeBlock(rich_markdown.CodeBlock):
    """On the background of the app, with a bar on the left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        syntax = Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, background_color="default")
        rail = Segment("│ ", console.get_style("markdown.hr"))
        for line in console.render_lines(syntax, options.update(width=max(options.max_width - 2, 8)), pad=False):
            yield from (rail, *map(_strip_background, line), Segment.line())


def _strip_background(segment: Segment) -> Segment:
    """Remove the background, so the background of the app is visible."""
    text, style, control = segment
    if style is None:
        return segment
    return Segment(text, Style(color=style.color, bold=style.bold, italic=style.italic), control)


class Markdown(rich_markdown.Markdown):
    """Markdown without clickable links and with HTML shown as text. `code` is a Pygments style."""

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
