"""The record: where a run writes, and what becomes of it when somebody moves the branch meanwhile.

A run writes where it left off. If its branch has been moved elsewhere, what the run still has to say is written as
late results: under the place it belongs to, on no branch, moving nobody. Writing waits for the disk, so it is done
in a thread, one write after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from sessiontree.core.entries import Body, Entry, EntryId
from sessiontree.errors import BranchMoved, LockTimeout, NotFound, SessionTreeError
from sessiontree.session import Branch, Session
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.waiting import configured_limit, limited_to

SPEAKING = frozenset({"message", "custom_message", "branch_summary", "compaction", "reset_boundary"})
"""Entries that are of the conversation. Others, written by an extension say, are no move: a run takes settings and
edits of the context in with its next request."""

WRITERS = 64
"""Threads that write, of their own, so that tools and handlers that take long in theirs hold up no writing. There are
as many as are needed at once."""

HELD_SECONDS = 1.0
"""How long a lock is waited for in a thread: the session is held meanwhile, so that nobody can read it."""


@cache
def _writers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(WRITERS, thread_name_prefix="sessiontree-writer")


async def _in_thread(
    session: Session, write: Callable[[Sequence[Body]], list[Entry]], bodies: Sequence[Body]
) -> list[Entry]:
    """Write in a thread. While another process keeps the lock, neither a thread nor the session is kept waiting."""

    def write_shortly() -> list[Entry]:
        with limited_to(HELD_SECONDS):
            return write(bodies)

    begun, seconds = time.monotonic(), configured_limit()
    while True:
        await _until_free(session)
        try:
            return await asyncio.get_running_loop().run_in_executor(_writers(), write_shortly)
        except LockTimeout:
            if time.monotonic() - begun >= seconds:
                raise


async def _until_free(session: Session) -> None:
    """Wait until no other process writes to the session. Raises `LockTimeout`."""
    store = session.store
    if not isinstance(store, JsonlStore):
        return
    for pause in store.wait_for_lock() or ():
        await asyncio.sleep(pause)
        if store.wait_for_lock() is None:
            return


class Record:
    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.at: EntryId | None = branch.leaf
        """Where the run stands."""
        self.moved: SessionTreeError | None = None
        """Says that the branch is elsewhere now; from then on everything is late."""
        self._writing = asyncio.Lock()

    def follow(self) -> EntryId | None:
        """Where the run stands, behind what others have added there without saying anything to the model."""
        if self.moved is None:
            try:
                self.at = self._head()
            except (BranchMoved, NotFound) as error:
                self.moved = error
        return self.at

    def left(self) -> bool:
        """Whether the branch is elsewhere now."""
        self.follow()
        return self.moved is not None

    def give_way(self, reason: SessionTreeError) -> None:
        """From now on everything is late, wherever the branch is."""
        self.moved = self.moved or reason

    async def extend(self, bodies: Sequence[Body]) -> list[Entry]:
        """Write entries where the run stands. Raises `BranchMoved`, with nothing written."""
        async with self._writing:
            if self.moved is not None:
                raise self.moved
            return self._took(await self._in_thread(self._extend, bodies))

    async def extend_or_late(self, bodies: Sequence[Body]) -> list[Entry]:
        """Write entries where the run stands, or as late results where the branch has been moved."""
        async with self._writing:
            if self.moved is None:
                try:
                    return self._took(await self._in_thread(self._extend, bodies))
                except (BranchMoved, NotFound) as error:
                    self.moved = error
            return self._took(await self._in_thread(self._late, bodies))

    async def _in_thread(self, write: Callable[[Sequence[Body]], list[Entry]], bodies: Sequence[Body]) -> list[Entry]:
        return await _in_thread(self.branch.session, write, bodies)

    def _took(self, entries: list[Entry]) -> list[Entry]:
        self.at = entries[-1].id
        return entries

    def _extend(self, bodies: Sequence[Body]) -> list[Entry]:
        session, name = self.branch.session, self.branch.name
        while True:
            head = self._head()
            try:
                return list(session.extend(bodies, branch=name, expected=head))
            except BranchMoved:
                self._head()  # raises it again, unless what has come is no move

    def _late(self, bodies: Sequence[Body]) -> list[Entry]:
        return list(self.branch.session.extend(bodies, parent=self._place(), branch=None))

    def _place(self) -> Entry | None:
        return None if self.at is None else self.branch.session.tree[self.at]

    def _head(self) -> EntryId | None:
        """The branch's head. Raises `BranchMoved` if it is not where the run left it."""
        head, tree, moved_by = self.branch.leaf, self.branch.session.tree, self._moved_by()
        for entry in tree.up(head):
            if entry.id == self.at:
                return head
            if moved_by(entry):
                break
        else:
            if self.at is None:
                return head
        raise BranchMoved(self.branch.name, self.at, head)

    def _moved_by(self) -> Callable[[Entry], bool]:
        """Whether the branch is elsewhere, since an entry stands between its head and where the run left it."""
        return lambda entry: entry.type in SPEAKING


class Beside(Record):
    """Where something writes that goes on beside the conversation, like a command of a person: behind all that has been
    said there since it began."""

    def __init__(self, branch: Branch) -> None:
        super().__init__(branch)
        self._before = branch.session.tree.count
        """How many entries there were."""

    def _moved_by(self) -> Callable[[Entry], bool]:
        since = {entry.id for entry in self.branch.session.tree.entries_from(self._before)}
        return lambda entry: not entry.is_annotation and entry.id not in since
