"""A store in PostgreSQL: the lines of one session, in a table that many machines write to.

A position in a session is a byte offset, as in a file. A cursor is that offset and the key of the session's row.

An append is one statement that takes effect only if the session ends where the writer expects, or if all that was
appended since then is on other branches: then it goes to the end, and the caller reads the lines in between. Writers of
a session wait in a fair queue and lock its row, so the order of lines has no gaps. An append carries a random key. If
the response is lost, the append is sent again. It then finds its own key, so it was done; or there is still a place for
it, so it is done now; or another writer was first.

A rewrite creates a new row of the session and keeps the old one as a backup. A fork may share lines with its source;
then its first bytes are ranges of other rows.
"""

from __future__ import annotations

import json
import time
import uuid
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from sessiontree.core.entries import EntryId
from sessiontree.errors import Conflict, InvalidOperation, NotFound, OutcomeUnknown, StoreError
from sessiontree.format.codec import read_entry
from sessiontree.format.json_line import NotJson
from sessiontree.format.session_reader import is_complete_line
from sessiontree.store.base import PART_SIZE, Cursor, FenceRaised, LineChunk, Store, join_lines
from sessiontree.store.postgres import schema
from sessiontree.store.postgres.address import Address, parse_address
from sessiontree.store.postgres.block_cache import BlockCache
from sessiontree.store.postgres.connection import PostgresDatabase, get_database
from sessiontree.store.postgres.rows import (
    LineRow,
    SummaryDelta,
    build_rows,
    clean_text,
    filter_storable,
    read_preamble,
)

if TYPE_CHECKING:
    from sessiontree.store.postgres.driver import Connection

FETCH_SIZE = 1 << 18
"""Bytes fetched at a time."""
PAGE_SIZES = (1 << 16, 1 << 22)
"""Bytes read backward at a time: at first, and at most."""
KEPT_TAIL_SIZE = 1 << 20
"""How many of the last bytes stay in the cache when they are read backward. Heads are among them."""
MAX_POSITION = 1 << 62
MIN_MICROSECONDS = -(1 << 53)
"""The earliest modification time that is stored, in microseconds since the epoch. Databases have such a limit."""
READ_AHEAD_SECONDS = 1.0
"""How long lines that an append returned may be used for the next read."""
MAX_NEW_LINES = 2
"""A new session starts with at most this many lines: its header and its name."""


class RowRange(NamedTuple):
    """Bytes of a row that are part of a session. Adding `shift` gives their position in the session."""

    row: int
    low: int
    high: int
    shift: int


class SharedRange(NamedTuple):
    """Whole lines of another session in the same database that a new session shares."""

    start: int
    size: int


class _SessionRow(NamedTuple):
    """The row of a session, and the ranges its lines are in."""

    key: int
    ranges: tuple[RowRange, ...]


class _ReadAhead(NamedTuple):
    """Lines that an append returned, because lines of others come before its own."""

    after: Cursor
    chunk: LineChunk
    at: float
    """Monotonic time."""

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() < self.at + READ_AHEAD_SECONDS


class _LinePage(NamedTuple):
    """Lines read with one query."""

    end: int
    """Where the session ends."""
    tail: bytes
    """The unfinished last line of the session."""
    start: int
    data: bytes


