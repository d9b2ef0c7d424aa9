"""The work database: jobs, stored answers of models, workers, model calls, and replies of servers.

It is a SQLite file in the home folder for one machine, or PostgreSQL for several. It contains only JSON, never code.
Statements are written once for both: `:name` is a parameter, `{t}` the prefix of tables, `{i}` that of indexes, `{now}`
the time of the database in seconds, and `{ids}` a query of the values in the JSON list `:ids`.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from sessiontree.errors import InvalidOperation, StoreError
from sessiontree.home import get_home
from sessiontree.store.file_operations import format_os_error, make_private_directory, open_private
from sessiontree.store.lock import lock_file
from sessiontree.store.postgres.address import Address, find_address
from sessiontree.store.postgres.connection import PostgresDatabase
from sessiontree.swarm.agent_runner import SwarmJob

if TYPE_CHECKING:
    from sessiontree.store.postgres.driver import Connection

FILE_NAME = "work.db"
SCHEMA = "sessiontree_work"
"""The schema of the tables in PostgreSQL."""
BUSY_SECONDS = 30
"""How long to wait for another process that writes to the file."""

TABLES = (
    """CREATE TABLE {t}job (
    id text PRIMARY KEY, request text NOT NULL, state text NOT NULL DEFAULT 'queued', worker text, runner text,
    attempt integer NOT NULL DEFAULT 0, crashes integer NOT NULL DEFAULT 0, report text,
    created double precision NOT NULL)""",
    "CREATE TABLE {t}answer (job text NOT NULL, key text NOT NULL, value text NOT NULL, PRIMARY KEY (job, key))",
    """CREATE TABLE {t}worker (
    id text PRIMARY KEY, host text NOT NULL, home text NOT NULL, concurrency integer NOT NULL,
    seen double precision NOT NULL, lease double precision NOT NULL)""",
    "CREATE TABLE {t}step (number integer PRIMARY KEY)",
)
SHARED_TABLES = (
    "CREATE TABLE {t}provider (name text PRIMARY KEY)",
    """CREATE TABLE {t}call (
    id text PRIMARY KEY, provider text NOT NULL, worker text NOT NULL, began double precision NOT NULL,
    ended double precision)""",
    "CREATE INDEX {i}call_provider ON {t}call (provider, began)",
    """CREATE TABLE {t}reply (
    owner text NOT NULL, key text NOT NULL, request text NOT NULL, reply text, seen double precision NOT NULL,
    PRIMARY KEY (owner, key))""",
)
STEPS = (TABLES, SHARED_TABLES)
"""The statements of each version of the tables. Never change one; add another."""
VERSION = len(STEPS)
"""Version of the tables and of the requests in them."""
_SCHEMA_LOCK_KEY = 0x73_74_77_6F_72_6B
T = TypeVar("T")


class TablesMissing(StoreError):
    """The tables are missing or outdated, and this role may not create them."""


class WorkConnection:
    """A transaction in the work database."""

    def __init__(self, connection: Connection | sqlite3.Connection) -> None:
        self._connection: Any = connection
        self._is_file = isinstance(connection, sqlite3.Connection)

    def execute(self, statement: str, **values: object) -> int:
        """Run a statement and return how many rows it changed."""
        return self._connection.execute(_translate(statement, self._is_file), values).rowcount

    def query(self, statement: str, **values: object) -> list[Any]:
        return self._connection.execute(_translate(statement, self._is_file), values).fetchall()


@lru_cache(maxsize=64)
def _translate(statement: str, is_file: bool) -> Any:
    if is_file:
        return statement.format(
            t="work_",
            now="((julianday('now') - 2440587.5) * 86400.0)",
            ids="SELECT value FROM json_each(:ids)",
            skip="",
            i="work_",
        )
    text = statement.format(
        t=f"{SCHEMA}.",
        now="extract(epoch FROM clock_timestamp())::double precision",
        ids="SELECT jsonb_array_elements_text(CAST(:ids AS jsonb))",
        skip="FOR UPDATE SKIP LOCKED",
        i="",
    )
    return re.sub(r"(?<!:):([a-z]+)", r"%(\1)s", text).encode()


class WorkDatabase:
    """The database that holds jobs."""

    def __init__(self, where: str | None = None) -> None:
        """`where` is a PostgreSQL address or the path of a SQLite file; the default is `SESSIONTREE_STORE`.

        Raises `InvalidOperation` for any other address.
        """
        address = find_address(where)
        self.address: Address | None = address
        if address is not None:
            self.display_name = address.safe_url
            self._postgres = PostgresDatabase(address, prepare=lambda connection, location: None)
        else:
            _check_path(where or "")
            self.display_name = os.path.abspath(where or os.path.join(get_home(), FILE_NAME))
        self.file = self.display_name if address is None else None
        self.poll_interval = 0.25 if self.file is not None else 1.0
        """Seconds between two polls. A shared database is polled less often."""

    def run(self, work: Callable[[WorkConnection], T]) -> T:
        """Call `work` in a transaction and return its result. It may be called several times. Raises `StoreError`."""
        if self.file is not None:
            return self._run_in_file(self.file, work)

        def run(connection: Connection) -> T:
            with connection.transaction():
                return work(WorkConnection(connection))

        return self._postgres.run(run)

    def _run_in_file(self, file: str, work: Callable[[WorkConnection], T]) -> T:
        try:
            with closing(sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                result = work(WorkConnection(connection))
                connection.execute("COMMIT")
                return result
        except sqlite3.Error as error:
            raise StoreError(self.display_name, str(error)) from error

    def execute(self, statement: str, **values: object) -> int:
        """Run one statement in a transaction and return how many rows it changed. Raises `StoreError`."""
        return self.run(lambda connection: connection.execute(statement, **values))

    def query(self, statement: str, **values: object) -> list[Any]:
        """Return the rows of one statement that changes nothing. Raises `StoreError`."""
        if self.file is None:
            return self.run(lambda connection: connection.query(statement, **values))
        try:  # without the lock of writers
            with closing(sqlite3.connect(self.file, timeout=BUSY_SECONDS)) as connection:
                return WorkConnection(connection).query(statement, **values)
        except sqlite3.Error as error:
            raise StoreError(self.display_name, str(error)) from error

    def migrate(self) -> None:
        """Create the tables if they are missing. Raises `StoreError`, also if another version uses the database."""
        if self.file is not None:
            try:
                with _create_file(self.file):
                    self.run(self._create_tables)
            except OSError as error:
                raise StoreError(self.display_name, format_os_error(error)) from error
        elif self.run(self._count_steps) < VERSION:
            self._postgres.run(self._create_schema)
        if self.run(self._count_steps) > VERSION:
            raise StoreError(self.display_name, "the job tables were created by a newer version of sessiontree")

    def _create_schema(self, connection: Connection) -> None:
        from sessiontree.store.postgres.driver import format_driver_error, get_driver_error

        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK_KEY,))
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}".encode())
                self._create_tables(WorkConnection(connection))
        except get_driver_error() as error:
            if getattr(error, "sqlstate", None) != "42501":
                raise
            reason = "the job tables are missing or outdated, and this role may not create them"
            raise TablesMissing(self.display_name, f"{reason}: {format_driver_error(error)}") from error

    def _create_tables(self, connection: WorkConnection) -> None:
        """Run the steps that the database lacks."""
        done = self._count_steps(connection)
        if done == 0:
            _check_old_workers(self, connection)
        for number in range(done + 1, VERSION + 1):
            for statement in STEPS[number - 1]:
                connection.execute(statement)
            connection.execute("INSERT INTO {t}step VALUES (:number)", number=number)
        if done == 0:
            _take_over_old_jobs(self, connection)

    def _count_steps(self, connection: WorkConnection) -> int:
        """Return the version of the tables; 0 if there are none, or if this role may not read them."""
        if not self.find_table(connection, "step"):
            return 0
        return connection.query("SELECT max(number) FROM {t}step")[0][0]

    def has_tables(self) -> bool:
        """Return whether the tables exist and this role may read them. Raises `StoreError`."""
        if self.file is not None and not os.path.exists(self.file):
            return False
        return self.run(lambda connection: self.find_table(connection, "job"))

    def find_table(self, connection: WorkConnection, name: str, schema: str = SCHEMA, prefix: str = "work_") -> bool:
        if self.file is not None:
            return bool(connection.query("SELECT 1 FROM sqlite_master WHERE name = :name", name=f"{prefix}{name}"))
        found = connection.query(
            "SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')"
            " FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = :schema AND c.relname = :name",
            schema=schema,
            name=name,
        )
        return bool(found) and bool(found[0][0])

    def close(self) -> None:
        """Close the idle connections."""
        if self.file is None:
            self._postgres.close()


def _check_path(where: str) -> None:
    scheme = re.match(r"[a-z][a-z0-9+.-]*://", where, re.IGNORECASE)
    if scheme is not None:
        raise InvalidOperation(
            f"{scheme[0]}… is not supported; use postgresql://host/database or the path of a SQLite file"
        )


@contextmanager
def _create_file(path: str) -> Generator[None]:
    """Create the private database file in WAL mode. Other processes wait until the block is done."""
    make_private_directory(os.path.dirname(path))
    flags = os.O_RDWR | os.O_CREAT
    os.close(open_private(path, flags))
    lock = open_private(f"{path}.lock", flags)
    try:
        lock_file(lock, f"{path}.lock")
        try:
            with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.Error as error:
            raise StoreError(path, str(error)) from error
        yield
    finally:
        os.close(lock)


class JobRequest(Struct, frozen=True, kw_only=True):
    """A job, and the session to run it in."""

    work: SwarmJob
    where: str
    """The session's file or address, or its id if all workers use the same database."""
    tools: tuple[str, ...] | None = None
    """Names of the tools that the agent may use; `None` means all tools of the worker."""
    system: str | None = None
    """Replaces the whole system prompt."""
    thinking: str | None = None


