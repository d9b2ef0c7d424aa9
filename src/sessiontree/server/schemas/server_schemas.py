"""Requests and responses about the server: health, the rights of a token, models, usage and the audit log."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from sessiontree.config import PermissionMode
from sessiontree.server.schemas.field_types import (
    Amount,
    Count,
    Folder,
    ModelName,
    Name,
    NextCursor,
    ResponseModel,
    SessionId,
    Timestamp,
)


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
