"""Converts a provider's stream to our events, and its response to a message in wire form with usage and cost."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from pydantic_ai.messages import (
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.usage import RequestUsage

from sessiontree.config import Prices
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import ToolCall, complete_usage
from sessiontree.model.adapter.message_parts import build_blocks, get_call_id, read_arguments
from sessiontree.model.base import (
    ModelEvent,
    ModelInfo,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from sessiontree.model.providers import ApiKind

STOP_REASONS = {"stop": "stop", "length": "length", "tool_call": "toolUse", "content_filter": "error", "error": "error"}
"""Stop reasons in the words that other programs write."""


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
                yield ToolCallEnd(ToolCall(get_call_id(part), part.tool_name, read_arguments(part)))
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


# Usage and cost


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
