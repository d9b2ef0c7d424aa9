"""Waiting for a lock that another process holds: reported after a second, ended after a time, never uninterruptible.

A free lock costs one call. For a held one the waiter asks again after short pauses, so that Ctrl-C, a time limit and
`stop_waiting` can end the wait in any thread; a blocking `flock` in a thread could not be ended at all.

After `REPORT_SECONDS` the wait is reported once, with the lock and its holder: to the logger `sessiontree.locks`, or
to whatever a program has put in the place of `report`. After `limit()` seconds it ends with `LockTimeout`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from time import monotonic, sleep

from sessiontree.errors import LockTimeout, SessionTreeError

DEFAULT_WAIT_SECONDS = 30.0
"""Seconds that a lock is waited for, unless the configuration says otherwise."""
REPORT_SECONDS = 1.0
LIMIT_VARIABLE = "SESSIONTREE_LOCK_TIMEOUT"
MIN_PAUSE, MAX_PAUSE = 0.00025, 0.05
"""Seconds between two tries. A process that appends all the time leaves the lock free for some 20 microseconds
between two syncs, and it takes hundreds of tries to find such a moment: so pauses stay short for long."""
PAUSE_FRACTION = 2000
"""A pause is such a part of the wait so far: a wait of minutes costs nearly nothing."""
EVENT_LOOP_PAUSE = 0.002
"""The shortest one where many wait in one event loop."""
GRACE_SECONDS = 0.02
"""A wait that is shorter ends by itself: nothing is looked up for it, since most waits are."""


def log_wait(text: str) -> None:
    import logging

    logging.getLogger("sessiontree.locks").warning("%s", text)


report: Callable[[str], None] = log_wait
"""Told what is waited for. It is called in the thread that waits."""

_stopped = threading.Event()
_thread_settings = threading.local()


def lock_file(fd: int, path: str, seconds: float | None = None) -> None:
    """Lock an open file, named `path` in messages. Raises `LockTimeout` after `seconds`, by default after `limit()`."""
    try:
        flock(fd, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        for pause in LockWait(fd, path, seconds):
            sleep(pause)
            if try_lock_file(fd):
                return


def try_lock_file(fd: int) -> bool:
    """Lock an open file if nobody else has it locked."""
    try:
        flock(fd, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(fd: int) -> bool:
    """Whether somebody else has an open file locked."""
    if not try_lock_file(fd):
        return True
    flock(fd, LOCK_UN)
    return False


class LockWait:
    """A wait for one lock: gives the pauses between tries. Reports itself, and ends with `LockTimeout`."""

    def __init__(
        self,
        fd: int,
        path: str,
        seconds: float | None = None,
        *,
        get_limit: Callable[[], float] | None = None,
        shortest_pause: float = MIN_PAUSE,
    ) -> None:
        self._fd = fd
        self._path = path
        self._seconds = seconds
        self._get_limit = get_limit or get_wait_limit
        """Asked where `seconds` are not given."""
        self._shortest_pause = shortest_pause

    def build_timeout(self, waited: float = 0.0) -> LockTimeout:
        return LockTimeout(self._path, waited, *find_lock_holder(self._fd))

    def __iter__(self) -> Generator[float]:
        begun, seconds, reported = monotonic(), self._seconds, False
        while True:
            waited = monotonic() - begun
            if seconds is None and waited >= GRACE_SECONDS:
                seconds = self._get_limit()
            if (seconds is not None and waited >= seconds) or _stopped.is_set():
                raise self.build_timeout(waited)
            if waited >= REPORT_SECONDS and not reported:
                reported = True
                report(describe_wait(self._path, *find_lock_holder(self._fd)))
            pause = min(max(waited / PAUSE_FRACTION, self._shortest_pause), MAX_PAUSE)
            yield pause if seconds is None else min(pause, max(seconds - waited, 0.0))


def describe_wait(path: str, pid: int | None, is_stopped: bool) -> str:
    return f"waiting for the lock {path}, held by {LockTimeout.describe_holder(pid, is_stopped)}"


# How long


def get_wait_limit() -> float:
    """How many seconds this thread waits for a lock."""
    own: float | None = getattr(_thread_settings, "limit", None)
    return get_configured_limit() if own is None else own


def get_configured_limit() -> float:
    """How many seconds a lock is waited for where nothing else is kept waiting."""
    try:
        return max(0.0, float(os.environ[LIMIT_VARIABLE]))
    except (KeyError, ValueError):
        pass
    from sessiontree import config

    try:
        return config.load().lock_timeout
    except SessionTreeError:  # whoever reads the configuration for its own sake reports this
        return DEFAULT_WAIT_SECONDS


def set_wait_limit(seconds: float | None) -> None:
    """Have this thread wait no longer than `seconds` for a lock; `None` is as the configuration says."""
    _thread_settings.limit = seconds


@contextmanager
def limit_wait(seconds: float) -> Generator[None]:
    """While it is entered, this thread waits no longer than `seconds` for a lock."""
    before: float | None = getattr(_thread_settings, "limit", None)
    set_wait_limit(seconds if before is None else min(seconds, before))
    try:
        yield
    finally:
        set_wait_limit(before)


def stop_waiting() -> None:
    """End all waits of this process, in all threads, and refuse to begin others: for a program that is to end."""
    _stopped.set()


def has_stopped_waiting() -> bool:
    """Whether `stop_waiting` was called, so that a `LockTimeout` is an interrupt."""
    return _stopped.is_set()


def resume_waiting() -> None:
    """Take back `stop_waiting`."""
    _stopped.clear()


# Who holds it


def find_lock_holder(fd: int) -> tuple[int | None, bool]:
    """The process that holds the lock on an open file, if the system tells, and whether it is stopped."""
    try:
        status = os.fstat(fd)
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            rows = [row.split() for row in file]
    except OSError:
        return None, False
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for row in rows:
        # 1: FLOCK ADVISORY WRITE <pid> <device>:<inode> 0 EOF; a waiter's row has an arrow behind its number.
        if len(row) >= 6 and row[1] == "FLOCK" and row[5] == wanted and row[4].isdecimal() and int(row[4]):
            return int(row[4]), _is_stopped(int(row[4]))
    return None, False


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False
