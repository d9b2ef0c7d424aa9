"""The requests and responses of the REST interface.

Field names are in camel case in JSON. Every field has an example, from which the examples of the OpenAPI document are
built.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

from sessiontree.agent.permissions import Scope as PermissionScope
from sessiontree.agent.tool import ToolEffect
from sessiontree.config import PermissionMode, ThinkingLevel
from sessiontree.core.entries import JsonObject
from sessiontree.swarm.records import AgentState, SwarmState
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
"""A text with at least one visible character."""
Count: TypeAlias = Annotated[int, Meta(examples=[12], ge=0)]
Amount: TypeAlias = Annotated[float, Meta(examples=[0.0125])]
ModelName: TypeAlias = Annotated[str, Meta(examples=["openai:gpt-5.5"], max_length=200)]
EntryType: TypeAlias = Annotated[str, Meta(examples=["message"])]
Role: TypeAlias = Annotated[str, Meta(examples=["user"])]
NextCursor: TypeAlias = Annotated[str, Meta(examples=["12-9a0b1c2d.100"])]
Object: TypeAlias = Annotated[JsonObject, Meta(examples=[{"type": "thinking_level_change", "thinkingLevel": "high"}])]
Metric: TypeAlias = Literal["cost", "tokens", "entries", "time"]

DEFAULT_PAGE_SIZE = 200
"""Items of a page, if the request does not set a limit."""
MAX_PAGE_SIZE = 2000
MAX_DIFF_CHARACTERS = 200_000
"""Characters of a diff of files that a response contains."""


class ResponseModel(Struct, frozen=True, kw_only=True, rename="camel"):
    """The base class of responses."""


class RequestModel(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The base class of request bodies."""


# Errors and the server


class ErrorDetail(ResponseModel, frozen=True, kw_only=True):
    code: Annotated[str, Meta(examples=["not_found"])]
    message: Annotated[str, Meta(examples=["session '019a8b2c' not found"])]


class ErrorResponse(ResponseModel, frozen=True, kw_only=True):
    error: ErrorDetail


class HealthResponse(ResponseModel, frozen=True, kw_only=True):
    status: Annotated[str, Meta(examples=["ok"])]
    version: Annotated[str, Meta(examples=["0.1.0"])]
    uptime: Annotated[float, Meta(examples=[12.5])]
    """Seconds since the server started."""


class MeResponse(ResponseModel, frozen=True, kw_only=True):
    """The rights of the token."""

    kind: Literal["program", "browser"]
    """`browser` for a cookie, which can be signed out."""
    scopes: list[Literal["read", "write", "run"]]
    projects: list[Folder] | None
    """`null` means all projects."""
    allow_run: bool
    """Whether this server runs agents."""
    permission_mode: PermissionMode
    """The default permission mode of agents."""
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
    damage: Annotated[str, Meta(examples=["line 7 is not JSON"])] | None
    archived: bool
    source: Annotated[str, Meta(examples=["claude"])] | None
    """The program whose session this is; `null` for your own. Those of other programs are read-only."""


class SessionListResponse(ResponseModel, frozen=True, kw_only=True):
    sessions: list[SessionListItem]
    next: NextCursor | None


class SearchHitResponse(ResponseModel, frozen=True, kw_only=True):
    """A search result."""

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
    """The number of sessions that could not be read."""


class CreateSessionRequest(RequestModel, frozen=True, kw_only=True):
    cwd: Folder | None = None
    """By default the first project of the token, or the folder that the server was started in."""
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
    cost: Amount | None
    """Null, like `tokens`, `models` and `problems`, if it is not known yet and the request does not wait for it."""
    tokens: Annotated[float, Meta(examples=[5400])] | None
    models: list[ModelName] | None
    created: Timestamp
    modified: Timestamp
    parent_session: SessionId | None
    archived: bool
    origin: Annotated[str, Meta(examples=["claude 2.1.326"])] | None
    """The program that recorded the session, and its version."""
    read_only: Annotated[str, Meta(examples=["the session was redacted on export"])] | None
    """Why the session is read-only."""
    problems: list[Object] | None
    running: list[BranchName]
    """Branches on which this server is running an agent."""
    swarming: Annotated[dict[str, Id], Meta(examples=[{"review/worker-1": "9f3c2a1b7d5e4f60"}])]
    """Branches of unfinished swarm agents, running or paused in any process, and the id of the swarm."""
    experimenting: Annotated[dict[str, Id], Meta(examples=[{"ab-1/a-1": "9f3c2a1b7d5e4f60"}])]
    """Branches on which an experiment is running in any process, and the id of the experiment."""
    undoable: Annotated[str, Meta(examples=["the merge of cache into main"])] | None = None
    """What an undo would revert."""


