"""Reading: what one session file says to a listing, read again only as far as it has changed.

A file that has grown is read from where the last whole line ended, if what stands before is what it
was. Anything else is read from its beginning; what is not sound is opened as a session, which tells
what is wrong. Nothing is ever written to a file, and there is no database here.
"""

from __future__ import annotations

import enum
import errno
import os
import stat
import zlib
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from sessiontree.core.entries import JsonObject
from sessiontree.core.problems import is_utf8
from sessiontree.core.sanitize import replace_unencodable
from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import FormatError, SessionTreeError, StoreError, isolate_errors
from sessiontree.format.codec import LINE_LIMIT, VERSION
from sessiontree.format.digest import Digest, SessionTotals, UnsoundSession, start_digest
from sessiontree.format.session_reader import PREAMBLE_LIMIT, SessionReader, is_complete_line
from sessiontree.format.totals import EntryTotals
from sessiontree.library.session_files import SessionFile, get_file_stamp, parse_session_id
from sessiontree.session import Session
from sessiontree.store.batch_journal import find_end
from sessiontree.store.files import close_quietly, format_os_error, open_nonblocking
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.lock import get_lock_path

BLOCK_SIZE = 1 << 17
EDGE_SIZE = 4096
"""So many bytes of a file's beginning, and of what was read last, tell whether it is still the same."""
OVERSIZED_LINE = f"a line is over the limit of {LINE_LIMIT} bytes"
NOT_CACHED = -1
"""In place of where a file was read to: it could not be read, and may be another time."""

OnBytesRead: TypeAlias = Callable[[int], None]
_encode = msgspec.msgpack.Encoder().encode


class SessionSummary(Struct, frozen=True, kw_only=True, gc=False):
    """A session as listings show it."""

    id: str
    file: str
    name: str | None = None
    first_message: str | None = None
    """What the user said first, on one line."""
    message_count: int = 0
    entry_count: int = 0
    branch_count: int = 0
    """Archived branches are not counted."""
    branch: str | None = None
    """The current branch."""
    cost: float = 0
    """Of everything in the file, all branches together."""
    created: str = ""
    modified: str = ""
    """When the file was last written to."""
    cwd: str = ""
    parent_session: str | None = None
    """The session that this one was forked from, as its header says."""
    archived: bool = False
    damage: str | None = None
    """The first thing that is wrong; `sessiontree doctor` tells all."""

    @property
    def is_damaged(self) -> bool:
        return self.damage is not None


class ReadMode(enum.IntEnum):
    """How the entries of a file are read for their text."""

    LINES = 0
    """Line by line."""
    SESSION = 1
    """As a session: it is in an older dialect."""
    NONE = 2
    """Not at all."""


class FileRecord(NamedTuple):
    """What the index knows of a file."""

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
    """What reading a file gave."""

    file: SessionFile
    record: FileRecord | None
    is_fresh: bool
    """It was read from its beginning."""
    summary: SessionSummary
    kind: ReadMode
    body: int
    read_to: int
    mark: int
    tally: bytes | None = None
    first: int = 0
    entries: bytes = b""
    """The ids of the entries from number `first` on, and the numbers of their parents."""