class JobReport(Struct, frozen=True, kw_only=True):
    """The outcome of a job request. The agent's results are in the session."""

    error: str | None = None
    """Why the job could not run at all."""


def build_id_prefix(job: SwarmJob) -> str:
    """Return the prefix of the ids of all job requests for an agent."""
    return f"{job.swarm}/{quote(job.agent, safe='')}/"


def encode(value: Struct) -> str:
    return msgspec.json.encode(value).decode()


def decode_request(text: str) -> JobRequest:
    return msgspec.json.decode(text, type=JobRequest)


def decode_report(text: str) -> JobReport:
    return msgspec.json.decode(text, type=JobReport)


# Jobs of version 0.1, which kept them in the tables of DBOS. The old tables stay as they are.


def _check_old_workers(database: WorkDatabase, connection: WorkConnection) -> None:
    """Raise `StoreError` if workers of version 0.1 are running: they would run the same jobs."""
    if not _has_table(database, connection, "sessiontree_worker"):
        return
    alive = connection.query(
        f"SELECT id FROM {_name_old_table(database, 'sessiontree_worker')} WHERE gone = 0 AND seen >= {{now}} - lease"
    )
    if alive:
        names = ", ".join(id for (id,) in alive)
        raise StoreError(database.display_name, f"workers of version 0.1 are running; stop them first: {names}")