class MarkdownRequest(RequestModel, frozen=True, kw_only=True):
    text: Annotated[str, Meta(examples=["**fast**"], max_length=100_000)]


class MarkdownResponse(ResponseModel, frozen=True, kw_only=True):
    html: Annotated[str, Meta(examples=["<p><strong>fast</strong></p>\n"])]


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
    """Export only the path to this place."""
    subtree: Annotated[str, Meta(min_length=1, max_length=300)] | None = None
    """Export only this entry and its descendants."""
    redact: bool = False


class ExportResponse(ResponseModel, frozen=True, kw_only=True):
    id: str
    state: Literal["queued", "running", "done", "failed"]
    file: str
    """The file name."""
    lines: int
    """Lines of the session read so far."""
    redacted: int
    """Lines redacted so far."""
    written: int
    """Bytes written so far."""
    taken_out: dict[str, int] | None
    """How often each kind of secret was redacted, when the export is done."""
    lines_left_out: int
    """Lines that were left out because they could not be redacted."""
    error: str | None
    """Why the export failed."""


# Entries


class TreeRow(ResponseModel, frozen=True, kw_only=True):
    id: Id
    parent: Id | None
    """The nearest visible ancestor."""
    type: EntryType
    role: Role | None
    label: Annotated[str, Meta(examples=["two ways"])] | None
    branch: BranchName | None
    """The branch that the entry was written on, if the entry records it."""
    depth: Count
    timestamp: Timestamp
    text: Text
    active: bool
    """Whether the entry is on the path to the current leaf."""
    failed: bool = False
    """Whether an answer, a tool call or a command failed or was stopped."""


class TreePage(ResponseModel, frozen=True, kw_only=True):
    session_id: SessionId
    name: Name | None
    branch: BranchName
    leaf: Id | None
    total: Count | None
    """The number of rows on all pages; `null` for the rows around a place."""
    entries: list[TreeRow]
    has_earlier: bool
    """Whether the tree has rows before these."""
    has_later: bool
    """Whether the tree has rows after these."""
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
    newest_leaf: Id
    """The leaf that is reached by following the newest child of each entry."""


class ToolUse(ResponseModel, frozen=True, kw_only=True):
    name: Annotated[str, Meta(examples=["read"])]
    arguments: Any
    result: Text | None
    """`null` until the tool has answered."""
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
    """The text as sanitized HTML, if it was requested and is not too long."""
    thinking: Text | UnsetType = UNSET
    tools: list[ToolUse] | UnsetType = UNSET
    error: Text | UnsetType = UNSET
    failed: bool | UnsetType = UNSET
    """Whether an answer, a tool call or a command failed or was stopped."""
    tool: Annotated[str, Meta(examples=["read"])] | UnsetType = UNSET
    """The tool of a tool result."""
    author: Annotated[str, Meta(examples=["anna"])] | UnsetType = UNSET
    """The name of the token that sent the message."""
    versions: list[Id] | UnsetType = UNSET
    """This message and the others of its role at the same place, oldest first, if there are several."""
    images: Count | UnsetType = UNSET
    """The number of images, which are not part of the text."""
    merge: bool | UnsetType = UNSET
    """Whether a branch summary comes from a merge."""
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
    """What a model sees at a place."""

    leaf: Id | None
    model: Object | None
    thinking_level: Annotated[str, Meta(examples=["off"])]
    messages: list[Object]
    tokens: Annotated[float, Meta(examples=[5400])]
    mode: Annotated[str, Meta(examples=["plan"])] | UnsetType = UNSET
    rules: list[str] | UnsetType = UNSET
    explanation: list[Object] | UnsetType = UNSET


