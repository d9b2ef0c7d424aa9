"""Holds: something that one process at a time may do, on all machines together, by an advisory lock of the database.

The server takes a hold away with the connection of its process. When the connection alone is lost, as by a restart of
the server, a thread takes the hold again as soon as it can be had; if another process was faster, it is `lost`. Where a
server knows no such locks, as some distributed ones do not, nobody is kept from anything.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sessiontree.errors import StoreError
from sessiontree.store.postgres.address import parse_address
from sessiontree.store.postgres.connection import (
    PostgresDatabase,
    build_store_error,
    get_database,
    get_driver_error,
    is_unsupported,
)

if TYPE_CHECKING:
    from sessiontree.store.postgres.connection import Connection

CHECK_SECONDS = 1.0
"""Seconds between two looks whether the connection is still there."""
RELEASE_SECONDS = 1.0
"""Seconds at most that one waits for the server to let a hold go; it takes longer only where it is out of reach."""
_TRY_LOCK = "SELECT pg_try_advisory_lock(%s, %s), pg_backend_pid()"
_HOLDERS = """
    SELECT pid FROM pg_locks JOIN pg_database d ON d.oid = pg_locks.database
    WHERE d.datname = current_database() AND locktype = 'advisory' AND granted AND objsubid = 2
    AND classid::bigint = %s AND objid::bigint = %s
"""

_Key: TypeAlias = tuple[int, int]


class AdvisoryLock:
    """What the database at an address lets one process at a time have, by its name."""

    def __init__(self, address: str, name: str) -> None:
        self._database: PostgresDatabase = get_database(parse_address(address))
        digest = sha256(name.encode()).digest()
        self._key = int.from_bytes(digest[:4]), int.from_bytes(digest[4:8])
        self._lock_thread: _LockThread | None = None

    def acquire(self) -> bool:
        """Whether it is ours now. Raises `StoreError`."""
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
        """Whether any process has it. Raises `StoreError`."""
        if self._lock_thread is not None:
            return True
        return bool(_list_holders(self._database, self._key))

    @property
    def is_lost(self) -> bool:
        """Whether it was ours, and is another process's now."""
        return self._lock_thread is not None and self._lock_thread.is_lost

    def release(self) -> None:
        keeper, self._lock_thread = self._lock_thread, None
        if keeper is not None:
            keeper.stop()

    def __del__(self) -> None:
        self.release()


class _LockThread(threading.Thread):
    """Has the connection that a hold is by, and another when it is lost."""

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
                self._connection.execute("SELECT 1")
                return
        except get_driver_error():
            self._close_connection()
        with suppress(StoreError):  # the server is away
            locked = _try_lock(self._database, self._key)
            if locked is not None:
                self._connection, self._pid = locked
            else:
                # It may be the lost connection still, if only this side has noticed.
                self.is_lost = any(pid != self._pid for pid in _list_holders(self._database, self._key))

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(get_driver_error()):
                connection.execute("SELECT pg_advisory_unlock_all()")  # closing is heard of a moment later
            connection.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join(RELEASE_SECONDS)


class _LockedConnection(NamedTuple):
    connection: Connection
    pid: int
    """The process of the server that has it, also behind a pooler."""


def _try_lock(database: PostgresDatabase, key: _Key) -> _LockedConnection | None:
    """A connection that has the lock; `None` where another one has it. Raises `StoreError`."""
    try:
        connection = database.connect()
    except get_driver_error() as error:
        raise build_store_error(database.location, error) from error
    row = None
    try:
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
    """Which processes of the server have the lock for theirs: one, or none. Raises `StoreError`."""

    def work(connection: Connection) -> list[int]:
        try:
            return [pid for (pid,) in connection.execute(_HOLDERS, key).fetchall()]
        except get_driver_error() as error:
            if not is_unsupported(error):
                raise
            return []

    return database.run(work)


def _to_signed(part: int) -> int:
    """As the function takes it, where `pg_locks` shows the same bits without a sign."""
    return part - (1 << 32) if part >= 1 << 31 else part
