"""The roster of workers: which are alive, which jobs each runs, and whose jobs others may take over."""

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
"""Seconds without a renewal after which a worker counts as dead."""
DEAD_RETENTION = 3600.0
"""Seconds for which dead workers stay in the table: a worker may have taken a job just before it died."""

TABLE = "sessiontree_worker"
COLUMNS = """id text PRIMARY KEY, host text NOT NULL, home text NOT NULL, concurrency integer NOT NULL,
    work text NOT NULL, seen double precision NOT NULL, lease double precision NOT NULL, gone integer NOT NULL"""


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A live worker."""

    id: str
    host: str
    home: str
    """Identifies the home folder across machines; see `build_home_id`."""
    concurrency: int
    """The most agents that it runs at the same time."""
    work: tuple[str, ...] = ()
    """Ids of its running jobs."""


def build_home_id() -> str:
    """Return an id for the home folder of this process that is unique across machines."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            machine = file.read().strip()
    except OSError:
        machine = socket.gethostname()
    return f"{machine} {os.path.realpath(get_home())}"


class Roster:
    """The table of workers, with the running jobs and the lease of each.

    A worker renews its lease every few seconds. When a lease expires, the worker counts as dead and its jobs go to
    other workers; `renew` returns false if it comes back. All times are taken from the database's clock.
    """

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
        """Create the table if it does not exist. Raises `StoreError`."""
        create = f"CREATE TABLE IF NOT EXISTS {self._table} ({COLUMNS})"
        try:
            self._query(f"SELECT id FROM {self._table} LIMIT 1")  # this role may lack the right to create tables
        except StoreError:
            try:
                self._execute(create)
            except StoreError:
                self._execute(create)  # the first attempt fails if another process creates the table at the same time

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
        """Renew a worker's lease and store its running jobs. Return false if the worker counts as dead."""
        listed = msgspec.json.encode(list(work)).decode()
        update = f"UPDATE {self._table} SET seen = {self._now}, work = :work WHERE id = :id AND gone = 0"
        return self._execute(update, id=id, work=listed) > 0

    def retire(self, id: str) -> None:
        """Mark a worker as gone. Other workers get its jobs at once."""
        self._execute(f"UPDATE {self._table} SET gone = 1, work = '[]' WHERE id = :id", id=id)

    # For other processes

    def list_alive(self) -> list[WorkerInfo]:
        is_alive = f"gone = 0 AND seen >= {self._now} - lease"
        query = f"SELECT id, host, home, concurrency, work FROM {self._table} WHERE {is_alive} ORDER BY id"
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
        """Mark workers with an expired lease as dead, and return the ids of all dead workers."""
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
