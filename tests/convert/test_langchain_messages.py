"""Messages of LangChain, as their classes dump them."""

from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

import sessiontree as st
from sessiontree.convert.langchain_messages import read_langchain_message

PIXEL = "iVBORw0KGgo="


def read(message: Any) -> Any:
    return read_langchain_message(message.model_dump(), {"call_1": "read"})


def test_text_stays_text() -> None:
    assert read(HumanMessage("hi")) == {"role": "user", "content": "hi"}
    assert read(SystemMessage(["be", {"type": "text", "text": "brief"}])) == {
        "role": "system",
        "content": "be\n\nbrief",
    }


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "base64": PIXEL, "mime_type": "image/png"},
        {"type": "image", "source_type": "base64", "data": PIXEL, "mime_type": "image/png"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image_url", "image_url": f"data:image/png;base64,{PIXEL}"},
    ],
)
def test_an_image_stays_an_image(block: Any) -> None:
    message = read(HumanMessage([{"type": "text", "text": "look"}, block]))

    assert message["content"][1] == {"type": "image", "data": PIXEL, "mimeType": "image/png"}


def test_content_without_a_stored_form_is_named() -> None:
    message = read(HumanMessage([{"type": "audio", "url": "http://x/y.mp3"}]))

    assert message["content"] == [{"type": "text", "text": "[audio that cannot be shown]"}]


def test_an_answer_has_thinking_calls_usage_and_model() -> None:
    message = read(
        AIMessage(
            [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
                {"type": "text", "text": "reading"},
                {"type": "tool_use", "id": "call_1", "name": "read", "input": {"path": "a"}},
            ],
            tool_calls=[{"name": "read", "args": {"path": "a"}, "id": "call_1"}, {"name": "x", "args": {}, "id": None}],
            usage_metadata={
                "input_tokens": 10,
                "output_tokens": 4,
                "total_tokens": 14,
                "input_token_details": {"cache_read": 6, "cache_creation": 1},
            },
            response_metadata={"model_name": "m", "model_provider": "p", "stop_reason": "end_turn"},
        )
    )

    assert [block.get("thinking") or block.get("text") or block.get("id") for block in message["content"]] == [
        "hm", "so", "reading", "call_1", "call_1",
    ]  # fmt: skip
    assert (message["provider"], message["model"], message["stopReason"]) == ("p", "m", "toolUse")
    usage = message["usage"]
    assert [usage[key] for key in ("input", "output", "cacheRead", "cacheWrite", "totalTokens")] == [3, 4, 6, 1, 14]


def test_a_result_names_its_tool() -> None:
    failed = read(ToolMessage("no", tool_call_id="call_1", status="error"))

    assert (failed["toolName"], failed["isError"]) == ("read", True)
    assert read(ToolMessage("ok", tool_call_id="other", name="write"))["toolName"] == "write"
    assert read(ToolMessage("ok", tool_call_id="other"))["toolName"] == "unknown"


@pytest.mark.parametrize(
    "message",
    [
        RemoveMessage(id="1"),
        FunctionMessage("x", name="f"),
        ChatMessage("x", role="r"),
        ToolMessage("", tool_call_id=""),
    ],
)
def test_a_message_that_is_no_part_of_a_conversation_has_no_stored_form(message: Any) -> None:
    assert read(message) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "human", "content": None},
        {"type": "human", "content": [None, 5, {"type": 7}]},
        {"type": "system", "content": {"text": 5}},
        {"type": "ai", "content": {}, "tool_calls": [None, {"name": 5}, {"name": "f", "args": "x"}]},
        {"type": "ai", "usage_metadata": {"input_tokens": "x"}, "response_metadata": 5, "additional_kwargs": None},
        {"type": "tool", "tool_call_id": "c", "content": [{"type": "image", "data": 5}]},
        {"type": "AIMessageChunk", "content": "x"},
    ],
)
def test_what_is_read_can_be_appended(fields: Any) -> None:
    message = read_langchain_message(fields, {})

    assert message is not None
    st.memory().append(st.Message(message))


def test_a_chunk_is_read_as_a_message() -> None:
    assert read(AIMessageChunk("x"))["content"] == [{"type": "text", "text": "x"}]


@pytest.mark.parametrize("fields", [{}, {"type": None}, {"type": 5}, {"type": "unknown"}])
def test_an_unknown_type_has_no_stored_form(fields: Any) -> None:
    assert read_langchain_message(fields, {}) is None
