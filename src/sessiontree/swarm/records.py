"""Facts: what stands in a session about a swarm, as typed values. Writing them is in `record`, replaying in `account`.

What concerns the swarm as a whole is in `custom` entries `sessiontree.swarm` on its own branch, each a `Fact`. What an
agent did is in `agent_action` entries on the agent's branch, whose `data` are the structs at the end. Session files are
untrusted: what cannot be understood is no fact.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from sessiontree.agent.system_prompt import SystemPart
from sessiontree.core.entries import AgentAction, Custom, JsonObject
from sessiontree.swarm.budget import Budget, BudgetKind, BudgetLevel
from sessiontree.swarm.status import AgentSpec

SWARM_RECORD_TYPE = "sessiontree.swarm"
"""The `custom_type` of facts."""


class SwarmRecord(Struct, frozen=True, kw_only=True, tag_field="event", rename="camel", omit_defaults=True):
    swarm: str
    """The swarm's id."""


class CreatedRecord(SwarmRecord, frozen=True, kw_only=True, tag="created"):
    session: str | None = None
    """The session that it was made in, by id: a fork has what was said, and no swarm. Older ones do not say."""
    name: str
    """And that of its own branch, until somebody renames that."""
    task: str
    strategy: str
    """The name of a built-in one, or of a function."""
    agents: int
    max_agents: int | None = None
    specs: tuple[AgentSpec, ...] = ()
    parts: tuple[str, ...] | None = None
    model: str | None = None
    tools: tuple[str, ...] | None = None
    """Names of those that agents may use; `None` where that is left to whoever has them work, and from before."""
    system: str | tuple[SystemPart, ...] | None = None
    thinking: str | None = None
    budget: Budget | None = None
    agent_budget: Budget | None = None
    retries: int = 3
    branching: bool = True
    streaming: bool = True


class StartedRecord(SwarmRecord, frozen=True, kw_only=True, tag="started"):
    """Somebody works on it, from the beginning or after the one before has died."""


class PausedRecord(SwarmRecord, frozen=True, kw_only=True, tag="paused"):
    reason: str | None = None


class ResumedRecord(SwarmRecord, frozen=True, kw_only=True, tag="resumed"):
    budget: Budget | None = None
    """The budget from now on, where it is another."""
    agent_budget: Budget | None = None


class ScaledRecord(SwarmRecord, frozen=True, kw_only=True, tag="scaled"):
    agents: int


class ExpectedAgentsRecord(SwarmRecord, frozen=True, kw_only=True, tag="expected"):
    """How many agents there will be in all, as far as the strategy knows."""

    agents: int


class BudgetLevelRecord(SwarmRecord, frozen=True, kw_only=True, tag="budget"):
    """A level of a budget was reached."""

    scope: str
    """`swarm`, or an agent's id."""
    kind: BudgetKind
    level: BudgetLevel
    used: float
    limit: float


class UnreportedUsageRecord(SwarmRecord, frozen=True, kw_only=True, tag="untold"):
    """A model did not tell what it took of what is limited."""

    agent: str
    kind: BudgetKind
    model: str


class SwitchedBranchRecord(SwarmRecord, frozen=True, kw_only=True, tag="switched"):
    """Agents begin at the head of another branch from now on."""

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

# What the data of agent actions say.


class SwarmAction(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    swarm: str


class SpawnAction(SwarmAction, frozen=True, kw_only=True):
    """An agent has a branch and a task."""

    role: str
    task: str
    branch: str
    prompt: str | None = None
    """What it is told, where that is more than its task."""
    model: str | None = None
    budget: Budget | None = None
    reads: tuple[str, ...] = ()
    """Agents whose results it begins with."""
    parent: str | None = None
    """The agent whose task this is a part of."""
    joins: bool = True
    """Whether its result goes to the swarm's own branch when no other agent reads it."""
    begins: bool = False
    """Whether a `Begin` tells when it was told its task; in sessions from before, the first message does."""


class BeginAction(SwarmAction, frozen=True, kw_only=True):
    """It was told its task, by the message before."""


class CompleteAction(SwarmAction, frozen=True, kw_only=True):
    """Its result is the last message before."""


class FailAction(SwarmAction, frozen=True, kw_only=True):
    error: str
    attempt: int
    retry: float | None = None
    """Seconds until it is tried again; without, it has failed for good."""


class CancelAction(SwarmAction, frozen=True, kw_only=True):
    """It is not needed any more."""


class SplitAction(SwarmAction, frozen=True, kw_only=True):
    """An agent has split its task; or, of the swarm itself, a branch was made."""

    parts: tuple[str, ...] = ()
    name: str | None = None


class JoinAction(SwarmAction, frozen=True, kw_only=True):
    """The results of its parts are on its branch."""

    agents: tuple[str, ...]


class ForkAction(SwarmAction, frozen=True, kw_only=True):
    """A session was forked off."""

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
_ACTION_NAMES = {deed: action for action, deed in ACTIONS.items()}

T = TypeVar("T")


def build_record_body(record: SwarmRecord) -> Custom:
    return Custom(custom_type=SWARM_RECORD_TYPE, data=msgspec.to_builtins(record))


def build_action_body(agent: str, action: SwarmAction) -> AgentAction:
    return AgentAction(action=_ACTION_NAMES[type(action)], agent=agent, data=msgspec.to_builtins(action))


def read_record(body: Custom) -> AnySwarmRecord | None:
    return _convert(body.data, AnySwarmRecord)


def read_action(body: AgentAction) -> AnySwarmAction | None:
    deed = ACTIONS.get(body.action)
    return None if deed is None else _convert(body.data, deed)


def _convert(data: JsonObject | Any, kind: Any) -> Any:
    try:
        return msgspec.convert(data, kind, strict=True)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
        return None
