"""pydantic-ai: round trips, checked with its own types."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    Citation,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    WebCitationSource,
)
from pydantic_ai.usage import RequestUsage

from sessiontree.convert.pydantic_ai import from_pydantic_ai, restore_pydantic_ai, store_pydantic_ai, to_pydantic_ai
from sessiontree.core.conversion_result import ConvertedMessages
from sessiontree.errors import InvalidOperation
from tests.convert.conversations import (
    IMAGE,
    Wire,
    build_body_context,
    build_context,
    check_any_input,
    conversations,
    images,
    texts,
    words,
)
from tests.strategies import json_values

TIME = datetime(2026, 1, 2, 9, 30, 4, 125000, UTC)
KEYS = ("role", "content", "toolCallId", "toolName", "isError")


def dump(messages: Any) -> Any:
    return ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")


def check_types(messages: ConvertedMessages) -> None:
    assert dump(ModelMessagesTypeAdapter.validate_json(json.dumps(dump(messages)))) == dump(messages)


def read_content(messages: list[Wire]) -> list[Wire]:
    """Return the content of a conversation, without the kept fields of pydantic-ai."""
    return [
        {
            key: [{k: v for k, v in block.items() if k != "providerData"} for block in message[key]]
            if key == "content" and isinstance(message[key], list)
            else message[key]
            for key in KEYS
            if key in message
        }
        for message in messages
    ]


APIS: dict[str, st.SearchStrategy[list[Wire]]] = {
    "anthropic-messages": st.lists(
        texts
        | st.builds(lambda text: {"type": "thinking", "thinking": text, "thinkingSignature": "s"}, words)
        | st.just({"type": "thinking", "thinking": "", "thinkingSignature": "hidden", "redacted": True}),
        max_size=3,
    ),
    "google-generative-ai": st.lists(
        texts | images | texts.map(lambda block: {**block, "textSignature": "s"}),
        max_size=3,
    ),
    "openai-completions": st.lists(
        texts
        | words.map(lambda text: {"type": "thinking", "thinking": text, "thinkingSignature": "reasoning_content"}),
        max_size=3,
    ),
    "openai-responses": st.lists(texts.map(lambda block: {**block, "textSignature": "msg_1"}), min_size=1, max_size=3),
}  # fmt: skip
PROVIDERS = {
    "anthropic-messages": "anthropic",
    "google-generative-ai": "google",
    "openai-completions": "deepseek",
    "openai-responses": "openai",
}


@given(
    st.sampled_from(sorted(APIS)).flatmap(
        lambda api: conversations(api=api, answers=APIS[api], result_blocks=texts | images)
    )
)
def test_a_round_trip_changes_nothing(conversation: list[Wire]) -> None:
    stored = [
        {**message, "provider": PROVIDERS[message["api"]], "model": "m"} if message["role"] == "assistant" else message
        for message in conversation
    ]
    there = to_pydantic_ai(build_context(*stored))
    returned = from_pydantic_ai(there)

    assert there.omitted == []
    assert returned.omitted == []
    assert read_content([body.message for body in returned]) == read_content(stored)
    assert dump(to_pydantic_ai(build_body_context(returned))) == dump(there)
    check_types(there)


def respond(*parts: Any, **fields: Any) -> ModelResponse:
    return ModelResponse(parts=list(parts), timestamp=TIME, model_name="m", **fields)


def request(*parts: Any, **fields: Any) -> ModelRequest:
    return ModelRequest(parts=list(parts), **fields)


HISTORIES: dict[str, list[Any]] = {
    "text": [request(UserPromptPart("Hello", timestamp=TIME)), respond(TextPart("Hi"), finish_reason="stop")],
    "everything of a request": [
        request(
            SystemPromptPart("Be brief.", timestamp=TIME, dynamic_ref="ref"),
            UserPromptPart(["Look", BinaryContent(b"png", media_type="image/png")], timestamp=TIME),
            instructions="Be kind.",
            run_id="run",
            metadata={"key": [1]},
        ),
        respond(TextPart("Hi"), provider_name="openai", run_id="run", provider_details={"finish_reason": "stop"}),
    ],
    "anthropic": [
        respond(
            ThinkingPart("Hm.", signature="sig", provider_name="anthropic"),
            ThinkingPart("", id="redacted_thinking", signature="hidden", provider_name="anthropic"),
            TextPart("Yes.", citations=[Citation([WebCitationSource(url="https://example.com")])]),
            ToolCallPart("read", {"path": "a"}, "toolu_1"),
            ToolCallPart("read", '{"path":"b"}', "toolu_2"),
            provider_name="anthropic",
            provider_response_id="msg_1",
            finish_reason="tool_call",
            usage=RequestUsage(input_tokens=100, cache_read_tokens=60, output_tokens=7, details={"thinking": 3}),
        ),
        request(
            ToolReturnPart("read", "A", "toolu_1", timestamp=TIME),
            ToolReturnPart("read", {"lines": 2}, "toolu_2", timestamp=TIME, outcome="failed", metadata={"m": 1}),
            UserPromptPart("Go on.", timestamp=TIME),
        ),
    ],
    "responses": [
        respond(
            ThinkingPart("Hm.", id="rs_1", signature="encrypted", provider_name="openai"),
            TextPart("Yes.", id="msg_1", provider_name="openai"),
            ToolCallPart("read", {"path": "a"}, "call_1", id="fc_1", provider_name="openai"),
            provider_name="openai",
            provider_url="https://api.openai.com/v1",
        ),
        request(ToolReturnPart("read", ["1", "2"], "call_1", timestamp=TIME)),
    ],
    "google": [
        respond(
            TextPart("Yes.", provider_name="google", provider_details={"thought_signature": "s"}),
            FilePart(BinaryContent(b"png", media_type="image/png")),
            provider_name="google",
        )
    ],
    "two requests in a row": [
        request(UserPromptPart("One", timestamp=TIME)),
        request(UserPromptPart("Two", timestamp=TIME)),
    ],
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES.keys())
def test_a_history_survives_a_round_trip(history: list[Any]) -> None:
    bodies = from_pydantic_ai(history)

    again = build_body_context(bodies).to_pydantic_ai()

    expected = dump(history)
    for before, after in zip(expected, dump(again), strict=True):
        before_call = [part.pop("args", None) for part in before["parts"]]
        after_call = [part.pop("args", None) for part in after["parts"]]
        assert after == before
        assert list(map(read_args, after_call)) == list(map(read_args, before_call))
    assert again.omitted == bodies.omitted == []


def read_args(args: Any) -> Any:
    return json.loads(args) if isinstance(args, str) else args


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES.keys())
def test_the_json_form_gives_the_same_as_objects(history: list[Any]) -> None:
    assert from_pydantic_ai(dump(history)) == from_pydantic_ai(history)


def test_a_response_has_its_model_usage_time_and_stop_reason() -> None:
    message = from_pydantic_ai(HISTORIES["anthropic"])[0].message

    assert (message["provider"], message["model"], message["api"]) == ("anthropic", "m", "anthropic-messages")
    assert (message["stopReason"], message["responseId"]) == ("toolUse", "msg_1")
    assert message["timestamp"] == int(TIME.timestamp() * 1000)
    assert [message["usage"][key] for key in ("input", "output", "cacheRead")] == [40, 7, 60]


def test_unsupported_parts_keep_their_position_and_are_listed() -> None:
    history = [
        request(UserPromptPart(["Look", ImageUrl("https://example.com/cat.png"), "here"], timestamp=TIME)),
        respond(
            TextPart("Searching."),
            NativeToolCallPart("web_search", {"query": "x"}, "c1", provider_name="anthropic"),
            TextPart("Found."),
            provider_name="anthropic",
        ),
        request(UserPromptPart(["Cached", CachePoint()], timestamp=TIME)),
    ]

    bodies = from_pydantic_ai(history)
    context = build_body_context(bodies)

    assert [item.position for item in bodies.omitted] == [
        "messages[0].parts[0].content[1]", "messages[1].parts[1]", "messages[2].parts[0].content[1]",
    ]  # fmt: skip
    assert dump(context.to_pydantic_ai()) == dump(history)
    assert len(context.to_openai().omitted) >= 3


def test_a_part_that_cannot_be_stored_is_listed() -> None:
    bodies = from_pydantic_ai(
        [request(RetryFeedbackPart("Try again.", retry=RetryInfo("validation_error"), timestamp=TIME))]
    )

    assert bodies == []
    assert [item.position for item in bodies.omitted] == ["messages[0].parts[0]", "messages[0]"]


def test_content_that_pydantic_ai_cannot_represent_is_listed() -> None:
    context = build_context(
        {"role": "user", "content": [{**IMAGE, "data": "?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "No.", "refusal": True}, {**IMAGE, "data": "?"}]},
        {"role": "assistant", "content": []},
    )

    sent = context.to_pydantic_ai()

    assert [item.block for item in sent.omitted] == ["image", "text.refusal", "image", "assistant"]
    check_types(sent)


def test_invalid_kept_fields_are_omitted_and_listed() -> None:
    kept = {"pydantic-ai": {"usage": "none"}}
    sent = build_context(
        {"role": "assistant", "content": [{"type": "text", "text": "Hi"}], "providerData": kept}
    ).to_pydantic_ai()

    assert [part.content for part in sent[0].parts] == ["Hi"]
    assert [item.block for item in sent.omitted] == ["providerData"]


MALFORMED: list[tuple[Any, str]] = [
    ("Hello", ": expected a list, not the string 'Hello'"),
    ([object()], "[0]: expected a ModelMessage or its JSON form, not object"),
    (
        [{"kind": "request", "parts": [{"part_kind": "user-prompt"}]}],
        "[0].request.parts[0].user-prompt.content: field required",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "sentence"), MALFORMED)
def test_malformed_input_is_refused_with_its_position(messages: Any, sentence: str) -> None:
    with pytest.raises(InvalidOperation) as raised:
        from_pydantic_ai(messages)

    assert str(raised.value) == f"messages{sentence}"


odd_parts = st.fixed_dictionaries(
    {"part_kind": st.sampled_from(["text", "user-prompt", "tool-return", "tool-call", "thinking", "system-prompt"])},
    optional={
        "content": json_values,
        "tool_name": st.text(max_size=3),
        "tool_call_id": st.text(max_size=3),
        "args": json_values,
    },
)
odd_messages = st.fixed_dictionaries(
    {"kind": st.sampled_from(["request", "response"]), "parts": st.lists(odd_parts, max_size=3)}
)  # fmt: skip


@given(st.lists(odd_messages | json_values, max_size=3) | json_values)
def test_any_json_gives_a_result_or_a_refusal(messages: Any) -> None:
    check_any_input(messages, from_pydantic_ai, to_pydantic_ai)


def test_times_come_back_to_the_microsecond() -> None:
    time = datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)
    history = [
        ModelRequest(parts=[UserPromptPart("a", timestamp=time)], timestamp=time),
        ModelResponse(parts=[TextPart("b")], timestamp=time),
    ]
    messages = [body.message for body in from_pydantic_ai(history)]

    assert [message for _, message in restore_pydantic_ai(messages)] == history


def test_requests_in_a_row_stay_separate_and_have_the_index_of_their_last_message() -> None:
    results: list[ModelMessage] = [
        ModelRequest(parts=[ToolReturnPart("look", "1", "c1"), ToolReturnPart("look", "2", "c2")]),
        ModelRequest(parts=[UserPromptPart("a")]),
    ]
    calls: list[ModelMessage] = [
        ModelResponse(parts=[ToolCallPart("look", {}, "c1", id="fc_1"), ToolCallPart("look", {}, "c2")])
    ]
    ((call,),) = store_pydantic_ai(calls, ())

    groups = store_pydantic_ai(results, [call.message])

    assert [len(group) for group in groups] == [2, 1]
    assert groups[0][0].message["toolCallId"] == "c1|fc_1"
    assert restore_pydantic_ai([body.message for group in groups for body in group]) == [
        (1, results[0]),
        (2, results[1]),
    ]
