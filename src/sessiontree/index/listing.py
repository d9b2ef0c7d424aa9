"""Listing: a summary of every session, read again only as far as its file has changed.

A file that is as it was costs one `stat`. One that has grown is read from where the last whole
line ended, if what stands before is what it was. Anything else is read from its beginning; what
is not sound is opened as a session, which tells what is wrong. Nothing is ever written to a file.
"""

from __future__ import annotations

import enum
import os
import stat
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from sessiontree.comparison import usages
from sessiontree.core.entries import JsonObject, Message
from sessiontree.core.messages import role, spent, text
from sessiontree.core.outline import one_line
from sessiontree.core.times import iso
from sessiontree.errors import FormatError, SessionTreeError
from sessiontree.format.codec import LINE_LIMIT, VERSION, NotJson, read_object
from sessiontree.format.digest import Digest, Tally, Unsound, begin
from sessiontree.format.jsonl import Reader
from sessiontree.index.database import Database, Misfit
from sessiontree.index.folder import Found, id_of
from sessiontree.session import Session
from sessiontree.store.jsonl import JsonlStore

BLOCK = 1 << 16
EDGE = 4096
"""So many bytes of a file's beginning, and of what was read last, tell whether it is still the same."""
BATCH = 64
"""So many files are written at once."""

Progress: TypeAlias = Callable[[int, int], None]
"""Told bytes done and bytes in all."""


Text = TypeVar("Text", str, str | None)


class SessionSummary(Struct, frozen=True, kw_only=True):
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


class _Past(NamedTuple):
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


class _Reading(NamedTuple):
    """What reading a file gave."""

    found: Found
    past: _Past | None
    fresh: bool
    """It was read from its beginning."""
    summary: SessionSummary
    kind: Kind
    body: int
    read_to: int
    mark: int
    tally: bytes | None = None
    first: int = 0
    ids: Sequence[str] = ()
    parents: bytes = b""


_summaries = msgspec.msgpack.Decoder(SessionSummary)
_tallies = msgspec.msgpack.Decoder(Tally)
_encode = msgspec.msgpack.Encoder().encode
_PAST = "id, generation, size, mtime, inode, read_to, body, mark, tally"


def summaries(
    db: Database, found: Sequence[Found], folders: Iterable[str], *, root: str | None = None, progress: Progress | None
) -> list[SessionSummary]:
    """A summary of each file, in the same order.

    `folders` were looked at, and with `root` all there are below it: what is known of other files there is forgotten.
    """
    known = _known(db, folders, root)
    listed: dict[str, SessionSummary] = {}
    stale: list[Found] = []
    for file in found:
        if file.fault is not None:
            listed[file.path] = _broken(file, file.fault)
            continue
        row = known.pop(os.fsencode(file.path), None)
        if row is not None and row[:3] == (file.size, file.mtime, file.inode):
            summary = _summaries.decode(row[3])
            listed[file.path] = summary if summary.file else msgspec.structs.replace(summary, file=file.path)
        else:
            stale.append(file)
    if known:
        _forget(db, list(known))
    for reading in _read_all(db, stale, progress):
        listed[reading.found.path] = reading.summary
    return [
        msgspec.structs.replace(listed[file.path], archived=True) if file.archived else listed[file.path]
        for file in found
    ]


def _known(db: Database, folders: Iterable[str], root: str | None) -> dict[bytes, tuple[int, int, int, bytes]]:
    columns = "path, size, mtime, inode, summary"
    if root is None:
        rows = [
            row
            for folder in folders
            for row in db.execute(f"SELECT {columns} FROM files WHERE folder = ?", (os.fsencode(folder),))
        ]
    else:
        below = os.fsencode(os.path.join(root, ""))
        rows = db.execute(f"SELECT {columns} FROM files WHERE substr(path, 1, ?) = ?", (len(below), below))
    return {row[0]: row[1:] for row in rows}


def _forget(db: Database, paths: list[bytes]) -> None:
    with db.transaction():
        for path in paths:
            row = db.execute("SELECT id FROM files WHERE path = ?", (path,)).fetchone()
            if row is not None:
                for statement in ("files WHERE id = ?", "ids WHERE file = ?", "chunks WHERE file = ?"):
                    db.execute(f"DELETE FROM {statement}", row)


def _read_all(db: Database, stale: list[Found], progress: Progress | None) -> Generator[_Reading]:
    """Read files and keep what they say, a few at a time."""
    total, done = sum(file.size for file in stale), 0
    batch: list[_Reading] = []
    with _without_gc():
        for file in stale:
            row = db.execute(f"SELECT {_PAST} FROM files WHERE path = ?", (os.fsencode(file.path),)).fetchone()
            reading = _read(db, file, None if row is None else _Past(*row))
            yield reading
            batch.append(reading)
            if len(batch) >= BATCH:
                _keep(db, batch)
                batch = []
            done += file.size
            if progress is not None:
                progress(done, total)
        _keep(db, batch)


