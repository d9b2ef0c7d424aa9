"""Texts: which words are in which part of a file.

A file is cut into chunks of whole lines. Of each chunk the index holds which words are in it, by their trigrams; not
the text, and not where it stands. So the index only tells which chunks cannot have what somebody looks for; `search`
reads the others, and what is not taken in yet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

import msgspec

from sessiontree.core.entries import Entry
from sessiontree.core.fulltext import full_text, unify
from sessiontree.core.query import Term
from sessiontree.core.times import milliseconds
from sessiontree.errors import SessionTreeError, isolate_errors
from sessiontree.format.codec import NotJson, read_entry
from sessiontree.index.database import Database
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
    """Those of these files that have words, the one written to last first."""
    columns = "id, path, generation, kind, size, mtime, body, read_to, text_to, tally IS NOT NULL"
    known = {row[1]: row for row in db.execute(f"SELECT {columns} FROM files WHERE kind != ?", (int(Kind.NONE),))}
    files = [
        msgspec.convert((row[0], path, *row[2:9], bool(row[9])), File)
        for path in paths
        if (row := known.get(os.fsencode(path))) is not None
    ]
    return sorted(files, key=lambda file: file.mtime, reverse=True)


def take_texts(db: Database, files: Iterable[File], *, seconds: float) -> None:
    """Take in the words of these files, as far as they were listed, and for about so long."""
    deadline = time.monotonic() + seconds
    _tidy(db)
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
            db.execute("DELETE FROM chunks")
            db.execute("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'chunks'")
            db.execute("UPDATE files SET text_to = 0, generation = generation + 1")


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
    with db.transaction():
        row = db.execute("SELECT generation, text_to FROM files WHERE id = ?", (file.id,)).fetchone()
        if row != (file.generation, at):
            return False
        if last is not None:
            db.execute("DELETE FROM chunks WHERE id = ?", (last[0],))
        for chunk in batch:
            id = db.execute(
                "INSERT INTO chunks (file, start, stop, newest, is_full) VALUES (?, ?, ?, ?, ?)",
                (file.id, chunk.start, chunk.stop, chunk.newest, chunk.is_full),
            ).lastrowid
            db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (id, chunk.words))
        stop = file.read_to if done else batch[-1].stop
        db.execute("UPDATE files SET text_to = ? WHERE id = ?", (stop, file.id))
    return True


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


def candidates(db: Database, terms: Sequence[Term]) -> list[tuple[int, int, int, int]]:
    """File, start, stop and newest time of the chunks that may have all terms."""
    columns = "chunks.file, chunks.start, chunks.stop, chunks.newest"
    words = pieces(terms)
    trigrams = {word[at : at + 3] for word in words for at in range(len(word) - 2)}
    if trigrams:
        wanted = " AND ".join(f'"{trigram}"' for trigram in sorted(trigrams)[:MOST_TRIGRAMS])
        rows = db.execute(
            f"SELECT {columns} FROM words JOIN chunks ON chunks.id = words.rowid WHERE words MATCH ?", (wanted,)
        ).fetchall()
    else:
        every = db.execute(f"SELECT chunks.id, {columns} FROM chunks").fetchall()
        for word in words:
            ids = _beginning(db, word)
            every = every if ids is None else [row for row in every if row[0] in ids]
        rows = [row[1:] for row in every]
    return msgspec.convert(rows, list[tuple[int, int, int, int]])


def _beginning(db: Database, piece: str) -> set[int] | None:
    """The chunks with a trigram that begins with one or two characters; `None` when they are too many to matter."""
    db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab (main, words, instance)")
    rows = db.execute(
        "SELECT DISTINCT doc FROM vocabulary WHERE term >= ? AND term <= ? LIMIT ?",
        (piece, piece + 2 * "\U0010ffff", COMMON),
    ).fetchall()
    return None if len(rows) == COMMON else {row[0] for row in rows}
