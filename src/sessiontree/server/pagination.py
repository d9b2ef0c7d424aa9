"""Paging: how much of a list is asked for, and where it goes on."""

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
"""The cursor of the last page, where there is one."""


def parse_offset(cursor: str | None) -> int:
    """A cursor that is a count. Raises `Refused`."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 16):
        raise ApiError(400, f"{cursor[:100]!r} is no cursor of this list")
    return int(cursor)


def split_cursor(cursor: str) -> tuple[str, int]:
    """What a cursor goes on in, and how far it has come. Raises `Refused`."""
    place, dot, count = cursor.rpartition(".")
    if not dot:
        raise ApiError(400, f"{cursor[:100]!r} is no cursor of this list")
    return place, parse_offset(count)


def get_page(items: Sequence[T], limit: int, cursor: str | None) -> tuple[Sequence[T], str | None]:
    """The page of a list that only grows at its end, and the cursor of the one behind it. Raises `Refused`."""
    start = parse_offset(cursor)
    end = start + limit
    return items[start:end], str(end) if end < len(items) else None
