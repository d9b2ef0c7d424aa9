"""The schema: shapes and routes as the OpenAPI document tells them, with examples put together from the fields'.

No route is named here: a route says what it takes and gives by `told`, and the document follows from the routes.
"""

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
    400: ("The request makes no sense as HTTP.", "'x' is no cursor of this list"),
    401: ("There is no token, or none that is known.", "a token is needed: Authorization: Bearer TOKEN"),
    403: (
        "The token does not let this be done, or the name or origin is not ours.",
        "the token does not have the scope 'write'",
    ),
    404: ("There is no such thing, or the token may not know of it.", "no session 'nothing'"),
    409: ("It cannot be done as things are.", "branch 'main' is the current one: switch to another first"),
    410: (
        "What was asked for goes on from a place that is gone: read it anew.",
        "the tree has changed since that page: read it anew",
    ),
    412: ("The session has changed since.", "the session has changed since: read it anew"),
    413: ("The request is too large.", "a request has 16,777,216 bytes at most"),
    415: ("The request is no JSON.", "the content type is application/json"),
    422: (
        "What the request says cannot be understood.",
        "unknown query parameter 'subtre'; this route takes format, branch, subtree, redact",
    ),
    429: ("Too many requests, or too many streams of events.", "too many requests in a short time"),
    502: ("The model failed.", "the provider answered with 500: overloaded"),
    503: ("The server is closing, or has too many connections.", "the server is closing"),
}
"""What is refused, by its status, with an example of the message."""


def describe_route(
    *responses: type[ResponseModel] | str,
    status: int = 200,
    request: type[RequestModel] | None = None,
    allow_empty: bool = False,
) -> dict[str, Any]:
    """For a route's decorator: what it answers with, a shape or texts of some media types, and what it takes.

    A request may be `empty` where all that it could say has a default.
    """
    content: JsonObject = {}
    for one in responses:
        if isinstance(one, str):
            content[one] = {"schema": {"type": "string"}}
        else:
            content[JSON] = {"schema": _build_reference(one), "example": build_example(one)}
    # A response without a media type of its own: all that there are, are told here.
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


def _build_reference(shape: type[Any]) -> JsonObject:
    return {"$ref": SCHEMA_REFERENCE.format(name=shape.__name__)}


def complete_document(document: JsonObject, shapes: Iterable[type[Any]]) -> JsonObject:
    """The document with the shapes, what may be refused everywhere, and how one says who one is."""
    _, components = msgspec.json.schema_components(list(shapes), ref_template=SCHEMA_REFERENCE)
    for shape in shapes:
        components[shape.__name__]["examples"] = [build_example(shape)]
    document.setdefault("components", {}).update(
        {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    )
    document["security"] = [{"token": []}]
    refusals = {str(status): _build_error_response(status, *told) for status, told in ERROR_RESPONSES.items()}
    for operations in document["paths"].values():
        for operation in operations.values():
            answers = operation["responses"]
            answers.update(refusals)
            for status, answer in answers.items():
                if status.startswith("2"):
                    answer.setdefault("description", "Done.")
    return document


def _build_error_response(status: int, text: str, message: str) -> JsonObject:
    example = ApiError(status, message).payload
    return {"description": text, "content": {JSON: {"schema": _build_reference(ErrorResponse), "example": example}}}


def build_example(shape: Any) -> Any:
    """An example of a shape, from the examples of its fields; what may be left out is left out."""
    return _build_example(inspect.type_info(shape))


def _build_example(kind: inspect.Type) -> Any:
    match kind:
        case inspect.Metadata(type=inner):
            said: list[Any] = cast("Any", kind).extra_json_schema.get("examples") or [_build_example(inner)]
            return said[0]
        case inspect.StructType(cls=shape) if hasattr(shape, "example"):
            return getattr(shape, "example")  # noqa: B009 - most have none
        case inspect.StructType(fields=fields):
            shown = [field for field in fields if field.required or _is_worth_showing(field)]
            return {
                field.encode_name: _build_example(field.type) if field.required else field.default for field in shown
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
    """Whether a field that may be left out is in the example: not where the answer has it only at times."""
    return field.default is not UNSET and field.default is not NODEFAULT and field.default is not None