def _take_over_old_jobs(database: WorkDatabase, connection: WorkConnection) -> None:
    """Copy the unfinished jobs of version 0.1, and their answers."""
    if not _has_table(database, connection, "workflow_status"):
        return
    inputs = "inputs" if _has_table(database, connection, "workflow_input") else "s.inputs"
    join = f"JOIN {_name_old_table(database, 'workflow_input')} AS i ON i.workflow_uuid = s.workflow_uuid"
    jobs = connection.query(
        f"SELECT s.workflow_uuid, {'i.' if inputs == 'inputs' else ''}{inputs}, s.created_at"
        f" FROM {_name_old_table(database, 'workflow_status')} AS s {join if inputs == 'inputs' else ''}"
        " WHERE s.name = 'sessiontree.agent' AND s.status IN ('ENQUEUED', 'PENDING', 'DELAYED')"
    )
    for id, given, created in jobs:
        (request,) = msgspec.json.decode(given)["positionalArgs"]
        connection.execute(
            "INSERT INTO {t}job (id, request, created) VALUES (:id, :request, :created)",
            id=id,
            request=request,
            created=created / 1000,
        )
        outputs = connection.query(
            f"SELECT output FROM {_name_old_table(database, 'operation_outputs')}"
            " WHERE workflow_uuid = :id AND function_name = 'answer' AND output IS NOT NULL",
            id=id,
        )
        for (output,) in outputs:
            stored = msgspec.json.decode(output)
            connection.execute(
                "INSERT INTO {t}answer VALUES (:id, :key, :value) ON CONFLICT (job, key) DO NOTHING",
                id=id,
                key=stored["key"],
                value=stored["kept"],
            )


def _has_table(database: WorkDatabase, connection: WorkConnection, name: str) -> bool:
    return database.find_table(connection, name, schema="dbos", prefix="")


def _name_old_table(database: WorkDatabase, table: str) -> str:
    return table if database.file is not None else f"dbos.{table}"
