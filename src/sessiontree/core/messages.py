"""Messages: constructors, readers and conversion of messages in wire form.

A message is the JSON object inside a `message` entry. Peers add fields freely, so it stays a dict. This is the only
module that knows its fields. Session files are untrusted: every reader accepts any JSON and returns a harmless value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from sessiontree.core.entries import Body, BranchSummary, Compaction, Entry, JsonObject, Message, Opaque, Usage
from sessiontree.core.message_input import check_new_message, check_usage
from sessiontree.core.message_views import (
    ABNORMAL_STOPS,
    Block,
    MessagePreview,
    PreviewBlock,
    TokenUsage,
    ToolCall,
    coerce_number,
    coerce_string,
    is_list,
    is_object,
)
from sessiontree.errors import InvalidOperation

Content: TypeAlias = str | Sequence[str | Block | JsonObject]
"""The content of a new message: text, or a list of blocks."""

# Constructors. Timestamps are milliseconds since the epoch; `Session.append` adds a missing one.


def user(content: Content) -> Message:
    """Create a user message from text, or from text and image blocks."""
    return Message(check_new_message({"role": "user", "content": content}))


def name_author(message: Message, author: str) -> Message:
    """Return a message that names who wrote it, if `author` is not empty. The model does not see the name."""
    return Message({**message.message, "author": author}) if author else message


def system(text: str) -> Message:
    """Create a system message that is stored in the conversation."""
    return Message(check_new_message({"role": "system", "content": text}))


def assistant(
    content: Content,
    *,
    model: str | None = None,
    provider: str | None = None,
    api: str = "unknown",
    usage: JsonObject | TokenUsage | None = None,
    stop_reason: str | None = None,
    error: str | None = None,
) -> Message:
    """Create an assistant message. `usage` may be partial: `{"input": 10, "output": 5, "cost": 0.01}` is enough.

    `Session.append` fills in missing fields: the model in effect on the branch, and the stop reason.
    """
    blocks: Any = build_text_blocks(content) if isinstance(content, str) else content
    message: JsonObject = {"role": "assistant", "content": blocks, "api": api}
    optional = {"provider": provider, "model": model, "stopReason": stop_reason, "errorMessage": error}
    message.update((key, value) for key, value in optional.items() if value is not None)
    message["usage"] = complete_usage(None if usage is None else check_usage(usage))
    return Message(check_new_message(message))


def tool_call(id: str, name: str, arguments: JsonObject) -> JsonObject:
    """Create a content block for `assistant` that calls a tool."""
    return {"type": "toolCall", "id": id, "name": name, "arguments": arguments}


def tool_result(call: str, name: str, content: Content, *, error: bool = False, details: Any = None) -> Message:
    """Create the result of the tool call with id `call`. The model does not see `details`."""
    if not isinstance(call, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
        raise InvalidOperation(f"a tool result needs the id of its call, such as call.id, not {type(call).__name__}")
    message: JsonObject = {
        "role": "toolResult",
        "toolCallId": call,
        "toolName": name,
        "content": build_text_blocks(content) if isinstance(content, str) else content,
        "isError": error,
    }
    if details is not None:
        message["details"] = details
    return Message(check_new_message(message))


def build_bash_execution(
    command: str,
    output: str,
    *,
    exit_code: int | None,
    truncated: bool = False,
    full_output: str | None = None,
    in_context: bool = True,
) -> Message:
    """Create a message for a shell command that the user ran. Without an exit code the command was cancelled.

    If `output` is incomplete, set `truncated` and give the file with the rest as `full_output`.
    """
    message: JsonObject = {
        "role": "bashExecution",
        "command": command,
        "output": output,
        "exitCode": exit_code,
        "cancelled": exit_code is None,
        "truncated": truncated,
        "fullOutputPath": full_output,
        "excludeFromContext": None if in_context else True,
    }
    return Message({key: value for key, value in message.items() if value is not None})


def build_image_block(data: bytes, media_type: str) -> JsonObject:
    """Create a content block with an image."""
    from base64 import b64encode

    return {"type": "image", "data": b64encode(data).decode(), "mimeType": media_type}


def build_text_blocks(content: str | list[JsonObject]) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


TOKEN_KEYS = ("input", "output", "cacheRead", "cacheWrite")
COST_KEYS = (*TOKEN_KEYS, "total")
USAGE_KEYS = (*TOKEN_KEYS, "totalTokens", "cost")

ANSWER_KEYS = frozenset({"content", "usage", "api", "provider", "model", "stopReason", "timestamp"})
"""The fields that peers write for an answer, besides its role."""


def complete_usage(usage: JsonObject | None) -> JsonObject:
    """Return `usage` in the complete form that peers write: token counts, their total, and cost by kind."""
    if (
        usage is not None
        and tuple(usage) == USAGE_KEYS
        and is_object(usage["cost"])
        and tuple(usage["cost"]) == COST_KEYS
    ):
        return usage
    rest = dict(usage or {})
    cost = rest.pop("cost", None)
    counts = {key: rest.pop(key, 0) for key in TOKEN_KEYS}
    total = rest.pop("totalTokens", None)
    costs: JsonObject = dict.fromkeys(COST_KEYS, 0)
    if is_object(cost):
        costs.update(cost)
        if "total" not in cost:
            costs["total"] = sum(coerce_number(costs[key]) for key in TOKEN_KEYS)
    elif cost is not None:
        costs["total"] = cost
    return {
        **counts,
        "totalTokens": sum(coerce_number(count) for count in counts.values()) if total is None else total,
        **rest,
        "cost": costs,
    }


def is_complete(message: JsonObject) -> bool:
    """Return whether a message has every field that peers write for its role."""
    role = message.get("role")
    if role == "assistant":
        usage = message.get("usage")
        cost = usage.get("cost") if is_object(usage) else None
        return (
            is_object(usage)
            and is_object(cost)
            and is_list(message.get("content"))
            and message.keys() >= ANSWER_KEYS
            and usage.keys() >= set(USAGE_KEYS)
            and cost.keys() >= set(COST_KEYS)
        )
    if role == "toolResult":
        return "isError" in message and "timestamp" in message and isinstance(message.get("content"), list)
    return "timestamp" in message


def complete_message(message: JsonObject, *, now: int, provider: str = "unknown", model: str = "unknown") -> JsonObject:
    """Return `message` with the fields that its role requires. Existing fields are kept."""
    if is_complete(message):
        return message
    filled = dict(message)
    role, content = message.get("role"), message.get("content")
    if role in ("assistant", "toolResult"):
        filled["content"] = build_text_blocks(content) if isinstance(content, str) else (content or [])
    if role == "assistant":
        usage = message.get("usage")
        filled.setdefault("api", "unknown")
        filled.setdefault("provider", provider)
        filled.setdefault("model", model)
        filled["usage"] = complete_usage(usage if is_object(usage) else None)
        if "stopReason" not in filled:
            filled["stopReason"] = "toolUse" if any(get_tool_calls(filled)) else "stop"
    elif role == "toolResult":
        filled.setdefault("isError", False)
    filled.setdefault("timestamp", now)
    return filled


# Readers


def get_role(message: JsonObject) -> str:
    return coerce_string(message.get("role"))


def get_entry_role(entry: Entry) -> str | None:
    """Return the role of a message entry; `None` for every other type."""
    body = entry.decode() if entry.type == "message" else None
    return get_role(body.message) if isinstance(body, Message) else None


def iter_blocks(content: object) -> Iterator[JsonObject]:
    """Yield the content blocks. A plain string is one text block."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    elif is_list(content):
        yield from filter(is_object, content)


