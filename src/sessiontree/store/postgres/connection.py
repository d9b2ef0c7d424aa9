"""Connections to PostgreSQL: a pool for each database, retries, and waiting for changes.

If the connection or the server fails, the work is retried with growing pauses for `RETRY_SECONDS`, and for less if the
database was never reached, since its address may be wrong. So all work must be safe to run twice. If the database
cannot be reached any more after a write was sent, the error is `OutcomeUnknown`.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from sessiontree.errors import OutcomeUnknown, SessionTreeError, StoreError
from sessiontree.store.postgres.address import Address
from sessiontree.store.postgres.driver import (
    MAX_PAUSE,
    MIN_PAUSE,
    build_store_error,
    format_driver_error,
    get_driver_error,
    is_transient,
    open_connection,
)
from sessiontree.store.postgres.schema import CHANNEL, ensure_schema

if TYPE_CHECKING:
    from sessiontree.store.postgres.driver import Connection

RETRY_SECONDS = 30.0
"""Seconds for which failed work is retried."""
FIRST_RETRY_SECONDS = 5.0
"""The same for a database that this process has never reached."""
MAX_CONNECTIONS = 16
"""The maximum number of connections of a process to one database."""
POLL_SECONDS = 1.0
"""Seconds between two polls."""
LINGER_SECONDS = 10.0
"""Seconds that the connection is kept open after the last waiter left."""
T = TypeVar("T")


class PostgresDatabase:
    """The connections of this process to one database."""

    def __init__(self, address: Address, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self.location = address.safe_url
        self.retry_seconds = retry_seconds
        self._url = address.url
        self._idle: list[Connection] = []
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._is_ready = False
        self._listener: ChangeListener | None = None

    @property
    def listener(self) -> ChangeListener:
        """The listener for changes of sessions in this database."""
        with self._lock:
            if self._listener is None:
                self._listener = ChangeListener(self.connect)
            return self._listener

    def run(self, work: Callable[[Connection], T], *, location: str = "", writes: bool = False) -> T:
        """Call `work` with a connection and return its result. `work` may be called several times.

        Raises `StoreError`. With `writes`, raises `OutcomeUnknown` if the write may have been done.
        """
        location = location or self.location
        started = time.monotonic()
        pause, doubtful = MIN_PAUSE, False
        while True:
            reached = False
            try:
                with self._borrow_connection() as connection:
                    reached = True
                    return work(connection)
            except get_driver_error() as error:
                if not is_transient(error, reached):
                    raise build_store_error(location, error) from error
                doubtful = doubtful or (writes and reached)
                if time.monotonic() + pause > started + self._get_retry_seconds():
                    reason = f"the database cannot be reached: {format_driver_error(error)}"
                    raise (OutcomeUnknown if doubtful else StoreError)(location, reason) from error
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, MAX_PAUSE)

    def _get_retry_seconds(self) -> float:
        return self.retry_seconds if self._is_ready else min(self.retry_seconds, FIRST_RETRY_SECONDS)

    @contextmanager
    def _borrow_connection(self) -> Generator[Connection]:
        with self._slots:
            connection = self._pop_idle() or self.connect()
            try:
                if not self._is_ready:
                    ensure_schema(connection, self.location)
                    self._is_ready = True
                yield connection
            except SessionTreeError:
                self._return_connection(connection)
                raise
            except BaseException:
                # The connection may be in the middle of a statement: a new one is cheaper than checking.
                if connection.broken:
                    self.close()  # the other idle connections are probably broken too
                with suppress(get_driver_error()):
                    connection.close()
                raise
            self._return_connection(connection)

    def _return_connection(self, connection: Connection) -> None:
        with self._lock:
            self._idle.append(connection)

    def _pop_idle(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def connect(self) -> Connection:
        """Open a connection outside the pool. The caller closes it."""
        return open_connection(self._url)

    def close(self) -> None:
        """Close the idle connections. The next use opens new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            with suppress(get_driver_error()):
                connection.close()


_databases: dict[tuple[int, str], PostgresDatabase] = {}


def get_database(address: Address) -> PostgresDatabase:
    """Return the `PostgresDatabase` of this process for an address. A forked process has another one."""
    key = os.getpid(), address.url
    return _databases.get(key) or _databases.setdefault(key, PostgresDatabase(address))


class ChangeListener:
    """Listens for changes of sessions in one database with LISTEN and NOTIFY, and polls where that fails.

    A notification carries only the key of a session's row. The waiter then queries where the session ends. So a lost,
    duplicate or late notification is harmless: it costs at most `POLL_SECONDS`. One connection listens for all waiters
    of this process.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._subscribers: dict[int, set[threading.Event]] = {}
        self._thread: threading.Thread | None = None

    def subscribe(self, key: int) -> threading.Event:
        """Return an event that is set from now on whenever the session may have grown."""
        event = threading.Event()
        with self._lock:
            self._subscribers.setdefault(key, set()).add(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="sessiontree-watch", daemon=True)
                self._thread.start()
        return event

    def unsubscribe(self, key: int, event: threading.Event) -> None:
        with self._lock:
            waiting = self._subscribers[key]
            waiting.discard(event)
            if not waiting:
                del self._subscribers[key]

    def _listen(self) -> None:
        pause = MIN_PAUSE
        idle_since: float | None = None
        while True:
            with suppress(get_driver_error()), self._connect() as connection:
                connection.execute(f"LISTEN {CHANNEL}".encode())
                pause = MIN_PAUSE
                self._notify()  # for changes before LISTEN
                while not self._is_idle_too_long(idle_since):
                    idle_since = self._get_idle_start(idle_since)
                    self._receive(connection)
            idle_since = self._get_idle_start(idle_since)
            self._notify()
            with self._lock:
                if not self._subscribers and self._is_idle_too_long(idle_since):
                    self._thread = None
                    return
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    def _receive(self, connection: Connection) -> None:
        for notice in connection.notifies(timeout=POLL_SECONDS, stop_after=1):
            if notice.payload.isdecimal():
                self._notify(int(notice.payload))

    def _get_idle_start(self, since: float | None) -> float | None:
        with self._lock:
            return None if self._subscribers else since or time.monotonic()

    @staticmethod
    def _is_idle_too_long(idle_since: float | None) -> bool:
        return idle_since is not None and time.monotonic() - idle_since > LINGER_SECONDS

    def _notify(self, key: int | None = None) -> None:
        """Wake the waiters of one session, or all."""
        with self._lock:
            events = [
                event for number, several in self._subscribers.items() if key in (None, number) for event in several
            ]
        for event in events:
            event.set()
