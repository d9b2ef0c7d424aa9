"""Gemini: round trips, checked with the types of the SDK."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.convert.gemini import from_gemini, to_gemini
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
    compare_form,
    conversations,
    texts,
    words,
)
from tests.strategies import json_values

API = "google-generative-ai"
SIGNATURE = base64.b64encode(b"signed").decode()
BYTES = base64.b64decode(PIXEL)


def check_types(contents: ConvertedMessages) -> None:
    """Check with the SDK's types, which refuse unknown fields."""
    assert [types.Content.model_validate(content).model_dump(exclude_unset=True) for content in contents] == contents


thinking = st.builds(
    lambda text, signature: {"type": "thinking", "thinking": text, **signature},
    words,
    st.sampled_from([{}, {"thinkingSignature": SIGNATURE}]),
)
signed = texts.map(lambda block: {**block, "textSignature": SIGNATURE})
answers = st.lists(thinking | texts | signed, max_size=3)


def convert_back(contents: ConvertedMessages) -> Any:
    return from_gemini(contents, system=contents.system or None)


@given(conversations(api=API, answers=answers, late_system=False, max_result_blocks=1))
def test_a_round_trip_changes_nothing(conversation: list[Wire]) -> None:
    check_types(check_round_trip(conversation, to_gemini, convert_back))


