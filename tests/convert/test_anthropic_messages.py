"""Anthropic Messages: round trips, checked with the types of the SDK."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from anthropic.types import ContentBlockParam, MessageParam, TextBlock, ToolUseBlock
from anthropic.types import Message as AnthropicMessage
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from typing_extensions import TypedDict

import sessiontree
from sessiontree.convert.anthropic_messages import from_anthropic, to_anthropic
from sessiontree.core.conversion_result import ConvertedMessages
from sessiontree.errors import InvalidOperation
from tests.convert.conversations import (
    IMAGE,
    PIXEL,
    Wire,
    build_body_context,
    build_context,
    check_any_input,
    check_round_trip,
    check_with_types,
    compare_form,
    conversations,
    images,
    texts,
    words,
)
from tests.strategies import json_values

API = "anthropic-messages"
MESSAGE_PARAMS: TypeAdapter[Any] = TypeAdapter(list[MessageParam])


class StrictMessage(TypedDict):
    """`MessageParam` without the response blocks that it accepts too, which allow any field."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlockParam]


PARAMS: TypeAdapter[Any] = TypeAdapter(list[StrictMessage])


def check_types(messages: ConvertedMessages) -> None:
    MESSAGE_PARAMS.validate_python(list(messages))
    check_with_types(PARAMS, messages)


thinking = st.builds(
    lambda text, signature: {"type": "thinking", "thinking": text, "thinkingSignature": signature}, words, words
)
redacted = words.map(lambda data: {"type": "thinking", "thinking": "", "thinkingSignature": data, "redacted": True})
cited = texts.map(
    lambda block: {
        **block,
        "providerData": {API: {"citations": [{"type": "char_location", "cited_text": "x", "document_index": 0,
            "document_title": None, "start_char_index": 0, "end_char_index": 1}]}},
    }
)  # fmt: skip
answers = st.lists(thinking | redacted | texts | cited, max_size=3)


def convert_back(messages: ConvertedMessages) -> Any:
    return from_anthropic(messages, system=messages.system or None)


@given(conversations(api=API, answers=answers, result_blocks=texts | images))
def test_a_round_trip_changes_nothing(conversation: list[Wire]) -> None:
    check_types(check_round_trip(conversation, to_anthropic, convert_back))


MESSAGES: dict[str, list[Wire]] = {
    "text": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}],
    "late system prompt": [{"role": "user", "content": "Hello"}, {"role": "system", "content": "Be brief."}],
    "cached image": [
        {
            "role": "user",
            "content": [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
                    "cache_control": {"type": "ephemeral"},
                },
                {"type": "text", "text": "What is this?", "cache_control": {"type": "ephemeral"}},
            ],
        }
    ],
    "several results in one message, then text": [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Two at once.", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "aGlkZGVu"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "toolu_a", "name": "read", "input": {"path": "a"}},
                {"type": "tool_use", "id": "toolu_b", "name": "read", "input": {"path": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_a", "content": "A"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_b",
                    "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
                    "is_error": True,
                },
                {"type": "text", "text": "Go on."},
            ],
        },
    ],
    "citations": [
        {
            "role": "assistant",
            "content": [
                {
                    "type": "text",
                    "text": "Green.",
                    "citations": [
                        {
                            "type": "page_location",
                            "cited_text": "The grass is green.",
                            "document_index": 0,
                            "document_title": "Grass",
                            "start_page_number": 1,
                            "end_page_number": 2,
                        }
                    ],
                }
            ],
        },
    ],
}


@pytest.mark.parametrize("messages", MESSAGES.values(), ids=MESSAGES.keys())
def test_messages_of_the_sdk_survive_a_round_trip(messages: list[Wire]) -> None:
    bodies = from_anthropic(messages)

    again = to_anthropic(build_body_context(bodies))

    assert again == messages
    assert again.omitted == bodies.omitted == []
    check_types(again)


