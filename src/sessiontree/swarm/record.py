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
from sessiontree.errors import BranchMoved, NotFound
from sessiontree.session import Session
from sessiontree.swarm.account import Account, Accounts
from sessiontree.swarm.facts import Created, Deed, Fact, Spawn, deed_body, fact_body
from sessiontree.swarm.status import SwarmStatus

WRITERS = 64
"""Threads of their own for looking into sessions and writing to them, which wait for the disk, and for a lock that
another process keeps. There are as many as are needed at once."""

T = TypeVar("T")


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(WRITERS, thread_name_prefix="sessiontree-swarm")


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """What a function gives that may wait for the disk."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), function, *args)


def swarms_in(session: Session) -> list[SwarmStatus]:
    """Every swarm of a session, from the session alone, in the order they were created."""
    accounts = Accounts(session).read().swarms
    return [account.status_at(None, session.id) for account in accounts.values()]


class Record:
    """Writes what happens to one swarm, and tells what has."""

    def __init__(self, session: Session, id: str) -> None:
        self.session = session
        self.id = id
        self._accounts = Accounts(session)
        self._last: Entry | None = None
        """The last fact that was written here."""

    @property
    def account(self) -> Account:
        """What is known of the swarm now. Raises `NotFound`."""
        account = self._accounts.read().swarms.get(self.id)
        if account is None:
            raise NotFound("swarm", self.id)
        return account

    @property
    def known(self) -> bool:
        return self.id in self._accounts.read().swarms

    async def look(self) -> Account:
        """What is known, with what other processes have written."""
        await in_thread(self.session.refresh)
        return self.account

    async def tell(self, fact: Fact) -> Entry:
        """Write a fact on the swarm's own branch."""
        own = fact.name if isinstance(fact, Created) else self.account.own
        self._last = await in_thread(self._append, fact_body(fact), own, self._last)
        return self._last

    async def did(self, agent: str, deed: Deed) -> Entry:
        """Write what an agent did on its branch; what the swarm did itself, on its own."""
        account = self.account
        known = account.agents.get(agent)
        branch = deed.branch if isinstance(deed, Spawn) else account.own if known is None else known.branch
        return await in_thread(self._append, deed_body(agent, deed), branch, None)

    async def annotate(self, agent: str, body: Body) -> Entry:
        """Write something of an agent's on its branch that is no deed."""
        return await in_thread(self._append, body, self.account.agents[agent].branch, None)

    def _append(self, body: Body, branch: str, otherwise: Entry | None) -> Entry:
        while True:
            try:
                return self.session.append(body, branch=branch)
            except BranchMoved:
                continue  # another process wrote there first: behind that, then
            except NotFound:
                # Somebody has renamed the branch. What happened is written all the same, and moves nobody.
                under = otherwise or self.session.tree[self.account.start]
                return self.session.append(body, parent=under, branch=None)
