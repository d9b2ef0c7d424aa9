"""The lock file of a session: writers take turns by `flock` on it, a short time each.

What a writer notes in it while a batch is on its way is in `batch`.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress

from sessiontree.errors import StoreError
from sessiontree.store import batch
from sessiontree.store.files import Identity, reason_of, shut

_process = 0
"""How many processes were forked from one another to get here: asking for one's own number takes longer."""


def _forked() -> None:
    global _process
    _process += 1


os.register_at_fork(after_in_child=_forked)


def lock_of(path: str) -> str:
    """The path of the lock file of the session file at `path`."""
    return f"{path}.lock"


class Lock:
    """The lock file of a session, for one thread at a time. It stays open, since opening takes longer than writing.

    While a batch is written it has a note of it: see `batch`.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.has_note = False
        """Whether there is one, from a writer who died or failed."""
        self._process = 0
        self._turn = threading.RLock()
        self._fd: int | None = None

    def acquire(self) -> None:
        """Wait for our turn."""
        if self._process != _process:
            # What a forked process has of its parent's is one lock with it: it needs its own.
            self._process, self._turn, self._fd = _process, threading.RLock(), shut(self._fd)
        try:
            self._turn.acquire()
            fd = self._fd
            if fd is not None:
                fcntl.flock(fd, fcntl.LOCK_EX)
                status = os.fstat(fd)
                if status.st_nlink:
                    self.has_note = status.st_size > 0
                    return
                self._fd = shut(fd)  # deleted since
            self._fd = locked_file(self.path)
            self.has_note = os.fstat(self._fd).st_size > 0
        except BaseException as error:
            self.give_up()
            if isinstance(error, OSError):
                raise StoreError(self.path, reason_of(error)) from error
            raise

    def release(self) -> None:
        try:
            # Not by closing alone: a process forked meanwhile has it open too.
            if self._fd is not None:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError:
            self._fd = shut(self._fd)
        finally:
            self._turn.release()

    def give_up(self) -> None:
        """Let go of it if it is ours, after something broke in while it was being taken or let go of."""
        turn = self._turn
        if turn._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` asks
            self._fd = shut(self._fd)
            turn.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def note(self, identity: Identity, start: int, lines: Sequence[bytes]) -> None:
        assert self._fd is not None
        self.has_note = True
        batch.note(self._fd, identity, start, lines)

    def begun(self, fd: int, size: int) -> int | None:
        assert self._fd is not None
        return batch.begun(self._fd, fd, size)

    def clear(self) -> None:
        """Take the note away; one that stays does no harm."""
        if self._fd is not None and self.has_note:
            with suppress(OSError):
                os.ftruncate(self._fd, 0)
                self.has_note = False

    def close(self) -> None:
        with self._turn:
            self._fd = shut(self._fd)

    def __del__(self) -> None:
        shut(self._fd)


def locked_file(path: str) -> int:
    """The lock file at `path`, open and ours alone."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            status = os.fstat(lock)
            if stat.S_IMODE(status.st_mode) != 0o600:
                with suppress(PermissionError):
                    os.fchmod(lock, 0o600)
        except BaseException:
            os.close(lock)
            raise
        if status.st_nlink:
            return lock
        os.close(lock)  # deleted while we waited: others have made a new one
