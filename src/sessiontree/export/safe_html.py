"""Renders Markdown and code as safe HTML. Pure.

Markdown is rendered without raw HTML, and its code is highlighted. The result is filtered by an allow-list of elements
and attributes: no scripts, styles, forms, frames or images, and links only to web and mail addresses.
"""

from __future__ import annotations

from functools import cache, lru_cache
from html import escape
from typing import TYPE_CHECKING, Any

from sessiontree.export.simple_markdown import render_simple_markdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token
    from pygments.lexer import Lexer

MAX_CODE_LENGTH = 8_000
"""Longer code is not highlighted, because some lexers take quadratic time."""

TAGS = {
    *("p", "br", "hr", "em", "strong", "s", "blockquote", "ul", "ol", "li", "h1", "h2", "h3", "h4", "h5", "h6"),
    *("table", "thead", "tbody", "tr", "th", "td", "a", "code", "pre", "span"),
}
ATTRIBUTES = {"a": {"href"}, "ol": {"start"}}
CLASSES = {"span": {"k", "s", "c", "m", "f", "b", "gi", "gd", "gu"}}
SCHEMES = {"http", "https", "mailto"}


def markdown_to_html(text: str) -> str:
    """Render Markdown as safe HTML. Invisible characters become symbols, because Markdown can write them as `&rlm;`."""
    simple = render_simple_markdown(text, highlight_code)
    return convert_markdown(text) if simple is None else simple


def convert_markdown(text: str) -> str:
    """Render any text. `markdown_to_html` has a fast path for simple ones."""
    import nh3

    from sessiontree.export.entry_view import make_visible

    clean = nh3.clean(
        _create_markdown().render(text),
        tags=TAGS,
        attributes=ATTRIBUTES,
        allowed_classes=CLASSES,
        url_schemes=SCHEMES,
        url_relative="deny",
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )
    return make_visible(clean)


@cache
def _create_markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True, "highlight": _highlight_fence})
    markdown.enable(["table", "strikethrough"])
    markdown.add_render_rule("image", _render_image_link)
    return markdown


def _highlight_fence(text: str, language: str, attributes: str) -> str:
    return highlight_code(text, language)


def _render_image_link(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Render an image as a link. Opening a page must not send requests."""
    address = str(tokens[index].attrs.get("src", ""))
    words = tokens[index].content or address
    return f'<a href="{escape(address)}">image: {escape(words)}</a>'


def highlight_code(text: str, language: str) -> str:
    """Render code as HTML, highlighted if the language is known."""
    if not language or len(text) > MAX_CODE_LENGTH:
        return escape(text)
    return highlight_diff(text) if language == "diff" else _highlight_tokens(text, language.lower())


def highlight_diff(text: str) -> str:
    """Render a diff with marked lines."""
    return "\n".join(_mark_line(line) for line in text.split("\n"))


def _mark_line(line: str) -> str:
    kind = "gu" if line.startswith(("@@", "+++", "---")) else {"+": "gi", "-": "gd"}.get(line[:1])
    return f'<span class="{kind}">{escape(line)}</span>' if kind else escape(line)


@lru_cache(maxsize=512)
def _highlight_tokens(text: str, language: str) -> str:
    lexer = _find_lexer(language)
    if lexer is None:
        return escape(text)
    pieces: list[tuple[str | None, str]] = []
    for token, value in lexer.get_tokens(text):
        kind = _find_class(token)
        if pieces and pieces[-1][0] == kind:
            pieces[-1] = kind, pieces[-1][1] + value
        else:
            pieces.append((kind, value))
    return "".join(f'<span class="{kind}">{escape(value)}</span>' if kind else escape(value) for kind, value in pieces)


@cache
def _find_lexer(language: str) -> Lexer | None:
    from pygments import lexers
    from pygments.util import ClassNotFound

    find: Any = lexers.get_lexer_by_name  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    try:
        return find(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@cache
def _find_class(token: Any) -> str | None:
    """Return the CSS class of a token, or of its nearest ancestor that has one."""
    from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String

    classes = {
        Keyword: "k",
        Operator.Word: "k",
        Name.Tag: "k",
        String: "s",
        Comment: "c",
        Number: "m",
        Name.Function: "f",
        Name.Class: "f",
        Name.Decorator: "f",
        Name.Attribute: "f",
        Name.Builtin: "b",
        Generic.Inserted: "gi",
        Generic.Deleted: "gd",
        Generic.Subheading: "gu",
    }
    while token is not None:
        if token in classes:
            return classes[token]
        token = token.parent
    return None
