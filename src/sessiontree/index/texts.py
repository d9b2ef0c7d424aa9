"""Texts: the words of every session, and the search over them.

A file is cut into chunks of whole lines. Of each chunk the index holds which words are in it, by
their trigrams; not the text, and not where it stands. A query is first put to the trigrams, which
tell the chunks that may have it; those are read from the session files and compared word by word,
newest first, until there are enough hits. So the index only saves reading: what it has not taken
in yet is read as well, and a stale or missing index changes nothing in what is found.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from sessiontree.core.entries import Entry, EntryId, JsonObject
from sessiontree.core.fulltext import fold, full_text, speaker, unify
from sessiontree.core.query import Query, Term
from sessiontree.core.times import milliseconds
from sessiontree.errors import SessionTreeError
from sessiontree.format.codec import LINE_LIMIT, NotJson, read_entry
from sessiontree.index.database import Database
from sessiontree.index.listing import Progress
from sessiontree.index.reading import Kind, SessionSummary, lines_of, open_regular
from sessiontree.session import Session
from sessiontree.store.jsonl import JsonlStore

CHUNK = 1 << 16
"""A chunk is full with so many bytes of text."""
AT_ONCE = 1 << 22
"""So many bytes of words are written in one transaction."""
COMMON = 2000
"""Trigrams in so many chunks narrow nothing down."""
MOST_TRIGRAMS = 24
SNIPPET, LEAD = 160, 40
EVER = 1 << 62

# A word here is a run of letters, digits, underscores and everything that is not ASCII. Two blanks stand behind
# each, so that every one and two characters at the end of a word begin a trigram too.
_WORDS = bytes(code if code >= 128 or chr(code).isalnum() or code == 95 else 32 for code in range(256))
_BEHIND = b"  "


class Hit(Struct, frozen=True, kw_only=True):
    """An entry that a search found."""

    session: str
    """The session's id."""
    file: str
    name: str | None
    """The session's name."""
    entry: EntryId
    type: str
    role: str
    """The role of a message, else the type of the entry."""
    timestamp: str
    branch: str | None
    """A branch that leads there, the current one if it does; `None` when all have left it."""
    in_context: bool
    """The model sees it from the current place."""
    snippet: str


class _File(NamedTuple):
    id: int
    path: str
    generation: int
    kind: Kind
    size: int
    body: int
    read_to: int
    text_to: int


class _Chunk(NamedTuple):
    start: int
    stop: int
    newest: int
    is_full: bool
    words: str


class _Range(NamedTuple):
    """A part of a file that may have hits."""

    newest: int
    file: _File
    start: int
    stop: int


class _Match(NamedTuple):
    path: str
    entry: Entry
    text: str


# Taking words in


def take_texts(db: Database, paths: Iterable[str], progress: Progress | None) -> None:
    """Take in the words of these files, as far as they were listed."""
    _tidy(db)
    waiting = [file for file in _files(db, paths) if file.text_to < file.read_to]
    total, done = sum(file.read_to - file.text_to for file in waiting), 0
    for file in waiting:
        try:
            for size in _take_text(db, file):
                done += size
                if progress is not None:
                    progress(min(done, total), total)
        except (OSError, SessionTreeError):
            continue  # it was taken away meanwhile, or cannot be read: the search will pass it over too


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


def _files(db: Database, paths: Iterable[str]) -> list[_File]:
    columns = "id, path, generation, kind, size, body, read_to, text_to"
    known = {row[1]: row for row in db.execute(f"SELECT {columns} FROM files WHERE kind != ?", (int(Kind.NONE),))}
    return [
        _File(row[0], path, row[2], Kind(row[3]), *row[4:])
        for path in paths
        if (row := known.get(os.fsencode(path))) is not None
    ]


def _take_text(db: Database, file: _File) -> Generator[int]:
    """Write the chunks of what is new in a file; yields how many bytes were done."""
    at = file.text_to
    start = max(file.body, at)
    last = db.execute(
        "SELECT id, start FROM chunks WHERE file = ? AND stop = ? AND NOT is_full", (file.id, at)
    ).fetchone()
    if last is not None:
        start = last[1]  # it was not full: it goes on with what is new
    batch: list[_Chunk] = []
    size = 0
    for chunk in _chunks(file, start):
        batch.append(chunk)
        size += len(chunk.words)
        if size >= AT_ONCE:
            if not _keep(db, file, at, batch, last):
                return
            yield chunk.stop - at
            at, last, size = chunk.stop, None, 0
            batch.clear()
    _keep(db, file, at, batch, last, done=True)
    yield file.read_to - at


