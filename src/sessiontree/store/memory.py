"""A store in memory: the store protocol in its simplest form. Nothing survives the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from sessiontree.errors import Conflict, NotFound, StoreError
from sessiontree.store.base import Cursor, LineChunk, Store, join_lines


class MemoryStore(Store):
    """A session in memory."""

    is_persistent = False
    is_blocking = False

    def __init__(self, location: str = "memory") -> None:
        self.location = location
        self.backups: list[bytes] = []
        self._data: bytearray | None = None
        self._generation = 0
        self._lock = threading.RLock()

    def create(self, lines: Sequence[bytes]) -> Cursor:
        with self._lock:
            if self._data is not None:
                raise StoreError(self.location, "the session exists already")
            self._data = bytearray(join_lines(lines, self.location))
            return self._build_cursor()

    def read_end(self) -> LineChunk:
        with self._lock:
            return LineChunk(b"", self._build_cursor())

    def read(self, after: Cursor | None = None, *, before: Cursor | None = None, limit: int | None = None) -> LineChunk:
        with self._lock:
            for cursor in (after, before):
                if cursor is not None and cursor.value[0] != self._generation:
                    raise Conflict(self.location, "the session was rewritten")
            data = self._require_data()
            start = 0 if after is None else after.value[1]
            end = len(data) if before is None else before.value[1]
            if limit is not None and start + limit < end:
                end = data.index(b"\n", start + limit) + 1
            return LineChunk(bytes(data[start:end]), Cursor((self._generation, end)))

    def fetch(self, start: int, size: int) -> bytes:
        return bytes(self._require_data()[start : start + size])

    def read_backward(self, before: Cursor, end: int | None = None) -> Iterator[tuple[bytes, int]]:
        data = bytes(self._require_data()[: before.value[1] if end is None else end])
        end = len(data)
        while end > 0:
            start = data.rfind(b"\n", 0, max(0, end - 4096)) + 1
            yield data[start:end], start
            end = start

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        with self._lock:
            self._check_cursor(after)
            self._require_data().extend(join_lines(lines, self.location))
            return self._build_cursor()

    def replace(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        with self._lock:
            self._check_cursor(after)
            self.backups.append(bytes(self._require_data()))
            self._data = bytearray(join_lines(lines, self.location))
            self._generation += 1
            return self._build_cursor()

    def close(self) -> None:
        """Do nothing: the store holds no resources."""

    def _require_data(self) -> bytearray:
        if self._data is None:
            raise NotFound("session", self.location)
        return self._data

    def _build_cursor(self) -> Cursor:
        return Cursor((self._generation, len(self._require_data())))

    def _check_cursor(self, after: Cursor) -> None:
        if after != self._build_cursor():
            raise Conflict(self.location, "another writer appended first")
