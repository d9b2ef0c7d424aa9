"""The tokens and the cost of a response, from the prices in the configuration or from a price list."""

from __future__ import annotations

import dataclasses

from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage

from sessiontree.config import Prices
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import complete_usage


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
