"""Handlers that fail at any event while a user runs all commands: every command still works.

A tool call whose permission check fails is blocked, and its error result is written in the same place.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import sessiontree as st
from sessiontree.agent.factory import AgentOptions
from sessiontree.agent.tool import tool
from sessiontree.core.messages import ToolCall
from sessiontree.hooks.events import EVENTS, Notice
from sessiontree.slash_commands.controller import SessionController
from tests.slash_commands.conftest import ScriptedModels, make_scripted_model, record_events

LINES = (
    "one", "/label here", "/retry", "/branch-here side", "two", "/switch main", "/merge side", "/cherry-pick side",
    "/pop", "/undo", "/thinking high", "/model scripted:large", "/compact", "/uncompact", "/clone", "/new", "three",
)  # fmt: skip

NEVER = {
    "tool_denied", "tool_update", "retry_scheduled", "queue_changed", "compact_failed", "snapshot_progress", "notice"
}  # fmt: skip
"""Events that these commands do not cause, or that only listeners get."""


@tool
def look() -> str:
    """Look."""
    return "seen"


async def run_scenario(event: str | None, handler: Any) -> tuple[list[str], list[str]]:
    """Return the types of all entries of the last two sessions, and the notices."""
    long = "word" * 2500
    answers = [[ToolCall("1", "look", {})], *[long] * 12]
    large = make_scripted_model("large", *[long] * 12)
    first = st.memory()
    controller = SessionController(
        first,
        model=make_scripted_model("usual", *answers),
        models=ScriptedModels(large=large),
        options=AgentOptions(tools=[look], system=""),
    )
    events = record_events(controller)
    if event is not None:
        controller.hooks.on(event, handler, source="faulty", deadline=0.05)
    await controller.start()
    for line in LINES:
        done = await controller.submit(line)
        assert done.outcome is None or done.outcome.ok, line
    last = controller.session
    await controller.close()
    assert not [problem for problem in (*first.problems, *last.problems) if problem.severity == "fault"]
    notices = [event.text for event in events if isinstance(event, Notice)]
    return [entry.type for entry in (*first.tree, *last.tree)], notices


def raise_error(event: object, context: object) -> None:
    raise ValueError("out of order")


def return_junk(event: object, context: object) -> Any:
    return {"nonsense": 1}


@pytest.fixture(scope="module")
def whole() -> list[str]:
    """The result without failures."""
    types, notices = asyncio.run(run_scenario(None, None))
    assert not notices
    assert {"compaction", "branch_summary", "branch_point", "model_change"} <= set(types)
    return types


@pytest.mark.parametrize("handler", [raise_error, return_junk])
@pytest.mark.parametrize("event", EVENTS)
async def test_a_failing_handler_is_reported_and_work_continues(event: str, handler: Any, whole: list[str]) -> None:
    types, notices = await run_scenario(event, handler)

    assert types == whole
    asked = EVENTS[event].answer is not None
    if event not in NEVER and (asked or handler is raise_error):
        assert notices
        assert all(notice.startswith("faulty ") and event in notice for notice in notices)
