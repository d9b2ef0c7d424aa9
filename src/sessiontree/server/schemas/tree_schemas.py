"""Requests and responses about entries: the tree, a path, the context of the model, and appending."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from sessiontree.core.entries import JsonObject
from sessiontree.server.schemas.field_types import (
    Amount,
    BranchName,
    Count,
    EntryType,
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
    files: Count = 0
    """The number of files that a call changed, for its result."""


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
