"""A cache of the bytes of a session that were read from the database."""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import OrderedDict

CACHE_LIMIT = 32 << 20
"""Bytes kept in one cache."""
MERGE_LIMIT = 1 << 18
"""Lines that are appended one by one are merged into blocks of about this size, in bytes."""


class BlockCache:
    """The most recently used blocks, by their position in the session."""

    def __init__(self, limit: int = CACHE_LIMIT) -> None:
        self._limit = limit
        self._size = 0
        self._starts: list[int] = []
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, start: int, size: int) -> bytes | None:
        """Return these bytes if one block contains them all."""
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
        """Return the start of the last block that starts at `start` or before."""
        index = bisect_right(self._starts, start)
        return self._starts[index - 1] if index else None

    def _drop(self, start: int) -> None:
        self._size -= len(self._blocks.pop(start))
        self._starts.remove(start)
