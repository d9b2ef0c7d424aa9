"""Live events of a session: the feed that jobs publish to, the watcher that notices new entries, and the open streams.

New entries are read from the session itself, so clients also get entries of other processes and lose nothing while they
are away. Other events, such as deltas and runs, are kept only in a bounded buffer. Each stores how many entries existed
before it, so that a client gets both kinds in one order. A client that is too slow for the buffer must load the session
again. Memory does not grow with the number of clients, except for their positions.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Protocol, runtime_checkable

from msgspec import Struct

from sessiontree.core.entries import JsonObject
from sessiontree.errors import SessionTreeError
from sessiontree.server.auth import Token
from sessiontree.server.http_errors import ApiError
from sessiontree.server.request_checks import ServerLimits
from sessiontree.server.response_content import encode_json
from sessiontree.store.base import Cursor, LineChunk, Store

FILE_POLL_SECONDS = 0.2
"""How often to check a session file for changes."""
STORE_WAIT_SECONDS = 1.0
"""How long to wait for a database notification before checking whether a client still listens."""


@runtime_checkable
class NotifyingStore(Protocol):
    """A store that notifies about writes of other processes."""

    def wait_for_change(self, after: Cursor, timeout: float) -> bool: ...

    def read_end(self) -> LineChunk: ...


class TransientEvent(Struct, frozen=True):
    """An event that is not stored in the session."""

    number: int
    entry_count: int
    """The number of entries when it was published."""
    kind: str
    data: bytes


class EventFeed:
    """The transient events of a session, and the clients that wait for changes. For any thread."""

    def __init__(self, limit: int) -> None:
        self.feed_id = secrets.token_hex(4)
        """Distinguishes the event numbers of this feed from numbers of an earlier process."""

        self._limit = limit
        self._lock = threading.Lock()
        self._events: deque[TransientEvent] = deque()
        self._size = 0
        self._last = 0
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self._last

    def publish(self, kind: str, data: JsonObject, count: Callable[[], int]) -> None:
        """Publish an event after as many entries as `count` returns."""
        raw = encode_json(data)
        with self._lock:
            self._last += 1
            self._events.append(TransientEvent(self._last, count(), kind, raw))
            self._size += len(raw)
            while self._size > self._limit and len(self._events) > 1:
                self._size -= len(self._events.popleft().data)
        self.wake()

    def read_after(self, number: int) -> Sequence[TransientEvent] | None:
        """Return the events after a number, or `None` if the buffer has lost some of them."""
        with self._lock:
            if number > self._last or self._last - number > len(self._events):
                return None
            newest_first = islice(reversed(self._events), self._last - number)
            return list(newest_first)[::-1]

    def find_start(self, count: int) -> int:
        """Return the event number from which a client continues that has read `count` entries and no events."""
        with self._lock:
            for event in self._events:
                if event.entry_count >= count:
                    return event.number - 1
            return self._last

    # Waiting

    @contextmanager
    def subscribe(self) -> Generator[asyncio.Event]:
        """Yield an event that is set at every change. Clear it before you wait for it."""
        waiter = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._waiters.append(waiter)
        try:
            yield waiter[1]
        finally:
            with self._lock:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """Wake all waiting clients, after a new entry or event."""
        with self._lock:
            waiting = tuple(self._waiters)
        for loop, event in waiting:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(event.set)


class SessionWatcher:
    """Watches a session for writes of other processes while clients listen, and wakes the feed.

    A database notifies a waiting thread. A file is polled.
    """

    def __init__(self, store: Store, file: str, feed: EventFeed) -> None:
        self._store = store
        self._file = file
        self._feed = feed
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None
        self._stopped: threading.Event | None = None

    @contextmanager
    def watch(self) -> Generator[None]:
        """Watch the session inside this context. For one event loop."""
        self._listeners += 1
        if self._listeners == 1:
            self._start()
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._stop()

    def _start(self) -> None:
        if isinstance(self._store, NotifyingStore):
            self._stopped = threading.Event()
            threading.Thread(target=self._wait_for_store, args=(self._store, self._stopped), daemon=True).start()
        else:
            # Read the identity before clients read: no write in between may be missed.
            self._task = asyncio.create_task(self._poll_file(self._read_file_identity()))

    def _stop(self) -> None:
        if self._stopped is not None:
            self._stopped.set()
        if self._task is not None:
            self._task.cancel()

    def _wait_for_store(self, store: NotifyingStore, stopped: threading.Event) -> None:
        seen: Cursor | None = None
        while not stopped.is_set():
            try:
                if seen is None or store.wait_for_change(seen, STORE_WAIT_SECONDS):
                    seen = store.read_end().cursor  # before waking clients: later writes must be noticed
                    self._feed.wake()
            except SessionTreeError:  # clients see the error when they read; the database may come back
                self._feed.wake()
                stopped.wait(STORE_WAIT_SECONDS)
                seen = None

    async def _poll_file(self, seen: tuple[int, int, int] | None) -> None:
        while True:
            await asyncio.sleep(FILE_POLL_SECONDS)
            now = await asyncio.to_thread(self._read_file_identity)
            if now != seen:
                seen = now
                self._feed.wake()

    def _read_file_identity(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._file)
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


TOO_MANY_STREAMS = "too_many_streams"
"""An error code with which clients poll instead."""


class StreamSlot:
    """An open event stream."""

    def __init__(self, token: Token, page: tuple[str, str] | None) -> None:
        self.token = token.root
        self.page = page
        self.is_replaced = False
        """Whether the same page has opened the stream again."""
        self.wake: Callable[[], None] = lambda: None
        """Makes the stream check whether it was replaced."""


class StreamRegistry:
    """The open event streams, limited per token and in total. For one event loop.

    A page sends its id. If it reconnects before the server has noticed that the old connection is dead, the new stream
    replaces the old one.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._slots: list[StreamSlot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def open_slot(self, token: Token, path: str, page: str | None) -> StreamSlot:
        """Register a stream of a token; `page` identifies the page that opens it. Raises `ApiError`."""
        slot = StreamSlot(token, None if page is None else (page, path))
        if slot.page is not None:
            for old in [other for other in self._slots if (other.token, other.page) == (slot.token, slot.page)]:
                old.is_replaced = True
                self.close_slot(old)
                old.wake()
        limit = self._limits.token_streams
        if sum(other.token == token.root for other in self._slots) >= limit:
            raise ApiError(
                429,
                f"event stream limit of {limit} per token reached; close other pages that use it",
                code=TOO_MANY_STREAMS,
            )
        if len(self._slots) >= self._limits.streams:
            raise ApiError(
                429, f"event stream limit of {self._limits.streams} per server reached", code=TOO_MANY_STREAMS
            )
        self._slots.append(slot)
        return slot

    def close_slot(self, slot: StreamSlot) -> None:
        if slot in self._slots:
            self._slots.remove(slot)
