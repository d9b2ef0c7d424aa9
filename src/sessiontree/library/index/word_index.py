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
from typing import NamedTuple, TypeAlias

import msgspec

from sessiontree.core.entries import Entry
from sessiontree.core.entry_text import build_full_text, normalize_case
from sessiontree.core.query import Term
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.errors import SessionTreeError, isolate_errors
from sessiontree.format.codec import NotJson, read_entry
from sessiontree.library.index.prefilter import WORD_BYTES, extract_words
from sessiontree.library.index.session_summary import ReadMode, open_read_only
from sessiontree.library.index.sqlite import FILE_CHECKSUM, IndexDatabase, IndexMismatch, compute_checksum
from sessiontree.library.session_files import OpenStore

CHUNK_SIZE = 1 << 16
"""A chunk is full with so many bytes of text."""
TRANSACTION_SIZE = 1 << 22
"""So many bytes of words are written in one transaction."""
COMMON_LIMIT = 2000
"""Trigrams in so many chunks narrow nothing down."""
MAX_TRIGRAMS = 24

# Two blanks stand behind each word, so that every one and two characters at the end of a word begin a trigram too.
_WORD_END = b"  "


class IndexedFile(NamedTuple):
    """A file whose words are taken in up to `text_to`."""

    id: int
    path: str
    generation: int
    kind: ReadMode
    size: int
    mtime: int
    body: int
    read_to: int
    text_to: int
    is_sound: bool
    """The index knows how its entries are linked: each has an id of its own."""
    open_store: OpenStore


_FileRow: TypeAlias = tuple[int, str, int, ReadMode, int, int, int, int, int, bool]


class _WordChunk(NamedTuple):
    start: int
    stop: int
    newest: int
    is_full: bool
    words: str


def load_files(db: IndexDatabase, paths: Iterable[str]) -> list[IndexedFile]:
    """Those of these files, which were just listed, that have words, the one written to last first.

    Raises `Misfit`.
    """
    columns = "id, path, generation, kind, size, mtime, body, read_to, text_to, tally IS NOT NULL"
    rows = db.execute(f"SELECT {columns}, checksum = {FILE_CHECKSUM} FROM files")
    known = {row[1]: row for row in rows}
    files: list[IndexedFile] = []
    for path in paths:
        row = known.get(os.fsencode(path))
        if row is None:
            if db.is_persistent and os.path.exists(path):
                raise IndexMismatch  # it has just been listed, so it was known
        elif not row[10]:
            raise IndexMismatch
        else:
            values = msgspec.convert((row[0], path, *row[2:9], bool(row[9])), _FileRow)
            files.append(IndexedFile(*values, db.open_store))
    return sorted([file for file in files if file.kind is not ReadMode.NONE], key=lambda file: file.mtime, reverse=True)


def index_texts(db: IndexDatabase, files: Iterable[IndexedFile], *, seconds: float) -> None:
    """Take in the words of these files, as far as they were listed, and for about so long."""
    deadline = time.monotonic() + seconds
    _clear_if_stale(db)
    _save_words_checksum(db)  # where a process ended before it did
    for file in files:
        if file.text_to < file.read_to:
            try:
                _index_text(db, file, deadline)
            except (OSError, SessionTreeError):
                continue  # it was taken away meanwhile, or cannot be read: a search will pass it over too
            if time.monotonic() > deadline:
                return


def _clear_if_stale(db: IndexDatabase) -> None:
    """Begin the words anew when most of them are of chunks that are gone."""
    (live,) = db.execute("SELECT count(*) FROM chunks").fetchone()
    (made,) = db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'chunks'").fetchone()
    if made > 3 * live + COMMON_LIMIT:
        with db.transaction():
            db.execute("INSERT INTO words (words) VALUES ('delete-all')")
            db.execute("UPDATE words_check SET checksum = NULL")
            db.execute("DELETE FROM chunks")
            db.execute("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'chunks'")
            db.execute("UPDATE files SET text_to = 0, generation = generation + 1")
            db.execute(f"UPDATE files SET checksum = {FILE_CHECKSUM}")


