"""Forks that share lines with their source in the database instead of copying them.

`format.fork_lines` decides which lines a fork has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sessiontree.core.entries import Entry
from sessiontree.format.session_reader import SessionReader
from sessiontree.store.base import Store
from sessiontree.store.postgres.rows import read_preamble
from sessiontree.store.postgres.store import PostgresStore, SharedRange

HEADER_READ_SIZE = 1 << 16
"""Bytes read at a time when only the header is wanted."""


def create_shared_fork(source: Store, fork: Store, header: bytes, parts: Sequence[Entry | bytes] | None) -> bool:
    """Create a fork that shares lines with `source`: these parts, or all lines by default.

    Return `False`, with nothing created, if the sessions are not in the same database or `source` has an unfinished
    last line.
    """
    if not (isinstance(source, PostgresStore) and isinstance(fork, PostgresStore)):
        return False
    end = source.read_end()
    if source.database is not fork.database or end.unfinished or source.has_tail():
        return False
    if parts is None:
        start = _find_header_end(source)
        size = end.cursor.value[1] - start
        shared = [SharedRange(start, size)] if size else []
    else:
        shared = _merge_ranges(parts)
    fork.create_from([header, *shared], source)
    return True


def _merge_ranges(parts: Sequence[Entry | bytes]) -> Iterator[bytes | SharedRange]:
    """Merge adjacent entries of the source into ranges."""
    run: SharedRange | None = None
    for part in parts:
        here = _find_range(part) if isinstance(part, Entry) else None
        if run is not None and here is not None and run.start + run.size == here.start:
            run = SharedRange(run.start, run.size + here.size)
            continue
        if run is not None:
            yield run
        run = here
        if here is None:
            yield part.raw if isinstance(part, Entry) else part
    if run is not None:
        yield run


def _find_range(entry: Entry) -> SharedRange | None:
    source = entry.source
    if not isinstance(source, SessionReader):
        return None
    start = source.get_offset(entry.number)
    return SharedRange(start, source.get_offset(entry.number + 1) - start)


def _find_header_end(source: PostgresStore) -> int:
    data, limit = b"", HEADER_READ_SIZE
    while True:
        lines = data.split(b"\n")[:-1]
        begins = read_preamble(lines)
        if begins.line_count:
            return sum(len(line) + 1 for line in lines[: begins.line_count])
        chunk = source.read(limit=limit)
        assert len(chunk.data) > len(data), "a session without a header cannot be open"
        data, limit = chunk.data, 2 * limit
