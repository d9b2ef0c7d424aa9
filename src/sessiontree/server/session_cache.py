"""Opened sessions: one `Session` for each file, shared by all requests, refreshed when it is asked for.

A session is found by its id among the files of the catalog, and by nothing else: what a request names never becomes
part of a path. Few are held at once, and those that nobody asks for are closed. Who may see one is decided by the
token, here and nowhere else: a session that it may not see is told of as one that is not there.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.core.entries import Entry, EntryId, Problem
from sessiontree.core.entry_text import format_entry
from sessiontree.core.messages import get_entry_role
from sessiontree.core.outline import Outline, lay_out, run_steps, survey_tree
from sessiontree.errors import Conflict, NotFound, StoreError
from sessiontree.format.totals import EntryTotals
from sessiontree.library import catalog
from sessiontree.library.session_files import parse_session_id
from sessiontree.server.auth import Token
from sessiontree.server.http_errors import ApiError, make_session_not_found
from sessiontree.server.live_events import EventFeed, SessionWatcher
from sessiontree.server.rendering import HtmlCache
from sessiontree.server.request_checks import ServerLimits
from sessiontree.session import Session

T = TypeVar("T")

MAX_OUTLINES = 8
"""Outlines of a session that are kept, so that pages of one go on where the last one ended."""

MAX_CACHED_RESPONSE_BYTES = 4 << 20
"""Bytes of answers about a session that are kept until it is written to: several clients read the same."""
MAX_SESSION_LOCK_WAITERS, MAX_LOCK_WAITERS = 2, 8
"""Requests that wait for the lock of one session, and of all: each keeps a thread, and others need threads too."""
MAX_PREVIEWS = 50_000
"""Entries of a session that are kept as what their row says."""


class SessionPosition(Struct, frozen=True):
    """How far a session has been read: how many entries there are, and which is the last."""

    count: int
    mark: str

    def __str__(self) -> str:
        return f"{self.count}-{self.mark}"


def compute_position(session: Session, count: int) -> SessionPosition:
    """The position behind `count` entries."""
    last = session.tree.get_entry_at(count - 1).id if count else session.id
    return SessionPosition(count, f"{zlib.crc32(last.encode('utf-8', 'replace')):08x}")


def parse_position(text: str) -> SessionPosition:
    """A position as it was told. Raises `Refused`."""
    count, dash, mark = text.partition("-")
    if not (dash and count.isascii() and count.isdigit() and len(count) < 16):
        raise ApiError(400, f"{text[:100]!r} is no position in a session")
    return SessionPosition(int(count), mark)


class EntryPreview(NamedTuple):
    """What one row of the tree says of an entry. It never changes, so it is read once."""

    role: str | None
    timestamp: str
    text: str


class OpenSession:
    """A session that is held open, and what belongs to it as long as it is."""

    def __init__(self, session: Session, file: str, limits: ServerLimits) -> None:
        self.session = session
        self.file = file
        self.last_used = 0.0
        self.users = 0
        """Who must not lose it: requests, streams, runs."""
        self.feed = EventFeed(limits.event_buffer)
        self.watcher = SessionWatcher(session.store, file, self.feed)
        self._outlines: OrderedDict[tuple[str, str], Outline] = OrderedDict()
        self._depths: dict[EntryId, int] = {}
        self._depths_count = 0
        """How many entries there were when they were counted."""
        self._previews: dict[int, EntryPreview] = {}
        """By the line, since of two entries with one id the last counts."""
        self.html_cache = HtmlCache()
        self._totals = EntryTotals()
        self._attachments: dict[type[Any], Any] = {}
        self._responses: OrderedDict[str, bytes] = OrderedDict()
        self._responses_position: SessionPosition | None = None
        self._responses_size = 0
        self._problems: tuple[SessionPosition, list[Problem]] | None = None

    @property
    def position(self) -> SessionPosition:
        return compute_position(self.session, len(self.session.tree.entries))

    def check_position(self, position: SessionPosition) -> None:
        """Raises `Refused` where the session does not have this position, so that nothing can go on from it."""
        count = position.count
        if count > len(self.session.tree.entries) or compute_position(self.session, count) != position:
            raise ApiError(410, "the session is not what it was at that position: read it anew")

    @property
    def leaf(self) -> EntryId | None:
        """The current leaf, unless damage took it away."""
        leaf = self.session.heads.leaf
        return leaf if leaf in self.session.tree else None

    def get_outline(self, filter: str, at: str | None = None) -> tuple[str, Outline]:
        """The rows of the tree as it is, or as it was `at` a position that is still kept. Raises `Refused`."""
        now = str(self.position)
        at = now if at is None else at
        key = at, filter
        outline = self._outlines.get(key)
        if outline is None:
            if at != now:
                raise ApiError(410, "the tree has changed since that page: read it anew")
            shape = next((kept.shape for (place, _), kept in self._outlines.items() if place == at), None)
            shape = run_steps(survey_tree(self.session.tree, self.leaf)) if shape is None else shape
            outline = self._outlines[key] = run_steps(lay_out(shape, filter))
            while len(self._outlines) > MAX_OUTLINES:
                self._outlines.popitem(last=False)
        self._outlines.move_to_end(key)
        return at, outline

    def get_preview(self, entry: Entry) -> EntryPreview:
        """What a row says of an entry, from what was read before if it was."""
        gist = self._previews.get(entry.line)
        if gist is None:
            read = replace(entry, cached_body=entry.decode())
            if len(self._previews) >= MAX_PREVIEWS:
                self._previews.clear()
            gist = self._previews[entry.line] = EntryPreview(get_entry_role(read), read.timestamp, format_entry(read))
        return gist

    def get_depth(self, id: EntryId) -> int:
        """How many entries stand above one."""
        tree, known, way = self.session.tree, self._depths, list[EntryId]()
        if len(tree.entries) != self._depths_count:
            if known and self._changes_depths(tree.entries[self._depths_count :]):
                known.clear()
            self._depths_count = len(tree.entries)
        above: EntryId | None = id
        while above is not None and above not in known:
            way.append(above)
            above = tree.parent(above)
        depth = -1 if above is None else known[above]
        for step in reversed(way):
            depth += 1
            known[step] = depth
        return known[id]

    def _changes_depths(self, fresh: Iterable[Entry]) -> bool:
        """Whether entries that came late put others elsewhere: their parent, or one of the same id."""
        known, tree = self._depths, self.session.tree
        return any(entry.id in known or not known.keys().isdisjoint(tree.get_child_ids(entry.id)) for entry in fresh)

    def get_or_create(self, kind: type[T], make: Callable[[], T]) -> T:
        """What somebody has made of this session before, or makes now: it is kept as long as the session is."""
        if kind not in self._attachments:
            self._attachments[kind] = make()
        return self._attachments[kind]

    def get_response(self, url: str) -> bytes | None:
        """What was answered to the same before, if nothing was written since."""
        self._drop_stale_responses()
        return self._responses.get(url)

    def cache_response(self, url: str, at: SessionPosition, response: bytes) -> None:
        """Keep an answer for who asks the same, if nothing was written since it was made `at` a position."""
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

    def compute_totals(self) -> EntryTotals:
        self._totals.extend(self.session.tree.entries[self._totals.entries :])
        return self._totals

    def list_problems(self) -> list[Problem]:
        now = self.position
        if self._problems is None or self._problems[0] != now:
            self._problems = now, self.session.problems
        return self._problems[1]

    def refresh(self) -> None:
        """Take in what others wrote. A file that was replaced is opened anew; one that is gone raises `NotFound`."""
        try:
            tree = self.session.tree
            if self.session.refresh():
                self.feed.wake()
            if self.session.tree is not tree:  # a writer took back what was read
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
        self._totals, self._problems = EntryTotals(), None


class SessionCache:
    def __init__(self, limits: ServerLimits, now: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._now = now
        self._lock = threading.Lock()
        self._open: dict[str, OpenSession] = {}
        self._open_locks: dict[str, threading.Lock] = {}
        self._files: dict[str, str] = {}
        """Where sessions were found, by id."""
        self._lock_waiters: Counter[str] = Counter()
        """How many requests wait for the lock of a session, by file."""

    @contextmanager
    def read(self, id: str, token: Token) -> Generator[OpenSession]:
        """A session as it is now, which nobody changes meanwhile. Raises `Refused`."""
        with self.use(id, token) as opened, opened.session.hold_lock():
            yield opened

    @contextmanager
    def use(self, id: str, token: Token) -> Generator[OpenSession]:
        """A session that is not closed meanwhile, as it is now. Raises `Refused`."""
        opened = self.acquire(id, token)
        try:
            yield opened
        finally:
            self.release(opened)

    def acquire(self, id: str, token: Token) -> OpenSession:
        """The session of that id, which is not closed until `let_go`. Raises `Refused`."""
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
        """The session in a file, which is not closed until `let_go`; `None` where the token sees none."""
        try:
            opened = self._open_file(file)
        except NotFound:
            return None
        if not token.can_see(opened.session.cwd):
            self.release(opened)
            return None
        return opened

    def wait_for_lock(self, opened: OpenSession) -> Generator[float]:
        """How long to pause, again and again, until no other process writes to a session. Raises `LockTimeout`.

        The session can be read meanwhile. Few wait at once: the others are refused, so that they keep no thread.
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
        """Hold a session that is held already, for something that takes longer."""
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
            # A file may be called otherwise than its session; the index knows what the headers say.
            named = {summary.id: summary.file for summary in catalog.sessions(all=True)}
            named |= {summary.id: summary.file for summary in catalog.sessions(all=True, archived=True)}
            self._files = {**named, **self._files}
        return self._files.get(id)

    def _open_file(self, file: str) -> OpenSession:
        with self._lock:
            door = self._open_locks.setdefault(file, threading.Lock())
        with door:  # two requests must not open one file twice
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
        """Sessions to be closed: nobody has asked for them for long, or there are too many. They are forgotten here."""
        with self._lock:
            free = sorted((one for one in self._open.values() if not one.users), key=lambda one: one.last_used)
            surplus = len(self._open) - self._limits.sessions
            late = self._now() - self._limits.idle_seconds
            leaving = [one for number, one in enumerate(free) if everything or number < surplus or one.last_used < late]
            if everything:
                leaving = list(self._open.values())
            for one in leaving:
                del self._open[one.file]
        yield from leaving

    def list_open(self) -> list[OpenSession]:
        with self._lock:
            return list(self._open.values())
