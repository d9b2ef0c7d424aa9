"""Blocks: bytes of a session that were read, kept to be had again without asking the database. No database here."""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import OrderedDict

LIMIT = 32 << 20
"""How many bytes are kept."""
JOINED = 1 << 18
"""What is appended line by line is kept in blocks of about this size."""


class Blocks:
    """The blocks used last, by where in the session they begin."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._size = 0
        self._starts: list[int] = []
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, start: int, size: int) -> bytes | None:
        """These bytes, if one block has them all."""
        with self._lock:
            first = self._before(start)
            if first is None:
                return None
            at = start - first
            data = self._kept[first]
            if at + size > len(data):
                return None
            self._kept.move_to_end(first)
            return data[at : at + size]

    def put(self, start: int, data: bytes) -> None:
        if not data:
            return
        with self._lock:
            before = self._before(start)
            if before is not None and before + len(self._kept[before]) == start and len(self._kept[before]) < JOINED:
                start, data = before, self._kept[before] + data
            if start in self._kept:
                self._drop(start)
            insort(self._starts, start)
            self._kept[start] = data
            self._size += len(data)
            while self._size > self._limit and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._starts.clear()
            self._size = 0

    def _before(self, start: int) -> int | None:
        """Where the last block begins that begins at `start` or before."""
        index = bisect_right(self._starts, start)
        return self._starts[index - 1] if index else None

    def _drop(self, start: int) -> None:
        self._size -= len(self._kept.pop(start))
        self._starts.remove(start)
