"""Presence: whether another app has a session open. A mark in the home that the system takes away with the process."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from hashlib import blake2s

from sessiontree.errors import StoreError
from sessiontree.home import home
from sessiontree.session import Session
from sessiontree.store.files import make_private_directory


class Presence:
    """This process's mark on one session."""

    def __init__(self, session: Session) -> None:
        """Put the mark, unless another process has put one."""
        self.alone = True
        """Whether no other process had the session open."""
        self._fd: int | None = None
        self._path: str | None = None
        if session.file is None:
            return
        # By its file and not by its id, which a copy of the file has too.
        name = blake2s(os.fsencode(os.path.realpath(session.file)), digest_size=16).hexdigest()
        path = os.path.join(home(), "open", name)
        try:
            make_private_directory(os.path.dirname(path))
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._path = path
        except BlockingIOError:
            self.alone = False
            self.leave()
        except (OSError, StoreError):  # nobody can tell, and a session without a mark is as good
            self.leave()

    def leave(self) -> None:
        """Take the mark away."""
        if self._fd is not None:
            with suppress(OSError):
                if self._path is not None:
                    os.unlink(self._path)
                os.close(self._fd)
            self._fd = self._path = None
