"""The repository protocol: where sessions live.

A repository keeps many sessions and gives each a location: a string that opens it again from anywhere, such as a path
or `postgresql://host/database#id`. Code above this package uses locations and repositories, and never asks which kind
it has. To add a kind, implement `Repository` and call `locations.register_scheme`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from msgspec import Struct

from sessiontree.core.timestamps import parse_timestamp
from sessiontree.errors import SessionTreeError, isolate_errors
from sessiontree.format.tail import find_last_activity

if TYPE_CHECKING:
    from sessiontree.core.entries import Entry
    from sessiontree.core.query import Query
    from sessiontree.library.index.session_search import Hit
    from sessiontree.library.index.session_summary import SessionSummary
    from sessiontree.store.base import Cursor, Store
    from sessiontree.store.jsonl import Durability

RECENT_ALIAS = "@"
"""Names the most recent session of the current folder."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done and the bytes in total."""


Layout: TypeAlias = Literal["projects", "folder", "tree", "deep", "database"]
"""Of a folder. `projects`: one subfolder for each project; `folder`: no subfolders; `tree`: with any subfolders.

`deep`: with subfolders of subfolders, as Codex has them for years, months and days; `database`: no folder but the
database of another program."""


class StoredSession(Struct, frozen=True):
    """A session of a repository, without its content."""

    id: str
    location: str
    archived: bool = False


class SharedLock(Protocol):
    """A lock that one process at a time holds, on all machines together."""

    @property
    def is_held(self) -> bool:
        """Whether any process holds it."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether this process held it and another one holds it now."""
        ...

    def acquire(self) -> bool:
        """Return whether this process holds it now. Raises `StoreError`."""
        ...

    def release(self) -> None: ...


class Repository(Protocol):
    """Where sessions live. All methods are synchronous and safe to call from several threads and processes."""

    location: str
    """How messages name the repository: a folder or an address, without passwords."""

    def get_store(self, location: str, durability: Durability = "fsync") -> Store:
        """Return the store of the session at a location, whether it exists or not."""
        ...

    def build_location(self, id: str, *, cwd: str, timestamp: str) -> str:
        """Return the location for a new session. Nothing is created."""
        ...

    def get_id(self, location: str) -> str:
        """Return the session id that a location contains. Nothing is opened."""
        ...

    def exists(self, location: str) -> bool:
        """Return whether something is at a location. May return `True` without querying a remote database."""
        ...

    def find(self, name: str) -> str:
        """Return the location of a session by id, part of an id, name, or `@`. Raises `NotFound` or `Ambiguous`."""
        ...

    def find_recent(self, cwd: str) -> str | None:
        """Return the session of a folder that was continued last."""
        ...

    def list_stored(self) -> list[StoredSession]:
        """List all sessions, archived ones too, most recently written first. Deleted ones are not listed."""
        ...

    def list_sessions(
        self, cwd: str | None = None, *, archived: bool = False, progress: Progress | None = None
    ) -> list[SessionSummary]:
        """Summarize the sessions of the folder `cwd`, or of all folders, newest first. Damaged ones are included."""
        ...

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
        """Return the newest entries that match, in all branches and in archived sessions too."""
        ...

    def find_matching_sessions(
        self, query: Query, *, cwd: str | None = None, progress: Progress | None = None
    ) -> list[str]:
        """Return the locations of the sessions with a match. Each is read only until the first one."""
        ...

    def find_ambiguous(self, sessions: Iterable[tuple[str, str]], *, in_trash: bool = False) -> set[str]:
        """Return the locations among these pairs of id and location whose id a copy shares, so `find` is ambiguous."""
        ...

    def may_contain(self, location: str, text: bytes) -> bool:
        """Return whether the bytes of a session may contain `text`. A cheap test that can return false positives."""
        ...

    def resolve(self, name: str, *, in_trash: bool = False) -> str:
        """Return the location that `archive`, `delete` and `purge` would act on. Prefers the trash with `in_trash`."""
        ...

    def archive(self, name: str, *, archived: bool = True) -> str:
        """Hide a session from listings, or show it again. Returns its location."""
        ...

    def delete(self, name: str) -> str:
        """Move a session to the trash. Returns its location there."""
        ...

    def restore(self, name: str) -> str:
        """Move a session from the trash back to where it was. Returns its location."""
        ...

    def purge(self, name: str, *, at: Cursor | None = None) -> str:
        """Remove a session for good. Raises `Conflict` if it does not end at `at`."""
        ...

    def list_trash(self) -> list[SessionSummary]:
        """Summarize the sessions in the trash, newest first."""
        ...

    def build_copy_location(self, location: str, id: str) -> str:
        """Return where a repaired copy of a session goes."""
        ...

    def iter_copies(self, location: str) -> Iterator[Store]:
        """Yield the stores of sessions that were copied from this one, newest first."""
        ...

    def share_lines(self, source: Store, target: Store, header: bytes, parts: Sequence[Entry | bytes] | None) -> bool:
        """Create `target` as a fork that shares its lines with `source`, all of them or `parts`, if possible."""
        ...

    def check_size(self, location: str) -> None:
        """Raise `StoreError` if opening the session would take too much memory."""
        ...

    def open_shared_lock(self, location: str, name: str) -> SharedLock | None:
        """Return a lock for work on a session that holds across machines; `None` if all writers share this machine."""
        ...

    def wait_for_change(self, location: str, after: Cursor, timeout: float) -> bool:
        """Wait until a session has lines after the cursor. Returns whether it has."""
        ...

    def check_reachable(self) -> None:
        """Raise `StoreError` if the repository cannot be reached at all."""
        ...


def find_most_recent(written: Iterable[tuple[str, int]], open_store: Callable[[str], Store]) -> str | None:
    """Return the session with the latest message or move, for `find_recent`. Names and labels do not count.

    `written` are sessions and their modification times in nanoseconds, the latest first. Times are compared in whole
    milliseconds, the resolution of entries: an entry has the time before it is written, rounded down, and would
    otherwise seem older than an earlier write to another session. The session written last wins a tie.
    """
    best: str | None = None
    when = 0
    for session, written_at in written:
        modified = written_at // 1_000_000
        if best is not None and modified <= when:
            break  # the others were not written later
        moment = _find_last_activity(open_store(session), modified)
        if best is None or moment > when:
            best, when = session, moment
    return best


def _find_last_activity(store: Store, modified: int) -> int:
    """Return the time of the last message or move, or else the modification time, in milliseconds."""
    with suppress(OSError, SessionTreeError), closing(store), isolate_errors(store.location):
        found = find_last_activity(store.read_backward(store.read_end().cursor))
        moment = parse_timestamp(found[1]) if found is not None and found[0] else None
        if moment is not None:
            return min(modified, moment)
    return modified