KEPT: dict[str, tuple[str, list[Wire]]] = {
    "image by URL": (
        "image",
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look"},
                    {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}},
                    {"type": "text", "text": "and tell."},
                ],
            }
        ],
    ),
    "document": (
        "document",
        [
            {
                "role": "user",
                "content": [
                    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
                ],
            }
        ],
    ),
    "tool of the server": (
        "server_tool_use",
        [
            {
                "role": "assistant",
                "content": [
                    {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
                    {"type": "text", "text": "Found."},
                ],
            }
        ],
    ),
    "search result in a tool result": (
        "search_result",
        [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "find", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "a",
                        "content": [
                            {
                                "type": "search_result",
                                "source": "s",
                                "title": "t",
                                "content": [{"type": "text", "text": "x"}],
                            }
                        ],
                    }
                ],
            },
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("block", "messages"), KEPT.values(), ids=KEPT.keys())
def test_unsupported_content_is_kept_for_the_sdk_and_listed(block: str, messages: list[Wire]) -> None:
    bodies = from_anthropic(messages)
    context = build_body_context(bodies)

    assert [item.block for item in bodies.omitted] == [block]
    assert context.to_anthropic() == messages
    assert context.to_anthropic().omitted == []
    assert block in [item.block for item in context.to_openai().omitted]
    check_types(context.to_anthropic())


def build_response(*content: Wire, **fields: Any) -> AnthropicMessage:
    return AnthropicMessage.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-5-5",
            "content": content,
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": 40,
                "output_tokens": 7,
                "cache_read_input_tokens": 60,
                "cache_creation_input_tokens": 5,
            },
            **fields,
        }
    )


def test_a_whole_response_has_its_model_usage_and_stop_reason() -> None:
    response = build_response(
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": None}}, stop_reason="tool_use"
    )

    (body,) = from_anthropic([response])

    message = body.message
    assert message["content"] == [{"type": "toolCall", "id": "a", "name": "f", "arguments": {"x": None}}]
    assert (message["provider"], message["model"], message["api"]) == ("anthropic", "claude-sonnet-5-5", API)
    assert (message["stopReason"], message["responseId"]) == ("toolUse", "msg_1")
    usage = message["usage"]
    assert [usage[key] for key in ("input", "output", "cacheRead", "cacheWrite", "totalTokens")] == [40, 7, 60, 5, 112]


def test_a_refused_answer_is_a_failed_turn_with_the_reason() -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "It may do harm."}

    bodies = from_anthropic([build_response(stop_reason="refusal", stop_details=details)])

    assert bodies[0].message["stopReason"] == "error"
    assert bodies[0].message["errorMessage"] == "the model refused to answer: It may do harm."
    sent = build_body_context(bodies).to_anthropic()
    assert sent == []
    assert [item.reason for item in sent.omitted] == ["the turn ended with error"]


def test_blocks_of_the_sdk_inside_a_dict_are_accepted() -> None:
    blocks = [TextBlock(type="text", text="Hi"), ToolUseBlock(type="tool_use", id="a", name="f", input={})]

    bodies = from_anthropic([{"role": "assistant", "content": blocks}])

    assert bodies[0].message["content"] == [
        {"type": "text", "text": "Hi"},
        {"type": "toolCall", "id": "a", "name": "f", "arguments": {}},
    ]


def test_the_system_prompt_is_a_separate_argument() -> None:
    bodies = from_anthropic([{"role": "user", "content": "Hi"}], system="Be brief.")

    sent = build_body_context(bodies).to_anthropic()

    assert (sent.system, list(sent)) == ("Be brief.", [{"role": "user", "content": "Hi"}])
    assert to_anthropic(build_context({"role": "user", "content": "Hi"})).system == ""


