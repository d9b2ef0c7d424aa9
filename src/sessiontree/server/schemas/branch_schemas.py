"""Requests and responses about branches: creating, moving, merging and comparing them, with their files."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from sessiontree.core.entries import JsonObject
from sessiontree.server.schemas.field_types import (
    Amount,
    BranchName,
    Count,
    Id,
    Metric,
    ModelName,
    NextCursor,
    NonBlankText,
    Place,
    RequestModel,
    ResponseModel,
    SessionId,
    Text,
    Timestamp,
)


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
    files_only: bool = False
    """Only of an undo: it reverts a restore that moved no conversation, so the conversation stays."""
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
