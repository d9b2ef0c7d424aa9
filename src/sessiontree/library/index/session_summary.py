"""Summaries of single session files, for listings.

If a file only grew, just its new lines are read. Otherwise it is read from the start. A damaged file is opened as a
session to find its problems. Session files are never written here, and the index database is not used.
"""

from __future__ import annotations

import enum
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from sessiontree.core.entries import JsonObject
from sessiontree.core.problems import is_utf8
from sessiontree.core.sanitize import replace_unencodable
from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import FormatError, SessionTreeError, StoreError, isolate_errors
from sessiontree.format.codec import VERSION
from sessiontree.format.digest import Digest, EntryTotals, SessionTotals, UnsoundSession, start_digest
from sessiontree.format.json_line import LINE_LIMIT
from sessiontree.format.session_reader import PREAMBLE_LIMIT, SessionReader, is_complete_line
from sessiontree.library.session_files import (
    OpenStore,
    SessionFile,
    get_file_stamp,
    parse_session_id,
    starts_like_session,
)
from sessiontree.session import Session
from sessiontree.store.file_operations import format_os_error
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.range_reader import BLOCK_SIZE, RangeReader

EDGE_SIZE = 4096
"""Bytes at the start and at the end of the part that was read, which are compared to detect a change."""
OVERSIZED_LINE = f"a line is over the limit of {LINE_LIMIT} bytes"
NOT_CACHED = -1
"""Instead of an offset: the file could not be read, so the result is not cached."""

OnBytesRead: TypeAlias = Callable[[int], None]
_encode = msgspec.msgpack.Encoder().encode


class SessionSummary(Struct, frozen=True, kw_only=True, gc=False):
    """A session as listings show it."""

    id: str
    file: str
    name: str | None = None
    first_message: str | None = None
    """The first message of the user, on one line."""
    message_count: int = 0
    entry_count: int = 0
    branch_count: int = 0
    """Archived branches are not counted."""
    branch: str | None = None
    """The current branch."""
    cost: float = 0
    """Of all branches together, in dollars."""
    created: str = ""
    modified: str = ""
    """When the session was last written."""
    cwd: str = ""
    parent_session: str | None = None
    """The location of the session that this one was forked from, as its header claims."""
    archived: bool = False
    damage: str | None = None
    """The first problem; `sessiontree doctor` shows all of them."""
    source: str | None = None
    """The program whose session this is, if it is listed with our own."""

    @property
    def is_damaged(self) -> bool:
        return self.damage is not None


class ReadMode(enum.IntEnum):
    """How the entries of a file are read for a search."""

    LINES = 0
    """Line by line."""
    SESSION = 1
    """As a session, because it is in an older dialect."""
    NONE = 2
    """Not at all."""


class FileRecord(NamedTuple):
    """What the index knows about a file."""

    id: int
    generation: int
    size: int
    mtime: int
    inode: int
    read_to: int
    body: int
    mark: int
    tally: bytes | None


class FileScan(NamedTuple):
    """The result of reading a file."""

    file: SessionFile
    record: FileRecord | None
    is_fresh: bool
    """Whether it was read from the start."""
    summary: SessionSummary
    kind: ReadMode
    body: int
    read_to: int
    mark: int
    tally: bytes | None = None
    first: int = 0
    entries: bytes = b""
    """The ids of the entries from number `first` on, and the numbers of their parents."""


def open_read_only(path: str, open_store: OpenStore = JsonlStore) -> Session:
    """Open a session for reading, one of another program too. Raises what `Session` raises, and `OversizedLine`."""
    if not starts_like_session(path):
        from sessiontree.library.foreign_files import open_foreign

        foreign = open_foreign(path)
        if foreign is not None:
            return Session(foreign)
    check_size(path, open_store)
    return Session(open_store(path), read_only="it was opened for reading")


class OversizedLine(StoreError):
    """A line, or the text before the header, is too long to hold in memory."""


