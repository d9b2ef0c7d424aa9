"""Automatic compaction: when it starts, and how a run recovers from a context that is too long."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from sessiontree.agent.tool import tool
from sessiontree.config import CompactionSettings, Config, RetrySettings
from sessiontree.core.entries import Compaction, ContextEdit
from sessiontree.core.messages import ToolCall, get_role
from sessiontree.hooks.events import Compacted, CompactFailed, RetryScheduled
from sessiontree.model.base import ModelError
from sessiontree.model.scripted import INFO, Delay, ScriptedModel, ScriptedStop, ScriptedUsage
from sessiontree.session import Session
from tests.agent.conftest import (
    MakeAgent,
    format_messages,
    format_request,
    get_last_message,
    get_scripted_model,
    record_events,
)
from tests.waiting import wait_until

SMALL = msgspec.structs.replace(INFO, context_window=4000)
TOO_LONG = ModelError("scripted:scripted", "overflow", "too long", status=400)


def build_full_answer(answer: str, tokens: int = 3500) -> list[Any]:
    """Return an answer that nearly fills the window."""
    return [answer, ScriptedUsage({"input": tokens, "output": 10})]


def build_small_model(*answers: Any) -> ScriptedModel:
    return ScriptedModel(answers, info=SMALL)


def list_entry_types(session: Session) -> list[str]:
    return [
        get_role(entry.body.message) if entry.type == "message" else entry.type  # type: ignore[union-attr]
        for entry in session.head.path()
        if not entry.type.endswith("_change")
    ]


LONG = "word " * 800
"""A thousand tokens."""


async def test_a_conversation_that_is_too_long_is_compacted_after_the_run(agent: MakeAgent, session: Session) -> None:
    made = agent(model=build_small_model("One.", "Two.", build_full_answer(LONG), "The summary.", "The turn so far."))
    events = record_events(made.hooks)
    await made.run("1")
    await made.run("2")

    await made.run("3")

    assert [event.reason for event in events if isinstance(event, Compacted)] == ["threshold"]
    assert list_entry_types(session)[-1] == "compaction"
    assert isinstance(session.head.path()[-1].body, Compaction)
    assert "The summary." in session.head.path()[-1].body.summary


async def test_a_compaction_whose_stream_breaks_off_is_retried(agent: MakeAgent, session: Session) -> None:
    broken = ["Half a", ModelError("scripted:scripted", "network", "the connection broke")]
    model = build_small_model("One.", "Two.", build_full_answer(LONG), broken, "The summary.", "The turn so far.")
    made = agent(model=model, settings=Config(retry=RetrySettings(base_delay=0.001)))
    events = record_events(made.hooks)
    for words in "123":
        assert (await made.run(words)).ok

    assert [event.attempt for event in events if isinstance(event, RetryScheduled)] == [1]
    assert isinstance(session.head.path()[-1].body, Compaction)
    assert "The summary." in session.head.path()[-1].body.summary


async def test_a_conversation_that_is_too_long_is_compacted_before_the_prompt(
    agent: MakeAgent, session: Session
) -> None:
    no = Config(compaction=CompactionSettings(enabled=False))
    made = agent(
        model=build_small_model("One.", build_full_answer(LONG), "The summary.", "The turn so far.", "Three."),
        settings=no,
    )
    await made.run("1")
    await made.run("2")
    assert "compaction" not in list_entry_types(session)

    made.settings = Config()
    assert (await made.run("3")).text == "Three."

    assert list_entry_types(session) == ["user", "assistant", "user", "assistant", "compaction", "user", "assistant"]
    assert format_request(made)[-1] == "user: 3"
    assert "The summary." in format_request(made)[0]


async def test_a_turn_that_grows_too_long_is_compacted_between_its_results_and_the_next_request(
    agent: MakeAgent, session: Session
) -> None:
    @tool
    async def fetch() -> str:
        """Fetch much."""
        return LONG + LONG[:1000]

    model = build_small_model(
        "One.", [ToolCall("c1", "fetch", {})], "The summary.", "The beginning of the turn.", "Done."
    )
    made = agent(model=model, tools=[fetch])
    await made.run(LONG * 2)

    assert (await made.run("2")).text == "Done."

    assert list_entry_types(session) == [
        "user",
        "assistant",
        "user",
        "assistant",
        "toolResult",
        "compaction",
        "assistant",
    ]
    assert "The beginning of the turn." in format_request(made)[0]


async def test_a_result_too_long_for_the_window_is_summarized(agent: MakeAgent, session: Session) -> None:
    @tool
    async def fetch() -> str:
        """Fetch too much."""
        return LONG * 4

    made = agent(model=build_small_model([ToolCall("c1", "fetch", {})], "What was fetched.", "Done."), tools=[fetch])

    assert (await made.run("Go")).text == "Done."

    assert list_entry_types(session) == ["user", "assistant", "toolResult", "compaction", "assistant"]
    (asked,) = format_request(made, 2)
    assert asked.startswith("user: Summary of the conversation")
    assert "What was fetched." in asked


async def test_a_result_too_long_for_the_provider_is_summarized_with_an_unknown_window(
    agent: MakeAgent, session: Session
) -> None:
    @tool
    async def fetch() -> str:
        """Fetch too much."""
        return LONG * 4

    made = agent([ToolCall("c1", "fetch", {})], TOO_LONG, "What was fetched.", "Done.", tools=[fetch])

    assert (await made.run("Go")).text == "Done."

    (asked,) = format_request(made, 3)
    assert asked.startswith("user: Summary of the conversation")
    assert "What was fetched." in asked


async def test_a_request_refused_as_too_long_is_compacted_and_retried(agent: MakeAgent, session: Session) -> None:
    made = agent("One.", TOO_LONG, "The summary.", "Two.")
    events = record_events(made.hooks)
    await made.run("1")

    outcome = await made.run("2")

    assert outcome.ok
    assert outcome.text == "Two."
    failed = session.head.path()[-4]
    assert list_entry_types(session) == [
        "user", "assistant", "user", "assistant", "context_edit", "compaction", "assistant",
    ]  # fmt: skip
    assert failed.body.message["stopReason"] == "error"  # type: ignore[union-attr]
    assert session.head.path()[-3].body == ContextEdit(target=failed.id, replacement=None)
    (compacted,) = [event for event in events if isinstance(event, Compacted)]
    assert (compacted.reason, compacted.will_retry) == ("overflow", True)


async def test_the_second_refusal_in_a_row_ends_the_run(agent: MakeAgent, session: Session) -> None:
    made = agent("One.", TOO_LONG, "The summary.", TOO_LONG, "Never.")
    await made.run("1")

    outcome = await made.run("2")

    assert outcome.error is TOO_LONG
    assert list_entry_types(session)[-1] == "assistant"
    assert get_last_message(session.head)["stopReason"] == "error"


async def test_every_user_message_allows_another_recovery(agent: MakeAgent, session: Session) -> None:
    made = agent("One.", TOO_LONG, "Summary 1.", "Two.", TOO_LONG, "Summary 2.", "Three.")
    await made.run("1")
    await made.follow_up("3")

    assert (await made.run("2")).text == "Three."


async def test_every_successful_answer_allows_another_recovery(agent: MakeAgent) -> None:
    @tool
    def look() -> str:
        """Look."""
        return LONG

    called = ["Looking.", ToolCall("c1", "look", {})]
    made = agent("One.", called, TOO_LONG, "Summary 1.", called, TOO_LONG, "Summary 2.", "Done.", tools=[look])
    await made.run("1")

    outcome = await made.run("2")

    assert outcome.text == "Done."
    assert outcome.ok


async def test_aborting_a_recovery_is_an_abort(agent: MakeAgent) -> None:
    summarizing = asyncio.Event()

    async def summary(request: Any) -> Any:
        summarizing.set()
        await asyncio.Event().wait()

    made = agent("One.", TOO_LONG, summary, "Two.")
    await made.run("1")
    asking = asyncio.create_task(made.run("2"))
    await asyncio.wait_for(summarizing.wait(), 20)

    made.abort()
    outcome = await asyncio.wait_for(asking, 20)

    assert outcome.aborted
    assert outcome.error is None
    assert (await made.continue_()).text == "Two."


async def test_an_empty_answer_with_a_full_window_is_an_overflow(agent: MakeAgent) -> None:
    nothing = ["", ScriptedStop("length"), ScriptedUsage({"input": 3990, "output": 0})]
    made = agent(model=build_small_model("One.", nothing, "The summary.", "Two."))
    await made.run("1")

    assert (await made.run("2")).text == "Two."


async def test_without_compaction_an_overflow_is_only_reported(agent: MakeAgent, session: Session) -> None:
    made = agent("One.", TOO_LONG, settings=Config(compaction=CompactionSettings(enabled=False)))
    await made.run("1")

    assert (await made.run("2")).error is TOO_LONG
    assert list_entry_types(session) == ["user", "assistant", "user", "assistant"]


async def test_a_failed_compaction_neither_ends_the_run_nor_is_retried_after_every_turn(
    agent: MakeAgent, session: Session
) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    broken = ModelError("scripted:scripted", "server", "broken")
    calls = [ToolCall("c1", "look", {}), LONG, ScriptedUsage({"input": 3500, "output": 10})]
    made = agent(model=build_small_model(LONG, calls, broken, calls, build_full_answer("Done.")), tools=[look])
    events = record_events(made.hooks)
    await made.run("1")

    assert (await made.run("2")).text == "Done."

    assert len([event for event in events if isinstance(event, CompactFailed)]) == 1
    assert "compaction" not in list_entry_types(session)


async def test_a_manual_compaction_aborts_the_run(agent: MakeAgent, session: Session) -> None:
    made = agent("One.", ["Half", Delay(30)], "The summary.", "Two.")
    await made.run("1")
    asking = asyncio.create_task(made.run("2"))
    await wait_until(lambda: len(get_scripted_model(made).requests) == 2)

    outcome = await made.compact("Only the facts")

    assert (await asking).aborted
    assert outcome.entry is not None
    assert "Only the facts" in str(get_scripted_model(made).requests[-1].messages)
    assert (await made.run("3")).text == "Two."


async def test_a_compaction_can_be_aborted(agent: MakeAgent, session: Session) -> None:
    made = agent("One.", [Delay(30), "Never."], "Two.")
    await made.run("1")
    compacting = asyncio.create_task(made.compact())
    await wait_until(lambda: len(get_scripted_model(made).requests) == 2)
    before = format_messages(session.head)

    made.abort()
    outcome = await asyncio.wait_for(compacting, 20)

    assert outcome.aborted
    assert format_messages(session.head) == before
    assert (await made.run("2")).ok


@pytest.mark.parametrize("when", ["before", "after"])
async def test_aborting_during_a_compaction_loses_no_messages(agent: MakeAgent, session: Session, when: str) -> None:
    no = Config(compaction=CompactionSettings(enabled=False))
    made = agent(
        model=build_small_model("One.", build_full_answer(LONG), [Delay(30), "Never."]),
        settings=no if when == "before" else None,
    )
    events = record_events(made.hooks)
    await made.run("1")
    if when == "before":
        await made.run("2")
        made.settings = Config()
    asking = asyncio.create_task(made.run("last"))
    await wait_until(lambda: len(get_scripted_model(made).requests) == 3)
    assert any(type(event).__name__ == "BeforeCompact" for event in events)

    made.abort()
    outcome = await asyncio.wait_for(asking, 20)

    assert outcome.aborted
    assert any(line == "user: last" for line in format_messages(session.head))