class AppendEntryRequest(RequestModel, frozen=True, kw_only=True):
    """Either a role and a text, or a complete entry."""

    example: ClassVar[JsonObject] = {"role": "user", "text": "How do I make this faster?"}

    role: Literal["user", "assistant"] | None = None
    text: Text | None = None
    entry: Object | None = None
    branch: BranchName | None = None


class AppendEntryResponse(ResponseModel, frozen=True, kw_only=True):
    id: Id
    branch: BranchName
    leaf: Id | None


# Overview and audit log


class UsageResponse(ResponseModel, frozen=True, kw_only=True):
    """Answers of models."""

    answers: Count
    failures: Count
    tokens: Annotated[float, Meta(examples=[5400])]
    cost: Amount
    median_seconds: Annotated[float, Meta(examples=[4.2])] | None
    """The median time that an answer took; `null` if no time is known."""


class DayUsageResponse(UsageResponse, frozen=True, kw_only=True):
    day: Annotated[str, Meta(examples=["2026-01-05"])]


class ModelUsageResponse(UsageResponse, frozen=True, kw_only=True):
    model: Annotated[str, Meta(examples=["anthropic:claude-sonnet-4-5"])]


class SessionUsageResponse(UsageResponse, frozen=True, kw_only=True):
    id: SessionId
    name: Name | None


class OverviewResponse(ResponseModel, frozen=True, kw_only=True):
    total: UsageResponse
    days: list[DayUsageResponse]
    """Days with answers, oldest first."""
    models: list[ModelUsageResponse]
    sessions: list[SessionUsageResponse]
    """The most expensive sessions."""
    session_count: Count
    all_models: list[str]
    """The models of all projects and days, for a filter."""
    all_projects: list[Folder]
    unread: Count
    """Sessions that could not be read."""


class AuditEventResponse(ResponseModel, frozen=True, kw_only=True):
    """Something that a token did."""

    time: Timestamp
    token: Annotated[str, Meta(examples=["1f2e3d4c"])]
    name: Annotated[str, Meta(examples=["anna"])]
    kind: Annotated[str, Meta(examples=["browser"])]
    action: Annotated[str, Meta(examples=["POST /api/sessions/019a8b2c/prompt"])]
    session: SessionId | None
    status: Count


class AuditPage(ResponseModel, frozen=True, kw_only=True):
    events: list[AuditEventResponse]
    next: NextCursor | None


# Share links


class CreateShareRequest(RequestModel, frozen=True, kw_only=True):
    branch: BranchName | None = None
    """Show only this branch; by default the whole session."""
    redact: bool = True
    seconds: Annotated[int, Meta(ge=60, le=90 * 24 * 3600, examples=[7 * 24 * 3600])] = 7 * 24 * 3600
    """How long the link is valid."""


class ShareResponse(ResponseModel, frozen=True, kw_only=True, omit_defaults=True):
    """A link that shows a session or a branch."""

    id: Annotated[str, Meta(examples=["1f2e3d4c"])]
    branch: BranchName | None
    redact: bool
    created: Timestamp
    expires: Timestamp
    path: Annotated[str, Meta(examples=["/share/st_…"])] | UnsetType = UNSET
    """The path of the link, when it is created. It is not stored."""


class ShareListResponse(ResponseModel, frozen=True, kw_only=True):
    shares: list[ShareResponse]


# Branches and moves


class BranchResponse(ResponseModel, frozen=True, kw_only=True):
    name: BranchName
    head: Id | None
    entry_count: Count
    created_at: Timestamp
    description: Annotated[str, Meta(examples=["keep results in memory"])] | None
    archived: bool


class UnnamedLeafResponse(ResponseModel, frozen=True, kw_only=True):
    """A leaf without a branch."""

    leaf: Id
    suggested_name: BranchName
    entry_count: Count
    text: Text
    """The beginning of its last entry."""


