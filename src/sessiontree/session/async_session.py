"""A session for asynchronous programs: the same calls as coroutines, which never block the event loop on the disk.

Every session has one worker thread that runs its calls one after the other. A call that has started always ends, even
if the task that awaits it is cancelled. So its write happens as a whole or not at all, and the next call sees the
result. Appends that wait for the thread one after the other share one sync of the disk.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from msgspec import UNSET, UnsetType

from sessiontree.core.context import Context
from sessiontree.core.entries import Body, Entry, EntryId, JsonObject
from sessiontree.core.late_imports import load
from sessiontree.core.operation_plans import NavigatePlan
from sessiontree.errors import InvalidOperation
from sessiontree.session.branch import BranchInfo
from sessiontree.session.entry_builder import Item, check_bodies
from sessiontree.session.group_commit import GroupedWrite, run_group
from sessiontree.session.session import Session
from sessiontree.session.session_base import Place

if TYPE_CHECKING:
    from sessiontree.store.jsonl import Durability

T = TypeVar("T")
P = ParamSpec("P")


class AsyncSession:
    """A session whose methods are coroutines. Open one with `open` or `create`, and close it, or use `async with`."""

    def __init__(self, session: Session) -> None:
        """Use a session that is already open. Other code must not wait for it on the event loop."""
        if not isinstance(session, Session):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise InvalidOperation(
                f"AsyncSession needs a session, not {type(session).__name__}; use await AsyncSession.open(…)"
            )
        self._session = session
        self._worker = _create_worker()
        self._waiting: _WaitingGroup | None = None
        self._closing: Future[None] | None = None

    @classmethod
    async def open(
        cls,
        session: str | os.PathLike[str],
        *,
        create: bool = False,
        read_only: bool = False,
        durability: Durability = "fsync",
    ) -> AsyncSession:
        """Open a session as `sessiontree.open` does."""
        return await cls._start(
            partial(load("open"), session, create=create, read_only=read_only, durability=durability)
        )

    @classmethod
    async def create(
        cls,
        name: str | None = None,
        *,
        cwd: str | os.PathLike[str] = ".",
        dir: str | os.PathLike[str] | None = None,
        file: str | os.PathLike[str] | None = None,
        durability: Durability = "fsync",
    ) -> AsyncSession:
        """Create a session as `sessiontree.create` does."""
        return await cls._start(partial(load("create"), name, cwd=cwd, dir=dir, file=file, durability=durability))

    @classmethod
    async def _start(cls, start: Callable[[], Session]) -> AsyncSession:
        worker = _create_worker()
        future = worker.submit(start)
        try:
            session = await asyncio.shield(asyncio.wrap_future(future))
        except BaseException:
            # After a cancellation the session is never returned, so it is closed as soon as it is open.
            worker.submit(_close_result, future)
            worker.shutdown(wait=False)
            raise
        opened = cls.__new__(cls)
        opened._session, opened._worker, opened._waiting, opened._closing = session, worker, None, None
        return opened

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncSession {self.id}>"

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def session(self) -> Session:
        """The session itself, for `run` and for code outside the event loop."""
        return self._session

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the worker thread and return its result, after all calls that were made before.

        If this task is cancelled, a call that has not started is dropped, and one that has started ends by itself.
        """
        self._check_open()
        self._waiting = None  # later writes come after this call
        return await asyncio.wrap_future(self._worker.submit(function, *args, **kwargs))

    def _check_open(self) -> None:
        if self._closing is not None:
            raise InvalidOperation(f"{self._session.location} is closed")

    async def _write(self, write: Callable[[], T]) -> T:
        """Call `write` as `run` does. Writes that wait for the worker together share one sync."""
        self._check_open()
        future: Future[T] | None = None if self._waiting is None else self._waiting.add(write)
        if future is None:
            group = self._waiting = _WaitingGroup(self._session)
            future = group.add(write)
            self._worker.submit(group.run)
        assert future is not None
        return await asyncio.wrap_future(future)

    async def append(
        self,
        body: Body,
        *,
        parent: Place | UnsetType = UNSET,
        branch: str | UnsetType | None = UNSET,
        extra: JsonObject | None = None,
        expected: EntryId | UnsetType | None = UNSET,
    ) -> Entry:
        """Write one entry and return it. See `Session.append`."""
        return await self._write(
            partial(self._session.append, body, parent=parent, branch=branch, extra=extra, expected=expected)
        )

    async def extend(
        self,
        bodies: Iterable[Body | Item],
        *,
        parent: Place | UnsetType = UNSET,
        branch: str | UnsetType | None = UNSET,
        expected: EntryId | UnsetType | None = UNSET,
    ) -> Sequence[Entry]:
        """Write entries, all or none. See `Session.extend`."""
        items = check_bodies(bodies)  # here, since a generator belongs to the thread of the event loop
        return await self._write(partial(self._session.extend, items, parent=parent, branch=branch, expected=expected))

    async def navigate(self, place: Place) -> NavigatePlan:
        """Move the current branch to the place that selecting `place` leads to. See `Session.navigate_sync`."""
        return await self.run(self._session.navigate_sync, place)

    async def switch(self, place: Place) -> str:
        """Make another branch current and return its name. See `Session.switch`."""
        return await self.run(lambda: self._session.switch(place).name)

    async def create_branch(
        self,
        name: str,
        *,
        at: Place = "HEAD",
        description: str | None = None,
        current: bool = True,
        folder: Literal["shared", "private"] = "shared",
    ) -> None:
        """Create a branch at a place. See `Session.create_branch`."""
        create = self._session.create_branch
        await self.run(create, name, at=at, description=description, current=current, folder=folder)

    async def context(self, place: Place = "HEAD") -> Context:
        """Return what the model is sent at a place."""
        return await self.run(self._session.context, place)

    async def branches(self) -> list[BranchInfo]:
        """Return all branches, in the order they were created."""
        return await self.run(lambda: self._session.branches)

    async def refresh(self) -> Sequence[Entry]:
        """Read what other writers have appended, and return it."""
        return await self.run(self._session.refresh)

    async def close(self) -> None:
        """Close the session after all calls that were made before. A second call does nothing.

        The session is closed even if this task is cancelled.
        """
        if self._closing is None:
            self._closing = self._worker.submit(self._session.close)
            self._worker.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(self._closing))


