"""Holds: something that one process at a time may do, on all machines together, by an advisory lock of the database.

The server takes a hold away with the connection of its process. When the connection alone is lost, as by a restart of
the server, a thread takes the hold again as soon as it can be had. Where a server knows no such locks, as some
distributed ones do not, nobody is kept from anything.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from sessiontree.errors import StoreError
from sessiontree.store.postgres.address import parse
from sessiontree.store.postgres.connection import Database, database, failure, is_unknown, psycopg_error

if TYPE_CHECKING:
    from sessiontree.store.postgres.connection import Connection

LOOK = 1.0
"""Seconds between two looks whether the connection is still there."""
_TAKE = "SELECT pg_try_advisory_lock(%s, %s)"
_TAKEN = """
    SELECT EXISTS (SELECT FROM pg_locks JOIN pg_database d ON d.oid = pg_locks.database
    WHERE d.datname = current_database() AND locktype = 'advisory' AND granted AND objsubid = 2
    AND classid::bigint = %s AND objid::bigint = %s)
"""


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
        connection = _locked(self._database, self._key)
        if connection is None:
            return False
        self._keeper = _Keeper(self._database, self._key, connection)
        self._keeper.start()
        return True

    @property
    def taken(self) -> bool:
        """Whether any process has it. Raises `StoreError`."""
        if self._keeper is not None:
            return True
        return self._database.run(lambda connection: _asked(connection, _TAKEN, self._key, otherwise=False))

    def let_go(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.end()

    def __del__(self) -> None:
        self.let_go()


class _Keeper(threading.Thread):
    """Has the connection that a hold is by, and another when it is lost."""

    def __init__(self, database: Database, key: tuple[int, int], connection: Connection) -> None:
        super().__init__(name="sessiontree-hold", daemon=True)
        self._database = database
        self._key = key
        self._connection: Connection | None = connection
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
        with suppress(StoreError):  # the server is away, or does not know yet that the lost connection is
            self._connection = _locked(self._database, self._key)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg_error()):
                connection.execute("SELECT pg_advisory_unlock_all()")  # closing is heard of a moment later
            connection.close()

    def end(self) -> None:
        self._over.set()
        self.join(LOOK)  # longer only where the server is out of reach


def _locked(database: Database, key: tuple[int, int]) -> Connection | None:
    """A connection that has the lock; `None` where another one has it. Raises `StoreError`."""
    try:
        connection = database.connect()
    except psycopg_error() as error:
        raise failure(database.where, error) from error
    ours = False
    try:
        ours = _asked(connection, _TAKE, [_signed(part) for part in key], otherwise=True)
    except psycopg_error() as error:
        raise failure(database.where, error) from error
    finally:
        if not ours:
            connection.close()
    return connection if ours else None


def _asked(connection: Connection, statement: str, values: object, *, otherwise: bool) -> bool:
    try:
        row = connection.execute(statement.encode(), values).fetchone()  # type: ignore[arg-type]
    except psycopg_error() as error:
        if is_unknown(error):
            return otherwise
        raise
    return bool(row and row[0])


def _signed(part: int) -> int:
    """As the function takes it, where `pg_locks` shows the same bits without a sign."""
    return part - (1 << 32) if part >= 1 << 31 else part