class BranchListResponse(ResponseModel, frozen=True, kw_only=True):
    branches: list[BranchResponse]
    current: BranchName
    next: NextCursor | None
    unnamed: list[UnnamedLeafResponse] = []
    """The newest leaves without a branch, such as those that an edit left, newest first."""


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


class FilesRequest(RequestModel, frozen=True, kw_only=True):
    """What a move does to files."""

    files: Literal["conversation", "both", "files"] = "conversation"
    """What moves: the conversation, the files too, or only the files. Files need the scope `run`."""
    take: list[Text] = []
    """The conflicts to restore as well, by their path."""
    preview: bool = False
    """Return which files would be restored, and change nothing."""
    diff: bool = False
    """With `preview`: return the changes on disk as a unified diff too."""

    @property
    def needs_files(self) -> bool:
        return self.files != "conversation" or self.preview


class SwitchRequest(FilesRequest, frozen=True, kw_only=True):
    branch: BranchName


class UndoRequest(FilesRequest, frozen=True, kw_only=True):
    """Undo the last move."""


class EmptyRequest(RequestModel, frozen=True, kw_only=True):
    """An empty object."""


class FileMove(ResponseModel, frozen=True, kw_only=True):
    path: str
    action: Literal["add", "change", "delete", "keep"]
    """`keep` is a conflict: somebody else changed the file since."""
    reason: str | None = None
    can_take: bool = False
    """Whether this conflict can be restored by name."""


class FileMoves(ResponseModel, frozen=True, kw_only=True):
    paths: list[FileMove]
    missing: str | None = None
    """Why the files of the place are not known."""
    others: list[str] = []
    """Other sessions and branches that work in the folder."""
    diff: str | None = None


class FileDifference(ResponseModel, frozen=True, kw_only=True):
    path: str
    added: int | None
    """The number of added lines; `null` for a binary file."""
    deleted: int | None


class FilesDiffRequest(RequestModel, frozen=True, kw_only=True):
    a: Place
    b: Place


class FilesDiffResponse(ResponseModel, frozen=True, kw_only=True):
    paths: list[FileDifference]
    diff: str
    """A unified diff, cut off if it is very long."""
    missing: str | None
    """Why the files are not known."""


class MergedFiles(ResponseModel, frozen=True, kw_only=True):
    """What a merge did to the files of a folder."""

    folder: str
    written: list[str]
    deleted: list[str]
    conflicts: list[FileMove]
    """If there are any, no file was changed."""


class CurrentBranchResponse(ResponseModel, frozen=True, kw_only=True):
    current: BranchName
    leaf: Id | None


class SwitchResponse(CurrentBranchResponse, frozen=True, kw_only=True):
    files: FileMoves | None = None
    """The files that were restored, or that a preview lists."""


class UndoResponse(SwitchResponse, frozen=True, kw_only=True):
    undone: Annotated[str, Meta(examples=["the merge of cache into main"])]
    """A description of what was undone."""


class NavigateRequest(FilesRequest, frozen=True, kw_only=True):
    to: Place
    summarize: bool = False
    """Let a model summarize the abandoned entries; needs the scope `run`."""
    instructions: Text | None = None
    summary: NonBlankText | None = None
    """Use this summary instead of a model."""
    branch: BranchName | None = None
    """The branch to move; by default the current one."""


class NavigateResponse(ResponseModel, frozen=True, kw_only=True):
    leaf: Id | None
    text: Text | None
    """The text to edit, if the place was a user message."""
    summary_entry: Id | None
    cancelled: bool
    files: FileMoves | None = None
    """The files that were restored, or that a preview lists."""


class LabelRequest(RequestModel, frozen=True, kw_only=True):
    entry: Place
    label: Annotated[str, Meta(examples=["two ways"], max_length=500)] | None


class LabelResponse(ResponseModel, frozen=True, kw_only=True):
    id: Id


class ForkRequest(RequestModel, frozen=True, kw_only=True):
    at: Place = "HEAD"
    name: Annotated[str, Meta(examples=["another try"], max_length=500)] | None = None
    tree: bool = False
    """Copy the whole tree instead of one path."""


