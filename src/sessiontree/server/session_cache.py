"""The open sessions of the server, one `Session` per file, shared by all requests and refreshed for each.

Sessions are looked up by id in the catalog; no text of a request becomes part of a path. The check whether a token may
see a session is only here. A session that it may not see is reported as missing.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.core.entries import FILES_RECORD, Entry, EntryId, Message, Problem, read_raws, shorten_to_line
from sessiontree.core.entry_text import format_entry, get_error_text
from sessiontree.core.messages import get_entry_role, has_failed
from sessiontree.core.outline import Outline, lay_out, run_steps, survey_tree
from sessiontree.core.problems import ProblemScan
from sessiontree.core.sanitize import escape_line
from sessiontree.core.tree import Tree
from sessiontree.errors import Conflict, NotFound, SessionTreeError, StoreError
from sessiontree.files.file_records import count_changed_files
from sessiontree.format.digest import EntryTotals
from sessiontree.library import catalog
from sessiontree.library.session_files import parse_session_id
from sessiontree.server.auth import Token
from sessiontree.server.http_errors import ApiError, make_session_not_found
from sessiontree.server.live_events import EventFeed, SessionWatcher
from sessiontree.server.request_checks import ServerLimits
from sessiontree.server.response_content import HtmlCache
from sessiontree.session import Session

log = logging.getLogger("sessiontree.server")

T = TypeVar("T")

MAX_OUTLINES = 8
"""Cached outlines of a session. A cursor refers to one of them."""

MAX_CACHED_RESPONSE_BYTES = 4 << 20
"""Bytes of cached responses of a session. Several clients often send the same request."""
MAX_SESSION_LOCK_WAITERS, MAX_LOCK_WAITERS = 2, 8
"""Maximum requests that wait for the lock of one session, and of all sessions. Each occupies a thread."""
COUNTED_TOGETHER = 2000
"""Entries that are read for the totals of a session before other requests get its lock."""
MAX_PREVIEWS = 50_000
"""Maximum cached previews of a session."""


class SessionPosition(Struct, frozen=True):
    """A position in a session: the number of entries and a checksum of the last entry's id."""

    count: int
    mark: str

    def __str__(self) -> str:
        return f"{self.count}-{self.mark}"


def compute_position(session: Session, count: int) -> SessionPosition:
    """Return the position after `count` entries."""
    last = session.tree.get_entry_at(count - 1).id if count else session.id
    return SessionPosition(count, f"{zlib.crc32(last.encode('utf-8', 'replace')):08x}")


def parse_position(text: str) -> SessionPosition:
    """Parse a position. Raises `ApiError`."""
    count, dash, mark = text.partition("-")
    if not (dash and count.isascii() and count.isdigit() and len(count) < 16):
        raise ApiError(400, f"invalid position {text[:100]!r}")
    return SessionPosition(int(count), mark)


class EntryPreview(NamedTuple):
    """The text of an entry in the tree. It never changes, so it is cached."""

    role: str | None
    timestamp: str
    text: str
    failed: bool


