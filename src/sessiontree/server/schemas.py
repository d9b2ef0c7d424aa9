"""The wire: what requests say and what they are answered, as frozen values.

The one table of the REST interface's shapes. Names are in camel case on the wire; every field carries an example, from
which the examples of the OpenAPI document are put together. How a shape comes to be filled is the routes' business.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

from sessiontree.agent.permissions import Scope as PermissionScope
from sessiontree.agent.tool import ToolEffect
from sessiontree.config import PermissionMode, ThinkingLevel
from sessiontree.core.entries import JsonObject
from sessiontree.swarm.status import AgentState, SwarmState
from sessiontree.swarm.strategies import STRATEGIES

Id: TypeAlias = Annotated[str, Meta(examples=["9f3c2a1b7d5e4f60"])]
SessionId: TypeAlias = Annotated[str, Meta(examples=["019a8b2c-6d1e-7f00-8a2b-3c4d5e6f7081"])]
Name: TypeAlias = Annotated[str, Meta(examples=["make it fast"])]
BranchName: TypeAlias = Annotated[str, Meta(examples=["cache"], min_length=1, max_length=200)]
Place: TypeAlias = Annotated[str, Meta(examples=["HEAD"], min_length=1, max_length=300)]
Folder: TypeAlias = Annotated[str, Meta(examples=["/home/ada/project"], max_length=4096)]
Timestamp: TypeAlias = Annotated[str, Meta(examples=["2026-03-01T09:30:00.000Z"])]
Text: TypeAlias = Annotated[str, Meta(examples=["How do I make this faster?"])]
NonBlankText: TypeAlias = Annotated[str, Meta(examples=["A cache makes it faster."], pattern=r"\S")]
"""A text that is not blank."""
Count: TypeAlias = Annotated[int, Meta(examples=[12], ge=0)]
Amount: TypeAlias = Annotated[float, Meta(examples=[0.0125])]
ModelName: TypeAlias = Annotated[str, Meta(examples=["openai:gpt-5.5"], max_length=200)]
EntryType: TypeAlias = Annotated[str, Meta(examples=["message"])]
Role: TypeAlias = Annotated[str, Meta(examples=["user"])]
NextCursor: TypeAlias = Annotated[str, Meta(examples=["12-9a0b1c2d.100"])]
Object: TypeAlias = Annotated[JsonObject, Meta(examples=[{"type": "thinking_level_change", "thinkingLevel": "high"}])]
Metric: TypeAlias = Literal["cost", "tokens", "entries", "time"]

DEFAULT_PAGE_SIZE = 200
"""Items of a page, where a request does not say."""
MAX_PAGE_SIZE = 2000


class ResponseModel(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is answered."""


