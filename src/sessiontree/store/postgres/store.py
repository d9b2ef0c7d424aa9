"""A store in PostgreSQL: the lines of one session, in a table that many machines write to.

A place in a session is a number of bytes from its beginning, as in a file, so a cursor is that and the session's row.
An append is one statement that takes effect only if the session ends where the writer thinks: the row of the session
is locked for it, so lines have one order without gaps. It carries a key that only this writer knows. When its answer is
lost it is sent again, and finds either its own key at that place, then it was done, or the place free, then it is done
now, or somebody else's lines.

A rewrite makes a new row of the session and keeps the old one as a backup. A fork may share lines of its source: then
its first bytes are `pieces` of other sessions.
"""

from __future__ import annotations

import json
import time
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from sessiontree.core.entries import EntryId
from sessiontree.errors import Conflict, InvalidOperation, NotFound, OutcomeUnknown, StoreError
from sessiontree.format.codec import NotJson, read_entry
from sessiontree.format.jsonl import is_whole_line
from sessiontree.store.base import PART, Chunk, Cursor, joined
from sessiontree.store.postgres import sql
from sessiontree.store.postgres.address import Address, parse
from sessiontree.store.postgres.blocks import Blocks
from sessiontree.store.postgres.connection import Database, database
from sessiontree.store.postgres.rows import Gain, Row, beginning_of, clean, rows_of, storable
from sessiontree.store.postgres.watch import POLL

if TYPE_CHECKING:
    from sessiontree.store.postgres.connection import Connection

FETCH = 1 << 18
"""How much is fetched at once, in bytes."""
PAGES = (1 << 16, 1 << 22)
"""How much is read backward at once, at first and at most, in bytes."""
FOREVER = 1 << 62
EARLIEST = -(1 << 53)
"""Of the moments that files tell, in microseconds since the epoch: databases know none that are much earlier."""
NEW = 2
"""So many lines at most a session begins with that is made here: its header and its name."""


class Piece(NamedTuple):
    """Bytes of a session that are lines of some row: `shift` more is where they stand in the session."""

    row: int
    low: int
    high: int
    shift: int


class Shared(NamedTuple):
    """Bytes of another session of the same database, whole lines, that a new one begins with."""

    start: int
    size: int


class _Known(NamedTuple):
    """A session's row, as this store found it."""

    key: int
    pieces: tuple[Piece, ...]


class _Page(NamedTuple):
    end: int
    tail: bytes
    start: int
    data: bytes


