"""The database of durable swarms: jobs and the messages about them.

It is a SQLite file in the home folder for one machine, or PostgreSQL for several. It contains only JSON, never code.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext
from functools import cache
from urllib.parse import quote

import msgspec
import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSConfig, DBOSPortableJSONSerializer
from msgspec import Struct
from sqlalchemy.exc import SQLAlchemyError

from sessiontree.errors import InvalidOperation, StoreError
from sessiontree.home import get_home
from sessiontree.store.files import format_os_error, make_private_directory, open_private
from sessiontree.store.lock import lock_file
from sessiontree.store.postgres.address import find_address
from sessiontree.swarm.agent_runner import SwarmJob

APPLICATION = "sessiontree"
QUEUE = "sessiontree-agents"
VERSION = "1"
"""Version of the job messages. Workers ignore jobs of another version."""
FILE_NAME = "work.db"
DEFAULT_PORT = 5432

SERIALIZER = DBOSPortableJSONSerializer()


class WorkDatabase:
    """The database that holds jobs."""

    def __init__(self, where: str | None = None) -> None:
        """`where` is a PostgreSQL address or the path of a SQLite file; the default is `SESSIONTREE_STORE`.

        Raises `InvalidOperation` for any other address.
        """
        address = find_address(where)
        if address is not None:
            self.display_name, self.url = address.safe_url, _move_hosts_to_query(address.url)
        else:
            _check_path(where or "")
            self.display_name = os.path.abspath(where or os.path.join(get_home(), FILE_NAME))
            self.url = sa.URL.create("sqlite", database=self.display_name).render_as_string()
        self.file = self.display_name if address is None else None
        self.poll_interval = 0.25 if self.file is not None else 1.0
        """Seconds between two polls of a worker. A shared database is polled less often."""

    def migrate(self) -> None:
        """Create or upgrade the tables. Raises `StoreError`."""
        _silence_dbos_log()
        try:
            with nullcontext() if self.file is None else _create_file(self.file):
                DBOS.migrate(self.url)
        except OSError as error:
            raise StoreError(self.display_name, format_os_error(error)) from error
        except (SQLAlchemyError, sqlite3.Error) as error:
            refused = getattr(getattr(error, "orig", None), "sqlstate", None) == "42501"
            reason = "the job tables are missing or outdated, and this role may not create them: "
            raise StoreError(self.display_name, f"{reason if refused else ''}{describe_error(error)}") from error

    def create_engine(self) -> sa.Engine:
        """Create an engine that commits each statement at once: a process that dies leaves no open transaction."""
        url = sa.make_url(self.url)
        if self.file is not None:
            return sa.create_engine(url, isolation_level="AUTOCOMMIT", connect_args={"timeout": 30})
        return sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            isolation_level="AUTOCOMMIT",
            pool_size=2,
            pool_pre_ping=True,
            connect_args={"connect_timeout": 10},
        )

    def create_client(self) -> DBOSClient:
        """Create a client that sends jobs. Raises `StoreError`."""
        try:
            return DBOSClient(system_database_url=self.url, serializer=SERIALIZER, application_name=APPLICATION)
        except SQLAlchemyError as error:
            raise StoreError(self.display_name, describe_error(error)) from error

    def build_config(self, worker: str) -> DBOSConfig:
        """Return the DBOS configuration of a worker."""
        return {
            "name": APPLICATION,
            "system_database_url": self.url,
            "application_version": VERSION,
            "executor_id": worker,
            "serializer": SERIALIZER,
            "run_migrations": False,
            "sys_db_pool_size": 8,
            "log_level": "CRITICAL",
        }


def _check_path(where: str) -> None:
    scheme = re.match(r"[a-z][a-z0-9+.-]*://", where, re.IGNORECASE)
    if scheme is not None:
        raise InvalidOperation(
            f"{scheme[0]}… is not supported; use postgresql://host/database or the path of a SQLite file"
        )


def _move_hosts_to_query(url: str) -> str:
    """Move several hosts into query parameters: SQLAlchemy, unlike libpq, does not accept them before the path."""
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    login, at, listed = authority.rpartition("@")
    if "," not in listed:
        return url
    hosts = [sa.make_url(f"postgresql://{one}") for one in listed.split(",")]
    names = ",".join(host.host or "" for host in hosts)
    ports = ",".join(str(host.port or DEFAULT_PORT) for host in hosts)
    return f"{scheme}://{login}{at}{slash or '/'}{path}?host={names}&port={ports}{f'&{query}' if query else ''}"


@contextmanager
def _create_file(path: str) -> Generator[None]:
    """Create the private database file in WAL mode. Other processes wait until the block is done."""
    make_private_directory(os.path.dirname(path))
    flags = os.O_RDWR | os.O_CREAT
    os.close(open_private(path, flags))
    lock = open_private(f"{path}.lock", flags)
    try:
        lock_file(lock, f"{path}.lock")
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        yield
    finally:
        os.close(lock)


@cache
def _silence_dbos_log() -> None:
    """Silence the DBOS log, which reports every migration and every cancelled job."""
    import logging

    logging.getLogger("dbos").setLevel(logging.CRITICAL)


def describe_error(error: Exception) -> str:
    """Return the first line of a database error, without the SQL statement."""
    first, *_ = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
    return first


WORKFLOW = "sessiontree.agent"
"""The DBOS workflow name of jobs."""


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
