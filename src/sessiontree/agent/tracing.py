"""Tracing: OpenTelemetry spans for agent runs, model calls and tool calls, following the GenAI conventions.

Spans have the model, the tool, the duration and the usage. They do not contain messages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sessiontree.core.entries import Entry, JsonObject, Message
from sessiontree.core.messages import coerce_number, coerce_string, get_role, get_stop_reason
from sessiontree.hooks.bus import HookContext, Hooks
from sessiontree.hooks.events import MessageEnd, MessageStart, RunEnd, RunStart, ToolEnd, ToolStart
from sessiontree.model.base import ModelInfo

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

PROVIDER_NAMES = {"google": "gcp.gemini", "mistral": "mistral_ai", "xai": "x_ai"}
"""Names of providers in the conventions, where they differ from ours."""
FINISH_REASONS = {"toolUse": "tool_calls"}
"""Names of finish reasons in the conventions, where they differ from ours."""


def is_configured() -> bool:
    """Return whether this process uses the OpenTelemetry SDK."""
    return "opentelemetry.sdk.trace" in sys.modules


def trace(hooks: Hooks, tracer: Tracer | None = None) -> Callable[[], None]:
    """Create spans for all agents with these hooks. Return a function that stops it.

    Raises `ModuleNotFoundError` if OpenTelemetry is not installed.
    """
    from opentelemetry.trace import get_tracer

    runs = _OpenSpans(get_tracer("sessiontree") if tracer is None else tracer)
    removers = [
        hooks.on(event, handler, source="tracing")
        for event, handler in (
            (RunStart, runs.on_run_start),
            (MessageStart, runs.on_message_start),
            (MessageEnd, runs.on_message_end),
            (ToolStart, runs.on_tool_start),
            (ToolEnd, runs.on_tool_end),
            (RunEnd, runs.on_run_end),
        )
    ]

    def remove_handlers() -> None:
        for remove in removers:
            remove()

    return remove_handlers


class _OpenSpans:
    """The open spans by agent: `run`, `model`, and tool calls by their ids."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[int, dict[str, Span]] = {}

    async def on_run_start(self, event: RunStart, context: HookContext) -> None:
        from opentelemetry.trace import SpanKind

        name = context.branch.name
        span = self._tracer.start_span(f"invoke_agent {name}", kind=SpanKind.INTERNAL)
        span.set_attributes(
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": name,
                "gen_ai.conversation.id": context.session.id,
                **_get_model_attributes(context),
            }
        )
        self._open[id(context.agent)] = {"run": span}

    async def on_message_start(self, event: MessageStart, context: HookContext) -> None:
        from opentelemetry.trace import SpanKind

        if event.role == "assistant":
            info = context.agent.model.info
            span = self._start_span("model", f"chat {info.model}", SpanKind.CLIENT, context)
            if span is not None:
                span.set_attributes({"gen_ai.operation.name": "chat", **_get_model_attributes(context)})

    async def on_message_end(self, event: MessageEnd, context: HookContext) -> None:
        message = _get_message(event.entry)
        span = self._pop_span("model", context) if get_role(message) == "assistant" else None
        if span is None:
            return
        usage: Any = message.get("usage") or {}
        reason = get_stop_reason(message) or "stop"
        span.set_attributes(
            {
                "gen_ai.response.model": coerce_string(message.get("model")) or "unknown",
                "gen_ai.response.finish_reasons": [FINISH_REASONS.get(reason, reason)],
                "gen_ai.usage.input_tokens": int(
                    sum(coerce_number(usage.get(kind)) for kind in ("input", "cacheRead", "cacheWrite"))
                ),
                "gen_ai.usage.output_tokens": int(coerce_number(usage.get("output"))),
                "gen_ai.usage.cache_read.input_tokens": int(coerce_number(usage.get("cacheRead"))),
                "gen_ai.usage.cache_creation.input_tokens": int(coerce_number(usage.get("cacheWrite"))),
            }
        )
        _end_span(span, reason if reason in ("error", "aborted") else None)

    async def on_tool_start(self, event: ToolStart, context: HookContext) -> None:
        from opentelemetry.trace import SpanKind

        call = event.call
        span = self._start_span(call.id, f"execute_tool {call.name}", SpanKind.INTERNAL, context)
        if span is not None:
            span.set_attributes(
                {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": call.name,
                    "gen_ai.tool.call.id": call.id,
                    "gen_ai.tool.type": "function",
                }
            )

    async def on_tool_end(self, event: ToolEnd, context: HookContext) -> None:
        span = self._pop_span(event.call.id, context)
        if span is not None:
            _end_span(span, "tool_error" if _get_message(event.entry).get("isError") is True else None)

    async def on_run_end(self, event: RunEnd, context: HookContext) -> None:
        spans = self._open.pop(id(context.agent), {})
        for span in reversed(spans.values()):
            _end_span(span, "aborted" if event.aborted else "error" if event.error is not None else None)

    def _start_span(self, key: str, name: str, kind: Any, context: HookContext) -> Span | None:
        from opentelemetry.trace import set_span_in_context

        spans = self._open.get(id(context.agent))
        if spans is None:
            return None
        span = spans[key] = self._tracer.start_span(name, set_span_in_context(spans["run"]), kind)
        return span

    def _pop_span(self, key: str, context: HookContext) -> Span | None:
        return self._open.get(id(context.agent), {}).pop(key, None)


def _get_model_attributes(context: HookContext) -> dict[str, str]:
    info: ModelInfo = context.agent.model.info
    return {
        "gen_ai.provider.name": PROVIDER_NAMES.get(info.provider, info.provider),
        "gen_ai.request.model": info.model,
    }


def _get_message(entry: Entry) -> JsonObject:
    return entry.body.message if isinstance(entry.body, Message) else {}


def _end_span(span: Span, failure: str | None) -> None:
    """End a span, with the kind of failure if it failed."""
    from opentelemetry.trace import StatusCode

    if failure is not None:
        span.set_attribute("error.type", failure)
        span.set_status(StatusCode.ERROR)
    span.end()
