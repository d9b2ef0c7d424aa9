"""Listing: summarize many session files with the help of the index.

An unchanged file costs one `stat`. The others are read, and the result is cached. When there is a lot to read, other
processes read a share of the files: decoding is CPU-bound, so threads would not help.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from typing import IO, TypeAlias

import msgspec

from sessiontree.format.digest import Digest, EntryLinks, SessionTotals
from sessiontree.home import build_self_command
from sessiontree.library.index.index_database import FILE_CHECKSUM, IndexDatabase, IndexMismatch, compute_checksum
from sessiontree.library.index.session_summary import (
    NOT_CACHED,
    FileRecord,
    FileScan,
    OnBytesRead,
    SessionSummary,
    build_broken_summary,
    scan_changed_file,
    scan_file,
)
from sessiontree.library.session_files import SessionFile, is_text, pause_gc
from sessiontree.store.jsonl import JsonlStore

BATCH_SIZE = 64
"""How many files are saved in one transaction."""
MAX_PROCESSES = 4
"""How many processes read, this one included."""
MIN_SHARE_SIZE = 48 << 20
"""Bytes per process below which starting one takes longer than it saves."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done and the bytes in total."""

_summary_decoder = msgspec.msgpack.Decoder(SessionSummary)
_tally_decoder = msgspec.msgpack.Decoder(SessionTotals)
_entries_decoder = msgspec.msgpack.Decoder(EntryLinks)
_files_decoder = msgspec.msgpack.Decoder(list[SessionFile])
_scan_decoder = msgspec.msgpack.Decoder(FileScan)
_encode = msgspec.msgpack.Encoder().encode
_LENGTH_SIZE = 8
_RECORD_COLUMNS = "id, generation, size, mtime, inode, read_to, body, mark, tally"


def list_summaries(
    db: IndexDatabase,
    found: Sequence[SessionFile],
    folders: Iterable[str],
    *,
    root: str | None = None,
    progress: Progress | None,
) -> list[SessionSummary]:
    """Return a summary of each file, in the same order.

    `folders` were listed completely, and with `root` all folders below it: records of other files there are deleted.
    """
    known = _load_rows(db, folders, root)
    listed: dict[str, SessionSummary] = {}
    stale: list[tuple[SessionFile, bool]] = []
    for file in found:
        path = file.path
        if file.fault is not None:
            listed[path] = build_broken_summary(file, file.fault)
            continue
        row = known.pop(os.fsencode(path), None)
        if row is not None and row[1:4] == file[1:4]:  # size, time and inode
            try:
                if zlib.crc32(row[4]) != row[5]:
                    raise IndexMismatch
                summary = _summary_decoder.decode(row[4])
            except TypeError as error:
                raise IndexMismatch from error
            listed[path] = summary if summary.file else msgspec.structs.replace(summary, file=path)
        else:
            stale.append((file, row is not None))
    if known:
        db.save(lambda: _delete_files(db, list(known)))
    for reading in _scan_stale(db, stale, progress):
        listed[reading.file.path] = reading.summary
    return [
        msgspec.structs.replace(listed[file.path], archived=True) if file.archived else listed[file.path]
        for file in found
    ]