def open_regular_fd(path: str) -> int:
    """A regular file, opened for reading: never a link, and never something that blocks. Raises `OSError`."""
    fd = open_nonblocking(path, os.O_RDONLY | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        close_quietly(fd)
        raise OSError("not a regular file")
    return fd


def open_read_only(path: str) -> Session:
    """Raises what opening raises, and what `check_size` does."""
    check_size(path)
    return Session(JsonlStore(path), read_only="it is only looked at")


class OversizedLine(StoreError):
    """A line, or what stands before the header, is longer than anybody should hold in memory."""


def check_size(path: str) -> None:
    """Refuse a file that opening would take too much memory for. Raises `Endless`, and `StoreError`."""
    try:
        fd = open_regular_fd(path)
    except OSError:
        return  # what is wrong with it is told by who opens it
    try:
        stop = os.fstat(fd).st_size
        with suppress(FormatError):  # told by who opens it, too
            _feed_header(fd, SessionReader(path), stop)
        if _has_oversized_line(fd, stop):
            raise OversizedLine(path, OVERSIZED_LINE)
    except OSError as error:
        raise StoreError(path, format_os_error(error)) from error
    finally:
        close_quietly(fd)


def scan_file(found: SessionFile, passed: OnBytesRead | None = None) -> FileScan:
    """What a file says, of which nothing is known."""
    return scan_changed_file(found, None, lambda: None, passed)


def _ignore_bytes(size: int) -> None:
    """Nobody follows how far it is."""


class _OpenFile(NamedTuple):
    """A file that is being read."""

    fd: int
    file: SessionFile
    record: FileRecord | None
    stop: int
    """Where what counts ends: a batch that is not all there does not."""
    on_bytes_read: OnBytesRead


def scan_changed_file(
    found: SessionFile, past: FileRecord | None, digest: Callable[[], Digest | None], passed: OnBytesRead | None = None
) -> FileScan:
    """What a file says; if it only grew, from where it was left, with the `digest` of what stands before.

    `passed` is told how many bytes were read, now and then.
    """
    try:
        fd = open_regular_fd(found.path)
    except OSError as error:
        return _build_unreadable_scan(found, past, error)
    try:
        status = os.fstat(fd)
        size, cut = find_end(fd, get_lock_path(found.path))
        _, mtime, inode = get_file_stamp(status)
        found = found._replace(size=size, mtime=mtime, inode=inode)
        file = _OpenFile(fd, found, past, size if cut is None else cut, passed or _ignore_bytes)
        before = None
        if past is not None and past.tally is not None and _has_same_start(fd, found, past):
            before = digest()
        return _scan_open_file(file, before)
    except OSError as error:
        return _build_unreadable_scan(found, past, error)
    finally:
        close_quietly(fd)


def _scan_open_file(file: _OpenFile, before: Digest | None) -> FileScan:
    """What an open file says. Whatever goes wrong is this file's problem: the others are listed all the same."""
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


def _has_same_start(fd: int, found: SessionFile, past: FileRecord) -> bool:
    """Whether the file still begins with what was read of it, as far as one can tell without reading it all."""
    if found.inode != past.inode or found.size < past.size or (found.size == past.size and found.mtime != past.mtime):
        return False
    return _compute_mark(fd, past.read_to) == past.mark


def _compute_mark(fd: int, end: int) -> int:
    return zlib.crc32(
        os.pread(fd, min(EDGE_SIZE, end), max(0, end - EDGE_SIZE)), zlib.crc32(os.pread(fd, min(EDGE_SIZE, end), 0))
    )


def _scan_from_start(file: _OpenFile) -> FileScan:
    fd, found, past, stop, _ = file
    reader = SessionReader(found.path)
    body = 0
    try:
        body = _feed_header(fd, reader, stop)
        digest = start_digest(reader)
    except (FormatError, OversizedLine) as error:
        return FileScan(found, past, True, build_broken_summary(found, error.reason), ReadMode.NONE, 0, 0, 0)
    except UnsoundSession:
        return _scan_by_opening(file, body, reader.header.version < VERSION)
    return _scan_lines(file, digest, body=body, start=body)


def _feed_header(fd: int, reader: SessionReader, stop: int) -> int:
    """Feed all that stands before the entries; where it ends. Raises `FormatError` and `Endless`."""
    body = 0
    for raw, end in iter_lines(fd, 0, min(stop, PREAMBLE_LIMIT + LINE_LIMIT), EDGE_SIZE):
        if raw is None:
            raise OversizedLine(reader.where, f"a line before the header is over the limit of {LINE_LIMIT} bytes")
        if body > PREAMBLE_LIMIT:
            raise OversizedLine(reader.where, f"no session header in its first {PREAMBLE_LIMIT >> 10} KiB")
        reader.feed(raw + b"\n")
        body = end
        if reader.has_header:
            break
    return body


def _has_oversized_line(fd: int, stop: int) -> bool:
    """Whether a line is several times over the limit. What is just over it is held, and told, by who opens the file."""
    window = 4 * LINE_LIMIT
    return any(not _has_newline(fd, start, start + window) for start in range(0, stop - window + 1, window))


def _has_newline(fd: int, start: int, stop: int) -> bool:
    return find_next_line(fd, start, stop) < stop or os.pread(fd, 1, stop - 1) == b"\n"


def _scan_lines(file: _OpenFile, digest: Digest, *, body: int, start: int) -> FileScan:
    """The rest of a file, from `start` on."""
    fd, found, past, stop, passed = file
    fresh, first = start == body, digest.totals.entries
    try:
        end, rest = _feed_lines(fd, digest, start, stop, passed)
        tally = _encode(digest.totals)
        entries = _encode(digest.get_links_since(first)) if digest.totals.entries > first else b""
        left = found.size - stop
        if rest and is_complete_line(rest):
            # Without a newline, so more of this line may come: what is kept ends before it.
            _check_utf8(rest)
            digest.feed(rest)
        else:
            left += len(rest)
        digest.check_heads()
    except UnsoundSession:
        if not _has_oversized_line(fd, stop):
            return _scan_by_opening(file, body, False)
        return _build_partial_scan(file, digest, body)
    except _LineTooLong:
        return _build_partial_scan(file, digest, body)
    summary = _build_summary(found, digest.totals, f"the last line is unfinished ({left} bytes)" if left else None)
    mark = _compute_mark(fd, end)
    return FileScan(found, past, fresh, summary, ReadMode.LINES, body, end, mark, tally, first, entries)


def _build_partial_scan(file: _OpenFile, digest: Digest, body: int) -> FileScan:
    """Opening the session would read all of a line that is too long: what was read before it must do."""
    fd, found, past, stop, _ = file
    return FileScan(
        found,
        past,
        True,
        _build_summary(found, digest.totals, OVERSIZED_LINE),
        ReadMode.LINES,
        body,
        _find_last_newline(fd, stop),
        0,
    )


class _LineTooLong(Exception):
    """A line is too long to look into."""


def _feed_lines(fd: int, digest: Digest, start: int, stop: int, passed: OnBytesRead) -> tuple[int, bytes]:
    """Feed all whole lines between two places; where they end, and what follows. Raises `Unsound`."""
    end, size = start, BLOCK_SIZE
    while end < stop and (block := os.pread(fd, min(size, stop - end), end)):
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
            size = min(4 * size, LINE_LIMIT + 1)  # a long line: again, with more of it
    return end, b""


def _check_utf8(lines: bytes) -> None:
    """A digest reads what it needs, and would pass over bytes that are no text. Raises `Unsound`."""
    if not is_utf8(lines):
        raise UnsoundSession


def iter_lines(fd: int, start: int, stop: int, block_size: int = BLOCK_SIZE) -> Generator[tuple[bytes | None, int]]:
    """The lines between two places, without newlines, each with where it ends; `None` for one that is too long."""
    for block, end in iter_blocks(fd, start, stop, block_size):
        if block is None:
            yield None, end
        else:
            lines = block.split(b"\n")
            rest = lines.pop()
            for line in lines:
                start += len(line) + 1
                yield line, start
            if rest:
                yield rest, end
        start = end


def iter_blocks(fd: int, start: int, stop: int, block_size: int = BLOCK_SIZE) -> Generator[tuple[bytes | None, int]]:
    """The same, many lines at a time, with newlines; only the very last may lack one."""
    size = block_size
    while start < stop and (block := os.pread(fd, min(size, stop - start), start)):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield block[:cut], start + cut
            start, size = start + cut, block_size
        elif len(block) < size:
            yield block, start + len(block)
            return
        elif size > LINE_LIMIT:
            start, size = find_next_line(fd, start + size, stop), block_size
            yield None, start
        else:
            size = min(4 * size, LINE_LIMIT + 1)  # a long line: again, with more of it


def find_next_line(fd: int, start: int, stop: int) -> int:
    """Where the line ends that goes on at `start`, at most `stop`."""
    for at, end in _iter_data_ranges(fd, start, stop):
        while at < end and (block := os.pread(fd, min(BLOCK_SIZE, end - at), at)):
            cut = block.find(b"\n") + 1
            if cut:
                return at + cut
            at += len(block)
    return stop


def _iter_data_ranges(fd: int, start: int, stop: int) -> Generator[tuple[int, int]]:
    """The stretches between two places that are really there: a file of any length may be nothing but holes."""
    while start < stop:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
            end = min(os.lseek(fd, start, os.SEEK_HOLE), stop)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            end = stop  # nobody can tell
        yield start, end
        start = end


def _scan_by_opening(file: _OpenFile, body: int, dialect: bool) -> FileScan:
    """What opening the session tells, where a digest does not do."""
    fd, found, past, stop, _ = file
    kind = ReadMode.SESSION if dialect else ReadMode.LINES
    end = found.size if dialect else _find_last_newline(fd, stop)
    try:
        session = open_read_only(found.path)
        summary = _build_summary(found, build_tally(session), find_first_fault(session))
    except FormatError as error:
        return FileScan(found, past, True, build_broken_summary(found, error.reason), ReadMode.NONE, 0, 0, 0)
    except SessionTreeError as error:  # it was replaced or taken away meanwhile
        return FileScan(found, past, True, build_broken_summary(found, str(error)), ReadMode.NONE, 0, NOT_CACHED, 0)
    return FileScan(found, past, True, summary, kind, body, end, 0)


def _find_last_newline(fd: int, stop: int) -> int:
    for first, end in reversed(list(_iter_data_ranges(fd, 0, stop))):
        while end > first:
            start = max(first, end - BLOCK_SIZE)
            cut = os.pread(fd, end - start, start).rfind(b"\n")
            if cut >= 0:
                return start + cut + 1
            end = start
    return 0


def build_tally(session: Session) -> SessionTotals:
    """What a digest would say of a session that was opened."""
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
    """The first thing that is wrong with a session, if anything is."""
    faults = (problem for problem in session.problems if problem.severity == "fault")
    return next((f"line {fault.line}: {fault.message}" if fault.line else fault.message for fault in faults), None)


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
    """As commands and the REST interface give it."""
    return {
        "id": summary.id,
        "name": summary.name,
        "firstMessage": summary.first_message,
        "messageCount": summary.message_count,
        "entryCount": summary.entry_count,
        "branchCount": summary.branch_count,
        "branch": summary.branch,
        "cost": summary.cost,
        "created": summary.created,
        "modified": summary.modified,
        "cwd": summary.cwd,
        "parentSession": summary.parent_session,
        "archived": summary.archived,
        "damaged": summary.is_damaged,
        "damage": summary.damage,
        "file": summary.file,
    }
