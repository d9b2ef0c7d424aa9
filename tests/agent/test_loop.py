"""The agent loop: requests, written entries, and failures."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.tool import Tool, ToolContext, ToolOutput, tool
from sessiontree.agent.tools import builtin_tools
from sessiontree.config import Config, RetrySettings
from sessiontree.core.entries import ContextEdit, Custom, ModelChange, ThinkingLevelChange
from sessiontree.core.messages import ToolCall, tool_call
from sessiontree.errors import BranchMoved, InvalidOperation, StoreError
from sessiontree.format.json_line import LINE_LIMIT
from sessiontree.hooks.bus import HookContext, Hooks
from sessiontree.hooks.events import MessageDelta, MessageEnd, Navigated, Notice, RunEnd, ToolEnd, ToolUpdate, TurnEnd
from sessiontree.model.base import ModelError, TextDelta
from sessiontree.model.scripted import INFO, Delay, ScriptedModel, ScriptedStop, Thinking
from sessiontree.session import Session
from tests.agent.conftest import (
    MakeAgent,
    find_processes,
    format_messages,
    format_request,
    get_last_message,
    get_messages,
    get_scripted_model,
    list_event_names,
    record_events,
)
from tests.waiting import wait_until


@tool(concurrent=True)
async def echo(text: str, after: float = 0) -> str:
    """Return the text."""
    await asyncio.sleep(after)
    return text


@tool
async def fail() -> None:
    """Fail."""
    raise ValueError("broken")


@tool
def leave() -> None:
    """Exit the program."""
    sys.exit(2)


def build_call(id: str, name: str = "echo", **arguments: Any) -> ToolCall:
    return ToolCall(id, name, arguments)


# A conversation


async def test_a_prompt_is_answered_and_both_are_written(agent: MakeAgent, session: Session) -> None:
    made = agent("Hello there.")

    outcome = await made.run("Hi")

    assert outcome.ok
    assert outcome.text == "Hello there."
    assert format_messages(session.head) == ["user: Hi", "assistant: Hello there."]
    assert get_last_message(session.head)["stopReason"] == "stop"
    assert get_last_message(session.head)["usage"]["output"] > 0
    assert format_request(made) == ["user: Hi"]
    assert get_scripted_model(made).requests[0].system == "Be brief."


async def test_the_model_and_the_thinking_level_are_written_once(agent: MakeAgent, session: Session) -> None:
    made = agent("One", "Two", thinking="high")

    await made.run("1")
    await made.run("2")

    settings = [entry.body for entry in session.head.path() if entry.type.endswith("_change")]
    assert settings == [ModelChange(provider="scripted", model="scripted"), ThinkingLevelChange("high")]
    assert [request.thinking for request in get_scripted_model(made).requests] == ["high", "high"]
    assert Agent(session.head, ScriptedModel()).thinking == "high"


async def test_a_prompt_can_have_images(agent: MakeAgent, session: Session) -> None:
    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}

    await agent("A dot.").run("What is it?", [image])

    assert get_messages(session.head.path())[0]["content"] == [{"type": "text", "text": "What is it?"}, image]


async def test_events_report_every_step_in_order(agent: MakeAgent) -> None:
    made = agent([Thinking("Hm."), "Look. ", build_call("c1", text="x")], "Done.", tools=[echo])
    events = record_events(made.hooks)

    await made.run("Go")

    assert list_event_names(events) == [
        "input", "run_start", "before_message", "message_start", "message_end",
        "turn_start", "before_request", "message_start", "before_message", "message_end",
        "before_tool_call", "tool_start", "tool_result", "before_message", "message_start", "message_end", "tool_end",
        "turn_end",
        "turn_start", "before_request", "message_start", "before_message", "message_end", "turn_end", "run_end",
    ]  # fmt: skip
    deltas = [event for event in events if isinstance(event, MessageDelta)]
    assert "".join(event.text for event in deltas if event.kind == "thinking") == "Hm."
    assert "".join(event.text for event in deltas if event.kind == "text") == "Look. Done."
    begun = next(event for event in deltas if event.kind == "tool_call")
    assert (begun.call, begun.name) == ("c1", "echo")


async def test_events_can_be_read_during_the_run(agent: MakeAgent) -> None:
    made = agent("Hello there.")
    events = made.events()
    asking = asyncio.create_task(made.run("Hi"))

    seen = [event async for event in events]

    assert isinstance(seen[-1], RunEnd)
    assert (await asking).text == "Hello there."


async def collect_events(events: Any) -> list[Any]:
    return [event async for event in events]


@pytest.mark.parametrize("handled", ["input", "before_message", "before_request"])
async def test_events_end_when_a_handler_cancels(agent: MakeAgent, handled: str) -> None:
    made = agent("Never.")
    made.hooks.on(handled, lambda event, context: {"cancel": True})
    events = made.events()
    asking = asyncio.create_task(made.run("Hi"))

    await asyncio.wait_for(collect_events(events), 30)

    assert (await asking).cancelled


async def test_events_end_when_a_run_is_refused(agent: MakeAgent) -> None:
    made = agent("Never.")
    for refused in (made.continue_, made.send_queued):
        events = made.events()
        asking = asyncio.create_task(refused())

        assert await asyncio.wait_for(collect_events(events), 30) == []

        with pytest.raises(InvalidOperation):
            await asking


async def test_events_end_without_a_run_and_when_the_agent_is_closed(agent: MakeAgent) -> None:
    made = agent("Never.")
    assert await asyncio.wait_for(collect_events(made.events()), 30) == []

    events = made.events()
    await made.close()
    assert await asyncio.wait_for(collect_events(events), 30) == []


async def test_events_of_a_run_continue_when_another_run_is_refused(agent: MakeAgent) -> None:
    made = agent(["One", Delay(0.05), " more."])
    events = made.events()
    asking = asyncio.create_task(made.run("Hi"))
    await asyncio.sleep(0)
    with pytest.raises(InvalidOperation, match="is running"):
        await made.run("Too soon")

    assert isinstance((await collect_events(events))[-1], RunEnd)
    await asking


async def test_abandoned_event_streams_are_unsubscribed(agent: MakeAgent) -> None:
    made = agent("One.", "Two.")
    before = len(made.hooks._listeners)
    unread = made.events()
    events = made.events()
    asking = asyncio.create_task(made.run("Hi"))
    async for _ in events:
        break
    await events.aclose()
    await asking
    del unread
    gc.collect()

    assert len(made.hooks._listeners) == before


async def test_an_agent_has_one_run_at_a_time(agent: MakeAgent, session: Session) -> None:
    made = agent([Delay(0.2), "One"])
    first = asyncio.create_task(made.run("1"))
    await asyncio.sleep(0)

    assert made.running
    with pytest.raises(InvalidOperation, match="is running"):
        await made.run("2")
    assert (await first).ok
    assert not made.running


# Tools


async def test_tools_are_called_and_the_model_sees_their_results(agent: MakeAgent, session: Session) -> None:
    made = agent([build_call("c1", text="x")], "It says x.", tools=[echo])

    await made.run("Go")

    assert format_messages(session.head) == ["user: Go", "assistant: ", "toolResult: x", "assistant: It says x."]
    result = get_messages(session.head.path())[2]
    assert (result["toolCallId"], result["toolName"], result["isError"]) == ("c1", "echo", False)
    assert format_request(made) == ["user: Go", "assistant: ", "toolResult: x"]
    assert [spec.name for spec in get_scripted_model(made).requests[0].tools] == ["echo"]


async def test_concurrent_calls_run_together_and_results_keep_their_order(agent: MakeAgent, session: Session) -> None:
    finished = asyncio.Event()

    @tool(concurrent=True)
    async def wait(text: str) -> str:
        """Wait for `finish`, which is called last."""
        await finished.wait()
        return text

    @tool(concurrent=True)
    async def finish(text: str) -> str:
        """Let the other calls return."""
        finished.set()
        return text

    calls = [
        build_call("c1", "wait", text="slow"),
        build_call("c2", "wait", text="fast"),
        build_call("c3", "finish", text="now"),
    ]
    made = agent(calls, "Done.", tools=[wait, finish])

    await asyncio.wait_for(made.run("Go"), 30)

    assert format_messages(session.head)[2:5] == ["toolResult: slow", "toolResult: fast", "toolResult: now"]


async def test_calls_that_change_something_wait_for_each_other(agent: MakeAgent) -> None:
    running = 0

    @tool
    async def change() -> str:
        """Change."""
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.01)
        running -= 1
        return "changed"

    made = agent(
        [build_call("c1", "change"), build_call("c2", "change"), build_call("c3", text="x")],
        "Done.",
        tools=[change, echo],
    )

    assert (await made.run("Go")).ok
    assert format_request(made)[2:] == ["toolResult: changed", "toolResult: changed", "toolResult: x"]


async def test_every_failure_of_a_call_is_reported_to_the_model(agent: MakeAgent, session: Session) -> None:
    made = agent(
        [
            build_call("c1", "nothing"),
            build_call("c2"),
            build_call("c3", "fail"),
            ToolCall("c4", "echo", "no object"),
            build_call("c5", "leave"),
        ],
        "I see.",
        tools=[echo, fail, leave],
    )

    await made.run("Go")

    results = get_messages(session.head.path())[2:7]
    assert all(result["isError"] for result in results)
    assert [result["content"][0]["text"] for result in results] == [
        "Tool 'nothing' not found; tools: echo, fail, leave.",
        "invalid arguments for echo: Object missing required field `text`",
        "fail failed with ValueError: broken",
        "invalid arguments for echo: Expected `object`, got `str`",
        "leave failed with SystemExit: 2",
    ]


async def test_details_that_json_cannot_hold_become_text(agent: MakeAgent, session: Session) -> None:
    async def run(context: ToolContext) -> ToolOutput:
        return ToolOutput(content="ok", details={"path": Path("/x"), 1: 2})

    made = agent([build_call("c1", "odd")], "Done.", tools=[Tool(name="odd", description="", run=run)])

    assert (await made.run("Go")).ok
    assert get_messages(session.head.path())[2]["details"] == {"path": "/x", "1": 2}


async def test_deeply_nested_values_become_text_without_loss(agent: MakeAgent, session: Session) -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]

    async def run(context: ToolContext) -> ToolOutput:
        return ToolOutput(content="ok", details=deep)

    made = agent(
        ["Paid for.", build_call("c1", text=deep)],
        [build_call("c2", "odd")],
        "Done.",
        tools=[echo, Tool(name="odd", description="", run=run)],
    )

    assert (await made.run("Go")).text == "Done."

    _, answer, refused, _, result, _ = get_messages(session.head.path())
    assert answer["content"][0]["text"] == "Paid for."
    assert answer["content"][1]["arguments"] == '{"text":' + "[" * 301 + "]" * 301 + "}"
    assert refused["content"][0]["text"] == "invalid arguments for echo: Expected `object`, got `str`"
    assert result["details"] == "[" * 301 + "]" * 301


async def test_a_result_too_long_for_an_entry_is_cut_and_the_next_call_runs(tmp_path: Path) -> None:
    session = st.create(file=tmp_path / "s.jsonl", durability="none")

    @tool
    async def dump() -> str:
        """Dump."""
        return "y" * LINE_LIMIT

    calls = [build_call("c1", "dump"), build_call("c2", text="still here")]
    made = Agent(session.head, ScriptedModel([calls, "I see."]), [dump, echo], system="")

    assert (await made.run("Go")).ok

    long, after = get_messages(session.head.path())[2:4]
    assert not long["isError"]
    assert "bytes are in" in long["content"][1]["text"]
    assert after["content"] == [{"type": "text", "text": "still here"}]


async def test_calls_of_a_truncated_answer_are_not_run(agent: MakeAgent, session: Session) -> None:
    made = agent([build_call("c1", text="x"), ScriptedStop("length")], "Shorter.", tools=[echo])

    await made.run("Go")

    assert "length limit" in format_messages(session.head)[2]


async def test_output_of_a_tool_is_shown_while_it_runs(agent: MakeAgent) -> None:
    @tool
    async def talk(context: ToolContext) -> str:
        """Talk."""
        context.update("half")
        return "whole"

    made = agent([build_call("c1", "talk")], "Done.", tools=[talk])
    events = record_events(made.hooks)

    await made.run("Go")

    assert [(event.call.id, event.text) for event in events if isinstance(event, ToolUpdate)] == [("c1", "half")]


async def test_output_of_a_tool_in_a_thread_is_shown_in_the_loop_while_it_runs(agent: MakeAgent) -> None:
    shown = threading.Event()
    seen: list[object] = []

    @tool
    def build(context: ToolContext) -> str:
        """Build."""
        context.update("1")
        seen.append(shown.wait(10))
        context.update("2")
        context.update("3")
        return "built"

    made = agent(build_call("c1", "build"), "Done.", tools=[build])
    threads: set[threading.Thread] = set()
    made.hooks.listen(lambda event: threads.add(threading.current_thread()))
    events = made.events()
    building = asyncio.create_task(made.run("Go"))
    async for event in events:
        if isinstance(event, ToolUpdate):
            seen.append(event.text)
            shown.set()
        elif isinstance(event, ToolEnd):
            seen.append("end")
    await building

    assert seen == ["1", True, "2", "3", "end"]
    assert threads == {threading.current_thread()}


# Handlers


async def test_handlers_may_change_the_input_the_request_the_call_and_the_result(session: Session) -> None:
    hooks = Hooks()
    hooks.on("input", lambda event, ctx: {"text": event.text.upper()})
    hooks.on("context", lambda event, ctx: {"messages": event.messages[-1:], "system": "Other."})
    hooks.on("tool_call", lambda event, ctx: {"arguments": {"text": "changed"}})
    hooks.on("tool_result", lambda event, ctx: {"content": f"<{event.content[0]['text']}>"})
    model = ScriptedModel([[build_call("c1", text="x")], "Done."])
    made = Agent(session.head, model, [echo], hooks)

    await made.run("go")

    assert format_messages(session.head) == ["user: GO", "assistant: ", "toolResult: <changed>", "assistant: Done."]
    assert model.requests[1].system == "Other."
    assert len(model.requests[1].messages) == 1


async def test_a_handler_may_block_a_call_and_the_model_sees_the_reason(agent: MakeAgent, session: Session) -> None:
    made = agent([build_call("c1", text="x")], "I see.", tools=[echo])
    made.hooks.on("tool_call", lambda event, ctx: {"cancel": True, "reason": "not today"})
    events = record_events(made.hooks)

    await made.run("Go")

    assert format_messages(session.head)[2] == "toolResult: The call was blocked: not today"
    assert "tool_start" not in list_event_names(events)


@pytest.mark.parametrize(("event", "written"), [("input", []), ("before_message", []), ("context", ["user: Go"])])
async def test_a_handler_may_cancel_a_prompt(
    agent: MakeAgent, session: Session, event: str, written: list[str]
) -> None:
    made = agent("Never.")
    made.hooks.on(event, lambda event, ctx: {"cancel": True})

    outcome = await made.run("Go")

    assert outcome.cancelled
    assert not outcome.ok
    assert format_messages(session.head) == written
    assert get_scripted_model(made).requests == []


async def test_a_handler_may_change_a_message_but_not_its_role(agent: MakeAgent, session: Session) -> None:
    made = agent("Secret: 42.")

    def redact(event: Any, ctx: Any) -> Any:
        if event.message["role"] == "assistant":
            return {"message": {**event.message, "content": [{"type": "text", "text": "Secret: …"}]}}
        return {"message": {**event.message, "role": "assistant"}}

    made.hooks.on("before_message", redact)
    events = record_events(made.hooks)

    await made.run("Go")

    assert format_messages(session.head) == ["user: Go", "assistant: Secret: …"]
    assert any(isinstance(event, Notice) and "role" in event.text for event in events)


async def test_calls_that_a_handler_removes_from_an_answer_are_not_run(agent: MakeAgent, session: Session) -> None:
    made = agent(["I call.", build_call("c1", "fail"), build_call("c2", text="kept")], "Done.", tools=[echo, fail])

    def strip(event: Any, ctx: Any) -> Any:
        kept = [block for block in event.message["content"] if block != tool_call("c1", "fail", {})]
        return {"message": {**event.message, "content": kept}}

    made.hooks.on("before_message", strip)

    assert (await made.run("Go")).ok

    assert format_messages(session.head)[1:] == ["assistant: I call.", "toolResult: kept", "assistant: Done."]
    assert not session.problems


async def test_a_message_that_a_handler_made_unwritable_is_written_unchanged(
    agent: MakeAgent, session: Session
) -> None:
    made = agent("Paid for.")
    made.hooks.on("before_message", lambda event, ctx: {"message": {**event.message, "odd": object()}})
    events = record_events(made.hooks)

    assert (await made.run("Go")).ok

    assert format_messages(session.head) == ["user: Go", "assistant: Paid for."]
    assert [event.text for event in events if isinstance(event, Notice)] == [
        "a handler's change to a message was ignored: Encoding objects of type object is unsupported"
    ] * 2


async def test_tools_get_session_events_until_the_agent_is_closed(
    agent: MakeAgent,
) -> None:
    reported: list[Any] = []
    keeper = Tool(name="keeper", description="", run=echo.run, on_session=reported.append)
    made = agent(tools=[keeper])
    moved = Navigated(new_leaf="a", old_leaf="b")

    await made.hooks.emit(moved)
    await made.close()
    await made.hooks.emit(moved)

    assert reported == [moved]


async def test_a_tool_that_fails_at_a_session_event_is_reported_and_the_others_run(agent: MakeAgent) -> None:
    def fail(event: Any) -> None:
        raise ValueError("boom")

    reported: list[Any] = []
    broken = Tool(name="broken", description="", run=echo.run, on_session=fail)
    keeper = Tool(name="keeper", description="", run=echo.run, on_session=reported.append)
    made = agent(tools=[broken, keeper])
    events = record_events(made.hooks)
    moved = Navigated(new_leaf="a", old_leaf="b")

    await made.hooks.emit(moved)

    assert reported == [moved]
    assert [event.text for event in events if isinstance(event, Notice)] == [
        "broken failed with ValueError: boom (at navigated)"
    ]


async def test_a_tool_of_several_agents_gets_a_session_event_once_after_all_handlers(
    agent: MakeAgent, session: Session
) -> None:
    reported: list[str] = []
    keeper = Tool(name="keeper", description="", run=echo.run, on_session=lambda event: reported.append("tool"))
    made = agent(tools=[keeper])
    beside = [made.hooks.derive(HookContext(session=session)) for _ in range(2)]
    others = [Agent(session.head, made.model, [keeper], hooks) for hooks in beside]
    made.hooks.on(Navigated, lambda event, context: reported.append("handler"))

    await made.hooks.emit(Navigated(new_leaf="a", old_leaf="b"))

    assert reported == ["handler", "tool"]
    for other in others:
        await other.close()


async def test_shared_handlers_see_the_agent_of_an_event(session: Session) -> None:
    hooks, reported, shown = Hooks(), [], []
    hooks.on(TurnEnd, lambda event, ctx: reported.append((ctx.agent, ctx.session, ctx.branch)))
    hooks.listen(lambda event: shown.append(event) if isinstance(event, TurnEnd) else None)
    branches = [session.head, session.create_branch("side"), st.memory().head]
    agents = [Agent(branch, ScriptedModel(["Yes."]), hooks=hooks, system="") for branch in branches]

    for one in reversed(agents):
        await one.run("Well?")

    assert reported == [(one, one.branch.session, one.branch) for one in reversed(agents)]
    assert len(shown) == 3


async def test_the_next_agent_reuses_the_hooks_of_a_closed_agent(session: Session) -> None:
    hooks, reported = Hooks(), []
    hooks.on(TurnEnd, lambda event, ctx: reported.append((ctx.agent, ctx.session)))
    await Agent(session.head, ScriptedModel([]), hooks=hooks).close()

    after = Agent(st.memory().head, ScriptedModel(["Yes."]), hooks=hooks, system="")
    await after.run("Well?")

    assert after.hooks is hooks
    assert reported == [(after, after.branch.session)]


async def test_events_at_the_end_of_a_closed_agent_still_belong_to_it(session: Session) -> None:
    hooks, reported, begun = Hooks(), [], asyncio.Event()
    hooks.on(RunEnd, lambda event, ctx: reported.append((ctx.agent, ctx.branch)))
    hooks.listen(lambda event: begun.set() if isinstance(event, MessageDelta) else None)
    closed = Agent(session.head, ScriptedModel([["Half", Delay(30)]]), hooks=hooks, system="")
    running = asyncio.create_task(closed.run("Well?"))
    await begun.wait()

    await closed.close()
    after = Agent(st.memory().head, ScriptedModel(["Yes."]), hooks=hooks, system="")
    await running
    await after.run("Well?")

    assert reported == [(closed, closed.branch), (after, after.branch)]


async def test_added_tools_get_session_events_and_removed_tools_do_not(
    agent: MakeAgent,
) -> None:
    reported: list[str] = []
    before, after = (
        Tool(name=name, description="", run=echo.run, on_session=lambda event, name=name: reported.append(name))
        for name in ("before", "after")
    )
    made = agent(tools=[before])
    made.tools = {"after": after}

    await made.hooks.emit(Navigated(new_leaf="a", old_leaf="b"))

    assert reported == ["after"]


# Failures


async def test_a_failure_of_the_model_is_written_with_the_partial_answer(agent: MakeAgent, session: Session) -> None:
    error = ModelError("scripted:scripted", "server", "it broke", status=500)
    made = agent(["Half of ", error], "Whole.", settings=Config(retry=RetrySettings(attempts=1)))
    events = record_events(made.hooks)

    outcome = await made.run("Go")

    assert outcome.error is error
    assert format_messages(session.head) == ["user: Go", "assistant: Half of "]
    assert get_last_message(session.head)["stopReason"] == "error"
    assert get_last_message(session.head)["errorMessage"] == "it broke"
    assert [event for event in events if isinstance(event, RunEnd)] == [
        RunEnd(aborted=False, error="scripted:scripted: it broke")
    ]

    assert (await made.continue_()).text == "Whole."
    assert format_request(made) == ["user: Go"]


async def test_an_answer_that_the_provider_stopped_is_a_failure(agent: MakeAgent, session: Session) -> None:
    outcome = await agent(["Half", ScriptedStop("error")]).run("Go")

    assert isinstance(outcome.error, ModelError)
    assert outcome.error.kind == "rejected"
    assert outcome.text == "Half"


async def test_a_stream_without_a_final_event_is_a_failure(session: Session) -> None:
    class Broken:
        info = INFO

        async def stream(self, request: Any) -> Any:
            yield TextDelta("Half")

    outcome = await Agent(session.head, Broken(), settings=Config(retry=RetrySettings(attempts=1))).run("Go")

    assert isinstance(outcome.error, ModelError)
    assert outcome.error.kind == "network"
    assert get_last_message(session.head)["content"] == [{"type": "text", "text": "Half"}]


async def test_an_exception_in_a_model_is_raised_and_the_session_stays_complete(session: Session) -> None:
    class Buggy:
        info = INFO

        async def stream(self, request: Any) -> Any:
            yield TextDelta("Half")
            raise KeyError("oops")

    made = Agent(session.head, Buggy())

    with pytest.raises(KeyError):
        await made.run("Go")
    assert get_last_message(session.head)["errorMessage"] == "KeyError: 'oops'"
    assert not made.running


async def test_continuing_needs_a_message_to_answer(agent: MakeAgent) -> None:
    made = agent("Yes.")
    with pytest.raises(InvalidOperation, match="no message to answer"):
        await made.continue_()
    await made.run("Go")
    with pytest.raises(InvalidOperation, match="no message to answer"):
        await made.continue_()


async def test_a_failing_disk_is_an_error_and_the_agent_can_continue(
    agent: MakeAgent, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = agent("One", "Two")
    await made.run("1")

    def full(*_: Any, **__: Any) -> None:
        raise StoreError("here", "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(session._store, "append", full)
        with pytest.raises(StoreError, match="no space left"):
            await made.run("2")

    assert format_messages(session.head) == ["user: 1", "assistant: One"]
    assert (await made.run("3")).text == "Two"


# Aborting


async def test_aborting_writes_the_partial_answer(agent: MakeAgent, session: Session) -> None:
    made = agent(["Half ", Delay(30), "whole"], "Again.")
    events = record_events(made.hooks)
    asking = asyncio.create_task(made.run("Go"))
    await wait_until(lambda: any(isinstance(event, MessageDelta) for event in events))

    made.abort()
    outcome = await asyncio.wait_for(asking, 20)

    assert outcome.aborted
    assert outcome.text == "Half "
    assert get_last_message(session.head)["stopReason"] == "aborted"
    assert (await made.run("Again")).text == "Again."
    assert format_request(made) == ["user: Go", "user: Again"]


async def test_aborting_a_tool_answers_every_call(agent: MakeAgent, session: Session) -> None:
    calls = [build_call("c1", text="done"), build_call("c2", "wait"), build_call("c3", text="never")]

    @tool
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(30)
        return "waited"

    made = agent(calls, "Never.", tools=[echo, wait])
    events = record_events(made.hooks)
    asking = asyncio.create_task(made.run("Go"))
    await wait_until(lambda: list_event_names(events).count("tool_start") == 2)

    made.abort()
    outcome = await asyncio.wait_for(asking, 20)

    assert outcome.aborted
    assert format_messages(session.head)[2:] == [
        "toolResult: done",
        "toolResult: The call was aborted.",
        "toolResult: The call was not run: the run was aborted before it.",
    ]
    assert len(get_scripted_model(made).requests) == 1


async def test_a_tool_that_does_not_stop_is_abandoned(
    agent: MakeAgent, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiontree.agent.loop.GRACE_SECONDS", 0.1)
    let_go = asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Never stop."""
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return ""

    made = agent([build_call("c1", "stubborn")], tools=[stubborn])
    events = record_events(made.hooks)
    asking = asyncio.create_task(made.run("Go"))
    await wait_until(lambda: "tool_start" in list_event_names(events))

    made.abort()
    assert (await asyncio.wait_for(asking, 20)).aborted
    let_go.set()
    assert format_messages(session.head)[-1] == "toolResult: The call was aborted."


