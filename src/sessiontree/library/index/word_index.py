"""The word index and the prefilter, which exclude parts of files and lines that cannot match a query.

A file is split into chunks of complete lines. The index stores the trigrams of the words of each chunk, but not the
text or its position. A search reads the chunks that may match, and the lines that are not indexed yet. `Prefilter` then
excludes most lines by their bytes, without decoding them.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Generator, Iterable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import msgspec

from sessiontree.core.entries import Entry
from sessiontree.core.query import Term
from sessiontree.core.search_text import build_full_text, fold, normalize_case
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.errors import SessionTreeError, isolate_errors
from sessiontree.format.codec import read_entry
from sessiontree.format.json_line import NotJson
from sessiontree.library.index.index_database import FILE_CHECKSUM, IndexDatabase, IndexMismatch, compute_checksum
from sessiontree.library.index.session_summary import ReadMode, open_read_only
from sessiontree.library.session_files import OpenStore

CHUNK_SIZE = 1 << 16
"""Bytes of text in a full chunk."""
TRANSACTION_SIZE = 1 << 22
"""Bytes of words written in one transaction."""
COMMON_LIMIT = 2000
"""A trigram that occurs in this many chunks is not used to exclude chunks."""
MAX_TRIGRAMS = 24

# A word here is a run of letters, digits, underscores and everything that is not ASCII.
WORD_BYTES = bytes(code if code >= 128 or chr(code).isalnum() or code == 95 else 32 for code in range(256))

# Two blanks follow each word: its last one and two characters also start a trigram.
_WORD_END = b"  "


class IndexedFile(NamedTuple):
    """A file whose words are indexed up to `text_to`."""

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
    """Whether the index knows the links between its entries, which means that all ids are unique."""
    open_store: OpenStore


_FileRow: TypeAlias = tuple[int, str, int, ReadMode, int, int, int, int, int, bool]


class _WordChunk(NamedTuple):
    start: int
    stop: int
    newest: int
    is_full: bool
    words: str


def load_files(db: IndexDatabase, paths: Iterable[str]) -> list[IndexedFile]:
    """Return the files at these paths that have words, most recently written first. They were just listed.

    Raises `IndexMismatch`.
    """
    columns = "id, path, generation, kind, size, mtime, body, read_to, text_to, tally IS NOT NULL"
    rows = db.execute(f"SELECT {columns}, checksum = {FILE_CHECKSUM} FROM files")
    known = {row[1]: row for row in rows}
    files: list[IndexedFile] = []
    for path in paths:
        row = known.get(os.fsencode(path))
        if row is None:
            if db.is_persistent and os.path.exists(path):
                raise IndexMismatch  # it was just listed, so it must be in the index
        elif not row[10]:
            raise IndexMismatch
        else:
            values = msgspec.convert((row[0], path, *row[2:9], bool(row[9])), _FileRow)
            files.append(IndexedFile(*values, db.open_store))
    return sorted([file for file in files if file.kind is not ReadMode.NONE], key=lambda file: file.mtime, reverse=True)


def index_texts(db: IndexDatabase, files: Iterable[IndexedFile], *, seconds: float) -> None:
    """Index the words of these files, up to where they were listed, for about this many seconds."""
    deadline = time.monotonic() + seconds
    _clear_if_stale(db)
    _save_words_checksum(db)  # in case a process ended before it did this
    for file in files:
        if file.text_to < file.read_to:
            try:
                _index_text(db, file, deadline)
            except (OSError, SessionTreeError):
                continue  # removed or unreadable: a search skips it too
            if time.monotonic() > deadline:
                return


def _clear_if_stale(db: IndexDatabase) -> None:
    """Clear the words if most of them belong to removed chunks."""
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
    """Write the chunks of the new lines of a file."""
    at = file.text_to
    start = max(file.body, at)
    last = db.execute(
        "SELECT id, start FROM chunks WHERE file = ? AND stop = ? AND NOT is_full", (file.id, at)
    ).fetchone()
    if last is not None:
        start = msgspec.convert(last[1], int)  # it was not full: extend it with the new lines
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
    """Write chunks, unless another process has indexed the same file."""
    if not _write_chunks(db, file, at, batch, last, done=done):
        return False
    # The stored form of the words exists only after the commit, so this needs its own transaction.
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
    """Store the checksum of the words if it is missing."""
    if _load_words_checksum(db) is None:
        with db.transaction():
            db.execute("UPDATE words_check SET checksum = ?", (_compute_words_checksum(db),))


def _check_words(db: IndexDatabase) -> None:
    """Raise `IndexMismatch` if the words differ from the written ones. During a write, they have no checksum."""
    known = _load_words_checksum(db)
    if known is not None and known != _compute_words_checksum(db):
        raise IndexMismatch


def _load_words_checksum(db: IndexDatabase) -> int | None:
    row = db.execute("SELECT checksum FROM words_check").fetchone()
    if row is None:
        raise IndexMismatch
    return row[0]


def _compute_words_checksum(db: IndexDatabase) -> int:
    """Compute a checksum of the tables of FTS5, which has none itself."""
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
    stop = file.read_to  # a session in an older dialect may end with lines that are not entries
    if stop > start:
        yield _WordChunk(start, stop, newest, file.kind is ReadMode.SESSION, _join_words(words))


def _join_words(words: set[bytes]) -> str:
    return _WORD_END.join([*words, b""]).decode()


def _iter_entries(file: IndexedFile, start: int) -> Generator[tuple[Entry | None, int]]:
    """Yield the entries of a file from `start` on, each with the offset after its line; `None` for other lines.

    Raises `OSError` and `SessionTreeError`.
    """
    if file.kind is ReadMode.SESSION:
        for entry in open_read_only(file.path, file.open_store).tree:
            yield entry, file.size
        return
    with file.open_store.reader_class(file.path) as reader:
        for raw, end in reader.iter_lines(start, file.read_to):
            try:
                yield read_entry(raw, 0) if raw and not raw.isspace() else None, end
            except NotJson:
                yield None, end


def find_candidates(
    db: IndexDatabase, files: Iterable[IndexedFile], terms: Sequence[Term]
) -> list[tuple[IndexedFile, int, int, int]]:
    """Return file, start, stop and newest time of the chunks that may contain all terms. Raises `IndexMismatch`."""
    _check_words(db)
    chunks = _load_chunks(db, files)
    ids = _find_chunks(db, terms)
    return [chunk for id, chunk in chunks.items() if ids is None or id in ids]


def _load_chunks(db: IndexDatabase, files: Iterable[IndexedFile]) -> dict[int, tuple[IndexedFile, int, int, int]]:
    """Return the chunks of these files by id. Raises `IndexMismatch` if they do not cover everything indexed."""
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


def extract_words(terms: Iterable[Term]) -> set[str]:
    """Return the words that must occur inside words of a matching text."""
    return {
        piece.decode() for term in terms for piece in term.text.encode("utf-8", "replace").translate(WORD_BYTES).split()
    }


def _find_chunks(db: IndexDatabase, terms: Sequence[Term]) -> set[int] | None:
    """Return the chunks that may contain all terms; `None` for all chunks."""
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
    """Return the chunks with a trigram that starts with one or two characters; `None` if there are too many."""
    db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab (main, words, instance)")
    rows = db.execute(
        "SELECT DISTINCT doc FROM vocabulary WHERE term >= ? AND term <= ? LIMIT ?",
        (piece, piece + 2 * "\U0010ffff", COMMON_LIMIT),
    ).fetchall()
    return None if len(rows) == COMMON_LIMIT else {row[0] for row in rows}


# Excluding lines by their bytes

_WHITESPACE = rb"(?:\\[bfnrt]|[\x00-\x20\x7f-\xff])+"
"""All characters that count as white space."""
_ESCAPE_BEFORE_MARK = re.compile(rb"\\[bfnrt][\x80-\xff]")
"""Where one composed letter may be two in the file: at the end of an escape, and at a stray combining mark."""
FOLDED_LETTERS = {letter: fold(letter) for letter in "ßẞſ\u212aİŉǰẖẗẘẙẚﬀﬁﬂﬃﬄﬅﬆ\u037e\u1fef"}
"""Characters that fold to something that contains ASCII."""

_ESCAPED = re.compile(rb"\\u")  # a pattern finds this faster than `in` does: backslashes are common
_TIMESTAMP = re.compile(rb'"timestamp"\s*:\s*"([^"]*)"')
_STANDARD_TIMESTAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_ASCII = bytes(range(128))


class Prefilter:
    """Excludes lines that cannot match the terms, by their bytes alone, one line or many at once.

    Every line that may match passes, and few others do. Most lines then need not be decoded.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        plain = [term for term in terms if term.text.isascii() and not re.search(r'["\\/\x00-\x1f\x7f]', term.text)]
        others = extract_words(term for term in terms if term not in plain)
        words = [term.text for term in plain if " " not in term.text] + [word for word in others if word.isascii()]
        phrases = [term.text.split() for term in plain if " " in term.text]
        self._words = [word.encode() for word in words]
        self._phrases = [
            re.compile(_WHITESPACE.join(re.escape(word.encode()) for word in phrase)) for phrase in phrases
        ]
        self._letters = [word for word in others if not word.isascii()]
        self._runs = [run for word in self._letters for run in re.findall(r"[^\x00-\x7f]+", word)]
        sought = set("".join([*words, *(word for phrase in phrases for word in phrase)]))
        self._folded_patterns = _build_letter_patterns(
            letter for letter, folded in FOLDED_LETTERS.items() if sought & set(folded)
        )

    def can_match(self, lines: bytes) -> bool:
        """Return whether one of these lines may match."""
        return self._has_terms(lines) or _ESCAPED.search(lines) is not None

    def _has_terms(self, lines: bytes) -> bool:
        plain = lines.isascii()
        if self._letters and (plain or not self._has_letters(lines)):
            return False
        if not plain and any(letters.search(lines) for letters in self._folded_patterns):
            return True
        lower = lines.lower()
        return all(word in lower for word in self._words) and all(phrase.search(lower) for phrase in self._phrases)

    def _has_letters(self, lines: bytes) -> bool:
        rest = lines.translate(None, _ASCII).decode("utf-8", "replace")
        if list_combining_marks().isdisjoint(rest):
            # Each letter is encoded separately, so non-ASCII letters can be matched one by one.
            text = normalize_case(rest)
            return all(run in text for run in self._runs)
        text = normalize_case(lines.decode("utf-8", "replace"))
        return all(word in text for word in self._letters) or _ESCAPE_BEFORE_MARK.search(lines) is not None


