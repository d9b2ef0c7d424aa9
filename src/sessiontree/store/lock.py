"""Locks on files: the lock file of a session, and waiting for a lock that another process holds.

Every writer holds the lock file with `flock` for a short time; `batch_journal` writes the note of a batch into it.

A free lock costs one call. For a held lock, the waiter polls with short pauses. Ctrl+C, the time limit and
`stop_waiting` can then end the wait in any thread. A blocking `flock` in a thread could not be cancelled. After
`REPORT_SECONDS` the wait is reported once, with the lock and its holder: to the logger `sessiontree.locks`, or to the
function that a program assigned to `report`. After `get_wait_limit()` seconds it raises `LockTimeout`.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from time import monotonic, sleep
from weakref import WeakSet

from sessiontree.errors import LockTimeout, SessionTreeError, StoreError
from sessiontree.store import batch_journal
from sessiontree.store.file_operations import close_quietly, format_os_error, get_identity

MAX_ATTEMPTS = 100
"""How often a lock file is opened again that other processes keep replacing."""
DEFAULT_WAIT_SECONDS = 30.0
"""Seconds to wait for a lock, unless the configuration sets `lock_timeout`."""
REPORT_SECONDS = 1.0
LIMIT_VARIABLE = "SESSIONTREE_LOCK_TIMEOUT"
MIN_PAUSE, MAX_PAUSE = 0.00025, 0.05
"""Seconds between two attempts. A process that appends all the time leaves the lock free for only about 20
microseconds between two syncs. It takes hundreds of attempts to hit such a moment, so pauses grow slowly."""
PAUSE_FRACTION = 2000
"""A pause is 1/2000 of the wait so far, so a wait of minutes costs almost no CPU time."""
EVENT_LOOP_PAUSE = 0.002
"""The shortest pause when many tasks wait in one event loop, in seconds."""
GRACE_SECONDS = 0.02
"""Most waits are shorter than this; the configured limit is not looked up for them. In seconds."""


# The lock file


def get_lock_path(path: str) -> str:
    """Return the path of the lock file of the session file at `path`."""
    return f"{path}.lock"


class FileLock:
    """A lock file, held by one thread at a time. It stays open, since opening it takes longer than an append.

    While a batch is written, the file has a note of it: see `batch_journal`.
    """

    fd: int | None = None

    def __init__(self, path: str) -> None:
        self.path = path
        self.has_note = False
        """Whether the file has a note, left by a writer that crashed or failed."""
        self.thread_lock = threading.RLock()
        self._inspection_lock = threading.RLock()
        """Held while a thread checks for another holder: two checking threads must not see each other as writers."""
        _locks.add(self)

    def acquire(self) -> None:
        """Acquire the lock. Raises `LockTimeout` if another process keeps it."""
        try:
            self.thread_lock.acquire()
            lock_file(self.open() if self.fd is None else self.fd, self.path)
            self.confirm_file()
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError) and error.errno is not None:
                raise StoreError(self.path, format_os_error(error)) from error
            raise

    def open(self) -> int:
        """Open the lock file and return its descriptor. Raises `StoreError`."""
        try:
            fd = self.fd = _open_lock_file(self.path)  # set before waiting, for processes forked in the meantime
        except OSError as error:
            if error.errno is None:
                raise
            raise StoreError(self.path, format_os_error(error)) from error
        return fd

    def confirm_file(self) -> None:
        """Make sure that the locked file is still the one at the path. If not, lock the new one as other writers do."""
        for _ in range(MAX_ATTEMPTS):
            if self._is_current_file():
                return
            self._close_file()
            lock_file(self.open(), self.path)
        raise StoreError(self.path, "the lock file keeps being replaced; cannot lock")

    def find_other_holder(self, fd: int | None = None, path: str = "") -> LockWait | None:
        """Return a wait for the process that holds the lock; `None` if it is free or held by this process.

        With `fd`, an open file that is locked together with this one, for that file too.
        """
        with self._inspection_lock:
            if self.is_owned or not self.thread_lock.acquire(blocking=False):
                return None
            try:
                for file, name in ((self.open() if self.fd is None else self.fd, self.path), (fd, path)):
                    if file is not None and is_locked(file):
                        return LockWait(file, name, get_limit=get_configured_limit, shortest_pause=EVENT_LOOP_PAUSE)
                return None
            finally:
                self.thread_lock.release()

    def _is_current_file(self) -> bool:
        """Return whether the open file is still the one at the path. Updates `has_note`, too."""
        assert self.fd is not None
        status = os.fstat(self.fd)
        self.has_note = status.st_size > 0
        try:
            return get_identity(os.lstat(self.path)) == get_identity(status)
        except FileNotFoundError:
            # If the whole folder was moved, other processes still wait for this file, and none can create a new one.
            return status.st_nlink > 0 and not os.path.isdir(os.path.dirname(self.path))

    def release(self) -> None:
        fd = self.fd
        try:
            # Closing is not enough: a process forked in the meantime may hold the same open file.
            if fd is not None:
                flock(fd, LOCK_UN)
        except OSError as error:
            self._close_file()
            if error.errno is None:
                raise
        finally:
            self.thread_lock.release()

    def abandon(self) -> None:
        """Release the lock if this thread holds the lock, after an interrupt in `acquire` or `release`."""
        if self.is_owned:
            self._close_file()
            self.thread_lock.release()

    @property
    def is_owned(self) -> bool:
        """Whether this thread holds the lock."""
        return self.thread_lock._is_owned()  # type: ignore[attr-defined]  # as `threading.Condition` does

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def write_note(self, start: int, lines: Sequence[bytes]) -> None:
        assert self.fd is not None
        self.has_note = True
        batch_journal.write_note(self.fd, start, lines)

    def find_unfinished_batch(self, fd: int, size: int) -> int | None:
        assert self.fd is not None
        return batch_journal.find_unfinished_batch(self.fd, fd, size)

    def clear_note(self) -> None:
        """Clear the note. A stale note is harmless."""
        if self.fd is not None and self.has_note:
            try:
                os.ftruncate(self.fd, 0)
                self.has_note = False
            except OSError as error:
                if error.errno is None:
                    raise

    def close(self) -> None:
        with self.thread_lock:
            self._close_file()

    def _close_file(self) -> None:
        fd, self.fd = self.fd, None  # first: after an interrupt, the number may belong to another file
        close_quietly(fd)

    def reset_after_fork(self) -> None:
        """In a forked child: drop the parent's descriptor, which shares its lock and would keep it held."""
        self.thread_lock = threading.RLock()
        self._inspection_lock = threading.RLock()
        self._close_file()

    def __del__(self) -> None:
        close_quietly(self.fd)