class PostgresStore:
    def __init__(self, address: Address | str) -> None:
        address = parse(address) if isinstance(address, str) else address
        if storable(address.named) is None:
            raise InvalidOperation("this cannot be the id of a session in a database")
        self.address = address
        self.id = address.named
        self.where = address.of(self.id)
        self._known: _Known | None = None
        self._blocks = Blocks()
        self._pending: tuple[Cursor, tuple[bytes, ...], uuid.UUID] | None = None
        """An append of which nobody knows whether it was done."""

    @property
    def database(self) -> Database:
        """The connections of this process: one that was forked has its own."""
        return database(self.address)

    # Reading

    def end(self) -> Chunk:
        known, size, tail = self._look()
        whole, unfinished = _ended(tail)
        return Chunk(b"", Cursor((known.key, size + len(whole))), unfinished)

    def has_tail(self) -> bool:
        """Whether something stands behind the last newline, as in a file that was copied so."""
        return bool(self._look()[2])

    def _look(self) -> tuple[_Known, int, bytes]:
        """The session's row as it is now, and its size and tail."""

        def work(connection: Connection) -> Any:
            row = connection.execute(sql.LOOK, (self.id,)).fetchone()
            if row is None:
                raise NotFound("session", self.where)
            return row, _pieces(connection, row[0]) if row[3] else (Piece(row[0], 0, FOREVER, 0),)

        (key, size, tail, _), pieces = self.database.run(work, where=self.where)
        if self._known is None or self._known.key != key:
            self._blocks.clear()
        self._known = _Known(key, pieces)
        return self._known, size, bytes(tail)

    def read(self, after: Cursor | None = None, *, before: Cursor | None = None, limit: int | None = None) -> Chunk:
        cursor = after or before
        known = self._look()[0] if cursor is None else self._row_of(cursor)
        start = 0 if after is None else after.value[1]
        stop = FOREVER if before is None else before.value[1]
        page = self._page(known, start, stop if limit is None else min(stop, start + max(limit, 1)))
        whole, unfinished = _ended(page.tail)
        data, end = page.data, page.start + len(page.data)
        if end == page.end and stop > page.end:
            data, end = data + whole, end + len(whole)
        if page.end + len(whole) < start or (before is not None and page.end + len(whole) < stop):
            raise Conflict(self.where, "the session is shorter than it was")
        self._blocks.put(page.start, data)
        return Chunk(data, Cursor((known.key, end)), b"" if limit is not None or before is not None else unfinished)

    def fetch(self, start: int, size: int) -> bytes:
        found = self._blocks.get(start, size)
        if found is not None:
            return found
        page = self._page(self._row_of(None), start, start + max(size, FETCH))
        data = page.data + (_ended(page.tail)[0] if page.start + len(page.data) == page.end else b"")
        if page.start > start or page.start + len(data) < start + size:
            raise Conflict(self.where, "what was read is gone")
        self._blocks.put(page.start, data)
        return data[start - page.start : start - page.start + size]

    def backward(self, before: Cursor) -> Iterator[tuple[bytes, bool]]:
        known = self._row_of(before)
        end, size = before.value[1], PAGES[0]
        while end > 0:
            page = self._page(known, max(0, end - size), end)
            data = page.data
            if page.start + len(data) == page.end < end:
                data += _ended(page.tail)[0] + b"\n"
            yield data, page.start == 0
            end, size = page.start, min(2 * size, PAGES[1])

    def above(self, before: Cursor, id: EntryId, count: int) -> list[tuple[int, bytes]] | None:
        """The entry with this id and those above it, nearest first, so many at most, each with where it stands.

        `None` where an index cannot tell.
        """
        known = self._row_of(before)
        if storable(id) is None:
            return None
        by_row: dict[int, list[Piece]] = {known.key: []}
        for piece in sorted(known.pieces):
            by_row.setdefault(piece.row, []).append(piece)
        values = {"key": known.key, "rows": list(by_row), "id": id, "count": count}
        found = self.database.run(lambda connection: connection.execute(sql.ABOVE, values).fetchall(), where=self.where)
        above = [(_stands(by_row[row], position), bytes(line)) for row, position, line in found]
        return None if any(position >= before.value[1] for position, _ in above) else above

    def _row_of(self, cursor: Cursor | None) -> _Known:
        known = self._known or self._look()[0]
        if cursor is not None and cursor.value[0] != known.key:
            known = self._look()[0]
            if cursor.value[0] != known.key:
                raise Conflict(self.where, "the session was deleted or rewritten")
        return known

    def _page(self, known: _Known, start: int, stop: int) -> _Page:
        """The lines that have bytes between two places, and where the session ends."""
        page = self._read(known, start, stop)
        if page is None:
            # Lines that were shared are the session's own since their source was purged.
            page = self._read(self._look()[0], start, stop)
        if page is None:
            raise Conflict(self.where, "lines are missing")
        return page

    def _read(self, known: _Known, start: int, stop: int) -> _Page | None:
        """The same; `None` where lines are not where they are looked for."""
        rows = self._lines(sql.READ, known, start, stop)
        if not rows:
            raise Conflict(self.where, "the session was deleted or rewritten")
        _, _, size, tail = rows[0]
        lines = [(position, line) for position, line, _, _ in rows if position is not None]
        data = b"".join([part for _, line in lines for part in (line, b"\n")])
        first = lines[0][0] if lines else start
        end = lines[-1][0] + len(lines[-1][1]) + 1 if lines else start
        # A line that had no newline when it was read has one now: what follows starts one byte behind.
        if first > start + 1 or first + len(data) != end or end < min(stop, size):
            return None
        return _Page(size, bytes(tail), first, data)

    def wait(self, after: Cursor, timeout: float) -> bool:
        """Wait until the session goes on behind `after`, so many seconds at most; whether it does.

        Raises `NotFound` when it is gone.
        """
        deadline = time.monotonic() + timeout
        watch = self.database.watch
        key = self._row_of(None).key
        event = watch.enter(key)
        try:
            while self.end().cursor == after:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                event.wait(min(left, POLL))
                event.clear()
            return True
        finally:
            watch.leave(key, event)

    def links(self, start: int) -> list[tuple[EntryId | None, EntryId | None]]:
        """The ids of the lines from a place on, in order, each with that of its parent."""
        return [row[1:] for row in self._lines(sql.LINKS, self._row_of(None), start, FOREVER)]

    def _lines(self, statement: str, known: _Known, start: int, stop: int) -> list[Any]:
        asked = [
            (
                piece.row,
                max(start - piece.shift, piece.low),
                min(stop - piece.shift, piece.high),
                piece.low,
                piece.shift,
            )
            for piece in known.pieces
            if start < piece.high + piece.shift and stop > piece.low + piece.shift
        ]
        columns: list[list[int]] = [list(column) for column in zip(*asked, strict=True)] or [[] for _ in range(5)]
        return self.database.run(
            lambda connection: connection.execute(statement.encode(), (*columns, known.key)).fetchall(),
            where=self.where,
        )

    # Writing

    def create(self, lines: Sequence[bytes]) -> Cursor:
        return self.create_from(lines)

    def create_from(self, parts: Sequence[bytes | Shared], source: PostgresStore | None = None) -> Cursor:
        """`create`, where parts may be lines that `source` has already: those are not written again."""
        lines = [part for part in parts if isinstance(part, bytes)]
        for _ in _in_parts(lines, self.where):
            pass  # all are looked at before any is written
        batch = uuid.uuid4()
        lenders = None if source is None else source._row_of(None)

        def work(connection: Connection) -> Cursor:
            with connection.transaction():
                key = self._insert(connection, lines)
                if key is None:
                    return self._made_before(connection, batch)
                return self._fill(connection, key, parts, batch, lenders)

        cursor = self.database.run(work, where=self.where, writes=True)
        self._known = None
        return cursor

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        joined(lines, self.where)
        if not lines:
            self._check_end(after)
            return after
        again = self._pending is not None and self._pending[:2] == (after, tuple(lines))
        batch = self._pending[2] if again and self._pending is not None else uuid.uuid4()
        self._pending = after, tuple(lines), batch
        key, start = after.value
        rows, gain = rows_of(lines)

        def work(connection: Connection) -> int | None:
            grown = _appended(connection, key, start, lines, rows, gain, batch)
            return (
                self._explained(connection, key, start, batch, len(b"\n".join(lines)) + 1) if grown is None else grown
            )

        try:
            end = self.database.run(work, where=self.where, writes=True)
        except OutcomeUnknown:
            raise
        except BaseException:
            self._pending = None
            raise
        self._pending = None
        if end is None:
            return self.append(lines, after=self._settled(after))
        self._blocks.put(start, b"\n".join([*lines, b""]))
        return Cursor((key, end))

    def replace(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        for _ in _in_parts(lines, self.where):
            pass
        key, start = after.value
        batch = uuid.uuid4()

        def work(connection: Connection) -> Cursor:
            with connection.transaction():
                row = connection.execute(sql.LOCK, (key,)).fetchone()
                if row is None or row[0] + len(_ended(bytes(row[1]))[0]) != start:
                    return self._made_before(connection, batch, replaced=True)
                connection.execute(sql.RETIRE, (key,))
                new = self._insert(connection, lines)
                assert new is not None
                return self._fill(connection, new, lines, batch, None)

        cursor = self.database.run(work, where=self.where, writes=True)
        self._known = None
        self._blocks.clear()
        return cursor

    def leave(self, tail: bytes, *, after: Cursor) -> None:
        """Keep what a session has behind its last newline, as it is: for copies. Raises `Conflict`."""
        key, start = after.value
        row = self.database.run(
            lambda connection: connection.execute(sql.LEAVE, (key, start, tail)).fetchone(), where=self.where
        )
        if row is None or not row[0]:
            raise Conflict(self.where, "others wrote first")

    def modified(self) -> int:
        """When it was last written to, in nanoseconds since the epoch. Raises `NotFound`."""
        return self._modified()[0] * 1000

    def predate(self, moment: int) -> None:
        """Have it say that it was written to no later than then, where this role may: for copies."""
        wanted = max(moment // 1000, EARLIEST)
        modified, may = self._modified()
        if may and modified > wanted:
            values = wanted, self.id
            self.database.run(lambda connection: connection.execute(sql.PREDATE, values), where=self.where)

    def _modified(self) -> tuple[int, bool]:
        """When it was last written to, in microseconds, and whether this role may say otherwise."""
        row = self.database.run(
            lambda connection: connection.execute(sql.MODIFIED, (self.id,)).fetchone(), where=self.where
        )
        if row is None:
            raise NotFound("session", self.where)
        return row[0], row[1]

    def close(self) -> None:
        """Connections are the database's."""

    def _insert(self, connection: Connection, lines: Sequence[bytes]) -> int | None:
        """A new row for the session; `None` when it has one."""
        begins = beginning_of(lines)
        header = begins.header
        values = (
            self.id,
            "" if header is None else clean(header.timestamp),
            "" if header is None else clean(header.cwd),
            None if header is None or header.parent_session is None else clean(header.parent_session),
            begins.is_older,
            # Lines that come from elsewhere are looked into as a whole: they may not hang together.
            header is not None and not begins.is_older and len(lines) <= NEW,
            clean(begins.title) if begins.title else None,
        )
        row = connection.execute(sql.INSERT, values).fetchone()
        return None if row is None else row[0]

    def _fill(
        self,
        connection: Connection,
        key: int,
        parts: Sequence[bytes | Shared],
        batch: uuid.UUID,
        lender: _Known | None,
    ) -> Cursor:
        """Write the lines of a new session."""
        at, first = 0, beginning_of([part for part in parts if isinstance(part, bytes)]).lines
        for run in _runs(parts, self.where):
            if isinstance(run[0], Shared):
                assert lender is not None
                grown = _shared(connection, key, at, lender, [part for part in run if isinstance(part, Shared)])
            else:
                lines = [part for part in run if isinstance(part, bytes)]
                rows, gain = rows_of(lines[first:])
                rows = [Row()] * min(first, len(lines)) + rows
                first = max(0, first - len(lines))
                grown = _appended(connection, key, at, lines, rows, gain, batch if at == 0 else None)
            assert grown is not None
            at = grown
        return Cursor((key, at))

    def _made_before(self, connection: Connection, batch: uuid.UUID, *, replaced: bool = False) -> Cursor:
        """The session that was made by a statement whose answer was lost. Raises what is true if it was not."""
        row = connection.execute(sql.MADE, (self.id,)).fetchone()
        if row is not None and row[2] == batch:
            return Cursor((row[0], row[1]))
        if replaced:
            raise Conflict(self.where, "others wrote first")
        in_trash = row is not None and row[3]
        raise StoreError(self.where, f"the session exists already{', in the trash' if in_trash else ''}")

    def _explained(self, connection: Connection, key: int, start: int, batch: uuid.UUID, size: int) -> int | None:
        """Why an append was refused: it was done before, then where it ended; or what is in the way.

        `None` where that is an end of a file that can be settled.
        """
        row = connection.execute(sql.WHY, (key, start, key)).fetchone()
        if row is None or not row[0]:
            raise Conflict(self.where, "the session was deleted or rewritten")
        _, end, tail, there = row
        if there == batch:
            return start + size
        tail = bytes(tail)
        if tail and end + len(_ended(tail)[0]) == start:
            return None
        raise Conflict(self.where, "others wrote first")

    def _settled(self, after: Cursor) -> Cursor:
        """Where the session ends once what stands behind its last newline is a line, or out of the way."""
        known, size, tail = self._look()
        if not tail or (known.key, size + len(_ended(tail)[0])) != after.value:
            raise Conflict(self.where, "others wrote first")
        whole = bool(_ended(tail)[0])
        row = Row()
        if whole:
            try:
                entry = read_entry(tail, 1)
                row = Row(id=storable(entry.id), parent=storable(entry.parent), type=storable(entry.type))
            except NotJson:
                pass
        values = (known.key, whole, row.id, row.parent, row.type)
        self.database.run(lambda connection: connection.execute(sql.SETTLE, values), where=self.where)
        return Cursor((known.key, size + (len(tail) + 1 if whole else 0)))

    def _check_end(self, after: Cursor) -> None:
        if self.end().cursor != after:
            raise Conflict(self.where, "others wrote first")


def _ended(tail: bytes) -> tuple[bytes, bytes]:
    """What stands behind the last newline: a whole line that lacks its own, or one that is not whole."""
    return (tail, b"") if is_whole_line(tail) else (b"", tail)


def _pieces(connection: Connection, key: int) -> tuple[Piece, ...]:
    """The pieces of a session that shares lines, in order."""
    pieces: list[Piece] = []
    at = 0
    for position, source, start, size in connection.execute(sql.PIECES, (key,)).fetchall():
        if position > at:
            pieces.append(Piece(key, at, position, 0))
        pieces.append(Piece(source, start, start + size, position - start))
        at = position + size
    return (*pieces, Piece(key, at, FOREVER, 0))


def _shared(connection: Connection, key: int, start: int, lender: _Known, parts: Sequence[Shared]) -> int | None:
    pieces = [piece for part in parts for piece in _cut(lender, part)]
    columns = [[piece.row for piece in pieces], [piece.low for piece in pieces], [p.high - p.low for p in pieces]]
    row = connection.execute(sql.SHARE, (key, start, *columns)).fetchone()
    return None if row is None else row[0]


def _cut(lender: _Known, wanted: Shared) -> Iterator[Piece]:
    """The rows that have the lines `wanted` of a session."""
    start, stop = wanted.start, wanted.start + wanted.size
    for piece in lender.pieces:
        low, high = max(start - piece.shift, piece.low), min(stop - piece.shift, piece.high)
        if low < high:
            yield Piece(piece.row, low, high, 0)


def _stands(pieces: Sequence[Piece], position: int) -> int:
    """Where in a session a line of a row stands, by the pieces of that row, in order."""
    return position + pieces[bisect_right(pieces, position, key=lambda piece: piece.low) - 1].shift


def _runs(parts: Sequence[bytes | Shared], where: str) -> Iterator[Sequence[bytes | Shared]]:
    """Lines that follow one another, about `PART` bytes at a time, and what is shared between them."""
    for is_shared, run in groupby(parts, key=lambda part: isinstance(part, Shared)):
        if is_shared:
            yield list(run)
        else:
            yield from _in_parts([part for part in run if isinstance(part, bytes)], where)


def _in_parts(lines: Sequence[bytes], where: str) -> Iterator[list[bytes]]:
    """Lines, some at a time. Raises `StoreError` for one that cannot be kept."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        joined([line], where)
        part.append(line)
        size += len(line)
        if size > PART:
            yield part
            part, size = [], 0
    if part:
        yield part


def _appended(
    connection: Connection,
    key: int,
    start: int,
    lines: Sequence[bytes],
    rows: Sequence[Row],
    gain: Gain,
    batch: uuid.UUID | None,
) -> int | None:
    added = gain._asdict()
    if gain.hidden is None:
        del added["hidden"]
    columns = [list(column) for column in zip(*rows, strict=True)]
    row = connection.execute(sql.APPEND, (key, start, list(lines), *columns, batch, json.dumps(added))).fetchone()
    return None if row is None else row[0]
