"""OpenAI Responses: round trips, checked with the types of the SDK."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseInputItemParam
from pydantic import TypeAdapter

import sessiontree
from sessiontree.convert.openai_responses import from_openai_responses, restore_items, store_items, to_openai_responses
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

API = "openai-responses"
PARAMS: TypeAdapter[Any] = TypeAdapter(list[ResponseInputItemParam])


def check_types(items: ConvertedMessages) -> None:
    check_with_types(PARAMS, items)


def sign(text: str, id: str) -> Wire:
    item = {
        "type": "reasoning",
        "id": id,
        "summary": [{"type": "summary_text", "text": text}],
        "encrypted_content": "e",
    }
    signature = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    return {"type": "thinking", "thinking": text, "thinkingSignature": signature}


thinking = st.builds(sign, words, st.sampled_from(["rs_1", "rs_2"]))
identified = st.builds(
    lambda text, id, refusal: {
        "type": "text",
        "text": text,
        **({"refusal": True} if refusal else {}),
        "textSignature": id,
    },
    words,
    st.sampled_from(["msg_1", "msg_2", '{"v":1,"id":"msg_3","phase":"commentary"}']),
    st.booleans(),
)
answers = st.lists(thinking | texts | identified, max_size=3)


@given(conversations(api=API, answers=answers, result_blocks=texts | images, can_fail=False))
def test_a_round_trip_changes_nothing(conversation: list[Wire]) -> None:
    check_types(check_round_trip(conversation, to_openai_responses, from_openai_responses))


CITATION: Wire = {"type": "url_citation", "start_index": 0, "end_index": 2, "title": "t", "url": "https://example.com"}
ITEMS: dict[str, list[Wire]] = {
    "text": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
    "developer": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    "phase without an id": [{"role": "assistant", "content": "Hi", "phase": "commentary"}],
    "image": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "high"},
            ],
        }
    ],
    "answer with reasoning, text and parallel calls": [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret", "status": "completed"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [
                {"type": "output_text", "text": "Looking.", "annotations": [CITATION]},
                {"type": "refusal", "refusal": "Not the rest."},
            ],
        },
        {
            "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "status": "completed",
            "arguments": '{"city":"Ulm"}',
        },
        {"type": "function_call", "call_id": "call_2", "name": "weather", "arguments": "{"},
        {"type": "function_call_output", "call_id": "call_1", "output": "Rain"},
        {
            "type": "function_call_output",
            "call_id": "call_2",
            "output": [
                {"type": "input_text", "text": "Sun"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"},
            ],
        },
    ],
    "custom tool": [
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "patch", "input": "{}"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("items", ITEMS.values(), ids=ITEMS.keys())
def test_items_of_the_sdk_survive_a_round_trip(items: list[Wire]) -> None:
    bodies = from_openai_responses(items)

    again = to_openai_responses(build_body_context(bodies))

    assert again == items
    assert again.omitted == bodies.omitted == []
    check_types(again)


def test_items_of_an_answer_are_one_message() -> None:
    bodies = from_openai_responses(ITEMS["answer with reasoning, text and parallel calls"])

    assert [body.message["role"] for body in bodies] == ["user", "assistant", "toolResult", "toolResult"]
    assert [block["type"] for block in bodies[1].message["content"]] == [
        "thinking", "text", "text", "toolCall", "toolCall",
    ]  # fmt: skip
    assert bodies[2].message["toolCallId"] == "call_1|fc_1"
    assert bodies[2].message["toolName"] == "weather"


KEPT: dict[str, list[Wire]] = {
    "web_search_call": [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "web_search_call", "id": "ws_1", "status": "completed",
            "action": {"type": "search", "query": "x", "queries": ["x"]},
        },
        {"role": "assistant", "content": "Found."},
    ],
    "input_image": [
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": "https://example.com/cat.png", "detail": "auto"}],
        }
    ],
    "input_file": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}],
}  # fmt: skip


@pytest.mark.parametrize(("block", "items"), KEPT.items(), ids=KEPT.keys())
def test_unsupported_content_is_kept_for_the_sdk_and_listed(block: str, items: list[Wire]) -> None:
    bodies = from_openai_responses(items)
    context = build_body_context(bodies)

    assert [item.block for item in bodies.omitted] == [block]
    assert context.to_openai_responses() == items
    assert context.to_openai_responses().omitted == []
    assert block in [item.block for item in context.to_openai().omitted]
    check_types(context.to_openai_responses())


def build_response(*output: Wire, **fields: Any) -> Response:
    return Response.model_validate(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_767_346_204.0,
            "model": "gpt-5.5",
            "output": output,
            "status": "completed",
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": 100,
                "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 5},
                "output_tokens": 7,
                "output_tokens_details": {"reasoning_tokens": 3},
                "total_tokens": 107,
            },
            **fields,
        }
    )


def test_a_whole_response_has_its_model_usage_time_and_stop_reason() -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}", "status": "completed"}  # fmt: skip # noqa: E501
    (body,) = from_openai_responses([build_response(call)])

    message = body.message
    assert message["content"] == [{"type": "toolCall", "id": "call_1|fc_1", "name": "f", "arguments": {}}]
    assert (message["provider"], message["model"], message["api"]) == ("openai", "gpt-5.5", API)
    assert (message["stopReason"], message["responseId"]) == ("toolUse", "resp_1")
    assert message["timestamp"] == 1_767_346_204_000
    usage = message["usage"]
    assert [usage[key] for key in ("input", "output", "cacheRead", "cacheWrite", "totalTokens")] == [35, 7, 60, 5, 107]


STATUS: list[tuple[Wire, str, str | None]] = [
    ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length", None),
    (
        {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
        "error",
        "the provider's content filter stopped the answer",
    ),
    ({"status": "failed", "error": {"code": "server_error", "message": "It broke."}}, "error", "It broke."),
    ({"status": "cancelled"}, "aborted", None),
]


@pytest.mark.parametrize(("fields", "stop", "error"), STATUS)
def test_the_status_of_a_response_is_its_stop_reason(fields: Wire, stop: str, error: str | None) -> None:
    (body,) = from_openai_responses([build_response(**fields)])

    assert (body.message["stopReason"], body.message.get("errorMessage")) == (stop, error)


def test_two_responses_in_a_row_are_two_messages() -> None:
    assert len(from_openai_responses([build_response(), build_response()])) == 2


def test_an_item_object_of_the_sdk_is_accepted_like_a_dict() -> None:
    call = ResponseFunctionToolCall(type="function_call", call_id="a", name="f", arguments="{}")

    assert compare_form(from_openai_responses([call]))[0]["content"] == [sessiontree.tool_call("a", "f", {})]


def test_instructions_become_a_system_message() -> None:
    bodies = from_openai_responses([{"role": "user", "content": "Hi"}], instructions="Be brief.")

    assert compare_form(bodies)[0] == {"role": "system", "content": "Be brief."}


def test_content_that_responses_cannot_represent_is_listed() -> None:
    context = build_context(
        {
            "role": "assistant",
            "api": "anthropic-messages",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "signed"},
                {"type": "text", "text": "No.", "refusal": True},
                IMAGE,
                {"type": "toolCall", "id": "a", "name": "look", "arguments": {}, "thoughtSignature": "s"},
            ],
        },
        {"role": "toolResult", "toolCallId": "a", "toolName": "look", "content": [], "isError": True},
        {"role": "assistant", "content": [{"type": "text", "text": "One."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Two."}]},
    )

    sent = context.to_openai_responses()

    assert [item.block for item in sent.omitted] == [
        "thinking", "text.refusal", "image", "toolCall.thoughtSignature", "toolResult.isError", "assistant",
    ]  # fmt: skip
    check_types(sent)


MALFORMED: list[tuple[Any, str]] = [
    ("Hello", ": expected a list, not the string 'Hello'"),
    ([{"content": "x"}], "[0].role: expected user, assistant, system or developer, not nothing"),
    ([{"type": 3}], "[0].type: expected the type of the item, not a number"),
    ([{"type": "function_call", "name": "f"}], "[0].call_id: expected a string, not nothing"),
    ([{"type": "reasoning", "summary": []}], "[0].id: expected a string, not nothing"),
    (
        [{"type": "function_call_output", "call_id": "a"}],
        "[0].output: expected text or a list of content parts, not nothing",
    ),
    (
        [{"role": "assistant", "content": [{"type": "audio"}]}],
        "[0].content[0].type: expected output_text or refusal, not the string 'audio'",
    ),
    ([{"object": "response"}], "[0].output: expected a list, not nothing"),
]


@pytest.mark.parametrize(("items", "sentence"), MALFORMED)
def test_malformed_input_is_refused_with_its_position(items: Any, sentence: str) -> None:
    with pytest.raises(InvalidOperation) as raised:
        from_openai_responses(items)

    assert str(raised.value) == f"items{sentence}"


odd_parts = st.dictionaries(
    st.sampled_from(["type", "text", "refusal", "image_url"]),
    json_values
    | st.sampled_from(["input_text", "output_text", "refusal", "input_image", "data:image/png;base64,AA=="]),
)
odd_items = st.dictionaries(
    st.sampled_from(["type", "role", "content", "call_id", "id", "name", "arguments", "output", "summary", "object"]),
    st.sampled_from(["message", "user", "assistant", "reasoning", "function_call", "function_call_output", "response"])
    | json_values
    | st.lists(odd_parts, max_size=3),
)


@given(st.lists(odd_items | json_values, max_size=3) | json_values)
def test_any_json_gives_a_result_or_a_refusal(items: Any) -> None:
    check_any_input(items, from_openai_responses, to_openai_responses)


def test_the_text_of_arguments_and_empty_fields_come_back() -> None:
    part = {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}
    items = [
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{ "a" : 1 }'},
    ]
    (body,) = from_openai_responses(items)

    assert restore_items(body.message) == items
    body.message["content"][1]["arguments"] = {"a": 2}
    assert restore_items(body.message)[1]["arguments"] == '{"a":2}'


def test_items_are_grouped_by_the_message_that_they_become() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    odd = {"role": "tool", "content": "x"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
    user = {"role": "user", "content": "a"}

    stored = store_items([user, call, odd, result, user], ())

    assert [items for _, items in stored] == [[user], [call], [odd], [result], [user]]
    assert [item for message, _ in stored for item in restore_items(message)] == [user, call, odd, result, user]
    with pytest.raises(InvalidOperation, match=r"items\[1\]"):
        store_items([user, {"content": "x"}], ())


def test_earlier_messages_are_read_only_as_far_as_a_result_needs_them() -> None:
    items = [{"type": "function_call", "call_id": f"c{n}", "name": "look", "arguments": "{}"} for n in range(3)]
    calls = [message for item in items for message, _ in store_items([item], ())]
    earlier = iter(calls[::-1])
    answer = {"type": "function_call_output", "output": "seen"}

    store_items([{"role": "user", "content": "a"}, items[0], {**answer, "call_id": "c0"}], earlier)
    assert next(earlier) == calls[2]
    ((result, _),) = store_items([{**answer, "call_id": "c1"}], earlier)

    assert result["toolName"] == "look"
    assert list(earlier) == calls[:1]


def test_a_result_gets_the_name_and_the_id_of_an_earlier_call() -> None:
    ((call, _),) = store_items(
        [{"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "look", "arguments": "{}"}], ()
    )
    result = {"type": "function_call_output", "call_id": "c1", "output": "seen"}

    ((stored, _),) = store_items([result], [call])

    assert (stored["toolCallId"], stored["toolName"]) == ("c1|fc_1", "look")
    assert restore_items(stored) == [result]
