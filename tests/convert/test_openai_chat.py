"""OpenAI Chat: round trips, checked with the types of the SDK."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam
from pydantic import TypeAdapter

import sessiontree
from sessiontree.convert.openai_chat import from_openai, to_openai
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
    texts,
    words,
)
from tests.strategies import json_values

API = "openai-completions"
PARAMS: TypeAdapter[Any] = TypeAdapter(list[ChatCompletionMessageParam])


def check_types(messages: ConvertedMessages) -> None:
    """Check with the SDK's types. Thinking fields belong to other servers, so the SDK does not know them."""
    known = ConvertedMessages()
    known += [{key: item for key, item in message.items() if not key.startswith("reasoning")} for message in messages]
    check_with_types(PARAMS, known)


refusals = words.map(lambda text: {"type": "text", "text": text, "refusal": True})
thinking = st.builds(
    lambda text, field: {"type": "thinking", "thinking": text, "thinkingSignature": field},
    words,
    st.sampled_from(["reasoning_content", "reasoning"]),
)
answers = st.builds(
    lambda first, rest: [*first, *rest], st.lists(thinking, max_size=1), st.lists(texts | refusals, max_size=2)
)


@given(conversations(api=API, answers=answers, can_fail=False))
def test_a_round_trip_changes_nothing(conversation: list[Wire]) -> None:
    check_types(check_round_trip(conversation, to_openai, from_openai))


MESSAGES: dict[str, list[Wire]] = {
    "text": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    "developer": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    "name": [{"role": "user", "content": "Hello", "name": "ann"}],
    "image": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"}},
            ],
        }
    ],
    "parallel calls": [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ulm"}'}},
                {"id": "b", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bonn"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "Rain"},
        {
            "role": "tool",
            "tool_call_id": "b",
            "content": [{"type": "text", "text": "Sun"}, {"type": "text", "text": "Wind"}],
        },
    ],
    "unreadable arguments": [
        {
            "role": "assistant",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "no"},
    ],
    "custom tool": [
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "f", "input": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "no"},
    ],
    "refusal": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}],
    "audio": [{"role": "assistant", "content": "", "audio": {"id": "audio_1"}}],
    "thinking": [{"role": "assistant", "reasoning_content": "Hm.", "content": "Yes."}],
}  # fmt: skip


@pytest.mark.parametrize("messages", MESSAGES.values(), ids=MESSAGES.keys())
def test_messages_of_the_sdk_survive_a_round_trip(messages: list[Wire]) -> None:
    bodies = from_openai(messages)

    again = to_openai(build_body_context(bodies))

    assert again == messages
    assert again.omitted == bodies.omitted == []
    check_types(again)


def test_an_image_by_url_is_kept_for_the_sdk_and_listed() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "Look"}, part]}]

    bodies = from_openai(messages)

    assert [(item.position, item.block) for item in bodies.omitted] == [("messages[0].content[1]", "image_url")]
    context = build_body_context(bodies)
    assert context.to_openai() == messages
    assert context.to_openai().omitted == []
    assert [item.block for item in context.to_anthropic().omitted] == ["image_url"]


def build_completion(**message: Any) -> ChatCompletion:
    return ChatCompletion.model_validate(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_767_346_204,
            "model": "gpt-5",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}],
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": 7,
                "total_tokens": 107,
                "prompt_tokens_details": {"cached_tokens": 60},
            },
        }
    )


def test_a_whole_completion_has_its_model_usage_time_and_stop_reason() -> None:
    (body,) = from_openai([build_completion(content="Hi")])

    message = body.message
    assert message["content"] == [{"type": "text", "text": "Hi"}]
    assert (message["provider"], message["model"], message["api"]) == ("openai", "gpt-5", API)
    assert (message["stopReason"], message["responseId"], message["timestamp"]) == (
        "stop", "chatcmpl-1", 1_767_346_204_000,
    )  # fmt: skip
    usage = message["usage"]
    assert [usage[key] for key in ("input", "output", "cacheRead", "totalTokens")] == [40, 7, 60, 107]


def test_a_refusal_is_text_with_a_mark() -> None:
    (body,) = from_openai([build_completion(content=None, refusal="I cannot.")])

    assert body.message["content"] == [{"type": "text", "text": "I cannot.", "refusal": True}]
    anthropic = build_context({"role": "user", "content": "?"}, body).to_anthropic()
    assert anthropic[-1]["content"] == [{"type": "text", "text": "I cannot."}]
    assert [item.block for item in anthropic.omitted] == ["text.refusal"]


def test_citations_of_a_response_are_kept_and_listed_because_no_request_accepts_them() -> None:
    cited = {"type": "url_citation", "url_citation": {"end_index": 2, "start_index": 0, "title": "t", "url": "u"}}
    bodies = from_openai([build_completion(content="Hi", annotations=[cited])])

    sent = build_body_context(bodies).to_openai()

    assert bodies[0].message["providerData"] == {API: {"annotations": [cited]}}
    assert [item.block for item in sent.omitted] == ["assistant.annotations"]


