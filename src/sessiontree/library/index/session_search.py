"""Search: find the newest entries that match a query, in all branches of many sessions.

The word index names the chunks of files that may contain hits. Those chunks, and everything that is not indexed yet,
are read. Lines that pass the prefilter are decoded and compared, and the newest hits are kept. A stale or missing index
never changes the result. New words are indexed after the search, for at most as long as the search took. The first
search over thousands of sessions does not wait until all of them are indexed.
"""

from __future__ import annotations

import heapq
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from sessiontree.core.entries import Entry, EntryId, JsonObject
from sessiontree.core.entry_text import get_speaker
from sessiontree.core.heads import Heads
from sessiontree.core.query import Query, Term
from sessiontree.core.search_text import VisibleEntries, fold_parts, get_text_parts, normalize_accents
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.core.tree import Tree
from sessiontree.errors import SessionTreeError, isolate_errors
from sessiontree.format.codec import read_entry
from sessiontree.format.json_line import LINE_LIMIT, NotJson
from sessiontree.library.index.index_database import IndexDatabase
from sessiontree.library.index.listing import Progress, load_digest
from sessiontree.library.index.session_summary import OversizedLine, ReadMode, SessionSummary, open_read_only
from sessiontree.library.index.word_index import (
    IndexedFile,
    Prefilter,
    find_candidates,
    index_texts,
    is_older,
    load_files,
)
from sessiontree.session import Session
from sessiontree.store.range_reader import RangeReader

MIN_INDEX_SECONDS, MAX_INDEX_SECONDS = 0.25, 3.0
"""How many seconds new words are indexed after a search, at least and at most."""
RANGE_SIZE = 1 << 22
"""Bytes of a file that are searched forward at a time. The ranges themselves are searched from the end."""
SNIPPET_LENGTH, SNIPPET_LEAD = 160, 40
MAX_TIME = 1 << 62
MIN_TIME = -MAX_TIME

T = TypeVar("T")


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
    """The role of a message, or the type of another entry."""
    timestamp: str
    branch: str | None
    """A branch whose path contains the entry, preferably the current one; `None` if there is none."""
    in_context: bool
    """Whether the model sees the entry from the current position. If it was edited, the edit counts instead."""
    snippet: str


class _FilePart(NamedTuple):
    """A part of a file that may contain hits."""

    newest: int
    file: IndexedFile
    start: int
    stop: int


class _FileMatch(NamedTuple):
    moment: int
    path: str
    position: int
    """The offset in the file, which together with the path orders matches of the same time."""
    entry: Entry
    text: str

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return self[:3] < other[:3]  # never by the entry


def search_sessions(
    db: IndexDatabase, listed: Sequence[SessionSummary], query: Query, *, limit: int, progress: Progress | None = None
) -> list[Hit]:
    """Return the newest entries of these sessions that match the query, newest first."""
    summaries = {summary.file: summary for summary in listed}

    def work(parts: Sequence[_FilePart]) -> list[Hit]:
        found = _find_matches(db, parts, query, limit, progress)
        return [_build_hit(match, summaries[match.path], sight, query) for match, sight in found]

    return _search_parts(db, listed, query, work)


def find_matching_files(
    db: IndexDatabase, listed: Sequence[SessionSummary], query: Query, *, progress: Progress | None = None
) -> list[str]:
    """Return the files of the sessions with a match. Each file is read only until the first one."""
    return _search_parts(db, listed, query, lambda parts: _list_matching_files(db, parts, query, progress))


def _search_parts(
    db: IndexDatabase, listed: Sequence[SessionSummary], query: Query, work: Callable[[Sequence[_FilePart]], T]
) -> T:
    """Return what `work` finds in the parts that may contain hits. Index new words afterwards."""
    began = time.monotonic()
    with db.transaction("DEFERRED"):  # how far a file is indexed and its chunks must be read together
        files = load_files(db, [summary.file for summary in listed if summary.branch is not None])
        parts = _list_parts(db, files, query)
    found = work(parts)
    if db.is_persistent:
        index_texts(db, files, seconds=min(max(MIN_INDEX_SECONDS, time.monotonic() - began), MAX_INDEX_SECONDS))
    return found


