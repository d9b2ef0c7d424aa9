"""Files and databases of other programs, opened read-only where they are.

`open_foreign` recognizes a file by its content and returns a store with its conversation as session lines. A file that
holds several conversations needs the id of one behind its path: `conversations.json#ID`. Nothing is ever written next
to a foreign file.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from glob import glob
from typing import IO, Any

from sessiontree.core.entries import JsonObject, Problem
from sessiontree.errors import FormatError, NotFound, ReadOnly, SessionTreeError, StoreError, format_names
from sessiontree.format.json_line import LINE_LIMIT
from sessiontree.interop.base import (
    HEAD_SIZE,
    Conversation,
    FileHead,
    ForeignFile,
    ForeignFormat,
    LineBuffer,
)
from sessiontree.interop.formats import detect_format
from sessiontree.library.foreign_archives import ZIP_MAGIC, detect_archive, read_archive
from sessiontree.library.foreign_databases import SQLITE_MAGIC, convert_database_errors, open_database
from sessiontree.library.session_files import MAX_INT64, SessionFile, starts_like_session
from sessiontree.regular_file import open_regular_file
from sessiontree.store.base import Cursor, LineChunk, Store
from sessiontree.store.file_operations import format_os_error

BLOCK_SIZE = 1 << 18
MEMORY_SIZE = 16 << 20
"""How many bytes of converted lines are kept in memory."""
BACKWARD_SIZE = 4096
"""How many bytes are read at a time from the end."""
MAX_RELATED = 1000
"""How many files can belong to one conversation."""
MAX_DOCUMENT = 1 << 30
"""How long a file that is one JSON value can be, in bytes."""


class DiskFile(ForeignFile):
    """A foreign file on disk. Every call reads it again."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._database: sqlite3.Connection | None = None
        self._file: IO[bytes] | None = None

    def __del__(self) -> None:
        if self._database is not None:
            self._database.close()
        if self._file is not None:
            self._file.close()

    def iter_placed_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines with their positions. One that is too long for an entry is replaced by an invalid byte."""
        with _open(self.name) as file:
            rest, is_skipping, position = b"", False, 0
            while block := file.read(BLOCK_SIZE):
                lines = (rest + block).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    yield position, b"\0" if is_skipping else line
                    position += len(line) + 1
                    is_skipping = False
                if len(rest) > LINE_LIMIT:
                    position += len(rest)
                    rest, is_skipping = b"", True
            if rest or is_skipping:
                yield position, b"\0" if is_skipping else rest

    def read_line(self, position: int) -> bytes:
        if self._file is None:
            self._file = _open(self.name)
        self._file.seek(position)
        return self._file.readline(LINE_LIMIT + 1).removesuffix(b"\n")

    def create_line_buffer(self) -> LineBuffer:
        return SpooledLines()

    def iter_blocks(self) -> Iterator[bytes]:
        with _open(self.name) as file:
            while block := file.read(BLOCK_SIZE):
                yield block

    def read_document(self) -> Any:
        if os.path.getsize(self.name) > MAX_DOCUMENT:
            raise FormatError(self.name, f"longer than {MAX_DOCUMENT >> 20} MiB")
        return super().read_document()

    def iter_rows(self, table: str, **equal: str | int) -> Iterator[JsonObject]:
        if self._database is None:
            if not _starts_with(self.name, SQLITE_MAGIC):
                return
            self._database = open_database(self.name)
        with convert_database_errors(self.name):
            columns = _list_columns(self._database, table)
            if not columns or not set(equal) <= set(columns):
                return
            where = " and ".join(f"{_quote_name(column)} = ?" for column in equal) or "1"
            query = f"select * from {_quote_name(table)} where {where} order by rowid"
            for row in self._database.execute(query, tuple(equal.values())):
                yield dict(zip(columns, row, strict=False))


def _starts_with(path: str, magic: bytes) -> bool:
    with _open(path) as file:
        return file.read(len(magic)) == magic


def _open(path: str) -> IO[bytes]:
    try:
        return open_regular_file(path)
    except FileNotFoundError:
        raise NotFound("session file", path) from None
    except OSError as error:
        raise StoreError(path, format_os_error(error)) from error


def _list_columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f"pragma table_info({_quote_name(table)})")]


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def read_head(path: str) -> FileHead | None:
    """Return the start of a file, or the tables of a database; `None` if the file cannot be read."""
    try:
        with open_regular_file(path) as file:
            data = file.read(HEAD_SIZE + 1)
    except OSError:
        return None
    if not data.startswith(SQLITE_MAGIC):
        return FileHead(name=path, data=data[:HEAD_SIZE], is_whole=len(data) <= HEAD_SIZE)
    try:
        with closing(open_database(path)) as database:
            names = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
            return FileHead(name=path, tables={name: _list_columns(database, name) for name in names})
    except (StoreError, sqlite3.Error, UnicodeDecodeError):
        return None


def detect_file(path: str) -> ForeignFormat | None:
    """Return the foreign format of a file by its content; `None` for our own files and unknown files."""
    if starts_like_session(path):
        return None
    head = read_head(path)
    if head is not None and head.data.startswith(ZIP_MAGIC):
        return detect_archive(path)
    return None if head is None else detect_format(head)


def split_conversation(location: str) -> tuple[str, str | None]:
    """Return the path of a foreign file and the id of the conversation in it, from `PATH` or `PATH#ID`."""
    path, found, id = location.rpartition("#")
    if not found or os.path.lexists(location) or not os.path.isfile(path):
        return location, None
    return path, id


def list_conversations(database: str) -> list[SessionFile]:
    """Return the conversations of a database as files of their own, with locations such as `opencode.db#ID`.

    A missing database has none. One that cannot be read is listed with the reason.
    """
    if not os.path.isfile(database):
        return []
    name = os.path.basename(database)
    try:
        format = detect_file(database)
        if format is None or format.list_conversations is None:
            raise FormatError(database, "not a database of sessions")
        return [
            SessionFile(
                f"{database}#{one.id}",
                size=min(one.changes + 1, MAX_INT64),
                mtime=min(one.modified * 1_000_000, MAX_INT64),
                inode=0,
                name=one.id,
                archived=one.archived,
            )
            for one in format.list_conversations(DiskFile(database))
            if one.id and not set(one.id) & set("/#\0")
        ]
    except SessionTreeError as error:
        reason = error.reason if isinstance(error, StoreError | FormatError) else str(error)
        return [SessionFile(database, 0, 0, 0, name, fault=reason)]


def read_conversations(
    path: str, format: ForeignFormat, joined: Sequence[str] = (), *, id: str | None = None
) -> Iterator[Conversation]:
    """Yield the conversations of a file, read together with the files that belong to it.

    `joined` are further session files whose branches go into the same tree. With `id`, the others may be left out.
    """
    file = DiskFile(path)
    if _starts_with(path, ZIP_MAGIC):
        return read_archive(path, format, MAX_DOCUMENT)
    if id is not None and format.read_one is not None:
        conversation = format.read_one(file, id)
        if conversation is not None:
            return iter((conversation,))
    related = [DiskFile(other) for other in (*find_related_files(path, format), *joined)]
    return format.read(file, related)


def find_related_files(path: str, format: ForeignFormat) -> list[str]:
    """Return the files that belong to a file, directly or through others."""
    start = os.path.abspath(path)
    found, todo = {start}, [start]
    while todo and len(found) < MAX_RELATED:
        folder = os.path.dirname(current := todo.pop())
        for pattern in format.find_related(DiskFile(current)):
            for name in glob(pattern, root_dir=folder):
                other = os.path.normpath(os.path.join(folder, name))
                if other not in found and os.path.isfile(other):
                    found.add(other)
                    todo.append(other)
    return sorted(found - {start})


def open_foreign(location: str) -> ForeignStore | None:
    """Return a store for a conversation of another program; `None` if the file has none.

    Raises `FormatError` if the file cannot be read as what it seems to be, and `NotFound` if it holds several
    conversations and `location` does not name one of them.
    """
    path, id = split_conversation(location)
    format = detect_file(path)
    if format is None:
        return None
    found: list[Conversation] = []
    others: list[str] = []
    for conversation in read_conversations(path, format, id=id):
        if id is None or conversation.id == id:
            found = found or [conversation]
        others.append(conversation.id)
        if found and id is not None:
            break
    if not found:
        raise NotFound("conversation", location, f"{path} holds: {format_names(others)}")
    if len(others) > 1 and id is None:
        raise NotFound(
            "conversation", path, f"it holds {len(others)}; name one, such as {path}#{others[0]}, or import them all"
        )
    return ForeignStore(location, format, found[0])


class ForeignStore(Store):
    """The lines of a foreign conversation. They can only be read."""

    def __init__(self, location: str, format: ForeignFormat, conversation: Conversation) -> None:
        self.location = location
        self.format = format
        self.problems: Sequence[Problem] = conversation.problems
        self.original = conversation.original
        """The conversation as the program exports it, if the file holds several."""
        self._reason = self.read_only = (
            f"it is a session of {format.title}; bring it in with `sessiontree import`, or continue in another program"
            " with `sessiontree continue`"
        )
        lines = conversation.lines
        self._data = lines if isinstance(lines, SpooledLines) else SpooledLines(lines)

    def create(self, lines: Sequence[bytes]) -> Cursor:
        raise ReadOnly(self.location, self._reason)

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        raise ReadOnly(self.location, self._reason)

    def replace(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        raise ReadOnly(self.location, self._reason)

    def read_end(self) -> LineChunk:
        return LineChunk(b"", Cursor(self._data.size))

    def read(self, after: Cursor | None = None, *, before: Cursor | None = None, limit: int | None = None) -> LineChunk:
        start = 0 if after is None else after.value
        end = self._data.size if before is None else before.value
        if limit is not None and start + limit < end:
            end = self._data.find_line_end(start + limit)
        return LineChunk(self._data.read(start, end), Cursor(end))

    def fetch(self, start: int, size: int) -> bytes:
        return self._data.read(start, start + size)

    def read_backward(self, before: Cursor, end: int | None = None) -> Iterator[tuple[bytes, int]]:
        stop: int = before.value if end is None else end
        while stop > 0:
            start = self._data.find_line_start(max(0, stop - BACKWARD_SIZE))
            yield self._data.read(start, stop), start
            stop = start

    def close(self) -> None:
        """Do nothing: the foreign file is not held open."""

    def get_modified_time(self) -> int:
        try:
            return os.stat(split_conversation(self.location)[0]).st_mtime_ns
        except OSError:
            return 0


class SpooledLines(LineBuffer):
    """Converted lines: in memory, or in a temporary file if they are many. All positions count the header."""

    def __init__(self, lines: Sequence[bytes] = ()) -> None:
        """Copy the lines of a session, if there are any."""
        super().__init__()
        self._starts = array("Q", [0])
        """Where each entry starts, and the end of the last one, without the header."""
        self._file: IO[bytes] | None = None
        self._tail = bytearray()
        """Data that is not in the file yet."""
        self._stored = 0
        for number, line in enumerate(lines):
            if number:
                self.append(line)
            else:
                self.header = line

    @property
    def size(self) -> int:
        return len(self.header) + 1 + self._starts[-1]

    def append(self, line: bytes) -> None:
        self._tail += line
        self._tail += b"\n"
        self._starts.append(self._starts[-1] + len(line) + 1)
        if len(self._tail) > MEMORY_SIZE:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the lines
            self._file.write(self._tail)
            self._file.flush()
            self._stored += len(self._tail)
            self._tail.clear()

    def read_entry(self, number: int) -> bytes:
        return self._read_entries(self._starts[number], self._starts[number + 1] - 1)

    def count_entries(self) -> int:
        return len(self._starts) - 1

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes between two positions."""
        shift = len(self.header) + 1
        header = (self.header + b"\n")[start:end] if start < shift else b""
        return header + self._read_entries(max(0, start - shift), max(0, end - shift))

    def _read_entries(self, start: int, end: int) -> bytes:
        stored = b""
        if self._file is not None and start < self._stored:
            stored = os.pread(self._file.fileno(), min(end, self._stored) - start, start)
        return stored + self._tail[max(0, start - self._stored) : max(0, end - self._stored)]

    def find_line_end(self, position: int) -> int:
        """Return where the line ends that a position is in."""
        shift = len(self.header) + 1
        return shift if position < shift else shift + self._starts[bisect_right(self._starts, position - shift)]

    def find_line_start(self, position: int) -> int:
        shift = len(self.header) + 1
        return 0 if position < shift else shift + self._starts[bisect_right(self._starts, position - shift) - 1]
