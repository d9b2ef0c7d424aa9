"""Session content as JSON and as sanitized HTML.

Rendering HTML may take seconds, so do it without the lock of the session. The HTML is cached by its text.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from sessiontree.server.http_errors import ApiError


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON. Invalid Unicode becomes a replacement character; infinity and NaN become null."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, ValueError, OverflowError):
        import json

        plain = json.loads(json.dumps(msgspec.to_builtins(value)), parse_constant=lambda _: None)
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    except RecursionError:
        raise ApiError(409, "the session contains a value that is nested too deeply", code="unreadable") from None


MAX_RENDERED_LENGTH = 100_000
"""Longer texts are not rendered and are shown as plain text."""
MAX_CACHED_CHARACTERS = 4 << 20
"""Maximum characters of texts and HTML in the cache of one session."""


class HtmlCache:
    """The rendered texts of a session. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._html_by_text: OrderedDict[str, str] = OrderedDict()
        self._size = 0

    def render(self, text: str) -> str | UnsetType:
        """Return a text as sanitized HTML, or `UNSET` if it is too long."""
        if len(text) > MAX_RENDERED_LENGTH:
            return UNSET
        with self._lock:
            known = self._html_by_text.get(text)
            if known is not None:
                self._html_by_text.move_to_end(text)
                return known
        rendered = _render_html(text)
        with self._lock:
            if text not in self._html_by_text:
                self._html_by_text[text] = rendered
                self._size += len(text) + len(rendered)
            while self._size > MAX_CACHED_CHARACTERS:
                self._size -= sum(map(len, self._html_by_text.popitem(last=False)))
        return rendered


def _render_html(text: str) -> str:
    from sessiontree.export.entry_view import make_visible
    from sessiontree.export.safe_html import markdown_to_html

    return markdown_to_html(make_visible(text))
