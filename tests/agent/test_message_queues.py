"""Queues: steering, follow-ups, the next turn, messages of extensions, commands of the user."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.message_queues import QueueSnapshot
from sessiontree.agent.tool import tool
from sessiontree.core.entries import CustomMessage
from sessiontree.core.messages import ToolCall
from sessiontree.errors import BranchMoved, InvalidOperation, StoreError
from sessiontree.format.json_line import LINE_LIMIT
from sessiontree.hooks.events import Notice, QueueChanged, ToolUpdate
from sessiontree.model.base import ModelError
from sessiontree.model.scripted import Delay, ScriptedModel
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


def note(text: str) -> CustomMessage:
    return CustomMessage(custom_type="note", content=text)


def fail_on_full_disk(*_: Any, **__: Any) -> None:
    raise StoreError("here", "no space left")


def list_kinds(session: Session) -> list[str]:
    return [entry.type for entry in session.head.path() if not entry.type.endswith("_change")]


async def test_steering_is_sent_after_the_tool_calls_of_the_turn(agent: MakeAgent, session: Session) -> None:
    @tool
    async def work() -> str:
        """Work."""
        await made.steer("Not there")
        await made.steer("Here")
        return "worked"

    made = agent([ToolCall("c1", "work", {}), ToolCall("c2", "work", {})], "As you wish.", tools=[work])

    await made.run("Go")

    assert format_messages(session.head) == [
        "user: Go",
        "assistant: ",
        "toolResult: worked",
        "toolResult: worked",
        "user: Not there",
        "user: Here",
        "user: Not there",
        "user: Here",
        "assistant: As you wish.",
    ]
    assert made.queued == QueueSnapshot()


async def test_steering_after_an_answer_without_calls_starts_another_turn(agent: MakeAgent, session: Session) -> None:
    asked, steered = asyncio.Event(), asyncio.Event()

    async def answer(request: Any) -> str:
        asked.set()
        await steered.wait()
        return "One."

    made = agent(answer, "Two.")
    asking = asyncio.create_task(made.run("1"))
    await asked.wait()

    await made.steer("2")
    steered.set()
    assert (await asking).text == "Two."

    assert format_messages(session.head) == ["user: 1", "assistant: One.", "user: 2", "assistant: Two."]


async def test_follow_ups_are_sent_one_by_one_at_the_end_of_the_run(agent: MakeAgent, session: Session) -> None:
    @tool
    async def work() -> str:
        """Work."""
        await made.follow_up("Then this")
        await made.follow_up("And that")
        return "worked"

    made = agent([ToolCall("c1", "work", {})], "Done.", "This too.", "That too.", tools=[work])
    events = record_events(made.hooks)

    assert (await made.run("Go")).text == "That too."

    assert format_messages(session.head)[3:] == [
        "assistant: Done.",
        "user: Then this",
        "assistant: This too.",
        "user: And that",
        "assistant: That too.",
    ]
    changes = [event.follow_up for event in events if isinstance(event, QueueChanged)]
    assert changes == [("Then this",), ("Then this", "And that"), ("And that",), ()]


async def test_an_unwritable_message_is_not_queued(agent: MakeAgent, session: Session) -> None:
    @tool
    async def report() -> str:
        """Report."""
        await made.send_message(CustomMessage(custom_type="note", content="It failed", details={"error": ValueError()}))
        return "fine"

    made = agent(ToolCall("c1", "report", {}), "I see.", "Again.", tools=[report])
    odd = {"type": "image", "data": "aGk=", "mimeType": "image/png", "odd": object()}
    for queue in (made.steer, made.follow_up, made.queue_for_next_turn):
        with pytest.raises(InvalidOperation, match=r"the entry cannot be written: .* object is unsupported"):
            await queue("Look", [odd])
    with pytest.raises(InvalidOperation, match=r"exceed the [0-9]+ bytes that an entry can hold"):
        await made.queue_for_next_turn("x" * LINE_LIMIT)

    assert made.queued == QueueSnapshot()
    assert [(await made.run(text)).text for text in ("Go", "On")] == ["I see.", "Again."]
    assert format_messages(session.head)[2].startswith(
        "toolResult: report failed with InvalidOperation: the entry cannot be written"
    )


async def test_queued_messages_are_copies(agent: MakeAgent, session: Session) -> None:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": "as it was"}]

    @tool
    async def report() -> str:
        """Report."""
        await made.send_message(CustomMessage(custom_type="note", content="Noted", details=details))
        details["error"] = ValueError()
        return "fine"

    details: dict[str, Any] = {"job": 7}
    made = agent(ToolCall("c1", "report", {}), "I see.", "Again.", tools=[report])
    await made.queue_for_next_turn(st.user(blocks))
    blocks[0]["text"] = object()

    assert (await made.run("Go")).text == "I see."
    assert format_messages(session.head)[0] == "user: as it was"
    (noted,) = [entry.body for entry in session.head.path() if isinstance(entry.body, CustomMessage)]
    assert (noted.content, noted.details) == ("Noted", {"job": 7})


async def test_a_text_with_images_may_wait_for_the_next_turn(agent: MakeAgent, session: Session) -> None:
    made = agent("I see.")
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}

    await made.queue_for_next_turn("By the way", [image])
    await made.queue_for_next_turn("And this")

    assert made.queued.next_turn == ("By the way", "And this")
    await made.run("Go")
    assert format_messages(session.head) == ["user: By the way", "user: And this", "user: Go", "assistant: I see."]
    first = next(entry for entry in session.head.path() if entry.type == "message")
    assert first.body.message["content"] == [{"type": "text", "text": "By the way"}, image]


async def test_messages_for_the_next_turn_come_before_the_next_prompt(agent: MakeAgent, session: Session) -> None:
    made = agent("Yes.")

    await made.queue_for_next_turn(note("The build is green"))
    assert made.queued.next_turn == ("The build is green",)
    await made.run("Ready?")

    assert list_kinds(session) == ["custom_message", "message", "message"]
    assert format_request(made) == ["user: The build is green", "user: Ready?"]


async def test_queued_messages_can_be_listed_and_cleared(agent: MakeAgent, session: Session) -> None:
    made = agent("Fine.")
    await made.steer("a")
    await made.follow_up("b")
    await made.queue_for_next_turn(st.user("c"))

    assert await made.clear_queues() == QueueSnapshot(steering=("a",), follow_up=("b",), next_turn=("c",))

    assert made.queued == QueueSnapshot()
    await made.run("Go")
    assert format_messages(session.head) == ["user: Go", "assistant: Fine."]


async def test_queued_messages_survive_an_abort(agent: MakeAgent) -> None:
    made = agent([Delay(30)])
    asking = asyncio.create_task(made.run("Go"))
    await wait_until(lambda: get_scripted_model(made).requests)
    await made.follow_up("later")

    made.abort()
    assert (await asking).aborted

    assert made.queued.follow_up == ("later",)


async def test_queued_messages_can_be_sent_without_a_run(agent: MakeAgent, session: Session) -> None:
    made = agent("One.", "Two.", "Three.")
    await made.run("first")
    await made.follow_up("third")
    await made.steer("second")

    assert (await made.send_queued()).text == "Three."

    assert [line.partition(": ")[2] for line in format_messages(session.head)] == [
        *("first", "One."),
        *("second", "Two."),
        *("third", "Three."),
    ]
    assert made.queued == QueueSnapshot()


async def test_without_queued_messages_there_is_nothing_to_send(agent: MakeAgent, session: Session) -> None:
    with pytest.raises(st.InvalidOperation, match="no messages are queued"):
        await agent("One.").send_queued()

    assert session.head.path() == []


async def test_a_message_cleared_from_the_queue_is_not_answered(agent: MakeAgent) -> None:
    made = agent("One.")
    await made.run("first")
    await made.steer("second")
    made.hooks.on("run_start", lambda event, ctx: made.queues.clear() and None)

    outcome = await made.send_queued()

    assert outcome.cancelled
    assert len(made.model.requests) == 1


async def test_messages_stay_queued_if_the_branch_was_moved(agent: MakeAgent, session: Session) -> None:
    async def move(request: Any) -> str:
        await made.steer("Faster")
        return "One."

    made = agent(move)
    made.hooks.on("turn_end", lambda event, ctx: session.append(st.user("from elsewhere")))

    outcome = await made.run("Go")

    assert isinstance(outcome.error, BranchMoved)
    assert outcome.text == "One."
    assert made.queued.steering == ("Faster",)


async def test_messages_for_a_refused_prompt_stay_queued(tmp_path: Path) -> None:
    ours = st.create(file=tmp_path / "s.jsonl")
    theirs = st.open(tmp_path / "s.jsonl")
    made = Agent(ours.head, ScriptedModel(["One."]))
    await made.queue_for_next_turn(note("By the way"))
    theirs.append(st.user("theirs"))

    with pytest.raises(BranchMoved):
        await made.run("Go")

    assert made.queued.next_turn == ("By the way",)


async def test_only_the_message_cancelled_by_a_handler_leaves_the_queue(agent: MakeAgent, session: Session) -> None:
    async def steered(request: Any) -> str:
        for text in ("good", "bad", "better"):
            await made.steer(text)
        return "One."

    made = agent(steered, "Two.")
    made.hooks.on("before_message", lambda event, ctx: {"cancel": "bad" in str(event.message["content"])})
    events = record_events(made.hooks)

    assert (await made.run("Go")).cancelled

    assert made.queued.steering == ("good", "better")
    assert [event for event in events if isinstance(event, QueueChanged)][-1].steering == ("good", "better")
    assert format_messages(session.head) == ["user: Go", "assistant: One."]


async def test_a_follow_up_that_could_not_be_sent_is_queued_again(
    agent: MakeAgent, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = agent("One.")
    await made.follow_up("later")
    made.hooks.on("turn_end", lambda event, ctx: monkeypatch.setattr(session._store, "append", fail_on_full_disk))

    with pytest.raises(StoreError):
        await made.run("Go")

    assert made.queued == QueueSnapshot(follow_up=("later",))


@pytest.mark.parametrize("why", ["disk", "handler"])
async def test_messages_for_a_prompt_that_could_not_be_written_stay_queued(
    agent: MakeAgent, session: Session, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    made = agent("One.")
    await made.queue_for_next_turn(note("By the way"))

    if why == "disk":
        with monkeypatch.context() as patched:
            patched.setattr(session._store, "append", fail_on_full_disk)
            with pytest.raises(StoreError):
                await made.run("Go")
    else:
        off = made.hooks.on("before_message", lambda event, ctx: {"cancel": event.message["role"] == "user"})
        assert (await made.run("Go")).cancelled
        off()

    assert made.queued.next_turn == ("By the way",)
    await made.run("Again")
    assert list_kinds(session) == ["custom_message", "message", "message"]
    assert made.queued.next_turn == ()


async def test_a_message_of_an_extension_is_written_at_once_when_nothing_runs(
    agent: MakeAgent, session: Session
) -> None:
    made = agent()

    await made.send_message(note("Saved"))

    assert list_kinds(session) == ["custom_message"]
    assert get_scripted_model(made).requests == []


async def test_a_message_of_an_extension_may_trigger_a_turn(agent: MakeAgent, session: Session) -> None:
    made = agent("I see.")

    await made.send_message(note("The build broke"), trigger_turn=True)
    await made.wait_until_idle()

    assert list_kinds(session) == ["custom_message", "message"]
    assert format_request(made) == ["user: The build broke"]


async def test_a_message_of_an_extension_during_a_run_is_written_after_the_turn(
    agent: MakeAgent, session: Session
) -> None:
    @tool
    async def work() -> str:
        """Work."""
        await made.send_message(note("During"), trigger_turn=True)
        return "worked"

    async def answer(request: Any) -> str:
        await made.send_message(note("At the end"), trigger_turn=True)
        return "Done."

    made = agent([ToolCall("c1", "work", {})], answer, "Never.", tools=[work])

    assert (await made.run("Go")).text == "Done."

    assert list_kinds(session) == ["message", "message", "message", "custom_message", "message", "custom_message"]
    assert format_request(made) == ["user: Go", "assistant: ", "toolResult: worked", "user: During"]


async def test_the_failure_of_a_background_run_is_reported(agent: MakeAgent, session: Session) -> None:
    made = agent(ModelError("m", "auth", "no key"))
    events = record_events(made.hooks)
    session.close()

    await made.send_message(note("x"), trigger_turn=True)
    await made.wait_until_idle()
    await asyncio.sleep(0)

    assert any(isinstance(event, Notice) and "closed" in event.text for event in events)


async def test_a_command_of_the_user_is_in_the_context_or_not(agent: MakeAgent, session: Session) -> None:
    made = agent("I see.", cwd="/")
    events = record_events(made.hooks)

    ran = await made.run_bash("echo one; exit 2")
    await made.run_bash("echo two", in_context=False)
    await made.run("Well?")

    assert (ran.output, ran.exit_code) == ("one", 2)
    shown = [entry.body.message for entry in session.head.path() if entry.type == "message"][:2]
    assert [{**message, "timestamp": 0} for message in shown] == [
        {
            "role": "bashExecution",
            "command": "echo one; exit 2",
            "output": "one",
            "exitCode": 2,
            "cancelled": False,
            "truncated": False,
            "timestamp": 0,
        },
        {
            "role": "bashExecution",
            "command": "echo two",
            "output": "two",
            "exitCode": 0,
            "cancelled": False,
            "truncated": False,
            "excludeFromContext": True,
            "timestamp": 0,
        },
    ]
    (run, asked) = format_request(made)
    assert "echo one" in run
    assert asked == "user: Well?"
    assert [event.text for event in events if isinstance(event, ToolUpdate)] == ["one\n", "two\n"]


async def test_a_command_of_the_user_can_be_aborted(agent: MakeAgent, session: Session) -> None:
    made = agent("Fine.")
    events = record_events(made.hooks)
    running = asyncio.create_task(made.run_bash("echo begun; sleep 60"))
    while not any(isinstance(event, ToolUpdate) for event in events):
        await asyncio.sleep(0.01)

    made.abort()
    ran = await asyncio.wait_for(running, 30)

    assert (ran.aborted, ran.output) == (True, "begun")
    assert get_last_message(session.head)["cancelled"] is True
    assert "exitCode" not in get_last_message(session.head)
    assert (await made.run_bash("echo again")).output == "again"


async def test_a_command_during_a_run_is_written_when_the_turn_ends(agent: MakeAgent, session: Session) -> None:
    asked, ran = asyncio.Event(), asyncio.Event()

    async def answer(request: Any) -> str:
        asked.set()
        await ran.wait()
        return "Done."

    made = agent(answer, cwd="/")
    asking = asyncio.create_task(made.run("Go"))
    await asked.wait()

    await made.run_bash("echo side")
    ran.set()
    await asking

    assert [entry.body.message["role"] for entry in session.head.path() if entry.type == "message"] == [
        "user",
        "assistant",
        "bashExecution",
    ]
