"""The data of a swarm: its status, and its typed entries in the session.

A `SwarmRecord` is the data of a `custom` entry of type `sessiontree.swarm` on the swarm's own branch. A `SwarmAction`
is the data of an `agent_action` entry on an agent's branch. Session files are untrusted: invalid data is ignored.
`journal` writes these entries. `replay` reads them and computes the status.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from sessiontree.agent.system_prompt import SystemPart
from sessiontree.core.entries import AgentAction, Custom, JsonObject
from sessiontree.swarm.budget import Budget, BudgetKind, BudgetLevel

SWARM_RECORD_TYPE = "sessiontree.swarm"
"""The `custom_type` of swarm records."""

# Status

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


# Records of the swarm


class SwarmRecord(Struct, frozen=True, kw_only=True, tag_field="event", rename="camel", omit_defaults=True):
    swarm: str
    """The swarm's id."""


class CreatedRecord(SwarmRecord, frozen=True, kw_only=True, tag="created"):
    session: str | None = None
    """Id of the session that the swarm was created in; `None` in older files. A fork gets no swarms."""
    name: str
    """Also the name of the swarm's own branch, unless that is renamed."""
    task: str
    strategy: str
    """The name of a built-in strategy, or of a function."""
    agents: int
    max_agents: int | None = None
    specs: tuple[AgentSpec, ...] = ()
    parts: tuple[str, ...] | None = None
    model: str | None = None
    tools: tuple[str, ...] | None = None
    """Names of the tools that agents may use. `None` if the executor chooses them, and in older files."""
    system: str | tuple[SystemPart, ...] | None = None
    thinking: str | None = None
    budget: Budget | None = None
    agent_budget: Budget | None = None
    retries: int = 3
    branching: bool = True
    streaming: bool = True


class StartedRecord(SwarmRecord, frozen=True, kw_only=True, tag="started"):
    """A process started or resumed the swarm."""


class PausedRecord(SwarmRecord, frozen=True, kw_only=True, tag="paused"):
    reason: str | None = None


class ResumedRecord(SwarmRecord, frozen=True, kw_only=True, tag="resumed"):
    budget: Budget | None = None
    """The new budget, if it changed."""
    agent_budget: Budget | None = None


class ScaledRecord(SwarmRecord, frozen=True, kw_only=True, tag="scaled"):
    agents: int


class ExpectedAgentsRecord(SwarmRecord, frozen=True, kw_only=True, tag="expected"):
    """The total number of agents that the strategy expects."""

    agents: int


class BudgetLevelRecord(SwarmRecord, frozen=True, kw_only=True, tag="budget"):
    """A budget level was reached."""

    scope: str
    """`swarm`, or an agent's id."""
    kind: BudgetKind
    level: BudgetLevel
    used: float
    limit: float


class UnreportedUsageRecord(SwarmRecord, frozen=True, kw_only=True, tag="untold"):
    """A model did not report usage that a budget limits."""

    agent: str
    kind: BudgetKind
    model: str


class SwitchedBranchRecord(SwarmRecord, frozen=True, kw_only=True, tag="switched"):
    """New agents start at the head of another branch."""

    branch: str


class CompletedRecord(SwarmRecord, frozen=True, kw_only=True, tag="completed"):
    result: str | None = None
    reason: str | None = None


class FailedRecord(SwarmRecord, frozen=True, kw_only=True, tag="failed"):
    reason: str


class CancelledRecord(SwarmRecord, frozen=True, kw_only=True, tag="cancelled"):
    reason: str | None = None


class DestroyedRecord(SwarmRecord, frozen=True, kw_only=True, tag="destroyed"):
    pass


AnySwarmRecord: TypeAlias = (
    CreatedRecord
    | StartedRecord
    | PausedRecord
    | ResumedRecord
    | ScaledRecord
    | ExpectedAgentsRecord
    | BudgetLevelRecord
    | UnreportedUsageRecord
    | SwitchedBranchRecord
    | CompletedRecord
    | FailedRecord
    | CancelledRecord
    | DestroyedRecord
)

# Data of agent actions


class SwarmAction(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    swarm: str


class SpawnAction(SwarmAction, frozen=True, kw_only=True):
    """An agent was created with a branch and a task."""

    role: str
    task: str
    branch: str
    prompt: str | None = None
    """The prompt, if it differs from the task."""
    model: str | None = None
    budget: Budget | None = None
    reads: tuple[str, ...] = ()
    """Agents whose results are merged before the agent starts."""
    parent: str | None = None
    """The agent that split its task, if this agent does one of the parts."""
    joins: bool = True
    """Whether the result is merged into the swarm's own branch if no other agent reads it."""
    begins: bool = False
    """Whether a `begin` action marks the start. In older files the agent's first message does."""


class BeginAction(SwarmAction, frozen=True, kw_only=True):
    """The agent received its prompt, which is the previous message."""


class CompleteAction(SwarmAction, frozen=True, kw_only=True):
    """The agent completed. Its result is the last message before this entry."""


class FailAction(SwarmAction, frozen=True, kw_only=True):
    error: str
    attempt: int
    retry: float | None = None
    """Seconds until the retry. `None` if the failure is final."""


class CancelAction(SwarmAction, frozen=True, kw_only=True):
    """The agent was cancelled because the swarm needs fewer agents."""


class SplitAction(SwarmAction, frozen=True, kw_only=True):
    """An agent split its task. As an action of the swarm itself: a branch was created for an agent."""

    parts: tuple[str, ...] = ()
    name: str | None = None


class JoinAction(SwarmAction, frozen=True, kw_only=True):
    """The results of the parts were merged into the agent's branch."""

    agents: tuple[str, ...]


class ForkAction(SwarmAction, frozen=True, kw_only=True):
    """The session was forked."""

    session: str
    at: str | None = None


AnySwarmAction: TypeAlias = (
    SpawnAction | BeginAction | CompleteAction | FailAction | CancelAction | SplitAction | JoinAction | ForkAction
)

ACTIONS: dict[str, type[SwarmAction]] = {
    "spawn": SpawnAction,
    "begin": BeginAction,
    "complete": CompleteAction,
    "fail": FailAction,
    "cancel": CancelAction,
    "branch": SplitAction,
    "join": JoinAction,
    "fork": ForkAction,
}
_ACTION_NAMES = {kind: action for action, kind in ACTIONS.items()}

T = TypeVar("T")


def build_record_body(record: SwarmRecord) -> Custom:
    return Custom(custom_type=SWARM_RECORD_TYPE, data=msgspec.to_builtins(record))


def build_action_body(agent: str, action: SwarmAction) -> AgentAction:
    return AgentAction(action=_ACTION_NAMES[type(action)], agent=agent, data=msgspec.to_builtins(action))


def read_record(body: Custom) -> AnySwarmRecord | None:
    return _convert(body.data, AnySwarmRecord)


def read_action(body: AgentAction) -> AnySwarmAction | None:
    kind = ACTIONS.get(body.action)
    return None if kind is None else _convert(body.data, kind)


def _convert(data: JsonObject | Any, kind: Any) -> Any:
    try:
        return msgspec.convert(data, kind, strict=True)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
        return None
