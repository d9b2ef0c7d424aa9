"""Swarm files: a swarm described in TOML, read into frozen values. One that is wrong is a `ConfigError`.

Nothing here starts anything; `swarm` does.
"""

from __future__ import annotations

import os

import msgspec
from msgspec import Struct

from sessiontree.config import ConfigError, ThinkingLevel, convert_setting, parse_toml
from sessiontree.regular_file import read_regular_file
from sessiontree.swarm.budget import Budget
from sessiontree.swarm.status import AgentSpec


class BudgetTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cost: float | None = None
    tokens: int | None = None
    seconds: float | None = None

    @property
    def budget(self) -> Budget:
        return Budget(cost=self.cost, tokens=self.tokens, seconds=self.seconds)


class AgentTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of one agent."""

    name: str | None = None
    task: str | None = None
    model: str | None = None
    budget: BudgetTable | None = None

    @property
    def spec(self) -> AgentSpec:
        budget = None if self.budget is None else self.budget.budget
        return AgentSpec(name=self.name, task=self.task, model=self.model, budget=budget)


class SwarmFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    task: str
    strategy: str = "parallel"
    agents: int | None = None
    """How many; without `agent`."""
    agent: list[AgentTable] = []
    max_agents: int | None = None
    parts: list[str] | None = None
    """What the mappers of `map-reduce` get."""
    model: str | None = None
    thinking: ThinkingLevel | None = None
    system: str | None = None
    tools: list[str] | None = None
    """Built-in ones, by name; all by default."""
    extensions: list[str] = []
    """Paths, from the folder of the file."""
    budget: BudgetTable = BudgetTable()
    agent_budget: BudgetTable = BudgetTable()
    session: str | None = None
    """A new one by default."""
    at: str = "HEAD"
    retries: int = 3
    branching: bool = True
    events: bool = True

    @property
    def team(self) -> int | list[AgentSpec]:
        """How many agents there are, or what each of them is."""
        return [table.spec for table in self.agent] or (2 if self.agents is None else self.agents)


def load_swarm_file(path: str) -> SwarmFile:
    """What a file says. Raises `ConfigError`."""
    try:
        raw = read_regular_file(path)
    except OSError as error:
        raise ConfigError(path, None, f"cannot be read: {error.strerror or error}") from error
    found: SwarmFile = convert_setting(path, SwarmFile, parse_toml(path, raw))
    if found.agents is not None and found.agent:
        raise ConfigError(path, "agents", "give a number of agents or [[agent]] tables, not both")
    folder = os.path.dirname(os.path.abspath(path))
    there = [os.path.join(folder, os.path.expanduser(extension)) for extension in found.extensions]
    return msgspec.structs.replace(found, extensions=there)
