"""Texts: which words are in which part of a file.

A file is cut into chunks of whole lines. Of each chunk the index holds which words are in it, by their trigrams; not
the text, and not where it stands. So the index only tells which chunks cannot have what somebody looks for; `search`
reads the others, and what is not taken in yet.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

import msgspec

from sessiontree.core.entries import Entry
from sessiontree.core.fulltext import full_text, unify
from sessiontree.core.query import Term
from sessiontree.core.times import milliseconds
from sessiontree.errors import SessionTreeError, isolate_errors
from sessiontree.format.codec import NotJson, read_entry
from sessiontree.index.database import FILE_CHECKSUM, Database, Misfit, checksum_of
from sessiontree.index.reading import Kind, lines_of, open_regular, open_session
from sessiontree.index.sieve import WORDS, pieces
from sessiontree.store.files import shut

CHUNK = 1 << 16
"""A chunk is full with so many bytes of text."""
AT_ONCE = 1 << 22
"""So many bytes of words are written in one transaction."""
COMMON = 2000
"""Trigrams in so many chunks narrow nothing down."""
MOST_TRIGRAMS = 24

# Two blanks stand behind each word, so that every one and two characters at the end of a word begin a trigram too.
_BEHIND = b"  "


class File(NamedTuple):
    """A file whose words are taken in up to `text_to`."""

    id: int
    path: str
    generation: int
    kind: Kind
    size: int
    mtime: int
    body: int
    read_to: int
    text_to: int
    is_sound: bool
    """The index knows how its entries hang together: each has an id of its own."""


class _Chunk(NamedTuple):
    start: int
    stop: int
    newest: int
    is_full: bool
    words: str


def files_of(db: Database, paths: Iterable[str]) -> list[File]:
    """Those of these files, which were just listed, that have words, the one written to last first.

    Raises `Misfit`.
    """
    columns = "id, path, generation, kind, size, mtime, body, read_to, text_to, tally IS NOT NULL"
    rows = db.execute(f"SELECT {columns}, checksum = {FILE_CHECKSUM} FROM files")
    known = {row[1]: row for row in rows}
    files: list[File] = []
    for path in paths:
        row = known.get(os.fsencode(path))
        if row is None:
            if db.lasting and os.path.exists(path):
                raise Misfit  # it has just been listed, so it was known
        elif not row[10]:
            raise Misfit
        else:
            files.append(msgspec.convert((row[0], path, *row[2:9], bool(row[9])), File))
    return sorted([file for file in files if file.kind is not Kind.NONE], key=lambda file: file.mtime, reverse=True)


def take_texts(db: Database, files: Iterable[File], *, seconds: float) -> None:
    """Take in the words of these files, as far as they were listed, and for about so long."""
    deadline = time.monotonic() + seconds
    _tidy(db)
    _add_checksum_of_words(db)  # where a process ended before it did
    for file in files:
        if file.text_to < file.read_to:
            try:
                _take_text(db, file, deadline)
            except (OSError, SessionTreeError):
                continue  # it was taken away meanwhile, or cannot be read: a search will pass it over too
            if time.monotonic() > deadline:
                return


def _tidy(db: Database) -> None:
    """Begin the words anew when most of them are of chunks that are gone."""
    (live,) = db.execute("SELECT count(*) FROM chunks").fetchone()
    (made,) = db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'chunks'").fetchone()
    if made > 3 * live + COMMON:
        with db.transaction():
            db.execute("INSERT INTO words (words) VALUES ('delete-all')")
            db.execute("UPDATE words_check SET checksum = NULL")
            db.execute("DELETE FROM chunks")
            db.execute("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'chunks'")
            db.execute("UPDATE files SET text_to = 0, generation = generation + 1")
            db.execute(f"UPDATE files SET checksum = {FILE_CHECKSUM}")


def _take_text(db: Database, file: File, deadline: float) -> None:
    """Write the chunks of what is new in a file."""
    at = file.text_to
    start = max(file.body, at)
    last = db.execute(
        "SELECT id, start FROM chunks WHERE file = ? AND stop = ? AND NOT is_full", (file.id, at)
    ).fetchone()
    if last is not None:
        start = msgspec.convert(last[1], int)  # it was not full: it goes on with what is new
    batch: list[_Chunk] = []
    size, late = 0, False
    for chunk in _chunks(file, start):
        batch.append(chunk)
        size += len(chunk.words)
        late = time.monotonic() > deadline
        if size >= AT_ONCE or late:
            if not _keep(db, file, at, batch, last) or late:
                return
            at, last, size = chunk.stop, None, 0
            batch.clear()
    _keep(db, file, at, batch, last, done=True)


def _keep(
    db: Database, file: File, at: int, batch: list[_Chunk], last: tuple[int, int] | None, *, done: bool = False
) -> bool:
    """Write chunks, unless another process has written some of this file meanwhile."""
    if not _keep_unchecked(db, file, at, batch, last, done=done):
        return False
    # What words are stored as is there only after they were committed, so it is a transaction of its own.
    _add_checksum_of_words(db)
    return True


def _keep_unchecked(
    db: Database, file: File, at: int, batch: list[_Chunk], last: tuple[int, int] | None, *, done: bool
) -> bool:
    with db.transaction():
        row = db.execute("SELECT generation, text_to FROM files WHERE id = ?", (file.id,)).fetchone()
        if row != (file.generation, at):
            return False
        if last is not None:
            db.execute("DELETE FROM chunks WHERE id = ?", (last[0],))
        for chunk in batch:
            kept = (file.id, chunk.start, chunk.stop, chunk.newest, int(chunk.is_full))
            id = db.execute(
                "INSERT INTO chunks (file, start, stop, newest, is_full, checksum) VALUES (?, ?, ?, ?, ?, 0)", kept
            ).lastrowid
            db.execute("UPDATE chunks SET checksum = ? WHERE id = ?", (checksum_of(id, *kept), id))
            db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (id, chunk.words))
        if batch:
            db.execute("UPDATE words_check SET checksum = NULL")
        stop = file.read_to if done else batch[-1].stop
        db.execute("UPDATE files SET text_to = ? WHERE id = ?", (stop, file.id))
        db.execute(f"UPDATE files SET checksum = {FILE_CHECKSUM} WHERE id = ?", (file.id,))
    return True


def _add_checksum_of_words(db: Database) -> None:
    """Note the checksum of the words, unless it is there."""
    if _known_checksum(db) is None:
        with db.transaction():
            db.execute("UPDATE words_check SET checksum = ?", (_checksum_of_words(db),))


def _check_words(db: Database) -> None:
    """Raises `Misfit` where the words are not what was written. There is no checksum while some are being written."""
    known = _known_checksum(db)
    if known is not None and known != _checksum_of_words(db):
        raise Misfit


def _known_checksum(db: Database) -> int | None:
    row = db.execute("SELECT checksum FROM words_check").fetchone()
    if row is None:
        raise Misfit
    return row[0]


def _checksum_of_words(db: Database) -> int:
    """The tables that FTS5 keeps its index in. It has no checksums of its own."""
    checksum = 0
    for id, block in db.execute("SELECT id, block FROM words_data ORDER BY id"):
        if not isinstance(block, bytes):
            raise Misfit
        checksum = zlib.crc32(block, zlib.crc32(b"%d" % id, checksum))
    rows = db.execute("SELECT segid, term, pgno FROM words_idx ORDER BY segid, term")
    return zlib.crc32(repr(rows.fetchall()).encode(), checksum)


def _chunks(file: File, start: int) -> Generator[_Chunk]:
    with isolate_errors(file.path):
        yield from _cut_into_chunks(file, start)


def _cut_into_chunks(file: File, start: int) -> Generator[_Chunk]:
    words: set[bytes] = set()
    size, newest, stop = 0, 0, start
    for entry, stop in _entries(file, start):
        if entry is None:
            continue
        said = unify(full_text(entry)).encode("utf-8", "replace")
        words.update(said.translate(WORDS).split())
        size += len(said)
        newest = max(newest, milliseconds(entry.timestamp) or 0)
        if size >= CHUNK and file.kind is Kind.LINES:
            yield _Chunk(start, stop, newest, True, _joined(words))
            words = set()
            size, newest, start = 0, 0, stop
    stop = file.read_to  # an older dialect may have lines that are no entries behind the last one
    if stop > start:
        yield _Chunk(start, stop, newest, file.kind is Kind.SESSION, _joined(words))


def _joined(words: set[bytes]) -> str:
    return _BEHIND.join([*words, b""]).decode()


def _entries(file: File, start: int) -> Generator[tuple[Entry | None, int]]:
    """The entries of a file from `start` on, each with where its line ends; `None` for a line that is none.

    Raises `OSError` and `SessionTreeError`.
    """
    if file.kind is Kind.SESSION:
        for entry in open_session(file.path).tree:
            yield entry, file.size
        return
    fd = open_regular(file.path)
    try:
        for raw, end in lines_of(fd, start, file.read_to):
            try:
                yield read_entry(raw, 0) if raw and not raw.isspace() else None, end
            except NotJson:
                yield None, end
    finally:
        shut(fd)


def candidates(db: Database, files: Iterable[File], terms: Sequence[Term]) -> list[tuple[File, int, int, int]]:
    """File, start, stop and newest time of the chunks of these files that may have all terms. Raises `Misfit`."""
    _check_words(db)
    chunks = _chunks_of(db, files)
    ids = _with_words(db, terms)
    return [chunk for id, chunk in chunks.items() if ids is None or id in ids]


def _chunks_of(db: Database, files: Iterable[File]) -> dict[int, tuple[File, int, int, int]]:
    """The chunks of these files by their ids. Raises `Misfit` if they do not hold all that was taken in."""
    by_id = {file.id: file for file in files}
    reached = {file.id: file.body for file in by_id.values()}
    found: dict[int, tuple[File, int, int, int]] = {}
    rows = db.execute("SELECT checksum, id, file, start, stop, newest, is_full FROM chunks ORDER BY file, start")
    for checksum, *kept in rows:
        if checksum_of(*kept) != checksum:
            raise Misfit
        id, file, start, stop, newest, _ = kept
        if file in by_id:
            if start != reached[file]:
                raise Misfit
            reached[file] = stop
            found[id] = (by_id[file], start, stop, newest)
    if any(reached[file.id] != max(file.text_to, file.body) for file in by_id.values()):
        raise Misfit
    return found


def _with_words(db: Database, terms: Sequence[Term]) -> set[int] | None:
    """The chunks that may have all terms; `None` for all of them."""
    words = pieces(terms)
    trigrams = {word[at : at + 3] for word in words for at in range(len(word) - 2)}
    if trigrams:
        wanted = " AND ".join(f'"{trigram}"' for trigram in sorted(trigrams)[:MOST_TRIGRAMS])
        rows = db.execute("SELECT rowid FROM words WHERE words MATCH ?", (wanted,))
        return {id for (id,) in rows}
    found: set[int] | None = None
    for word in words:
        ids = _beginning(db, word)
        if ids is not None:
            found = ids if found is None else found & ids
    return found


def _beginning(db: Database, piece: str) -> set[int] | None:
    """The chunks with a trigram that begins with one or two characters; `None` when they are too many to matter."""
    db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab (main, words, instance)")
    rows = db.execute(
        "SELECT DISTINCT doc FROM vocabulary WHERE term >= ? AND term <= ? LIMIT ?",
        (piece, piece + 2 * "\U0010ffff", COMMON),
    ).fetchall()
    return None if len(rows) == COMMON else {row[0] for row in rows}
