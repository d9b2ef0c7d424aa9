"""Facts: what stands in a session about a swarm, as typed values. Writing them is in `record`, replaying in `account`.

What concerns the swarm as a whole is in `custom` entries `sessiontree.swarm` on its own branch, each a `Fact`. What an
agent did is in `agent_action` entries on the agent's branch, whose `data` are the structs at the end. Session files are
untrusted: what cannot be understood is no fact.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from sessiontree.agent.system import SystemPart
from sessiontree.core.entries import AgentAction, Custom, JsonObject
from sessiontree.swarm.budget import Budget, Kind, Level
from sessiontree.swarm.status import AgentSpec

SWARM = "sessiontree.swarm"
"""The `custom_type` of facts."""


class Fact(Struct, frozen=True, kw_only=True, tag_field="event", rename="camel", omit_defaults=True):
    swarm: str
    """The swarm's id."""


class Created(Fact, frozen=True, kw_only=True, tag="created"):
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


class Started(Fact, frozen=True, kw_only=True, tag="started"):
    """Somebody works on it, from the beginning or after the one before has died."""


class Paused(Fact, frozen=True, kw_only=True, tag="paused"):
    reason: str | None = None


class Resumed(Fact, frozen=True, kw_only=True, tag="resumed"):
    budget: Budget | None = None
    """The budget from now on, where it is another."""
    agent_budget: Budget | None = None


class Scaled(Fact, frozen=True, kw_only=True, tag="scaled"):
    agents: int


class Expected(Fact, frozen=True, kw_only=True, tag="expected"):
    """How many agents there will be in all, as far as the strategy knows."""

    agents: int


class Reached(Fact, frozen=True, kw_only=True, tag="budget"):
    """A level of a budget was reached."""

    scope: str
    """`swarm`, or an agent's id."""
    kind: Kind
    level: Level
    used: float
    limit: float


class Untold(Fact, frozen=True, kw_only=True, tag="untold"):
    """A model did not tell what it took of what is limited."""

    agent: str
    kind: Kind
    model: str


class Switched(Fact, frozen=True, kw_only=True, tag="switched"):
    """Agents begin at the head of another branch from now on."""

    branch: str


class Completed(Fact, frozen=True, kw_only=True, tag="completed"):
    result: str | None = None
    reason: str | None = None


class Failed(Fact, frozen=True, kw_only=True, tag="failed"):
    reason: str


class Cancelled(Fact, frozen=True, kw_only=True, tag="cancelled"):
    reason: str | None = None


class Destroyed(Fact, frozen=True, kw_only=True, tag="destroyed"):
    pass


AnyFact: TypeAlias = (
    Created
    | Started
    | Paused
    | Resumed
    | Scaled
    | Expected
    | Reached
    | Untold
    | Switched
    | Completed
    | Failed
    | Cancelled
    | Destroyed
)

# What the data of agent actions say.


class Deed(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    swarm: str


class Spawn(Deed, frozen=True, kw_only=True):
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


class Begin(Deed, frozen=True, kw_only=True):
    """It was told its task, by the message before."""


class Complete(Deed, frozen=True, kw_only=True):
    """Its result is the last message before."""


class Fail(Deed, frozen=True, kw_only=True):
    error: str
    attempt: int
    retry: float | None = None
    """Seconds until it is tried again; without, it has failed for good."""


class Cancel(Deed, frozen=True, kw_only=True):
    """It is not needed any more."""


class Split(Deed, frozen=True, kw_only=True):
    """An agent has split its task; or, of the swarm itself, a branch was made."""

    parts: tuple[str, ...] = ()
    name: str | None = None


class Join(Deed, frozen=True, kw_only=True):
    """The results of its parts are on its branch."""

    agents: tuple[str, ...]


class Fork(Deed, frozen=True, kw_only=True):
    """A session was forked off."""

    session: str
    at: str | None = None


AnyDeed: TypeAlias = Spawn | Begin | Complete | Fail | Cancel | Split | Join | Fork

ACTIONS: dict[str, type[Deed]] = {
    "spawn": Spawn,
    "begin": Begin,
    "complete": Complete,
    "fail": Fail,
    "cancel": Cancel,
    "branch": Split,
    "join": Join,
    "fork": Fork,
}
_NAMES = {deed: action for action, deed in ACTIONS.items()}

T = TypeVar("T")


def fact_body(fact: Fact) -> Custom:
    return Custom(custom_type=SWARM, data=msgspec.to_builtins(fact))


def deed_body(agent: str, deed: Deed) -> AgentAction:
    return AgentAction(action=_NAMES[type(deed)], agent=agent, data=msgspec.to_builtins(deed))


def read_fact(body: Custom) -> AnyFact | None:
    return _converted(body.data, AnyFact)


def read_deed(body: AgentAction) -> AnyDeed | None:
    deed = ACTIONS.get(body.action)
    return None if deed is None else _converted(body.data, deed)


def _converted(data: JsonObject | Any, kind: Any) -> Any:
    try:
        return msgspec.convert(data, kind, strict=True)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
        return None
