"""Live events of a session: every entry once and in order for ever, and what passes by from a bounded buffer.

Entries are read from the session itself, so those that other processes write are told too, and a client that was away
gets all that it missed. Deltas, runs and queues are told as they happen and kept for a while only: they are numbered,
and each says how many entries there were before it, so that both kinds come in one order. A client that is too slow
for the buffer is told to read the session anew. Nothing here grows with the number of clients but their own places.
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
from sessiontree.server.rendering import encode_json
from sessiontree.server.request_checks import ServerLimits
from sessiontree.store.base import Cursor, LineChunk, Store

FILE_POLL_SECONDS = 0.2
"""Seconds between two looks at a file that others may write to."""
STORE_WAIT_SECONDS = 1.0
"""Seconds that a database is waited for, before looking whether anybody still listens."""


@runtime_checkable
class NotifyingStore(Protocol):
    """A store that says when others have written."""

    def wait_for_change(self, after: Cursor, timeout: float) -> bool: ...

    def read_end(self) -> LineChunk: ...


class TransientEvent(Struct, frozen=True):
    """An event that is not in the session."""

    number: int
    entry_count: int
    """How many entries there were when it happened."""
    kind: str
    data: bytes


class EventFeed:
    """What passes by in one session, and who waits for something to happen in it. For any thread."""

    def __init__(self, limit: int) -> None:
        self.feed_id = secrets.token_hex(4)
        """Tells the numbers of this feed from those of one before it."""
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
        """Tell of something, behind as many entries as `count` says there are."""
        raw = encode_json(data)
        with self._lock:
            self._last += 1
            self._events.append(TransientEvent(self._last, count(), kind, raw))
            self._size += len(raw)
            while self._size > self._limit and len(self._events) > 1:
                self._size -= len(self._events.popleft().data)
        self.wake()

    def read_after(self, number: int) -> Sequence[TransientEvent] | None:
        """What has passed by since; `None` where some of it is not kept any more."""
        with self._lock:
            if number > self._last or self._last - number > len(self._events):
                return None
            newest_first = islice(reversed(self._events), self._last - number)
            return list(newest_first)[::-1]

    def find_start(self, count: int) -> int:
        """The number to go on from for somebody who has read `count` entries, and knows nothing of what passed by."""
        with self._lock:
            for event in self._events:
                if event.entry_count >= count:
                    return event.number - 1
            return self._last

    # Waiting

    @contextmanager
    def subscribe(self) -> Generator[asyncio.Event]:
        """An event that is set whenever something has happened. Whoever waits for it clears it first."""
        mine = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._waiters.append(mine)
        try:
            yield mine[1]
        finally:
            with self._lock:
                self._waiters.remove(mine)

    def wake(self) -> None:
        """Say that something has happened: an entry, or an event."""
        with self._lock:
            waiting = tuple(self._waiters)
        for loop, event in waiting:
            with suppress(RuntimeError):  # that loop has ended
                loop.call_soon_threadsafe(event.set)


class SessionWatcher:
    """Looks at a session as long as somebody listens, and wakes the feed when others have written to it.

    A database says so itself, to a thread that waits for it; a file is looked at now and then.
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
        """Watch while this is entered. For one event loop."""
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
            # Seen before anybody reads, so that nothing written meanwhile is missed.
            self._task = asyncio.create_task(self._poll_file(self._read_file_identity()))

    def _stop(self) -> None:
        if self._stopped is not None:
            self._stopped.set()
        if self._task is not None:
            self._task.cancel()

    def _wait_for_store(self, store: NotifyingStore, left: threading.Event) -> None:
        seen: Cursor | None = None
        while not left.is_set():
            try:
                if seen is None or store.wait_for_change(seen, STORE_WAIT_SECONDS):
                    seen = store.read_end().cursor  # before anybody is woken: what comes later is waited for
                    self._feed.wake()
            except SessionTreeError:  # whoever is woken is told; a database comes back
                self._feed.wake()
                left.wait(STORE_WAIT_SECONDS)
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
"""The code of a refusal: whoever asked may show what happens by asking now and then."""


class StreamSlot:
    """The place of one open stream."""

    def __init__(self, token: Token, page: tuple[str, str] | None) -> None:
        self.token = token.root
        self.page = page
        self.is_replaced = False
        """The same page has opened the stream again."""
        self.wake: Callable[[], None] = lambda: None
        """Has the stream look whether it is over."""


class StreamRegistry:
    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._slots: list[StreamSlot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def open_slot(self, token: Token, path: str, page: str | None) -> StreamSlot:
        """Count one more stream of a token; `page` names the page that it is for, if one. Raises `Refused`."""
        slot = StreamSlot(token, None if page is None else (page, path))
        if slot.page is not None:
            for old in [one for one in self._slots if (one.token, one.page) == (slot.token, slot.page)]:
                old.is_replaced = True
                self.close_slot(old)
                old.wake()
        most = self._limits.token_streams
        if sum(one.token == token.root for one in self._slots) >= most:
            raise ApiError(
                429,
                f"the limit of event streams for one token is {most}; close other pages that use it",
                code=TOO_MANY_STREAMS,
            )
        if len(self._slots) >= self._limits.streams:
            raise ApiError(429, f"the limit of event streams for all is {self._limits.streams}", code=TOO_MANY_STREAMS)
        self._slots.append(slot)
        return slot

    def close_slot(self, slot: StreamSlot) -> None:
        if slot in self._slots:
            self._slots.remove(slot)
