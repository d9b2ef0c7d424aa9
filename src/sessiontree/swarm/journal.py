"""The record of a swarm: writes what happens to it into its session, and tells what has.

What the entries mean is in `facts`, what they tell together in `account`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from sessiontree.core.entries import Body, Entry
from sessiontree.errors import NotFound
from sessiontree.session import NewEntry, Session
from sessiontree.swarm.records import (
    CreatedRecord,
    SpawnAction,
    SwarmAction,
    SwarmRecord,
    build_action_body,
    build_record_body,
)
from sessiontree.swarm.replay import SwarmTracker, TrackedSwarm
from sessiontree.swarm.status import SwarmStatus

MAX_THREADS = 64
"""Threads of their own for looking into sessions and writing to them, which wait for the disk, and for a lock that
another process keeps. There are as many as are needed at once."""

T = TypeVar("T")


@cache
def _get_thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="sessiontree-swarm")


async def run_in_thread(function: Callable[..., T], *args: Any) -> T:
    """What a function gives that may wait for the disk."""
    return await asyncio.get_running_loop().run_in_executor(_get_thread_pool(), function, *args)


def list_swarms(session: Session) -> list[SwarmStatus]:
    """Every swarm of a session, from the session alone, in the order they were created."""
    accounts = SwarmTracker(session).read().swarms
    return [account.build_status(None, session.id) for account in accounts.values()]


class SwarmJournal:
    """Writes what happens to one swarm, and tells what has."""

    def __init__(self, session: Session, id: str) -> None:
        self.session = session
        self.id = id
        self._tracker = SwarmTracker(session)
        self._last_record: Entry | None = None
        """The last fact that was written here."""

    @property
    def state(self) -> TrackedSwarm:
        """What is known of the swarm now. Raises `NotFound`."""
        account = self._tracker.read().swarms.get(self.id)
        if account is None:
            raise NotFound("swarm", self.id)
        return account

    @property
    def exists(self) -> bool:
        return self.id in self._tracker.read().swarms

    async def refresh(self) -> TrackedSwarm:
        """What is known, with what other processes have written."""
        await run_in_thread(self.session.refresh)
        return self.state

    async def append_record(self, record: SwarmRecord) -> Entry:
        """Write a fact on the swarm's own branch."""
        own = record.name if isinstance(record, CreatedRecord) else self.state.own_branch
        self._last_record = await run_in_thread(self._append, build_record_body(record), own, self._last_record)
        return self._last_record

    async def append_action(self, agent: str, action: SwarmAction) -> Entry:
        """Write what an agent did on its branch; what the swarm did itself, on its own."""
        account = self.state
        known = account.agents.get(agent)
        branch = (
            action.branch if isinstance(action, SpawnAction) else account.own_branch if known is None else known.branch
        )
        return await run_in_thread(self._append, build_action_body(agent, action), branch, None)

    async def append_to_agent(self, agent: str, body: Body) -> Entry:
        """Write something of an agent's on its branch that is no deed."""
        return await run_in_thread(self._append, body, self.state.agents[agent].branch, None)

    def _append(self, body: Body, branch: str, fallback_parent: Entry | None) -> Entry:
        try:
            return self.session.append_at_head(lambda: NewEntry(body), branch=branch)
        except NotFound:
            # The branch was renamed. The record is still written, as a late result that moves no branch.
            under = fallback_parent or self.session.tree[self.state.start_entry]
            return self.session.append(body, parent=under, branch=None)
