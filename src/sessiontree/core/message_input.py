"""Message input: checks every message before it is written, of people and programs alike.

A message that the model would never see, or see in part, is a mistake of the caller. It is converted to the wire form
if its meaning is certain, and refused with the right form otherwise. Files that already hold such messages open as
before; `find_unsent_blocks` finds the parts that a model does not get.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn, cast

import msgspec

from sessiontree.core.message_views import JsonView, MessagePreview, TokenUsage, is_list, is_object
from sessiontree.errors import InvalidOperation, format_names

ACCEPTED_BLOCKS: dict[str, frozenset[str]] = {
    "user": frozenset({"text", "image"}),
    "assistant": frozenset({"text", "thinking", "toolCall", "image"}),
    "toolResult": frozenset({"text", "image"}),
    "system": frozenset({"text"}),
    "developer": frozenset({"text"}),
    "custom": frozenset({"text", "image"}),
    "hookMessage": frozenset({"text", "image"}),
}
"""By role, the types of blocks that a message may have. All reach a model, but for an image that a model made."""

RECORDED_ROLES = frozenset({"bashExecution", "pythonExecution", "fileMention", "compactionSummary", "branchSummary"})
"""Roles without content blocks, which programs write for the user."""

_REQUIRED_TEXT = {"text": "text", "thinking": "thinking", "image": "data"}

USAGE_NAMES = {
    "prompt_tokens": "input",
    "completion_tokens": "output",
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cacheRead",
    "cache_creation_input_tokens": "cacheWrite",
    "cache_read": "cacheRead",
    "cache_write": "cacheWrite",
    "total_tokens": "totalTokens",
    "total": "totalTokens",
}
"""Names of other programs for the counts of a usage object."""

_IGNORED_USAGE = frozenset({"prompt_tokens_details", "completion_tokens_details", "server_tool_use", "service_tier"})
_COUNTS = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")
_OWN_USAGE = frozenset({*_COUNTS, "cost"})
MAX_BRACKETS = 200
"""Arguments of a tool call with more opening brackets stay text: they may be nested too deeply for a line."""
_DATA_URL = r"(?s)data:(image/[\w.+-]+);base64,(.*)"

USAGE_FORM = '{"input": 10, "output": 5, "cost": 0.01}'


def check_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return `message` if a model can be sent all of it, or its certain conversion. Raises `InvalidOperation`."""
    if message.__class__ is not dict and not is_object(message):  # callers may not check types
        raise InvalidOperation(f"a message must be a JSON object, not {_name_type(message)}; use st.user(…)")
    role: Any = message.get("role")
    accepted = ACCEPTED_BLOCKS.get(role) if role.__class__ is str or isinstance(role, str) else None
    if accepted is None:
        if isinstance(role, str) and role in RECORDED_ROLES:
            return message
        message, role, accepted = _convert_role(message)
    elif role == "assistant" and ("tool_calls" in message or "refusal" in message):
        message = _convert_tool_calls(message)
    content: Any = message.get("content")
    if content.__class__ is list:
        for block in content:
            if (
                block.__class__ is not dict
                or not _has_type(block, accepted)
                or not _is_whole(block)
                or block.get("arguments").__class__ is str
            ):
                message = {**message, "content": _convert_blocks(content, role, accepted)}
                break
    elif content is not None and not isinstance(content, str):  # without content it is sent as empty, as by peers
        message = {**message, "content": _convert_content(content, role, accepted)}
    if role == "toolResult" and not (message.get("toolCallId") and isinstance(message["toolCallId"], str)):
        raise InvalidOperation('a tool result needs the "toolCallId" that it answers; use st.tool_result(call, …)')
    usage: Any = message.get("usage")
    if usage is not None and role in ("assistant", "toolResult"):
        checked = check_usage(usage)
        if checked is not usage:
            message = {**message, "usage": checked}
    return message


