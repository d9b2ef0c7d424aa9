"""Detect other processes that have a session open, and writes by them.

Every process that has a session open holds a shared lock on a file in the home folder. A process that can get an
exclusive lock is alone. The operating system releases the locks when a process dies.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from hashlib import blake2s
from time import sleep

from sessiontree.errors import SessionTreeError, StoreError
from sessiontree.home import get_home
from sessiontree.library import catalog
from sessiontree.session import Session
from sessiontree.store.file_operations import make_private_directory, open_private
from sessiontree.store.lock import LockWait

SHARED_LOCK_SECONDS = 0.5
"""How long to wait for a process that checks whether it is alone."""


def read_change_mark(session: Session) -> object:
    """Return a value that changes whenever any process writes to the session."""
    try:
        if session.file is None:
            return session.store.read_end().cursor.value
        status = os.stat(session.file)
        return status.st_size, status.st_mtime_ns  # a rolled-back append restores the size but not the time
    except (OSError, SessionTreeError):
        return None


class PresenceLock:
    """The lock of this process on one session."""

    def __init__(self, session: Session) -> None:
        """Acquire the shared lock."""
        self.is_alone = True
        """Whether no other process had the session open when the lock was acquired."""
        self._fd: int | None = None
        self._path = None if session.address is None else _build_lock_path(session.address)
        if self._path is None:
            return
        try:
            make_private_directory(os.path.dirname(self._path))
            while self._fd is None:
                self._fd = open_private(self._path, os.O_RDWR | os.O_CREAT)
                self.is_alone = _is_free(self._fd)
                self._lock_shared(self._fd)
                if not _is_same_file(self._path, self._fd):  # another process has just deleted the file
                    self._close()
        except (OSError, StoreError):  # without a lock, other processes are not detected
            self._close()

    def belongs_to(self, session: Session) -> bool:
        return session.address is not None and self._path == _build_lock_path(session.address)

    def release(self) -> None:
        """Release the lock. The last process deletes the file."""
        if self._fd is not None and self._path is not None:
            with suppress(OSError):
                if _is_free(self._fd):
                    os.unlink(self._path)
        self._close()

    def _lock_shared(self, fd: int) -> None:
        """Acquire the shared lock. Others hold it exclusively only for a moment, unless they are suspended in it.

        Raises `LockTimeout`.
        """
        for pause in LockWait(fd, self._path or "", SHARED_LOCK_SECONDS):
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                sleep(pause)

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def is_session_open(place: str) -> bool:
    """Return whether a process has the session at this path or address open, or this cannot be determined."""
    try:
        fd = os.open(_build_lock_path(place), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return not _is_free(fd)
    except OSError:
        return True
    finally:
        os.close(fd)


def _build_lock_path(place: str) -> str:
    # Use the location, not the id, because a copy of the file has the same id.
    known = catalog.normalize_location(place)
    return os.path.join(get_home(), "open", blake2s(os.fsencode(known), digest_size=16).hexdigest())


def _is_free(fd: int) -> bool:
    """Return whether no other process holds a lock. This drops our own shared lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_file(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
