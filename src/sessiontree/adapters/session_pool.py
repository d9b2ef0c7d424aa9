"""Open sessions of a repository, found by the keys that a framework has for them.

A key is a list of names, such as a project and a session id. The id of the session is computed from the key, so that
every process finds the same session, and all sessions of one group, such as a project, have ids that start alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Generic, Protocol, TypeAlias, TypeVar

from sessiontree.core.entries import Body, Entry, EntryId, SessionInfo
from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import BranchMoved, InvalidOperation, NotFound, StoreError
from sessiontree.format.codec import write_header
from sessiontree.library.catalog import check_copyable, get_session_location, hold_creation_lock
from sessiontree.library.locations import open_repository
from sessiontree.library.repository import Repository, StoredSession
from sessiontree.session import Session, group_commit
from sessiontree.session.group_commit import GroupCommit
from sessiontree.session.writer import Item
from sessiontree.store.base import Store
from sessiontree.store.jsonl import Durability

MAX_OPEN = 64
"""How many unused sessions stay open."""

SessionPlace: TypeAlias = str | os.PathLike[str] | Repository | None
"""Where sessions live: a folder, an address, a repository, or `None` for the usual place."""

SessionKey: TypeAlias = tuple[str, ...]


class EntryIndex(Protocol):
    """What an adapter knows about the entries of one session."""

    def add(self, entry: Entry) -> None:
        """Add an entry. Every entry is added once, in the order of the file."""
        ...


IndexT = TypeVar("IndexT", bound=EntryIndex)


def resolve_repository(place: SessionPlace) -> Repository:
    """Return the repository at a place that a caller gave an adapter."""
    if place is None or isinstance(place, str | os.PathLike):
        return open_repository(place)
    return place


def build_session_id(key: SessionKey) -> str:
    """Return the id of the session for a key, in the form of a UUID. Its first part depends on the group alone."""
    for name in key:
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise InvalidOperation(f"the id of a session or thread is text that is not empty, not {name!r}")
    digits = _hash_names(key[:-1])[:8] + _hash_names(key)[:24]
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _hash_names(names: SessionKey) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


class IndexedSession(Generic[IndexT]):
    """A session that is open, and an index of its entries."""

    def __init__(self, session: Session, location: str, build_index: Callable[[], IndexT]) -> None:
        self.session = session
        self.location = location
        self.lock = threading.RLock()
        self.users = 0
        self.commits = GroupCommit()
        self.index = build_index()
        self._build_index = build_index
        self._end = -1
        self._version: tuple[int, int] | None = None

    def update(self) -> None:
        """Read what other writers appended, and add all entries that are new to the index."""
        self.session.refresh()
        tree = self.session.tree
        version = id(tree), tree.history_changes
        if version != self._version:  # the first time, or the meaning of earlier lines has changed
            self.index, self._version, self._end = self._build_index(), version, 0
            entries = tree.entries  # loads all lines
        else:
            entries = tree.get_entries_since(self._end)
        for entry in entries:
            self.index.add(entry)
        self._end = tree.end

    @contextmanager
    def share_sync(self) -> Generator[None]:
        """Hold the session for this thread. What it writes shares one sync of the disk."""
        with self.lock:
            try:
                with self.session.share_sync():
                    yield
            except StoreError:
                self.invalidate()  # nothing of it is in the session
                raise

    def invalidate(self) -> None:
        """Build the index again at the next update."""
        self._version = None


class SessionPool(Generic[IndexT]):
    """The open sessions of a framework. Threads take turns with a session; processes may share it."""

    def __init__(self, place: SessionPlace, build_index: Callable[[], IndexT], durability: Durability) -> None:
        self.repository = resolve_repository(place)
        self._durability: Durability = durability
        self._build_index = build_index
        self._open: OrderedDict[str, IndexedSession[IndexT]] = OrderedDict()
        self._mutex = threading.Lock()

    def use(self, key: SessionKey) -> AbstractContextManager[IndexedSession[IndexT] | None]:
        """Return a context with the session of a key, up to date and for this thread alone; `None` if there is none."""
        return self._use(build_session_id(key))

    def use_stored(self, stored: StoredSession) -> AbstractContextManager[IndexedSession[IndexT] | None]:
        """Return a context with a session that `list_group` returned, as `use` does."""
        return self._use(stored.id)

    @contextmanager
    def use_or_create(self, key: SessionKey, cwd: str) -> Generator[IndexedSession[IndexT]]:
        """Yield the session of a key as `use` does. If there is none, create it with the last part as its name."""
        with self._use(build_session_id(key), (key[-1], cwd)) as found:
            assert found is not None
            yield found

    @contextmanager
    def _use(self, id: str, new: tuple[str, str] | None = None) -> Generator[IndexedSession[IndexT] | None]:
        while True:
            opened = self._acquire(id, new)
            if opened is None:
                yield None
                return
            try:
                with opened.lock:
                    if self._is_current(id, opened):
                        yield opened
                        return
            finally:
                self._release(opened)

    def write(self, key: SessionKey, cwd: str, write: Callable[[IndexedSession[IndexT]], None]) -> None:
        """Call `write` with the session of a key, as `use_or_create` yields it.

        Calls of several threads that wait for the session share one sync of the disk.
        """
        id = build_session_id(key)

        def try_write(opened: IndexedSession[IndexT]) -> bool:
            if not self._is_current(id, opened):
                return False
            write(opened)
            return True

        is_done = False
        while not is_done:
            opened = self._acquire(id, (key[-1], cwd))
            assert opened is not None
            try:
                if not self.repository.exists(opened.location):
                    self._is_current(id, opened)  # forgets it
                    continue
                if threading.get_ident() == group_commit.main_thread:  # a signal may interrupt it while others wait
                    with opened.share_sync():
                        is_done = try_write(opened)
                else:
                    is_done = opened.commits.run(partial(try_write, opened), opened.share_sync)
            finally:
                self._release(opened)

    def _is_current(self, id: str, opened: IndexedSession[IndexT]) -> bool:
        """Update a session. If it was deleted in the meantime, forget it and return `False`."""
        with suppress(NotFound):
            if self.repository.exists(opened.location):
                opened.update()
                return True
        with self._mutex:
            if self._open.get(id) is opened:
                del self._open[id]
        return False

    def _acquire(self, id: str, new: tuple[str, str] | None) -> IndexedSession[IndexT] | None:
        with self._mutex:
            opened = self._open.get(id)
            if opened is None:
                location = self._find(id)
                if location is None and new is None:
                    return None
                session = (
                    self._create(id, *new)
                    if location is None and new is not None
                    else Session(self._get_store(location or ""))
                )
                opened = IndexedSession(session, session.address or "", self._build_index)
                self._open[id] = opened
            opened.users += 1
            self._open.move_to_end(id)
            return opened

    def _get_store(self, location: str) -> Store:
        return self.repository.get_store(location, self._durability)

    def _release(self, opened: IndexedSession[IndexT]) -> None:
        with self._mutex:
            opened.users -= 1
            idle = [id for id, other in self._open.items() if other.users == 0]
            for id in idle[: max(0, len(self._open) - MAX_OPEN)]:
                self._open.pop(id).session.close()

    def _find(self, id: str) -> str | None:
        return next((stored.location for stored in self.repository.list_stored() if stored.id == id), None)

    def _create(self, id: str, name: str, cwd: str) -> Session:
        with hold_creation_lock(self.repository, cwd, id):
            location = self._find(id)
            if location is not None:  # another process was first
                return Session(self._get_store(location))
            stamp = format_timestamp(time.time_ns() // 1_000_000)
            location = self.repository.build_location(id, cwd=cwd, timestamp=stamp)
            return Session.create(self._get_store(location), id=id, cwd=cwd, name=name)

    def list_group(self, group: SessionKey) -> list[StoredSession]:
        """Return the sessions whose keys start with `group`, the most recently written first."""
        prefix = f"{_hash_names(group)[:8]}-"
        return [stored for stored in self.repository.list_stored() if stored.id.startswith(prefix)]

    def copy(self, source: IndexedSession[IndexT], key: SessionKey, *bodies: Body) -> None:
        """Create the session of a key with all lines of another, and append `bodies` to its current branch.

        Raises `InvalidOperation` if it exists.
        """
        id, session = build_session_id(key), source.session
        check_copyable(session, "a copy")
        stamp = format_timestamp(time.time_ns() // 1_000_000)
        location = self.repository.build_location(id, cwd=session.cwd, timestamp=stamp)
        header = write_header(
            id=id, timestamp=stamp, cwd=session.cwd, parent_session=get_session_location(session), forked_from=None
        )
        with hold_creation_lock(self.repository, session.cwd, id):
            if self._find(id) is not None:
                raise InvalidOperation(f"{key[-1]!r} exists already; delete it first, or choose another name")
            store = self._get_store(location)
            store.create([header, *session.iter_entry_lines()])
            with Session(store) as copied:
                copied.extend([SessionInfo(key[-1]), *bodies])

    def delete(self, key: SessionKey) -> None:
        """Move the session of a key to the trash, if there is one."""
        id = build_session_id(key)
        with self._mutex:
            opened = self._open.pop(id, None)
            location = self._find(id) if opened is None else opened.location
        if opened is not None:
            with opened.lock:
                opened.session.close()
        if location is not None:
            with suppress(NotFound):  # another process was first
                self.repository.delete(location)

    def close(self) -> None:
        """Close all sessions."""
        with self._mutex:
            while self._open:
                self._open.popitem()[1].session.close()


def write_on_new_branch(
    session: Session,
    name: str,
    start: EntryId | None,
    items: Sequence[Item],
    *,
    is_current: bool,
    description: str | None = None,
) -> None:
    """Create a branch with entries. Raises `BranchMoved` if another process has created it in the meantime."""
    place = None if start is None else session.tree[start]
    try:
        session.create_branch(name, at=place, description=description, current=is_current, bodies=items)
    except InvalidOperation:
        if name not in session.heads.heads:
            raise
        raise BranchMoved(name, None, session.heads.heads[name]) from None
