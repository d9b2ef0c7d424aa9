"""The parts of a script and their events."""

import asyncio

import pytest

from sessiontree.core.message_views import Text
from sessiontree.core.messages import ToolCall
from sessiontree.model.base import (
    Finished,
    ModelError,
    ModelInfo,
    Request,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    complete,
)
from sessiontree.model.scripted import Delay, ScriptedModel, ScriptedStop, ScriptedUsage, Thinking
from tests.model.requests import collect_failure
from tests.waiting import wait_until

HELLO = Request(messages=[{"role": "user", "content": "Hello, you there"}])


async def test_an_answer_takes_the_same_blocks_as_a_message() -> None:
    message = await complete(ScriptedModel([[Text("Let me look."), ToolCall("c1", "read", {})]]), HELLO)

    assert [block["type"] for block in message["content"]] == ["text", "toolCall"]
    assert message["content"][0]["text"] == "Let me look."


async def test_a_text_is_streamed_word_by_word_and_ends_with_the_complete_message() -> None:
    *deltas, last = [event async for event in ScriptedModel(["It is so."]).stream(HELLO)]

    assert deltas == [TextDelta("It "), TextDelta("is "), TextDelta("so.")]
    assert isinstance(last, Finished)
    assert last.message["content"] == [{"type": "text", "text": "It is so."}]
    assert last.message["stopReason"] == "stop"
    assert (last.message["provider"], last.message["model"]) == ("scripted", "scripted")


async def test_thinking_and_calls_come_in_the_order_of_the_script() -> None:
    model = ScriptedModel([[Thinking("hm"), "So:", ToolCall("c1", "read", {"path": "a"})]])

    *events, last = [event async for event in model.stream(HELLO)]

    assert events == [
        ThinkingDelta("hm"),
        TextDelta("So:"),
        ToolCallStart("c1", "read"),
        ToolCallDelta("c1", '{"path": '),
        ToolCallDelta("c1", '"a"}'),
        ToolCallEnd(ToolCall("c1", "read", {"path": "a"})),
    ]
    assert isinstance(last, Finished)
    assert [block["type"] for block in last.message["content"]] == ["thinking", "text", "toolCall"]
    assert last.message["stopReason"] == "toolUse"


async def test_usage_is_estimated_unless_the_script_sets_it() -> None:
    model = ScriptedModel(["12345678", ["x", ScriptedUsage({"input": 100, "cost": 0.5}), ScriptedStop("length")]])

    estimated, said = await complete(model, HELLO), await complete(model, HELLO)

    assert (estimated["usage"]["input"], estimated["usage"]["output"]) == (4, 2)
    assert (said["usage"]["totalTokens"], said["usage"]["cost"]["total"]) == (100, 0.5)
    assert said["stopReason"] == "length"


async def test_a_scripted_error_is_raised_at_its_position() -> None:
    model = ScriptedModel([["Half", ModelError("scripted:scripted", "network", "cut")]])

    seen, error = await collect_failure(model)

    assert error.reason == "cut"
    assert seen == [TextDelta("Half")]


async def test_a_function_is_given_the_request() -> None:
    async def later(request: Request) -> str:
        return f"again {len(request.messages)}"

    model = ScriptedModel([lambda request: request.messages[0]["content"].upper(), later])

    answers = [await complete(model, HELLO), await complete(model, HELLO)]

    assert [answer["content"][0]["text"] for answer in answers] == ["HELLO, YOU THERE", "again 1"]
    assert model.requests == [HELLO, HELLO]


async def test_a_delay_can_be_cancelled() -> None:
    model = ScriptedModel([["Wait", Delay(60), "no"]])
    task = asyncio.ensure_future(complete(model, HELLO))
    await wait_until(lambda: model.requests)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)


async def test_an_empty_script_is_an_error_and_more_can_be_added() -> None:
    model = ScriptedModel(info=ModelInfo(provider="a", model="b", context_window=4096))

    with pytest.raises(ModelError, match="a:b: the script has no answers left"):
        await complete(model, HELLO)
    model.add("more")

    assert (await complete(model, HELLO))["content"][0]["text"] == "more"
    assert model.info.context_window == 4096