def _list_parts(db: IndexDatabase, files: Sequence[IndexedFile], query: Query) -> list[_FilePart]:
    """List the parts of files that may contain hits, those with the newest entries first."""
    since = 0 if query.since is None else query.since
    known = [
        _FilePart(newest, file, start, stop)
        for file, start, stop, newest in find_candidates(db, files, query.terms)
        if newest >= since
    ]
    unknown: list[_FilePart] = []
    for file in files:
        # A last line without newline counts too, unless it is too long to read.
        stop = file.size if file.size - file.read_to <= LINE_LIMIT else file.read_to
        if file.text_to < stop:
            unknown.append(_FilePart(MAX_TIME, file, max(file.text_to, file.body), stop))
    return unknown + sorted(known, key=lambda part: part.newest, reverse=True)


def _find_matches(
    db: IndexDatabase, parts: Sequence[_FilePart], query: Query, limit: int, progress: Progress | None
) -> list[tuple[_FileMatch, _EntryContext]]:
    """Return the newest valid matches, newest first, each with its context.

    A match is invalid if a later line of a damaged session replaces the entry. Undamaged sessions need no check. The
    others are opened as soon as they have a match among the newest, each once. Then an invalid match never displaces a
    valid one. If a session changed during the search, all parts are searched again.
    """
    looked_into: dict[str, _EntryContext] = {}
    counts = _build_match_filter(db, looked_into)
    while True:
        matches = _find_newest(parts, query, limit, counts, progress)
        by_file: dict[str, list[Entry]] = {}
        for match in matches:
            by_file.setdefault(match.path, []).append(match.entry)
        sights = {path: looked_into.get(path) or _EntryContext(db, path, entries) for path, entries in by_file.items()}
        found = [(match, sights[match.path]) for match in matches]
        counting = [(match, sight) for match, sight in found if sight.is_current(match.entry)]
        if len(matches) < limit or len(counting) == len(matches):
            return counting
        looked_into |= {match.path: sight for match, sight in found if not sight.is_current(match.entry)}


def _build_match_filter(
    db: IndexDatabase, looked_into: dict[str, _EntryContext]
) -> Callable[[IndexedFile, _FileMatch], bool]:
    """Return a function that checks whether a match is valid, as far as is known during the search."""

    def is_counted(file: IndexedFile, match: _FileMatch) -> bool:
        if file.kind is ReadMode.LINES and not file.is_sound and file.path not in looked_into:
            looked_into[file.path] = _EntryContext(db, file.path)
        return file.path not in looked_into or looked_into[file.path].is_current(match.entry)

    return is_counted


def _list_matching_files(
    db: IndexDatabase, parts: Sequence[_FilePart], query: Query, progress: Progress | None
) -> list[str]:
    """List the files with a valid match."""
    found: dict[str, None] = {}
    way, sieve, counts = _SearchProgress(parts, progress), Prefilter(query.terms), _build_match_filter(db, {})
    for part in parts:
        end = way.done + part.stop - part.start
        if part.file.path not in found:
            matches = _iter_matches(part, query, sieve, lambda: query.since or MIN_TIME, way.advance)
            if any(counts(part.file, match) for match in matches):
                found[part.file.path] = None
        way.advance(end - way.done)
    return list(found)


def _find_newest(
    parts: Sequence[_FilePart],
    query: Query,
    limit: int,
    counts: Callable[[IndexedFile, _FileMatch], bool],
    progress: Progress | None,
) -> list[_FileMatch]:
    """Return the newest valid matches in these parts, newest first."""
    newest: list[_FileMatch] = []
    way, sieve = _SearchProgress(parts, progress), Prefilter(query.terms)

    def get_min_time() -> int:
        """Return the time before which entries no longer count."""
        return newest[0].moment if len(newest) == limit else query.since or MIN_TIME

    for part in parts:
        if part.newest < get_min_time():
            break
        for match in _iter_matches(part, query, sieve, get_min_time, way.advance):
            if len(newest) < limit:
                if counts(part.file, match):
                    heapq.heappush(newest, match)
            elif newest[0] < match and counts(part.file, match):
                heapq.heapreplace(newest, match)
    way.advance(way.total - way.done)
    return sorted(newest, reverse=True)


