"""Handlers that fail at any event: the run continues or is cancelled, and the session stays valid."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sessiontree.agent.tool import tool
from sessiontree.core.messages import ToolCall
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import EVENT_NAMES, BeforeToolCall, Notice
from sessiontree.session import Session
from tests.agent.conftest import MakeAgent, format_messages, get_scripted_model, record_events

EVENTS = [
    "input", "run_start", "before_message", "message_start", "turn_start", "before_request", "message_delta",
    "message_end", "before_tool_call", "tool_start", "tool_result", "tool_end", "turn_end", "run_end", "queue_changed",
]  # fmt: skip


def raise_error(event: Any, context: Any) -> Any:
    raise RuntimeError("a bug in an extension")


def return_junk(event: Any, context: Any) -> Any:
    return {"no such field": 1}


async def hang(event: Any, context: Any) -> Any:
    await asyncio.sleep(60)


@tool
async def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("handler", [raise_error, return_junk, hang], ids=lambda handler: handler.__name__)
@pytest.mark.parametrize("name", EVENTS)
async def test_a_failing_handler_is_reported_and_the_run_continues(
    agent: MakeAgent, session: Session, name: str, handler: Any
) -> None:
    hooks = Hooks()
    hooks.on(name, handler, deadline=0.02)
    made = agent([ToolCall("c1", "look", {})], "Done.", "More.", tools=[look], hooks=hooks)
    events = record_events(hooks)
    await made.follow_up("And then?")

    outcome = await asyncio.wait_for(made.run("Go"), 20)

    assert outcome.text == "More."
    blocked = name == EVENT_NAMES[BeforeToolCall]
    reported = [event.text for event in events if isinstance(event, Notice)]
    assert all(f"(at {name})" in text for text in reported)
    assert reported or handler is return_junk
    lines = format_messages(session.head)
    assert lines[:2] == ["user: Go", "assistant: "]
    assert ("blocked" in lines[2]) if blocked else (lines[2] == "toolResult: seen")
    assert lines[3:] == ["assistant: Done.", "user: And then?", "assistant: More."]
    assert [problem for problem in session.problems if problem.severity == "fault"] == []
    assert not get_scripted_model(made)._answers