class ForkResponse(ResponseModel, frozen=True, kw_only=True):
    id: SessionId


class MergeRequest(RequestModel, frozen=True, kw_only=True):
    source: Place = field(name="from")
    """A branch, or any other place."""
    into: BranchName | None = None
    summary: NonBlankText | None = None
    """Use this summary; otherwise a model writes it, which needs the scope `run`."""
    instructions: Text | None = None


class MergeResponse(ResponseModel, frozen=True, kw_only=True):
    id: Id | None
    branch: BranchName
    leaf: Id | None
    cancelled: bool
    files: MergedFiles | None = None
    """The files of the private folder of the merged branch."""


class PromoteRequest(RequestModel, frozen=True, kw_only=True):
    branch: BranchName
    into: BranchName | None = None
    summary: NonBlankText | None = None
    instructions: Text | None = None


class PromoteResponse(ResponseModel, frozen=True, kw_only=True):
    leaf: Id | None
    archived: list[BranchName]
    cancelled: bool
    files: MergedFiles | None = None
    """The files of the private folder of the promoted branch."""


class CherryPickRequest(RequestModel, frozen=True, kw_only=True):
    entries: Annotated[list[Place], Meta(min_length=1, max_length=1000)]
    onto: BranchName | None = None


class CherryPickResponse(ResponseModel, frozen=True, kw_only=True):
    ids: list[Id]
    leaf: Id | None
    cancelled: bool


class CompareRequest(RequestModel, frozen=True, kw_only=True):
    branches: Annotated[list[Place], Meta(min_length=2, max_length=100)]
    """Branches, or any other places."""
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
    example: ClassVar[JsonObject] = {"text": "How do I make this faster?"}

    text: Text = ""
    """Without a text and images, the model answers the last message again."""
    at: Place | None = None
    """The entry to continue after: the branch moves there first. Entries after it stay in the tree."""
    branch: BranchName | None = None
    model: ModelName | None = None
    images: Annotated[list[Object], Meta(max_length=20)] = []
    """Image blocks as in a message: `{type: "image", data, mimeType}`."""
    permission_mode: PermissionMode | None = None
    """What the agent may do without asking; questions are sent as events. By default calls that need one are denied."""


class PromptResponse(ResponseModel, frozen=True, kw_only=True):
    run: Annotated[str, Meta(examples=["7d5e4f60"])]
    branch: BranchName


class PermissionQuestionResponse(ResponseModel, frozen=True, kw_only=True):
    """A permission question about a tool call."""

    id: Annotated[str, Meta(examples=["1f2e3d4c"])]
    branch: BranchName
    run: Annotated[str, Meta(examples=["7d5e4f60"])]
    tool: Annotated[str, Meta(examples=["bash"])]
    does: ToolEffect
    title: Annotated[str, Meta(examples=["bash: npm test"])]
    detail: Annotated[str, Meta(examples=["npm test"])]
    """The complete tool call, up to a maximum length."""
    cut: bool
    """Whether `detail` is truncated. The session contains all of it."""
    why: Annotated[str, Meta(examples=["it can change anything"])]
    rule: Annotated[str, Meta(examples=["bash:npm test"])] | None
    """The rule that an answer for the session or for always adds."""
    scopes: list[PermissionScope]
    """The accepted answers."""
    expires: Timestamp


class PermissionQuestionListResponse(ResponseModel, frozen=True, kw_only=True):
    questions: list[PermissionQuestionResponse]


class PermissionAnswerRequest(RequestModel, frozen=True, kw_only=True):
    answer: PermissionScope
    reason: Annotated[str, Meta(examples=["Use make instead."], max_length=10_000)] | None = None
    """The reason for `no`, which the model sees."""


class SteerRequest(RequestModel, frozen=True, kw_only=True):
    text: Text
    branch: BranchName | None = None


class AbortRequest(RequestModel, frozen=True, kw_only=True):
    branch: BranchName | None = None


class RunBranchResponse(ResponseModel, frozen=True, kw_only=True):
    branch: BranchName


# Swarms


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