class RequestModel(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a request says."""


# Errors and the server


class ErrorDetail(ResponseModel, frozen=True, kw_only=True):
    code: Annotated[str, Meta(examples=["not_found"])]
    message: Annotated[str, Meta(examples=["no session '019a8b2c'"])]


class ErrorResponse(ResponseModel, frozen=True, kw_only=True):
    error: ErrorDetail


class HealthResponse(ResponseModel, frozen=True, kw_only=True):
    status: Annotated[str, Meta(examples=["ok"])]
    version: Annotated[str, Meta(examples=["0.1.0"])]
    uptime: Annotated[float, Meta(examples=[12.5])]
    """Seconds since it started."""


class MeResponse(ResponseModel, frozen=True, kw_only=True):
    """What the token may do."""

    kind: Literal["program", "browser"]
    """A browser has signed in and can sign out."""
    scopes: list[Literal["read", "write", "run"]]
    projects: list[Folder] | None
    """`null` is all of them."""
    allow_run: bool
    """Whether this server runs agents."""
    permission_mode: PermissionMode
    """What agents may do unless a request says otherwise."""
    version: Annotated[str, Meta(examples=["0.1.0"])]


class ModelResponse(ResponseModel, frozen=True, kw_only=True):
    name: ModelName
    provider: Annotated[str, Meta(examples=["openai"])]
    ready: bool
    reason: Annotated[str, Meta(examples=["OPENAI_API_KEY is set"])]


class ModelListResponse(ResponseModel, frozen=True, kw_only=True):
    models: list[ModelResponse]
    default: ModelName | None


# Sessions


class SessionListItem(ResponseModel, frozen=True, kw_only=True):
    """A session in a listing."""

    id: SessionId
    name: Name | None
    cwd: Folder
    first_message: Text | None
    entries: Count
    branches: Count
    cost: Amount
    created: Timestamp
    modified: Timestamp
    parent_session: SessionId | None
    damaged: bool
    damage: Annotated[str, Meta(examples=["line 7 is no JSON"])] | None
    archived: bool


class SessionListResponse(ResponseModel, frozen=True, kw_only=True):
    sessions: list[SessionListItem]
    next: NextCursor | None


class SearchHitResponse(ResponseModel, frozen=True, kw_only=True):
    """An entry that a search found."""

    session: SessionId
    session_name: Name | None
    entry: Id
    branch: BranchName | None
    role: Role
    timestamp: Timestamp
    snippet: Text
    in_context: bool


class SearchResponse(ResponseModel, frozen=True, kw_only=True):
    hits: list[SearchHitResponse]
    next: NextCursor | None
    unread: Count
    """Sessions that could not be read."""


class CreateSessionRequest(RequestModel, frozen=True, kw_only=True):
    cwd: Folder | None = None
    """By default the folder that the server was started in, or the token's first project."""
    name: Annotated[str, Meta(examples=["make it fast"], max_length=500)] | None = None


class CreateSessionResponse(ResponseModel, frozen=True, kw_only=True):
    id: SessionId
    name: Name | None
    cwd: Folder


class SessionResponse(ResponseModel, frozen=True, kw_only=True):
    id: SessionId
    name: Name | None
    cwd: Folder
    branch: BranchName
    leaf: Id | None
    entries: Count
    branches: Count
    cost: Amount
    tokens: Annotated[float, Meta(examples=[5400])]
    models: list[ModelName]
    created: Timestamp
    modified: Timestamp
    parent_session: SessionId | None
    archived: bool
    read_only: Annotated[str, Meta(examples=["it was redacted when it was exported"])] | None
    """Why nothing can be written."""
    problems: list[Object]
    running: list[BranchName]
    """Branches with an agent at work in this server."""
    swarming: Annotated[dict[str, Id], Meta(examples=[{"review/worker-1": "9f3c2a1b7d5e4f60"}])]
    """Branches that agents of swarms have, at work anywhere, paused or to begin, and which swarm that is."""
    experimenting: Annotated[dict[str, Id], Meta(examples=[{"ab-1/a-1": "9f3c2a1b7d5e4f60"}])]
    """Branches on which a run of an experiment is at work, and which experiment that is."""


class RenameSessionRequest(RequestModel, frozen=True, kw_only=True):
    name: Annotated[str, Meta(examples=["make it fast"], max_length=500)] | None


class RenameSessionResponse(ResponseModel, frozen=True, kw_only=True):
    id: SessionId
    name: Name | None


class ArchiveSessionRequest(RequestModel, frozen=True, kw_only=True):
    archived: bool = True


class ArchiveSessionResponse(ResponseModel, frozen=True, kw_only=True):
    id: SessionId
    archived: bool


class ExportRequest(RequestModel, frozen=True, kw_only=True):
    format: Literal["html", "md", "jsonl", "json", "text"] = "html"
    branch: Annotated[str, Meta(min_length=1, max_length=300)] | None = None
    """A place; only the path to it is exported."""
    subtree: Annotated[str, Meta(min_length=1, max_length=300)] | None = None
    """An entry; it is exported with everything below it."""
    redact: bool = False


class ExportResponse(ResponseModel, frozen=True, kw_only=True):
    id: str
    state: Literal["queued", "running", "done", "failed"]
    file: str
    """What the file is called."""
    lines: int
    """Lines of the session."""
    redacted: int
    """Lines of which secrets were taken out so far."""
    written: int
    """Bytes of the file so far."""
    taken_out: dict[str, int] | None
    """What a redaction took out, when it is done."""
    lines_left_out: int
    """Lines that a redaction could not read."""
    error: str | None
    """Why there is no file."""


# Entries


class TreeRow(ResponseModel, frozen=True, kw_only=True):
    id: Id
    parent: Id | None
    """The nearest entry above that is shown."""
    type: EntryType
    role: Role | None
    label: Annotated[str, Meta(examples=["two ways"])] | None
    branch: BranchName | None
    """The branch it was written on, where its line says so."""
    depth: Count
    timestamp: Timestamp
    text: Text
    active: bool
    """On the way from the root to the current leaf."""


class TreePage(ResponseModel, frozen=True, kw_only=True):
    session_id: SessionId
    name: Name | None
    branch: BranchName
    leaf: Id | None
    total: Count
    """Rows on all pages."""
    entries: list[TreeRow]
    next: NextCursor | None


class EntryPage(ResponseModel, frozen=True, kw_only=True):
    entries: list[Object]
    next: NextCursor | None


class EntryResponse(ResponseModel, frozen=True, kw_only=True):
    entry: Object
    parent: Id | None
    children: list[Id]
    branch: BranchName | None
    label: Annotated[str, Meta(examples=["two ways"])] | None
    depth: Count


class ToolUse(ResponseModel, frozen=True, kw_only=True):
    name: Annotated[str, Meta(examples=["read"])]
    arguments: Any
    result: Text | None
    """`null` while it is not answered."""
    ok: bool | None


class PathRow(ResponseModel, frozen=True, kw_only=True, omit_defaults=True):
    id: Id
    parent: Id | None
    type: EntryType
    role: Role | None
    label: Annotated[str, Meta(examples=["two ways"])] | None
    branch: BranchName | None
    timestamp: Timestamp
    text: Text
    html: Annotated[str, Meta(examples=["<p>How do I make this faster?</p>\n"])] | UnsetType = UNSET
    """The text as clean HTML, where it was asked for; not of one that is very long."""
    thinking: Text | UnsetType = UNSET
    tools: list[ToolUse] | UnsetType = UNSET
    error: Text | UnsetType = UNSET
    failed: bool | UnsetType = UNSET
    """Of what a tool answered, or of a command: whether it went wrong."""
    images: Count | UnsetType = UNSET
    """How many pictures it holds, which are not in its text."""
    merge: bool | UnsetType = UNSET
    """Of a branch summary: whether it was made by a merge."""
    cost: Amount | UnsetType = UNSET
    tokens: Annotated[float, Meta(examples=[540])] | UnsetType = UNSET
    model: ModelName | UnsetType = UNSET
    usage: Object | UnsetType = UNSET


class PathPage(ResponseModel, frozen=True, kw_only=True):
    at: Id | None
    total: Count
    entries: list[PathRow]
    next: NextCursor | None
    previous: NextCursor | None


class ContextResponse(ResponseModel, frozen=True, kw_only=True, omit_defaults=True):
    """What the model sees from a place."""

    leaf: Id | None
    model: Object | None
    thinking_level: Annotated[str, Meta(examples=["off"])]
    messages: list[Object]
    tokens: Annotated[float, Meta(examples=[5400])]
    mode: Annotated[str, Meta(examples=["plan"])] | UnsetType = UNSET
    rules: list[str] | UnsetType = UNSET
    explanation: list[Object] | UnsetType = UNSET


class AppendEntryRequest(RequestModel, frozen=True, kw_only=True):
    """Either a role and a text, or a whole entry in the form of its line."""

    example: ClassVar[JsonObject] = {"role": "user", "text": "How do I make this faster?"}

    role: Literal["user", "assistant"] | None = None
    text: Text | None = None
    entry: Object | None = None
    branch: BranchName | None = None


class AppendEntryResponse(ResponseModel, frozen=True, kw_only=True):
    id: Id
    branch: BranchName
    leaf: Id | None


# Branches and moves


class BranchResponse(ResponseModel, frozen=True, kw_only=True):
    name: BranchName
    head: Id | None
    entry_count: Count
    created_at: Timestamp
    description: Annotated[str, Meta(examples=["keep results in memory"])] | None
    archived: bool


class BranchListResponse(ResponseModel, frozen=True, kw_only=True):
    branches: list[BranchResponse]
    current: BranchName
    next: NextCursor | None


class CreateBranchRequest(RequestModel, frozen=True, kw_only=True):
    name: BranchName
    description: Annotated[str, Meta(examples=["keep results in memory"], max_length=2000)] | None = None
    at: Place | None = None
    switch: bool = True


class CreateBranchResponse(ResponseModel, frozen=True, kw_only=True):
    entry_id: Id | None
    name: BranchName


class UpdateBranchRequest(RequestModel, frozen=True, kw_only=True):
    example: ClassVar[JsonObject] = {"archived": True}

    name: BranchName | None = None
    archived: bool | None = None


class SwitchBranchRequest(RequestModel, frozen=True, kw_only=True):
    branch: BranchName


class EmptyRequest(RequestModel, frozen=True, kw_only=True):
    """An empty object."""


class CurrentBranchResponse(ResponseModel, frozen=True, kw_only=True):
    current: BranchName
    leaf: Id | None


class UndoResponse(CurrentBranchResponse, frozen=True, kw_only=True):
    undone: Annotated[str, Meta(examples=["the merge of cache into main"])]
    """What was taken back, in words."""


class NavigateRequest(RequestModel, frozen=True, kw_only=True):
    to: Place
    summarize: bool = False
    """Have the model summarize what is left, which takes the scope `run`."""
    instructions: Text | None = None
    summary: NonBlankText | None = None
    """The summary in one's own words."""
    branch: BranchName | None = None
    """The branch that moves; the current one by default."""


class NavigateResponse(ResponseModel, frozen=True, kw_only=True):
    leaf: Id | None
    text: Text | None
    """For the editor, where a message of the user was chosen."""
    summary_entry: Id | None
    cancelled: bool


class LabelRequest(RequestModel, frozen=True, kw_only=True):
    entry: Place
    label: Annotated[str, Meta(examples=["two ways"], max_length=500)] | None


class LabelResponse(ResponseModel, frozen=True, kw_only=True):
    id: Id


class ForkRequest(RequestModel, frozen=True, kw_only=True):
    at: Place = "HEAD"
    name: Annotated[str, Meta(examples=["another try"], max_length=500)] | None = None
    tree: bool = False
    """The whole tree instead of one path."""


class ForkResponse(ResponseModel, frozen=True, kw_only=True):
    id: SessionId


class MergeRequest(RequestModel, frozen=True, kw_only=True):
    source: BranchName = field(name="from")
    into: BranchName | None = None
    summary: NonBlankText | None = None
    """In one's own words; otherwise a model makes it, which takes the scope `run`."""
    instructions: Text | None = None


class MergeResponse(ResponseModel, frozen=True, kw_only=True):
    id: Id | None
    branch: BranchName
    leaf: Id | None
    cancelled: bool


class PromoteRequest(RequestModel, frozen=True, kw_only=True):
    branch: BranchName
    into: BranchName | None = None
    summary: NonBlankText | None = None
    instructions: Text | None = None


class PromoteResponse(ResponseModel, frozen=True, kw_only=True):
    leaf: Id | None
    archived: list[BranchName]
    cancelled: bool


class CherryPickRequest(RequestModel, frozen=True, kw_only=True):
    entries: Annotated[list[Place], Meta(min_length=1, max_length=1000)]
    onto: BranchName | None = None


class CherryPickResponse(ResponseModel, frozen=True, kw_only=True):
    ids: list[Id]
    leaf: Id | None
    cancelled: bool


class CompareRequest(RequestModel, frozen=True, kw_only=True):
    branches: Annotated[list[BranchName], Meta(min_length=2, max_length=100)]
    metric: Metric = "cost"


class BranchStatsResponse(ResponseModel, frozen=True, kw_only=True):
    branch_id: BranchName
    name: BranchName
    leaf: Id | None
    entry_count: Count
    message_count: Count
    tool_calls: Count
    errors: Count
    total_tokens: Annotated[float, Meta(examples=[5400])]
    total_cost: Amount
    duration_ms: Count
    measured: list[Literal["cost", "tokens"]]
    models: list[ModelName]
    files: list[Annotated[str, Meta(examples=["src/app.py"])]]
    last_activity: Timestamp | None


class BranchDifferenceResponse(ResponseModel, frozen=True, kw_only=True):
    metric: Metric
    branch_a: BranchName
    branch_b: BranchName
    diff: Amount
    percent_diff: Amount | None


class CompareResponse(ResponseModel, frozen=True, kw_only=True):
    branches: list[BranchStatsResponse]
    common_ancestor: Id | None
    metric: Metric
    winner: BranchName | None
    reason: Annotated[str, Meta(examples=["lowest cost"])]
    differences: list[BranchDifferenceResponse]


class DivergenceResponse(ResponseModel, frozen=True, kw_only=True):
    a: Id | None
    b: Id | None


class DiffSideResponse(ResponseModel, frozen=True, kw_only=True):
    place: Place
    leaf: Id | None
    entries: list[Id]
    tools: list[Annotated[str, Meta(examples=["read"])]]
    files: list[Annotated[str, Meta(examples=["src/app.py"])]]
    total_cost: Amount
    total_tokens: Annotated[float, Meta(examples=[5400])]


class DiffResponse(ResponseModel, frozen=True, kw_only=True):
    common_ancestor: Id | None
    first_divergence: DivergenceResponse
    a: DiffSideResponse
    b: DiffSideResponse


# Runs


class PromptRequest(RequestModel, frozen=True, kw_only=True):
    text: Text
    branch: BranchName | None = None
    model: ModelName | None = None
    images: Annotated[list[Object], Meta(max_length=20)] = []
    """Blocks as a message holds them: `{type: "image", data, mimeType}`."""
    permission_mode: PermissionMode | None = None
    """What the agent may do; questions about the rest are events. By default the server's, and nobody is asked."""


class PromptResponse(ResponseModel, frozen=True, kw_only=True):
    run: Annotated[str, Meta(examples=["7d5e4f60"])]
    branch: BranchName


class PermissionQuestionResponse(ResponseModel, frozen=True, kw_only=True):
    """A question about a tool call that a run waits for."""

    id: Annotated[str, Meta(examples=["1f2e3d4c"])]
    branch: BranchName
    run: Annotated[str, Meta(examples=["7d5e4f60"])]
    tool: Annotated[str, Meta(examples=["bash"])]
    does: ToolEffect
    title: Annotated[str, Meta(examples=["bash: npm test"])]
    detail: Annotated[str, Meta(examples=["npm test"])]
    """All that the call says, up to a length."""
    cut: bool
    """Whether there is more: the session has all of it."""
    why: Annotated[str, Meta(examples=["it can change anything"])]
    rule: Annotated[str, Meta(examples=["bash:npm test"])] | None
    """What an answer for the session or for always allows."""
    scopes: list[PermissionScope]
    """The answers that it takes."""
    expires: Timestamp


class PermissionQuestionListResponse(ResponseModel, frozen=True, kw_only=True):
    questions: list[PermissionQuestionResponse]


class PermissionAnswerRequest(RequestModel, frozen=True, kw_only=True):
    answer: PermissionScope
    reason: Annotated[str, Meta(examples=["Use make instead."], max_length=10_000)] | None = None
    """With `no`: what the model is told."""


class SteerRequest(RequestModel, frozen=True, kw_only=True):
    text: Text
    branch: BranchName | None = None


class AbortRequest(RequestModel, frozen=True, kw_only=True):
    branch: BranchName | None = None


class RunBranchResponse(ResponseModel, frozen=True, kw_only=True):
    branch: BranchName


# Swarms


class BudgetRequest(RequestModel, frozen=True, kw_only=True):
    """What may be spent."""

    cost: Annotated[float, Meta(examples=[0.5], gt=0)] | None = None
    tokens: Annotated[int, Meta(examples=[100_000], gt=0, le=1 << 53)] | None = None
    seconds: Annotated[float, Meta(examples=[600], gt=0)] | None = None


class SwarmAgentRequest(RequestModel, frozen=True, kw_only=True):
    """What is said of one agent; by default it is as the others."""

    name: BranchName | None = None
    task: Text | None = None
    model: ModelName | None = None
    budget: BudgetRequest | None = None


AgentCount: TypeAlias = Annotated[int, Meta(examples=[3], ge=1, le=1000)]


class CreateSwarmRequest(RequestModel, frozen=True, kw_only=True):
    session: SessionId | None = None
    """The session that they work in; by default a new one."""
    cwd: Folder | None = None
    """The folder of a new session."""
    name: BranchName
    task: Text
    agents: AgentCount | Annotated[list[SwarmAgentRequest], Meta(min_length=1, max_length=1000)] = 2
    max_agents: AgentCount | None = None
    strategy: Annotated[str, Meta(examples=["parallel"], extra_json_schema={"enum": [*STRATEGIES]})] = "parallel"
    parts: Annotated[list[Text], Meta(max_length=1000)] | None = None
    """What the mappers of `map-reduce` get; by default a model plans it."""
    model: ModelName | None = None
    budget: BudgetRequest | None = None
    agent_budget: BudgetRequest | None = None
    at: Place = "HEAD"
    """Where agents begin."""
    retries: Annotated[int, Meta(examples=[3], ge=0, le=1000)] = 3
    """How often an agent tries again after a failure that may pass."""
    enable_branching: bool = True
    enable_event_streaming: bool = True
    start: bool = True


class CreateSwarmResponse(ResponseModel, frozen=True, kw_only=True):
    id: Id
    session_id: SessionId


class BudgetResponse(ResponseModel, frozen=True, kw_only=True):
    """What may be spent."""

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
    """Tool calls that permissions did not allow."""


class AgentListResponse(ResponseModel, frozen=True, kw_only=True):
    agents: list[AgentResponse]
    next: NextCursor | None


class SwarmListItem(ResponseModel, frozen=True, kw_only=True):
    """A swarm in a listing."""

    id: Id
    name: BranchName
    task: Text
    """Its beginning."""
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
    """How many agents are to work, as `scale` takes it."""
    budget: BudgetResponse | None
    agent_budget: BudgetResponse | None
    """That of each agent that has none of its own."""
    budget_used: Amount | None
    reason: Text | None
    created_at: Timestamp
    session_id: SessionId
    here: bool
    """Whether this server works on it."""
    left: bool
    """Whether it is to run and no process works on it: `resume` has this server go on."""


class SwarmListResponse(ResponseModel, frozen=True, kw_only=True):
    swarms: list[SwarmListItem]
    next: NextCursor | None


class SwarmResponse(SwarmListItem, frozen=True, kw_only=True):
    """A swarm, with its whole task."""

    result: Text | None
    agents: list[AgentResponse]


class SwarmEventsResponse(ResponseModel, frozen=True, kw_only=True):
    events: list[Annotated[JsonObject, Meta(examples=[{"seq": 1, "type": "swarm", "status": "running"}])]]
    last: Count
    """The number of the last event that there is."""


class ScaleSwarmRequest(RequestModel, frozen=True, kw_only=True):
    agents: AgentCount


class SteerAgentRequest(RequestModel, frozen=True, kw_only=True):
    agent: Annotated[str, Meta(examples=["worker-1"], max_length=300)]
    text: Text


class BudgetChangeRequest(RequestModel, frozen=True, kw_only=True):
    """Limits that are others from now on; `null` takes one away."""

    cost: Annotated[float, Meta(examples=[0.5], gt=0)] | UnsetType | None = UNSET
    tokens: Annotated[int, Meta(examples=[100_000], gt=0, le=1 << 53)] | UnsetType | None = UNSET
    seconds: Annotated[float, Meta(examples=[600], gt=0)] | UnsetType | None = UNSET


class ResumeSwarmRequest(RequestModel, frozen=True, kw_only=True):
    budget: BudgetChangeRequest | None = None
    agent_budget: BudgetChangeRequest | None = None


# Experiments


class ArmRequest(RequestModel, frozen=True, kw_only=True):
    """One way to go on."""

    name: Annotated[str, Meta(examples=["short"], min_length=1, max_length=100)]
    prompt: Text | None = None
    model: ModelName | None = None
    thinking: ThinkingLevel | None = None
    system: Text | None = None


class ScorerRequest(RequestModel, frozen=True, kw_only=True):
    """How answers are scored. What they cost, how many tokens and how long they took, is always known."""

    kind: Literal["cost", "tokens", "time", "exact", "matches", "judge"]
    name: Annotated[str, Meta(examples=["polite"], min_length=1, max_length=100)] | None = None
    text: Text | None = None
    """Of `exact`: the answer."""
    pattern: Annotated[str, Meta(examples=["(?i)cache"], max_length=1000)] | None = None
    """Of `matches`: a regular expression."""
    model: ModelName | None = None
    """Of `judge`."""
    rubric: Text | None = None
    """Of `judge`."""


class CreateExperimentRequest(RequestModel, frozen=True, kw_only=True):
    example: ClassVar[JsonObject] = {
        "arms": [{"name": "short", "prompt": "In one sentence?"}, {"name": "long", "prompt": "In detail?"}],
        "runs": 3,
        "metric": "cost",
    }

    at: Place = "HEAD"
    arms: Annotated[list[ArmRequest], Meta(min_length=2, max_length=50)]
    runs: Annotated[int, Meta(ge=1, le=1000)] = 5
    metric: Annotated[str, Meta(max_length=100)] = "cost"
    scorers: Annotated[list[ScorerRequest], Meta(max_length=20)] = []
    model: ModelName | None = None
    """Of arms that name none."""
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
    """`failed` is also one that was stopped, or whose process died, before all its runs were made."""
    done: Count
    total: Count
    result: Annotated[JsonObject, Meta(examples=[{"name": "ab-1", "winner": None, "reason": "not enough data"}])] | None
    error: Text | None