def _open_lock_file(path: str) -> int:
    """Open or create the lock file at `path`, readable and writable by this user alone."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) != 0o600:
            with suppress(PermissionError):
                os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


_locks: WeakSet[FileLock] = WeakSet()


def _reset_locks_after_fork() -> None:
    for lock in _locks:
        lock.reset_after_fork()


os.register_at_fork(after_in_child=_reset_locks_after_fork)


# Waiting


def log_wait(text: str) -> None:
    import logging

    logging.getLogger("sessiontree.locks").warning("%s", text)


report: Callable[[str], None] = log_wait
"""Called once per long wait with a description, in the thread that waits."""

_stopped = threading.Event()
_thread_settings = threading.local()


def lock_file(fd: int, path: str, seconds: float | None = None) -> None:
    """Lock an open file, named `path` in messages.

    Raises `LockTimeout` after `seconds`, by default after `get_wait_limit()`.
    """
    try:
        flock(fd, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        for pause in LockWait(fd, path, seconds):
            sleep(pause)
            if try_lock_file(fd):
                return


def try_lock_file(fd: int) -> bool:
    """Lock an open file if it is free, and return whether it was."""
    try:
        flock(fd, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(fd: int) -> bool:
    """Return whether another process has locked an open file."""
    if not try_lock_file(fd):
        return True
    flock(fd, LOCK_UN)
    return False


class LockWait:
    """A wait for one lock: an iterable of pauses between attempts that reports the wait and raises `LockTimeout`."""

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
        """Returns the limit if `seconds` is `None`."""
        self._shortest_pause = shortest_pause

    def build_timeout(self, waited: float = 0.0) -> LockTimeout:
        return LockTimeout(self._path, waited, *find_lock_holder(self._fd))

    def __iter__(self) -> Generator[float]:
        started, seconds, is_reported = monotonic(), self._seconds, False
        while True:
            waited = monotonic() - started
            if seconds is None and waited >= GRACE_SECONDS:
                seconds = self._get_limit()
            if (seconds is not None and waited >= seconds) or _stopped.is_set():
                raise self.build_timeout(waited)
            if waited >= REPORT_SECONDS and not is_reported:
                is_reported = True
                report(describe_wait(self._path, *find_lock_holder(self._fd)))
            pause = min(max(waited / PAUSE_FRACTION, self._shortest_pause), MAX_PAUSE)
            yield pause if seconds is None else min(pause, max(seconds - waited, 0.0))


def describe_wait(path: str, pid: int | None, is_stopped: bool) -> str:
    return f"waiting for the lock {path}, held by {LockTimeout.describe_holder(pid, is_stopped)}"


# Time limits


def get_wait_limit() -> float:
    """Return how many seconds this thread waits for a lock."""
    own: float | None = getattr(_thread_settings, "limit", None)
    return get_configured_limit() if own is None else own


def get_configured_limit() -> float:
    """Return how many seconds the environment or the configuration allows for a lock."""
    try:
        return max(0.0, float(os.environ[LIMIT_VARIABLE]))
    except (KeyError, ValueError):
        pass
    from sessiontree import config

    try:
        return config.load_config().lock_timeout
    except SessionTreeError:  # reported where the configuration is read for other reasons
        return DEFAULT_WAIT_SECONDS


def set_wait_limit(seconds: float | None) -> None:
    """Limit how long this thread waits for a lock; `None` restores the configured limit."""
    _thread_settings.limit = seconds


@contextmanager
def limit_wait(seconds: float) -> Generator[None]:
    """Limit how long this thread waits for a lock within the context."""
    before: float | None = getattr(_thread_settings, "limit", None)
    set_wait_limit(seconds if before is None else min(seconds, before))
    try:
        yield
    finally:
        set_wait_limit(before)


def stop_waiting() -> None:
    """Cancel all waits of this process, in all threads, and all that start later: for a program that shuts down."""
    _stopped.set()


def has_stopped_waiting() -> bool:
    """Return whether `stop_waiting` was called. A `LockTimeout` is then a cancellation."""
    return _stopped.is_set()


def resume_waiting() -> None:
    """Undo `stop_waiting`."""
    _stopped.clear()


# The holder


def find_lock_holder(fd: int) -> tuple[int | None, bool]:
    """Return the process that holds the lock on an open file, if the system knows, and whether it is suspended."""
    try:
        status = os.fstat(fd)
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            rows = [row.split() for row in file]
    except OSError:
        return None, False
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for row in rows:
        # 1: FLOCK ADVISORY WRITE <pid> <device>:<inode> 0 EOF; the row of a waiter has an arrow after its number.
        if len(row) >= 6 and row[1] == "FLOCK" and row[5] == wanted and row[4].isdecimal() and int(row[4]):
            return int(row[4]), _is_stopped(int(row[4]))
    return None, False


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False
