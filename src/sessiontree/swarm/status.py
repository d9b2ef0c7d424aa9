"""Status values of a swarm and its agents. `replay` computes them from the session."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from sessiontree.swarm.budget import Budget

AgentState: TypeAlias = Literal["pending", "running", "paused", "completed", "failed", "cancelled"]
SwarmState: TypeAlias = Literal["created", "running", "paused", "completed", "failed", "cancelled", "destroyed"]

END_STATES: frozenset[SwarmState] = frozenset({"completed", "failed", "cancelled", "destroyed"})
"""States of a swarm that is over."""
MAX_DENIED = 20
"""How many distinct denied tool calls are listed for one agent or run."""


class AgentSpec(Struct, frozen=True, kw_only=True):
    """Settings of one agent. Unset fields have the swarm's defaults."""

    name: str | None = None
    """Default: the role and a number."""
    task: str | None = None
    model: str | None = None
    """Model name: `provider:model`."""
    budget: Budget | None = None
    branch: str | None = None
    """An existing branch for the agent. By default it gets a new one."""


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
    """The result of a completed agent."""
    error: str | None
    """The last error."""
    denied: tuple[str, ...] = ()
    """Distinct tool calls that permissions denied: the tool, and the command or the path."""


class SwarmStatus(Struct, frozen=True, kw_only=True):
    """The status of a swarm, computed from its session."""

    id: str
    name: str
    task: str
    strategy: str
    status: SwarmState
    """Also `running` if the process that ran the swarm has died. `Swarm.open` and `start` resume it."""
    agents: tuple[AgentInfo, ...]
    wanted: int
    """The requested number of agents; `scale` changes it."""
    progress: float
    """From 0 to 1: the share of known agents that have completed. 1 if the swarm has completed."""
    branch: str
    """The swarm's own branch, which results are merged into."""
    current_branch: str
    """The branch where new agents start."""
    branch_count: int
    cost: float
    tokens: float
    seconds: float
    budget: Budget | None
    agent_budget: Budget | None
    """The budget of each agent without its own."""
    budget_used: float | None
    """The largest used fraction of a limit, from measured usage."""
    reason: str | None
    """Why the swarm is paused or has failed."""
    created_at: str
    session_id: str
    result: str | None
