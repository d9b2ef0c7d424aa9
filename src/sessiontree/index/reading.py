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

from sessiontree.comparison import usages
from sessiontree.core.entries import JsonObject, Message
from sessiontree.core.messages import role, spent, text
from sessiontree.core.outline import one_line
from sessiontree.core.problems import is_utf8
from sessiontree.core.safe import encodable
from sessiontree.core.times import iso
from sessiontree.errors import FormatError, SessionTreeError, StoreError, isolate_errors
from sessiontree.format.codec import LINE_LIMIT, VERSION
from sessiontree.format.digest import Digest, Tally, Unsound, begin
from sessiontree.format.jsonl import PREAMBLE_LIMIT, Reader, is_whole_line
from sessiontree.index.folder import Found, id_of, stamp_of
from sessiontree.session import Session
from sessiontree.store.batch import end_of
from sessiontree.store.files import open_at_once, reason_of, shut
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.lock import lock_of

BLOCK = 1 << 17
EDGE = 4096
"""So many bytes of a file's beginning, and of what was read last, tell whether it is still the same."""
ENDLESS = f"a line is over the limit of {LINE_LIMIT} bytes"
NOT_KEPT = -1
"""In place of where a file was read to: it could not be read, and may be another time."""

Passed: TypeAlias = Callable[[int], None]
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
    def damaged(self) -> bool:
        return self.damage is not None


class Kind(enum.IntEnum):
    """How the entries of a file are read for their text."""

    LINES = 0
    """Line by line."""
    SESSION = 1
    """As a session: it is in an older dialect."""
    NONE = 2
    """Not at all."""


class Past(NamedTuple):
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


class Reading(NamedTuple):
    """What reading a file gave."""

    found: Found
    past: Past | None
    fresh: bool
    """It was read from its beginning."""
    summary: SessionSummary
    kind: Kind
    body: int
    read_to: int
    mark: int
    tally: bytes | None = None
    first: int = 0
    entries: bytes = b""
    """The ids of the entries from number `first` on, and the numbers of their parents."""