CONTENTS: dict[str, list[Wire]] = {
    "text": [{"role": "user", "parts": [{"text": "Hello"}]}, {"role": "model", "parts": [{"text": "Hi"}]}],
    "image": [
        {"role": "user", "parts": [{"text": "Look"}, {"inline_data": {"data": BYTES, "mime_type": "image/png"}}]}
    ],
    "signed image of the model": [
        {
            "role": "model",
            "parts": [{"inline_data": {"data": BYTES, "mime_type": "image/png"}, "thought_signature": b"signed"}],
        }
    ],
    "signatures": [
        {
            "role": "model",
            "parts": [
                {"text": "Hm.", "thought": True, "thought_signature": b"one"},
                {"text": "Looking.", "thought_signature": b"two"},
                {"function_call": {"name": "f", "args": {"x": 1}, "id": "a"}, "thought_signature": b"three"},
            ],
        },
        {"role": "user", "parts": [{"function_response": {"name": "f", "response": {"output": "1"}, "id": "a"}}]},
    ],
    "an empty signed text": [{"role": "model", "parts": [{"text": "", "thought_signature": b"one"}]}],
    "parallel calls without ids": [
        {
            "role": "model",
            "parts": [
                {"function_call": {"name": "read", "args": {"path": "a"}}},
                {"function_call": {"name": "read", "args": {"path": "b"}}},
                {"function_call": {"name": "list", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"function_response": {"name": "read", "response": {"output": "A"}}},
                {"function_response": {"name": "read", "response": {"error": "no such file"}}},
                {"function_response": {"name": "list", "response": {"files": ["a"], "count": 1}}},
            ],
        },
    ],
    "image in a result": [
        {"role": "model", "parts": [{"function_call": {"name": "look", "args": {}}}]},
        {
            "role": "user",
            "parts": [
                {
                    "function_response": {
                        "name": "look",
                        "response": {"output": "see"},
                        "parts": [{"inline_data": {"data": BYTES, "mime_type": "image/png"}}],
                    }
                }
            ],
        },
    ],
}


@pytest.mark.parametrize("contents", CONTENTS.values(), ids=CONTENTS.keys())
def test_contents_of_the_sdk_survive_a_round_trip(contents: list[Wire]) -> None:
    bodies = from_gemini(contents)

    again = to_gemini(build_body_context(bodies))

    assert again == contents
    assert again.omitted == bodies.omitted == []
    check_types(again)


@pytest.mark.parametrize("contents", CONTENTS.values(), ids=CONTENTS.keys())
def test_objects_of_the_sdk_and_rest_json_give_the_same_as_dicts(contents: list[Wire]) -> None:
    objects = [types.Content.model_validate(content) for content in contents]
    rest = [item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in objects]

    expected = from_gemini(contents)

    assert from_gemini(objects) == expected
    assert compare_form(from_gemini(rest)) == compare_form(expected)


def test_calls_without_ids_get_the_same_ids_every_time() -> None:
    contents = CONTENTS["parallel calls without ids"]

    bodies = from_gemini(contents)

    ids = [block["id"] for block in bodies[0].message["content"]]
    assert len(set(ids)) == 3
    assert [body.message["toolCallId"] for body in bodies[1:]] == ids
    assert from_gemini(contents) == bodies
    assert [call["id"] for call in build_body_context(bodies).to_openai()[0]["tool_calls"]] == ids


KEPT: dict[str, list[Wire]] = {
    "file_data": [
        {
            "role": "user",
            "parts": [
                {"text": "Look"},
                {"file_data": {"file_uri": "gs://bucket/cat.png", "mime_type": "image/png"}},
            ],
        }
    ],
    "executable_code": [
        {"role": "model", "parts": [{"executable_code": {"language": "PYTHON", "code": "1"}}, {"text": "One."}]}
    ],
    "inline_data": [{"role": "user", "parts": [{"inline_data": {"data": b"RIFF", "mime_type": "audio/wav"}}]}],
}


@pytest.mark.parametrize(("block", "contents"), KEPT.items(), ids=KEPT.keys())
def test_unsupported_content_is_kept_for_the_sdk_and_listed(block: str, contents: list[Wire]) -> None:
    bodies = from_gemini(contents)
    context = build_body_context(bodies)

    assert [item.block for item in bodies.omitted] == [block]
    assert context.to_gemini() == contents
    assert context.to_gemini().omitted == []
    assert block in [item.block for item in context.to_openai().omitted]


def build_response(**candidate: Any) -> types.GenerateContentResponse:
    return types.GenerateContentResponse.model_validate(
        {
            "response_id": "resp_1",
            "model_version": "gemini-3.8-flash",
            "candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}, **candidate}],
            "usage_metadata": {
                "prompt_token_count": 100,
                "cached_content_token_count": 60,
                "candidates_token_count": 5,
                "thoughts_token_count": 2,
                "total_token_count": 107,
            },
        }
    )


def test_a_whole_response_has_its_model_usage_and_stop_reason() -> None:
    (body,) = from_gemini([build_response(finish_reason="STOP")])

    message = body.message
    assert message["content"] == [{"type": "text", "text": "Hi"}]
    assert (message["provider"], message["model"], message["api"]) == ("google", "gemini-3.8-flash", API)
    assert (message["stopReason"], message["responseId"]) == ("stop", "resp_1")
    usage = message["usage"]
    assert [usage[key] for key in ("input", "output", "cacheRead", "totalTokens")] == [40, 7, 60, 107]


@pytest.mark.parametrize(
    ("reason", "stop", "error"),
    [("MAX_TOKENS", "length", None), ("SAFETY", "error", "Gemini stopped with SAFETY")],
)
def test_the_finish_reason_is_the_stop_reason(reason: str, stop: str, error: str | None) -> None:
    (body,) = from_gemini([build_response(finish_reason=reason)])

    assert (body.message["stopReason"], body.message.get("errorMessage")) == (stop, error)


def test_a_blocked_prompt_is_a_failed_turn() -> None:
    (body,) = from_gemini([{"candidates": []}])

    assert (body.message["content"], body.message["stopReason"]) == ([], "error")


def test_citations_of_a_response_are_kept_and_listed_because_no_request_accepts_them() -> None:
    cited = {"citations": [{"start_index": 0, "end_index": 2, "uri": "https://example.com"}]}

    bodies = from_gemini([build_response(citation_metadata=cited)])

    assert bodies[0].message["providerData"] == {API: {"citation_metadata": cited}}
    assert [item.block for item in build_body_context(bodies).to_gemini().omitted] == ["assistant.citation_metadata"]


def test_a_late_system_message_joins_the_system_prompt_and_is_listed() -> None:
    sent = build_context(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Be kind."},
    ).to_gemini()

    assert sent.system == "Be brief.\n\nBe kind."
    assert [item.block for item in sent.omitted] == ["system"]


def test_the_system_instruction_may_be_text_or_a_content() -> None:
    expected = compare_form(from_gemini([], system="Be brief."))

    assert compare_form(from_gemini([], system={"parts": [{"text": "Be brief."}]})) == expected
    assert compare_form(from_gemini([], system=types.Content(parts=[types.Part(text="Be brief.")]))) == expected


def test_an_edited_result_is_sent_as_edited() -> None:
    bodies = from_gemini(CONTENTS["parallel calls without ids"])
    result = {**bodies[-1].message, "content": [{"type": "text", "text": "hidden"}]}

    sent = build_context(*bodies[:-1], result).to_gemini()

    assert sent[-1]["parts"][-1]["function_response"]["response"] == {"output": "hidden"}


def test_content_that_gemini_cannot_represent_is_listed() -> None:
    context = build_context(
        {"role": "user", "content": [{**IMAGE, "data": "?"}]},
        {
            "role": "assistant",
            "api": "anthropic-messages",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "signed"},
                {"type": "text", "text": "No.", "refusal": True, "textSignature": "x"},
                {"type": "toolCall", "id": "a", "name": "f", "arguments": "{"},
            ],
        },
        {
            "role": "toolResult",
            "toolCallId": "a",
            "toolName": "f",
            "content": [IMAGE, {"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
            "isError": False,
        },
    )

    sent = context.to_gemini()

    assert [item.block for item in sent.omitted] == [
        "image", "user", "thinking", "text.textSignature", "text.refusal", "toolCall.arguments", "toolResult",
        "toolResult",
    ]  # fmt: skip
    check_types(sent)


MALFORMED: list[tuple[Any, str]] = [
    ("Hello", ": expected a list, not the string 'Hello'"),
    ([3], "[0]: expected a content, not a number"),
    ([{"role": "assistant", "parts": []}], "[0].role: expected user or model, not the string 'assistant'"),
    ([{"role": "user", "parts": "x"}], "[0].parts: expected a list, not the string 'x'"),
    (
        [{"role": "user", "parts": [{}]}],
        "[0].parts[0]: expected a part with text, inline_data, function_call or another kind of content",
    ),
    (
        [{"role": "model", "parts": [{"function_call": {}}]}],
        "[0].parts[0].function_call.name: expected a string, not nothing",
    ),
    (
        [{"role": "user", "parts": [{"inline_data": {"mime_type": "image/png", "data": "?"}}]}],
        "[0].parts[0].inline_data.data: expected bytes or base64 text",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("contents", "sentence"), MALFORMED)
def test_malformed_input_is_refused_with_its_position(contents: Any, sentence: str) -> None:
    with pytest.raises(InvalidOperation) as raised:
        from_gemini(contents)

    assert str(raised.value) == f"contents{sentence}"


odd_parts = st.dictionaries(
    st.sampled_from(
        ["text", "thought", "thoughtSignature", "inlineData", "functionCall", "functionResponse", "fileData"]
    ),
    json_values
    | st.just({"name": "f"})
    | st.just({"name": "f", "response": {"output": "x"}})
    | st.just({"mimeType": "image/png", "data": "AA=="}),
)
odd_contents = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "model", "tool"]), "parts": st.lists(odd_parts, max_size=3) | json_values}
)


@given(st.lists(odd_contents | json_values, max_size=3) | json_values)
def test_any_json_gives_a_result_or_a_refusal(contents: Any) -> None:
    check_any_input(contents, from_gemini, to_gemini)
