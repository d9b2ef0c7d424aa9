"""The roster: which workers there are, what each has under way, and which are dead.

A worker tells every few seconds that it is there. One that has not for as long as its lease is taken for dead: what it
had under way goes to others, and it is told so when it comes back. Time is the database's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.exc import SQLAlchemyError

from sessiontree.errors import StoreError
from sessiontree.home import get_home
from sessiontree.swarm.durable.database import WorkDatabase, describe_error

LEASE = 20.0
"""Seconds without a word after which a worker is taken for dead."""
DEAD_RETENTION = 3600.0
"""Seconds for which dead workers stay listed: one may have taken work just before it died."""

TABLE = "sessiontree_worker"
COLUMNS = """id text PRIMARY KEY, host text NOT NULL, home text NOT NULL, concurrency integer NOT NULL,
    work text NOT NULL, seen double precision NOT NULL, lease double precision NOT NULL, gone integer NOT NULL"""


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A worker that is alive."""

    id: str
    host: str
    home: str
    """Tells homes apart, also those of other machines: see `this_home`."""
    concurrency: int
    """How many agents it has at work at most."""
    work: tuple[str, ...] = ()
    """Ids of what it has under way."""


def build_home_id() -> str:
    """The home of this process, told apart from all others, on this machine or another."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            machine = file.read().strip()
    except OSError:
        machine = socket.gethostname()
    return f"{machine} {os.path.realpath(get_home())}"


class Roster:
    def __init__(self, database: WorkDatabase, lease: float = LEASE) -> None:
        self.lease = lease
        self._database = database
        self._engine = database.create_engine()
        in_file = database.file is not None
        self._table = TABLE if in_file else f"dbos.{TABLE}"
        self._now = (
            "((julianday('now') - 2440587.5) * 86400.0)"
            if in_file
            else "extract(epoch from clock_timestamp())::double precision"
        )

    def create_table(self) -> None:
        """Make the table, where it is not there yet. Raises `StoreError`."""
        make = f"CREATE TABLE IF NOT EXISTS {self._table} ({COLUMNS})"
        try:
            self._query(f"SELECT id FROM {self._table} LIMIT 1")  # not everybody may make tables
        except StoreError:
            try:
                self._execute(make)
            except StoreError:
                self._execute(make)  # somebody else may have made it at the same moment

    # For the worker itself

    def register(self, worker: WorkerInfo) -> None:
        self._execute(
            f"INSERT INTO {self._table} VALUES (:id, :host, :home, :concurrency, '[]', {self._now}, :lease, 0)",
            id=worker.id,
            host=worker.host,
            home=worker.home,
            concurrency=worker.concurrency,
            lease=self.lease,
        )

    def renew(self, id: str, work: Sequence[str]) -> bool:
        """Say that a worker is there and what it has under way. False where it was taken for dead."""
        listed = msgspec.json.encode(list(work)).decode()
        update = f"UPDATE {self._table} SET seen = {self._now}, work = :work WHERE id = :id AND gone = 0"
        return self._execute(update, id=id, work=listed) > 0

    def retire(self, id: str) -> None:
        """Say that a worker goes away: what it has under way is for others at once."""
        self._execute(f"UPDATE {self._table} SET gone = 1, work = '[]' WHERE id = :id", id=id)

    # For others

    def list_alive(self) -> list[WorkerInfo]:
        there = f"gone = 0 AND seen >= {self._now} - lease"
        query = f"SELECT id, host, home, concurrency, work FROM {self._table} WHERE {there} ORDER BY id"
        return [
            WorkerInfo(
                id=id,
                host=host,
                home=home,
                concurrency=concurrency,
                work=msgspec.json.decode(work, type=tuple[str, ...]),
            )
            for id, host, home, concurrency, work in self._query(query)
        ]

    def mark_dead(self) -> list[str]:
        """Workers that are dead. From now on they are: one that still lives is told by `renew`."""
        self._execute(f"UPDATE {self._table} SET gone = 1 WHERE gone = 0 AND seen < {self._now} - lease")
        self._execute(f"DELETE FROM {self._table} WHERE gone = 1 AND seen < {self._now} - :long", long=DEAD_RETENTION)
        return [id for (id,) in self._query(f"SELECT id FROM {self._table} WHERE gone = 1")]

    def close(self) -> None:
        self._engine.dispose()

    def _execute(self, statement: str, **values: object) -> int:
        try:
            with self._engine.connect() as connection:
                return connection.execute(sa.text(statement), values).rowcount
        except SQLAlchemyError as error:
            raise StoreError(self._database.display_name, describe_error(error)) from error

    def _query(self, query: str) -> list[Any]:
        try:
            with self._engine.connect() as connection:
                return list(connection.execute(sa.text(query)))
        except SQLAlchemyError as error:
            raise StoreError(self._database.display_name, describe_error(error)) from error