class OpenSession:
    """An open session with its caches and live events."""

    def __init__(self, session: Session, file: str, limits: ServerLimits) -> None:
        self.session = session
        self.file = file
        self.last_used = 0.0
        self.users = 0
        """The number of requests, streams and jobs that use it."""
        self.feed = EventFeed(limits.event_buffer)
        self.watcher = SessionWatcher(session.store, file, self.feed)
        self._outlines: OrderedDict[tuple[str, str], Outline] = OrderedDict()
        self._depths: dict[EntryId, int] = {}
        self._depths_count = 0
        """The number of entries when the depths were computed."""
        self._changed_files: Counter[EntryId] = Counter()
        self._counted_items = 0
        self._counted_tree: Tree | None = None
        self._previews: dict[int, EntryPreview] = {}
        """By line number, because two entries may have the same id."""
        self.html_cache = HtmlCache()
        self._totals = EntryTotals()
        self._scan: ProblemScan | None = None
        self._attachments: dict[type[Any], Any] = {}
        self._responses: OrderedDict[str, bytes] = OrderedDict()
        self._responses_position: SessionPosition | None = None
        self._responses_size = 0
        self._problems: tuple[SessionPosition, list[Problem]] | None = None

    @property
    def position(self) -> SessionPosition:
        return compute_position(self.session, len(self.session.tree.entries))

    def check_position(self, position: SessionPosition) -> None:
        """Raises `ApiError` if the session does not contain this position."""
        count = position.count
        if count > len(self.session.tree.entries) or compute_position(self.session, count) != position:
            raise ApiError(410, "the session was rewritten since that position; load it again")

    @property
    def leaf(self) -> EntryId | None:
        """The current leaf, or `None` if its entry is missing."""
        leaf = self.session.heads.leaf
        return leaf if leaf in self.session.tree else None

    def get_outline(self, filter: str, at: str | None = None) -> tuple[str, Outline]:
        """Return a position and the outline of the tree there: now, or `at` a cached position. Raises `ApiError`."""
        now = str(self.position)
        at = now if at is None else at
        key = at, filter
        outline = self._outlines.get(key)
        if outline is None:
            if at != now:
                raise ApiError(410, "the tree has changed since that page; load it again")
            shape = next((kept.shape for (place, _), kept in self._outlines.items() if place == at), None)
            shape = run_steps(survey_tree(self.session.tree, self.leaf)) if shape is None else shape
            outline = self._outlines[key] = run_steps(lay_out(shape, filter))
            while len(self._outlines) > MAX_OUTLINES:
                self._outlines.popitem(last=False)
        self._outlines.move_to_end(key)
        return at, outline

    def get_preview(self, entry: Entry) -> EntryPreview:
        """Return the preview of an entry."""
        preview = self._previews.get(entry.line)
        if preview is None:
            decoded = replace(entry, cached_body=entry.decode())
            if len(self._previews) >= MAX_PREVIEWS:
                self._previews.clear()
            preview = self._previews[entry.line] = EntryPreview(
                get_entry_role(decoded),
                decoded.timestamp,
                format_entry(decoded) or shorten_to_line(get_error_text(decoded.body)),
                isinstance(decoded.body, Message) and has_failed(decoded.body.message),
            )
        return preview

    def count_changed_files(self, entry: Entry) -> int:
        """Return how many files a call changed, if `entry` is its result or a record of it."""
        tree = self.session.tree
        items = tree.items
        if tree is not self._counted_tree:
            self._changed_files, self._counted_items, self._counted_tree = Counter(), 0, tree
        if len(items) > self._counted_items:
            self._changed_files += count_changed_files(items[self._counted_items :], tree)
            self._counted_items = len(items)
        if entry.custom_type == FILES_RECORD:
            place = tree.skip_annotations(entry.id)
            return 0 if place is None else self._changed_files[place]
        return self._changed_files[entry.id]

    def get_depth(self, id: EntryId) -> int:
        """Return the number of ancestors of an entry."""
        tree, known, unknown = self.session.tree, self._depths, list[EntryId]()
        if len(tree.entries) != self._depths_count:
            if known and self._changes_depths(tree.entries[self._depths_count :]):
                known.clear()
            self._depths_count = len(tree.entries)
        above: EntryId | None = id
        while above is not None and above not in known:
            unknown.append(above)
            above = tree.parent(above)
        depth = -1 if above is None else known[above]
        for id_on_path in reversed(unknown):
            depth += 1
            known[id_on_path] = depth
        return known[id]

    def _changes_depths(self, fresh: Iterable[Entry]) -> bool:
        """Return whether new entries change known depths: a missing parent appeared, or an id occurs again."""
        known, tree = self._depths, self.session.tree
        return any(entry.id in known or not known.keys().isdisjoint(tree.get_child_ids(entry.id)) for entry in fresh)

    def get_or_create(self, kind: type[T], make: Callable[[], T]) -> T:
        """Return the object of that class that is attached to the session, or attach a new one."""
        if kind not in self._attachments:
            self._attachments[kind] = make()
        return self._attachments[kind]

    def get_response(self, url: str) -> bytes | None:
        """Return the cached response for a URL, if the session has not changed since."""
        self._drop_stale_responses()
        return self._responses.get(url)

    def cache_response(self, url: str, at: SessionPosition, response: bytes) -> None:
        """Cache a response that was built `at` a position, if the session has not changed since."""
        self._drop_stale_responses()
        if at != self._responses_position or url in self._responses:
            return
        self._responses[url] = response
        self._responses_size += len(response)
        while self._responses_size > MAX_CACHED_RESPONSE_BYTES:
            self._responses_size -= len(self._responses.popitem(last=False)[1])

    def _drop_stale_responses(self) -> None:
        now = self.position
        if now != self._responses_position:
            self._responses.clear()
            self._responses_position, self._responses_size = now, 0

    def count_entries(self) -> bool:
        """Read some entries for the totals and the problems. Return whether all entries were read."""
        tree = self.session.tree
        scan = self._scan
        if scan is None or not scan.is_current:
            scan = self._scan = ProblemScan(tree)
        start = min(self._totals.entries, scan.added)
        entries = tree.entries[start : start + COUNTED_TOGETHER]
        for number, (entry, raw) in enumerate(zip(entries, read_raws(entries), strict=True), start):
            if number >= self._totals.entries:
                self._totals.add_line(entry, raw)
            if number >= scan.added:
                scan.add(entry, raw)
        return scan.is_complete and scan.is_current

    def compute_totals(self) -> EntryTotals:
        while not self.count_entries():
            pass
        return self._totals

    def list_problems(self) -> list[Problem]:
        now = self.position
        if self._problems is None or self._problems[0] != now:
            self.compute_totals()
            self._problems = now, self.session.list_problems(self._scan)
        return self._problems[1]

    def refresh(self) -> None:
        """Read what other processes wrote. A replaced file is opened again. Raises `NotFound` if the file is gone."""
        try:
            tree = self.session.tree
            if self.session.refresh():
                self.feed.wake()
            if self.session.tree is not tree:  # another process rolled back entries that were already read
                self._replace_session(self.session)
                self.feed.wake()
        except (Conflict, NotFound) as error:
            try:
                self._replace_session(catalog.open(self.file))
            except StoreError:
                raise NotFound("session file", self.file) from error

    def _replace_session(self, session: Session) -> None:
        self.session = session
        self._outlines.clear()
        self._depths.clear()
        self._depths_count = 0
        self._previews.clear()
        self._attachments.clear()
        self._responses_position = None
        self._totals, self._scan, self._problems = EntryTotals(), None, None


