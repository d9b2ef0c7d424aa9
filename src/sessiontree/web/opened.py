"""Opened sessions: one `Session` for each file, shared by all requests, refreshed when it is asked for.

A session is found by its id among the files of the catalog, and by nothing else: what a request names never becomes
part of a path. Few are held at once, and those that nobody asks for are closed. Who may see one is decided by the
token, here and nowhere else: a session that it may not see is told of as one that is not there.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sessiontree import catalog
from sessiontree.comparison import usages
from sessiontree.core.entries import Entry, EntryId, Message, Problem
from sessiontree.core.messages import model_of, role_of, spent
from sessiontree.core.outline import Outline, finish, lay_out, plain_text, survey
from sessiontree.errors import Conflict, NotFound, StoreError
from sessiontree.index.folder import id_of
from sessiontree.session import Session
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.postgres.address import is_address
from sessiontree.web.guard import Limits
from sessiontree.web.live import Feed, Watch
from sessiontree.web.refusals import Refused, no_session
from sessiontree.web.rendering import Rendered
from sessiontree.web.tokens import Token

T = TypeVar("T")

OUTLINES = 8
"""Outlines of a session that are kept, so that pages of one go on where the last one ended."""

ANSWERS = 4 << 20
"""Bytes of answers about a session that are kept until it is written to: several clients read the same."""
WAITING, WAITING_IN_ALL = 2, 8
"""Requests that wait for the lock of one session, and of all: each keeps a thread, and others need threads too."""
GISTS = 50_000
"""Entries of a session that are kept as what their row says."""


class Position(Struct, frozen=True):
    """How far a session has been read: how many entries there are, and which is the last."""

    count: int
    mark: str

    def __str__(self) -> str:
        return f"{self.count}-{self.mark}"


def position_at(session: Session, count: int) -> Position:
    """The position behind `count` entries."""
    last = session.tree.entry_at(count - 1).id if count else session.id
    return Position(count, f"{zlib.crc32(last.encode('utf-8', 'replace')):08x}")


def read_position(text: str) -> Position:
    """A position as it was told. Raises `Refused`."""
    count, dash, mark = text.partition("-")
    if not (dash and count.isascii() and count.isdigit() and len(count) < 16):
        raise Refused(400, f"{text[:100]!r} is no position in a session")
    return Position(int(count), mark)


class Gist(NamedTuple):
    """What one row of the tree says of an entry. It never changes, so it is read once."""

    role: str | None
    timestamp: str
    text: str


class Totals:
    """What a session has cost, and with which models, as far as its entries were counted."""

    def __init__(self) -> None:
        self.count = 0
        self.cost = 0.0
        self.tokens = 0.0
        self.models: dict[str, None] = {}

    def take(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.count += 1
            body = entry.decoded()
            for found in map(spent, usages(body)):
                if found is not None:
                    self.cost += found.cost
                    self.tokens += found.tokens
            model = model_of(body.message) if isinstance(body, Message) else None
            if model is not None and model != ("unknown", "unknown"):
                self.models[":".join(model)] = None


class Opened:
    """A session that is held open, and what belongs to it as long as it is."""

    def __init__(self, session: Session, file: str, limits: Limits) -> None:
        self.session = session
        self.file = file
        self.used = 0.0
        self.holders = 0
        """Who must not lose it: requests, streams, runs."""
        self.feed = Feed(limits.deltas)
        self.watch = Watch(session.store, file, self.feed)
        self._outlines: OrderedDict[tuple[str, str], Outline] = OrderedDict()
        self._depths: dict[EntryId, int] = {}
        self._depths_at = 0
        """How many entries there were when they were counted."""
        self._gists: dict[int, Gist] = {}
        """By the line, since of two entries with one id the last counts."""
        self.rendered = Rendered()
        self._totals = Totals()
        self._kept: dict[type[Any], Any] = {}
        self._answers: OrderedDict[str, bytes] = OrderedDict()
        self._answers_at: Position | None = None
        self._answers_size = 0
        self._problems: tuple[Position, list[Problem]] | None = None

    @property
    def position(self) -> Position:
        return position_at(self.session, len(self.session.tree.entries))

    def check(self, position: Position) -> None:
        """Raises `Refused` where the session does not have this position, so that nothing can go on from it."""
        count = position.count
        if count > len(self.session.tree.entries) or position_at(self.session, count) != position:
            raise Refused(410, "the session is not what it was at that position: read it anew")

    @property
    def leaf(self) -> EntryId | None:
        """The current leaf, unless damage took it away."""
        leaf = self.session.heads.leaf
        return leaf if leaf in self.session.tree else None

    def outline(self, filter: str, at: str | None = None) -> tuple[str, Outline]:
        """The rows of the tree as it is, or as it was `at` a position that is still kept. Raises `Refused`."""
        now = str(self.position)
        at = now if at is None else at
        key = at, filter
        outline = self._outlines.get(key)
        if outline is None:
            if at != now:
                raise Refused(410, "the tree has changed since that page: read it anew")
            shape = next((kept.shape for (place, _), kept in self._outlines.items() if place == at), None)
            shape = finish(survey(self.session.tree, self.leaf)) if shape is None else shape
            outline = self._outlines[key] = finish(lay_out(shape, filter))
            while len(self._outlines) > OUTLINES:
                self._outlines.popitem(last=False)
        self._outlines.move_to_end(key)
        return at, outline

    def gist(self, entry: Entry) -> Gist:
        """What a row says of an entry, from what was read before if it was."""
        gist = self._gists.get(entry.line)
        if gist is None:
            read = replace(entry, kept=entry.decoded())
            if len(self._gists) >= GISTS:
                self._gists.clear()
            gist = self._gists[entry.line] = Gist(role_of(read), read.timestamp, plain_text(read))
        return gist

    def depth(self, id: EntryId) -> int:
        """How many entries stand above one."""
        tree, known, way = self.session.tree, self._depths, list[EntryId]()
        if len(tree.entries) != self._depths_at:
            if known and self._moves(tree.entries[self._depths_at :]):
                known.clear()
            self._depths_at = len(tree.entries)
        above: EntryId | None = id
        while above is not None and above not in known:
            way.append(above)
            above = tree.parent(above)
        depth = -1 if above is None else known[above]
        for step in reversed(way):
            depth += 1
            known[step] = depth
        return known[id]

    def _moves(self, fresh: Iterable[Entry]) -> bool:
        """Whether entries that came late put others elsewhere: their parent, or one of the same id."""
        known, tree = self._depths, self.session.tree
        return any(entry.id in known or not known.keys().isdisjoint(tree.child_ids(entry.id)) for entry in fresh)

    def kept(self, kind: type[T], make: Callable[[], T]) -> T:
        """What somebody has made of this session before, or makes now: it is kept as long as the session is."""
        if kind not in self._kept:
            self._kept[kind] = make()
        return self._kept[kind]

    def answered(self, asked: str) -> bytes | None:
        """What was answered to the same before, if nothing was written since."""
        self._forget_old_answers()
        return self._answers.get(asked)

    def keep_answer(self, asked: str, at: Position, answer: bytes) -> None:
        """Keep an answer for who asks the same, if nothing was written since it was made `at` a position."""
        self._forget_old_answers()
        if at != self._answers_at or asked in self._answers:
            return
        self._answers[asked] = answer
        self._answers_size += len(answer)
        while self._answers_size > ANSWERS:
            self._answers_size -= len(self._answers.popitem(last=False)[1])

    def _forget_old_answers(self) -> None:
        now = self.position
        if now != self._answers_at:
            self._answers.clear()
            self._answers_at, self._answers_size = now, 0

    def totals(self) -> Totals:
        self._totals.take(self.session.tree.entries[self._totals.count :])
        return self._totals

    def problems(self) -> list[Problem]:
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
                self._renew(self.session)
                self.feed.wake()
        except (Conflict, NotFound) as error:
            try:
                self._renew(catalog.open(self.file))
            except StoreError:
                raise NotFound("session file", self.file) from error

    def _renew(self, session: Session) -> None:
        self.session = session
        self._outlines.clear()
        self._depths.clear()
        self._depths_at = 0
        self._gists.clear()
        self._kept.clear()
        self._answers_at = None
        self._totals, self._problems = Totals(), None


class OpenSessions:
    def __init__(self, limits: Limits, now: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._now = now
        self._lock = threading.Lock()
        self._open: dict[str, Opened] = {}
        self._opening: dict[str, threading.Lock] = {}
        self._files: dict[str, str] = {}
        """Where sessions were found, by id."""
        self._waiting: Counter[str] = Counter()
        """How many requests wait for the lock of a session, by file."""

    @contextmanager
    def reading(self, id: str, token: Token) -> Generator[Opened]:
        """A session as it is now, which nobody changes meanwhile. Raises `Refused`."""
        with self.kept(id, token) as opened, opened.session.held():
            yield opened

    @contextmanager
    def kept(self, id: str, token: Token) -> Generator[Opened]:
        """A session that is not closed meanwhile, as it is now. Raises `Refused`."""
        opened = self.hold(id, token)
        try:
            yield opened
        finally:
            self.let_go(opened)

    def hold(self, id: str, token: Token) -> Opened:
        """The session of that id, which is not closed until `let_go`. Raises `Refused`."""
        file = self._file_of(id)
        if file is None:
            raise no_session(id)
        opened = self.hold_file(file, token)
        if opened is None or id not in (opened.session.id, id_of(file)):
            self._files.pop(id, None)
            if opened is not None:
                self.let_go(opened)
            raise no_session(id)
        return opened

    def hold_file(self, file: str, token: Token) -> Opened | None:
        """The session in a file, which is not closed until `let_go`; `None` where the token sees none."""
        try:
            opened = self._opened(file)
        except NotFound:
            return None
        if not token.sees(opened.session.cwd):
            self.let_go(opened)
            return None
        return opened

    def pauses(self, opened: Opened) -> Generator[float]:
        """How long to pause, again and again, until no other process writes to a session. Raises `LockTimeout`.

        The session can be read meanwhile. Few wait at once: the others are refused, so that they keep no thread.
        """
        store = opened.session.store
        if not isinstance(store, JsonlStore):
            return
        wait = store.wait_for_lock()
        if wait is None:
            return
        file = opened.file
        with self._lock:
            if self._waiting[file] >= WAITING or self._waiting.total() >= WAITING_IN_ALL:
                raise wait.timeout()
            self._waiting[file] += 1
        try:
            for pause in wait:
                yield pause
                if store.wait_for_lock() is None:
                    return
        finally:
            with self._lock:
                self._waiting[file] -= 1

    def hold_again(self, opened: Opened) -> None:
        """Hold a session that is held already, for something that takes longer."""
        with self._lock:
            opened.holders += 1

    def let_go(self, opened: Opened) -> None:
        with self._lock:
            opened.holders -= 1
            opened.used = self._now()

    def _file_of(self, id: str) -> str | None:
        file = self._files.get(id)
        if file is not None and (is_address(file) or os.path.lexists(file)):
            return file
        files = list(catalog.session_files())
        self._files = {id_of(file): file for file in reversed(files)}
        if id not in self._files and id:
            # A file may be called otherwise than its session; the index knows what the headers say.
            named = {summary.id: summary.file for summary in catalog.sessions(all=True)}
            named |= {summary.id: summary.file for summary in catalog.sessions(all=True, archived=True)}
            self._files = {**named, **self._files}
        return self._files.get(id)

    def _opened(self, file: str) -> Opened:
        with self._lock:
            door = self._opening.setdefault(file, threading.Lock())
        with door:  # two requests must not open one file twice
            with self._lock:
                opened = self._open.get(file)
                if opened is not None:
                    opened.holders += 1
            if opened is None:
                opened = Opened(catalog.open(file), file, self._limits)
                opened.holders = 1
                opened.used = self._now()
                with self._lock:
                    self._open[file] = opened
            else:
                self._refresh(opened)
        return opened

    def _refresh(self, opened: Opened) -> None:
        try:
            opened.refresh()
        except BaseException as error:
            with self._lock:
                opened.holders -= 1
                if isinstance(error, NotFound):
                    self._open.pop(opened.file, None)
            raise

    # Closing

    def idle(self, everything: bool = False) -> Iterator[Opened]:
        """Sessions to be closed: nobody has asked for them for long, or there are too many. They are forgotten here."""
        with self._lock:
            free = sorted((one for one in self._open.values() if not one.holders), key=lambda one: one.used)
            surplus = len(self._open) - self._limits.sessions
            late = self._now() - self._limits.idle_seconds
            leaving = [one for number, one in enumerate(free) if everything or number < surplus or one.used < late]
            if everything:
                leaving = list(self._open.values())
            for one in leaving:
                del self._open[one.file]
        yield from leaving

    def open_now(self) -> list[Opened]:
        with self._lock:
            return list(self._open.values())