def open_regular(path: str) -> int:
    """A regular file, opened for reading: never a link, and never something that blocks. Raises `OSError`."""
    fd = open_at_once(path, os.O_RDONLY | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        shut(fd)
        raise OSError("not a regular file")
    return fd


def open_session(path: str) -> Session:
    """Raises what opening raises, and what `check_size` does."""
    check_size(path)
    return Session(JsonlStore(path), read_only="it is only looked at")


class Endless(StoreError):
    """A line, or what stands before the header, is longer than anybody should hold in memory."""


def check_size(path: str) -> None:
    """Refuse a file that opening would take too much memory for. Raises `Endless`, and `StoreError`."""
    try:
        fd = open_regular(path)
    except OSError:
        return  # what is wrong with it is told by who opens it
    try:
        stop = os.fstat(fd).st_size
        with suppress(FormatError):  # told by who opens it, too
            _take_header(fd, Reader(path), stop)
        if _is_endless(fd, stop):
            raise Endless(path, ENDLESS)
    except OSError as error:
        raise StoreError(path, reason_of(error)) from error
    finally:
        shut(fd)


def read_anew(found: Found, passed: Passed | None = None) -> Reading:
    """What a file says, of which nothing is known."""
    return read_on(found, None, lambda: None, passed)


def _to_nobody(size: int) -> None:
    """Nobody follows how far it is."""


class _Open(NamedTuple):
    """A file that is being read."""

    fd: int
    found: Found
    past: Past | None
    stop: int
    """Where what counts ends: a batch that is not all there does not."""
    passed: Passed


def read_on(
    found: Found, past: Past | None, digest: Callable[[], Digest | None], passed: Passed | None = None
) -> Reading:
    """What a file says; if it only grew, from where it was left, with the `digest` of what stands before.

    `passed` is told how many bytes were read, now and then.
    """
    try:
        fd = open_regular(found.path)
    except OSError as error:
        return _unreadable(found, past, error)
    try:
        status = os.fstat(fd)
        size, cut = end_of(fd, lock_of(found.path))
        _, mtime, inode = stamp_of(status)
        found = found._replace(size=size, mtime=mtime, inode=inode)
        file = _Open(fd, found, past, size if cut is None else cut, passed or _to_nobody)
        before = None
        if past is not None and past.tally is not None and _goes_on(fd, found, past):
            before = digest()
        return _read(file, before)
    except OSError as error:
        return _unreadable(found, past, error)
    finally:
        shut(fd)


def _read(file: _Open, before: Digest | None) -> Reading:
    """What an open file says. Whatever goes wrong is this file's problem: the others are listed all the same."""
    found, past = file.found, file.past
    try:
        with isolate_errors(found.path):
            if before is None or past is None:
                return _read_from_the_beginning(file)
            return _digested(file, before, body=past.body, start=past.read_to)
    except StoreError as error:
        return Reading(found, past, True, broken(found, error.reason), Kind.NONE, 0, NOT_KEPT, 0)


def _unreadable(found: Found, past: Past | None, error: OSError) -> Reading:
    return Reading(found, past, True, broken(found, reason_of(error)), Kind.NONE, 0, NOT_KEPT, 0)


def _goes_on(fd: int, found: Found, past: Past) -> bool:
    """Whether the file still begins with what was read of it, as far as one can tell without reading it all."""
    if found.inode != past.inode or found.size < past.size or (found.size == past.size and found.mtime != past.mtime):
        return False
    return _mark(fd, past.read_to) == past.mark


def _mark(fd: int, end: int) -> int:
    return zlib.crc32(os.pread(fd, min(EDGE, end), max(0, end - EDGE)), zlib.crc32(os.pread(fd, min(EDGE, end), 0)))


def _read_from_the_beginning(file: _Open) -> Reading:
    fd, found, past, stop, _ = file
    reader = Reader(found.path)
    body = 0
    try:
        body = _take_header(fd, reader, stop)
        digest = begin(reader)
    except (FormatError, Endless) as error:
        return Reading(found, past, True, broken(found, error.reason), Kind.NONE, 0, 0, 0)
    except Unsound:
        return _opened(file, body, reader.header.version < VERSION)
    return _digested(file, digest, body=body, start=body)


def _take_header(fd: int, reader: Reader, stop: int) -> int:
    """Feed all that stands before the entries; where it ends. Raises `FormatError` and `Endless`."""
    body = 0
    for raw, end in lines_of(fd, 0, min(stop, PREAMBLE_LIMIT + LINE_LIMIT), EDGE):
        if raw is None:
            raise Endless(reader.where, f"a line before the header is over the limit of {LINE_LIMIT} bytes")
        if body > PREAMBLE_LIMIT:
            raise Endless(reader.where, f"no session header in its first {PREAMBLE_LIMIT >> 10} KiB")
        reader.feed(raw + b"\n")
        body = end
        if reader.has_header:
            break
    return body


def _is_endless(fd: int, stop: int) -> bool:
    """Whether a line is several times over the limit. What is just over it is held, and told, by who opens the file."""
    window = 4 * LINE_LIMIT
    return any(not _has_newline(fd, start, start + window) for start in range(0, stop - window + 1, window))


def _has_newline(fd: int, start: int, stop: int) -> bool:
    return next_line(fd, start, stop) < stop or os.pread(fd, 1, stop - 1) == b"\n"


def _digested(file: _Open, digest: Digest, *, body: int, start: int) -> Reading:
    """The rest of a file, from `start` on."""
    fd, found, past, stop, passed = file
    fresh, first = start == body, digest.tally.entries
    try:
        end, rest = _take(fd, digest, start, stop, passed)
        tally = _encode(digest.tally)
        entries = _encode(digest.since(first)) if digest.tally.entries > first else b""
        left = found.size - stop
        if rest and is_whole_line(rest):
            # Without a newline, so more of this line may come: what is kept ends before it.
            _check(rest)
            digest.take(rest)
        else:
            left += len(rest)
        digest.check_heads()
    except Unsound:
        if not _is_endless(fd, stop):
            return _opened(file, body, False)
        return _as_far_as_read(file, digest, body)
    except _TooLong:
        return _as_far_as_read(file, digest, body)
    summary = _summary(found, digest.tally, f"the last line is unfinished ({left} bytes)" if left else None)
    mark = _mark(fd, end)
    return Reading(found, past, fresh, summary, Kind.LINES, body, end, mark, tally, first, entries)


def _as_far_as_read(file: _Open, digest: Digest, body: int) -> Reading:
    """Opening the session would read all of a line that is too long: what was read before it must do."""
    fd, found, past, stop, _ = file
    return Reading(
        found, past, True, _summary(found, digest.tally, ENDLESS), Kind.LINES, body, _last_newline(fd, stop), 0
    )


class _TooLong(Exception):
    """A line is too long to look into."""


def _take(fd: int, digest: Digest, start: int, stop: int, passed: Passed) -> tuple[int, bytes]:
    """Feed all whole lines between two places; where they end, and what follows. Raises `Unsound`."""
    end, size = start, BLOCK
    while end < stop and (block := os.pread(fd, min(size, stop - end), end)):
        cut = block.rfind(b"\n") + 1
        if cut:
            lines = block[:cut]
            _check(lines)
            digest.take(lines)
            passed(cut)
            end, size = end + cut, BLOCK
        elif len(block) < size:
            return end, block
        elif size > LINE_LIMIT:
            raise _TooLong
        else:
            size = min(4 * size, LINE_LIMIT + 1)  # a long line: again, with more of it
    return end, b""


def _check(lines: bytes) -> None:
    """A digest reads what it needs, and would pass over bytes that are no text. Raises `Unsound`."""
    if not is_utf8(lines):
        raise Unsound


def lines_of(fd: int, start: int, stop: int, block_size: int = BLOCK) -> Generator[tuple[bytes | None, int]]:
    """The lines between two places, without newlines, each with where it ends; `None` for one that is too long."""
    for block, end in blocks_of(fd, start, stop, block_size):
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


def blocks_of(fd: int, start: int, stop: int, block_size: int = BLOCK) -> Generator[tuple[bytes | None, int]]:
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
            start, size = next_line(fd, start + size, stop), block_size
            yield None, start
        else:
            size = min(4 * size, LINE_LIMIT + 1)  # a long line: again, with more of it


def next_line(fd: int, start: int, stop: int) -> int:
    """Where the line ends that goes on at `start`, at most `stop`."""
    for at, end in _data(fd, start, stop):
        while at < end and (block := os.pread(fd, min(BLOCK, end - at), at)):
            cut = block.find(b"\n") + 1
            if cut:
                return at + cut
            at += len(block)
    return stop


def _data(fd: int, start: int, stop: int) -> Generator[tuple[int, int]]:
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


def _opened(file: _Open, body: int, dialect: bool) -> Reading:
    """What opening the session tells, where a digest does not do."""
    fd, found, past, stop, _ = file
    kind = Kind.SESSION if dialect else Kind.LINES
    end = found.size if dialect else _last_newline(fd, stop)
    try:
        session = open_session(found.path)
        summary = _summary(found, tally_of(session), first_fault(session))
    except FormatError as error:
        return Reading(found, past, True, broken(found, error.reason), Kind.NONE, 0, 0, 0)
    except SessionTreeError as error:  # it was replaced or taken away meanwhile
        return Reading(found, past, True, broken(found, str(error)), Kind.NONE, 0, NOT_KEPT, 0)
    return Reading(found, past, True, summary, kind, body, end, 0)


def _last_newline(fd: int, stop: int) -> int:
    for first, end in reversed(list(_data(fd, 0, stop))):
        while end > first:
            start = max(first, end - BLOCK)
            cut = os.pread(fd, end - start, start).rfind(b"\n")
            if cut >= 0:
                return start + cut + 1
            end = start
    return 0


def tally_of(session: Session) -> Tally:
    """What a digest would say of a session that was opened."""
    tree, heads, header = session.tree, session.heads, session.header
    tally = Tally(
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
    for entry in tree:
        body = entry.decoded()
        tally.cost += sum(sums.cost for usage in usages(body) if (sums := spent(usage)) is not None)
        if isinstance(body, Message):
            tally.messages += 1
            if tally.first_message is None and role(body.message) == "user":
                tally.first_message = one_line(text(body.message.get("content"))) or None
    return tally


def first_fault(session: Session) -> str | None:
    """The first thing that is wrong with a session, if anything is."""
    faults = (problem for problem in session.problems if problem.severity == "fault")
    return next((f"line {fault.line}: {fault.message}" if fault.line else fault.message for fault in faults), None)


def _summary(found: Found, tally: Tally, damage: str | None) -> SessionSummary:
    return SessionSummary(
        id=encodable(tally.id),
        file=found.path,
        name=encodable(tally.session_name),
        first_message=encodable(tally.first_message),
        message_count=tally.messages,
        entry_count=tally.entries,
        branch_count=tally.branches,
        branch=encodable(tally.current),
        cost=round(float(tally.cost), 10),
        created=encodable(tally.created),
        modified=iso(found.mtime // 1_000_000),
        cwd=encodable(tally.cwd),
        parent_session=encodable(tally.parent_session),
        damage=encodable(damage),
    )


def broken(found: Found, fault: str) -> SessionSummary:
    return SessionSummary(
        id=encodable(id_of(found.path)),
        file=found.path,
        modified=iso(found.mtime // 1_000_000),
        damage=encodable(fault),
    )


def summary_to_wire(summary: SessionSummary) -> JsonObject:
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
        "damaged": summary.damaged,
        "damage": summary.damage,
        "file": summary.file,
    }
