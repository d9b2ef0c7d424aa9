"""Types of the fields of requests and responses, the base classes, and the schema of errors.

Field names are in camel case in JSON. Every field has an example, from which the examples of the OpenAPI document are
built.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from sessiontree.core.entries import JsonObject

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


class EmptyRequest(RequestModel, frozen=True, kw_only=True):
    """An empty object."""


class ErrorDetail(ResponseModel, frozen=True, kw_only=True):
    code: Annotated[str, Meta(examples=["not_found"])]
    message: Annotated[str, Meta(examples=["session '019a8b2c' not found"])]


class ErrorResponse(ResponseModel, frozen=True, kw_only=True):
    error: ErrorDetail
