"""The OpenAPI document: descriptions of routes, schemas and errors, with examples built from the examples of fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec
from fastapi.responses import Response
from msgspec import NODEFAULT, UNSET, inspect

from sessiontree.core.entries import JsonObject
from sessiontree.server.http_errors import ApiError
from sessiontree.server.schemas import ErrorResponse, RequestModel, ResponseModel

JSON = "application/json"
EVENTS = "text/event-stream"
SCHEMA_REFERENCE = "#/components/schemas/{name}"

ERROR_RESPONSES = {
    400: ("The request is malformed.", "invalid cursor 'x'"),
    401: ("The token is missing or unknown.", "token required; send Authorization: Bearer TOKEN"),
    403: (
        "The token does not allow this, or the host name or origin is unknown.",
        "the token does not have the scope 'write'",
    ),
    404: ("It does not exist, or the token may not see it.", "session 'nothing' not found"),
    409: ("The current state does not allow this.", "branch 'main' is the current one: switch to another first"),
    410: (
        "The position of the cursor or stream no longer exists: load the data again.",
        "the tree has changed since that page; load it again",
    ),
    412: ("The session has changed since the position in If-Match.", "the session has changed; load it again"),
    413: ("The request is too large.", "the request is too large; the limit is 16,777,216 bytes"),
    415: ("The request is not JSON.", "the content type must be application/json"),
    422: (
        "The request is invalid.",
        "unknown query parameter 'subtre'; this route takes format, branch, subtree, redact",
    ),
    429: ("Too many requests or event streams.", "too many requests; try again later"),
    502: ("The model failed.", "the provider answered with 500: overloaded"),
    503: ("The server is shutting down or has too many connections.", "the server is shutting down"),
}
"""Error statuses with a description and an example message."""


def describe_route(
    *responses: type[ResponseModel] | str,
    status: int = 200,
    request: type[RequestModel] | None = None,
    allow_empty: bool = False,
) -> dict[str, Any]:
    """Return keyword arguments for the decorator of a route: its responses and its request body.

    A response is a schema, or the media type of a text. With `allow_empty`, the request body may be empty.
    """
    content: JsonObject = {}
    for response in responses:
        if isinstance(response, str):
            content[response] = {"schema": {"type": "string"}}
        else:
            content[JSON] = {"schema": _build_reference(response), "example": build_example(response)}
    # The response class has no media type, because all media types are listed here.
    route: dict[str, Any] = {
        "status_code": status,
        "response_class": Response,
        "responses": {status: {"content": content}},
    }
    if request is not None:
        body = {
            "content": {JSON: {"schema": _build_reference(request), "example": build_example(request)}},
            "required": not allow_empty,
        }
        route["openapi_extra"] = {"requestBody": body}
    return route


def _build_reference(schema: type[Any]) -> JsonObject:
    return {"$ref": SCHEMA_REFERENCE.format(name=schema.__name__)}


def complete_document(document: JsonObject, schemas: Iterable[type[Any]]) -> JsonObject:
    """Add the schemas, the error responses and the authentication to a document, and return it."""
    _, components = msgspec.json.schema_components(list(schemas), ref_template=SCHEMA_REFERENCE)
    for schema in schemas:
        components[schema.__name__]["examples"] = [build_example(schema)]
    document.setdefault("components", {}).update(
        {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    )
    document["security"] = [{"token": []}]
    errors = {str(status): _build_error_response(status, *parts) for status, parts in ERROR_RESPONSES.items()}
    for operations in document["paths"].values():
        for operation in operations.values():
            responses = operation["responses"]
            responses.update(errors)
            for status, response in responses.items():
                if status.startswith("2"):
                    response.setdefault("description", "Done.")
    return document


def _build_error_response(status: int, description: str, message: str) -> JsonObject:
    example = ApiError(status, message).payload
    return {
        "description": description,
        "content": {JSON: {"schema": _build_reference(ErrorResponse), "example": example}},
    }


def build_example(schema: Any) -> Any:
    """Return an example of a schema, built from the examples of its required fields."""
    return _build_example(inspect.type_info(schema))


def _build_example(kind: inspect.Type) -> Any:
    match kind:
        case inspect.Metadata(type=inner):
            examples: list[Any] = cast("Any", kind).extra_json_schema.get("examples") or [_build_example(inner)]
            return examples[0]
        case inspect.StructType(cls=schema) if hasattr(schema, "example"):
            return getattr(schema, "example")  # noqa: B009 - most have none
        case inspect.StructType(fields=fields):
            visible = [field for field in fields if field.required or _is_worth_showing(field)]
            return {
                field.encode_name: _build_example(field.type) if field.required else field.default for field in visible
            }
        case inspect.ListType(item_type=item):
            return [_build_example(item)] * max(1, kind.min_length or 0)
        case inspect.UnionType(types=types):
            return _build_example(next((one for one in types if isinstance(one, inspect.Metadata)), types[0]))
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.BoolType():
            return False
        case inspect.FloatType() | inspect.IntType():
            return 1
        case inspect.StrType():
            return "text"
        case inspect.DictType():
            return {}
        case _:
            return None


def _is_worth_showing(field: inspect.Field) -> bool:
    """Return whether an optional field belongs into the example: only if it has a default value."""
    return field.default is not UNSET and field.default is not NODEFAULT and field.default is not None
