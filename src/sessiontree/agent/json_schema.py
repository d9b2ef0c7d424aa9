"""JSON schemas of tools: put whole, and what a value has to do with one.

The part of JSON schema that tools use. Keywords that are not known here say nothing: the tool itself has the
last word on its arguments.
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
    """`schema` with what it refers to in its place. Raises `ValueError` for one that holds itself."""
    if is_list(schema):
        return [inline_references(item, components, within) for item in schema]
    if not is_object(schema):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in within:
            raise ValueError(f"{name} holds itself")
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**inline_references(components[name], components, (*within, name)), **rest}
    return {key: inline_references(value, components, within) for key, value in schema.items()}


def find_mismatch(value: Any, schema: JsonObject, where: str = "") -> str | None:
    """What is wrong with `value`, in words that name the place; `None` when nothing is."""
    at = f"{where}: " if where else ""
    choices = schema.get("anyOf") or schema.get("oneOf")
    if is_list(choices):
        wrongs = [find_mismatch(value, choice, where) for choice in choices if is_object(choice)]
        if wrongs and None not in wrongs:
            return wrongs[0]
    kinds = schema.get("type")
    wanted = [kinds] if isinstance(kinds, str) else [kind for kind in kinds or () if isinstance(kind, str)]
    if wanted and not any(_is_kind(value, kind) for kind in wanted):
        return f"{at}it must be {' or '.join(wanted)}, not {_get_kind(value)}"
    allowed = schema.get("enum")
    if is_list(allowed) and value not in allowed:
        return f"{at}it must be one of {', '.join(map(repr, allowed))}, not {value!r}"
    if is_object(value):
        return _find_object_mismatch(value, schema, where)
    if is_list(value) and is_object(schema.get("items")):
        found = (find_mismatch(item, schema["items"], f"{where}[{index}]") for index, item in enumerate(value))
        return next((wrong for wrong in found if wrong is not None), None)
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
            wrong = find_mismatch(item, known[name], f"{where}.{name}" if where else name)
            if wrong is not None:
                return wrong
        elif name not in known and schema.get("additionalProperties") is False:
            return f"{at}there is no {name!r}; there are {', '.join(known)}"
    return None


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, JSON_TYPES.get(kind, (object,)))


def _get_kind(value: Any) -> str:
    return next((kind for kind in JSON_TYPES if _is_kind(value, kind)), type(value).__name__)
