"""Requests and responses about runs of an agent: prompts, permission questions, steering and aborting."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from sessiontree.agent.permissions import Scope as PermissionScope
from sessiontree.agent.tool import ToolEffect
from sessiontree.config import PermissionMode
from sessiontree.core.entries import JsonObject
from sessiontree.server.schemas.field_types import (
    BranchName,
    ModelName,
    Object,
    Place,
    RequestModel,
    ResponseModel,
    Text,
    Timestamp,
)


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
