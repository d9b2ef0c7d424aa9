"""Holds: something that one process at a time may do, on all machines together, by an advisory lock of the database.

The server takes a hold away with the connection of its process. Where a server knows no such locks, as some
distributed ones do not, nobody is kept from anything.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from sessiontree.store.postgres.address import parse
from sessiontree.store.postgres.connection import Database, database, failure, psycopg_error

if TYPE_CHECKING:
    from sessiontree.store.postgres.connection import Connection

_UNKNOWN = ("0A000", "42883", "42P01")
"""What a server says that has no such locks: not supported, no such function, no such table."""
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
        self._connection: Connection | None = None

    def take(self) -> bool:
        """Whether it is ours now. Raises `StoreError`."""
        if self._connection is not None:
            return True
        try:
            connection = self._database.connect()
        except psycopg_error() as error:
            raise failure(self._database.where, error) from error
        try:
            ours = _asked(connection, _TAKE, [_signed(part) for part in self._key], otherwise=True)
        except BaseException:
            connection.close()
            raise
        if ours:
            self._connection = connection
        else:
            connection.close()
        return ours

    @property
    def taken(self) -> bool:
        """Whether any process has it. Raises `StoreError`."""
        if self._connection is not None:
            return True
        return self._database.run(lambda connection: _asked(connection, _TAKEN, self._key, otherwise=False))

    def let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg_error()):
                connection.close()

    def __del__(self) -> None:
        self.let_go()


def _asked(connection: Connection, statement: str, values: object, *, otherwise: bool) -> bool:
    try:
        row = connection.execute(statement.encode(), values).fetchone()  # type: ignore[arg-type]
    except psycopg_error() as error:
        if getattr(error, "sqlstate", None) in _UNKNOWN:
            return otherwise
        raise
    return bool(row and row[0])


def _signed(part: int) -> int:
    """As the function takes it, where `pg_locks` shows the same bits without a sign."""
    return part - (1 << 32) if part >= 1 << 31 else part
