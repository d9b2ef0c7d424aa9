"""Tracing spans of runs, model calls and tool calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import GenAiProviderNameValues
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, SpanKind, StatusCode

import sessiontree as st
from sessiontree.agent import tracing
from sessiontree.agent.tracing import is_configured, trace
from sessiontree.core.messages import ToolCall
from sessiontree.hooks.bus import Hooks
from sessiontree.model.base import ModelError
from sessiontree.model.scripted import ScriptedModel, ScriptedUsage
from sessiontree.swarm.swarm import Swarm


class Span(NonRecordingSpan):
    """A span that records its attributes."""

    def __init__(self, name: str, parent: Span | None, kind: SpanKind) -> None:
        super().__init__(INVALID_SPAN_CONTEXT)
        self.name = name
        self.parent = parent
        self.kind = kind
        self.attributes: dict[str, Any] = {}
        self.failed = False
        self.ended = 0

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def set_attributes(self, attributes: Any) -> None:
        self.attributes |= attributes

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.failed = status is StatusCode.ERROR

    def end(self, end_time: int | None = None) -> None:
        self.ended += 1


class Tracer(otel.NoOpTracer):
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def start_span(self, name: str, context: Any = None, kind: SpanKind = SpanKind.INTERNAL, **_: Any) -> Span:
        above = otel.get_current_span(context)
        span = Span(name, above if isinstance(above, Span) else None, kind)
        self.spans.append(span)
        return span

    @property
    def find_span(self) -> list[str]:
        return [span.name for span in self.spans]


@st.tool
def look(word: str) -> str:
    """Look something up."""
    if word == "nothing":
        raise ValueError("there is nothing")
    return "secret result"


def create_agent(answers: list[Any], tracer: Tracer) -> st.Agent:
    session = st.memory()
    hooks = Hooks()
    trace(hooks, tracer)
    return st.Agent(session.head, ScriptedModel(answers), [look], hooks)


async def test_a_run_has_spans_for_the_model_and_for_tools_below_its_own() -> None:
    tracer = Tracer()
    used = ScriptedUsage({"input": 10, "output": 5, "cacheRead": 2})
    one = create_agent([[ToolCall("c1", "look", {"word": "secret"}), used], ["secret answer", used]], tracer)
    await one.run("secret question")

    run, first, tool, second = tracer.spans
    assert tracer.find_span == ["invoke_agent main", "chat scripted", "execute_tool look", "chat scripted"]
    assert [span.parent for span in (first, tool, second)] == [run, run, run]
    assert [span.kind for span in tracer.spans] == [
        SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL, SpanKind.CLIENT,
    ]  # fmt: skip
    assert all(span.ended == 1 and not span.failed for span in tracer.spans)
    assert run.attributes["gen_ai.conversation.id"] == one.branch.session.id
    assert first.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted",
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.cache_creation.input_tokens": 0,
    }
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.type": "function",
    }
    assert "secret" not in str([span.attributes for span in tracer.spans])


async def test_failures_of_models_and_tools_are_marked() -> None:
    tracer = Tracer()
    failing = ModelError("scripted:scripted", "rate", "slow down")
    one = create_agent([[ToolCall("c1", "look", {"word": "nothing"})], failing], tracer)
    await one.run("Hello")
    run, first, tool, second = tracer.spans
    assert [span.attributes.get("error.type") for span in (run, first, tool, second)] == [
        "error", None, "tool_error", "error",
    ]  # fmt: skip
    assert [span.failed for span in (run, first, tool, second)] == [True, False, True, True]
    assert all(span.ended == 1 for span in tracer.spans)


async def test_agents_of_a_swarm_have_separate_spans() -> None:
    tracer, hooks = Tracer(), Hooks()
    trace(hooks, tracer)
    session = st.memory()
    session.append(st.user("Hello"))
    await (await Swarm.create(session, "crowd", "Do it", model=ScriptedModel(["Done."] * 2), hooks=hooks)).run()
    runs = {span.name: span for span in tracer.spans if span.parent is None}
    assert set(runs) == {"invoke_agent crowd/worker-1", "invoke_agent crowd/worker-2"}
    assert [span.parent for span in tracer.spans if span.parent is not None] == list(runs.values())


async def test_tracing_can_be_removed() -> None:
    tracer, hooks = Tracer(), Hooks()
    trace(hooks, tracer)()
    await st.Agent(st.memory().head, ScriptedModel(["Done."]), [], hooks).run("Hello")
    assert tracer.spans == []


def test_a_process_without_the_tracing_sdk_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "opentelemetry.sdk.trace", raising=False)
    assert not is_configured()
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", otel)
    assert is_configured()


def test_every_attribute_and_provider_name_is_one_of_the_published_conventions() -> None:
    published = vars(gen_ai_attributes)
    names = {value for key, value in published.items() if key.startswith("GEN_AI_")}
    used = set(re.findall(r'"(gen_ai\.[a-z_.]+)"', Path(tracing.__file__).read_text()))

    assert used <= names
    assert len(used) >= 13
    assert set(tracing.PROVIDER_NAMES.values()) <= {value.value for value in GenAiProviderNameValues}
