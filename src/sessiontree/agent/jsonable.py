"""Convert values from models, tools and handlers to JSON that an entry can hold.

No answer or tool result may be lost because a part of it cannot be encoded: that part becomes text.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from sessiontree.core.entries import Body, JsonObject
from sessiontree.core.messages import is_list, is_object
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.format.codec import LINE_LIMIT, encode_body, write_value
from sessiontree.format.nesting import is_deep

B = TypeVar("B", bound=Body)

MAX_MESSAGE_BYTES = LINE_LIMIT - (1 << 16)
"""The largest message, in bytes. Its line also needs space for the other fields of the entry."""


def make_jsonable(value: Any) -> Any:
    """Return `value` as JSON types. Unknown objects become strings, and so does a value that is nested too deeply."""
    if value is None:
        return None
    try:
        converted = msgspec.to_builtins(value, enc_hook=str, str_keys=True)
    except Exception:  # noqa: BLE001 - the value may be of any type, or contain itself
        return _stringify(value)
    return _limit_depth(converted)


def make_message_jsonable(message: JsonObject) -> JsonObject:
    """Return `message` with parts that are nested too deeply as text."""
    if not is_deep({"message": message}):
        return message
    content = message.get("content")
    converted = {key: _limit_depth(value) for key, value in message.items()}
    if is_list(content):
        converted["content"] = [
            {key: _limit_depth(value) for key, value in block.items()} if is_object(block) else _limit_depth(block)
            for block in content
        ]
    return converted


def find_write_problem(message: JsonObject, limit: float = MAX_MESSAGE_BYTES) -> str | None:
    """Return why a message cannot be written; `None` if it can."""
    try:
        size = len(write_value(message))
    except (SessionTreeError, TypeError, ValueError, RecursionError) as error:
        return str(error)
    return None if size <= limit else f"its {size} bytes exceed the {limit} bytes that an entry can hold"


def copy_writable(body: B) -> B:
    """Return a copy of an entry body, to be written later. Raises `InvalidOperation` if it cannot be written."""
    problem = find_write_problem(encode_body(body))
    if problem is not None:
        raise InvalidOperation(f"the entry cannot be written: {problem}")
    return copy.deepcopy(body)


def _limit_depth(value: Any) -> Any:
    # Four levels around a block: entry, message, content, block.
    return _stringify(value) if is_deep([[[[value]]]]) else value


def _stringify(value: Any) -> str:
    for convert in (lambda: msgspec.json.encode(value).decode(), lambda: str(value)):
        with suppress(Exception):
            return convert()
    return "(cannot be converted to text)"
