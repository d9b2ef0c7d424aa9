"""Connections: the one door to psycopg. A pool for each database, time limits, and trying again.

A statement that failed because the connection or the server did is tried again, with growing pauses, for as long as
`PATIENCE` says, and shorter where the database was never reached, for then its address may be wrong. So everything that
is run here must be right when it is run twice. When a write was on its way and
nobody can be asked any more, that is `OutcomeUnknown`. No SQL here beyond what every connection needs.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from sessiontree.errors import OutcomeUnknown, SessionTreeError, StoreError
from sessiontree.store.postgres.address import Address

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

    from sessiontree.store.postgres.change_listener import ChangeListener

    Connection = psycopg.Connection[TupleRow]

RETRY_SECONDS = 30.0
"""For so many seconds what failed is tried again."""
FIRST_RETRY_SECONDS = 5.0
"""The same, for a database that this process has never reached."""
MIN_PAUSE, MAX_PAUSE = 0.05, 2.0
MAX_CONNECTIONS = 16
"""The most connections of a process to one database."""
STATEMENT_SECONDS, LOCK_SECONDS, IDLE_SECONDS = 60, 20, 60
KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""How both sides find out that the other is gone: after so many silent seconds, how often, how many times."""
UNACKNOWLEDGED_MS = 30_000
"""The same where something was said and not answered, in milliseconds."""

T = TypeVar("T")

_TRANSIENT_STATES = ("08", "57P", "53", "40001", "40P01", "25P03", "55P03")
"""States of the server that pass: no connection, shutting down, no room, a lost race."""
_UNSUPPORTED_STATES = ("0A000", "42883", "42P01")
"""What a server says that does not have something: not supported, no such function, no such table."""
_REJECTION_MESSAGES = (
    "authentication failed",
    "does not exist",
    "no password",
    "is not permitted",
    "no pg_hba.conf entry",
)
"""What a server says to those it does not let in, without a state."""


class PostgresDatabase:
    """One database, as this process reaches it."""

    def __init__(self, address: Address, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self.location = address.safe_url
        self.retry_seconds = retry_seconds
        self._url = address.url
        self._idle: list[Connection] = []
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._is_ready = False
        self._listener: ChangeListener | None = None

    @property
    def listener(self) -> ChangeListener:
        """Who listens for what is written to this database."""
        from sessiontree.store.postgres.change_listener import ChangeListener

        with self._lock:
            if self._listener is None:
                self._listener = ChangeListener(self)
            return self._listener

    def run(self, work: Callable[[Connection], T], *, location: str = "", writes: bool = False) -> T:
        """What `work` gives with a connection; it may be called several times.

        Raises `StoreError`; with `writes`, `OutcomeUnknown` where it may have been done all the same.
        """
        location = location or self.location
        begun = time.monotonic()
        pause, doubtful = MIN_PAUSE, False
        while True:
            reached = False
            try:
                with self._borrow_connection() as connection:
                    reached = True
                    return work(connection)
            except get_driver_error() as error:
                if not _is_transient(error, reached):
                    raise build_store_error(location, error) from error
                doubtful = doubtful or (writes and reached)
                if time.monotonic() + pause > begun + self._get_retry_seconds():
                    reason = f"the database cannot be reached: {format_driver_error(error)}"
                    raise (OutcomeUnknown if doubtful else StoreError)(location, reason) from error
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, MAX_PAUSE)

    def _get_retry_seconds(self) -> float:
        return self.retry_seconds if self._is_ready else min(self.retry_seconds, FIRST_RETRY_SECONDS)

    @contextmanager
    def _borrow_connection(self) -> Generator[Connection]:
        with self._slots:
            connection = self._pop_idle() or self.connect()
            try:
                if not self._is_ready:
                    from sessiontree.store.postgres import schema

                    schema.ensure_schema(connection, self.location)
                    self._is_ready = True
                yield connection
            except SessionTreeError:
                self._return_connection(connection)
                raise
            except BaseException:
                # It may be in the middle of something: another one is cheaper than finding out.
                if connection.broken:
                    self.close()  # what broke it has broken the others too, most likely
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
        """A connection of its own, which the caller closes."""
        psycopg = _import_driver()
        from psycopg.conninfo import conninfo_to_dict

        known = conninfo_to_dict(self._url)
        limits = (
            f"-c statement_timeout={STATEMENT_SECONDS}s -c lock_timeout={LOCK_SECONDS}s"
            f" -c idle_in_transaction_session_timeout={IDLE_SECONDS}s"
            f" -c tcp_user_timeout={UNACKNOWLEDGED_MS}"
            + "".join(f" -c tcp_{name}={value}" for name, value in KEEPALIVES.items())
        )
        defaults: dict[str, Any] = {
            "application_name": "sessiontree",
            "connect_timeout": 10,
            **KEEPALIVES,
            "tcp_user_timeout": UNACKNOWLEDGED_MS,
            "options": limits,
            "client_encoding": "utf-8",
        }
        return psycopg.connect(
            self._url, autocommit=True, **{name: value for name, value in defaults.items() if name not in known}
        )

    def close(self) -> None:
        """Let go of the connections that nobody uses. Whoever asks again gets new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            with suppress(get_driver_error()):
                connection.close()


_databases: dict[tuple[int, str], PostgresDatabase] = {}


def get_database(address: Address) -> PostgresDatabase:
    """The one `Database` of this process for an address: a forked process has its own."""
    key = os.getpid(), address.url
    return _databases.get(key) or _databases.setdefault(key, PostgresDatabase(address))


def _import_driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise StoreError("PostgreSQL", f"pip install 'sessiontree[postgres]' ({error})") from None
    return psycopg


def get_driver_error() -> type[Exception]:
    """What the driver raises."""
    return _import_driver().Error


def _is_transient(error: Exception, reached: bool) -> bool:
    """Whether trying again may help."""
    state: str | None = getattr(error, "sqlstate", None)
    if state is not None:
        return state.startswith(_TRANSIENT_STATES) and not state.startswith("57014")
    if not isinstance(error, (_import_driver().OperationalError, _import_driver().InterfaceError)):
        return False
    return reached or not any(words in str(error) for words in _REJECTION_MESSAGES)


def is_unsupported(error: Exception) -> bool:
    """Whether the server does not have what it was asked for, as some that are only like PostgreSQL."""
    return getattr(error, "sqlstate", None) in _UNSUPPORTED_STATES


def format_driver_error(error: Exception) -> str:
    """What the server or the driver said, on one line, without what follows it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def build_store_error(where: str, error: Exception) -> StoreError:
    """An error of ours for one of the driver's."""
    state: str = getattr(error, "sqlstate", None) or ""
    if state == "42501":
        return StoreError(where, f"this role may not do that: {format_driver_error(error)}")
    if state == "25006":
        return StoreError(where, "the database takes no writes now")
    if state == "57014":
        return StoreError(where, f"it took longer than {STATEMENT_SECONDS} seconds, and nothing was done")
    return StoreError(where, format_driver_error(error))