class PostgresStore(Store):
    """A session in PostgreSQL."""

    def __init__(self, address: Address | str) -> None:
        address = parse_address(address) if isinstance(address, str) else address
        if filter_storable(address.session_name) is None:
            raise InvalidOperation("not a valid id of a session in a database")
        self.address = address
        self.id = address.session_name
        self.location = address.format_session_address(self.id)
        self._session_row: _SessionRow | None = None
        self._cache = BlockCache()
        self._unconfirmed: tuple[Cursor, tuple[bytes, ...], uuid.UUID] | None = None
        """An append with an unknown outcome."""
        self._read_ahead: _ReadAhead | None = None
        self.fence: tuple[str, int] | None = None
        """The scope and the token that every append carries; see `raise_fence`."""
        self._is_exact = False
        """Whether appends are refused if others appended anything at all."""

    @property
    def database(self) -> PostgresDatabase:
        """The connections of this process. A forked process has its own."""
        return get_database(self.address)

    # Reading

    def read_end(self) -> LineChunk:
        known, size, tail = self._load_row()
        whole, unfinished = _split_tail(tail)
        return LineChunk(b"", Cursor((known.key, size + len(whole))), unfinished)

    def has_tail(self) -> bool:
        """Return whether the session has an unfinished last line, copied from a file."""
        return bool(self._load_row()[2])

    def _load_row(self) -> tuple[_SessionRow, int, bytes]:
        """Query the session's row, its size and its unfinished last line."""

        def work(connection: Connection) -> Any:
            row = connection.execute(schema.SELECT_SESSION, (self.id,)).fetchone()
            if row is None:
                raise NotFound("session", self.location)
            return row, _load_ranges(connection, row[0]) if row[3] else (RowRange(row[0], 0, MAX_POSITION, 0),)

        (key, size, tail, _), ranges = self.database.run(work, location=self.location)
        if self._session_row is None or self._session_row.key != key:
            self._cache.clear()
        self._session_row = _SessionRow(key, ranges)
        return self._session_row, size, bytes(tail)

    def read(self, after: Cursor | None = None, *, before: Cursor | None = None, limit: int | None = None) -> LineChunk:
        ahead, self._read_ahead = self._read_ahead, None
        if ahead is not None and (after, before, limit) == (ahead.after, None, None) and ahead.is_fresh:
            return ahead.chunk
        cursor = after or before
        known = self._load_row()[0] if cursor is None else self._get_row(cursor)
        start = 0 if after is None else after.value[1]
        stop = MAX_POSITION if before is None else before.value[1]
        page = self._read_page(known, start, stop if limit is None else min(stop, start + max(limit, 1)))
        whole, unfinished = _split_tail(page.tail)
        data, end = page.data, page.start + len(page.data)
        if end == page.end and stop > page.end:
            data, end = data + whole, end + len(whole)
        if page.end + len(whole) < start or (before is not None and page.end + len(whole) < stop):
            raise Conflict(self.location, "another program removed lines of the session")
        self._cache.put(page.start, data)
        return LineChunk(data, Cursor((known.key, end)), b"" if limit is not None or before is not None else unfinished)

    def fetch(self, start: int, size: int) -> bytes:
        found = self._cache.get(start, size)
        if found is not None:
            return found
        page = self._read_page(self._get_row(None), start, start + max(size, FETCH_SIZE))
        data = page.data + (_split_tail(page.tail)[0] if page.start + len(page.data) == page.end else b"")
        if page.start > start or page.start + len(data) < start + size:
            raise Conflict(self.location, "lines that were already read are missing")
        self._cache.put(page.start, data)
        return data[start - page.start : start - page.start + size]

    def read_backward(self, before: Cursor, end: int | None = None) -> Iterator[tuple[bytes, int]]:
        known = self._get_row(before)
        stop: int = before.value[1] if end is None else end
        size = PAGE_SIZES[0]
        while stop > 0:
            page = self._read_page(known, max(0, stop - size), stop)
            data = page.data
            if page.start + len(data) == page.end < stop:
                data += _split_tail(page.tail)[0] + b"\n"
            if before.value[1] - page.start <= KEPT_TAIL_SIZE:
                self._cache.put(page.start, data)
            yield data, page.start
            stop, size = page.start, min(2 * size, PAGE_SIZES[1])

    def find_ancestors(self, before: Cursor, id: EntryId, count: int) -> list[tuple[int, bytes]] | None:
        if filter_storable(id) is None:
            return None
        found = self._find_by_id(schema.FIND_ANCESTORS, before, {"id": id, "count": count})
        return None if found is None else [(position, line) for position, line, *_ in found]

    def find_entries(self, before: Cursor, ids: Sequence[EntryId]) -> dict[EntryId, tuple[int, bytes]] | None:
        if any(filter_storable(id) is None for id in ids):
            return None
        found = self._find_by_id(schema.FIND_ENTRIES, before, {"ids": list(ids)})
        return None if found is None else {id: (position, line) for position, line, id in found}

    def _find_by_id(self, statement: str, before: Cursor, values: dict[str, Any]) -> list[tuple[Any, ...]] | None:
        """Return the position and the line of each row, and its other columns; `None` if one is not before `before`."""
        known = self._get_row(before)
        by_row: dict[int, list[RowRange]] = {known.key: []}
        for span in sorted(known.ranges):
            by_row.setdefault(span.row, []).append(span)
        values = {**values, "key": known.key, "rows": list(by_row)}
        rows = self.database.run(
            lambda connection: connection.execute(statement.encode(), values).fetchall(), location=self.location
        )
        found = [(_find_position(by_row[row], position), bytes(line), *more) for row, position, line, *more in rows]
        return None if any(position >= before.value[1] for position, *_ in found) else found

    def _get_row(self, cursor: Cursor | None) -> _SessionRow:
        known = self._session_row or self._load_row()[0]
        if cursor is not None and cursor.value[0] != known.key:
            known = self._load_row()[0]
            if cursor.value[0] != known.key:
                raise Conflict(self.location, "the session was deleted or rewritten")
        return known

    def _read_page(self, known: _SessionRow, start: int, stop: int) -> _LinePage:
        """Return the lines that have bytes between two positions, and where the session ends."""
        page = self._try_read_page(known, start, stop)
        if page is None:
            # After a purge of the source, formerly shared lines belong to this session.
            page = self._try_read_page(self._load_row()[0], start, stop)
        if page is None:
            raise Conflict(self.location, "lines are missing")
        return page

    def _try_read_page(self, known: _SessionRow, start: int, stop: int) -> _LinePage | None:
        """Do the same; return `None` if lines are missing where they are expected."""
        rows = self._query_lines(schema.SELECT_LINES, known, start, stop)
        if not rows:
            raise Conflict(self.location, "the session was deleted or rewritten")
        _, _, size, tail = rows[0]
        lines = [(position, line) for position, line, _, _ in rows if position is not None]
        data = b"".join([part for _, line in lines for part in (line, b"\n")])
        first = lines[0][0] if lines else start
        end = lines[-1][0] + len(lines[-1][1]) + 1 if lines else start
        # A line that lacked its newline when it was read has one now, so the next line starts one byte later.
        if first > start + 1 or first + len(data) != end or end < min(stop, size):
            return None
        return _LinePage(size, bytes(tail), first, data)

    def wait_for_change(self, after: Cursor, timeout: float) -> bool:
        """Wait for lines after `after`, at most `timeout` seconds, and return whether there are any.

        Raises `NotFound` if the session was deleted.
        """
        deadline = time.monotonic() + timeout
        key, size = after.value
        while self.read_end().cursor == after:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.database.watcher.wait(key, size, left)
        return True

    def read_links(self, start: int) -> list[tuple[EntryId | None, EntryId | None]]:
        """Return the ids of the lines from a position on, in order, each with the id of its parent."""
        return [row[1:] for row in self._query_lines(schema.SELECT_LINKS, self._get_row(None), start, MAX_POSITION)]

    def _query_lines(self, statement: str, known: _SessionRow, start: int, stop: int) -> list[Any]:
        spans = [
            (
                span.row,
                max(start - span.shift, span.low),
                min(stop - span.shift, span.high),
                span.low,
                span.shift,
            )
            for span in known.ranges
            if start < span.high + span.shift and stop > span.low + span.shift
        ]
        columns: list[list[int]] = [list(column) for column in zip(*spans, strict=True)] or [[] for _ in range(5)]
        return self.database.run(
            lambda connection: connection.execute(statement.encode(), (*columns, known.key)).fetchall(),
            location=self.location,
        )

    # Writing

    def create(self, lines: Sequence[bytes]) -> Cursor:
        return self.create_from(lines)

    def create_from(self, parts: Sequence[bytes | SharedRange], source: PostgresStore | None = None) -> Cursor:
        """Create the session from lines and from ranges of `source`, which are shared and not written again."""
        lines = [part for part in parts if isinstance(part, bytes)]
        for _ in _split_lines(lines, self.location):
            pass  # validates all lines before any is written
        batch = uuid.uuid4()
        lenders = None if source is None else source._get_row(None)

        def work(connection: Connection) -> Cursor:
            with connection.transaction():
                key = self._insert_session(connection, lines)
                if key is None:
                    return self._find_created(connection, batch)
                return self._write_parts(connection, key, parts, batch, lenders)

        cursor = self.database.run(work, location=self.location, writes=True)
        self._session_row = None
        return cursor

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        join_lines(lines, self.location)
        if not lines:
            self._check_end(after)
            return after
        again = self._unconfirmed is not None and self._unconfirmed[:2] == (after, tuple(lines))
        batch = self._unconfirmed[2] if again and self._unconfirmed is not None else uuid.uuid4()
        self._unconfirmed = after, tuple(lines), batch
        key, start = after.value
        size = sum(map(len, lines)) + len(lines)
        rows, delta = build_rows(lines)
        if self._is_exact:
            delta = delta._replace(leaves=None)

        def work(connection: Connection) -> tuple[int | None, Sequence[bytes]]:
            grown, appended = _append_rows(connection, key, start, lines, rows, delta, batch, self.fence)
            if grown is None:
                return self._explain_refusal(connection, key, start, batch, size), ()
            return grown, appended

        try:
            end, appended = self.database.run(work, location=self.location, writes=True)
        except OutcomeUnknown:
            raise
        except BaseException:
            self._unconfirmed = None
            raise
        self._unconfirmed = None
        if end is None:
            return self.append(lines, after=self._resolve_tail(after))
        if end != start + size:
            # Lines of other branches come first: the caller reads them all.
            if appended:
                data = b"\n".join([*appended, b""])
                self._cache.put(start, data)
                self._read_ahead = _ReadAhead(after, LineChunk(data, Cursor((key, end)), b""), time.monotonic())
            return after
        self._cache.put(start, b"\n".join([*lines, b""]))
        return Cursor((key, end))

    @contextmanager
    def require_unchanged(self) -> Generator[None]:
        before, self._is_exact = self._is_exact, True
        try:
            yield
        finally:
            self._is_exact = before

    def raise_fence(self, scope: str, token: int) -> None:
        """Append with this token from now on. Appends for `scope` with a lower token are refused from now on.

        An append that is under way is done before this returns. Raises `FenceRaised` if there is a higher token.
        """
        key = self._get_row(None).key
        row = self.database.run(
            lambda connection: connection.execute(schema.RAISE_FENCE, (key, scope, token)).fetchone(),
            location=self.location,
        )
        if row is None or row[0] is None:
            raise NotFound("session", self.location)
        if row[0] > token:
            raise FenceRaised(self.location, f"another worker writes for {scope} now")
        self.fence = scope, token

    def replace(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        for _ in _split_lines(lines, self.location):
            pass
        key, start = after.value
        batch = uuid.uuid4()

        def work(connection: Connection) -> Cursor:
            with connection.transaction():
                row = connection.execute(schema.LOCK_SESSION, (key,)).fetchone()
                if row is None or row[0] + len(_split_tail(bytes(row[1]))[0]) != start:
                    return self._find_created(connection, batch, replaced=True)
                connection.execute(schema.RETIRE_SESSION, (key,))
                new = self._insert_session(connection, lines)
                assert new is not None
                return self._write_parts(connection, new, lines, batch, None)

        cursor = self.database.run(work, location=self.location, writes=True)
        self._session_row = None
        self._cache.clear()
        return cursor

    def write_tail(self, tail: bytes, *, after: Cursor) -> None:
        key, start = after.value
        row = self.database.run(
            lambda connection: connection.execute(schema.WRITE_TAIL, (key, start, tail)).fetchone(),
            location=self.location,
        )
        if row is None or not row[0]:
            raise Conflict(self.location, "another writer appended first")

    def get_modified_time(self) -> int:
        return self._query_modified()[0] * 1000

    def backdate(self, moment: int) -> None:
        wanted = max(moment // 1000, MIN_MICROSECONDS)
        modified, may = self._query_modified()
        if may and modified > wanted:
            values = wanted, self.id
            self.database.run(
                lambda connection: connection.execute(schema.BACKDATE_SESSION, values), location=self.location
            )

    def _query_modified(self) -> tuple[int, bool]:
        """Return the modification time in microseconds, and whether this role may change it."""
        row = self.database.run(
            lambda connection: connection.execute(schema.SELECT_MODIFIED, (self.id,)).fetchone(), location=self.location
        )
        if row is None:
            raise NotFound("session", self.location)
        return row[0], row[1]

    def close(self) -> None:
        """Do nothing: connections belong to the database."""

    def _insert_session(self, connection: Connection, lines: Sequence[bytes]) -> int | None:
        """Insert a row for the session and return its key; `None` if it has one already."""
        begins = read_preamble(lines)
        header = begins.header
        values = (
            self.id,
            "" if header is None else clean_text(header.timestamp),
            "" if header is None else clean_text(header.cwd),
            None if header is None or header.parent_session is None else clean_text(header.parent_session),
            begins.is_older,
            # Lines of an existing session may be inconsistent: the summary comes from opening it.
            header is not None and not begins.is_older and len(lines) <= MAX_NEW_LINES,
            clean_text(begins.title) if begins.title else None,
        )
        row = connection.execute(schema.INSERT_SESSION, values).fetchone()
        return None if row is None else row[0]

    def _write_parts(
        self,
        connection: Connection,
        key: int,
        parts: Sequence[bytes | SharedRange],
        batch: uuid.UUID,
        lender: _SessionRow | None,
    ) -> Cursor:
        """Write the lines and shared ranges of a new session."""
        at, first = 0, read_preamble([part for part in parts if isinstance(part, bytes)]).line_count
        for run in _group_parts(parts, self.location):
            if isinstance(run[0], SharedRange):
                assert lender is not None
                grown = _share_lines(
                    connection, key, at, lender, [part for part in run if isinstance(part, SharedRange)]
                )
            else:
                lines = [part for part in run if isinstance(part, bytes)]
                rows, delta = build_rows(lines[first:])
                rows = [LineRow()] * min(first, len(lines)) + rows
                first = max(0, first - len(lines))
                grown, _ = _append_rows(connection, key, at, lines, rows, delta, batch if at == 0 else None)
            assert grown is not None
            at = grown
        return Cursor((key, at))

    def _find_created(self, connection: Connection, batch: uuid.UUID, *, replaced: bool = False) -> Cursor:
        """Return the end of the session if a statement whose response was lost created it.

        Raises `Conflict` or `StoreError` if another writer did.
        """
        row = connection.execute(schema.FIND_CREATED, (self.id,)).fetchone()
        if row is not None and row[2] == batch:
            return Cursor((row[0], row[1]))
        if replaced:
            raise Conflict(self.location, "another writer appended first")
        in_trash = row is not None and row[3]
        raise StoreError(self.location, f"the session exists already{', in the trash' if in_trash else ''}")

    def _explain_refusal(self, connection: Connection, key: int, start: int, batch: uuid.UUID, size: int) -> int | None:
        """Find out why an append was refused.

        Return where the append ended if it was already done. Return `None` if an unfinished last line has to be
        resolved first. Raises `Conflict` if another writer was first.
        """
        row = connection.execute(schema.EXPLAIN_REFUSAL, (key, start, key)).fetchone()
        if row is None or not row[0]:
            raise Conflict(self.location, "the session was deleted or rewritten")
        _, end, tail, key_at_start = row
        if key_at_start == batch:
            return start + size
        tail = bytes(tail)
        if tail and end + len(_split_tail(tail)[0]) == start:
            return None
        raise Conflict(self.location, "another writer appended first")

    def _resolve_tail(self, after: Cursor) -> Cursor:
        """Turn the unfinished last line into a line, or move it away, and return the new end of the session."""
        known, size, tail = self._load_row()
        if not tail or (known.key, size + len(_split_tail(tail)[0])) != after.value:
            raise Conflict(self.location, "another writer appended first")
        whole = bool(_split_tail(tail)[0])
        row = LineRow()
        if whole:
            try:
                entry = read_entry(tail, 1)
                row = LineRow(
                    id=filter_storable(entry.id), parent=filter_storable(entry.parent), type=filter_storable(entry.type)
                )
            except NotJson:
                pass
        values = (known.key, whole, row.id, row.parent, row.type)
        self.database.run(lambda connection: connection.execute(schema.RESOLVE_TAIL, values), location=self.location)
        return Cursor((known.key, size + (len(tail) + 1 if whole else 0)))

    def _check_end(self, after: Cursor) -> None:
        if self.read_end().cursor != after:
            raise Conflict(self.location, "another writer appended first")


def _split_tail(tail: bytes) -> tuple[bytes, bytes]:
    """Split the bytes after the last newline into a whole line that lacks its newline, and an unfinished one."""
    return (tail, b"") if is_complete_line(tail) else (b"", tail)


def _load_ranges(connection: Connection, key: int) -> tuple[RowRange, ...]:
    """Return the ranges of a session that shares lines, in order."""
    ranges: list[RowRange] = []
    at = 0
    for position, source, start, size in connection.execute(schema.SELECT_SHARED, (key,)).fetchall():
        if position > at:
            ranges.append(RowRange(key, at, position, 0))
        ranges.append(RowRange(source, start, start + size, position - start))
        at = position + size
    return (*ranges, RowRange(key, at, MAX_POSITION, 0))


def _share_lines(
    connection: Connection, key: int, start: int, lender: _SessionRow, parts: Sequence[SharedRange]
) -> int | None:
    ranges = [span for part in parts for span in _find_row_ranges(lender, part)]
    columns = [[span.row for span in ranges], [span.low for span in ranges], [span.high - span.low for span in ranges]]
    row = connection.execute(schema.SHARE_LINES, (key, start, *columns)).fetchone()
    return None if row is None else row[0]


def _find_row_ranges(lender: _SessionRow, wanted: SharedRange) -> Iterator[RowRange]:
    """Yield the row ranges that contain a range of a session."""
    start, stop = wanted.start, wanted.start + wanted.size
    for span in lender.ranges:
        low, high = max(start - span.shift, span.low), min(stop - span.shift, span.high)
        if low < high:
            yield RowRange(span.row, low, high, 0)


def _find_position(ranges: Sequence[RowRange], position: int) -> int:
    """Return the position in a session of a line of a row, given the ordered ranges of that row."""
    return position + ranges[bisect_right(ranges, position, key=lambda span: span.low) - 1].shift


def _group_parts(parts: Sequence[bytes | SharedRange], where: str) -> Iterator[Sequence[bytes | SharedRange]]:
    """Yield consecutive lines, about `PART_SIZE` bytes at a time, and the shared ranges between them."""
    for is_shared, run in groupby(parts, key=lambda part: isinstance(part, SharedRange)):
        if is_shared:
            yield list(run)
        else:
            yield from _split_lines([part for part in run if isinstance(part, bytes)], where)


def _split_lines(lines: Sequence[bytes], where: str) -> Iterator[list[bytes]]:
    """Yield lines, about `PART_SIZE` bytes at a time. Raises `StoreError` for an invalid line."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        join_lines([line], where)
        part.append(line)
        size += len(line)
        if size > PART_SIZE:
            yield part
            part, size = [], 0
    if part:
        yield part


def _append_rows(
    connection: Connection,
    key: int,
    start: int,
    lines: Sequence[bytes],
    rows: Sequence[LineRow],
    delta: SummaryDelta,
    batch: uuid.UUID | None,
    fence: tuple[str, int] | None = None,
) -> tuple[int | None, Sequence[bytes]]:
    """Return where the lines end, `None` if they were refused, and all lines from `start` on if others come first."""
    added = {**delta._asdict(), "fence": fence}
    for option in ("hidden", "leaves", "fence"):
        if added[option] is None:
            del added[option]
    columns = [list(column) for column in zip(*rows, strict=True)]
    row = connection.execute(
        schema.APPEND_LINES, (key, start, list(lines), *columns, batch, json.dumps(added))
    ).fetchone()
    assert row is not None
    return row[0], [bytes(line) for line in row[1] or ()]