def check_new_message(message: dict[str, Any]) -> dict[str, Any]:
    """Check a message as `check_message` does, and what only people get wrong: no content, negative usage."""
    checked = check_message(message)
    if checked.get("content") is None and checked.get("role") in ACCEPTED_BLOCKS:
        raise InvalidOperation(
            f"a message with the role {_show(checked['role'])} needs content: text or a list of blocks"
        )
    usage = checked.get("usage")
    if is_object(usage):
        _refuse_negative_counts(usage)
    return checked


def check_content(content: object, role: str = "user") -> object:
    """Return the content of a message that is not stored as a message, such as that of an extension."""
    return check_message({"role": role, "content": content})["content"]


def find_unsent_blocks(message: dict[str, Any]) -> list[str]:
    """Return the types of the blocks that are not sent to models, in order; at the end OpenAI's `tool_calls`."""
    role, content = message.get("role"), message.get("content")
    accepted = ACCEPTED_BLOCKS.get(role) if isinstance(role, str) else None
    if accepted is None:
        return []
    blocks = (
        [_name_block(block) for block in content if not _is_sent(block, accepted, role)] if is_list(content) else []
    )
    return [*blocks, "tool_calls"] if role == "assistant" and message.get("tool_calls") else blocks


def describe_unsent(message: dict[str, Any]) -> str | None:
    """Return which part of a stored message is not sent to models, as one sentence; `None` if all of it can be sent."""
    role = message.get("role")
    if not isinstance(role, str) or (role not in ACCEPTED_BLOCKS and role not in RECORDED_ROLES):
        return f"messages with the role {_show(role)} are not sent to models"
    if role == "assistant" and message.get("tool_calls"):
        return '"tool_calls" outside the content is not sent to models'
    blocks = [name for name in find_unsent_blocks(message) if role != "assistant" or name != "image"]
    return f"blocks of type {format_names(blocks)} are not sent to models" if blocks else None


def is_sent_whole(message: MessagePreview) -> bool:
    """Return whether `describe_unsent` finds nothing in a message, from its preview. `False` if that is not certain."""
    accepted = ACCEPTED_BLOCKS.get(message.role)
    if accepted is None:
        return message.role in RECORDED_ROLES
    if isinstance(message.content, str):
        return not message.tool_calls
    for block in message.content:
        if block.type not in accepted:
            return False
    return not message.tool_calls


def _is_sent(block: object, accepted: frozenset[str], role: object) -> bool:
    if not is_object(block) or not _has_type(block, accepted):
        return False
    return role != "assistant" or block["type"] != "image"


def _has_type(block: dict[str, Any], accepted: frozenset[str]) -> bool:
    kind = block.get("type")
    return isinstance(kind, str) and kind in accepted


def check_usage(usage: object) -> dict[str, Any]:
    """Return a usage object with our names for its counts. Raises `InvalidOperation`."""
    if isinstance(usage, TokenUsage):
        counts = dict(zip(_COUNTS, usage, strict=False))
        if not usage.total:  # of a value that was made by hand
            del counts["totalTokens"]
        usage = {**counts, "cost": usage.cost}
    if not is_object(usage):
        raise InvalidOperation(f"usage must be an object such as {USAGE_FORM}, not {_name_type(usage)}")
    if all(map(_OWN_USAGE.__contains__, usage)):
        _check_counts(usage)
        return usage
    converted: dict[str, Any] = {}
    for key, value in usage.items():
        name = USAGE_NAMES.get(key, key)
        if key == "tokens" or (name in converted and converted[name] != value) or (name != key and name in usage):
            raise InvalidOperation(f'usage has an ambiguous key "{key}"; the form is {USAGE_FORM}')
        converted[name] = value
    if not any(key in _OWN_USAGE for key in converted):
        raise InvalidOperation(f"usage has unknown keys: {', '.join(map(str, usage))}; the form is {USAGE_FORM}")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if is_object(details) else None
    if "prompt_tokens" in usage and isinstance(cached, int) and cached:  # OpenAI counts cached tokens as input
        converted["input"], converted["cacheRead"] = max(0, converted["input"] - cached), cached
    for key in _IGNORED_USAGE & usage.keys():
        del converted[key]
    _check_counts(converted)
    return converted


