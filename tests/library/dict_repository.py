"""A repository in a dictionary, at `dict://name#session`: a third kind that nothing in `src` knows about."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from sessiontree.core.entries import Entry
from sessiontree.core.query import Query
from sessiontree.errors import Ambiguous, Conflict, InvalidOperation, NotFound
from sessiontree.library.index.session_search import Hit, find_hits
from sessiontree.library.index.session_summary import SessionSummary, summarize_session
from sessiontree.library.repository import RECENT_ALIAS, Progress, SharedLock, StoredSession, find_most_recent
from sessiontree.session import Session
from sessiontree.store.base import Cursor, Store
from sessiontree.store.jsonl import Durability
from sessiontree.store.memory import MemoryStore

SCHEME = "dict://"
_repositories: dict[str, DictRepository] = {}


def open_dict(address: str) -> DictRepository:
    name = address.partition("#")[0]
    return _repositories.setdefault(name, DictRepository(name))


class DictStore(MemoryStore):
    is_persistent = True

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.modified = time.time_ns()
        self.archived = self.deleted = False

    def create(self, lines: Sequence[bytes]) -> Cursor:
        self.modified = time.time_ns()
        return super().create(lines)

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        self.modified = time.time_ns()
        return super().append(lines, after=after)

    def get_modified_time(self) -> int:
        return self.modified

    @property
    def exists(self) -> bool:
        return self._data is not None


class DictRepository:
    def __init__(self, location: str) -> None:
        self.location = location
        self._stores: dict[str, DictStore] = {}

    def get_store(self, location: str, durability: Durability = "fsync") -> DictStore:
        return self._stores.setdefault(location, DictStore(location))

    def build_location(self, id: str, *, cwd: str, timestamp: str) -> str:
        return f"{self.location}#{id}"

    def get_id(self, location: str) -> str:
        return location.rpartition("#")[2]

    def exists(self, location: str) -> bool:
        return location in self._stores and self._stores[location].exists

    def _list(self, *, deleted: bool = False) -> list[DictStore]:
        stores = [store for store in self._stores.values() if store.exists and store.deleted == deleted]
        return sorted(stores, key=lambda store: store.modified, reverse=True)

    def _find(self, name: str, *, deleted: bool = False) -> str:
        text = self.get_id(name) if name.startswith(SCHEME) else name
        if not text:
            raise InvalidOperation("a session needs an id or a name")
        listed = [(store.location, self._open(store)) for store in self._list(deleted=deleted)]
        found = (
            [location for location, session in listed if session.id == text]
            or [location for location, session in listed if session.name == text]
            or [location for location, session in listed if len(text) >= 4 and session.id.startswith(text)]
        )
        if len(found) > 1:
            raise Ambiguous("session", text, found)
        if not found:
            raise NotFound("session in the trash" if deleted else "session", text)
        return found[0]

    def _open(self, store: Store) -> Session:
        return Session(store, read_only="it was opened for reading")

    def find(self, name: str) -> str:
        if name.rpartition("#")[2] != RECENT_ALIAS:
            return self._find(name)
        found = self.find_recent(os.getcwd())
        if found is None:
            raise NotFound("session", RECENT_ALIAS)
        return found

    def find_recent(self, cwd: str) -> str | None:
        here = [store for store in self._list() if not store.archived and self._open(store).cwd == os.path.abspath(cwd)]
        return find_most_recent([(store.location, store.modified) for store in here], self.get_store)

    def list_stored(self) -> list[StoredSession]:
        return [StoredSession(self.get_id(store.location), store.location, store.archived) for store in self._list()]

    def list_sessions(
        self, cwd: str | None = None, *, archived: bool = False, progress: Progress | None = None
    ) -> list[SessionSummary]:
        listed = [self._summarize(store) for store in self._list() if store.archived == archived]
        return [summary for summary in listed if cwd is None or summary.cwd == os.path.abspath(cwd)]

    def list_trash(self) -> list[SessionSummary]:
        return [self._summarize(store) for store in self._list(deleted=True)]

    def _summarize(self, store: DictStore) -> SessionSummary:
        return summarize_session(self._open(store), modified=store.modified, archived=store.archived)

    def search(
        self,
        query: Query,
        *,
        cwd: str | None = None,
        limit: int = 50,
        only: Callable[[SessionSummary], bool] | None = None,
        on_unreadable: Callable[[str], None] | None = None,
        progress: Progress | None = None,
    ) -> list[Hit]:
        listed = [*self.list_sessions(cwd), *self.list_sessions(cwd, archived=True)]
        chosen = [summary.file for summary in listed if only is None or only(summary)]
        hits = [hit for location in chosen for hit in find_hits(self._open(self.get_store(location)), query)]
        return sorted(hits, key=lambda hit: hit.timestamp, reverse=True)[:limit]

    def find_matching_sessions(
        self, query: Query, *, cwd: str | None = None, progress: Progress | None = None
    ) -> list[str]:
        return sorted({hit.file for hit in self.search(query, cwd=cwd, limit=1 << 30)})

    def find_ambiguous(self, sessions: Iterable[tuple[str, str]], *, in_trash: bool = False) -> set[str]:
        return set()

    def may_contain(self, location: str, text: bytes) -> bool:
        return text in self.get_store(location).read().data

    def resolve(self, name: str, *, in_trash: bool = False) -> str:
        try:
            return self._find(name, deleted=in_trash)
        except NotFound:
            return self._find(name)

    def archive(self, name: str, *, archived: bool = True) -> str:
        location = self._find(name)
        self._stores[location].archived = archived
        return location

    def delete(self, name: str) -> str:
        location = self._find(name)
        self._stores[location].deleted = True
        return location

    def restore(self, name: str) -> str:
        location = self._find(name, deleted=True)
        self._stores[location].deleted = False
        return location

    def purge(self, name: str, *, at: Cursor | None = None) -> str:
        location = self.resolve(name, in_trash=True)
        if at is not None and self._stores[location].read_end().cursor != at:
            raise Conflict(location, "another writer appended first")
        del self._stores[location]
        return location

    def build_copy_location(self, location: str, id: str) -> str:
        return f"{self.location}#{id}"

    def iter_copies(self, location: str) -> Iterator[Store]:
        return (store for store in self._list() if self._open(store).header.parent_session == location)

    def share_lines(self, source: Store, target: Store, header: bytes, parts: Sequence[Entry | bytes] | None) -> bool:
        return False

    def check_size(self, location: str) -> None: ...

    def open_shared_lock(self, location: str, name: str) -> SharedLock | None: ...

    def wait_for_change(self, location: str, after: Cursor, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self.get_store(location).read_end().cursor == after and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.get_store(location).read_end().cursor != after

    def check_reachable(self) -> None: ...
