"""Tracing: spans of OpenTelemetry for runs of agents, calls of models and calls of tools, by the GenAI conventions.

They say which model and tool, how long and how much. What was said is not in them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sessiontree.core.entries import Entry, JsonObject, Message
from sessiontree.core.messages import number, role, stop_reason, string
from sessiontree.hooks.bus import Context, Hooks
from sessiontree.hooks.events import MessageEnd, MessageStart, RunEnd, RunStart, ToolEnd, ToolStart
from sessiontree.model.base import ModelInfo

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

PROVIDERS = {"google": "gcp.gemini", "mistral": "mistral_ai"}
"""What the conventions call providers, where it is something else."""
FINISHED = {"toolUse": "tool_calls"}
"""And reasons to stop."""


def configured() -> bool:
    """Whether something in this process collects spans."""
    return "opentelemetry.sdk.trace" in sys.modules


def trace(hooks: Hooks, tracer: Tracer | None = None) -> Callable[[], None]:
    """Make spans of what agents with these hooks do. Returns what ends it.

    Raises `ModuleNotFoundError` where OpenTelemetry is not installed.
    """
    from opentelemetry.trace import get_tracer

    runs = _Runs(get_tracer("sessiontree") if tracer is None else tracer)
    offs = [
        hooks.on(event, handler, source="tracing")
        for event, handler in (
            (RunStart, runs.started),
            (MessageStart, runs.asked),
            (MessageEnd, runs.answered),
            (ToolStart, runs.called),
            (ToolEnd, runs.returned),
            (RunEnd, runs.ended),
        )
    ]

    def off() -> None:
        for each in offs:
            each()

    return off


class _Runs:
    """The spans that are open, those of each agent by what they are of: the run, the model, and calls by their ids."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[int, dict[str, Span]] = {}

    async def started(self, event: RunStart, context: Context) -> None:
        from opentelemetry.trace import SpanKind

        name = context.branch.name
        span = self._tracer.start_span(f"invoke_agent {name}", kind=SpanKind.INTERNAL)
        span.set_attributes(
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": name,
                "gen_ai.conversation.id": context.session.id,
                **_model(context),
            }
        )
        self._open[id(context.agent)] = {"run": span}

    async def asked(self, event: MessageStart, context: Context) -> None:
        from opentelemetry.trace import SpanKind

        if event.role == "assistant":
            info = context.agent.model.info
            span = self._begin("model", f"chat {info.model}", SpanKind.CLIENT, context)
            if span is not None:
                span.set_attributes({"gen_ai.operation.name": "chat", **_model(context)})

    async def answered(self, event: MessageEnd, context: Context) -> None:
        message = _message(event.entry)
        span = self._end("model", context) if role(message) == "assistant" else None
        if span is None:
            return
        usage: Any = message.get("usage") or {}
        reason = stop_reason(message) or "stop"
        span.set_attributes(
            {
                "gen_ai.response.model": string(message.get("model")) or "unknown",
                "gen_ai.response.finish_reasons": [FINISHED.get(reason, reason)],
                "gen_ai.usage.input_tokens": int(
                    sum(number(usage.get(kind)) for kind in ("input", "cacheRead", "cacheWrite"))
                ),
                "gen_ai.usage.output_tokens": int(number(usage.get("output"))),
            }
        )
        _close(span, reason if reason in ("error", "aborted") else None)

    async def called(self, event: ToolStart, context: Context) -> None:
        from opentelemetry.trace import SpanKind

        call = event.call
        span = self._begin(call.id, f"execute_tool {call.name}", SpanKind.INTERNAL, context)
        if span is not None:
            span.set_attributes(
                {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": call.name,
                    "gen_ai.tool.call.id": call.id,
                    "gen_ai.tool.type": "function",
                }
            )

    async def returned(self, event: ToolEnd, context: Context) -> None:
        span = self._end(event.call.id, context)
        if span is not None:
            _close(span, "tool_error" if _message(event.entry).get("isError") is True else None)

    async def ended(self, event: RunEnd, context: Context) -> None:
        spans = self._open.pop(id(context.agent), {})
        for span in reversed(spans.values()):
            _close(span, "aborted" if event.aborted else "error" if event.error is not None else None)

    def _begin(self, key: str, name: str, kind: Any, context: Context) -> Span | None:
        from opentelemetry.trace import set_span_in_context

        spans = self._open.get(id(context.agent))
        if spans is None:
            return None
        span = spans[key] = self._tracer.start_span(name, set_span_in_context(spans["run"]), kind)
        return span

    def _end(self, key: str, context: Context) -> Span | None:
        return self._open.get(id(context.agent), {}).pop(key, None)


def _model(context: Context) -> dict[str, str]:
    info: ModelInfo = context.agent.model.info
    return {"gen_ai.provider.name": PROVIDERS.get(info.provider, info.provider), "gen_ai.request.model": info.model}


def _message(entry: Entry) -> JsonObject:
    return entry.body.message if isinstance(entry.body, Message) else {}


def _close(span: Span, failure: str | None) -> None:
    """End a span; of one that failed, say with which kind of failure."""
    from opentelemetry.trace import StatusCode

    if failure is not None:
        span.set_attribute("error.type", failure)
        span.set_status(StatusCode.ERROR)
    span.end()
