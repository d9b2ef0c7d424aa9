"""JSON schemas of tools: inline references, and check a value against a schema.

It covers the keywords that tools use and ignores all others: the tool itself checks its arguments too.
"""

from __future__ import annotations

from typing import Any

from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import is_list, is_object

JSON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def inline_references(schema: Any, components: JsonObject, within: tuple[str, ...] = ()) -> Any:
    """Return `schema` with its references replaced by their targets. Raises `ValueError` for a recursive schema."""
    if is_list(schema):
        return [inline_references(item, components, within) for item in schema]
    if not is_object(schema):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in within:
            raise ValueError(f"{name} refers to itself")
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**inline_references(components[name], components, (*within, name)), **rest}
    return {key: inline_references(value, components, within) for key, value in schema.items()}


def find_mismatch(value: Any, schema: JsonObject, where: str = "") -> str | None:
    """Return the first problem of `value` with its location; `None` if it matches the schema."""
    at = f"{where}: " if where else ""
    choices = schema.get("anyOf") or schema.get("oneOf")
    if is_list(choices):
        problems = [find_mismatch(value, choice, where) for choice in choices if is_object(choice)]
        if problems and None not in problems:
            return problems[0]
    kinds = schema.get("type")
    wanted = [kinds] if isinstance(kinds, str) else [kind for kind in kinds or () if isinstance(kind, str)]
    if wanted and not any(_is_kind(value, kind) for kind in wanted):
        return f"{at}expected {' or '.join(wanted)}, got {_get_kind(value)}"
    allowed = schema.get("enum")
    if is_list(allowed) and value not in allowed:
        return f"{at}expected one of {', '.join(map(repr, allowed))}, got {value!r}"
    if is_object(value):
        return _find_object_mismatch(value, schema, where)
    if is_list(value) and is_object(schema.get("items")):
        found = (find_mismatch(item, schema["items"], f"{where}[{index}]") for index, item in enumerate(value))
        return next((problem for problem in found if problem is not None), None)
    return None


def _find_object_mismatch(value: JsonObject, schema: JsonObject, where: str) -> str | None:
    properties = schema.get("properties")
    known: JsonObject = properties if is_object(properties) else {}
    at = f"{where}: " if where else ""
    required = schema.get("required")
    for name in required if is_list(required) else ():
        if name not in value:
            return f"{at}{name!r} is missing"
    for name, item in value.items():
        if is_object(known.get(name)):
            problem = find_mismatch(item, known[name], f"{where}.{name}" if where else name)
            if problem is not None:
                return problem
        elif name not in known and schema.get("additionalProperties") is False:
            return f"{at}unknown field {name!r}; fields: {', '.join(known)}"
    return None


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, JSON_TYPES.get(kind, (object,)))


def _get_kind(value: Any) -> str:
    return next((kind for kind in JSON_TYPES if _is_kind(value, kind)), type(value).__name__)
