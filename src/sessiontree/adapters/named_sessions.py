"""Sessions of one repository by their exact name: what a framework calls the id of a conversation is the name.

A session is opened once and shared by all threads. Only exact names count. An id, a part of one or `@` never leads to
another session than the one with that name.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from sessiontree.adapters.session_pool import SessionPlace, resolve_repository
from sessiontree.core.entries import EntryId, JsonObject, Message
from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound
from sessiontree.library.catalog import generate_session_id, hold_creation_lock
from sessiontree.library.session_files import resolve_folder
from sessiontree.session import Session
from sessiontree.session.session import clean_name
from sessiontree.store.base import Store
from sessiontree.store.jsonl import Durability

MAX_OPEN = 64
"""How many sessions stay open."""


class NamedSessions:
    """Finds, opens and creates the sessions of a repository by name."""

    def __init__(self, place: SessionPlace, durability: Durability) -> None:
        self.repository = resolve_repository(place)
        self._durability: Durability = durability
        self._open: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, name: str) -> Session | None:
        """Return the session with this name, up to date, or `None`. Raises `Ambiguous` if there are several."""
        session = self._get_open(name)
        if session is None:
            location = self._find(name)
            if location is None:
                return None
            session = Session(self._get_store(location))
            self._keep(name, session)
        return session

    def _get_store(self, location: str) -> Store:
        return self.repository.get_store(location, self._durability)

    def _get_open(self, name: str) -> Session | None:
        """Return a session that is already open, unless it was deleted, replaced or renamed."""
        with self._lock:
            session = self._open.get(name)
        if session is None:
            return None
        try:
            if session.address is not None and self.repository.exists(session.address):
                session.refresh()
                if session.name == name:
                    return session
        except NotFound:
            pass
        self.forget(name)
        return None

    def _keep(self, name: str, session: Session) -> None:
        with self._lock:
            self._open[name] = session
            self._open.move_to_end(name)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)  # not closed: another thread may be using it

    def forget(self, name: str) -> None:
        """Open the session again the next time."""
        with self._lock:
            self._open.pop(name, None)

    def close(self) -> None:
        """Close all sessions. No other thread may use them any more."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def _find(self, name: str) -> str | None:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - `None` would find a session without a name
            raise InvalidOperation(f"the name of a session is text, not {type(name).__name__}")
        found = [
            summary.file
            for archived in (False, True)
            for summary in self.repository.list_sessions(archived=archived)
            if summary.name == name and summary.source is None
        ]
        if len(found) > 1:
            raise Ambiguous("session", name, found)
        return found[0] if found else None

    def iter_sessions(self, text: bytes) -> Iterator[tuple[str, Session]]:
        """Yield the named sessions whose bytes may contain `text`, archived ones last."""
        for archived in (False, True):
            for summary in self.repository.list_sessions(archived=archived):
                if summary.name is None or summary.source is not None:
                    continue
                if self.repository.may_contain(summary.file, text):
                    yield summary.name, Session(self.repository.get_store(summary.file))

    @contextmanager
    def hold_name(self, name: str) -> Generator[None]:
        """Hold the lock that everyone takes who creates a session of this name. Raises `InvalidOperation`."""
        if clean_name(name) != name:
            raise InvalidOperation(
                f"{name!r} cannot be the name of a session: a name has one line and no spaces around it"
            )
        with hold_creation_lock(self.repository, resolve_folder("."), name):
            yield

    def create(self, name: str) -> Session:
        """Create a session. Call it with the lock of the name."""
        id, cwd = generate_session_id(), resolve_folder(".")
        location = self.repository.build_location(id, cwd=cwd, timestamp=format_timestamp(time.time_ns() // 1_000_000))
        session = Session.create(self._get_store(location), id=id, cwd=cwd, name=name)
        self._keep(name, session)
        return session

    def open_or_create(self, name: str) -> Session:
        """Return the session with this name. If several processes do this, one of them creates it."""
        session = self.open(name)
        if session is None:
            with self.hold_name(name):
                session = self.open(name) or self.create(name)
        return session


def walk_up_messages(session: Session, head: EntryId | None) -> Iterator[JsonObject]:
    """Yield the messages from an entry up to its root."""
    for entry in session.tree.walk_up(head):
        body = entry.body if entry.type == "message" else None
        if isinstance(body, Message):
            yield body.message
