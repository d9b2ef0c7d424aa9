"""The content of responses: values as JSON, pages of lists, and texts as sanitized HTML."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from sessiontree.server.http_errors import ApiError

T = TypeVar("T")


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON. Invalid Unicode becomes a replacement character; infinity and NaN become null."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, ValueError, OverflowError):
        import json

        plain = json.loads(json.dumps(msgspec.to_builtins(value)), parse_constant=lambda _: None)
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
        return replace_invalid_text(text).encode()
    except RecursionError:
        raise ApiError(409, "the session contains a value that is nested too deeply", code="unreadable") from None


def replace_invalid_text(text: str) -> str:
    """Return a text for a response, with a replacement character for each lone surrogate."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# Pages

LAST_PAGE = "end"
"""The cursor that selects the last page."""


def parse_offset(cursor: str | None) -> int:
    """Return the offset in a cursor. Raises `ApiError`."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 16):
        raise ApiError(400, f"invalid cursor {cursor[:100]!r}")
    return int(cursor)


def split_cursor(cursor: str) -> tuple[str, int]:
    """Split a cursor into the version of the list and the offset. Raises `ApiError`."""
    place, dot, count = cursor.rpartition(".")
    if not dot:
        raise ApiError(400, f"invalid cursor {cursor[:100]!r}")
    return place, parse_offset(count)


def get_page(items: Sequence[T], limit: int, cursor: str | None) -> tuple[Sequence[T], str | None]:
    """Return a page of a list that only grows at its end, and the cursor of the next page. Raises `ApiError`."""
    start = parse_offset(cursor)
    end = start + limit
    return items[start:end], str(end) if end < len(items) else None


# HTML

MAX_RENDERED_LENGTH = 100_000
"""Longer texts are not rendered and are shown as plain text."""
MAX_CACHED_CHARACTERS = 4 << 20
"""Maximum characters of texts and HTML in the cache of one session."""


class HtmlCache:
    """The rendered texts of a session, by text. For any thread.

    Rendering may take seconds, so do it without the lock of the session.
    """

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
        rendered = render_html(text)
        with self._lock:
            if text not in self._html_by_text:
                self._html_by_text[text] = rendered
                self._size += len(text) + len(rendered)
            while self._size > MAX_CACHED_CHARACTERS:
                self._size -= sum(map(len, self._html_by_text.popitem(last=False)))
        return rendered


def render_html(text: str) -> str:
    """Render Markdown as sanitized HTML."""
    from sessiontree.export.entry_view import make_visible
    from sessiontree.export.safe_html import markdown_to_html

    return markdown_to_html(make_visible(text))