def check_size(path: str, open_store: OpenStore = JsonlStore) -> None:
    """Refuse a file that would take too much memory to open. Raises `OversizedLine` or `StoreError`."""
    try:
        reader = open_store.reader_class(path)
    except OSError:
        return  # opening the session reports the problem
    try:
        with reader:
            with suppress(FormatError):  # opening the session reports this too
                _feed_header(reader, SessionReader(path))
            if reader.has_oversized_line():
                raise OversizedLine(path, OVERSIZED_LINE)
    except OSError as error:
        raise StoreError(path, format_os_error(error)) from error


def scan_file(found: SessionFile, passed: OnBytesRead | None = None, open_store: OpenStore = JsonlStore) -> FileScan:
    """Read a file that the index does not know."""
    return scan_changed_file(found, None, lambda: None, passed, open_store)


def _ignore_bytes(size: int) -> None:
    """Ignore progress."""


class _OpenFile(NamedTuple):
    """A file that is being read."""

    reader: RangeReader
    file: SessionFile
    record: FileRecord | None
    on_bytes_read: OnBytesRead
    open_store: OpenStore


def scan_changed_file(
    found: SessionFile,
    past: FileRecord | None,
    digest: Callable[[], Digest | None],
    passed: OnBytesRead | None = None,
    open_store: OpenStore = JsonlStore,
) -> FileScan:
    """Read a file. If it only grew, read the new lines and continue the `digest` of the others.

    `passed` is called with the number of bytes read since its last call.
    """
    if "#" in found.path and not os.path.lexists(found.path):  # a conversation of a database
        return _scan_by_opening(found, past, open_store, ReadMode.SESSION, 0, found.size)
    try:
        with open_store.reader_class(found.path) as reader:
            _, mtime, inode = get_file_stamp(reader.status)
            found = found._replace(size=reader.size, mtime=mtime, inode=inode)
            file = _OpenFile(reader, found, past, passed or _ignore_bytes, open_store)
            before = None
            if past is not None and past.tally is not None and _has_same_start(reader, found, past):
                before = digest()
            return _scan_open_file(file, before)
    except OSError as error:
        return _build_unreadable_scan(found, past, error)


def _scan_open_file(file: _OpenFile, before: Digest | None) -> FileScan:
    """Scan an open file. Any error becomes damage of this file, so the other files are still listed."""
    found, past = file.file, file.record
    try:
        with isolate_errors(found.path):
            if before is None or past is None:
                return _scan_from_start(file)
            return _scan_lines(file, before, body=past.body, start=past.read_to)
    except StoreError as error:
        return FileScan(found, past, True, build_broken_summary(found, error.reason), ReadMode.NONE, 0, NOT_CACHED, 0)


def _build_unreadable_scan(found: SessionFile, past: FileRecord | None, error: OSError) -> FileScan:
    return FileScan(
        found, past, True, build_broken_summary(found, format_os_error(error)), ReadMode.NONE, 0, NOT_CACHED, 0
    )


def _has_same_start(reader: RangeReader, found: SessionFile, past: FileRecord) -> bool:
    """Return whether the file still starts with the bytes read before, judged by a checksum of both ends."""
    if found.inode != past.inode or found.size < past.size or (found.size == past.size and found.mtime != past.mtime):
        return False
    return _compute_mark(reader, past.read_to) == past.mark


def _compute_mark(reader: RangeReader, end: int) -> int:
    size = min(EDGE_SIZE, end)
    return zlib.crc32(reader.read(max(0, end - EDGE_SIZE), size), zlib.crc32(reader.read(0, size)))


def _scan_from_start(file: _OpenFile) -> FileScan:
    found, past = file.file, file.record
    parser = SessionReader(found.path)
    body = 0
    try:
        body = _feed_header(file.reader, parser)
        digest = start_digest(parser)
    except (FormatError, OversizedLine) as error:
        from sessiontree.library.foreign_files import detect_file

        if detect_file(found.path) is not None:
            return _scan_file_by_opening(file, 0, True)
        return FileScan(found, past, True, build_broken_summary(found, error.reason), ReadMode.NONE, 0, 0, 0)
    except UnsoundSession:
        return _scan_file_by_opening(file, body, parser.header.version < VERSION)
    return _scan_lines(file, digest, body=body, start=body)


