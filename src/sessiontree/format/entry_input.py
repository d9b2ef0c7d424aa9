"""Entry input: validates entries that users pass in as JSON.

An entry of a known type must have all required fields. Otherwise it would be read back as empty.
"""

from __future__ import annotations

import msgspec

from sessiontree.core.entries import Body, JsonObject, Message, ModelChange, Opaque
from sessiontree.core.messages import coerce_string, get_answered_call
from sessiontree.format.codec import WIRE, find_unknown_fields, parse_body


class IncompleteEntry(ValueError):
    """A required field is missing; the message completes "it needs"."""


def parse_entry(wire: JsonObject) -> tuple[Body, JsonObject]:
    """Return the body of an entry and the extra fields of its line. Raises `IncompleteEntry`."""
    kind = coerce_string(wire.get("type"))
    if not kind or kind == "session":  # that would be a header
        raise IncompleteEntry("a type")
    known, fields = WIRE.get(kind, (Opaque, {}))
    needed = {field.name for field in msgspec.structs.fields(known) if field.required}
    for name, field in fields.items():
        value = wire.get(field.wire)
        if value is None and not field.optional and field.wire in wire:
            continue  # null is a valid value there
        if (name in needed or not field.optional) and field.read(value) == field.read(None):
            raise IncompleteEntry(field.wire)
    body = parse_body(wire)
    if isinstance(body, Message):
        check_message(body.message)
    elif isinstance(body, ModelChange) and body.model is None:
        raise IncompleteEntry("modelId")
    return body, find_unknown_fields(wire)


def check_message(message: JsonObject) -> None:
    """Raise `IncompleteEntry` for a message without content."""
    role = coerce_string(message.get("role"))
    if not role:
        raise IncompleteEntry("a role")
    if role in ("user", "assistant", "toolResult") and not isinstance(message.get("content"), str | list):
        raise IncompleteEntry("content: text or a list of blocks")
    if get_answered_call(message) == "":
        raise IncompleteEntry("the toolCallId that it answers")
