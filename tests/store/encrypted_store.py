"""A store that encrypts every line: proof that all session data is read and written through the store.

The cipher is a toy, a byte substitution that keeps newlines and blanks, since the file format is made of lines.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from sessiontree.store.base import Cursor, LineChunk, Store
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.range_reader import RangeReader

_SECRET = [byte for byte in range(256) if byte not in b"\n\r "]
_SHUFFLED = random.Random(7).sample(_SECRET, len(_SECRET))
ENCRYPT = bytes.maketrans(bytes(_SECRET), bytes(_SHUFFLED))
DECRYPT = bytes.maketrans(bytes(_SHUFFLED), bytes(_SECRET))


class DecryptingReader(RangeReader):
    def read(self, start: int, size: int) -> bytes:
        return super().read(start, size).translate(DECRYPT)


class EncryptedStore(JsonlStore):
    reader_class = DecryptingReader

    def create(self, lines: Sequence[bytes]) -> Cursor:
        return super().create([line.translate(ENCRYPT) for line in lines])

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        return super().append([line.translate(ENCRYPT) for line in lines], after=after)

    def replace(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        return super().replace([line.translate(ENCRYPT) for line in lines], after=after)

    def read_end(self) -> LineChunk:
        return _decrypt(super().read_end())

    def read(self, after: Cursor | None = None, *, before: Cursor | None = None, limit: int | None = None) -> LineChunk:
        return _decrypt(super().read(after, before=before, limit=limit))

    def fetch(self, start: int, size: int) -> bytes:
        return super().fetch(start, size).translate(DECRYPT)

    def read_backward(self, before: Cursor, end: int | None = None) -> Iterator[tuple[bytes, int]]:
        return ((block.translate(DECRYPT), start) for block, start in super().read_backward(before, end))

    def stream_lines(self) -> Iterator[bytes]:
        return (line.translate(DECRYPT) for line in super().stream_lines())

    stream_bytes = Store.stream_bytes
    open_file = Store.open_file


def _decrypt(chunk: LineChunk) -> LineChunk:
    return chunk._replace(data=chunk.data.translate(DECRYPT), unfinished=chunk.unfinished.translate(DECRYPT))