def _load_rows(
    db: IndexDatabase, folders: Iterable[str], root: str | None
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


def _delete_files(db: IndexDatabase, paths: list[bytes]) -> None:
    for path in paths:
        row = db.execute("SELECT id FROM files WHERE path = ?", (path,)).fetchone()
        if row is not None:
            for statement in ("files WHERE id = ?", "entries WHERE file = ?", "chunks WHERE file = ?"):
                db.execute(f"DELETE FROM {statement}", row)


def _scan_stale(
    db: IndexDatabase, stale: list[tuple[SessionFile, bool]], progress: Progress | None
) -> Generator[FileScan]:
    """Read files, each given with whether the index knows it, and save the results in batches."""
    total, done, within = sum(file.size for file, _ in stale), 0, 0
    batch: list[FileScan] = []

    def report_bytes(size: int) -> None:
        """Report progress within a file."""
        nonlocal within
        within += size
        if progress is not None:
            progress(min(done + within, total), total)

    def record_scan(reading: FileScan) -> FileScan:
        nonlocal done, within
        batch.append(reading)
        if len(batch) >= BATCH_SIZE:
            _save_scans(db, batch)
            batch.clear()
        done, within = done + reading.file.size, 0
        report_bytes(0)
        return reading

    unknown = [file for file, is_known in stale if not is_known]
    helpers = start_readers(unknown) if db.open_store is JsonlStore else []
    try:
        elsewhere = {file.path for helper in helpers for file in helper.share}
        for file, is_known in stale:
            if file.path not in elsewhere:
                yield record_scan(
                    _scan_known(db, file, report_bytes) if is_known else scan_file(file, report_bytes, db.open_store)
                )
        for helper in helpers:
            yield from map(record_scan, helper.iter_scans())
    finally:
        for helper in helpers:
            helper.close()
    _save_scans(db, batch)


def load_digest(db: IndexDatabase, path: str) -> Digest | None:
    """Load the links between the entries of a file; `None` unless all of them are indexed."""
    past = _load_record(db, path)
    return None if past is None or past.tally is None or past.read_to < past.size else _build_digest(db, past)


def _load_record(db: IndexDatabase, path: str) -> FileRecord | None:
    statement = f"SELECT checksum = {FILE_CHECKSUM}, {_RECORD_COLUMNS} FROM files WHERE path = ?"
    row = db.execute(statement, (os.fsencode(path),)).fetchone()
    if row is None:
        return None
    if not row[0]:
        raise IndexMismatch
    return msgspec.convert(row[1:], FileRecord)


def _scan_known(db: IndexDatabase, file: SessionFile, passed: OnBytesRead) -> FileScan:
    past = _load_record(db, file.path)
    return (
        scan_file(file, passed, db.open_store)
        if past is None
        else scan_changed_file(file, past, lambda: _build_digest(db, past), passed, db.open_store)
    )


def _build_digest(db: IndexDatabase, past: FileRecord) -> Digest:
    rows = db.execute("SELECT file, first, entries, checksum FROM entries WHERE file = ? ORDER BY first", (past.id,))
    try:
        return Digest(_tally_decoder.decode(past.tally or b""), [_decode_entries(*row) for row in rows])
    except (TypeError, ValueError) as error:
        raise IndexMismatch from error


def _decode_entries(file: int, first: int, entries: bytes, checksum: int) -> EntryLinks:
    if compute_checksum(file, first, entries) != checksum:
        raise IndexMismatch
    return _entries_decoder.decode(entries)


# Saving


def _save_scans(db: IndexDatabase, batch: list[FileScan]) -> None:
    """Save the scans, unless another process has done so."""
    kept = [reading for reading in batch if reading.read_to != NOT_CACHED]

    def write() -> None:
        for reading in kept:
            _save_scan(db, reading)

    if kept:
        db.save(write)


_FILE_COLUMNS = (
    "path", "folder", "size", "mtime", "inode", "summary", "summary_check", "kind", "body", "read_to", "mark", "tally",
    "generation",
)  # fmt: skip
_INSERT = f"INSERT OR IGNORE INTO files ({', '.join(_FILE_COLUMNS)}) VALUES ({', '.join('?' * len(_FILE_COLUMNS))})"
_UPDATE = f"UPDATE files SET {', '.join(f'{name} = ?' for name in _FILE_COLUMNS)} WHERE id = ?"


def _save_scan(db: IndexDatabase, reading: FileScan) -> None:
    found, past, path = reading.file, reading.record, os.fsencode(reading.file.path)
    summary = _encode(_drop_unencodable_name(reading.summary))
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
        0 if past is None else past.generation + reading.is_fresh,
    )
    if past is None:
        inserted = db.execute(_INSERT, values)
        if not inserted.rowcount:
            return  # another process was faster
        id = inserted.lastrowid
    else:
        if _load_record(db, found.path) != past:
            return
        id = past.id
        db.execute(_UPDATE, (*values, id))
        if reading.is_fresh:
            db.execute("UPDATE files SET text_to = 0 WHERE id = ?", (id,))
            db.execute("DELETE FROM entries WHERE file = ?", (id,))
            db.execute("DELETE FROM chunks WHERE file = ?", (id,))
    db.execute(f"UPDATE files SET checksum = {FILE_CHECKSUM} WHERE id = ?", (id,))
    if reading.entries:
        kept = (id, reading.first, reading.entries)
        db.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (*kept, compute_checksum(*kept)))


def _drop_unencodable_name(summary: SessionSummary) -> SessionSummary:
    """Drop a file name that is not UTF-8. Listing fills it in again."""
    return summary if is_text(summary.file) else msgspec.structs.replace(summary, file="")


# Reading in several processes


class ReaderProcess:
    """A process that scans a share of the files, from the first one on. It does not use the index.

    It runs this same program. The parent scans the files that a slow or failed reader did not finish.
    """

    def __init__(self, share: Sequence[SessionFile]) -> None:
        import subprocess
        import tempfile

        self.share = share
        self._finished: list[FileScan] = []
        self._position = 0
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with tempfile.TemporaryFile() as given:
            given.write(_encode(share))
            given.seek(0)
            self._process = subprocess.Popen(
                build_self_command(__name__), stdin=given, stdout=self._output, stderr=subprocess.DEVNULL
            )

    def iter_scans(self) -> Generator[FileScan]:
        """Yield the scans of the share, in any order.

        The reader works from one end and the caller from the other: the caller never waits for a slow or dead reader.
        """
        left = len(self.share)
        while left > self._read_finished():
            left -= 1
            yield scan_file(self.share[left])
        yield from self._finished[:left]

    def _read_finished(self) -> int:
        """Return how many files it has finished."""
        fd = self._output.fileno()
        while head := os.pread(fd, _LENGTH_SIZE, self._position):
            size = int.from_bytes(head, "big")
            data = os.pread(fd, size, self._position + _LENGTH_SIZE)
            if len(head) < _LENGTH_SIZE or len(data) < size:
                break  # still being written
            try:
                self._finished.append(_scan_decoder.decode(data))
            except msgspec.MsgspecError:
                break
            self._position += _LENGTH_SIZE + size
        return len(self._finished)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()


def start_readers(files: Sequence[SessionFile]) -> list[ReaderProcess]:
    """Start readers for all but one share of the files; none if it is not worth it."""
    files = [file for file in files if is_text(file.path)]
    count = min(MAX_PROCESSES, _count_processors(), sum(file.size for file in files) // MIN_SHARE_SIZE)
    if count < 2 or not sys.executable:
        return []
    shares: list[list[SessionFile]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda file: file.size, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(file)
        sizes[least] += file.size
    helpers: list[ReaderProcess] = []
    with suppress(OSError):  # the caller scans what readers that did not start would have
        for share in shares[1:]:
            helpers.append(ReaderProcess(share))
    return helpers


def _count_processors() -> int:
    """Return how many CPUs this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


def main() -> None:
    """Scan the files named on standard input and write the scans to standard output."""
    with pause_gc():
        for found in _files_decoder.decode(sys.stdin.buffer.read()):
            data = _encode(scan_file(found))
            sys.stdout.buffer.write(len(data).to_bytes(_LENGTH_SIZE, "big") + data)
            sys.stdout.buffer.flush()
