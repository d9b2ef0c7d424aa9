"""Python types as JSON schemas, and the check that turns JSON into a value of the type.

Types that msgspec knows are checked by msgspec: plain types, dataclasses, `TypedDict` and structs. A type that uses
pydantic, as a model or in `Annotated[int, Field(ge=1)]`, is checked by pydantic, which is imported when it is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import PurePath
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import is_list, is_object
from sessiontree.errors import InvalidOperation

PYDANTIC_PACKAGES = frozenset({"pydantic", "pydantic_core", "annotated_types"})


class InvalidValue(Exception):
    """JSON does not have the expected type. The message contains the position and the reason."""


class ValueCheck(NamedTuple):
    """The JSON schema of a type, and the function that converts JSON to it."""

    schema: JsonObject
    """Without references: not every provider supports them."""
    parse: Callable[[Any], Any]
    """Return the value. Raises `InvalidValue`."""


def build_check(kind: Any, purpose: str) -> ValueCheck:
    """Return the check of a type. Raises `InvalidOperation` if it has no JSON schema; `purpose` starts the message."""
    try:
        return _build_pydantic_check(kind) if uses_pydantic(kind) else _build_msgspec_check(kind)
    except (TypeError, ValueError, NameError, RuntimeError) as error:
        raise InvalidOperation(f"{purpose}: {_join_lines(str(error))}") from error


def get_type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def uses_pydantic(kind: Any) -> bool:
    """Return whether a type is or contains a type or a constraint of pydantic."""
    return _uses_pydantic(kind, set())


def _uses_pydantic(kind: Any, seen: set[int]) -> bool:
    if id(kind) in seen:
        return False
    seen.add(id(kind))
    if isinstance(kind, type) and hasattr(kind, "__pydantic_core_schema__"):
        return True
    inner: list[Any] = list(get_args(kind))
    if get_origin(kind) is Annotated and any(map(is_pydantic_object, inner[1:])):
        return True
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, Struct)):
        inner += get_type_hints(kind, include_extras=True).values()
    return any(_uses_pydantic(part, seen) for part in inner)


def is_pydantic_object(value: Any) -> bool:
    """Return whether a value, such as a constraint or a default, comes from pydantic."""
    return type(value).__module__.partition(".")[0] in PYDANTIC_PACKAGES


# msgspec


def _build_msgspec_check(kind: Any) -> ValueCheck:
    (schema,), components = msgspec.json.schema_components([kind], schema_hook=_build_path_schema)

    def parse(value: Any) -> Any:
        try:
            return msgspec.convert(value, kind, strict=False, dec_hook=_decode_path)
        except msgspec.ValidationError as error:
            raise InvalidValue(str(error)) from error

    return ValueCheck(_inline_references(schema, components), parse)


def _build_path_schema(kind: type) -> JsonObject:
    if not issubclass(kind, PurePath):
        raise TypeError(f"{kind.__name__} has no JSON schema")
    return {"type": "string"}


def _decode_path(kind: type, given: Any) -> PurePath:
    _build_path_schema(kind)
    return kind(given)


# pydantic


def _build_pydantic_check(kind: Any) -> ValueCheck:
    from pydantic import TypeAdapter, ValidationError
    from pydantic.json_schema import GenerateJsonSchema

    class UntitledJsonSchema(GenerateJsonSchema):
        """Leaves out the titles of fields, which only repeat their names."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    schema = adapter.json_schema(schema_generator=UntitledJsonSchema)
    components = schema.pop("$defs", {})

    def parse(value: Any) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            problems = (_format_problem(problem["loc"], problem["msg"]) for problem in error.errors())
            raise InvalidValue("; ".join(problems)) from error

    return ValueCheck(_inline_references(schema, components), parse)


def _format_problem(location: tuple[int | str, ...], message: str) -> str:
    return f"{message} - at `{'.'.join(map(str, location))}`" if location else message


def build_pydantic_arguments(name: str, fields: list[tuple[Any, ...]]) -> type[Any]:
    """Return a dataclass with these fields that pydantic can check. Unknown fields are refused."""
    from pydantic import ConfigDict

    return dataclasses.make_dataclass(
        name, fields, kw_only=True, namespace={"__pydantic_config__": ConfigDict(extra="forbid")}
    )


def _inline_references(schema: Any, components: JsonObject, within: tuple[str, ...] = ()) -> Any:
    """Return `schema` with its references replaced by their targets. Raises `ValueError` for a recursive schema."""
    if is_list(schema):
        return [_inline_references(item, components, within) for item in schema]
    if not is_object(schema):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in within:
            raise ValueError(f"{name} refers to itself")
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**_inline_references(components[name], components, (*within, name)), **rest}
    return {key: _inline_references(value, components, within) for key, value in schema.items()}


def _join_lines(text: str) -> str:
    return " ".join(text.split())
