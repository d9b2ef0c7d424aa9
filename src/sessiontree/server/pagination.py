"""Page sizes and cursors of lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from sessiontree.server.http_errors import ApiError
from sessiontree.server.schemas import MAX_PAGE_SIZE

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)]
Cursor = Annotated[str | None, Query(max_length=600)]

T = TypeVar("T")

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
