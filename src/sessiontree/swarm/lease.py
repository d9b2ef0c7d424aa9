"""The hold: which process works on a swarm or an experiment. One at a time does, and loses the hold when it dies.

On one machine the system sees to that, by a lock on a file; for sessions in a database, the database, for all machines.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Coroutine
from typing import Any

from sessiontree.errors import StoreError
from sessiontree.library import catalog
from sessiontree.library.repository import SharedLock
from sessiontree.session import Session
from sessiontree.store.files import close_quietly, discard, format_os_error, make_private_directory, open_private
from sessiontree.swarm.events import SUFFIX, build_spool_path

POLL_INTERVAL = 1.0
"""How often it is looked whether a hold is lost, in seconds."""
ACQUIRE_ATTEMPTS, ACQUIRE_DELAY = 5, 0.02
"""How often, and after how many seconds, a file is tried again: whoever only looks has it for a moment too."""


def build_lease_path(work_id: str) -> str:
    """Where the lock file of a swarm or an experiment is."""
    return f"{build_spool_path(work_id).removesuffix(SUFFIX)}.lock"


def open_lease(session: Session, work_id: str, *, is_own: bool = True) -> Lease:
    """The hold of a swarm or an experiment; of a session in memory no other process knows.

    `own` is whether it was made in this session. A fork that goes on with one of another is in nobody's way there.
    """
    where, work_id = session.address, work_id if is_own else f"{work_id}/{session.id}"
    far = None if where is None else catalog.open_shared_lock(where, work_id)
    return Lease(None if where is None else build_lease_path(work_id), far)


def is_leased(session: Session, work_id: str, *, is_own: bool = True) -> bool:
    """Whether any process works on it."""
    return open_lease(session, work_id, is_own=is_own).is_held


class Lease:
    """A lock file beside the events, and a lock in the database where the session is in one."""

    def __init__(self, path: str | None, database_lock: SharedLock | None = None) -> None:
        self._path = path
        self._database_lock = database_lock
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Whether it is ours now. Raises `StoreError`."""
        if self._path is None or self._fd is not None:
            return True
        fd = self._lock_file(self._path)
        for _ in range(ACQUIRE_ATTEMPTS):
            if fd is not None:
                break
            time.sleep(ACQUIRE_DELAY)
            fd = self._lock_file(self._path)
        if fd is None:
            return False
        try:
            ours = self._database_lock is None or self._database_lock.acquire()
        except BaseException:
            os.close(fd)
            raise
        if ours:
            self._fd = fd
        else:
            os.close(fd)
        return ours

    async def acquire_async(self) -> bool:
        """`take` in a thread. One that is cancelled meanwhile lets go of what it gets."""
        taking = asyncio.create_task(asyncio.to_thread(self.acquire))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._release_if_acquired)
            raise

    def _release_if_acquired(self, taking: asyncio.Task[bool]) -> None:
        if not taking.cancelled() and taking.exception() is None and taking.result():
            self.release()

    def _lock_file(self, path: str) -> int | None:
        """The lock file, if nobody on this machine has it."""
        try:
            make_private_directory(os.path.dirname(path))
            fd = open_private(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
        except OSError as error:
            raise StoreError(path, format_os_error(error)) from error
        return fd

    def release(self) -> None:
        # The file stays: one who waits for it must not get a lock on a file that is gone.
        close_quietly(self._fd)
        self._fd = None
        if self._database_lock is not None:
            self._database_lock.release()

    @property
    def is_held(self) -> bool:
        """Whether any process has it. Raises `StoreError`."""
        if self._fd is not None:
            return True
        if self._path is None or not os.path.exists(self._path):
            near = False
        else:
            fd = self._lock_file(self._path)
            near = fd is None
            close_quietly(fd)
        return near or (self._database_lock is not None and self._database_lock.is_held)

    @property
    def is_lost(self) -> bool:
        """Whether it was ours, and is a process's on another machine now."""
        return self._database_lock is not None and self._database_lock.is_lost

    async def run_while_held(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do some work that is given up when the hold is lost. Whether it came to its end."""
        working = asyncio.create_task(work)
        try:
            while not working.done() and not self.is_lost:
                await asyncio.wait([working], timeout=POLL_INTERVAL)
            if working.done():
                await working
                return True
            return False
        finally:
            working.cancel()
            await asyncio.wait([working])

    def delete(self) -> None:
        """Take the file away, of what nobody works on any more."""
        self.release()
        if self._path is not None:
            discard(self._path)

    def __del__(self) -> None:
        close_quietly(self._fd)