class _FutureWrite(GroupedWrite):
    """A write whose outcome a future has."""

    __slots__ = ("future",)

    def __init__(self, write: Callable[[], Any]) -> None:
        super().__init__(write)
        self.future: Future[Any] = Future()

    def run(self) -> None:
        if self.future.set_running_or_notify_cancel():
            super().run()

    def report(self) -> None:
        if not self.future.cancelled():
            self.future.set_result(self.result) if self.error is None else self.future.set_exception(self.error)


class _WaitingGroup:
    """Writes that wait for the worker. No other call of the session is between them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._writes: list[_FutureWrite] = []
        self._lock = threading.Lock()
        self._has_started = False

    def add(self, write: Callable[[], T]) -> Future[T] | None:
        """Add a write and return its future; `None` if the worker has started with the group."""
        with self._lock:
            if self._has_started:
                return None
            self._writes.append(_FutureWrite(write))
            return self._writes[-1].future

    def run(self) -> None:
        with self._lock:
            self._has_started = True
        if len(self._writes) == 1:  # a group of one would only take longer
            self._writes[0].run()
        else:
            run_group(lambda: self._writes, self._session.share_sync)
        for write in self._writes:
            write.report()


def _create_worker() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="sessiontree-session")


def _close_result(future: Future[Session]) -> None:
    """Close the session that a cancelled `open` or `create` returned."""
    if not future.cancelled() and future.exception() is None:
        future.result().close()