def _check_counts(usage: dict[str, Any]) -> None:
    for key in _COUNTS:
        if key in usage and not _is_count(usage[key]):
            raise InvalidOperation(f'usage has "{key}": {_show(usage[key])}, which is not a number; use {USAGE_FORM}')
    cost = usage.get("cost")
    for value in cost.values() if is_object(cost) else () if cost is None else (cost,):
        if not _is_count(value) and not is_object(value):
            raise InvalidOperation(f'usage has a "cost" of {_show(value)}, which is not a number of US dollars')


def _refuse_negative_counts(usage: dict[str, Any]) -> None:
    cost = usage.get("cost")
    costs: list[Any] = [*cost.values()] if is_object(cost) else [cost]
    for key, value in [*((key, usage.get(key)) for key in _COUNTS), *(("cost", value) for value in costs)]:
        if isinstance(value, int | float) and value < 0:
            raise InvalidOperation(f'usage has "{key}": {value}; use numbers from 0, as in {USAGE_FORM}')


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(block: dict[str, Any]) -> bool:
    """Return whether a block of a known type has the field that is sent."""
    key = _REQUIRED_TEXT.get(block["type"])
    if key is not None:
        return isinstance(block.get(key), str)
    return (
        isinstance(block.get("id"), str) and isinstance(block.get("name"), str) and block.get("arguments") is not None
    )


def _convert_role(message: dict[str, Any]) -> tuple[dict[str, Any], str, frozenset[str]]:
    role = message.get("role")
    if role == "tool":
        call = message.get("tool_call_id", message.get("toolCallId"))
        if not isinstance(call, str) or not call:
            raise InvalidOperation(
                'a message with the role "tool" needs the "tool_call_id" that it answers; use st.tool_result(call, …)'
            )
        rest = {key: value for key, value in message.items() if key not in ("role", "tool_call_id", "name")}
        name = message.get("name")
        converted = {"role": "toolResult", "toolCallId": call, **rest}
        if isinstance(name, str):
            converted.setdefault("toolName", name)
        return converted, "toolResult", ACCEPTED_BLOCKS["toolResult"]
    if role == "model" and "parts" in message:
        raise InvalidOperation("this message is in Gemini's form; convert it with st.from_gemini([…])")
    shown = "no role" if role is None else f"the unknown role {_show(role)}"
    raise InvalidOperation(f"a message has {shown}; roles: user, assistant, toolResult, system")


def _convert_tool_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Return an assistant message in OpenAI's form with its calls and its refusal as blocks."""
    calls, refusal = message.get("tool_calls"), message.get("refusal")
    content = message.get("content")
    blocks: list[Any] = list(content) if is_list(content) else [{"type": "text", "text": content}] if content else []
    if isinstance(refusal, str) and refusal:
        blocks.append({"type": "text", "text": refusal})
    for call in calls if is_list(calls) else ():
        blocks.append(_convert_function_call(call))
    if calls is not None and not is_list(calls):
        raise InvalidOperation(f'"tool_calls" must be a list, not {_name_type(calls)}')
    rest = {key: value for key, value in message.items() if key not in ("tool_calls", "refusal")}
    return {**rest, "content": blocks}


def _convert_function_call(call: object) -> dict[str, Any]:
    function = call.get("function") if is_object(call) else None
    if not is_object(call) or not is_object(function) or not isinstance(function.get("name"), str):
        raise InvalidOperation('an item of "tool_calls" is not a function call; use st.tool_call(id, name, arguments)')
    if not isinstance(call.get("id"), str):
        raise InvalidOperation(f'the call of {_show(function["name"])} in "tool_calls" has no "id"')
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _parse_arguments(arguments)
    if not is_object(arguments):
        raise InvalidOperation(f"the arguments of the call of {_show(function['name'])} are not a JSON object")
    return {"type": "toolCall", "id": call["id"], "name": function["name"], "arguments": arguments}