@contextmanager
def _without_gc() -> Generator[None]:
    """Millions of small values and no cycles among them: looking for some takes a third of the time."""
    import gc

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# Reading one file


def open_regular(path: str) -> int:
    """A regular file, opened for reading: never a link, and never something that blocks. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError("not a regular file")
    return fd


def _read(db: Database, found: Found, past: _Past | None) -> _Reading:
    try:
        fd = open_regular(found.path)
    except OSError as error:
        fault = error.strerror or str(error)
        return _Reading(found, past, True, _broken(found, fault), Kind.NONE, 0, -1, 0)
    try:
        status = os.fstat(fd)
        found = found._replace(size=status.st_size, mtime=status.st_mtime_ns, inode=status.st_ino)
        if past is not None and past.tally is not None and _goes_on(fd, found, past):
            digest = _digest(db, past)
            return _digested(fd, found, past, digest, body=past.body, start=past.read_to)
        return _read_anew(fd, found, past)
    except OSError as error:
        return _Reading(found, past, True, _broken(found, error.strerror or str(error)), Kind.NONE, 0, -1, 0)
    finally:
        os.close(fd)


def _goes_on(fd: int, found: Found, past: _Past) -> bool:
    """Whether the file still begins with what was read of it, as far as one can tell without reading it all."""
    if found.inode != past.inode or found.size < past.size or (found.size == past.size and found.mtime != past.mtime):
        return False
    return _mark(fd, past.read_to) == past.mark


def _mark(fd: int, end: int) -> int:
    return zlib.crc32(os.pread(fd, min(EDGE, end), max(0, end - EDGE)), zlib.crc32(os.pread(fd, min(EDGE, end), 0)))


def _digest(db: Database, past: _Past) -> Digest:
    ids: list[str] = []
    parents = b""
    for names, above in db.execute("SELECT ids, parents FROM ids WHERE file = ? ORDER BY first", (past.id,)):
        ids += msgspec.msgpack.decode(names, type=list[str])
        parents += above
    try:
        return Digest(_tallies.decode(past.tally or b""), ids, parents)
    except ValueError as error:
        raise Misfit from error


def _read_anew(fd: int, found: Found, past: _Past | None) -> _Reading:
    reader = Reader(found.path)
    body = 0
    try:
        for raw, end in lines_of(fd, 0, found.size, EDGE):
            if raw is None:
                raise FormatError(found.path, f"a line before the header is over the limit of {LINE_LIMIT} bytes")
            reader.feed(raw + b"\n")
            body = end
            if reader.has_header:
                break
        digest = begin(reader)
    except FormatError as error:
        return _Reading(found, past, True, _broken(found, error.reason), Kind.NONE, 0, 0, 0)
    except Unsound:
        return _opened(fd, found, past, body, reader.header.version < VERSION)
    return _digested(fd, found, past, digest, body=body, start=body)


def _digested(fd: int, found: Found, past: _Past | None, digest: Digest, *, body: int, start: int) -> _Reading:
    """The rest of a file, from `start` on."""
    fresh, first = start == body, digest.tally.entries
    try:
        end, rest = _take(fd, digest, start)
        tally, (ids, parents) = _encode(digest.tally), digest.since(first)
        damage = None
        if rest and _is_object(rest):
            # Without a newline, so more of this line may come: what is kept ends before it.
            digest.take(rest)
        elif rest.strip():
            damage = f"the last line is unfinished ({len(rest)} bytes)"
        digest.check_heads()
    except Unsound:
        return _opened(fd, found, past, body, False)
    summary = _summary(found, digest.tally, damage)
    mark = _mark(fd, end)
    return _Reading(found, past, fresh, summary, Kind.LINES, body, end, mark, tally, first, ids, parents)


def _take(fd: int, digest: Digest, start: int) -> tuple[int, bytes]:
    """Feed all whole lines from `start` on; where they end, and what follows. Raises `Unsound`."""
    parts: list[bytes] = []
    held, end = 0, start
    while block := os.pread(fd, BLOCK, end + held):
        cut = block.rfind(b"\n") + 1
        if cut:
            data = b"".join([*parts, block[:cut]]) if parts else block if cut == len(block) else block[:cut]
            digest.take(data)
            end += len(data)
            parts, held = [block[cut:]] if cut < len(block) else [], len(block) - cut
        else:
            parts.append(block)
            held += len(block)
            if held > LINE_LIMIT:
                raise Unsound
    return end, b"".join(parts)


def lines_of(fd: int, start: int, stop: int, block_size: int = BLOCK) -> Generator[tuple[bytes | None, int]]:
    """The lines between two places, without newlines, each with where it ends; `None` for one that is too long."""
    parts: list[bytes] = []
    held, at = 0, start
    while at < stop and (block := os.pread(fd, min(block_size, stop - at), at)):
        at += len(block)
        if held > LINE_LIMIT:
            parts = []  # it is too long already: only its end matters
        *lines, rest = block.split(b"\n")
        if lines:
            first = lines[0] if not parts else b"".join([*parts, lines[0]])
            start += held + len(lines[0]) + 1
            yield first if held + len(lines[0]) <= LINE_LIMIT else None, start
            for line in lines[1:]:
                start += len(line) + 1
                yield line, start
            parts, held = [], 0
        if rest:
            parts.append(rest)
            held += len(rest)
    if held:
        yield b"".join(parts) if held <= LINE_LIMIT else None, start + held


def _is_object(raw: bytes) -> bool:
    try:
        read_object(raw)
    except NotJson:
        return False
    return True


def _opened(fd: int, found: Found, past: _Past | None, body: int, dialect: bool) -> _Reading:
    """What opening the session tells, where a digest does not do."""
    kind = Kind.SESSION if dialect else Kind.LINES
    end = found.size if dialect else _last_newline(fd, found.size)
    try:
        session = Session(JsonlStore(found.path), read_only="it is being listed")
        summary = _summary(found, _tally(session), _fault(session))
    except FormatError as error:
        return _Reading(found, past, True, _broken(found, error.reason), Kind.NONE, 0, 0, 0)
    except SessionTreeError as error:  # it was replaced or taken away meanwhile
        return _Reading(found, past, True, _broken(found, str(error)), Kind.NONE, 0, -1, 0)
    return _Reading(found, past, True, summary, kind, body, end, 0)


def _last_newline(fd: int, end: int) -> int:
    while end > 0:
        start = max(0, end - BLOCK)
        cut = os.pread(fd, end - start, start).rfind(b"\n")
        if cut >= 0:
            return start + cut + 1
        end = start
    return 0


def _tally(session: Session) -> Tally:
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


def _fault(session: Session) -> str | None:
    faults = (problem for problem in session.problems if problem.severity == "fault")
    return next((f"line {fault.line}: {fault.message}" if fault.line else fault.message for fault in faults), None)


def _summary(found: Found, tally: Tally, damage: str | None) -> SessionSummary:
    return SessionSummary(
        id=_clean(tally.id),
        file=found.path,
        name=_clean(tally.session_name),
        first_message=_clean(tally.first_message),
        message_count=tally.messages,
        entry_count=tally.entries,
        branch_count=tally.branches,
        branch=_clean(tally.current),
        cost=round(tally.cost, 10),
        created=_clean(tally.created),
        modified=iso(found.mtime // 1_000_000),
        cwd=_clean(tally.cwd),
        parent_session=_clean(tally.parent_session),
        damage=_clean(damage),
    )


def _broken(found: Found, fault: str) -> SessionSummary:
    return SessionSummary(
        id=_clean(id_of(found.path)), file=found.path, modified=iso(found.mtime // 1_000_000), damage=_clean(fault)
    )


def _clean(text: Text) -> Text:
    """`text` without what UTF-8 cannot hold."""
    return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode()


# Keeping it


def _keep(db: Database, batch: list[_Reading]) -> None:
    """Write what was read, where nobody else has in the meantime."""
    kept = [reading for reading in batch if reading.read_to >= 0]
    if kept:
        with db.transaction():
            for reading in kept:
                _keep_one(db, reading)


def _keep_one(db: Database, reading: _Reading) -> None:
    found, past, path = reading.found, reading.past, os.fsencode(reading.found.path)
    row = db.execute(f"SELECT {_PAST} FROM files WHERE path = ?", (path,)).fetchone()
    if (None if row is None else _Past(*row)) != past:
        return  # another process was faster
    values = {
        "path": path,
        "folder": os.path.dirname(path),
        "size": found.size,
        "mtime": found.mtime,
        "inode": found.inode,
        "summary": _encode(_storable(reading.summary)),
        "kind": int(reading.kind),
        "body": reading.body,
        "read_to": reading.read_to,
        "mark": reading.mark,
        "tally": reading.tally,
        "generation": 0 if past is None else past.generation + reading.fresh,
    }
    if past is None:
        marks = ", ".join(f":{name}" for name in values)
        id = db.execute(f"INSERT INTO files ({', '.join(values)}) VALUES ({marks})", values).lastrowid
    else:
        id = past.id
        sets = ", ".join(f"{name} = :{name}" for name in values)
        db.execute(f"UPDATE files SET {sets} WHERE id = :id", {**values, "id": id})
        if reading.fresh:
            db.execute("UPDATE files SET text_to = 0 WHERE id = ?", (id,))
            db.execute("DELETE FROM ids WHERE file = ?", (id,))
            db.execute("DELETE FROM chunks WHERE file = ?", (id,))
    if reading.ids:
        db.execute("INSERT INTO ids VALUES (?, ?, ?, ?)", (id, reading.first, _encode(reading.ids), reading.parents))


def _storable(summary: SessionSummary) -> SessionSummary:
    """A file name that is no UTF-8 is left out: the one on the disk is put in when it is listed."""
    try:
        summary.file.encode()
    except UnicodeEncodeError:
        return msgspec.structs.replace(summary, file="")
    return summary


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
