"""The lock file of a session. Every writer holds it with `flock` for a short time.

`batch_journal` writes the note of a batch into it. `lock_wait` waits for it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakSet

from sessiontree.errors import StoreError
from sessiontree.store import batch_journal
from sessiontree.store.files import close_quietly, format_os_error, get_identity
from sessiontree.store.lock_wait import EVENT_LOOP_PAUSE, LockWait, get_configured_limit, is_locked, lock_file

MAX_ATTEMPTS = 100
"""How often a lock file is opened again that other processes keep replacing."""


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

    def find_other_holder(self) -> LockWait | None:
        """Return a wait for the process that holds the lock; `None` if it is free or held by this process."""
        with self._inspection_lock:
            if self.is_owned or not self.thread_lock.acquire(blocking=False):
                return None
            try:
                fd = self.open() if self.fd is None else self.fd
                if not is_locked(fd):
                    return None
                return LockWait(fd, self.path, get_limit=get_configured_limit, shortest_pause=EVENT_LOOP_PAUSE)
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
                fcntl.flock(fd, fcntl.LOCK_UN)
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