class _SearchProgress:
    """The progress of a search, in bytes."""

    def __init__(self, parts: Sequence[_FilePart], progress: Progress | None) -> None:
        self.total = sum(part.stop - part.start for part in parts)
        self.done = 0
        self._progress = progress

    def advance(self, size: int) -> None:
        self.done += size
        if self._progress is not None:
            self._progress(self.done, self.total)


def _iter_matches(
    part: _FilePart, query: Query, sieve: Prefilter, least: Callable[[], int], passed: Callable[[int], None]
) -> Generator[_FileMatch]:
    try:
        with isolate_errors(part.file.path):
            for position, entry in _iter_entries(part, sieve, least, passed):
                parts = match_entry(entry, query, since=least())
                if parts is not None:
                    moment = parse_timestamp(entry.timestamp) or 0
                    yield _FileMatch(moment, part.file.path, position, entry, "\n".join(parts))
    except (OSError, SessionTreeError):
        return  # removed since it was listed


def _iter_entries(
    part: _FilePart, sieve: Prefilter, least: Callable[[], int], passed: Callable[[int], None]
) -> Generator[tuple[int, Entry]]:
    """Yield the entries of a part of a file that may match, each with its offset.

    Raises `OSError` and `SessionTreeError`.
    """
    if part.file.kind is ReadMode.SESSION:
        yield from enumerate(open_read_only(part.file.path, part.file.open_store).tree)
        return
    with part.file.open_store.reader_class(part.file.path) as reader:
        for at, stop in _iter_ranges_backward(reader, part.start, part.stop):
            for block, end in reader.iter_blocks(at, stop):
                if block is None or (least() > MIN_TIME and is_older(block, least())):
                    pass
                elif sieve.can_match(block):
                    yield from _parse_block(block, at, sieve)
                passed(end - at)
                at = end


def _iter_ranges_backward(reader: RangeReader, start: int, stop: int) -> Generator[tuple[int, int]]:
    """Yield ranges of complete lines, the last ones first: once the newest hits are known, older ranges are skipped."""
    size = RANGE_SIZE
    while start < stop:
        first = start if stop - start <= size else reader.find_next_line(stop - size, stop)
        if first < stop:
            yield first, stop
            stop, size = first, RANGE_SIZE
        else:
            size *= 4  # a longer line


def _parse_block(block: bytes, at: int, sieve: Prefilter) -> Generator[tuple[int, Entry]]:
    for raw in block.split(b"\n"):
        start, at = at, at + len(raw) + 1
        if raw and not raw.isspace() and sieve.can_match(raw):
            try:
                entry = read_entry(raw, 0)
            except NotJson:
                continue
            yield start, entry


class _EntryContext:
    """The branches and the context of entries that a search found in one session."""

    def __init__(self, db: IndexDatabase, path: str, entries: Sequence[Entry] | None = None) -> None:
        """Load the context of these entries, or of the whole session."""
        self._branches: Mapping[EntryId, str | None] = {}
        self._visible: VisibleEntries | None = None
        self._tree: Tree | None = Tree()
        """`None` if every entry is valid."""
        try:
            if entries is None or not self._load_from_index(db, path, entries):
                self._load_from_session(db, path)
        except OversizedLine:
            self._tree = None  # too large to open: accept the matches unchecked
        except SessionTreeError:
            return  # removed during the search

    def _load_from_index(self, db: IndexDatabase, path: str, entries: Sequence[Entry]) -> bool:
        """Load from the index, if it has the links between all these entries. Return whether it has."""
        ids = {entry.id for entry in entries}
        digest = load_digest(db, path)
        branches = {} if digest is None else digest.find_branches(ids)
        if len(branches) < len(ids):
            return False
        with isolate_errors(path):
            self._visible = VisibleEntries(open_read_only(path, db.open_store).context())
        self._branches, self._tree = branches, None
        return True

    def _load_from_session(self, db: IndexDatabase, path: str) -> None:
        with isolate_errors(path):
            session = open_read_only(path, db.open_store)
            tree, heads = session.tree, session.heads
            self._tree = tree
            if heads.leaf is None or heads.leaf in tree:
                self._visible = VisibleEntries(session.context())
            self._branches = map_branches(heads, lambda leaf: tree.walk_up_ids(leaf if leaf in tree else None))

    def is_current(self, entry: Entry) -> bool:
        """Return whether no later line with the same id replaces the entry."""
        return self._tree is None or (entry.id in self._tree and self._tree[entry.id].raw == entry.raw)

    def get_branch(self, id: EntryId) -> str | None:
        return self._branches.get(id)

    def is_in_context(self, entry: Entry) -> bool:
        return self._visible is not None and self._visible.contains(entry)


