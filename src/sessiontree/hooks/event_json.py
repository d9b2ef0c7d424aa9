"""Events as JSON, for programs that follow an agent.

An event is an object with its name as `type` and its fields in camel case. Entries have the same form as in the session
file. Events that ask handlers are not included.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sessiontree.core.entries import Entry, JsonObject
from sessiontree.core.messages import ToolCall
from sessiontree.format.codec import read_object
from sessiontree.hooks.events import EVENT_NAMES, Event


def encode_event(event: Event) -> JsonObject | None:
    """Return an event in wire form; `None` for an event that asks handlers."""
    if event.answer is not None:
        return None
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return {
        "type": EVENT_NAMES[type(event)],
        **{_camelize(name): _encode_value(value) for name, value in fields.items()},
    }


def _camelize(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _encode_value(value: Any) -> Any:
    match value:
        case Entry():
            return read_object(value.raw)
        case ToolCall():
            return value._asdict()
        case tuple():
            return [_encode_value(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return msgspec.to_builtins(value, enc_hook=str)