def extract_text(content: object) -> str:
    """Return the text in `content`: text blocks joined by newlines."""
    return "\n".join(coerce_string(block.get("text")) for block in iter_blocks(content) if block.get("type") == "text")


def get_tool_calls(message: JsonObject) -> Sequence[ToolCall]:
    content = message.get("content") if message.get("role") == "assistant" else None
    if not is_list(content):
        return ()
    return [ToolCall.wrap(block) for block in content if is_object(block) and block.get("type") == "toolCall"]


def get_answered_call(message: JsonObject) -> str | None:
    """Return the id of the tool call that this message answers, if it is a tool result."""
    return coerce_string(message.get("toolCallId")) if message.get("role") == "toolResult" else None


def preview_message(message: JsonObject) -> MessagePreview:
    """Build a preview from a decoded message."""
    return MessagePreview(
        role=get_role(message),
        content=[
            PreviewBlock(
                type=coerce_string(block.get("type")),
                text=coerce_string(block.get("text")),
                id=coerce_string(block.get("id")),
                name=coerce_string(block.get("name")),
                arguments=block.get("arguments"),
            )
            for block in iter_blocks(message.get("content"))
        ],
        stop_reason=get_stop_reason(message),
        tool_call_id=coerce_string(message.get("toolCallId")),
        tool_name=coerce_string(message.get("toolName")),
        command=coerce_string(message.get("command")),
        code=coerce_string(message.get("code")),
        tool_calls=message.get("tool_calls"),
    )