def _keep(
    db: Database, file: _File, at: int, batch: list[_Chunk], last: tuple[int, int] | None, *, done: bool = False
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


def _chunks(file: _File, start: int) -> Generator[_Chunk]:
    words: set[bytes] = set()
    size, newest, stop = 0, 0, start
    for entry, stop in _entries(file, start, file.read_to):
        if entry is None:
            continue
        said = unify(full_text(entry)).encode("utf-8", "replace")
        words.update(said.translate(_WORDS).split())
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


def _entries(file: _File, start: int, stop: int, sieve: _Sieve | None = None) -> Generator[tuple[Entry | None, int]]:
    """The entries of a part of a file, each with where its line ends, or `None` for one that is none, or not wanted.

    Raises `OSError` and `SessionTreeError`.
    """
    if file.kind is Kind.SESSION:
        for entry in _opened(file.path).tree:
            yield entry, file.size
        return
    fd = open_regular(file.path)
    try:
        for raw, end in lines_of(fd, start, stop):
            try:
                wanted = raw and not raw.isspace() and (sieve is None or sieve.passes(raw))
                yield read_entry(raw, 0) if raw and wanted else None, end
            except NotJson:
                yield None, end
    finally:
        os.close(fd)


def _opened(path: str) -> Session:
    return Session(JsonlStore(path), read_only="it is being searched")


# Finding them again


def search(db: Database, listed: Sequence[SessionSummary], query: Query, *, limit: int) -> list[Hit]:
    """The newest entries of these sessions that the query matches, newest first."""
    files = _files(db, [summary.file for summary in listed])
    newest: list[tuple[int, int, _Match]] = []
    number = 0
    for part in _ranges(db, files, query):
        if len(newest) == limit and part.newest < newest[0][0]:
            break
        for time, match in _matches(part, query):
            number += 1
            heapq.heappush(newest, (time, number, match))
            if len(newest) > limit:
                heapq.heappop(newest)
    sights: dict[str, _Sight] = {}
    summaries = {summary.file: summary for summary in listed}
    hits: list[Hit] = []
    for _, _, match in sorted(newest, key=lambda item: item[:2], reverse=True):
        sight = sights.get(match.path)
        if sight is None:
            sight = sights[match.path] = _Sight(match.path)
        if sight.shows(match.entry):
            hits.append(_hit(match, summaries[match.path], sight, query))
    return hits


def _ranges(db: Database, files: Sequence[_File], query: Query) -> list[_Range]:
    """The parts of files that may have hits, those with the newest entries first."""
    by_id = {file.id: file for file in files}
    since = 0 if query.since is None else query.since
    ranges = [
        _Range(newest, by_id[file], start, stop)
        for file, start, stop, newest in _candidates(db, query.terms)
        if file in by_id and newest >= since
    ]
    for file in files:
        # A last line without newline counts too, unless it is too long to look into.
        stop = file.size if file.size - file.read_to <= LINE_LIMIT else file.read_to
        if file.text_to < stop:
            ranges.append(_Range(EVER, file, max(file.text_to, file.body), stop))
    return sorted(ranges, key=lambda part: part.newest, reverse=True)


def _candidates(db: Database, terms: Sequence[Term]) -> Iterable[tuple[int, int, int, int]]:
    """File, start, stop and newest time of the chunks that may have all terms."""
    columns = "chunks.file, chunks.start, chunks.stop, chunks.newest"
    pieces = _pieces(terms)
    trigrams = {piece[at : at + 3] for piece in pieces for at in range(len(piece) - 2)}
    if trigrams:
        wanted = " AND ".join(f'"{trigram}"' for trigram in sorted(trigrams)[:MOST_TRIGRAMS])
        return db.execute(
            f"SELECT {columns} FROM words JOIN chunks ON chunks.id = words.rowid WHERE words MATCH ?", (wanted,)
        )
    rows = db.execute(f"SELECT chunks.id, {columns} FROM chunks").fetchall()
    for piece in pieces:
        ids = _beginning(db, piece)
        rows = rows if ids is None else [row for row in rows if row[0] in ids]
    return (row[1:] for row in rows)


def _pieces(terms: Sequence[Term]) -> set[str]:
    """The words, as the index has them, that must be inside words of what the terms match."""
    return {
        piece.decode() for term in terms for piece in term.text.encode("utf-8", "replace").translate(_WORDS).split()
    }


def _beginning(db: Database, piece: str) -> set[int] | None:
    """The chunks with a trigram that begins with one or two characters; `None` when they are too many to matter."""
    db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab (main, words, instance)")
    rows = db.execute(
        "SELECT DISTINCT doc FROM vocabulary WHERE term >= ? AND term <= ? LIMIT ?",
        (piece, piece + 2 * "\U0010ffff", COMMON),
    ).fetchall()
    return None if len(rows) == COMMON else {row[0] for row in rows}


def _matches(part: _Range, query: Query) -> Generator[tuple[int, _Match]]:
    sieve = _Sieve(query.terms)
    try:
        for entry, _ in _entries(part.file, part.start, part.stop, sieve):
            if entry is None or (query.roles and not query.takes(speaker(entry))):
                continue
            said = full_text(entry)
            if not said or not query.matches(fold(said)):
                continue
            time = milliseconds(entry.timestamp) or 0
            if query.since is None or time >= query.since:
                yield time, _Match(part.file.path, entry, said)
    except (OSError, SessionTreeError):
        return  # taken away since it was listed


class _Sieve:
    """Passes every line that may match, and few others: most need not be decoded.

    It looks at bytes, so only at ASCII: single words anywhere, phrases with whatever may stand for white space in a
    file between them. Lines with escaped letters, or letters that are the same as some in ASCII, pass.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        plain = [term for term in terms if term.text.isascii() and not re.search(r'["\\/\x00-\x1f\x7f]', term.text)]
        others = [term for term in terms if term not in plain]
        self._words = [term.text.encode() for term in plain if " " not in term.text]
        self._words += [piece.encode() for piece in _pieces(others) if piece.isascii()]
        self._phrases = [
            re.compile(_GAP.join(re.escape(word) for word in term.text.encode().split()))
            for term in plain
            if " " in term.text
        ]

    def passes(self, raw: bytes) -> bool:
        if b"\\u" in raw or (not raw.isascii() and _ALIKE.search(raw) is not None):
            return True
        lower = raw.lower()
        return all(word in lower for word in self._words) and all(phrase.search(lower) for phrase in self._phrases)


_GAP = rb"(?:\\[bfnrt]|[\x00-\x20\x7f-\xff])+"
_ALIKE = re.compile("|".join("ßẞſ\u212aİŉǰẖẗẘẙẚﬀﬁﬂﬃﬄﬅﬆ\u037e\u1fef").encode())
"""Letters and signs that are equal to something with ASCII in it once they are folded."""


class _Sight:
    """What is said of the entries of a session that a search has found."""

    def __init__(self, path: str) -> None:
        self._owner: dict[EntryId, str] = {}
        self._context: frozenset[EntryId] = frozenset()
        self._raw: Callable[[EntryId], bytes | None] = lambda _: None
        try:
            session = _opened(path)
            tree, heads = session.tree, session.heads
        except SessionTreeError:
            return
        self._raw = lambda id: tree[id].raw if id in tree else None
        if heads.leaf is None or heads.leaf in tree:
            self._context = frozenset(session.context().sources)
        shown = sorted(heads.heads, key=lambda name: (name != heads.current, name in heads.archived))
        for name in shown:
            leaf = heads.heads[name]
            for entry in tree.up(leaf if leaf in tree else None):
                if self._owner.setdefault(entry.id, name) != name:
                    break

    def shows(self, entry: Entry) -> bool:
        """Whether the entry counts: one that a later line with its id stands for does not."""
        return self._raw(entry.id) == entry.raw

    def branch(self, id: EntryId) -> str | None:
        return self._owner.get(id)

    def in_context(self, id: EntryId) -> bool:
        return id in self._context


def _hit(match: _Match, summary: SessionSummary, sight: _Sight, query: Query) -> Hit:
    entry = match.entry
    return Hit(
        session=summary.id,
        file=match.path,
        name=summary.name,
        entry=entry.id,
        type=entry.type,
        role=speaker(entry),
        timestamp=entry.timestamp,
        branch=sight.branch(entry.id),
        in_context=sight.in_context(entry.id),
        snippet=snippet(match.text, query.terms),
    )


def snippet(text: str, terms: Sequence[Term]) -> str:
    """The part of `text` round the first term, on one line."""
    flat = " ".join(text.split())
    start = 0
    if terms:
        found = re.search(re.escape(terms[0].text), flat, re.IGNORECASE)
        start = max(0, (terms[0].position(fold(flat)) if found is None else found.start()) - LEAD)
    cut = flat[start : start + SNIPPET]
    return f"{'…' if start else ''}{cut}{'…' if start + SNIPPET < len(flat) else ''}"


def hit_to_wire(hit: Hit) -> JsonObject:
    """As commands and the REST interface give it."""
    return {
        "session": hit.session,
        "name": hit.name,
        "entry": hit.entry,
        "type": hit.type,
        "role": hit.role,
        "timestamp": hit.timestamp,
        "branch": hit.branch,
        "inContext": hit.in_context,
        "snippet": hit.snippet,
        "file": hit.file,
    }
