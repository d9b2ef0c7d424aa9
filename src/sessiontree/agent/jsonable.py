"""Plain values: what models, tools and handlers give, as an entry can hold it.

An answer was paid for and a tool has run, so nothing of them may be lost because a part cannot be written: that part
becomes text. Whether something is written, and where, is in `loop` and `record`.
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
"""The longest message, in bytes: the line that it stands in says where and when, too."""


def make_jsonable(value: Any) -> Any:
    """`value` as JSON can hold it; what it cannot hold becomes text, or all of it where it is nested too deep."""
    if value is None:
        return None
    try:
        made = msgspec.to_builtins(value, enc_hook=str, str_keys=True)
    except Exception:  # noqa: BLE001 - it may be anything, and hold itself
        return _stringify(value)
    return _limit_depth(made)


def make_message_jsonable(message: JsonObject) -> JsonObject:
    """`message` with what is nested too deep in it as text."""
    if not is_deep({"message": message}):
        return message
    content = message.get("content")
    made = {key: _limit_depth(value) for key, value in message.items()}
    if is_list(content):
        made["content"] = [
            {key: _limit_depth(value) for key, value in block.items()} if is_object(block) else _limit_depth(block)
            for block in content
        ]
    return made


def find_write_problem(message: JsonObject, limit: float = MAX_MESSAGE_BYTES) -> str | None:
    """Why a message cannot be written; `None` if it can."""
    try:
        size = len(write_value(message))
    except (SessionTreeError, TypeError, ValueError, RecursionError) as error:
        return str(error)
    return None if size <= limit else f"its {size} bytes are more than the {limit} that an entry can hold"


def copy_writable(body: B) -> B:
    """A copy of what is to be written later, so that nobody can change it meanwhile.

    Raises `InvalidOperation` for what cannot be written.
    """
    fault = find_write_problem(encode_body(body))
    if fault is not None:
        raise InvalidOperation(f"this cannot be written down later: {fault}")
    return copy.deepcopy(body)


def _limit_depth(value: Any) -> Any:
    # A block stands in a list, that in a message, and that in a line.
    return _stringify(value) if is_deep([[[[value]]]]) else value


def _stringify(value: Any) -> str:
    for spelled in (lambda: msgspec.json.encode(value).decode(), lambda: str(value)):
        with suppress(Exception):
            return spelled()
    return "(this cannot be written down)"
