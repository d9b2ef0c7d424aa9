"""Prose: text that was said, as HTML that cannot do anything. Pure.

Markdown is rendered without raw HTML, code in it is highlighted, and the result goes through an allow-list of elements
and attributes: no scripts, styles, forms, frames or pictures, and links only to the web and to mail.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token
    from pygments.lexer import Lexer

LONGEST_CODE = 8_000
"""Characters of code that are highlighted; more is shown plain: some lexers take time with the square of it."""

TAGS = {
    *("p", "br", "hr", "em", "strong", "s", "blockquote", "ul", "ol", "li", "h1", "h2", "h3", "h4", "h5", "h6"),
    *("table", "thead", "tbody", "tr", "th", "td", "a", "code", "pre", "span"),
}
ATTRIBUTES = {"a": {"href"}, "ol": {"start"}}
CLASSES = {"span": {"k", "s", "c", "m", "f", "b", "gi", "gd", "gu"}}
SCHEMES = {"http", "https", "mailto"}


_PLAIN = re.compile(r"[A-Za-z](?:[A-Za-z0-9 ,.;:?'/()%+=-]*[A-Za-z0-9,.;:?'/()%+=-])?")
"""A line that means the same with Markdown as without."""


def prose(text: str) -> str:
    """Markdown as clean HTML, with signs for characters that act unseen: Markdown can spell them as `&rlm;`."""
    return f"<p>{text}</p>\n" if _PLAIN.fullmatch(text) else render_prose(text)


def render_prose(text: str) -> str:
    """What `prose` gives, for text of any kind."""
    import nh3

    from sessiontree.export.view import visible

    clean = nh3.clean(
        _markdown().render(text),
        tags=TAGS,
        attributes=ATTRIBUTES,
        allowed_classes=CLASSES,
        url_schemes=SCHEMES,
        url_relative="deny",
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )
    return visible(clean)


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True, "highlight": _highlight})
    markdown.enable(["table", "strikethrough"])
    markdown.add_render_rule("image", _no_image)
    return markdown


def _highlight(text: str, language: str, attributes: str) -> str:
    return code(text, language)


def _no_image(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """A picture from elsewhere is a link: looking at a page asks nobody for anything."""
    address = str(tokens[index].attrs.get("src", ""))
    words = tokens[index].content or address
    return f'<a href="{escape(address)}">image: {escape(words)}</a>'


def code(text: str, language: str) -> str:
    """Code as HTML, highlighted where the language is known."""
    if not language or len(text) > LONGEST_CODE:
        return escape(text)
    return diff(text) if language == "diff" else _highlighted(text, language.lower())


def diff(text: str) -> str:
    """The lines of a difference, added and removed ones marked."""
    return "\n".join(_marked(line) for line in text.split("\n"))


def _marked(line: str) -> str:
    kind = "gu" if line.startswith(("@@", "+++", "---")) else {"+": "gi", "-": "gd"}.get(line[:1])
    return f'<span class="{kind}">{escape(line)}</span>' if kind else escape(line)


@lru_cache(maxsize=512)
def _highlighted(text: str, language: str) -> str:
    lexer = _lexer(language)
    if lexer is None:
        return escape(text)
    pieces: list[tuple[str | None, str]] = []
    for token, value in lexer.get_tokens(text):
        kind = _class_of(token)
        if pieces and pieces[-1][0] == kind:
            pieces[-1] = kind, pieces[-1][1] + value
        else:
            pieces.append((kind, value))
    return "".join(f'<span class="{kind}">{escape(value)}</span>' if kind else escape(value) for kind, value in pieces)


@cache
def _lexer(language: str) -> Lexer | None:
    from pygments import lexers
    from pygments.util import ClassNotFound

    find: Any = lexers.get_lexer_by_name  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    try:
        return find(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@cache
def _class_of(token: Any) -> str | None:
    """The class of a token, or of the nearest kind above that has one."""
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
