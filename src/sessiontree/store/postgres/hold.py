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
from sessiontree.store.postgres.address import parse
from sessiontree.store.postgres.connection import Database, database, failure, is_unknown, psycopg_error

if TYPE_CHECKING:
    from sessiontree.store.postgres.connection import Connection

LOOK = 1.0
"""Seconds between two looks whether the connection is still there."""
PARTING = 1.0
"""Seconds at most that one waits for the server to let a hold go; it takes longer only where it is out of reach."""
_TAKE = "SELECT pg_try_advisory_lock(%s, %s), pg_backend_pid()"
_HOLDERS = """
    SELECT pid FROM pg_locks JOIN pg_database d ON d.oid = pg_locks.database
    WHERE d.datname = current_database() AND locktype = 'advisory' AND granted AND objsubid = 2
    AND classid::bigint = %s AND objid::bigint = %s
"""

_Key: TypeAlias = tuple[int, int]


class DatabaseHold:
    """What the database at an address lets one process at a time have, by its name."""

    def __init__(self, address: str, name: str) -> None:
        self._database: Database = database(parse(address))
        digest = sha256(name.encode()).digest()
        self._key = int.from_bytes(digest[:4]), int.from_bytes(digest[4:8])
        self._keeper: _Keeper | None = None

    def take(self) -> bool:
        """Whether it is ours now. Raises `StoreError`."""
        if self._keeper is not None:
            return True
        locked = _locked(self._database, self._key)
        if locked is None:
            return False
        self._keeper = _Keeper(self._database, self._key, locked)
        self._keeper.start()
        return True

    @property
    def taken(self) -> bool:
        """Whether any process has it. Raises `StoreError`."""
        if self._keeper is not None:
            return True
        return bool(_holders(self._database, self._key))

    @property
    def lost(self) -> bool:
        """Whether it was ours, and is another process's now."""
        return self._keeper is not None and self._keeper.lost

    def let_go(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.end()

    def __del__(self) -> None:
        self.let_go()


class _Keeper(threading.Thread):
    """Has the connection that a hold is by, and another when it is lost."""

    def __init__(self, database: Database, key: _Key, locked: _Locked) -> None:
        super().__init__(name="sessiontree-hold", daemon=True)
        self.lost = False
        self._database = database
        self._key = key
        self._connection: Connection | None = locked.connection
        self._pid = locked.pid
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(LOOK):
            self._look()
        self._drop()

    def _look(self) -> None:
        try:
            if self._connection is not None:
                self._connection.execute("SELECT 1")
                return
        except psycopg_error():
            self._drop()
        with suppress(StoreError):  # the server is away
            locked = _locked(self._database, self._key)
            if locked is not None:
                self._connection, self._pid = locked
            else:
                # It may be the lost connection still, if only this side has noticed.
                self.lost = any(pid != self._pid for pid in _holders(self._database, self._key))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg_error()):
                connection.execute("SELECT pg_advisory_unlock_all()")  # closing is heard of a moment later
            connection.close()

    def end(self) -> None:
        self._over.set()
        self.join(PARTING)


class _Locked(NamedTuple):
    connection: Connection
    pid: int
    """The process of the server that has it, also behind a pooler."""


def _locked(database: Database, key: _Key) -> _Locked | None:
    """A connection that has the lock; `None` where another one has it. Raises `StoreError`."""
    try:
        connection = database.connect()
    except psycopg_error() as error:
        raise failure(database.where, error) from error
    row = None
    try:
        row = connection.execute(_TAKE, [_signed(part) for part in key]).fetchone()
    except psycopg_error() as error:
        if not is_unknown(error):
            raise failure(database.where, error) from error
        row = True, connection.info.backend_pid
    finally:
        if row is None or not row[0]:
            connection.close()
    return _Locked(connection, row[1]) if row is not None and row[0] else None


def _holders(database: Database, key: _Key) -> list[int]:
    """Which processes of the server have the lock for theirs: one, or none. Raises `StoreError`."""

    def work(connection: Connection) -> list[int]:
        try:
            return [pid for (pid,) in connection.execute(_HOLDERS, key).fetchall()]
        except psycopg_error() as error:
            if not is_unknown(error):
                raise
            return []

    return database.run(work)


def _signed(part: int) -> int:
    """As the function takes it, where `pg_locks` shows the same bits without a sign."""
    return part - (1 << 32) if part >= 1 << 31 else part
