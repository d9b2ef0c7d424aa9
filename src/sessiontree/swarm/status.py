"""Status: what a swarm and its agents are and how far they have come, as values. How it is known is in `account`."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from sessiontree.swarm.budget import Budget

AgentState: TypeAlias = Literal["pending", "running", "paused", "completed", "failed", "cancelled"]
SwarmState: TypeAlias = Literal["created", "running", "paused", "completed", "failed", "cancelled", "destroyed"]

END_STATES: frozenset[SwarmState] = frozenset({"completed", "failed", "cancelled", "destroyed"})
"""Swarms that have come to their end."""
MAX_DENIED = 20
"""How many different calls that were denied are told of one agent or run."""


class AgentSpec(Struct, frozen=True, kw_only=True):
    """What is said of one agent before it is there; by default it is as the others."""

    name: str | None = None
    """By default its role and number."""
    task: str | None = None
    model: str | None = None
    """By name: `provider:model`."""
    budget: Budget | None = None
    branch: str | None = None
    """The branch that it is to work on, where one was made for it."""


class AgentInfo(Struct, frozen=True, kw_only=True):
    """One agent of a swarm."""

    id: str
    branch: str
    role: str
    task: str
    status: AgentState
    model: str | None
    attempts: int
    cost: float
    tokens: float
    seconds: float
    text: str | None
    """Its result, once it has completed."""
    error: str | None
    """What went wrong last."""
    denied: tuple[str, ...] = ()
    """Tool calls that permissions did not allow, each once: the tool, and the command or the path."""


class SwarmStatus(Struct, frozen=True, kw_only=True):
    """A swarm, as its session tells."""

    id: str
    name: str
    task: str
    strategy: str
    status: SwarmState
    """`running` is also one whose process died: `Swarm.open` and `start` go on with it."""
    agents: tuple[AgentInfo, ...]
    wanted: int
    """How many agents are to work, as `scale` takes it."""
    progress: float
    """From 0 to 1: how many of the agents that are known of have completed; 1 when the swarm has."""
    branch: str
    """The swarm's own branch, where results are joined."""
    current_branch: str
    """Where further agents begin."""
    branch_count: int
    cost: float
    tokens: float
    seconds: float
    budget: Budget | None
    agent_budget: Budget | None
    """That of each agent that has none of its own."""
    budget_used: float | None
    """The largest fraction of a limit that is used, of what was measured."""
    reason: str | None
    """Why it is paused, or has failed."""
    created_at: str
    session_id: str
    result: str | None
