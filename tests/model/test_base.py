"""The model protocol: partial messages and incomplete streams."""

import time
from collections.abc import AsyncGenerator

import pytest

from sessiontree.core.messages import ToolCall
from sessiontree.model.base import (
    INCOMPLETE_CALL,
    Finished,
    ModelError,
    ModelEvent,
    ModelInfo,
    PartialMessage,
    Request,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    complete,
)
from tests.model.requests import HELLO

INFO = ModelInfo(provider="acme", model="one", api="openai-completions")


def test_a_partial_message_keeps_the_order_of_events() -> None:
    draft = PartialMessage(INFO)

    for event in (
        ThinkingDelta("H"),
        ThinkingDelta("m"),
        TextDelta("A"),
        ToolCallStart("c1", "read"),
        ToolCallDelta("c1", "{}"),
        ToolCallEnd(ToolCall("c1", "read", {})),
        TextDelta("B"),
    ):
        draft.apply(event)

    message = draft.build_message("aborted", "stopped by the user")
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm"},
        {"type": "text", "text": "A"},
        {"type": "toolCall", "id": "c1", "name": "read", "arguments": {}},
        {"type": "text", "text": "B"},
    ]
    assert (message["provider"], message["stopReason"], message["errorMessage"]) == (
        "acme",
        "aborted",
        "stopped by the user",
    )


def test_a_partial_call_is_kept_as_text() -> None:
    draft = PartialMessage(INFO)

    draft.apply(ToolCallStart("c1", "read"))
    assert draft.build_message("aborted")["content"] == []
    draft.apply(ToolCallDelta("c1", '{"pa'))

    said = INCOMPLETE_CALL.format(name="read") + '{"pa'
    assert draft.build_message("aborted")["content"] == [{"type": "text", "text": said}]


def test_a_draft_of_many_pieces_takes_linear_time() -> None:
    draft = PartialMessage(INFO)
    piece = TextDelta("x" * 1000)

    start = time.process_time()
    for _ in range(100_000):
        draft.apply(piece)

    assert len(draft.content[0]["text"]) == draft.size == 100_000_000
    assert time.process_time() - start < 5  # seconds; with a copy for each piece it would be hours


def test_a_finished_message_is_the_draft() -> None:
    draft = PartialMessage(INFO)
    whole = {"role": "assistant", "content": [{"type": "text", "text": "Yes"}], "stopReason": "stop"}

    draft.apply(TextDelta("Ye"))
    draft.apply(Finished(whole))

    assert draft.build_message("aborted") == whole
    assert draft.content == whole["content"]


async def test_an_answer_without_a_finish_is_an_error() -> None:
    class Silent:
        info = INFO

        async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
            yield TextDelta("Ye")

    with pytest.raises(ModelError, match="the stream was cut off"):
        await complete(Silent(), HELLO)