def _convert_content(content: object, role: str, accepted: frozenset[str]) -> Any:
    if isinstance(content, tuple):
        return _convert_blocks([*cast("tuple[Any, ...]", content)], role, accepted)
    if isinstance(content, JsonView) or is_object(content):
        return _convert_blocks([content], role, accepted)
    if is_list(content):  # a subclass of list, such as the result of a converter
        return _convert_blocks([*content], role, accepted)
    raise InvalidOperation(f"the content of a message must be text or a list of blocks, not {_name_type(content)}")


def _convert_blocks(content: list[Any], role: str, accepted: frozenset[str]) -> list[dict[str, Any]]:
    return [_convert_block(block, role, accepted) for block in content]


def _convert_block(block: object, role: str, accepted: frozenset[str]) -> dict[str, Any]:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if isinstance(block, JsonView):
        block = block.raw
    if not is_object(block):
        _refuse(f"a content block must be an object, not {_name_type(block)}", role)
    kind = block.get("type")
    if kind in ("input_text", "output_text") and not block.get("annotations"):
        kind, block = "text", {"type": "text", "text": block.get("text")}
    elif kind == "image_url" or kind == "input_image":
        kind, block = "image", _convert_image_url(block.get("image_url"), role)
    elif kind == "image" and is_object(source := block.get("source")):
        if source.get("type") != "base64":
            _refuse("an image must be stored with its data, not by address", role)
        block = {"type": "image", "data": source.get("data"), "mimeType": source.get("media_type")}
    elif kind == "tool_use" and role == "assistant":
        block = {"type": "toolCall", "id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")}
        kind = "toolCall"
    elif kind == "toolCall" and block.get("arguments", "") is None:
        block = {**block, "arguments": {}}
    elif kind == "tool_result":
        _refuse("a tool result must be a separate message; use st.tool_result(…) or st.from_anthropic([…])", role)
    if kind is None:
        _refuse("a content block has no type", role)
    if not isinstance(kind, str) or kind not in accepted:
        _refuse(f"blocks of type {_show(kind)} are not sent to models", role)
    if not _is_whole(block):
        _refuse(f"a block of type {_show(kind)} lacks its {_list_fields(str(kind))}", role)
    written = block.get("arguments")
    if isinstance(written, str) and written and written.count("{") + written.count("[") < MAX_BRACKETS:
        arguments = _parse_arguments(written)
        if is_object(arguments):
            return {**block, "arguments": arguments}
    return block  # a model may have written no JSON, and the agent keeps JSON as text that is too deep for a line


def _parse_arguments(text: str) -> object:
    """Return the arguments of a call that are given as JSON text, `None` if they are not JSON."""
    try:
        return msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):  # a text may hold half of a surrogate pair
        return None


def _convert_image_url(source: object, role: str) -> dict[str, Any]:
    url = source.get("url") if is_object(source) else source
    match = re.fullmatch(_DATA_URL, url) if isinstance(url, str) else None
    if match is None:
        _refuse("an image must be stored with its data, not by address", role)
    return {"type": "image", "data": match[2], "mimeType": match[1]}


def _list_fields(kind: str) -> str:
    return _REQUIRED_TEXT.get(kind, "id, name or arguments")


def _refuse(reason: str, role: str) -> NoReturn:
    forms = {
        "user": "st.Text(text) and st.Image(data, media_type)",
        "assistant": "st.Text(text), st.Thinking(text) and st.ToolCall(id, name, arguments)",
        "system": "text",
        "developer": "text",
    }
    raise InvalidOperation(f"{reason}; the content of a {role} message is text, or a list of {_get_form(forms, role)}")


def _get_form(forms: dict[str, str], role: str) -> str:
    return forms.get(role, forms["user"])


def _name_block(block: object) -> str:
    kind = block.get("type") if is_object(block) else None
    return kind if isinstance(kind, str) and kind else _name_type(block)


def _name_type(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


def _show(value: object) -> str:
    return f'"{value}"'[:80] if isinstance(value, str) else repr(value)[:80]
