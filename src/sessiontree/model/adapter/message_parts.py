"""Converts the parts of an answer (text, thinking, tool calls) to blocks in wire form, and back.

Data that identifies a part to its provider (a signature, an item, a field) is stored in the block the way other
programs store it, and is returned to the same model only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic_ai.messages import FilePart, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart

from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, is_object, iter_blocks
from sessiontree.model.base import ModelInfo
from sessiontree.model.providers import ApiKind
from sessiontree.model.request_cleanup import CallIds, clean_json, clean_name, clean_text

THINKING_FIELDS = frozenset({"reasoning_content", "reasoning", "reasoning_text"})
"""The fields of chat completions that hold the model's thinking."""

REDACTED = "redacted_thinking"


# From the provider


def build_blocks(part: ModelResponsePart, api: str) -> Iterator[JsonObject]:
    """Yield the blocks of a part in wire form: one, or none if the part is empty."""
    match part:
        case TextPart():
            signature = part.id if api == ApiKind.OPENAI_RESPONSES else _get_signature(part)
            yield {"type": "text", "text": part.content, **({"textSignature": signature} if signature else {})}
        case ThinkingPart():
            signature = _build_thinking_signature(part, api)
            block: JsonObject = {"type": "thinking", "thinking": part.content}
            if signature:
                block["thinkingSignature"] = signature
            if part.id == REDACTED:
                block["redacted"] = True
            if part.content or signature:
                yield block
        case ToolCallPart():
            signature = _get_signature(part)
            yield {
                "type": "toolCall",
                "id": get_call_id(part),
                "name": part.tool_name,
                "arguments": read_arguments(part),
                **({"thoughtSignature": signature} if signature else {}),
            }
        case FilePart(content=file) if file.is_image:
            yield {"type": "image", "data": file.base64, "mimeType": file.media_type}
        case _:
            pass


def get_call_id(part: ToolCallPart) -> str:
    """Return the call id in the form that other programs write: with the item's id, if there is one."""
    return f"{part.tool_call_id}|{part.id}" if part.id else part.tool_call_id


def read_arguments(part: ToolCallPart) -> Any:
    """Return the arguments as an object, or the raw text if they are not a JSON object."""
    if not part.args:
        return {}
    if isinstance(part.args, dict):
        return part.args
    try:
        value = json.loads(part.args)
    except (ValueError, RecursionError):
        return part.args
    return value if is_object(value) else part.args


def _get_signature(part: TextPart | ToolCallPart) -> str:
    return coerce_string((part.provider_details or {}).get("thought_signature"))


def _build_thinking_signature(part: ThinkingPart, api: str) -> str | None:
    match api:
        case ApiKind.OPENAI_COMPATIBLE:
            return part.id if part.id in THINKING_FIELDS else None
        case ApiKind.OPENAI_RESPONSES if part.id:
            item: JsonObject = {"type": "reasoning", "id": part.id, "summary": []}
            if part.content:
                item["summary"] = [{"type": "summary_text", "text": part.content}]
            if part.signature:
                item["encrypted_content"] = part.signature
            return json.dumps(item)
        case _:
            return part.signature


# To the provider


def build_parts(message: JsonObject, info: ModelInfo, system: str, ids: CallIds) -> list[ModelResponsePart]:
    """Return the parts of an assistant message for the model `info`, whose provider is known as `system`.

    Thinking at the end is omitted, because providers reject a message that ends with it.
    """
    ids.start_turn()
    parts = list(_convert_blocks(message, info, system, ids))
    while parts and isinstance(parts[-1], ThinkingPart):
        parts.pop()
    return parts


def _convert_blocks(message: JsonObject, info: ModelInfo, system: str, ids: CallIds) -> Iterator[ModelResponsePart]:
    same = all(message.get(key) == getattr(info, key) for key in ("provider", "model", "api"))
    for block in iter_blocks(message.get("content")):
        match block.get("type"):
            case "text" if coerce_string(block.get("text")).strip():
                signature = coerce_string(block.get("textSignature")) if same else ""
                yield TextPart(clean_text(coerce_string(block["text"])), **_build_identity(signature, info.api, system))
            case "thinking" if same and _is_signed(block, info.api):
                yield _build_thinking(block, info.api, system)
            case "toolCall":
                call, _, item = coerce_string(block.get("id")).partition("|")
                signature = (item or coerce_string(block.get("thoughtSignature"))) if same else ""
                arguments = block.get("arguments")
                yield ToolCallPart(
                    clean_name(coerce_string(block.get("name"))),
                    clean_json(arguments) if is_object(arguments) else {"unreadable": clean_json(arguments)},
                    ids.assign_id(call),
                    **_build_identity(signature, info.api, system),
                )
            case _:
                pass


def _build_identity(signature: str, api: str, system: str) -> Any:
    """Return the arguments that identify a text or a tool call to the provider that made it."""
    if not signature:
        return {}
    if api == ApiKind.GOOGLE:
        return {"provider_name": system, "provider_details": {"thought_signature": signature}}
    if api != ApiKind.OPENAI_RESPONSES:
        return {}
    return {"provider_name": system, "id": coerce_string(_parse_object(signature).get("id")) or signature}


def _is_signed(block: JsonObject, api: str) -> bool:
    signature = coerce_string(block.get("thinkingSignature"))
    match api:
        case ApiKind.OPENAI_COMPATIBLE:
            return signature in THINKING_FIELDS
        case ApiKind.OPENAI_RESPONSES:
            return "id" in _parse_object(signature)
        case _:
            return bool(signature)


def _build_thinking(block: JsonObject, api: str, system: str) -> ThinkingPart:
    words, signature = clean_text(coerce_string(block.get("thinking"))), coerce_string(block.get("thinkingSignature"))
    if block.get("redacted") is True:
        return ThinkingPart("", id=REDACTED, signature=signature, provider_name=system)
    match api:
        case ApiKind.OPENAI_COMPATIBLE:  # the signature is the name of the field
            return ThinkingPart(words, id=signature, provider_name=system)
        case ApiKind.OPENAI_RESPONSES:  # the signature is the item
            item = _parse_object(signature)
            encrypted = coerce_string(item.get("encrypted_content")) or None
            return ThinkingPart(
                words, id=coerce_string(item.get("id")) or None, signature=encrypted, provider_name=system
            )
        case _:
            return ThinkingPart(words, signature=signature, provider_name=system)


def _parse_object(raw: str) -> JsonObject:
    try:
        value = json.loads(raw)
    except ValueError:
        return {}
    return value if is_object(value) else {}
