"""The exceptions of sessions. All that sessiontree raises on purpose are `SessionTreeError`s: those of models, tools
and swarms stand beside what raises them.

    SessionTreeError
    ├── NotFound            a name or id names nothing (entry, session, branch, place)
    │   └── Ambiguous       a name or prefix names several things
    ├── FormatError         bytes are not what the format says
    ├── InvalidOperation    the request makes no sense for this session
    │   └── ReadOnly        this session can be read, not written
    ├── BranchMoved         another writer moved the branch; says where its head is now
    └── StoreError          the back end failed
        ├── Conflict        somebody else wrote first; read on and try again
        ├── LockTimeout     another process kept a lock for too long
        └── OutcomeUnknown  a write was on its way when the back end was lost

Constructors take facts and build the sentence; the facts stay as attributes.
Damage found while reading is not an error but a value, `Problem`.
Cancelling is not an error either: operations that can be cancelled return a
result that says so.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

MAX_NAMES = 10
"""So many candidates are named in a sentence."""


def format_names(names: Sequence[str]) -> str:
    """The first names of many, as part of a sentence."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


class SessionTreeError(Exception):
    """Base class; catch this to catch everything sessiontree raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_error, (type(self), *self.args), self.__dict__


def _rebuild_error(kind: type[SessionTreeError], *args: Any) -> SessionTreeError:
    """An error as it comes out of a pickle: without its constructor, which takes facts and not the sentence."""
    return kind.__new__(kind, *args)


class NotFound(SessionTreeError):
    """A name or id names nothing."""

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        super().__init__(f"{kind} {name!r} not found{f'; {hint}' if hint else ''}")
        self.kind = kind
        self.name = name


class Ambiguous(NotFound):
    """A name or prefix names several things; `candidates` lists them, the sentence the first few."""

    def __init__(self, kind: str, name: str, candidates: Sequence[str]) -> None:
        SessionTreeError.__init__(self, f"{kind} {name!r} is ambiguous: {format_names(candidates)}")
        self.kind = kind
        self.name = name
        self.candidates = tuple(candidates)


class FormatError(SessionTreeError):
    """Bytes are not what the format says."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.location = where
        self.reason = reason


class InvalidOperation(SessionTreeError):
    """The request makes no sense for this session."""


class ReadOnly(InvalidOperation):
    """This session can be read, not written."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} is read-only: {reason}")
        self.location = where
        self.reason = reason


class BranchMoved(SessionTreeError):
    """Another writer moved the branch while we were writing to it."""

    def __init__(self, branch: str, expected: str | None, head: str | None) -> None:
        super().__init__(
            f"branch {branch!r} was moved by another writer: its head is {head or 'root'}, not {expected or 'root'}"
        )
        self.branch = branch
        self.expected = expected
        self.head = head


class StoreError(SessionTreeError):
    """The back end failed."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.location = where
        self.reason = reason


class Conflict(StoreError):
    """Somebody else wrote first. Reading on and trying again is always right."""


class LockTimeout(StoreError):
    """Another process kept a lock for too long. Nothing was written; trying again is safe."""

    def __init__(self, where: str, seconds: float, pid: int | None = None, is_stopped: bool = False) -> None:
        advice = "resume or end it, then try again" if is_stopped else "try again when it is done"
        holder = self.describe_holder(pid, is_stopped)
        super().__init__(where, f"gave up after waiting {seconds:.1f} s for the lock, held by {holder}; {advice}")
        self.seconds = seconds
        self.pid = pid
        """The process that holds the lock; `None` where the system does not tell."""

    @staticmethod
    def describe_holder(pid: int | None, is_stopped: bool) -> str:
        holder = "another process" if pid is None else f"process {pid}"
        return f"{holder}, which is stopped" if is_stopped else holder


class OutcomeUnknown(StoreError):
    """A write was on its way when the back end was lost: it may have been done. The same write again settles it."""


@contextmanager
def isolate_errors(where: str) -> Generator[None]:
    """Raise any unforeseen error as a `StoreError` of the session at `where`.

    Code that goes through many sessions can then skip this one, and the others are not affected.
    """
    try:
        yield
    except (OSError, SessionTreeError):
        raise
    except Exception as error:
        raise StoreError(where, f"cannot be read: internal error, {type(error).__name__}: {error}") from error
