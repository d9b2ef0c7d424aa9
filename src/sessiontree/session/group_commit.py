"""Group commit: writes that wait for each other share one sync of the disk.

A sync takes many times as long as a write. So a thread that finds another one writing queues its write. The first in
the queue leads: it waits until the session is free, does all queued writes in their order, syncs once, and wakes the
others. Each write returns when its own lines are safe, and has its own result or error.

The main thread takes no part, since Ctrl+C may interrupt it at any moment: no write of another thread depends on it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, TypeVar

from sessiontree.errors import LockTimeout, StoreError

T = TypeVar("T")
ShareSync: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Opens a context in which writes share a sync."""

main_thread = threading.main_thread().ident
"""The thread that signals interrupt. Its writes are in no group."""


def _set_main_thread() -> None:
    global main_thread
    main_thread = threading.get_ident()


os.register_at_fork(after_in_child=_set_main_thread)


class GroupedWrite:
    """A write that may share its sync with others, and its outcome."""

    __slots__ = ("error", "is_done", "result", "write")

    def __init__(self, write: Callable[[], Any]) -> None:
        self.write = write
        self.reset()

    def reset(self) -> None:
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call the write. Its lines are not safe before the group is synced."""
        try:
            self.result = self.write()
        except BaseException as error:  # noqa: BLE001 - raised where the write came from
            self.error = error
        self.is_done = True

    def fail(self, error: BaseException) -> None:
        """Set the error of the group, unless the write has its own error. No two threads raise the same object."""
        if self.error is None:
            self.error = StoreError(error.location, error.reason) if isinstance(error, StoreError) else error
            self.error.__cause__ = error if self.error is not error else None
        self.is_done = True


W = TypeVar("W", bound=GroupedWrite)


def run_group(take: Callable[[], Iterable[W]], share_sync: ShareSync) -> list[W]:
    """Do the writes that `take` returns once the session is free, with one sync, and return them."""
    group: list[W] = []
    try:
        with share_sync():
            group.extend(take())
            for write in group:
                write.run()
    except BaseException as error:  # noqa: BLE001 - raised where the writes came from
        group = group or [*take()]
        for write in group:
            write.fail(error)
    return group


class _WaitingWrite(GroupedWrite):
    """A write of a thread that waits until it is done, or until it has to lead."""

    __slots__ = ("wake",)

    def __init__(self, write: Callable[[], Any]) -> None:
        super().__init__(write)
        self.wake = threading.Lock()
        self.wake.acquire()


class GroupCommit:
    """The queue of the threads that write to one session."""

    def __init__(self) -> None:
        self._waiting: deque[_WaitingWrite] = deque()
        self._lock = threading.Lock()
        self.has_leader = False
        """Whether a thread leads. The others queue their writes."""

    def run(self, write: Callable[[], T], share_sync: ShareSync) -> T:
        """Call `write`, in a group with writes of other threads, and return its result."""
        own = _WaitingWrite(write)
        with self._lock:
            self._waiting.append(own)
            leads, self.has_leader = not self.has_leader, True
        if not leads:
            own.wake.acquire()
        if not own.is_done:
            self._lead(own, share_sync)
        if own.error is not None:
            raise own.error
        return own.result

    def _lead(self, own: _WaitingWrite, share_sync: ShareSync) -> None:
        group = run_group(self._take_all, share_sync)
        for waiting in group:
            # The limit was that of this thread. The other one may wait longer.
            if waiting is not own and isinstance(waiting.error, LockTimeout):
                waiting.reset()
        with self._lock:
            self._waiting.extendleft(waiting for waiting in reversed(group) if not waiting.is_done)
            following = self._waiting[0] if self._waiting else None
            self.has_leader = following is not None
        for waiting in group:
            if waiting.is_done:
                waiting.wake.release()
        if following is not None:
            following.wake.release()

    def _take_all(self) -> list[_WaitingWrite]:
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
            return taken