def _feed_header(reader: RangeReader, parser: SessionReader) -> int:
    """Feed everything before the entries, and return where that ends. Raises `FormatError` or `OversizedLine`."""
    body = 0
    for raw, end in reader.iter_lines(0, min(reader.stop, PREAMBLE_LIMIT + LINE_LIMIT), EDGE_SIZE):
        if raw is None:
            raise OversizedLine(parser.where, f"a line before the header is over the limit of {LINE_LIMIT} bytes")
        if body > PREAMBLE_LIMIT:
            raise OversizedLine(parser.where, f"no session header in its first {PREAMBLE_LIMIT >> 10} KiB")
        parser.feed(raw + b"\n")
        body = end
        if parser.has_header:
            break
    return body


def _scan_lines(file: _OpenFile, digest: Digest, *, body: int, start: int) -> FileScan:
    """Scan the rest of a file, from `start` on."""
    reader, found, past, passed = file.reader, file.file, file.record, file.on_bytes_read
    fresh, first = start == body, digest.totals.entries
    try:
        end, rest = _feed_lines(reader, digest, start, passed)
        tally = _encode(digest.totals)
        entries = _encode(digest.get_links_since(first)) if digest.totals.entries > first else b""
        left = found.size - reader.stop
        if rest and is_complete_line(rest):
            # The last line has no newline and may still grow, so it is not cached.
            _check_utf8(rest)
            digest.feed(rest)
        else:
            left += len(rest)
        digest.check_heads()
    except UnsoundSession:
        if not reader.has_oversized_line():
            return _scan_file_by_opening(file, body, False)
        return _build_partial_scan(file, digest, body)
    except _LineTooLong:
        return _build_partial_scan(file, digest, body)
    summary = _build_summary(found, digest.totals, f"the last line is unfinished ({left} bytes)" if left else None)
    mark = _compute_mark(reader, end)
    return FileScan(found, past, fresh, summary, ReadMode.LINES, body, end, mark, tally, first, entries)


def _build_partial_scan(file: _OpenFile, digest: Digest, body: int) -> FileScan:
    """Summarize the lines before an oversized one, which opening the session would load."""
    return FileScan(
        file.file,
        file.record,
        True,
        _build_summary(file.file, digest.totals, OVERSIZED_LINE),
        ReadMode.LINES,
        body,
        file.reader.find_last_newline(file.reader.stop),
        0,
    )


class _LineTooLong(Exception):
    """A line is too long to read."""


def _feed_lines(reader: RangeReader, digest: Digest, start: int, passed: OnBytesRead) -> tuple[int, bytes]:
    """Feed all complete lines from `start` on. Return where they end, and what follows. Raises `UnsoundSession`."""
    end, size, stop = start, BLOCK_SIZE, reader.stop
    while end < stop and (block := reader.read(end, min(size, stop - end))):
        cut = block.rfind(b"\n") + 1
        if cut:
            lines = block[:cut]
            _check_utf8(lines)
            digest.feed(lines)
            passed(cut)
            end, size = end + cut, BLOCK_SIZE
        elif len(block) < size:
            return end, block
        elif size > LINE_LIMIT:
            raise _LineTooLong
        else:
            size = min(4 * size, LINE_LIMIT + 1)  # a long line: read it again with more of it
    return end, b""


def _check_utf8(lines: bytes) -> None:
    """Check that the lines are UTF-8: a digest decodes only parts of them. Raises `UnsoundSession`."""
    if not is_utf8(lines):
        raise UnsoundSession


