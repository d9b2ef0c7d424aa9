"""The journal of a swarm: appends its records and actions to the session, keeps its branches, and reads its state.

`records` defines the entries, `replay` computes the state from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from sessiontree.core.entries import Body, Entry, EntryId
from sessiontree.errors import NotFound
from sessiontree.session import Item, Session
from sessiontree.session.write_queue import run_write
from sessiontree.swarm.records import (
    CreatedRecord,
    SpawnAction,
    SwarmAction,
    SwarmRecord,
    SwarmStatus,
    build_action_body,
    build_record_body,
)
from sessiontree.swarm.replay import SwarmTracker, TrackedSwarm

T = TypeVar("T")


def list_swarms(session: Session) -> list[SwarmStatus]:
    """Return the status of every swarm of a session, in the order they were created."""
    swarms = SwarmTracker(session).read().swarms
    return [swarm.build_status(None, session.id) for swarm in swarms.values()]


class SwarmJournal:
    """Appends records and agent actions of one swarm to its session, and gives access to the resulting state."""

    def __init__(self, session: Session, id: str) -> None:
        self.session = session
        self.id = id
        self._tracker = SwarmTracker(session, id)
        self._last_record: Entry | None = None
        """The last record that this journal wrote."""
        self._next_refresh: asyncio.Task[object] | None = None
        """A refresh that has not started yet. All agents that ask in the meantime share it."""

    @property
    def state(self) -> TrackedSwarm:
        """The swarm's current state. Raises `NotFound`."""
        state = self._tracker.read().swarms.get(self.id)
        if state is None:
            raise NotFound("swarm", self.id)
        return state

    @property
    def exists(self) -> bool:
        return self.id in self._tracker.read().swarms

    async def refresh(self) -> TrackedSwarm:
        """Read what other processes have written, and return the swarm's state."""
        refresh = self._next_refresh
        if refresh is None or refresh.get_loop() is not asyncio.get_running_loop():
            refresh = self._next_refresh = asyncio.create_task(self.run_in_thread(self._refresh))
        await asyncio.shield(refresh)
        return self.state

    def _refresh(self) -> None:
        self._next_refresh = None
        self.session.refresh()

    async def run_in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that reads or writes the session, which may wait for the disk, in a thread."""
        return await run_write(self.session, lambda: function(*args))

    async def append_record(self, record: SwarmRecord) -> Entry:
        """Append a record to the swarm's own branch."""
        own = record.name if isinstance(record, CreatedRecord) else self.state.own_branch
        self._last_record = await self.run_in_thread(self._append, build_record_body(record), own, self._last_record)
        return self._last_record

    async def append_action(self, agent: str, action: SwarmAction) -> Entry:
        """Append an agent's action to its branch, or an action of the swarm itself to the swarm's own branch."""
        state = self.state
        known = state.agents.get(agent)
        branch = (
            action.branch if isinstance(action, SpawnAction) else state.own_branch if known is None else known.branch
        )
        return await self.run_in_thread(self._append, build_action_body(agent, action), branch, None)

    async def append_to_agent(self, agent: str, body: Body) -> Entry:
        """Append another kind of entry to an agent's branch."""
        return await self.run_in_thread(self._append, body, self.state.agents[agent].branch, None)

    def create_own_branch(self, name: str, start: EntryId | None) -> str:
        """Create the swarm's own branch, with a number appended if the name is taken. Return its name."""
        session, number = self.session, 1
        while True:
            own = name if number == 1 else f"{name}-{number}"
            if not any(branch == own or branch.startswith(f"{own}/") for branch in session.heads.heads):
                session.create_branch(own, at=None if start is None else session.tree[start], current=False)
                return own
            number += 1

    def archive_branches(self) -> None:
        """Archive the branches of the swarm and its agents."""
        session, state = self.session, self.state
        own = state.own_branch
        agents = {agent.branch for agent in state.agents.values()}
        visible = set(session.heads.heads) - {session.heads.current} - session.heads.archived
        hidden = sorted((agents | set(state.branches)) & visible)
        if hidden and own in session.heads.heads:
            head = session.heads.heads[own]
            session.move(None if head is None else session.tree[head], branch=own, archive=hidden)
        if own in visible:
            session.archive_branch(own)

    def _append(self, body: Body, branch: str, fallback_parent: Entry | None) -> Entry:
        try:
            return self.session.append_at_head(lambda: Item(body), branch=branch)
        except NotFound:
            # The branch was renamed. The record is still written, as a late result that moves no branch.
            under = fallback_parent or self.session.tree[self.state.start_entry]
            return self.session.append(body, parent=under, branch=None)
