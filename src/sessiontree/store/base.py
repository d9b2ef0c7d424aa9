"""The store protocol: all reads and writes of session data go through a store.

A store holds the lines of one session: bytes without newlines, the header first. It knows nothing about the tree.
A writer names the cursor it read up to. If another writer has appended since, the store writes nothing and raises
`Conflict`. All methods are synchronous; async callers use a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from threading import get_ident
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, cast, runtime_checkable

from msgspec import Struct

from sessiontree.core.entries import EntryId, Problem
from sessiontree.errors import StoreError
from sessiontree.format.json_line import LINE_LIMIT

if TYPE_CHECKING:
    from sessiontree.store.lock import LockWait

NEWLINE = 0x0A
"""The newline as a number: `in` finds a number in bytes three times as fast as it finds bytes."""

PART_SIZE = 1 << 20
"""Bytes of lines that are joined or read at a time. A long session must never be in memory twice."""


class Cursor(Struct, frozen=True):
    """A position in a store up to which a reader has read. Only the store that made it knows what `value` means."""

    value: Any


class LineChunk(NamedTuple):
    """Lines read from a store, and where they end."""

    data: bytes
    """Whole lines, each with its newline. Only the last line of the session may lack it."""
    cursor: Cursor
    unfinished: bytes = b""
    """An incomplete last line: cut off by a crash, or still being written."""


class SyncGroup:
    """Appends of one thread that share a sync of the disk."""

    def __init__(self) -> None:
        self.owner = get_ident()
        self.start: Cursor | None = None
        """The cursor before the first append; `None` if there was none."""
        self.is_locked = False
        """Whether the locks of the store are held for the group."""
        self.fd = -1
        self.offset = 0
        """Where the first append wrote, in bytes."""
        self.parts: list[bytes] = []
        """The bytes that were written since then and are not synced."""

    def add(self, after: Cursor, fd: int, offset: int, data: bytes) -> None:
        """Add an append that wrote `data` at `offset`."""
        if self.start is None:
            self.start = after
        if not self.parts:
            self.fd, self.offset = fd, offset
        self.parts.append(data)

    def take_unsynced(self) -> bytes:
        """Return the bytes that are not synced, and count them as synced."""
        data = b"".join(self.parts)
        self.parts.clear()
        return data


class Store(Protocol):
    """The lines of one session. Implementations inherit the defaults below."""

    location: str
    """The path or address of the session, for messages."""
    path: str | None = None
    """The session's file, if the session is a file on this machine."""
    is_persistent: bool = True
    """Whether the session can be opened again by its `location`."""
    is_blocking: bool = True
    """Whether calls may wait for a disk or a network. Coroutines then need a thread for them."""
    syncs_appends: bool = False
    """Whether every append waits for a sync, which several can share: see `share_sync`."""
    torn_files: Sequence[str] = ()
    """Files that incomplete last lines and batches were moved to."""
    read_only: str | None = None
    """Why nothing can be written; `None` if it can."""
    problems: Sequence[Problem] = ()
    """Faults of the bytes that the lines were made from, if another program wrote them."""

    def create(self, lines: Sequence[bytes]) -> Cursor:
        """Create the session with these lines, all or none. Raises `StoreError` if it exists."""
        ...

    def read_end(self) -> LineChunk:
        """Return where the lines end now, without any lines. Raises `NotFound`."""
        ...

    def read(self, after: Cursor | None = None, *, before: Cursor | None = None, limit: int | None = None) -> LineChunk:
        """Return the lines between two cursors, by default all of them.

        With `limit`, return about that many bytes, but at least one line. Raises `NotFound`, and `Conflict` if lines
        that were read before have changed or disappeared.
        """
        ...

    def fetch(self, start: int, size: int) -> bytes:
        """Return whole lines that were read before, without the last newline. Raises `Conflict` if they are gone."""
        ...

    def read_backward(self, before: Cursor, end: int | None = None) -> Iterator[tuple[bytes, int]]:
        """Yield blocks of whole lines from a cursor back to the start, each with the offset where it starts.

        With `end`, begin at that offset, where a line ends.
        """
        ...

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        """Append lines, all or none. Raises `Conflict`, with nothing written, if others wrote since `after`.

        Return where the lines end. Return `after` itself if lines of others are in between, of other branches or of a
        program that does not lock; then the caller has to read everything since `after`.
        """
        ...

    def replace(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        """Replace all lines atomically and keep the old ones as a backup. Raises `Conflict`."""
        ...

    def close(self) -> None: ...

    def stream_lines(self) -> Iterator[bytes]:
        """Return an iterator over the whole lines of the session as they are stored. Raises `NotFound`."""
        return _iter_lines(self, self.read(limit=PART_SIZE))

    def stream_bytes(self) -> Iterator[bytes]:
        """Return an iterator over all bytes of the session, an unfinished last line too. Raises `NotFound`."""
        end = self.read_end()
        return chain((line + b"\n" for line in self.stream_lines()), [end.unfinished] if end.unfinished else [])

    def open_file(self) -> IO[bytes]:
        """Open a file with all bytes of the session, for another process to read. Raises `NotFound`."""
        import tempfile

        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        file.writelines(self.stream_bytes())
        file.seek(0)
        return file

    def write_tail(self, tail: bytes, *, after: Cursor) -> None:
        """Append an incomplete last line as it is: for byte-for-byte copies. Raises `Conflict`, and `StoreError`."""
        raise StoreError(self.location, "this store cannot hold an incomplete last line")

    def get_modified_time(self) -> int:
        """Return when the session was last written to, in nanoseconds since the epoch; 0 if the store does not know."""
        return 0

    def backdate(self, moment: int) -> None:
        """Set the modification time to `moment` if it is later, where that is possible: for copies."""

    def find_cursor_after_rollback(self, cursor: Cursor) -> Cursor | None:
        """Return an equal cursor if the last lines before `cursor` were blanked by a writer whose write failed.

        Return `None` if something else happened to the session.
        """
        return None

    def share_sync(self) -> AbstractContextManager[SyncGroup]:
        """Return a context in which the appends of this thread share one sync: they are on the disk when it ends.

        The end of the context raises `StoreError` if the sync fails. Then the lines of all these appends are removed.
        """
        return nullcontext(SyncGroup())

    def require_unchanged(self) -> AbstractContextManager[None]:
        """Return a context in which appends are refused if others wrote anything at all since `after`.

        Outside of it, a store may append behind lines of other branches and return `after`.
        """
        return nullcontext()

    def get_lock_wait(self) -> LockWait | None:
        """Return a wait for the other process that is writing to the session now, if there is one."""
        return None


def _iter_lines(store: Store, chunk: LineChunk) -> Iterator[bytes]:
    while chunk.data:
        lines = chunk.data.split(b"\n")
        yield from lines if lines[-1] else lines[:-1]
        chunk = store.read(chunk.cursor, limit=PART_SIZE)


class IndexedStore(Protocol):
    """A store that finds lines by entry id, as a database does."""

    def find_ancestors(self, before: Cursor, id: EntryId, count: int) -> list[tuple[int, bytes]] | None:
        """Return the line with this id and its ancestors, at most `count` lines, each with its position.

        The list is empty if no line before `before` has the id. Return `None` if the index cannot answer.
        """
        ...

    def find_entries(self, before: Cursor, ids: Sequence[EntryId]) -> dict[EntryId, tuple[int, bytes]] | None:
        """Return the last line with each of these ids and its position, without the ids that no line has.

        Return `None` if the index cannot answer.
        """
        ...


def get_index(store: Store) -> IndexedStore | None:
    """Return the store if it finds lines by entry id. `isinstance` would import `inspect`, which takes long."""
    return cast(IndexedStore, store) if hasattr(store, "find_ancestors") else None


class FenceRaised(StoreError):
    """Another worker took over what this one was writing. Nothing was written."""


@runtime_checkable
class FencedStore(Protocol):
    """A store that refuses what an earlier worker of the same agent still sends."""

    def raise_fence(self, scope: str, token: int) -> None:
        """Append with this token from now on, and refuse appends for `scope` with a lower one.

        An append that is under way is done before this returns. Raises `FenceRaised` if there is a higher token.
        """
        ...


def join_lines(lines: Sequence[bytes], location: str) -> bytes:
    """Return lines as they are stored, each with its newline. Raises `StoreError` for an invalid line."""
    if len(lines) == 1:
        line = lines[0]
        if NEWLINE in line or len(line) > LINE_LIMIT:
            raise _build_line_error(line, location)
        return line + b"\n"
    for line in lines:
        if NEWLINE in line or len(line) > LINE_LIMIT:
            raise _build_line_error(line, location)
    return b"\n".join([*lines, b""])


def join_in_parts(lines: Sequence[bytes], location: str) -> Iterator[bytes]:
    """Yield lines as `join_lines` returns them, about `PART_SIZE` bytes at a time."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line)
        if size > PART_SIZE:
            yield join_lines(part, location)
            part, size = [], 0
    if part:
        yield join_lines(part, location)


def _build_line_error(line: bytes, location: str) -> StoreError:
    if NEWLINE in line:
        return StoreError(location, "a line cannot contain a newline")
    return StoreError(location, f"line of {len(line)} bytes exceeds the limit of {LINE_LIMIT} bytes")
