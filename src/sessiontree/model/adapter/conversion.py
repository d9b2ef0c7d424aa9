"""Converts conversations in wire form to requests of pydantic_ai, and its events and responses back.

The rules for the parts of an answer are in `convert/pydantic_ai_parts.py`. A request adds two: content that providers
reject is replaced, and data that identifies a part to its provider is returned to the same model only. The cost of a
response comes from the prices in the configuration or from a price list.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model as PydanticModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from sessiontree.config import Prices
from sessiontree.convert.base import ApiKind, build_system_text
from sessiontree.convert.cleanup import CallIds, clean_json, clean_name, clean_text
from sessiontree.convert.pydantic_ai_parts import (
    STOP_REASONS,
    build_blocks,
    build_identity,
    build_thinking,
    get_call_id,
    is_signed,
    read_call_arguments,
)
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import (
    ToolCall,
    coerce_string,
    complete_usage,
    get_role,
    is_object,
    iter_blocks,
)
from sessiontree.model.base import (
    ModelEvent,
    ModelInfo,
    Request,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolSpec,
)
from sessiontree.model.request_images import ImageFilter, RequestImage

REPORTS_TOOL_FAILURES = frozenset({ApiKind.ANTHROPIC, ApiKind.GOOGLE})
"""Protocols that can mark a tool result as failed. With the others, the text of the result is clearer than JSON around
it."""

# Requests


def build_tool_definition(tool: ToolSpec) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name, description=clean_text(tool.description), parameters_json_schema=clean_json(tool.parameters)
    )


def build_messages(request: Request, info: ModelInfo, model: PydanticModel) -> list[ModelMessage]:
    images, ids = ImageFilter(request.messages, accepts_images=info.images), CallIds()
    sent: list[ModelMessage] = []

    def add_request_part(part: ModelRequestPart) -> None:
        if sent and isinstance(sent[-1], ModelRequest):
            sent[-1].parts = [*sent[-1].parts, part]
        else:
            sent.append(ModelRequest(parts=[part]))

    if request.system.strip():
        add_request_part(SystemPromptPart(clean_text(request.system)))
    for message in request.messages:
        match get_role(message):
            case "assistant":
                parts = build_parts(message, info, model.system, ids)
                if parts:
                    sent.append(
                        ModelResponse(
                            parts=parts,
                            model_name=info.model,
                            provider_name=model.system,
                            provider_url=model.base_url,
                            canonical_system=model.canonical_system,
                        )
                    )
            case "toolResult":
                add_request_part(_build_tool_return(message, images, ids, info.api))
            case "system":
                words = clean_text(build_system_text(message))
                if words.strip():
                    add_request_part(SystemPromptPart(words))
            case _:
                add_request_part(UserPromptPart(_build_content(message, images)))
    return sent


def _build_content(message: JsonObject, images: ImageFilter) -> str | list[UserContent]:
    """Return the text, and the images if there are any. The content is never empty, because providers reject that."""
    content: list[UserContent] = []
    for block in iter_blocks(message.get("content")):
        if block.get("type") == "image":
            image = images.prepare(block)
            content.append(
                BinaryContent(image.data, media_type=image.media_type) if isinstance(image, RequestImage) else image
            )
        elif block.get("type") == "text" and coerce_string(block.get("text")).strip():
            content.append(clean_text(coerce_string(block.get("text"))))
    if all(isinstance(item, str) for item in content):
        return "\n".join(map(str, content)) or "(nothing)"
    return content


def _build_tool_return(message: JsonObject, images: ImageFilter, ids: CallIds, api: str) -> ToolReturnPart:
    failed = message.get("isError") is True and api in REPORTS_TOOL_FAILURES
    return ToolReturnPart(
        tool_name=clean_name(coerce_string(message.get("toolName"))),
        content=_build_content(message, images),
        tool_call_id=ids.match_result(coerce_string(message.get("toolCallId")).partition("|")[0]),
        outcome="failed" if failed else "success",
    )


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
                yield TextPart(clean_text(coerce_string(block["text"])), **build_identity(signature, info.api, system))
            case "thinking" if same and is_signed(block, info.api):
                words = clean_text(coerce_string(block.get("thinking")))
                yield build_thinking({**block, "thinking": words}, info.api, system)
            case "toolCall":
                call, _, item = coerce_string(block.get("id")).partition("|")
                signature = (item or coerce_string(block.get("thoughtSignature"))) if same else ""
                arguments = block.get("arguments")
                yield ToolCallPart(
                    clean_name(coerce_string(block.get("name"))),
                    clean_json(arguments) if is_object(arguments) else {"unreadable": clean_json(arguments)},
                    ids.assign_id(call),
                    **build_identity(signature, info.api, system),
                )
            case _:
                pass


# Responses


class EventConverter:
    """Converts the events of one answer."""

    def __init__(self) -> None:
        self._calls: dict[int, str] = {}

    def convert(self, event: Any) -> Iterator[ModelEvent]:
        match event:
            case (
                PartStartEvent(part=TextPart(content=words)) | PartDeltaEvent(delta=TextPartDelta(content_delta=words))
            ) if words:
                yield TextDelta(words)
            case (
                PartStartEvent(part=ThinkingPart(content=words))
                | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(words)))
            ) if words:
                yield ThinkingDelta(words)
            case PartStartEvent(index=index, part=ToolCallPart() as part):
                id = self._calls[index] = get_call_id(part)
                yield ToolCallStart(id, part.tool_name)
                yield from _emit_arguments(id, part.args)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=arguments)):
                yield from _emit_arguments(self._calls.get(index, ""), arguments)
            case PartEndEvent(part=ToolCallPart() as part):
                yield ToolCallEnd(ToolCall(get_call_id(part), part.tool_name, read_call_arguments(part)))
            case _:
                pass


def _emit_arguments(id: str, arguments: Any) -> Iterator[ToolCallDelta]:
    if arguments:
        yield ToolCallDelta(id, arguments if isinstance(arguments, str) else json.dumps(arguments))


def is_complete(response: ModelResponse, api: str) -> bool:
    """Whether the response was received to its end."""
    if api != ApiKind.OPENAI_COMPATIBLE:
        return response.finish_reason is not None
    # Some servers send no finish reason, and pydantic_ai makes one up. A complete response then still has usage.
    return "finish_reason" in (response.provider_details or {}) or not response.usage.unmeasured_requests


def build_message(response: ModelResponse, info: ModelInfo) -> JsonObject:
    """Return a complete response as an assistant message in wire form."""
    content = [block for part in response.parts for block in build_blocks(part, info.api)]
    reason = STOP_REASONS.get(response.finish_reason or "", "stop")
    if reason == "stop" and any(block["type"] == "toolCall" for block in content):
        reason = "toolUse"
    message: JsonObject = {
        "role": "assistant",
        "content": content,
        "api": info.api,
        "provider": info.provider,
        "model": info.model,
        "usage": build_usage(response, info.prices),
        "stopReason": reason,
    }
    if response.provider_response_id:
        message["responseId"] = response.provider_response_id
    if reason == "error":
        filtered = response.finish_reason == "content_filter"
        message["errorMessage"] = "the provider's content filter stopped the answer" if filtered else "the model failed"
    return message


def build_usage(response: ModelResponse, prices: Prices | None) -> JsonObject:
    """Return the tokens and the cost of a response in wire form. Unknown values are 0."""
    used = response.usage
    read, written = used.cache_read_tokens, used.cache_write_tokens
    counts = {
        "input": max(0, used.input_tokens - read - written),
        "output": used.output_tokens,
        "cacheRead": read,
        "cacheWrite": written,
    }
    cost = _look_up_cost(response) if prices is None else _compute_cost(counts, prices)
    return complete_usage({**counts, "cost": cost})


def _compute_cost(counts: dict[str, int], prices: Prices) -> JsonObject:
    each = (prices.input, prices.output, prices.cache_read, prices.cache_write)
    return {key: count * price / 1_000_000 for (key, count), price in zip(counts.items(), each, strict=True)}


def _look_up_cost(response: ModelResponse) -> JsonObject:
    used = response.usage
    try:
        price = response.cost()
        # The price list gives one price for all input, so price the cached part separately.
        cached, stored = used.cache_read_tokens, used.cache_write_tokens
        read = _compute_input_cost(response, RequestUsage(input_tokens=cached, cache_read_tokens=cached))
        written = _compute_input_cost(response, RequestUsage(input_tokens=stored, cache_write_tokens=stored))
    except (LookupError, ValueError, AssertionError):  # the model or its usage is unknown
        return {}
    whole = float(price.input_price)
    return {
        "input": max(0.0, whole - read - written),
        "output": float(price.output_price),
        "cacheRead": read,
        "cacheWrite": written,
        "total": float(price.total_price),
    }


def _compute_input_cost(response: ModelResponse, part: RequestUsage) -> float:
    return float(dataclasses.replace(response, usage=part).cost().input_price) if part.input_tokens else 0.0