def map_branches(heads: Heads, up: Callable[[EntryId | None], Iterable[EntryId]]) -> dict[EntryId, str]:
    """Map each entry to a branch that contains it: the current one if possible, an archived one as a last resort."""
    branches: dict[EntryId, str] = {}
    for name in sorted(heads.heads, key=lambda name: (name != heads.current, name in heads.archived)):
        for id in up(heads.heads[name]):
            if id in branches:
                break
            branches[id] = name
    return branches


def match_entry(entry: Entry, query: Query, *, since: int | None = None) -> list[str] | None:
    """Return the texts of an entry if the query matches it, or `None`. `since` overrides the query's limit."""
    oldest = query.since if since is None else since
    if oldest is not None and (parse_timestamp(entry.timestamp) or 0) < oldest:
        return None
    if query.roles and not query.accepts_role(get_speaker(entry)):
        return None
    parts = get_text_parts(entry)
    return parts if parts and query.matches(fold_parts(parts)) else None


def find_hits(session: Session, query: Query) -> list[Hit]:
    """Search one open session, without the index."""
    tree, heads = session.tree, session.heads
    branches = map_branches(heads, lambda leaf: tree.walk_up_ids(leaf if leaf in tree else None))
    visible = VisibleEntries(session.context())
    return [
        Hit(
            session=session.id,
            file=session.location,
            name=session.name,
            entry=entry.id,
            type=entry.type,
            role=get_speaker(entry),
            timestamp=entry.timestamp,
            branch=branches.get(entry.id),
            in_context=visible.contains(entry),
            snippet=build_snippet("\n".join(parts), query.terms),
        )
        for entry in tree
        if (parts := match_entry(entry, query)) is not None
    ]


def _build_hit(match: _FileMatch, summary: SessionSummary, sight: _EntryContext, query: Query) -> Hit:
    entry = match.entry
    return Hit(
        session=summary.id,
        file=match.path,
        name=summary.name,
        entry=entry.id,
        type=entry.type,
        role=get_speaker(entry),
        timestamp=entry.timestamp,
        branch=sight.get_branch(entry.id),
        in_context=sight.is_in_context(entry),
        snippet=build_snippet(match.text, query.terms),
    )


def build_snippet(text: str, terms: Sequence[Term]) -> str:
    """Return the part of `text` around the first term, on one line."""
    flat = normalize_accents(" ".join(text.split()))
    start = max(0, _find_term(flat, terms[0]) - SNIPPET_LEAD) if terms else 0
    cut = flat[start : start + SNIPPET_LENGTH]
    return f"{'…' if start else ''}{cut}{'…' if start + SNIPPET_LENGTH < len(flat) else ''}"


def _find_term(text: str, term: Term) -> int:
    """Return the position of a term in normalized text; -1 if it is not there."""
    folded = text.casefold()
    position = term.find_position(folded)
    if len(folded) == len(text):
        return position
    # Folding turned some letters into several: map the position back to the original letter.
    ends = accumulate(len(letter.casefold()) for letter in text)
    return bisect_right(list(ends), position)


def encode_hit(hit: Hit) -> JsonObject:
    """Return the JSON that commands print and the REST API returns."""
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
