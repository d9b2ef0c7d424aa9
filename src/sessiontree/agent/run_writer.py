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
from sessiontree.store.lock_wait import get_configured_limit, limit_wait

CONVERSATION_TYPES = frozenset({"message", "custom_message", "branch_summary", "compaction", "reset_boundary"})
"""Entries that are of the conversation. Others, written by an extension say, are no move: a run takes settings and
edits of the context in with its next request."""

MAX_WRITER_THREADS = 64
"""Threads that write, of their own, so that tools and handlers that take long in theirs hold up no writing. There are
as many as are needed at once."""

LOCK_WAIT_SECONDS = 1.0
"""How long a lock is waited for in a thread: the session is held meanwhile, so that nobody can read it."""


@cache
def _get_executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_WRITER_THREADS, thread_name_prefix="sessiontree-writer")


async def _write_in_thread(
    session: Session, write: Callable[[Sequence[Body]], list[Entry]], bodies: Sequence[Body]
) -> list[Entry]:
    """Write in a thread. While another process keeps the lock, neither a thread nor the session is kept waiting."""

    def write_with_short_wait() -> list[Entry]:
        with limit_wait(LOCK_WAIT_SECONDS):
            return write(bodies)

    begun, seconds = time.monotonic(), get_configured_limit()
    while True:
        await _wait_for_lock(session)
        try:
            return await asyncio.get_running_loop().run_in_executor(_get_executor(), write_with_short_wait)
        except LockTimeout:
            if time.monotonic() - begun >= seconds:
                raise


async def _wait_for_lock(session: Session) -> None:
    """Wait until no other process writes to the session. Raises `LockTimeout`."""
    store = session.store
    for pause in store.get_lock_wait() or ():
        await asyncio.sleep(pause)
        if store.get_lock_wait() is None:
            return


class RunWriter:
    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.leaf: EntryId | None = branch.leaf
        """Where the run stands."""
        self.moved_error: SessionTreeError | None = None
        """Says that the branch is elsewhere now; from then on everything is late."""
        self._lock = asyncio.Lock()

    def follow_head(self) -> EntryId | None:
        """Where the run stands, behind what others have added there without saying anything to the model."""
        if self.moved_error is None:
            try:
                self.leaf = self._find_head()
            except (BranchMoved, NotFound) as error:
                self.moved_error = error
        return self.leaf

    def has_branch_moved(self) -> bool:
        """Whether the branch is elsewhere now."""
        self.follow_head()
        return self.moved_error is not None

    def detach(self, reason: SessionTreeError) -> None:
        """From now on everything is late, wherever the branch is."""
        self.moved_error = self.moved_error or reason

    async def extend(self, bodies: Sequence[Body]) -> list[Entry]:
        """Write entries where the run stands. Raises `BranchMoved`, with nothing written."""
        async with self._lock:
            if self.moved_error is not None:
                raise self.moved_error
            return self._advance(await self._write_in_thread(self._extend_branch, bodies))

    async def extend_or_append_late(self, bodies: Sequence[Body]) -> list[Entry]:
        """Write entries where the run stands, or as late results where the branch has been moved."""
        async with self._lock:
            if self.moved_error is None:
                try:
                    return self._advance(await self._write_in_thread(self._extend_branch, bodies))
                except (BranchMoved, NotFound) as error:
                    self.moved_error = error
            return self._advance(await self._write_in_thread(self._append_late, bodies))

    async def _write_in_thread(
        self, write: Callable[[Sequence[Body]], list[Entry]], bodies: Sequence[Body]
    ) -> list[Entry]:
        return await _write_in_thread(self.branch.session, write, bodies)

    def _advance(self, entries: list[Entry]) -> list[Entry]:
        self.leaf = entries[-1].id
        return entries

    def _extend_branch(self, bodies: Sequence[Body]) -> list[Entry]:
        session, name = self.branch.session, self.branch.name
        while True:
            head = self._find_head()
            try:
                return list(session.extend(bodies, branch=name, expected=head))
            except BranchMoved:
                self._find_head()  # raises it again, unless what has come is no move

    def _append_late(self, bodies: Sequence[Body]) -> list[Entry]:
        return list(self.branch.session.extend(bodies, parent=self._get_parent(), branch=None))

    def _get_parent(self) -> Entry | None:
        return None if self.leaf is None else self.branch.session.tree[self.leaf]

    def _find_head(self) -> EntryId | None:
        """The branch's head. Raises `BranchMoved` if it is not where the run left it."""
        head, tree, moved_by = self.branch.leaf, self.branch.session.tree, self._build_move_check()
        for entry in tree.walk_up(head):
            if entry.id == self.leaf:
                return head
            if moved_by(entry):
                break
        else:
            if self.leaf is None:
                return head
        raise BranchMoved(self.branch.name, self.leaf, head)

    def _build_move_check(self) -> Callable[[Entry], bool]:
        """Whether the branch is elsewhere, since an entry stands between its head and where the run left it."""
        return lambda entry: entry.type in CONVERSATION_TYPES


class BackgroundWriter(RunWriter):
    """Where something writes that goes on beside the conversation, like a command of a person: behind all that has been
    said there since it began."""

    def __init__(self, branch: Branch) -> None:
        super().__init__(branch)
        self._initial_count = branch.session.tree.count
        """How many entries there were."""

    def _build_move_check(self) -> Callable[[Entry], bool]:
        since = {entry.id for entry in self.branch.session.tree.get_entries_from(self._initial_count)}
        return lambda entry: not entry.is_annotation and entry.id not in since