def _scan_file_by_opening(file: _OpenFile, body: int, dialect: bool) -> FileScan:
    """Summarize a file by opening the session, when a digest is not enough."""
    kind = ReadMode.SESSION if dialect else ReadMode.LINES
    end = file.file.size if dialect else file.reader.find_last_newline(file.reader.stop)
    return _scan_by_opening(file.file, file.record, file.open_store, kind, body, end)


def _scan_by_opening(
    found: SessionFile, past: FileRecord | None, open_store: OpenStore, kind: ReadMode, body: int, end: int
) -> FileScan:
    try:
        session = open_read_only(found.path, open_store)
        summary = _build_summary(found, build_tally(session), find_first_fault(session))
    except FormatError as error:
        return FileScan(found, past, True, build_broken_summary(found, error.reason), ReadMode.NONE, 0, 0, 0)
    except SessionTreeError as error:  # replaced or removed during the scan
        return FileScan(found, past, True, build_broken_summary(found, str(error)), ReadMode.NONE, 0, NOT_CACHED, 0)
    return FileScan(found, past, True, summary, kind, body, end, 0)


def build_tally(session: Session) -> SessionTotals:
    """Compute for an open session what a digest computes from lines."""
    tree, heads, header = session.tree, session.heads, session.header
    tally = SessionTotals(
        id=header.id,
        created=header.timestamp,
        cwd=header.cwd,
        parent_session=header.parent_session,
        title=session.name,
        entries=len(tree),
        heads=heads.heads,
        current=heads.current,
        archived=sorted(heads.archived),
    )
    totals = EntryTotals()
    totals.extend(tree)
    tally.cost, tally.messages, tally.first_message = totals.cost, totals.messages, totals.first_message
    return tally


def find_first_fault(session: Session) -> str | None:
    """Describe the first fault of a session, if there is one."""
    faults = (problem for problem in session.problems if problem.severity == "fault")
    return next((f"line {fault.line}: {fault.message}" if fault.line else fault.message for fault in faults), None)


def summarize_session(session: Session, *, modified: int, archived: bool = False) -> SessionSummary:
    """Summarize an open session. `modified` is when it was last written, in nanoseconds since the epoch."""
    found = SessionFile(session.location, 0, modified, 0)
    summary = _build_summary(found, build_tally(session), find_first_fault(session))
    return msgspec.structs.replace(summary, archived=archived)


def _build_summary(found: SessionFile, tally: SessionTotals, damage: str | None) -> SessionSummary:
    return SessionSummary(
        id=replace_unencodable(tally.id),
        file=found.path,
        name=replace_unencodable(tally.session_name),
        first_message=replace_unencodable(tally.first_message),
        message_count=tally.messages,
        entry_count=tally.entries,
        branch_count=tally.branch_count,
        branch=replace_unencodable(tally.current),
        cost=round(float(tally.cost), 10),
        created=replace_unencodable(tally.created),
        modified=format_timestamp(found.mtime // 1_000_000),
        cwd=replace_unencodable(tally.cwd),
        parent_session=replace_unencodable(tally.parent_session),
        damage=replace_unencodable(damage),
    )


def build_broken_summary(found: SessionFile, fault: str) -> SessionSummary:
    return SessionSummary(
        id=replace_unencodable(parse_session_id(found.path)),
        file=found.path,
        modified=format_timestamp(found.mtime // 1_000_000),
        damage=replace_unencodable(fault),
    )


def encode_summary(summary: SessionSummary) -> JsonObject:
    """Return the JSON of a session in a listing. The REST API returns it; `ls --json` adds more fields."""
    parent = summary.parent_session
    return {
        "id": summary.id,
        "name": summary.name,
        "cwd": summary.cwd,
        "firstMessage": summary.first_message,
        "entries": summary.entry_count,
        "branches": summary.branch_count,
        "cost": summary.cost,
        "created": summary.created,
        "modified": summary.modified,
        "parentSession": None if parent is None else parse_session_id(parent),
        "damaged": summary.is_damaged,
        "damage": summary.damage,
        "archived": summary.archived,
    }