def _index_text(db: IndexDatabase, file: IndexedFile, deadline: float) -> None:
    """Write the chunks of what is new in a file."""
    at = file.text_to
    start = max(file.body, at)
    last = db.execute(
        "SELECT id, start FROM chunks WHERE file = ? AND stop = ? AND NOT is_full", (file.id, at)
    ).fetchone()
    if last is not None:
        start = msgspec.convert(last[1], int)  # it was not full: it goes on with what is new
    batch: list[_WordChunk] = []
    size, late = 0, False
    for chunk in _iter_chunks(file, start):
        batch.append(chunk)
        size += len(chunk.words)
        late = time.monotonic() > deadline
        if size >= TRANSACTION_SIZE or late:
            if not _save_chunks(db, file, at, batch, last) or late:
                return
            at, last, size = chunk.stop, None, 0
            batch.clear()
    _save_chunks(db, file, at, batch, last, done=True)


def _save_chunks(
    db: IndexDatabase,
    file: IndexedFile,
    at: int,
    batch: list[_WordChunk],
    last: tuple[int, int] | None,
    *,
    done: bool = False,
) -> bool:
    """Write chunks, unless another process has written some of this file meanwhile."""
    if not _write_chunks(db, file, at, batch, last, done=done):
        return False
    # What words are stored as is there only after they were committed, so it is a transaction of its own.
    _save_words_checksum(db)
    return True


def _write_chunks(
    db: IndexDatabase, file: IndexedFile, at: int, batch: list[_WordChunk], last: tuple[int, int] | None, *, done: bool
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
            db.execute("UPDATE chunks SET checksum = ? WHERE id = ?", (compute_checksum(id, *kept), id))
            db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (id, chunk.words))
        if batch:
            db.execute("UPDATE words_check SET checksum = NULL")
        stop = file.read_to if done else batch[-1].stop
        db.execute("UPDATE files SET text_to = ? WHERE id = ?", (stop, file.id))
        db.execute(f"UPDATE files SET checksum = {FILE_CHECKSUM} WHERE id = ?", (file.id,))
    return True


def _save_words_checksum(db: IndexDatabase) -> None:
    """Note the checksum of the words, unless it is there."""
    if _load_words_checksum(db) is None:
        with db.transaction():
            db.execute("UPDATE words_check SET checksum = ?", (_compute_words_checksum(db),))


def _check_words(db: IndexDatabase) -> None:
    """Raises `Misfit` where the words are not what was written. There is no checksum while some are being written."""
    known = _load_words_checksum(db)
    if known is not None and known != _compute_words_checksum(db):
        raise IndexMismatch


def _load_words_checksum(db: IndexDatabase) -> int | None:
    row = db.execute("SELECT checksum FROM words_check").fetchone()
    if row is None:
        raise IndexMismatch
    return row[0]


def _compute_words_checksum(db: IndexDatabase) -> int:
    """The tables that FTS5 keeps its index in. It has no checksums of its own."""
    checksum = 0
    for id, block in db.execute("SELECT id, block FROM words_data ORDER BY id"):
        if not isinstance(block, bytes):
            raise IndexMismatch
        checksum = zlib.crc32(block, zlib.crc32(b"%d" % id, checksum))
    rows = db.execute("SELECT segid, term, pgno FROM words_idx ORDER BY segid, term")
    return zlib.crc32(repr(rows.fetchall()).encode(), checksum)


def _iter_chunks(file: IndexedFile, start: int) -> Generator[_WordChunk]:
    with isolate_errors(file.path):
        yield from _split_into_chunks(file, start)