def test_parts_of_a_system_prompt_are_joined_and_that_is_listed() -> None:
    parts = [{"type": "text", "text": "One.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "Two."}]

    bodies = from_anthropic([], system=parts)

    assert compare_form(bodies) == [{"role": "system", "content": "One.\n\nTwo."}]
    assert [item.position for item in bodies.omitted] == ["system[0].cache_control", "system"]


def test_content_that_anthropic_does_not_accept_is_listed() -> None:
    context = build_context(
        {"role": "user", "content": [{"type": "text", "text": " "}, {**IMAGE, "mimeType": "image/tiff"}]},
        {
            "role": "assistant",
            "api": "openai-responses",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "thinkingSignature": '{"id":"rs_1","type":"reasoning"}'},
                {"type": "text", "text": "Yes.", "textSignature": "msg_1"},
                {"type": "toolCall", "id": "call_1|fc_1", "name": "f", "arguments": "{"},
            ],
        },
        {"role": "toolResult", "toolCallId": "call_1|fc_1", "toolName": "f", "content": [], "isError": False},
    )

    sent = context.to_anthropic()

    assert [item.block for item in sent.omitted] == [
        "text", "image", "user", "thinking", "text.textSignature", "toolCall", "toolCall.arguments",
    ]  # fmt: skip
    assert sent == [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Yes."},
                {"type": "tool_use", "id": "call_1", "name": "f", "input": {"unreadable": "{"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": []}]},
    ]
    check_types(sent)


def test_an_answer_does_not_end_with_thinking() -> None:
    block = {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "s"}

    sent = build_context({"role": "assistant", "api": API, "content": [block]}).to_anthropic()

    assert sent == []
    assert [item.block for item in sent.omitted] == ["thinking", "assistant"]


def test_ids_that_anthropic_does_not_accept_are_replaced_in_call_and_result() -> None:
    context = build_context(
        sessiontree.assistant([sessiontree.tool_call("functions.read:0", "read", {})]),
        sessiontree.tool_result("functions.read:0", "read", "A"),
        sessiontree.assistant([sessiontree.tool_call("functions.read:0", "read", {})]),
        sessiontree.tool_result("functions.read:0", "read", "B"),
    )

    sent = context.to_anthropic()

    calls = [message["content"][0]["id"] for message in sent[::2]]
    assert [message["content"][0]["tool_use_id"] for message in sent[1::2]] == calls
    assert len(set(calls)) == 2
    assert [item.block for item in sent.omitted] == ["toolCall.id", "toolCall.id"]


MALFORMED: list[tuple[Any, str]] = [
    ({"role": "user"}, ": expected a list, not an object"),
    ([{"role": "tool", "content": "x"}], "[0].role: expected user, assistant or system, not the string 'tool'"),
    ([{"role": "user", "content": 3}], "[0].content: expected text or a list of content blocks, not a number"),
    (
        [{"role": "user", "content": [{"text": "x"}]}],
        "[0].content[0].type: expected the type of the block, not nothing",
    ),
    (
        [{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "tool_result"}]}],
        "[1].content[0].tool_use_id: expected a string, not nothing",
    ),
    (
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "{}"}]}],
        "[0].content[0].input: expected an object, not the string '{}'",
    ),
    (
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}],
        "[0].content[0].signature: expected a string, not nothing",
    ),
]


@pytest.mark.parametrize(("messages", "sentence"), MALFORMED)
def test_malformed_input_is_refused_with_its_position(messages: Any, sentence: str) -> None:
    with pytest.raises(InvalidOperation) as raised:
        from_anthropic(messages)

    assert str(raised.value) == f"messages{sentence}"


def test_an_unknown_field_is_listed() -> None:
    bodies = from_anthropic([{"role": "user", "content": "x", "name": "ann"}])

    assert [item.position for item in bodies.omitted] == ["messages[0].name"]


odd_blocks = st.dictionaries(
    st.sampled_from(["type", "text", "source", "id", "name", "input", "content", "tool_use_id", "thinking", "data"]),
    json_values
    | st.sampled_from(["text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking"])
    | st.just({"type": "base64", "media_type": "image/png", "data": "AA=="}),
)
odd_messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": json_values | st.lists(odd_blocks, max_size=3),
    }
)


@given(st.lists(odd_messages | json_values, max_size=3) | json_values)
def test_any_json_gives_a_result_or_a_refusal(messages: Any) -> None:
    check_any_input(messages, from_anthropic, to_anthropic)
