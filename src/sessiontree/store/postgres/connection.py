"""Connections to PostgreSQL: a pool for each database, retries, and waiting for changes.

If the connection or the server fails, the work is retried with growing pauses for `RETRY_SECONDS` after the first
failure, and for less if the database was never reached, since its address may be wrong. So all work must be safe to run
twice. If the database cannot be reached any more after a write was sent, the error is `OutcomeUnknown`.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, TypeVar

from sessiontree.errors import OutcomeUnknown, SessionTreeError, StoreError
from sessiontree.store.postgres.address import Address, find_direct_address, find_read_address, has_several_hosts
from sessiontree.store.postgres.driver import (
    MAX_PAUSE,
    MIN_PAUSE,
    build_connection_error,
    build_store_error,
    format_driver_error,
    get_driver_error,
    is_read_only,
    is_transient,
    open_connection,
    read_timeline,
)
from sessiontree.store.postgres.failover_watch import FailoverWatch
from sessiontree.store.postgres.schema import SELECT_SIZES, ensure_schema, has_current_schema

if TYPE_CHECKING:
    from sessiontree.store.postgres.driver import Connection

RETRY_SECONDS = 45.0
"""Seconds for which failed work is retried. A failover takes less."""
FIRST_RETRY_SECONDS = 5.0
"""The same for a database that this process has never reached."""
MAX_CONNECTIONS = 16
"""The maximum number of connections of a process to one database."""
POLL_SECONDS = 0.2
"""Seconds between two polls for changes."""
LINGER_SECONDS = 10.0
"""Seconds that the polling thread stays after the last waiter left."""
REPLICA_RETRY_SECONDS = 1.0
"""Seconds for which work on a read replica is retried. Then the primary does it."""
T = TypeVar("T")


class PostgresDatabase:
    """The connections of this process to one database."""

    def __init__(
        self,
        address: Address,
        *,
        retry_seconds: float = RETRY_SECONDS,
        prepare: Callable[[Connection, str], None] = ensure_schema,
    ) -> None:
        """`prepare` is called with the first connection and the address for messages."""
        self.location = address.safe_url
        self.retry_seconds = retry_seconds
        self._url = address.url
        self._is_pooled = find_direct_address(address) is not None
        self._prepare = prepare
        self._idle: list[Connection] = []
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._is_ready = False
        self._timeline = 0
        """The newest timeline of the servers that this process has connected to."""
        self.watcher = ChangeWatcher(self._find_sizes)
        self._failover_watch = FailoverWatch(self.connect) if has_several_hosts(address.url) else None

    def watch(self, connection: Connection) -> AbstractContextManager[None]:
        """Return a context in which statements fail if another server becomes the primary while they wait."""
        return nullcontext() if self._failover_watch is None else self._failover_watch.watch(connection)

    def run(self, work: Callable[[Connection], T], *, location: str = "", writes: bool = False) -> T:
        """Call `work` with a connection and return its result. `work` may be called several times.

        Raises `StoreError`. With `writes`, raises `OutcomeUnknown` if the write may have been done.
        """
        location = location or self.location
        failed_at: float | None = None
        pause, doubtful = MIN_PAUSE, False
        while True:
            reached = False
            try:
                with self._borrow_connection() as connection, self.watch(connection):
                    reached = True
                    return work(connection)
            except get_driver_error() as error:
                demoted = self._failover_watch is not None and is_read_only(error)
                if not (demoted or is_transient(error, reached)):
                    raise build_store_error(location, error) from error
                doubtful = doubtful or (writes and reached)
                failed_at = time.monotonic() if failed_at is None else failed_at
                if time.monotonic() + pause > failed_at + self._get_retry_seconds():
                    reason = f"the database cannot be reached: {format_driver_error(error)}"
                    raise (OutcomeUnknown if doubtful else StoreError)(location, reason) from error
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, MAX_PAUSE)

    def _find_sizes(self, keys: Sequence[int]) -> dict[int, int]:
        return dict(self.run(lambda connection: connection.execute(SELECT_SIZES, (keys,)).fetchall()))

    def _get_retry_seconds(self) -> float:
        return self.retry_seconds if self._is_ready else min(self.retry_seconds, FIRST_RETRY_SECONDS)

    @contextmanager
    def _borrow_connection(self) -> Generator[Connection]:
        with self._slots:
            connection = self._pop_idle() or self.connect()
            try:
                if not self._is_ready:
                    self._prepare(connection, self.location)
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
        """Open a connection outside the pool. The caller closes it.

        A primary that was suspended still takes itself for the primary when it wakes up. So a server is refused whose
        timeline is older than one that this process has seen: with each failover, a new timeline begins.
        """
        connection = open_connection(self._url, is_pooled=self._is_pooled)
        if self._failover_watch is not None:
            try:
                with self.watch(connection):
                    timeline = read_timeline(connection)
                with self._lock:
                    if timeline < self._timeline:
                        raise build_connection_error(f"{connection.info.host} is not the primary any more")
                    self._timeline = timeline
            except BaseException:
                connection.close()
                raise
        return connection

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


def run_on_replica(address: Address, work: Callable[[Connection], T]) -> T:
    """Run work that only reads on the read replica of a database, or on the database itself. Raises `StoreError`.

    The database itself is asked if there is no replica, and if the replica fails.
    """
    replica = find_read_address(address)
    if replica is not None:
        key = os.getpid(), f"replica {replica.url}"
        database = _databases.get(key) or _databases.setdefault(
            key, PostgresDatabase(replica, retry_seconds=REPLICA_RETRY_SECONDS, prepare=_check_replica)
        )
        with suppress(StoreError):
            return database.run(work)
    return get_database(address).run(work)


def _check_replica(connection: Connection, location: str) -> None:
    """Raise `StoreError` unless the replica has the same tables as this program. Nothing is created there."""
    if not has_current_schema(connection):
        raise StoreError(location, "the replica does not have the tables of this version yet")


class ChangeWatcher:
    """Waits for changes of sessions in one database: one query, several times a second, for all waiters of the process.

    NOTIFY would make all sessions of a server commit one after the other. Without waiters, nothing is queried.
    """

    def __init__(self, find_sizes: Callable[[Sequence[int]], dict[int, int]]) -> None:
        """`find_sizes` returns the size of each session that can be appended to, by its key."""
        self._find_sizes = find_sizes
        self._lock = threading.Lock()
        self._waiters: set[_Waiter] = set()
        self._thread: threading.Thread | None = None
        self.round_count = 0
        """How many queries were made."""

    @property
    def waiter_count(self) -> int:
        return len(self._waiters)

    def wait(self, key: int, size: int, timeout: float) -> None:
        """Wait until a session has another size, or anything else may have happened to it."""
        waiter = _Waiter(key, size)
        with self._lock:
            self._waiters.add(waiter)
            if self._thread is None:
                self._thread = threading.Thread(target=self._poll, name="sessiontree-watch", daemon=True)
                self._thread.start()
        try:
            waiter.event.wait(timeout)
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def _poll(self) -> None:
        idle_since = time.monotonic()
        while True:
            time.sleep(POLL_SECONDS)
            with self._lock:
                waiters = list(self._waiters)
                if not waiters and time.monotonic() - idle_since > LINGER_SECONDS:
                    self._thread = None
                    return
            if not waiters:
                continue
            idle_since = time.monotonic()
            sizes: dict[int, int] = {}  # if it fails, all wake and find out themselves
            with suppress(SessionTreeError):
                sizes = self._find_sizes([waiter.key for waiter in waiters])
            self.round_count += 1
            for waiter in waiters:
                if sizes.get(waiter.key) != waiter.size:
                    waiter.event.set()


class _Waiter:
    """A thread that waits for a session to change."""

    def __init__(self, key: int, size: int) -> None:
        self.key, self.size = key, size
        self.event = threading.Event()
