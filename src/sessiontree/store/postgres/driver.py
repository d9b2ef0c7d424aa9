"""The psycopg driver: opening connections with time limits, and classifying errors. The only module that imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sessiontree.errors import StoreError
from sessiontree.store.base import FenceRaised

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

    Connection = psycopg.Connection[TupleRow]

MIN_PAUSE, MAX_PAUSE = 0.05, 2.0
"""Seconds between two attempts to reach the server. The pause doubles each time."""
STATEMENT_SECONDS, LOCK_SECONDS, IDLE_SECONDS = 60, 20, 60
KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""TCP keepalives of both sides: seconds of silence, seconds between probes, number of probes."""
UNACKNOWLEDGED_MS = 30_000
"""How long sent data may stay unacknowledged, in milliseconds."""

FENCED_STATE = "ST001"
"""The SQL state of an append that a fence refuses."""
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


def open_connection(url: str, *, is_pooled: bool = False) -> Connection:
    """Open a connection with the time limits of this module.

    `is_pooled` is for a pooler that gives each transaction another connection: it knows no options and keeps no
    prepared statements. The time limits of the server then come from the settings of the role.
    """
    psycopg = _import_driver()
    from psycopg.conninfo import conninfo_to_dict

    known = conninfo_to_dict(url)
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
    if is_pooled:
        defaults |= {"prepare_threshold": None}
        del defaults["options"]
    return psycopg.connect(
        url, autocommit=True, **{name: value for name, value in defaults.items() if name not in known}
    )


def _import_driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise StoreError("PostgreSQL", f"pip install 'sessiontree[postgres]' ({error})") from None
    return psycopg


def get_driver_error() -> type[Exception]:
    """Return the base class of the errors that the driver raises."""
    return _import_driver().Error


def read_timeline(connection: Connection) -> int:
    """Return the number of the timeline that a primary writes; 0 for a standby, which has none."""
    try:
        row = connection.execute("SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)").fetchone()
    except get_driver_error() as error:
        if getattr(error, "sqlstate", None) == "55000" or is_unsupported(error):
            return 0
        raise
    return 0 if row is None else int(row[0], 16)


def build_connection_error(reason: str) -> Exception:
    """Return the driver's error for a connection that failed."""
    return _import_driver().OperationalError(reason)


def is_transient(error: Exception, reached: bool) -> bool:
    """Return whether a retry may help."""
    state: str | None = getattr(error, "sqlstate", None)
    if state is not None:
        return state.startswith(_TRANSIENT_STATES) and not state.startswith("57014")
    if not isinstance(error, (_import_driver().OperationalError, _import_driver().InterfaceError)):
        return False
    return reached or not any(words in str(error) for words in _REJECTION_MESSAGES)


def is_read_only(error: Exception) -> bool:
    """Return whether the server refuses writes, as a primary does that became a standby."""
    return getattr(error, "sqlstate", None) == "25006"


def is_unsupported(error: Exception) -> bool:
    """Return whether the server lacks a feature, as some PostgreSQL-compatible servers do."""
    return getattr(error, "sqlstate", None) in _UNSUPPORTED_STATES


def format_driver_error(error: Exception) -> str:
    """Return the first line of an error message of the server or the driver."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def build_store_error(location: str, error: Exception) -> StoreError:
    """Convert an error of the driver."""
    state: str = getattr(error, "sqlstate", None) or ""
    if state == FENCED_STATE:
        return FenceRaised(location, format_driver_error(error))
    if state == "42501":
        return StoreError(location, f"this role lacks permission: {format_driver_error(error)}")
    if is_read_only(error):
        return StoreError(location, "the database is read-only")
    if state == "57014":
        return StoreError(location, f"cancelled after {STATEMENT_SECONDS} seconds, nothing changed")
    return StoreError(location, format_driver_error(error))
