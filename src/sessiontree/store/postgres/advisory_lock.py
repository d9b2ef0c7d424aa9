"""A lock that one process at a time holds, across machines, with an advisory lock of the database.

The server releases the lock when the connection of its holder ends. If only the connection was lost, for example when
the server restarts, a thread acquires the lock again. If another process was faster, the lock is lost. On a server
without advisory locks, every process acquires the lock.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sessiontree.errors import StoreError
from sessiontree.store.postgres.address import find_direct_address, parse_address
from sessiontree.store.postgres.connection import PostgresDatabase, get_database
from sessiontree.store.postgres.driver import build_store_error, get_driver_error, is_unsupported

if TYPE_CHECKING:
    from sessiontree.store.postgres.driver import Connection

CHECK_SECONDS = 1.0
"""Seconds between two checks of the connection."""
RELEASE_SECONDS = 1.0
"""Maximum seconds to wait for the server to release a lock. It takes longer only if the server is unreachable."""
_TRY_LOCK = "SELECT pg_try_advisory_lock(%s, %s), pg_backend_pid()"
_HOLDERS = """
    SELECT pid FROM pg_locks JOIN pg_database d ON d.oid = pg_locks.database
    WHERE d.datname = current_database() AND locktype = 'advisory' AND granted AND objsubid = 2
    AND classid::bigint = %s AND objid::bigint = %s
"""

_Key: TypeAlias = tuple[int, int]


class AdvisoryLock:
    """A named lock in the database at an address."""

    def __init__(self, address: str, name: str) -> None:
        known = parse_address(address)
        # A pooler may give each transaction another connection, and the lock belongs to the connection.
        self._database: PostgresDatabase = get_database(find_direct_address(known) or known)
        digest = sha256(name.encode()).digest()
        self._key = int.from_bytes(digest[:4]), int.from_bytes(digest[4:8])
        self._lock_thread: _LockThread | None = None

    def acquire(self) -> bool:
        """Try to acquire the lock, and return whether this process holds it. Raises `StoreError`."""
        if self._lock_thread is not None:
            return True
        locked = _try_lock(self._database, self._key)
        if locked is None:
            return False
        self._lock_thread = _LockThread(self._database, self._key, locked)
        self._lock_thread.start()
        return True

    @property
    def is_held(self) -> bool:
        """Whether any process holds the lock. Raises `StoreError`."""
        if self._lock_thread is not None:
            return True
        return bool(_list_holders(self._database, self._key))

    @property
    def is_lost(self) -> bool:
        """Whether this process held the lock and another one holds it now."""
        return self._lock_thread is not None and self._lock_thread.is_lost

    def release(self) -> None:
        keeper, self._lock_thread = self._lock_thread, None
        if keeper is not None:
            keeper.stop()

    def __del__(self) -> None:
        self.release()


class _LockThread(threading.Thread):
    """Keeps the connection that holds the lock, and replaces it when it is lost."""

    def __init__(self, database: PostgresDatabase, key: _Key, locked: _LockedConnection) -> None:
        super().__init__(name="sessiontree-hold", daemon=True)
        self.is_lost = False
        self._database = database
        self._key = key
        self._connection: Connection | None = locked.connection
        self._pid = locked.pid
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(CHECK_SECONDS):
            self._check_connection()
        self._close_connection()

    def _check_connection(self) -> None:
        try:
            if self._connection is not None:
                with self._database.watch(self._connection):
                    self._connection.execute("SELECT 1")
                return
        except get_driver_error():
            self._close_connection()
        with suppress(StoreError):  # the server is unreachable
            locked = _try_lock(self._database, self._key)
            if locked is not None:
                self._connection, self._pid = locked
            else:
                # The server may not have noticed yet that our connection is lost.
                self.is_lost = any(pid != self._pid for pid in _list_holders(self._database, self._key))

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(get_driver_error()):
                connection.execute("SELECT pg_advisory_unlock_all()")  # the server notices the close only later
            connection.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join(RELEASE_SECONDS)


class _LockedConnection(NamedTuple):
    """A connection that holds the lock."""

    connection: Connection
    pid: int
    """The server process that holds the lock, even behind a connection pooler."""


def _try_lock(database: PostgresDatabase, key: _Key) -> _LockedConnection | None:
    """Return a connection that holds the lock; `None` if another one holds it. Raises `StoreError`."""
    try:
        connection = database.connect()
    except get_driver_error() as error:
        raise build_store_error(database.location, error) from error
    row = None
    try:
        with database.watch(connection):
            row = connection.execute(_TRY_LOCK, [_to_signed(part) for part in key]).fetchone()
    except get_driver_error() as error:
        if not is_unsupported(error):
            raise build_store_error(database.location, error) from error
        row = True, connection.info.backend_pid
    finally:
        if row is None or not row[0]:
            connection.close()
    return _LockedConnection(connection, row[1]) if row is not None and row[0] else None


def _list_holders(database: PostgresDatabase, key: _Key) -> list[int]:
    """Return the server processes that hold the lock: one or none. Raises `StoreError`."""

    def work(connection: Connection) -> list[int]:
        try:
            return [pid for (pid,) in connection.execute(_HOLDERS, key).fetchall()]
        except get_driver_error() as error:
            if not is_unsupported(error):
                raise
            return []

    return database.run(work)


def _to_signed(part: int) -> int:
    """Convert to a signed number for the lock function; `pg_locks` shows the same bits unsigned."""
    return part - (1 << 32) if part >= 1 << 31 else part
