"""Requests and responses about sessions: listings, search, names, exports and share links."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from sessiontree.server.schemas.field_types import (
    Amount,
    BranchName,
    Count,
    Folder,
    Id,
    ModelName,
    Name,
    NextCursor,
    Object,
    RequestModel,
    ResponseModel,
    Role,
    SessionId,
    Text,
    Timestamp,
)


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
