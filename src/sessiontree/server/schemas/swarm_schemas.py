"""Requests and responses about swarms and experiments."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from sessiontree.config import ThinkingLevel
from sessiontree.core.entries import JsonObject
from sessiontree.server.schemas.field_types import (
    Amount,
    BranchName,
    Count,
    Folder,
    Id,
    ModelName,
    NextCursor,
    Place,
    RequestModel,
    ResponseModel,
    SessionId,
    Text,
    Timestamp,
)
from sessiontree.swarm.records import AgentState, SwarmState
from sessiontree.swarm.strategies import STRATEGIES


class BudgetRequest(RequestModel, frozen=True, kw_only=True):
    """The limits of a budget."""

    cost: Annotated[float, Meta(examples=[0.5], gt=0)] | None = None
    tokens: Annotated[int, Meta(examples=[100_000], gt=0, le=1 << 53)] | None = None
    seconds: Annotated[float, Meta(examples=[600], gt=0)] | None = None


class SwarmAgentRequest(RequestModel, frozen=True, kw_only=True):
    """The options of one agent; by default those of the swarm."""

    name: BranchName | None = None
    task: Text | None = None
    model: ModelName | None = None
    budget: BudgetRequest | None = None


ToolName: TypeAlias = Annotated[str, Meta(examples=["read"], min_length=1, max_length=200)]

AgentCount: TypeAlias = Annotated[int, Meta(examples=[3], ge=1, le=1000)]


class CreateSwarmRequest(RequestModel, frozen=True, kw_only=True):
    session: SessionId | None = None
    """The session of the swarm; by default a new one."""
    cwd: Folder | None = None
    """The folder of a new session."""
    name: BranchName
    task: Text
    agents: AgentCount | Annotated[list[SwarmAgentRequest], Meta(min_length=1, max_length=1000)] = 2
    max_agents: AgentCount | None = None
    strategy: Annotated[str, Meta(examples=["parallel"], extra_json_schema={"enum": [*STRATEGIES]})] = "parallel"
    parts: Annotated[list[Text], Meta(max_length=1000)] | None = None
    """The tasks of the mappers of `map-reduce`; by default a model plans them."""
    model: ModelName | None = None
    budget: BudgetRequest | None = None
    agent_budget: BudgetRequest | None = None
    at: Place = "HEAD"
    """The place where agents start."""
    retries: Annotated[int, Meta(examples=[3], ge=0, le=1000)] = 3
    """Retries of an agent after a temporary failure."""
    enable_branching: bool = True
    enable_event_streaming: bool = True
    tools: Annotated[list[ToolName], Meta(max_length=1000)] | None = None
    """The tools that agents may use; by default all."""
    durable: bool = False
    """Whether workers run the agents, and not this server."""
    start: bool = True


class CreateSwarmResponse(ResponseModel, frozen=True, kw_only=True):
    id: Id
    session_id: SessionId


class BudgetResponse(ResponseModel, frozen=True, kw_only=True):
    """The limits of a budget."""

    cost: Amount | None
    tokens: Count | None
    seconds: Amount | None


class AgentResponse(ResponseModel, frozen=True, kw_only=True):
    id: Annotated[str, Meta(examples=["worker-1"])]
    branch: BranchName
    role: Annotated[str, Meta(examples=["worker"])]
    task: Text
    status: AgentState
    model: ModelName | None
    attempts: Count
    cost: Amount
    tokens: Annotated[float, Meta(examples=[5400])]
    seconds: Amount
    text: Text | None
    error: Text | None
    denied: list[Annotated[str, Meta(examples=["bash: npm test"])]]
    """Denied tool calls."""


class AgentListResponse(ResponseModel, frozen=True, kw_only=True):
    agents: list[AgentResponse]
    next: NextCursor | None


class SwarmListItem(ResponseModel, frozen=True, kw_only=True):
    """A swarm in a listing."""

    id: Id
    name: BranchName
    task: Text
    """The start of the task."""
    strategy: Annotated[str, Meta(examples=["parallel"])]
    status: SwarmState
    progress: Amount
    branch: BranchName
    current_branch: BranchName
    branch_count: Count
    agent_count: Count
    cost: Amount
    tokens: Annotated[float, Meta(examples=[5400])]
    seconds: Amount
    wanted: Count
    """The number of agents that was set with `scale`."""
    budget: BudgetResponse | None
    agent_budget: BudgetResponse | None
    """The budget of each agent without its own."""
    budget_used: Amount | None
    reason: Text | None
    created_at: Timestamp
    session_id: SessionId
    here: bool
    """Whether this server is running it."""
    left: bool
    """Whether it was interrupted: it should run, but no process is running it. `resume` continues it here."""


class SwarmListResponse(ResponseModel, frozen=True, kw_only=True):
    swarms: list[SwarmListItem]
    next: NextCursor | None


class SwarmResponse(SwarmListItem, frozen=True, kw_only=True):
    """A swarm with its complete task."""

    result: Text | None
    agents: list[AgentResponse]


class SwarmEventsResponse(ResponseModel, frozen=True, kw_only=True):
    events: list[Annotated[JsonObject, Meta(examples=[{"seq": 1, "type": "swarm", "status": "running"}])]]
    last: Count
    """The number of the last event."""


class ScaleSwarmRequest(RequestModel, frozen=True, kw_only=True):
    agents: AgentCount


class SteerAgentRequest(RequestModel, frozen=True, kw_only=True):
    agent: Annotated[str, Meta(examples=["worker-1"], max_length=300)]
    text: Text


class BudgetChangeRequest(RequestModel, frozen=True, kw_only=True):
    """Changes of a budget; `null` removes a limit."""

    cost: Annotated[float, Meta(examples=[0.5], gt=0)] | UnsetType | None = UNSET
    tokens: Annotated[int, Meta(examples=[100_000], gt=0, le=1 << 53)] | UnsetType | None = UNSET
    seconds: Annotated[float, Meta(examples=[600], gt=0)] | UnsetType | None = UNSET


class ResumeSwarmRequest(RequestModel, frozen=True, kw_only=True):
    budget: BudgetChangeRequest | None = None
    agent_budget: BudgetChangeRequest | None = None
    durable: bool = False
    """Whether workers run the agents, and not this server."""


# Experiments


class ArmRequest(RequestModel, frozen=True, kw_only=True):
    """An arm of an experiment."""

    name: Annotated[str, Meta(examples=["short"], min_length=1, max_length=100)]
    prompt: Text | None = None
    model: ModelName | None = None
    thinking: ThinkingLevel | None = None
    system: Text | None = None


class ScorerRequest(RequestModel, frozen=True, kw_only=True):
    """A scorer of answers. Cost, tokens and time are always measured."""

    kind: Literal["cost", "tokens", "time", "exact", "matches", "judge"]
    name: Annotated[str, Meta(examples=["polite"], min_length=1, max_length=100)] | None = None
    text: Text | None = None
    """For `exact`: the expected answer."""
    pattern: Annotated[str, Meta(examples=["(?i)cache"], max_length=1000)] | None = None
    """For `matches`: a regular expression."""
    model: ModelName | None = None
    """For `judge`."""
    rubric: Text | None = None
    """For `judge`."""


class CreateExperimentRequest(RequestModel, frozen=True, kw_only=True):
    example: ClassVar[JsonObject] = {
        "arms": [{"name": "short", "prompt": "In one sentence?"}, {"name": "long", "prompt": "In detail?"}],
        "runs": 3,
        "metric": "cost",
    }

    at: Place = "HEAD"
    arms: Annotated[list[ArmRequest], Meta(min_length=2, max_length=50)]
    places: Annotated[list[Place], Meta(max_length=100)] = []
    """More places that runs start from, in turns."""
    runs: Annotated[int, Meta(ge=1, le=1000)] = 20
    """The most runs of each arm."""
    design: Literal["sequential", "fixed"] = "sequential"
    """`sequential` stops at a winner, and its result holds at any time. `fixed` decides after all runs."""
    failed_score: float | None = None
    """The value of the metric that a failed run counts with."""
    metric: Annotated[str, Meta(max_length=100)] = "cost"
    scorers: Annotated[list[ScorerRequest], Meta(max_length=20)] = []
    model: ModelName | None = None
    """The model of arms that name none."""
    budget: BudgetRequest | None = None
    name: BranchName | None = None


class CreateExperimentResponse(ResponseModel, frozen=True, kw_only=True):
    id: Id
    name: BranchName


class ExperimentListResponse(ResponseModel, frozen=True, kw_only=True):
    experiments: list[
        Annotated[JsonObject, Meta(examples=[{"name": "ab-1", "winner": None, "reason": "not enough data"}])]
    ]
    next: NextCursor | None


class ExperimentResponse(ResponseModel, frozen=True, kw_only=True):
    id: Id
    session_id: SessionId
    status: Literal["running", "done", "failed"]
    """An experiment that was stopped, or whose process died before all runs finished, is `failed` too."""
    done: Count
    total: Count
    result: Annotated[JsonObject, Meta(examples=[{"name": "ab-1", "winner": None, "reason": "not enough data"}])] | None
    error: Text | None