def _build_letter_patterns(letters: Iterable[str]) -> list[re.Pattern[bytes]]:
    """Build patterns for non-ASCII letters: one for all letters with the same first two bytes, which is fast."""
    ends: dict[bytes, list[bytes]] = {}
    for letter in letters:
        code = letter.encode()
        ends.setdefault(code[:2], []).append(re.escape(code[2:]))
    return [re.compile(re.escape(start) + b"(?:%b)" % b"|".join(rest)) for start, rest in ends.items()]


def is_older(lines: bytes, than: int) -> bool:
    """Return whether all of these lines were certainly written before a time, in milliseconds since the epoch."""
    stamps: list[bytes] = _TIMESTAMP.findall(lines)
    if not all(map(_STANDARD_TIMESTAMP.fullmatch, stamps)) or _ESCAPED.search(lines) is not None:
        return False
    newest = parse_timestamp(max(stamps).decode()) if stamps else 0
    return newest is not None and newest < than


@cache
def list_combining_marks() -> frozenset[str]:
    """Return all characters that may combine with the one before them."""
    import unicodedata

    parts = (unicodedata.decomposition(chr(code)).split() for code in range(0xC0, 0x20000))
    seconds = {chr(int(part[1], 16)) for part in parts if len(part) == 2 and not part[0].startswith("<")}
    return frozenset(seconds | {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))})