def get_stop_reason(message: JsonObject) -> str:
    """Return why an assistant message ended: `stop`, `toolUse`, `length`, `error` or `aborted`."""
    return coerce_string(message.get("stopReason"))


def is_failed_turn(message: JsonObject) -> bool:
    return message.get("role") == "assistant" and get_stop_reason(message) in ABNORMAL_STOPS


def has_failed(message: JsonObject) -> bool:
    """Return whether a message reports an answer, a tool call or a command that failed or was stopped."""
    return (
        is_failed_turn(message)
        or bool(coerce_string(message.get("errorMessage")))
        or message.get("isError") is True
        or message.get("cancelled") is True
        or coerce_number(message.get("exitCode")) != 0
    )


def describe_shortcoming(message: JsonObject) -> str | None:
    """Return why the last assistant message is not a complete answer, or `None` if it is."""
    if get_stop_reason(message) == "length" or get_stop_reason(message) in ABNORMAL_STOPS:
        return "its answer was cut off"
    return None if extract_text(message.get("content")).strip() else "it answered nothing"


def get_model(message: JsonObject) -> tuple[str, str] | None:
    """Return the provider and model that wrote an assistant message, if it names them."""
    if message.get("role") != "assistant":
        return None
    provider, model = message.get("provider"), message.get("model")
    return (provider, model) if isinstance(provider, str) and isinstance(model, str) else None


class UsageSum(NamedTuple):
    tokens: float
    cost: float


def sum_usage(usage: object) -> UsageSum | None:
    """Return the tokens and cost of a usage object; `None` if it records neither."""
    if not is_object(usage):
        return None
    tokens = coerce_number(usage.get("totalTokens")) or sum(
        coerce_number(usage.get(key)) for key in ("input", "output", "cacheRead", "cacheWrite")
    )
    cost = usage.get("cost")
    money = coerce_number(cost.get("total")) if is_object(cost) else coerce_number(cost)
    return UsageSum(tokens, money) if tokens or money else None


def list_usages(body: Body) -> list[Any]:
    """Return the usage objects that an entry records, each as the provider reported it."""
    match body:
        case Message(message) if get_role(message) in ("assistant", "toolResult"):
            return [message.get("usage")]
        case Usage(usage=usage) | Compaction(usage=usage) | BranchSummary(usage=usage):
            return [usage]
        case Opaque(type="model_usage", fields=fields):
            return [fields.get("usage")]
        case _:
            return []


# Estimation of tokens

CHARACTERS_PER_TOKEN = 4
IMAGE_CHARACTERS = 4800
"""An image counts as 1,200 tokens."""