async def test_hanging_tools_block_neither_the_abort_nor_the_next_prompt(
    session: Session,
) -> None:
    let_go = threading.Event()

    @tool(concurrent=True)
    def hang() -> None:
        """Hang."""
        let_go.wait(60)

    calls = [build_call(f"c{number}", "hang") for number in range(40)]
    made = Agent(session.head, ScriptedModel([calls, "Here."]), [hang])
    events = record_events(made.hooks)
    hanging = asyncio.create_task(made.run("Go"))
    await wait_until(lambda: list_event_names(events).count("tool_start") == 40)

    made.abort()

    assert (await asyncio.wait_for(hanging, 20)).aborted
    assert (await asyncio.wait_for(made.run("And now?"), 20)).text == "Here."
    let_go.set()


@pytest.mark.parametrize(
    ("event", "written"),
    [
        ("input", []),
        ("run_start", ["user: Go"]),
        ("before_message", []),
        ("message_end", ["user: Go"]),
        ("turn_start", ["user: Go"]),
        ("before_request", ["user: Go"]),
        ("tool_end", ["user: Go", "assistant: ", "toolResult: x"]),
        ("turn_end", ["user: Go", "assistant: ", "toolResult: x"]),
    ],
)
async def test_aborting_does_not_wait_for_a_running_handler(
    agent: MakeAgent, session: Session, event: str, written: list[str]
) -> None:
    made = agent([build_call("c1", text="x")], "Never.", tools=[echo])
    at_work = asyncio.Event()

    async def hang(event: Any, ctx: Any) -> None:
        at_work.set()
        await asyncio.Event().wait()

    made.hooks.on(event, hang)
    asking = asyncio.create_task(made.run("Go"))
    await asyncio.wait_for(at_work.wait(), 20)

    made.abort()
    outcome = await asyncio.wait_for(asking, 20)

    assert outcome.aborted
    assert outcome.cancelled == (written == [])
    assert format_messages(session.head) == written