def test_a_message_object_of_the_sdk_is_accepted_like_a_dict() -> None:
    answer = ChatCompletionMessage(role="assistant", content="Hi")

    assert compare_form(from_openai([answer])) == compare_form(from_openai([{"role": "assistant", "content": "Hi"}]))


def test_only_the_first_choice_is_stored_and_the_others_are_listed() -> None:
    completion = build_completion(content="Hi").model_dump()
    completion["choices"] *= 2

    bodies = from_openai([completion])

    assert len(bodies) == 1
    assert [item.position for item in bodies.omitted] == ["messages[0].choices[1]"]


def test_content_that_chat_cannot_represent_is_listed_with_its_entry() -> None:
    context = build_context(
        {"role": "user", "content": "Look"},
        {
            "role": "assistant",
            "api": "anthropic-messages",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "signed"},
                {"type": "toolCall", "id": "a", "name": "look", "arguments": {}},
                {"type": "text", "text": "Done."},
            ],
        },
        {"role": "toolResult", "toolCallId": "a", "toolName": "look", "content": [IMAGE], "isError": True},
    )

    sent = context.to_openai()

    assert [(context.sources.index(str(item.entry)), item.block) for item in sent.omitted] == [
        (1, "thinking"),
        (1, "assistant"),
        (2, "image"),
        (2, "toolResult.isError"),
    ]
    check_types(sent)


def test_a_failed_turn_is_listed_as_not_sent() -> None:
    context = build_context({"role": "user", "content": "Hi"}, sessiontree.assistant("Overl", stop_reason="error"))

    sent = context.to_openai()

    assert sent == [{"role": "user", "content": "Hi"}]
    assert [(item.block, item.reason) for item in sent.omitted] == [("assistant", "the turn ended with error")]


def test_an_orphaned_tool_result_is_converted_and_not_sent() -> None:
    bodies = from_openai([{"role": "tool", "tool_call_id": "gone", "content": "42"}])

    assert bodies[0].message["toolName"] == "unknown"
    sent = build_body_context(bodies).to_openai()
    assert sent == []
    assert [item.reason for item in sent.omitted] == ["its tool call is not in the context"]


def test_a_call_without_a_result_gets_a_placeholder() -> None:
    sent = build_context(sessiontree.assistant([sessiontree.tool_call("a", "f", {})])).to_openai()

    assert [message["role"] for message in sent] == ["assistant", "tool"]
    check_types(sent)


def test_characters_that_cannot_be_sent_are_replaced_and_listed() -> None:
    sent = build_context({"role": "user", "content": "a\ud800b\x00"}).to_openai()

    assert sent[0]["content"] == "a\ufffdb\ufffd"
    assert [item.block for item in sent.omitted] == ["user"]


MALFORMED: list[tuple[Any, str]] = [
    ("Hello", ": expected a list, not the string 'Hello'"),
    (["Hello"], "[0]: expected a message, not the string 'Hello'"),
    (
        [{"role": "bot", "content": "x"}],
        "[0].role: expected user, assistant, tool, system or developer, not the string 'bot'",
    ),
    ([{"role": "user"}], "[0].content: expected text or a list of content parts, not nothing"),
    ([{"role": "user", "content": [{"type": "text"}]}], "[0].content[0].text: expected a string, not nothing"),
    ([{"role": "user", "content": ["x"]}], "[0].content[0]: expected a content part, not the string 'x'"),
    (
        [{"role": "assistant", "tool_calls": [{"id": "a"}]}],
        "[0].tool_calls[0].function: expected an object, not nothing",
    ),
    ([{"role": "tool", "content": "x"}], "[0].tool_call_id: expected a string, not nothing"),
    (
        [{"role": "assistant", "function_call": {}}],
        "[0].function_call: function_call is deprecated; use tool_calls",
    ),
    ([{"choices": []}], "[0].choices: expected at least one choice"),
    ([{"role": "user", "content": object()}], "[0].content: expected JSON data or an object of the SDK, not object"),
]


@pytest.mark.parametrize(("messages", "sentence"), MALFORMED)
def test_malformed_input_is_refused_with_its_position(messages: Any, sentence: str) -> None:
    with pytest.raises(InvalidOperation) as raised:
        from_openai(messages)

    assert str(raised.value) == f"messages{sentence}"


roles = st.sampled_from(["user", "assistant", "tool", "system", "developer", "function"])
odd_parts = st.dictionaries(
    st.sampled_from(["type", "text", "refusal", "image_url", "url"]),
    json_values | st.sampled_from(["text", "refusal", "image_url"]) | st.just({"url": "data:image/png;base64,AA=="}),
)
odd_messages = st.dictionaries(
    st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "choices", "message", "refusal", "name"]),
    roles | json_values | st.lists(odd_parts, max_size=3),
)


@given(st.lists(odd_messages | json_values, max_size=3) | json_values)
def test_any_json_gives_a_result_or_a_refusal(messages: Any) -> None:
    check_any_input(messages, from_openai, to_openai)
