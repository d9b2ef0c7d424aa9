"""Connections to PostgreSQL: a pool for each database, time limits and retries. The only module that imports psycopg.

If the connection or the server fails, the work is retried with growing pauses for `RETRY_SECONDS`, and for less if the
database was never reached, since its address may be wrong. So all work must be safe to run twice. If the database
cannot be reached any more after a write was sent, the error is `OutcomeUnknown`.
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
"""Seconds for which failed work is retried."""
FIRST_RETRY_SECONDS = 5.0
"""The same for a database that this process has never reached."""
MIN_PAUSE, MAX_PAUSE = 0.05, 2.0
MAX_CONNECTIONS = 16
"""The maximum number of connections of a process to one database."""
STATEMENT_SECONDS, LOCK_SECONDS, IDLE_SECONDS = 60, 20, 60
KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""TCP keepalives of both sides: seconds of silence, seconds between probes, number of probes."""
UNACKNOWLEDGED_MS = 30_000
"""How long sent data may stay unacknowledged, in milliseconds."""

T = TypeVar("T")

_TRANSIENT_STATES = ("08", "57P", "53", "40001", "40P01", "25P03", "55P03")
"""SQL states that are worth a retry: no connection, shutdown, out of resources, serialization failure."""
_UNSUPPORTED_STATES = ("0A000", "42883", "42P01")
"""SQL states for a missing feature: not supported, undefined function, undefined table."""
_REJECTION_MESSAGES = (
    "authentication failed",
    "does not exist",
    "no password",
    "is not permitted",
    "no pg_hba.conf entry",
)
"""Parts of messages with which a server rejects a login. They come without a state."""


class PostgresDatabase:
    """The connections of this process to one database."""

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
        """The listener for changes of sessions in this database."""
        from sessiontree.store.postgres.change_listener import ChangeListener

        with self._lock:
            if self._listener is None:
                self._listener = ChangeListener(self)
            return self._listener

    def run(self, work: Callable[[Connection], T], *, location: str = "", writes: bool = False) -> T:
        """Call `work` with a connection and return its result. `work` may be called several times.

        Raises `StoreError`. With `writes`, raises `OutcomeUnknown` if the write may have been done.
        """
        location = location or self.location
        started = time.monotonic()
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
                if time.monotonic() + pause > started + self._get_retry_seconds():
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
                # The connection may be in the middle of a statement: a new one is cheaper than checking.
                if connection.broken:
                    self.close()  # the other idle connections are probably broken too
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
        """Open a connection outside the pool. The caller closes it."""
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
        """Close the idle connections. The next use opens new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            with suppress(get_driver_error()):
                connection.close()


_databases: dict[tuple[int, str], PostgresDatabase] = {}


def get_database(address: Address) -> PostgresDatabase:
    """Return the `PostgresDatabase` of this process for an address. A forked process has another one."""
    key = os.getpid(), address.url
    return _databases.get(key) or _databases.setdefault(key, PostgresDatabase(address))


def _import_driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise StoreError("PostgreSQL", f"pip install 'sessiontree[postgres]' ({error})") from None
    return psycopg


def get_driver_error() -> type[Exception]:
    """Return the base class of the errors that the driver raises."""
    return _import_driver().Error


def _is_transient(error: Exception, reached: bool) -> bool:
    """Return whether a retry may help."""
    state: str | None = getattr(error, "sqlstate", None)
    if state is not None:
        return state.startswith(_TRANSIENT_STATES) and not state.startswith("57014")
    if not isinstance(error, (_import_driver().OperationalError, _import_driver().InterfaceError)):
        return False
    return reached or not any(words in str(error) for words in _REJECTION_MESSAGES)


def is_unsupported(error: Exception) -> bool:
    """Return whether the server lacks a feature, as some PostgreSQL-compatible servers do."""
    return getattr(error, "sqlstate", None) in _UNSUPPORTED_STATES


def format_driver_error(error: Exception) -> str:
    """Return the first line of an error message of the server or the driver."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def build_store_error(where: str, error: Exception) -> StoreError:
    """Convert an error of the driver."""
    state: str = getattr(error, "sqlstate", None) or ""
    if state == "42501":
        return StoreError(where, f"this role lacks permission: {format_driver_error(error)}")
    if state == "25006":
        return StoreError(where, "the database is read-only")
    if state == "57014":
        return StoreError(where, f"cancelled after {STATEMENT_SECONDS} seconds, nothing changed")
    return StoreError(where, format_driver_error(error))
