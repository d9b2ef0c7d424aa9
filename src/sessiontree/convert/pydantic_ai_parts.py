"""The parts of an answer: the objects of pydantic-ai, and the blocks in which they are stored.

Conversations and the requests of the model adapter share these rules. Data that identifies a part to its provider (a
signature, an item, a field) is stored in the block the way other programs store it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic_ai.messages import FilePart, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart

from sessiontree.convert.base import THINKING_FIELDS, ApiKind, parse_object
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, is_object

REDACTED = "redacted_thinking"
STOP_REASONS = {"stop": "stop", "length": "length", "tool_call": "toolUse", "content_filter": "error", "error": "error"}
"""Stop reasons in the words that other programs write."""


def build_blocks(part: ModelResponsePart, api: str) -> Iterator[JsonObject]:
    """Yield the blocks of a part in wire form: one, or none if the part is empty or has no form here."""
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
                "arguments": read_call_arguments(part),
                **({"thoughtSignature": signature} if signature else {}),
            }
        case FilePart(content=file) if file.is_image:
            yield {"type": "image", "data": file.base64, "mimeType": file.media_type}
        case _:
            pass


def get_call_id(part: ToolCallPart) -> str:
    """Return the call id in the form that other programs write: with the item's id, if there is one."""
    return f"{part.tool_call_id}|{part.id}" if part.id else part.tool_call_id


def read_call_arguments(part: ToolCallPart) -> Any:
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


def build_identity(signature: str, api: str, system: str) -> Any:
    """Return the arguments that identify a text or a tool call to the provider that made it."""
    if not signature:
        return {}
    if api == ApiKind.GOOGLE:
        return {"provider_name": system, "provider_details": {"thought_signature": signature}}
    if api != ApiKind.OPENAI_RESPONSES:
        return {}
    return {"provider_name": system, "id": coerce_string(parse_object(signature).get("id")) or signature}


def is_signed(block: JsonObject, api: str) -> bool:
    """Return whether a thinking block has what its provider knows it by."""
    signature = coerce_string(block.get("thinkingSignature"))
    match api:
        case ApiKind.OPENAI_COMPATIBLE:
            return signature in THINKING_FIELDS
        case ApiKind.OPENAI_RESPONSES:
            return "id" in parse_object(signature)
        case _:
            return bool(signature)


def build_thinking(block: JsonObject, api: str, system: str) -> ThinkingPart:
    """Return the part of a thinking block that is signed."""
    words, signature = coerce_string(block.get("thinking")), coerce_string(block.get("thinkingSignature"))
    if block.get("redacted") is True:
        return ThinkingPart("", id=REDACTED, signature=signature, provider_name=system)
    match api:
        case ApiKind.OPENAI_COMPATIBLE:  # the signature is the name of the field
            return ThinkingPart(words, id=signature, provider_name=system)
        case ApiKind.OPENAI_RESPONSES:  # the signature is the item
            item = parse_object(signature)
            encrypted = coerce_string(item.get("encrypted_content")) or None
            return ThinkingPart(
                words, id=coerce_string(item.get("id")) or None, signature=encrypted, provider_name=system
            )
        case _:
            return ThinkingPart(words, signature=signature, provider_name=system)
