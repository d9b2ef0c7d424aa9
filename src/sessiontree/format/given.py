"""Given: entries that somebody hands in as JSON, to be appended.

Only whole ones are taken: one of a known type that lacks what such entries say would be read as saying nothing.
"""

from __future__ import annotations

import msgspec

from sessiontree.core.entries import Body, JsonObject, Message, ModelChange, Opaque
from sessiontree.core.messages import answered_call, string
from sessiontree.format.codec import WIRE, body_from_wire, unknown_fields


class Lacking(ValueError):
    """What was given lacks something; the words complete "it needs"."""


def given_entry(wire: JsonObject) -> tuple[Body, JsonObject]:
    """The body of an entry, and further fields of its line. Raises `Lacking`."""
    kind = string(wire.get("type"))
    if not kind or kind == "session":  # which is a header
        raise Lacking("a type")
    known, fields = WIRE.get(kind, (Opaque, {}))
    needed = {field.name for field in msgspec.structs.fields(known) if field.required}
    for name, field in fields.items():
        value = wire.get(field.wire)
        if value is None and not field.optional and field.wire in wire:
            continue  # null says something there
        if (name in needed or not field.optional) and field.read(value) == field.read(None):
            raise Lacking(field.wire)
    body = body_from_wire(wire)
    if isinstance(body, Message):
        check_message(body.message)
    elif isinstance(body, ModelChange) and body.model is None:
        raise Lacking("modelId")
    return body, unknown_fields(wire)


def check_message(message: JsonObject) -> None:
    """Raises `Lacking` for a message that says nothing."""
    said = string(message.get("role"))
    if not said:
        raise Lacking("a role")
    if said in ("user", "assistant", "toolResult") and not isinstance(message.get("content"), str | list):
        raise Lacking("content: a text, or a list of blocks")
    if answered_call(message) == "":
        raise Lacking("the toolCallId that it answers")
