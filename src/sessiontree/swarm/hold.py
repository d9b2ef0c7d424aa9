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
from sessiontree.session import Session
from sessiontree.store.files import discard, make_private_directory, open_private, reason_of, shut
from sessiontree.store.postgres.address import is_address
from sessiontree.store.postgres.hold import DatabaseHold
from sessiontree.swarm.events import SUFFIX, spool_path

LOOK = 1.0
"""How often it is looked whether a hold is lost, in seconds."""
GLANCES, GLANCE = 5, 0.02
"""How often, and after how many seconds, a file is tried again: whoever only looks has it for a moment too."""


def hold_path(work: str) -> str:
    """Where the lock file of a swarm or an experiment is."""
    return f"{spool_path(work).removesuffix(SUFFIX)}.lock"


def hold_of(session: Session, work: str, *, own: bool = True) -> Hold:
    """The hold of a swarm or an experiment; of a session in memory no other process knows.

    `own` is whether it was made in this session. A fork that goes on with one of another is in nobody's way there.
    """
    where, work = session.kept_at, work if own else f"{work}/{session.id}"
    far = DatabaseHold(where, work) if is_address(where) else None
    return Hold(None if where is None else hold_path(work), far)


def is_worked_on(session: Session, work: str, *, own: bool = True) -> bool:
    """Whether any process works on it."""
    return hold_of(session, work, own=own).taken


class Hold:
    """A lock file beside the events, and a lock in the database where the session is in one."""

    def __init__(self, path: str | None, far: DatabaseHold | None = None) -> None:
        self._path = path
        self._far = far
        self._fd: int | None = None

    def take(self) -> bool:
        """Whether it is ours now. Raises `StoreError`."""
        if self._path is None or self._fd is not None:
            return True
        fd = self._locked(self._path)
        for _ in range(GLANCES):
            if fd is not None:
                break
            time.sleep(GLANCE)
            fd = self._locked(self._path)
        if fd is None:
            return False
        try:
            ours = self._far is None or self._far.take()
        except BaseException:
            os.close(fd)
            raise
        if ours:
            self._fd = fd
        else:
            os.close(fd)
        return ours

    async def taken_over(self) -> bool:
        """`take` in a thread. One that is cancelled meanwhile lets go of what it gets."""
        taking = asyncio.create_task(asyncio.to_thread(self.take))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._not_wanted)
            raise

    def _not_wanted(self, taking: asyncio.Task[bool]) -> None:
        if not taking.cancelled() and taking.exception() is None and taking.result():
            self.let_go()

    def _locked(self, path: str) -> int | None:
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
            raise StoreError(path, reason_of(error)) from error
        return fd

    def let_go(self) -> None:
        # The file stays: one who waits for it must not get a lock on a file that is gone.
        shut(self._fd)
        self._fd = None
        if self._far is not None:
            self._far.let_go()

    @property
    def taken(self) -> bool:
        """Whether any process has it. Raises `StoreError`."""
        if self._fd is not None:
            return True
        if self._path is None or not os.path.exists(self._path):
            near = False
        else:
            fd = self._locked(self._path)
            near = fd is None
            shut(fd)
        return near or (self._far is not None and self._far.taken)

    @property
    def lost(self) -> bool:
        """Whether it was ours, and is a process's on another machine now."""
        return self._far is not None and self._far.lost

    async def during(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do some work that is given up when the hold is lost. Whether it came to its end."""
        working = asyncio.create_task(work)
        try:
            while not working.done() and not self.lost:
                await asyncio.wait([working], timeout=LOOK)
            if working.done():
                await working
                return True
            return False
        finally:
            working.cancel()
            await asyncio.wait([working])

    def delete(self) -> None:
        """Take the file away, of what nobody works on any more."""
        self.let_go()
        if self._path is not None:
            discard(self._path)

    def __del__(self) -> None:
        shut(self._fd)