def estimate_tokens(message: JsonObject) -> int:
    """Estimate how many tokens a message takes in the model's window.

    The provider's own count is better for messages that were already sent.
    """
    return -(-_count_characters(message) // CHARACTERS_PER_TOKEN)


def _count_characters(message: JsonObject) -> int:
    match get_role(message):
        case "bashExecution" | "pythonExecution":
            return sum(len(coerce_string(message.get(key))) for key in ("command", "code", "output"))
        case "compactionSummary" | "branchSummary":
            return len(coerce_string(message.get("summary")))
        case "system":
            parts = [message.get("content")]
            sections = message.get("sections")
            if is_object(sections):
                parts.extend(sections.values())
            tools = message.get("toolsAdded")
            return sum(map(_count_content, parts)) + (_count_json(tools) if tools else 0)
        case _:
            return _count_content(message.get("content"))


def _count_content(content: object) -> int:
    if isinstance(content, str):
        return len(content)
    total = 0
    for block in filter(is_object, content) if is_list(content) else ():
        kind = block.get("type")
        if kind == "text" or kind == "thinking":
            total += len(coerce_string(block.get(kind)))
        elif kind == "image":
            total += IMAGE_CHARACTERS
        elif kind == "toolCall":
            total += len(coerce_string(block.get("name"))) + _count_json(block.get("arguments"))
    return total


def _count_json(value: object) -> int:
    return len(_get_json_encoder()(value))


@cache
def _get_json_encoder() -> Callable[[object], str]:
    from json import JSONEncoder  # only here, for a fast start

    return JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


# Conversion for a model

COMPACTION_LEAD = "Summary of the conversation before the following messages:"
BRANCH_LEAD = "Summary of another branch of this conversation that was explored and abandoned:"


def convert_for_model(message: JsonObject) -> JsonObject | None:
    """Return `message` as it is sent to a model; `None` if it is not sent."""
    match message.get("role"):
        case "user" | "assistant" | "toolResult" | "system":
            return message
        case "compactionSummary":
            return _build_user_message(message, _format_summary(COMPACTION_LEAD, message))
        case "branchSummary":
            return _build_user_message(message, _format_summary(BRANCH_LEAD, message))
        case "custom" | "hookMessage":
            content = message.get("content")
            sent: Any = build_text_blocks(content) if isinstance(content, str) else list(iter_blocks(content))
            return {"role": "user", "content": sent, **_copy_timestamp(message)}
        case "bashExecution" | "pythonExecution":
            return (
                None
                if message.get("excludeFromContext") is True
                else _build_user_message(message, _format_execution(message))
            )
        case "developer":
            return {**message, "role": "system"}
        case "fileMention":
            return _build_user_message(message, _format_mentions(message))
        case _:
            return None


def _build_user_message(message: JsonObject, content: str) -> JsonObject:
    return {"role": "user", "content": [{"type": "text", "text": content}], **_copy_timestamp(message)}


def _copy_timestamp(message: JsonObject) -> JsonObject:
    return {"timestamp": message["timestamp"]} if "timestamp" in message else {}


def _format_summary(lead: str, message: JsonObject) -> str:
    return f"{lead}\n\n<summary>\n{coerce_string(message.get('summary'))}\n</summary>"


def _format_execution(message: JsonObject) -> str:
    command = coerce_string(message.get("command")) or coerce_string(message.get("code"))
    output = coerce_string(message.get("output"))
    parts = [f"I ran `{command}`", f"```\n{output}\n```" if output else "It printed nothing."]
    if message.get("cancelled") is True:
        parts.append("It was cancelled.")
    elif message.get("exitCode") not in (None, 0):
        parts.append(f"It exited with code {coerce_number(message.get('exitCode'))}.")
    if message.get("truncated") is True:
        path = coerce_string(message.get("fullOutputPath"))
        parts.append(f"The output is truncated; more of it is in {path}" if path else "The output is truncated.")
    return "\n\n".join(parts)


def _format_mentions(message: JsonObject) -> str:
    files = message.get("files")
    parts = [coerce_string(message.get("text")), extract_text(message.get("content"))]
    for file in filter(is_object, files if is_list(files) else ()):
        parts.append(f"{coerce_string(file.get('path'))}\n{coerce_string(file.get('content'))}")
    return "\n\n".join(part for part in parts if part)
