"""Rendering: what was said as clean HTML. It may take seconds, so it is done while no session is held.

What a text looks like follows from the text alone: it is kept by it, within bounds, for whoever asks next.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from sessiontree.server.http_errors import ApiError


def encode_json(value: Any) -> bytes:
    """A value as JSON. What of a text is no Unicode is a sign in its place; a number that JSON cannot name is null."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, ValueError, OverflowError):
        import json

        plain = json.loads(json.dumps(msgspec.to_builtins(value)), parse_constant=lambda _: None)
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    except RecursionError:
        raise ApiError(409, "the session holds something that is nested too deeply", code="unreadable") from None


MAX_RENDERED_LENGTH = 100_000
"""Characters of a text that are made HTML; a longer one is shown plain."""
MAX_CACHED_CHARACTERS = 4 << 20
"""Characters of texts and their HTML that are kept of one session."""


class HtmlCache:
    """Texts of a session as HTML. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._html_by_text: OrderedDict[str, str] = OrderedDict()
        self._size = 0

    def render(self, text: str) -> str | UnsetType:
        """A text as clean HTML, unless it is too long for that."""
        if len(text) > MAX_RENDERED_LENGTH:
            return UNSET
        with self._lock:
            known = self._html_by_text.get(text)
            if known is not None:
                self._html_by_text.move_to_end(text)
                return known
        made = _render_html(text)
        with self._lock:
            if text not in self._html_by_text:
                self._html_by_text[text] = made
                self._size += len(text) + len(made)
            while self._size > MAX_CACHED_CHARACTERS:
                self._size -= sum(map(len, self._html_by_text.popitem(last=False)))
        return made


def _render_html(text: str) -> str:
    from sessiontree.export.entry_view import make_visible
    from sessiontree.export.safe_html import markdown_to_html

    return markdown_to_html(make_visible(text))
