"""The lock file of a session: writers take turns by `flock` on it, a short time each.

What a writer notes in it while a batch is on its way is in `batch`; how it waits for its turn, in `waiting`.
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
"""How often a lock file is opened anew that is taken away each time."""


def get_lock_path(path: str) -> str:
    """The path of the lock file of the session file at `path`."""
    return f"{path}.lock"


class FileLock:
    """The lock file of a session, for one thread at a time. It stays open, since opening takes longer than writing.

    While a batch is written it has a note of it: see `batch`.
    """

    fd: int | None = None

    def __init__(self, path: str) -> None:
        self.path = path
        self.has_note = False
        """Whether there is one, from a writer who died or failed."""
        self.thread_lock = threading.RLock()
        self._inspection_lock = threading.RLock()
        """Held while a thread looks who has the lock, so that another one that looks does not take it for a writer."""
        _locks.add(self)

    def acquire(self) -> None:
        """Wait for our turn. Raises `LockTimeout` if another process keeps the lock."""
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
        """The lock file, open. Raises `StoreError`."""
        try:
            fd = self.fd = _open_lock_file(self.path)  # kept before we wait: a process forked meanwhile has it too
        except OSError as error:
            if error.errno is None:
                raise
            raise StoreError(self.path, format_os_error(error)) from error
        return fd

    def confirm_file(self) -> None:
        """In our turn: make sure that it is one. If the file was deleted or moved, others lock a new one; so do we."""
        for _ in range(MAX_ATTEMPTS):
            if self._is_current_file():
                return
            self._close_file()
            lock_file(self.open(), self.path)
        raise StoreError(self.path, "the lock file keeps being replaced; cannot lock")

    def find_other_holder(self) -> LockWait | None:
        """A wait for whoever has the lock, unless it is free or a thread of this process has it. It takes no turn."""
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
        """Whether it is still the file at its name. Looks for a note, too."""
        assert self.fd is not None
        status = os.fstat(self.fd)
        self.has_note = status.st_size > 0
        try:
            return get_identity(os.lstat(self.path)) == get_identity(status)
        except FileNotFoundError:
            # Where its folder was moved as a whole, others who have it open wait for it, and nobody can make a new one.
            return status.st_nlink > 0 and not os.path.isdir(os.path.dirname(self.path))

    def release(self) -> None:
        fd = self.fd
        try:
            # Not by closing alone: a process forked meanwhile has it open too.
            if fd is not None:
                fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError as error:
            self._close_file()
            if error.errno is None:
                raise
        finally:
            self.thread_lock.release()

    def abandon(self) -> None:
        """Let go of it if it is ours, after something broke in while it was being taken or let go of."""
        if self.is_owned:
            self._close_file()
            self.thread_lock.release()

    @property
    def is_owned(self) -> bool:
        """Whether it is this thread's turn."""
        return self.thread_lock._is_owned()  # type: ignore[attr-defined]  # as `threading.Condition` asks

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
        """Take the note away; one that stays does no harm."""
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
        fd, self.fd = self.fd, None  # first: what breaks in now must not leave a number that is another file's soon
        close_quietly(fd)

    def reset_after_fork(self) -> None:
        """In a process that was forked: what it has of its parent's is one lock with it, and would outlive it."""
        self.thread_lock = threading.RLock()
        self._inspection_lock = threading.RLock()
        self._close_file()

    def __del__(self) -> None:
        close_quietly(self.fd)


def _open_lock_file(path: str) -> int:
    """The lock file at `path`, for this user alone."""
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
