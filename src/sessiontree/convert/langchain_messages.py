"""LangChain messages, as `message.model_dump()` returns them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sessiontree.convert.base import count, parse_data_url
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, complete_usage, is_list, is_object

STOP_REASONS = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "STOP": "stop",
    "length": "length",
    "max_tokens": "length",
    "MAX_TOKENS": "length",
    "tool_calls": "toolUse",
    "tool_use": "toolUse",
    "content_filter": "error",
    "refusal": "error",
}
CALL_BLOCKS = ("tool_use", "tool_call", "function_call", "tool_call_chunk", "input_json_delta")
"""Blocks that repeat what `tool_calls` has."""


def read_langchain_message(fields: JsonObject, tools: Mapping[str, str]) -> JsonObject | None:
    """Return the stored form of a message; `None` for a kind that is not part of a conversation.

    `tools` has the names of tools by call id, for results that do not name their tool.
    """
    kind = coerce_string(fields.get("type")).removesuffix("MessageChunk").lower()
    match kind:
        case "human":
            return {"role": "user", "content": _read_content(fields)}
        case "system":
            texts = (coerce_string(block.get("text")) for block in _iter_blocks(fields.get("content")))
            return {"role": "system", "content": "\n\n".join(filter(None, texts))}
        case "ai":
            return _read_answer(fields)
        case "tool" if coerce_string(fields.get("tool_call_id")):
            call = fields["tool_call_id"]
            return {
                "role": "toolResult",
                "toolCallId": call,
                "toolName": coerce_string(fields.get("name")) or tools.get(call, "unknown"),
                "content": [block for block in map(_read_block, _iter_blocks(fields.get("content"))) if block],
                "isError": fields.get("status") == "error",
            }
        case _:
            return None


def _iter_blocks(content: Any) -> Iterator[JsonObject]:
    """Yield the blocks of a content. Text becomes a block."""
    for block in content if is_list(content) else (content,):
        if isinstance(block, str):
            if block:
                yield {"type": "text", "text": block}
        elif is_object(block):
            yield block


def _read_content(fields: JsonObject) -> Any:
    content = fields.get("content")
    if isinstance(content, str):
        return content
    return [block for block in map(_read_block, _iter_blocks(content)) if block]


def _read_block(block: JsonObject) -> JsonObject | None:
    kind = coerce_string(block.get("type"))
    if kind in CALL_BLOCKS:
        return None
    if isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    data = block.get("base64") or block.get("data")
    if kind == "image" and isinstance(data, str) and isinstance(block.get("mime_type"), str):
        return {"type": "image", "data": data, "mimeType": block["mime_type"]}
    url: Any = block.get("image_url")
    image = parse_data_url(coerce_string(url.get("url") if is_object(url) else url))
    return image or {"type": "text", "text": f"[{kind or 'content'} that cannot be shown]"}


def _read_answer(fields: JsonObject) -> JsonObject:
    content: list[JsonObject] = []
    facts, more = fields.get("response_metadata"), fields.get("additional_kwargs")
    if is_object(more) and isinstance(more.get("reasoning_content"), str):
        content.append({"type": "thinking", "thinking": more["reasoning_content"]})
    for block in _iter_blocks(fields.get("content")):
        thought = _read_thinking(block)
        shown = _read_block(block) if thought is None else {"type": "thinking", "thinking": thought}
        if shown is not None and shown["type"] != "image":
            content.append(shown)
    calls = fields.get("tool_calls")
    for index, call in enumerate(calls if is_list(calls) else ()):
        if is_object(call) and coerce_string(call.get("name")):
            arguments = call.get("args")
            content.append(
                {
                    "type": "toolCall",
                    "id": coerce_string(call.get("id")) or f"call_{index}",
                    "name": call["name"],
                    "arguments": arguments if is_object(arguments) else {},
                }
            )
    facts = facts if is_object(facts) else {}
    reason = coerce_string(facts.get("finish_reason") or facts.get("stop_reason"))
    stop = STOP_REASONS.get(reason, "stop")
    if stop == "stop" and any(block["type"] == "toolCall" for block in content):
        stop = "toolUse"
    return {
        "role": "assistant",
        "content": content,
        "api": "unknown",
        "provider": coerce_string(facts.get("model_provider")) or "unknown",
        "model": coerce_string(facts.get("model_name") or facts.get("model")) or "unknown",
        "usage": complete_usage(_read_usage(fields.get("usage_metadata"))),
        "stopReason": stop,
    }


def _read_thinking(block: JsonObject) -> str | None:
    """Return the thinking in a block; `None` if the block is something else."""
    match block.get("type"):
        case "thinking":
            return coerce_string(block.get("thinking"))
        case "reasoning":
            summary = block.get("summary")
            texts = (coerce_string(part.get("text")) for part in _iter_blocks(summary)) if is_list(summary) else ()
            return coerce_string(block.get("reasoning")) or "\n".join(texts)
        case _:
            return None


def _read_usage(usage: Any) -> JsonObject:
    """Return the token counts of a response. LangChain's input includes cached tokens."""
    if not is_object(usage):
        return {}
    details = usage.get("input_token_details")
    details = details if is_object(details) else {}
    read, written = count(details.get("cache_read")), count(details.get("cache_creation"))
    fresh = max(0, count(usage.get("input_tokens")) - read - written)
    return {"input": fresh, "output": count(usage.get("output_tokens")), "cacheRead": read, "cacheWrite": written}
