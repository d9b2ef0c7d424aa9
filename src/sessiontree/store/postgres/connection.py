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

    from sessiontree.store.postgres.watch import Watch

    Connection = psycopg.Connection[TupleRow]

PATIENCE = 30.0
"""For so many seconds what failed is tried again."""
FIRST_PATIENCE = 5.0
"""The same, for a database that this process has never reached."""
PAUSE, LONGEST_PAUSE = 0.05, 2.0
CONNECTIONS = 16
"""The most connections of a process to one database."""
STATEMENT_SECONDS, LOCK_SECONDS, IDLE_SECONDS = 60, 20, 60
PROBE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""How both sides find out that the other is gone: after so many silent seconds, how often, how many times."""
UNHEARD_MS = 30_000
"""The same where something was said and not answered, in milliseconds."""

T = TypeVar("T")

_PASSING = ("08", "57P", "53", "40001", "40P01", "25P03", "55P03")
"""States of the server that pass: no connection, shutting down, no room, a lost race."""
_UNKNOWN = ("0A000", "42883", "42P01")
"""What a server says that does not have something: not supported, no such function, no such table."""
_UNWANTED = ("authentication failed", "does not exist", "no password", "is not permitted", "no pg_hba.conf entry")
"""What a server says to those it does not let in, without a state."""


class Database:
    """One database, as this process reaches it."""

    def __init__(self, address: Address, *, patience: float = PATIENCE) -> None:
        self.where = address.shown
        self.patience = patience
        self._url = address.url
        self._idle: list[Connection] = []
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        self._lock = threading.Lock()
        self._ready = False
        self._watch: Watch | None = None

    @property
    def watch(self) -> Watch:
        """Who listens for what is written to this database."""
        from sessiontree.store.postgres.watch import Watch

        with self._lock:
            if self._watch is None:
                self._watch = Watch(self)
            return self._watch

    def run(self, work: Callable[[Connection], T], *, where: str = "", writes: bool = False) -> T:
        """What `work` gives with a connection; it may be called several times.

        Raises `StoreError`; with `writes`, `OutcomeUnknown` where it may have been done all the same.
        """
        where = where or self.where
        begun = time.monotonic()
        pause, doubtful = PAUSE, False
        while True:
            reached = False
            try:
                with self._connection() as connection:
                    reached = True
                    return work(connection)
            except psycopg_error() as error:
                if not _is_passing(error, reached):
                    raise failure(where, error) from error
                doubtful = doubtful or (writes and reached)
                if time.monotonic() + pause > begun + self._patience():
                    reason = f"the database cannot be reached: {said(error)}"
                    raise (OutcomeUnknown if doubtful else StoreError)(where, reason) from error
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _patience(self) -> float:
        return self.patience if self._ready else min(self.patience, FIRST_PATIENCE)

    @contextmanager
    def _connection(self) -> Generator[Connection]:
        with self._room:
            connection = self._take() or self.connect()
            try:
                if not self._ready:
                    from sessiontree.store.postgres import schema

                    schema.ensure(connection, self.where)
                    self._ready = True
                yield connection
            except SessionTreeError:
                self._put_back(connection)
                raise
            except BaseException:
                # It may be in the middle of something: another one is cheaper than finding out.
                if connection.broken:
                    self.close()  # what broke it has broken the others too, most likely
                with suppress(psycopg_error()):
                    connection.close()
                raise
            self._put_back(connection)

    def _put_back(self, connection: Connection) -> None:
        with self._lock:
            self._idle.append(connection)

    def _take(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def connect(self) -> Connection:
        """A connection of its own, which the caller closes."""
        psycopg = _driver()
        from psycopg.conninfo import conninfo_to_dict

        known = conninfo_to_dict(self._url)
        limits = (
            f"-c statement_timeout={STATEMENT_SECONDS}s -c lock_timeout={LOCK_SECONDS}s"
            f" -c idle_in_transaction_session_timeout={IDLE_SECONDS}s"
            f" -c tcp_user_timeout={UNHEARD_MS}" + "".join(f" -c tcp_{name}={value}" for name, value in PROBE.items())
        )
        defaults: dict[str, Any] = {
            "application_name": "sessiontree",
            "connect_timeout": 10,
            **PROBE,
            "tcp_user_timeout": UNHEARD_MS,
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
            with suppress(psycopg_error()):
                connection.close()


_databases: dict[tuple[int, str], Database] = {}


def database(address: Address) -> Database:
    """The one `Database` of this process for an address: a forked process has its own."""
    key = os.getpid(), address.url
    return _databases.get(key) or _databases.setdefault(key, Database(address))


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise StoreError("PostgreSQL", f"pip install 'sessiontree[postgres]' ({error})") from None
    return psycopg


def psycopg_error() -> type[Exception]:
    """What the driver raises."""
    return _driver().Error


def _is_passing(error: Exception, reached: bool) -> bool:
    """Whether trying again may help."""
    state: str | None = getattr(error, "sqlstate", None)
    if state is not None:
        return state.startswith(_PASSING) and not state.startswith("57014")
    if not isinstance(error, (_driver().OperationalError, _driver().InterfaceError)):
        return False
    return reached or not any(words in str(error) for words in _UNWANTED)


def is_unknown(error: Exception) -> bool:
    """Whether the server does not have what it was asked for, as some that are only like PostgreSQL."""
    return getattr(error, "sqlstate", None) in _UNKNOWN


def said(error: Exception) -> str:
    """What the server or the driver said, on one line, without what follows it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def failure(where: str, error: Exception) -> StoreError:
    """An error of ours for one of the driver's."""
    state: str = getattr(error, "sqlstate", None) or ""
    if state == "42501":
        return StoreError(where, f"this role may not do that: {said(error)}")
    if state == "25006":
        return StoreError(where, "the database takes no writes now")
    if state == "57014":
        return StoreError(where, f"it took longer than {STATEMENT_SECONDS} seconds, and nothing was done")
    return StoreError(where, said(error))
