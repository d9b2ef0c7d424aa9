"""Renders simple Markdown, many times faster than the full renderer. Pure.

Simple Markdown has paragraphs, headings, flat lists, fenced code, code spans and bold words. `render_simple_markdown`
returns what `safe_html.convert_markdown` would return, or `None` if it is not sure. Its result holds only elements that
are written here, and everything else is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sessiontree.core.sanitize import UNSAFE_IN_LINES

_UNUSUAL = re.compile(f"[{UNSAFE_IN_LINES}\t\xa0]")
"""Characters that Markdown, the sanitizer or both treat in some other way."""
_BEGIN = re.compile(r"(?![-+=#>|~*_\s]|\d{1,9}[.)](?:\s|\Z)|```)")
"""The start of a line that continues or starts a paragraph."""
_HEADING = re.compile(r"(#{1,6}) (?=[^\s#])(.*[^\s#])")
_ITEM = {
    "ul": re.compile(r"- (?=\S)(.+)"),
    "ol": re.compile(r"\d{1,9}\. (?=\S)(.+)"),
}
_FENCE = re.compile(r"```([A-Za-z0-9]*)")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_BOLD = re.compile(r"(?<![^\s(])\*\*([^\W_](?:[^*]*[^\W_])?)\*\*(?![\w*])")
_MARKUP = re.compile(r"[\\`*_<&~|](?<![A-Za-z0-9]_(?=[A-Za-z0-9]))")
"""A character that can be markup. An underscore inside a word is not."""


BREAK = "<br>\n"


class _NotSimple(Exception):
    """The text may mean something else to the full renderer."""


def render_simple_markdown(text: str, highlight: Callable[[str, str], str]) -> str | None:
    """Return the HTML of a text, or `None` if it needs the full renderer. `highlight` renders code in a language."""
    if not text.replace("\n", "").isprintable() and _UNUSUAL.search(text):
        return None
    try:
        return "".join(_render_blocks(text.split("\n"), highlight))
    except _NotSimple:
        return None


def _render_blocks(lines: list[str], highlight: Callable[[str, str], str]) -> Iterator[str]:
    at, end = 0, len(lines)
    while at < end:
        line = lines[at]
        if not line.strip(" "):
            at += 1
        elif (kind := _find_list(line)) is not None:
            html, at = _render_list(lines, at, kind)
            yield html
        elif line[0] == "#" and (heading := _HEADING.fullmatch(line)) is not None:
            level = len(heading[1])
            yield f"<h{level}>{_render_inline(heading[2])}</h{level}>\n"
            at += 1
        elif line[0] == "`" and (fence := _FENCE.fullmatch(line)) is not None:
            html, at = _render_fence(lines, at, fence[1], highlight)
            yield html
        else:
            start = at
            while at < end and _is_text(lines[at]):
                at += 1
            if at == start or (at < end and lines[at].strip(" ") and not _ends_paragraph(lines[at])):
                raise _NotSimple
            yield f"<p>{_render_paragraph([line.strip(' ') for line in lines[start:at]])}</p>\n"


def _render_list(lines: list[str], at: int, kind: str) -> tuple[str, int]:
    """Return the HTML of the list that starts at a line, and the line after it."""
    if kind == "ol" and not lines[at].startswith("1. "):
        raise _NotSimple
    items: list[str] = []
    is_loose = False
    while at < len(lines) and (found := _ITEM[kind].fullmatch(lines[at])) is not None:
        if not _BEGIN.match(found[1]):
            raise _NotSimple
        items.append(_render_inline(found[1].rstrip(" ")))
        after = next((below for below in range(at + 1, len(lines)) if lines[below].strip(" ")), len(lines))
        if (
            after < len(lines)
            and (lines[after].startswith(" ") or after == at + 1)
            and _find_list(lines[after]) != kind
        ):
            raise _NotSimple  # it may belong to the item
        if after < len(lines) and _find_list(lines[after]) == kind:
            is_loose = is_loose or after > at + 1
        at = after
    before, behind = ("\n<p>", "</p>\n") if is_loose else ("", "")
    return f"<{kind}>\n{''.join(f'<li>{before}{item}{behind}</li>{chr(10)}' for item in items)}</{kind}>\n", at


def _render_fence(lines: list[str], at: int, language: str, highlight: Callable[[str, str], str]) -> tuple[str, int]:
    """Return the HTML of the code that starts at a line, and the line after it."""
    close = next((below for below in range(at + 1, len(lines)) if lines[below].lstrip().startswith("```")), None)
    if close is None or lines[close] != "```":
        raise _NotSimple
    code = "".join(f"{row}\n" for row in lines[at + 1 : close])
    html = highlight(code, language) if language else _escape(code)
    html = html.replace("&quot;", '"').replace("&#x27;", "'")  # as the sanitizer writes them
    return f"<pre><code>{html}</code></pre>\n", close + 1


def _render_paragraph(lines: list[str]) -> str:
    """Return the HTML of lines. A single backtick is text only in the last line: elsewhere, its code may continue."""
    last = len(lines) - 1
    return BREAK.join(_render_inline(line, is_last=number == last) for number, line in enumerate(lines))


def _is_text(line: str) -> bool:
    """Return whether a line is text of a paragraph, whatever is before it."""
    if line[:1].isalpha():
        return True
    words = line.lstrip(" ")
    return bool(words) and len(line) - len(words) < 4 and _BEGIN.match(words) is not None


def _find_list(line: str) -> str | None:
    kind = "ul" if line[:1] == "-" else "ol" if line[:1].isdigit() else None
    return kind if kind is not None and _ITEM[kind].fullmatch(line) else None


def _ends_paragraph(line: str) -> bool:
    """Return whether a line starts a new block even without a blank line before it."""
    return bool(
        _HEADING.fullmatch(line) or _FENCE.fullmatch(line) or line.startswith("1. ") or _find_list(line) == "ul"
    )


def _render_inline(line: str, is_last: bool = True) -> str:
    if line.strip() != line:
        raise _NotSimple
    if "`" not in line:
        return _render_words(line)
    parts = _CODE.split(line)
    if is_last and parts[-1].count("`") == 1 and "``" not in line:
        before, after = parts[-1].split("`")
        if before[-1:] == "*" or after[:1] == "*":
            raise _NotSimple
        parts[-1] = f"{_render_words(before)}`{_render_words(after)}"
    else:
        parts[-1] = _render_words(parts[-1])
    for at in range(0, len(parts) - 1, 2):
        parts[at] = _render_words(parts[at])
    for at in range(1, len(parts), 2):
        parts[at] = f"<code>{_escape(_trim_code(parts[at]))}</code>"
    return "".join(parts)


def _render_words(text: str) -> str:
    if "]" in text and ("](" in text or "]:" in text):
        raise _NotSimple
    pieces = _BOLD.split(text) if "**" in text else [text]
    for at, piece in enumerate(pieces):
        if _MARKUP.search(piece):
            raise _NotSimple
        words = piece.replace(">", "&gt;")
        pieces[at] = f"<strong>{words}</strong>" if at % 2 else words
    return "".join(pieces)


def _trim_code(code: str) -> str:
    return code[1:-1] if code.startswith(" ") and code.endswith(" ") and code.strip() else code


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
