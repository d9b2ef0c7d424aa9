"""The hold: which process works on a swarm. One at a time does; the system takes the hold away with the process."""

from __future__ import annotations

import fcntl
import os

from sessiontree.errors import StoreError
from sessiontree.store.files import discard, make_private_directory, reason_of, shut
from sessiontree.swarm.events import SUFFIX, spool_path


def hold_path(swarm: str) -> str:
    """Where the lock file of a swarm is."""
    return f"{spool_path(swarm).removesuffix(SUFFIX)}.lock"


def is_worked_on(swarm: str) -> bool:
    """Whether any process works on a swarm."""
    path = hold_path(swarm)
    return os.path.exists(path) and Hold(path).taken


class Hold:
    """A lock file beside the swarm's events; of a session in memory no other process knows."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._fd: int | None = None

    def take(self) -> bool:
        """Whether it is ours now. Raises `StoreError`."""
        if self._path is None or self._fd is not None:
            return True
        try:
            make_private_directory(os.path.dirname(self._path))
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return False
        except OSError as error:
            raise StoreError(self._path, reason_of(error)) from error
        self._fd = fd
        return True

    def let_go(self) -> None:
        # The file stays: one who waits for it must not get a lock on a file that is gone.
        shut(self._fd)
        self._fd = None

    @property
    def taken(self) -> bool:
        """Whether any process works on the swarm."""
        if self._fd is not None:
            return True
        taken = not self.take()
        self.let_go()
        return taken and self._path is not None

    def delete(self) -> None:
        """Take the file away, of a swarm that nobody works on any more."""
        self.let_go()
        if self._path is not None:
            discard(self._path)

    def __del__(self) -> None:
        shut(self._fd)
