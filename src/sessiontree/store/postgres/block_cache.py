"""Blocks: bytes of a session that were read, kept to be had again without asking the database. No database here."""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import OrderedDict

CACHE_LIMIT = 32 << 20
"""How many bytes are kept."""
MERGE_LIMIT = 1 << 18
"""What is appended line by line is kept in blocks of about this size."""


class BlockCache:
    """The blocks used last, by where in the session they begin."""

    def __init__(self, limit: int = CACHE_LIMIT) -> None:
        self._limit = limit
        self._size = 0
        self._starts: list[int] = []
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, start: int, size: int) -> bytes | None:
        """These bytes, if one block has them all."""
        with self._lock:
            first = self._find_block_start(start)
            if first is None:
                return None
            at = start - first
            data = self._blocks[first]
            if at + size > len(data):
                return None
            self._blocks.move_to_end(first)
            return data[at : at + size]

    def put(self, start: int, data: bytes) -> None:
        if not data:
            return
        with self._lock:
            before = self._find_block_start(start)
            if (
                before is not None
                and before + len(self._blocks[before]) == start
                and len(self._blocks[before]) < MERGE_LIMIT
            ):
                start, data = before, self._blocks[before] + data
            if start in self._blocks:
                self._drop(start)
            insort(self._starts, start)
            self._blocks[start] = data
            self._size += len(data)
            while self._size > self._limit and len(self._blocks) > 1:
                self._drop(next(iter(self._blocks)))

    def clear(self) -> None:
        with self._lock:
            self._blocks.clear()
            self._starts.clear()
            self._size = 0

    def _find_block_start(self, start: int) -> int | None:
        """Where the last block begins that begins at `start` or before."""
        index = bisect_right(self._starts, start)
        return self._starts[index - 1] if index else None

    def _drop(self, start: int) -> None:
        self._size -= len(self._blocks.pop(start))
        self._starts.remove(start)
