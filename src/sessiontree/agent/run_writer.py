"""Writers of runs: append the entries of a run to its branch, or as late entries if the branch was moved.

A late entry is a child of the entry where the run was. It is on no branch and moves no branch. Writes wait for the
disk, so a thread does them, one after the other.
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
"""Entries of the conversation. Other entries, such as settings and context edits, may be appended by other writers
during a run; the next request includes them."""

MAX_WRITER_THREADS = 64
"""The number of writer threads. They are separate from the threads of tools and handlers, which may block for long."""

LOCK_WAIT_SECONDS = 1.0
"""How long a writer thread waits for the lock, in seconds. It blocks readers of the session while it waits."""


@cache
def _get_executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_WRITER_THREADS, thread_name_prefix="sessiontree-writer")


async def _write_in_thread(
    session: Session, write: Callable[[Sequence[Body]], list[Entry]], bodies: Sequence[Body]
) -> list[Entry]:
    """Write in a thread. While another process holds the lock, wait without a thread and without blocking readers."""

    def write_with_short_wait() -> list[Entry]:
        with limit_wait(LOCK_WAIT_SECONDS):
            return write(bodies)

    started, seconds = time.monotonic(), get_configured_limit()
    while True:
        await _wait_for_lock(session)
        try:
            return await asyncio.get_running_loop().run_in_executor(_get_executor(), write_with_short_wait)
        except LockTimeout:
            if time.monotonic() - started >= seconds:
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
        """The last entry of the run."""
        self.moved_error: SessionTreeError | None = None
        """Set once the branch has moved elsewhere; from then on all entries are late."""
        self._lock = asyncio.Lock()

    def follow_head(self) -> EntryId | None:
        """Return the position of the run, after annotations that other writers have appended."""
        if self.moved_error is None:
            try:
                self.leaf = self._find_head()
            except (BranchMoved, NotFound) as error:
                self.moved_error = error
        return self.leaf

    def has_branch_moved(self) -> bool:
        """Return whether the branch has moved elsewhere."""
        self.follow_head()
        return self.moved_error is not None

    def detach(self, reason: SessionTreeError) -> None:
        """Write all further entries as late entries."""
        self.moved_error = self.moved_error or reason

    async def extend(self, bodies: Sequence[Body]) -> list[Entry]:
        """Append entries to the branch. Raises `BranchMoved` and writes nothing if it was moved."""
        async with self._lock:
            if self.moved_error is not None:
                raise self.moved_error
            return self._advance(await self._write_in_thread(self._extend_branch, bodies))

    async def extend_or_append_late(self, bodies: Sequence[Body]) -> list[Entry]:
        """Append entries to the branch, or as late entries if it was moved."""
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
                self._find_head()  # raises again, unless the new entries are annotations

    def _append_late(self, bodies: Sequence[Body]) -> list[Entry]:
        return list(self.branch.session.extend(bodies, parent=self._get_parent(), branch=None))

    def _get_parent(self) -> Entry | None:
        return None if self.leaf is None else self.branch.session.tree[self.leaf]

    def _find_head(self) -> EntryId | None:
        """Return the head of the branch. Raises `BranchMoved` if it is not where the run left it."""
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
        """Return a function that tests whether an entry after the run's position means that the branch has moved."""
        return lambda entry: entry.type in CONVERSATION_TYPES


class BackgroundWriter(RunWriter):
    """A writer for background work, such as a command of the user: it appends after messages that came since."""

    def __init__(self, branch: Branch) -> None:
        super().__init__(branch)
        self._initial_count = branch.session.tree.count
        """The number of entries at the start."""

    def _build_move_check(self) -> Callable[[Entry], bool]:
        since = {entry.id for entry in self.branch.session.tree.get_entries_from(self._initial_count)}
        return lambda entry: not entry.is_annotation and entry.id not in since
