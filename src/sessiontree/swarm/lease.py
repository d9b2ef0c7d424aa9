"""Leases: only one process at a time runs a swarm or an experiment. A process that dies loses its lease.

On one machine the lease is a lock on a file. For sessions in a database, a database lock covers all machines as well.
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
from sessiontree.store.file_operations import (
    close_quietly,
    discard,
    format_os_error,
    make_private_directory,
    open_private,
)
from sessiontree.swarm.events import SUFFIX, build_spool_path

POLL_INTERVAL = 1.0
"""Seconds between two checks whether the lease is lost."""
ACQUIRE_ATTEMPTS, ACQUIRE_DELAY = 5, 0.02
"""How often, and after how many seconds, to retry the file lock: `is_held` also locks the file for a moment."""


def build_lease_path(work_id: str) -> str:
    """Return the path of the lock file of a swarm or an experiment."""
    return f"{build_spool_path(work_id).removesuffix(SUFFIX)}.lock"


def open_lease(session: Session, work_id: str, *, is_own: bool = True) -> Lease:
    """Return the lease of a swarm or an experiment. For a session in memory it is always free.

    `is_own` is whether the work was created in this session. A fork that continues it gets a separate lease.
    """
    address, work_id = session.address, work_id if is_own else f"{work_id}/{session.id}"
    database_lock = None if address is None else catalog.open_shared_lock(address, work_id)
    return Lease(None if address is None else build_lease_path(work_id), database_lock)


def is_leased(session: Session, work_id: str, *, is_own: bool = True) -> bool:
    """Whether any process runs this swarm or experiment."""
    return open_lease(session, work_id, is_own=is_own).is_held


class Lease:
    """A lock file next to the event log, and a database lock if the session is in a database."""

    def __init__(self, path: str | None, database_lock: SharedLock | None = None) -> None:
        self._path = path
        self._database_lock = database_lock
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Acquire the lease if it is free. Return whether this process holds it. Raises `StoreError`."""
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
        """Run `acquire` in a thread. If this coroutine is cancelled, the lease is released again."""
        task = asyncio.create_task(asyncio.to_thread(self.acquire))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._release_if_acquired)
            raise

    def _release_if_acquired(self, task: asyncio.Task[bool]) -> None:
        if not task.cancelled() and task.exception() is None and task.result():
            self.release()

    def _lock_file(self, path: str) -> int | None:
        """Open and lock the file. Return its descriptor, or `None` if another process holds the lock."""
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
        # Keep the file: another process may be about to lock it, and a lock on a deleted file protects nothing.
        close_quietly(self._fd)
        self._fd = None
        if self._database_lock is not None:
            self._database_lock.release()

    @property
    def is_held(self) -> bool:
        """Whether any process holds the lease. Raises `StoreError`."""
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
        """Whether this process held the lease and a process on another machine holds it now."""
        return self._database_lock is not None and self._database_lock.is_lost

    async def run_while_held(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run a coroutine and cancel it if the lease is lost. Return whether it finished."""
        task = asyncio.create_task(work)
        try:
            while not task.done() and not self.is_lost:
                await asyncio.wait([task], timeout=POLL_INTERVAL)
            if task.done():
                await task
                return True
            return False
        finally:
            task.cancel()
            await asyncio.wait([task])

    def delete(self) -> None:
        """Release the lease and delete its file."""
        self.release()
        if self._path is not None:
            discard(self._path)

    def __del__(self) -> None:
        close_quietly(self._fd)
