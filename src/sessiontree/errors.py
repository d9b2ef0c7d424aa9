"""The exceptions of sessions and stores. All errors that sessiontree raises on purpose are `SessionTreeError`s.

Models, tools and swarms define further ones in their own modules.

    SessionTreeError
    ├── NotFound            no entry, session, branch or place has this name or id
    │   └── Ambiguous       several things match this name or prefix
    ├── FormatError         bytes do not follow the format
    ├── InvalidOperation    the request is not possible for this session
    │   └── ReadOnly        this session can be read, but not written
    ├── BranchMoved         another writer moved the branch; has its new head
    └── StoreError          the back end failed
        ├── Conflict        another writer was first; refresh and retry
        ├── LockTimeout     another process held a lock for too long
        └── OutcomeUnknown  the back end was lost during a write

Constructors take facts and build the message; the facts are attributes. Damage found while reading is a value,
`Problem`, and not an error. Operations that can be cancelled return a result instead of raising.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import msgspec

MAX_NAMES = 10
"""The maximum number of names listed in a message."""


def format_names(names: Sequence[str]) -> str:
    """Join the first names of a list for a message."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


def describe_validation_error(error: msgspec.ValidationError, part: str) -> tuple[str, str]:
    """Return where a value is invalid, as a dotted path, and why. `part` is the noun for an unknown field.

    The path is empty if the value as a whole is invalid.
    """
    reason, _, location = str(error).partition(" - at ")
    inside = location.strip("`").removeprefix("$").removeprefix(".")
    match = re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", reason)
    if match is None:
        return inside, reason[:1].lower() + reason[1:].replace("`", "")
    where = f"{inside}.{match[2]}" if inside else match[2]
    return where, f"unknown {part}" if "unknown" in match[1] else "required, but missing"


class SessionTreeError(Exception):
    """Base class; catch this to catch everything sessiontree raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_error, (type(self), *self.args), self.__dict__


def _rebuild_error(kind: type[SessionTreeError], *args: Any) -> SessionTreeError:
    """Unpickle an error without calling its constructor, which takes facts and not the message."""
    return kind.__new__(kind, *args)


class NotFound(SessionTreeError):
    """No entry, session, branch or place has this name or id."""

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        super().__init__(f"{kind} {name!r} not found{f'; {hint}' if hint else ''}")
        self.kind = kind
        self.name = name


class Ambiguous(NotFound):
    """Several things match a name or prefix. `candidates` has all of them, the message the first few."""

    def __init__(self, kind: str, name: str, candidates: Sequence[str]) -> None:
        SessionTreeError.__init__(self, f"{kind} {name!r} is ambiguous; use one of: {format_names(candidates)}")
        self.kind = kind
        self.name = name
        self.candidates = tuple(candidates)


class FormatError(SessionTreeError):
    """Bytes do not follow the format."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(f"{location}: {reason}")
        self.location = location
        self.reason = reason


class InvalidOperation(SessionTreeError):
    """The request is not possible for this session."""


class ReadOnly(InvalidOperation):
    """This session can be read, but not written."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(f"{location} is read-only: {reason}")
        self.location = location
        self.reason = reason


class BranchMoved(SessionTreeError):
    """Another writer moved the branch. Nothing was written."""

    def __init__(self, branch: str, expected: str | None, head: str | None) -> None:
        super().__init__(
            f"another writer moved branch {branch!r}: its head is {head or 'root'}, expected {expected or 'root'}"
        )
        self.branch = branch
        self.expected = expected
        self.head = head


class StoreError(SessionTreeError):
    """The back end failed."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(f"{location}: {reason}")
        self.location = location
        self.reason = reason


class Conflict(StoreError):
    """Another writer was first. It is always safe to refresh and retry."""


class LockTimeout(StoreError):
    """Another process held a lock for too long. Nothing was written; it is safe to retry."""

    def __init__(self, location: str, seconds: float, pid: int | None = None, is_stopped: bool = False) -> None:
        advice = "resume or end that process, then retry" if is_stopped else "retry when it is done"
        holder = self.describe_holder(pid, is_stopped)
        super().__init__(location, f"timed out after {seconds:.1f} s waiting for the lock, held by {holder}; {advice}")
        self.seconds = seconds
        self.pid = pid
        """The process that holds the lock; `None` if unknown."""

    @staticmethod
    def describe_holder(pid: int | None, is_stopped: bool) -> str:
        holder = "another process" if pid is None else f"process {pid}"
        return f"{holder} (suspended)" if is_stopped else holder


class OutcomeUnknown(StoreError):
    """The back end was lost during a write, which may have been done. Repeating the same write is safe."""


@contextmanager
def isolate_errors(location: str) -> Generator[None]:
    """Raise any unexpected error as a `StoreError` of the session at `location`.

    Code that processes many sessions can then skip this one.
    """
    try:
        yield
    except (OSError, SessionTreeError):
        raise
    except Exception as error:
        raise StoreError(location, f"cannot be read: internal error, {type(error).__name__}: {error}") from error