def _split_into_chunks(file: IndexedFile, start: int) -> Generator[_WordChunk]:
    words: set[bytes] = set()
    size, newest, stop = 0, 0, start
    for entry, stop in _iter_entries(file, start):
        if entry is None:
            continue
        said = normalize_case(build_full_text(entry)).encode("utf-8", "replace")
        words.update(said.translate(WORD_BYTES).split())
        size += len(said)
        newest = max(newest, parse_timestamp(entry.timestamp) or 0)
        if size >= CHUNK_SIZE and file.kind is ReadMode.LINES:
            yield _WordChunk(start, stop, newest, True, _join_words(words))
            words = set()
            size, newest, start = 0, 0, stop
    stop = file.read_to  # an older dialect may have lines that are no entries behind the last one
    if stop > start:
        yield _WordChunk(start, stop, newest, file.kind is ReadMode.SESSION, _join_words(words))


def _join_words(words: set[bytes]) -> str:
    return _WORD_END.join([*words, b""]).decode()


def _iter_entries(file: IndexedFile, start: int) -> Generator[tuple[Entry | None, int]]:
    """The entries of a file from `start` on, each with where its line ends; `None` for a line that is none.

    Raises `OSError` and `SessionTreeError`.
    """
    if file.kind is ReadMode.SESSION:
        for entry in open_read_only(file.path, file.open_store).tree:
            yield entry, file.size
        return
    with file.open_store(file.path).open_reader() as reader:
        for raw, end in reader.iter_lines(start, file.read_to):
            try:
                yield read_entry(raw, 0) if raw and not raw.isspace() else None, end
            except NotJson:
                yield None, end


def find_candidates(
    db: IndexDatabase, files: Iterable[IndexedFile], terms: Sequence[Term]
) -> list[tuple[IndexedFile, int, int, int]]:
    """File, start, stop and newest time of the chunks of these files that may have all terms. Raises `Misfit`."""
    _check_words(db)
    chunks = _load_chunks(db, files)
    ids = _find_chunks(db, terms)
    return [chunk for id, chunk in chunks.items() if ids is None or id in ids]


def _load_chunks(db: IndexDatabase, files: Iterable[IndexedFile]) -> dict[int, tuple[IndexedFile, int, int, int]]:
    """The chunks of these files by their ids. Raises `Misfit` if they do not hold all that was taken in."""
    by_id = {file.id: file for file in files}
    reached = {file.id: file.body for file in by_id.values()}
    found: dict[int, tuple[IndexedFile, int, int, int]] = {}
    rows = db.execute("SELECT checksum, id, file, start, stop, newest, is_full FROM chunks ORDER BY file, start")
    for checksum, *kept in rows:
        if compute_checksum(*kept) != checksum:
            raise IndexMismatch
        id, file, start, stop, newest, _ = kept
        if file in by_id:
            if start != reached[file]:
                raise IndexMismatch
            reached[file] = stop
            found[id] = (by_id[file], start, stop, newest)
    if any(reached[file.id] != max(file.text_to, file.body) for file in by_id.values()):
        raise IndexMismatch
    return found


def _find_chunks(db: IndexDatabase, terms: Sequence[Term]) -> set[int] | None:
    """The chunks that may have all terms; `None` for all of them."""
    words = extract_words(terms)
    trigrams = {word[at : at + 3] for word in words for at in range(len(word) - 2)}
    if trigrams:
        wanted = " AND ".join(f'"{trigram}"' for trigram in sorted(trigrams)[:MAX_TRIGRAMS])
        rows = db.execute("SELECT rowid FROM words WHERE words MATCH ?", (wanted,))
        return {id for (id,) in rows}
    found: set[int] | None = None
    for word in words:
        ids = _find_chunks_by_prefix(db, word)
        if ids is not None:
            found = ids if found is None else found & ids
    return found


def _find_chunks_by_prefix(db: IndexDatabase, piece: str) -> set[int] | None:
    """The chunks with a trigram that begins with one or two characters; `None` when they are too many to matter."""
    db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab (main, words, instance)")
    rows = db.execute(
        "SELECT DISTINCT doc FROM vocabulary WHERE term >= ? AND term <= ? LIMIT ?",
        (piece, piece + 2 * "\U0010ffff", COMMON_LIMIT),
    ).fetchall()
    return None if len(rows) == COMMON_LIMIT else {row[0] for row in rows}
