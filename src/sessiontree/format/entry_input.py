"""Entry input: validates entries that users pass in as JSON.

An entry of a known type must have all required fields. Otherwise it would be read back as empty.
"""

from __future__ import annotations

import msgspec

from sessiontree.core.entries import Body, JsonObject, Message, ModelChange, Opaque
from sessiontree.core.message_input import check_new_message
from sessiontree.core.messages import coerce_string
from sessiontree.core.normalize import check_body
from sessiontree.format.codec import WIRE, find_unknown_fields, parse_body


class IncompleteEntry(ValueError):
    """A required field is missing; the message completes "it needs"."""


def parse_entry(wire: JsonObject) -> tuple[Body, JsonObject]:
    """Return the body of an entry and the extra fields of its line.

    Raises `IncompleteEntry`, and `InvalidOperation` for a message that a model could not be sent.
    """
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
        check_new_message(body.message)
    else:
        check_body(body)
    if isinstance(body, ModelChange) and body.model is None:
        raise IncompleteEntry("modelId")
    return body, find_unknown_fields(wire)
