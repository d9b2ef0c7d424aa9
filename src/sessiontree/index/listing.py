"""Listing: a summary of every session, by way of the index.

A file that is as it was costs one `stat`; the others are read (`reading`), and what they say is kept
for the next time.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeAlias

import msgspec

from sessiontree.format.digest import Digest, Kept, Tally
from sessiontree.index.database import FILE_CHECKSUM, Database, Misfit, checksum_of
from sessiontree.index.folder import Found, is_text
from sessiontree.index.helpers import helpers_for
from sessiontree.index.reading import NOT_KEPT, Passed, Past, Reading, SessionSummary, broken, read_anew, read_on

BATCH = 64
"""So many files are written at once."""

Progress: TypeAlias = Callable[[int, int], None]
"""Told bytes done and bytes in all."""

_summaries = msgspec.msgpack.Decoder(SessionSummary)
_tallies = msgspec.msgpack.Decoder(Tally)
_kept = msgspec.msgpack.Decoder(Kept)
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
    stale: list[tuple[Found, bool]] = []
    for file in found:
        path = file.path
        if file.fault is not None:
            listed[path] = broken(file, file.fault)
            continue
        row = known.pop(os.fsencode(path), None)
        if row is not None and row[1:4] == file[1:4]:  # size, time and inode
            try:
                if zlib.crc32(row[4]) != row[5]:
                    raise Misfit
                summary = _summaries.decode(row[4])
            except TypeError as error:
                raise Misfit from error
            listed[path] = summary if summary.file else msgspec.structs.replace(summary, file=path)
        else:
            stale.append((file, row is not None))
    if known:
        db.keep(lambda: _forget(db, list(known)))
    for reading in _read_all(db, stale, progress):
        listed[reading.found.path] = reading.summary
    return [
        msgspec.structs.replace(listed[file.path], archived=True) if file.archived else listed[file.path]
        for file in found
    ]


def _known(
    db: Database, folders: Iterable[str], root: str | None
) -> dict[bytes, tuple[bytes, int, int, int, bytes, int]]:
    columns = "path, size, mtime, inode, summary, summary_check"
    if root is None:
        rows = [
            row
            for folder in folders
            for row in db.execute(f"SELECT {columns} FROM files WHERE folder = ?", (os.fsencode(folder),))
        ]
    else:
        below = os.fsencode(os.path.join(root, ""))
        rows = db.execute(f"SELECT {columns} FROM files WHERE substr(path, 1, ?) = ?", (len(below), below)).fetchall()
    return {row[0]: row for row in rows}


def _forget(db: Database, paths: list[bytes]) -> None:
    for path in paths:
        row = db.execute("SELECT id FROM files WHERE path = ?", (path,)).fetchone()
        if row is not None:
            for statement in ("files WHERE id = ?", "entries WHERE file = ?", "chunks WHERE file = ?"):
                db.execute(f"DELETE FROM {statement}", row)


def _read_all(db: Database, stale: list[tuple[Found, bool]], progress: Progress | None) -> Generator[Reading]:
    """Read files, each with whether it is known already, and keep what they say, a few at a time."""
    total, done, within = sum(file.size for file, _ in stale), 0, 0
    batch: list[Reading] = []

    def passed(size: int) -> None:
        """So many bytes of a file were read, which is not done yet."""
        nonlocal within
        within += size
        if progress is not None:
            progress(min(done + within, total), total)

    def took(reading: Reading) -> Reading:
        nonlocal done, within
        batch.append(reading)
        if len(batch) >= BATCH:
            _keep(db, batch)
            batch.clear()
        done, within = done + reading.found.size, 0
        passed(0)
        return reading

    helpers = helpers_for([file for file, is_known in stale if not is_known])
    try:
        elsewhere = {file.path for helper in helpers for file in helper.share}
        for file, is_known in stale:
            if file.path not in elsewhere:
                yield took(_read(db, file, passed) if is_known else read_anew(file, passed))
        for helper in helpers:
            yield from map(took, helper.readings())
    finally:
        for helper in helpers:
            helper.close()
    _keep(db, batch)


def digest_of(db: Database, path: str) -> Digest | None:
    """What is known of how the entries of a file hang together; `None` unless all of it is."""
    past = _past(db, path)
    return None if past is None or past.tally is None or past.read_to < past.size else _digest(db, past)


def _past(db: Database, path: str) -> Past | None:
    statement = f"SELECT checksum = {FILE_CHECKSUM}, {_PAST} FROM files WHERE path = ?"
    row = db.execute(statement, (os.fsencode(path),)).fetchone()
    if row is None:
        return None
    if not row[0]:
        raise Misfit
    return msgspec.convert(row[1:], Past)


def _read(db: Database, file: Found, passed: Passed) -> Reading:
    past = _past(db, file.path)
    return read_anew(file, passed) if past is None else read_on(file, past, lambda: _digest(db, past), passed)


def _digest(db: Database, past: Past) -> Digest:
    rows = db.execute("SELECT file, first, entries, checksum FROM entries WHERE file = ? ORDER BY first", (past.id,))
    try:
        return Digest(_tallies.decode(past.tally or b""), [_checked(*row) for row in rows])
    except (TypeError, ValueError) as error:
        raise Misfit from error


def _checked(file: int, first: int, entries: bytes, checksum: int) -> Kept:
    if checksum_of(file, first, entries) != checksum:
        raise Misfit
    return _kept.decode(entries)


# Keeping it


def _keep(db: Database, batch: list[Reading]) -> None:
    """Write what was read, where nobody else has in the meantime."""
    kept = [reading for reading in batch if reading.read_to != NOT_KEPT]

    def write() -> None:
        for reading in kept:
            _keep_one(db, reading)

    if kept:
        db.keep(write)


_COLUMNS = (
    "path", "folder", "size", "mtime", "inode", "summary", "summary_check", "kind", "body", "read_to", "mark", "tally",
    "generation",
)  # fmt: skip
_INSERT = f"INSERT OR IGNORE INTO files ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_UPDATE = f"UPDATE files SET {', '.join(f'{name} = ?' for name in _COLUMNS)} WHERE id = ?"


def _keep_one(db: Database, reading: Reading) -> None:
    found, past, path = reading.found, reading.past, os.fsencode(reading.found.path)
    summary = _encode(_storable(reading.summary))
    values = (
        path,
        os.path.dirname(path),
        found.size,
        found.mtime,
        found.inode,
        summary,
        zlib.crc32(summary),
        reading.kind,
        reading.body,
        reading.read_to,
        reading.mark,
        reading.tally,
        0 if past is None else past.generation + reading.fresh,
    )
    if past is None:
        inserted = db.execute(_INSERT, values)
        if not inserted.rowcount:
            return  # another process was faster
        id = inserted.lastrowid
    else:
        if _past(db, found.path) != past:
            return
        id = past.id
        db.execute(_UPDATE, (*values, id))
        if reading.fresh:
            db.execute("UPDATE files SET text_to = 0 WHERE id = ?", (id,))
            db.execute("DELETE FROM entries WHERE file = ?", (id,))
            db.execute("DELETE FROM chunks WHERE file = ?", (id,))
    db.execute(f"UPDATE files SET checksum = {FILE_CHECKSUM} WHERE id = ?", (id,))
    if reading.entries:
        kept = (id, reading.first, reading.entries)
        db.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (*kept, checksum_of(*kept)))


def _storable(summary: SessionSummary) -> SessionSummary:
    """A file name that is no UTF-8 is left out: the one on the disk is put in when it is listed."""
    return summary if is_text(summary.file) else msgspec.structs.replace(summary, file="")
