"""Renders one entry of the page as HTML. Pure.

Everything from a session is escaped, or rendered by `safe_html`. White space between elements is left out: it would add
about ten text nodes for each entry. This is code and not a template, because a page can have a million entries.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessiontree.export.entry_view import EntryView, ViewPart
from sessiontree.export.safe_html import highlight_code, highlight_diff, markdown_to_html

FOLDED_LINES, FOLDED_LENGTH = 24, 4_000
"""Longer outputs are folded."""


def render_article(number: int, view: EntryView, *, time: str, label: str | None, branches: Sequence[str]) -> str:
    """Render an entry by its number in the page, as safe HTML."""
    pieces = [
        f'<article class="entry {view.kind}{" failed" if view.failed else ""}" id="e{number}">'
        f"<header><h3>{escape(view.title)}</h3>"
    ]
    if label:
        pieces.append(f'<span class="label">{escape(label)}</span>')
    pieces += [f'<span class="branch">{escape(name)}</span>' for name in branches]
    pieces += [f'<span class="fact">{escape(fact)}</span>' for fact in view.facts]
    pieces.append(f'<time>{escape(time)}</time><a class="link" href="#e{number}" aria-label="Link">#</a></header>')
    pieces += map(_render_part, view.parts)
    pieces.append("</article>")
    return "".join(pieces)


def escape(text: str) -> str:
    """Escape text for an element or a quoted attribute."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("'", "&#39;").replace('"', "&#34;")


def _render_part(part: ViewPart) -> str:
    match part.kind:
        case "prose":
            return f'<div class="prose">{markdown_to_html(part.text)}</div>'
        case "thinking":
            prose = markdown_to_html(part.text)
            return f'<details class="thinking"><summary>Thinking</summary><div class="prose">{prose}</div></details>'
        case "code":
            return _fold(part.text, "code", "Code", f"<code>{highlight_code(part.text, part.language)}</code>")
        case "output":
            return _fold(part.text, "output", "Output", escape(part.text))
        case "error":
            return _fold(part.text, "error", "Error", escape(part.text))
        case "diff":
            return _fold(part.text, "diff", "Changes", highlight_diff(part.text))
        case "data":
            return (
                f'<details class="data"><summary>{escape(part.name)}</summary>'
                f'<div class="block"><pre>{escape(part.text)}</pre></div></details>'
            )
        case "call":
            inner = "".join(map(_render_part, part.inner))
            name = f"<b>{escape(part.name)}</b> {escape(part.text)}"
            return f'<div class="call"><div class="call-name">{name}</div>{inner}</div>'
        case "image":
            return _render_picture(part)


def _render_picture(part: ViewPart) -> str:
    picture = part.picture
    assert picture is not None
    if not picture.kind:
        return f'<p class="missing">{escape(picture.description)}</p>'
    return (
        f'<img src="data:{escape(picture.kind)};base64,{escape(picture.data)}" alt="{escape(picture.description)}" '
        f'width="{picture.width}" height="{picture.height}" loading="lazy" decoding="async">'
    )


def _fold(text: str, kind: str, title: str, html: str) -> str:
    """Wrap a block of lines, folded if it is long."""
    if not is_long(text):
        return f'<div class="block {kind}"><pre>{html}</pre></div>'
    return (
        f'<details class="fold {kind}"><summary>{title}, {text.count(chr(10)) + 1} lines</summary>'
        f'<div class="block"><pre>{html}</pre></div></details>'
    )


def is_long(text: str) -> bool:
    """Whether an output is folded at first."""
    return len(text) > FOLDED_LENGTH or text.count("\n") >= FOLDED_LINES