async def test_an_answer_is_written_unchanged_if_a_handler_was_cancelled(agent: MakeAgent, session: Session) -> None:
    made = agent("Paid for.")
    at_work = asyncio.Event()

    async def hang(event: Any, ctx: Any) -> None:
        if event.message["role"] == "assistant":
            at_work.set()
            await asyncio.Event().wait()

    made.hooks.on("before_message", hang)
    asking = asyncio.create_task(made.run("Go"))
    await asyncio.wait_for(at_work.wait(), 20)

    made.abort()
    await asyncio.wait_for(asking, 20)

    assert format_messages(session.head) == ["user: Go", "assistant: Paid for."]


async def test_handlers_called_after_an_abort_share_a_grace_period(
    agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiontree.hooks.abort.GRACE_SECONDS", 1.0)
    made = agent([Delay(30), "Never."])
    events = record_events(made.hooks)
    reported: list[str] = []

    async def quick(event: Any, ctx: Any) -> None:
        await asyncio.sleep(0)
        reported.append("turn_end")

    async def hang(event: Any, ctx: Any) -> None:
        await asyncio.Event().wait()

    made.hooks.on("turn_end", quick)
    made.hooks.on("run_end", hang)
    asking = asyncio.create_task(made.run("Go"))
    await wait_until(lambda: list_event_names(events).count("message_start") == 2)

    made.abort()
    assert (await asyncio.wait_for(asking, 20)).aborted

    assert reported == ["turn_end"]
    assert list_event_names(events)[-1] == "run_end"


async def test_cancelling_the_caller_aborts_and_still_writes(agent: MakeAgent, session: Session) -> None:
    made = agent(["Half ", Delay(30)])
    events = record_events(made.hooks)
    asking = asyncio.create_task(made.run("Go"))
    await wait_until(lambda: any(isinstance(event, MessageDelta) for event in events))

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert not made.running
    assert format_messages(session.head) == ["user: Go", "assistant: Half "]
    assert get_last_message(session.head)["stopReason"] == "aborted"


async def test_aborting_an_idle_agent_does_nothing(agent: MakeAgent) -> None:
    made = agent("Fine.")

    made.abort()

    assert (await made.run("Go")).ok


async def test_aborting_ends_every_process_of_a_command(agent: MakeAgent, session: Session) -> None:
    mark = "62.4321"
    command = f"echo begun; (sleep {mark} & sleep {mark}) & sleep {mark}"
    made = agent([build_call("c1", "bash", command=command)], tools=builtin_tools("bash"))
    events = record_events(made.hooks)
    asking = asyncio.create_task(made.run("Go"))
    await wait_until(lambda: any(isinstance(event, ToolUpdate) for event in events))

    made.abort()
    assert (await asyncio.wait_for(asking, 20)).aborted

    assert format_messages(session.head)[-1] == "toolResult: begun\n\nThe command was aborted."
    assert not find_processes(mark)


# Several agents


async def test_agents_on_branches_of_one_session_do_not_disturb_each_other(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    session = st.create(file=file, durability="flush")
    session.append(st.user("Begin"))
    turns = 6

    async def work(name: str) -> None:
        answers = [
            answer for turn in range(turns) for answer in ([build_call(f"c{turn}", text=name)], f"{name} {turn}")
        ]
        branch = session.create_branch(name, at="main", current=False)
        made = Agent(branch, ScriptedModel(answers), [echo], system="")
        for turn in range(turns):
            assert (await made.run(f"{turn}?")).ok

    await asyncio.gather(*map(work, ("a", "b", "c", "d")))
    session.close()

    again = st.open(file)
    for name in ("a", "b", "c", "d"):
        assert format_messages(again.branch(name)) == [
            "user: Begin",
            *(
                line
                for turn in range(turns)
                for line in (f"user: {turn}?", "assistant: ", f"toolResult: {name}", f"assistant: {name} {turn}")
            ),
        ]
    assert (again.head.name, format_messages(again.head)) == ("main", ["user: Begin"])


# Another writer moves the branch


async def test_results_of_a_run_after_the_branch_moved_are_late_entries(agent: MakeAgent, session: Session) -> None:
    made = agent("First.", [build_call("c1", "move")], "Never.", tools=[])
    await made.run("1")
    first = session.head.leaf

    @tool
    async def move() -> str:
        """Move the branch away."""
        session.navigate_sync(first)
        return "moved"

    made.tools = {"move": move}
    outcome = await made.run("2")

    assert isinstance(outcome.error, BranchMoved)
    assert outcome.message is not None
    result = session.tree.entries[-1]
    assert get_messages([result])[0]["role"] == "toolResult"
    assert result.branch is None
    assert result.parent == outcome.message.id
    assert format_messages(session.head) == ["user: 1", "assistant: First."]
    assert len(get_scripted_model(made).requests) == 2


async def test_a_prompt_on_a_branch_moved_by_another_process_is_refused_before_any_write(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    ours = st.create(file=file)
    ours.append(st.user("0"))
    theirs = st.open(file)
    made = Agent(ours.head, ScriptedModel(["One", "Two"]))
    theirs.append(st.user("theirs"))

    with pytest.raises(BranchMoved):
        await made.run("1")
    assert format_messages(ours.head) == ["user: 0", "user: theirs"]
    assert (await made.run("1")).text == "One"


async def test_a_move_by_another_process_ends_the_run_without_losing_results(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    ours = st.create(file=file)
    theirs = st.open(file)

    def interrupt(request: Any) -> str:
        theirs.refresh()
        theirs.append(st.user("theirs"))
        return "Mine."

    made = Agent(ours.head, ScriptedModel([interrupt]))
    outcome = await made.run("1")

    assert isinstance(outcome.error, BranchMoved)
    assert outcome.text == "Mine."
    assert format_messages(ours.head) == ["user: 1", "user: theirs"]
    branch = ours.create_branch("mine", at=outcome.message, current=False)
    assert format_messages(branch) == ["user: 1", "assistant: Mine."]


async def test_annotations_of_an_extension_are_not_a_move(agent: MakeAgent, session: Session) -> None:
    @tool
    def remember() -> str:
        """Write state."""
        session.append(Custom(custom_type="todo", data=[1]))
        return "ok"

    made = agent([build_call("c1", "remember")], "Done.", tools=[remember])

    assert (await made.run("Go")).ok
    assert [entry.type for entry in session.head.path()][-3:] == ["custom", "message", "message"]


async def test_a_context_edit_during_a_run_is_not_a_move_and_applies_to_the_next_request(
    agent: MakeAgent, session: Session
) -> None:
    first = session.append(st.user("a secret"))

    @tool
    def forget() -> str:
        """Leave the first message out."""
        session.append(ContextEdit(target=first.id))
        return "ok"

    made = agent([build_call("c1", "forget")], "Done.", tools=[forget])

    assert (await made.run("Go")).ok
    before, after = (str(request.messages) for request in get_scripted_model(made).requests)
    assert "a secret" in before
    assert "a secret" not in after


async def test_no_request_is_sent_after_the_branch_was_moved(agent: MakeAgent, session: Session) -> None:
    made = agent([build_call("c1", text="x")], "Never.", tools=[echo])
    made.hooks.on("turn_end", lambda event, ctx: session.append(st.user("from elsewhere")))

    outcome = await made.run("Go")

    assert isinstance(outcome.error, BranchMoved)
    assert len(get_scripted_model(made).requests) == 1


async def test_continuing_with_another_model_is_written(agent: MakeAgent, session: Session) -> None:
    await agent(ModelError("scripted:scripted", "server", "down")).run("Go")
    other = ScriptedModel(["Here."], info=msgspec.structs.replace(INFO, model="other"))

    assert (await agent(model=other).continue_()).ok

    assert session.head.path()[-2].body == ModelChange(provider="scripted", model="other")


# Responsive


async def test_slow_tools_do_not_block_writing(tmp_path: Path) -> None:
    session = st.create(file=tmp_path / "s.jsonl", durability="none")
    let_go = threading.Event()

    @tool(concurrent=True)
    def block() -> str:
        """Block a thread."""
        let_go.wait(10)
        return ""

    busy = Agent(
        session.head, ScriptedModel([[build_call(f"c{number}", "block") for number in range(40)], "Done."]), [block]
    )
    events = record_events(busy.hooks)
    blocking = asyncio.create_task(busy.run("Go"))
    await wait_until(lambda: list_event_names(events).count("tool_start") == 40)
    other = Agent(session.create_branch("other", current=False), ScriptedModel(["Here."]), system="")

    assert (await asyncio.wait_for(other.run("Hi"), 20)).text == "Here."
    let_go.set()
    assert (await blocking).ok


async def test_a_slow_disk_does_not_block_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = st.create(file=tmp_path / "s.jsonl")
    append = session._store.append
    writing, release = threading.Event(), threading.Event()

    def wait_and_append(*arguments: Any, **options: Any) -> Any:
        writing.set()
        assert release.wait(30), "the event loop is blocked"
        return append(*arguments, **options)

    monkeypatch.setattr(session._store, "append", wait_and_append)
    prompting = asyncio.create_task(Agent(session.head, ScriptedModel(["One"])).run("1"))
    await wait_until(writing.is_set, 30)
    release.set()

    assert (await prompting).ok


async def test_message_end_carries_the_entry_that_was_written(agent: MakeAgent, session: Session) -> None:
    made = agent("One")
    events = record_events(made.hooks)

    await made.run("1")

    ended = [event.entry.id for event in events if isinstance(event, MessageEnd)]
    assert ended == [entry.id for entry in session.head.path() if entry.type == "message"]