class SessionCache:
    """The open sessions, by file. For any thread."""

    def __init__(self, limits: ServerLimits, now: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._now = now
        self._lock = threading.Lock()
        self._open: dict[str, OpenSession] = {}
        self._open_locks: dict[str, threading.Lock] = {}
        self._files: dict[str, str] = {}
        """The files of known sessions, by id."""
        self._lock_waiters: Counter[str] = Counter()
        """The number of requests that wait for the lock of a session, by file."""

    @contextmanager
    def read(self, id: str, token: Token) -> Generator[OpenSession]:
        """Lock a session for reading. Raises `ApiError`."""
        with self.use(id, token) as opened, opened.session.hold_lock():
            yield opened

    @contextmanager
    def use(self, id: str, token: Token) -> Generator[OpenSession]:
        """Keep a session open inside this context. Raises `ApiError`."""
        opened = self.acquire(id, token)
        try:
            yield opened
        finally:
            self.release(opened)

    def acquire(self, id: str, token: Token) -> OpenSession:
        """Return the session with that id. It stays open until `release`. Raises `ApiError`."""
        file = self._find_file(id)
        if file is None:
            raise make_session_not_found(id)
        opened = self.acquire_file(file, token)
        if opened is None or id not in (opened.session.id, parse_session_id(file)):
            self._files.pop(id, None)
            if opened is not None:
                self.release(opened)
            raise make_session_not_found(id)
        return opened

    def acquire_file(self, file: str, token: Token) -> OpenSession | None:
        """Return the session in a file, open until `release`, or `None` if the token may not see it."""
        try:
            opened = self._open_file(file)
        except NotFound:
            return None
        if not token.can_see(opened.session.cwd):
            self.release(opened)
            return None
        return opened

    def wait_for_lock(self, opened: OpenSession) -> Generator[float]:
        """Yield pauses in seconds until no other process holds the lock of a session. Raises `LockTimeout`.

        Other requests can read the session. Only a few requests may wait, because each occupies a thread.
        """
        store = opened.session.store
        wait = store.get_lock_wait()
        if wait is None:
            return
        file = opened.file
        with self._lock:
            if self._lock_waiters[file] >= MAX_SESSION_LOCK_WAITERS or self._lock_waiters.total() >= MAX_LOCK_WAITERS:
                raise wait.build_timeout()
            self._lock_waiters[file] += 1
        try:
            for pause in wait:
                yield pause
                if store.get_lock_wait() is None:
                    return
        finally:
            with self._lock:
                self._lock_waiters[file] -= 1

    def add_user(self, opened: OpenSession) -> None:
        """Keep a session open that another user has acquired. Call `release` later."""
        with self._lock:
            opened.users += 1

    def release(self, opened: OpenSession) -> None:
        with self._lock:
            opened.users -= 1
            opened.last_used = self._now()

    def _find_file(self, id: str) -> str | None:
        file = self._files.get(id)
        if file is not None and catalog.has_session(file):
            return file
        files = list(catalog.list_locations())
        self._files = {parse_session_id(file): file for file in reversed(files)}
        if id not in self._files and id:
            # The file name may differ from the session id; the index knows the ids in the headers.
            named = {summary.id: summary.file for summary in catalog.sessions(all=True, others=True)}
            named |= {summary.id: summary.file for summary in catalog.sessions(all=True, archived=True)}
            self._files = {**named, **self._files}
        return self._files.get(id)

    def _open_file(self, file: str) -> OpenSession:
        with self._lock:
            open_lock = self._open_locks.setdefault(file, threading.Lock())
        with open_lock:  # two requests must not open the same file twice
            with self._lock:
                opened = self._open.get(file)
                if opened is not None:
                    opened.users += 1
            if opened is None:
                opened = OpenSession(catalog.open(file), file, self._limits)
                opened.users = 1
                opened.last_used = self._now()
                with self._lock:
                    self._open[file] = opened
            else:
                self._refresh(opened)
        return opened

    def _refresh(self, opened: OpenSession) -> None:
        try:
            opened.refresh()
        except BaseException as error:
            with self._lock:
                opened.users -= 1
                if isinstance(error, NotFound):
                    self._open.pop(opened.file, None)
            raise

    # Closing

    def remove_idle(self, everything: bool = False) -> Iterator[OpenSession]:
        """Remove and yield the sessions to close: idle ones, and ones above the limit."""
        with self._lock:
            free = sorted(
                (opened for opened in self._open.values() if not opened.users), key=lambda opened: opened.last_used
            )
            surplus = len(self._open) - self._limits.sessions
            oldest_use = self._now() - self._limits.idle_seconds
            removed = [
                opened
                for number, opened in enumerate(free)
                if everything or number < surplus or opened.last_used < oldest_use
            ]
            if everything:
                removed = list(self._open.values())
            for opened in removed:
                del self._open[opened.file]
        yield from removed

    def list_open(self) -> list[OpenSession]:
        with self._lock:
            return list(self._open.values())


class SessionLocator:
    """Finds the session of a swarm or experiment by id.

    Opening every session would take too long, so it scans the bytes of sessions for the type of the entries.
    """

    def __init__(self, custom_type: str, sessions: SessionCache) -> None:
        self._word = f'"{custom_type}"'.encode()
        self._sessions = sessions
        self._files: dict[str, str] = {}
        """The files of known ids."""

    def list_files(self) -> list[str]:
        """Return the files that may contain entries of the type, most recently written first."""
        return [file for file in catalog.list_locations() if catalog.may_contain(file, self._word)]

    def iter_sessions(self, token: Token) -> Generator[OpenSession]:
        """Yield the matching sessions that a token may see. Each stays open until the next."""
        return self._iter_sessions(self.list_files(), token)

    def _iter_sessions(self, files: Iterable[str], token: Token) -> Generator[OpenSession]:
        for file in files:
            try:
                opened = self._sessions.acquire_file(file, token)
            except SessionTreeError as error:
                log.warning("skipping %s: %s", escape_line(file), escape_line(str(error)))
                continue
            if opened is not None:
                try:
                    yield opened
                finally:
                    self._sessions.release(opened)

    def _iter_candidates(self, id: str) -> Generator[str]:
        """Yield the file where the id was found last, then all other files."""
        known = self._files.get(id)
        if known is not None:
            yield known
        yield from (file for file in self.list_files() if file != known)

    def acquire(
        self, id: str, token: Token, find: Callable[[OpenSession], Mapping[str, T]]
    ) -> tuple[OpenSession, T] | None:
        """Return the open session in which `find` finds the id, and what it found; the caller releases the session."""
        with closing(self._iter_sessions(self._iter_candidates(id), token)) as sessions:
            for opened in sessions:
                found = find(opened)
                self._files.update(dict.fromkeys(found, opened.file))
                if id in found:
                    self._sessions.add_user(opened)
                    return opened, found[id]
        return None
