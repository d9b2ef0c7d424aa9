"""Typed views read any stored JSON, and keep unknown fields."""

import base64
import copy
import pickle

import pytest
from hypothesis import given

import sessiontree as st
from sessiontree.core.message_views import (
    AssistantMessage,
    Image,
    OtherBlock,
    OtherMessage,
    SystemMessage,
    Text,
    Thinking,
    TokenUsage,
    ToolCall,
    ToolResult,
    UserMessage,
    view_blocks,
    view_message,
    view_usage,
)
from tests.strategies import json_values


def test_an_assistant_message_has_typed_fields():
    answer = view_message(
        st.assistant(
            [Thinking("Hm.", "sig"), Text("Yes."), Text("Sure."), ToolCall("c1", "read", {"path": "a"})],
            provider="openai",
            model="gpt-5",
            usage={"input": 10, "output": 5, "cacheRead": 3, "cost": 0.25},
            stop_reason="error",
            error="overloaded",
        ).message
    )

    assert isinstance(answer, AssistantMessage)
    assert (answer.role, answer.text, answer.thinking) == ("assistant", "Yes.\nSure.", "Hm.")
    assert answer.tool_calls == [ToolCall("c1", "read", {"path": "a"})]
    assert (answer.provider, answer.model) == ("openai", "gpt-5")
    assert (answer.stop_reason, answer.error) == ("error", "overloaded")
    assert answer.usage == TokenUsage(input=10, output=5, cache_read=3, cache_write=0, total=18, cost=0.25)
    assert answer.timestamp is None


def test_usages_add_up():
    first, second = TokenUsage(input=1, total=1, cost=0.5), TokenUsage(output=2, total=2, cost=0.25)

    assert first.add(second) == TokenUsage(input=1, output=2, total=3, cost=0.75)
    assert first.add(None) == first


def test_a_user_message_has_text_and_images():
    message = view_message(st.user(["Look:", Image(b"\x89PNG", "image/png")]).message)

    assert isinstance(message, UserMessage)
    assert message.text == "Look:"
    assert [(image.data, image.media_type) for image in message.images] == [(b"\x89PNG", "image/png")]


def test_a_tool_result_names_its_call():
    result = view_message(st.tool_result("c1", "read", "not found", error=True, details={"code": 2}).message)

    assert isinstance(result, ToolResult)
    assert (result.call_id, result.tool_name, result.text) == ("c1", "read", "not found")
    assert (result.is_error, result.details) == (True, {"code": 2})


def test_other_roles_and_blocks_are_kept():
    message = view_message({"role": "bashExecution", "command": "ls", "content": [{"type": "video", "url": "u"}]})

    assert isinstance(message, OtherMessage)
    assert message.raw["command"] == "ls"
    [block] = message.blocks
    assert isinstance(block, OtherBlock)
    assert (block.type, block.raw["url"]) == ("video", "u")
    assert isinstance(view_message({"role": "system", "content": "Be brief."}), SystemMessage)


def test_views_with_the_same_json_are_equal():
    assert Text("a") == Text("a")
    assert hash(Text("a")) == hash(Text("a"))
    assert Text("a") != Text("b")
    assert Text("a") != UserMessage.wrap({"type": "text", "text": "a"})
    assert copy.deepcopy(Text("a")) == pickle.loads(pickle.dumps(Text("a"))) == Text("a")


def test_views_show_their_fields():
    assert repr(ToolCall("c1", "read", {})) == "ToolCall(id='c1', name='read', arguments={})"
    assert repr(Thinking("Hm.")) == "Thinking(text='Hm.', signature=None)"


def test_blocks_can_be_matched():
    match Thinking("Hm.", "sig"):
        case Thinking(text, signature):
            assert (text, signature) == ("Hm.", "sig")
        case _:
            pytest.fail("no match")


@pytest.mark.parametrize("data", ["%%%", None, "YWJj"])
def test_an_image_with_broken_data_has_no_bytes(data):
    image = Image.wrap({"type": "image", "data": data})

    assert image.data == (base64.b64decode(data) if data == "YWJj" else b"")


@given(json_values)
def test_any_json_can_be_viewed(value):
    message = {"role": "assistant", "content": value, "usage": value, "timestamp": value, "model": value}
    for view in (view_message(message), view_message({"role": value, "content": value})):
        assert isinstance(view.text, str)
        assert view.timestamp is None or isinstance(view.timestamp, str)
        repr(view)
    view_blocks(value)
    view_usage(value)


def test_an_entry_offers_its_message():
    session = st.memory()
    question = session.head.append(st.user("Why?"))
    call = session.append(
        st.assistant([ToolCall("c1", "read", {})], usage={"input": 1, "cost": 0.5}), extra={"mood": "calm"}
    )
    label = session.label(question, "start")

    assert (question.role, question.text, question.tool_calls, question.usage) == ("user", "Why?", [], None)
    assert isinstance(question.message, UserMessage)
    assert call.tool_calls == [ToolCall("c1", "read", {})]
    assert call.usage is not None
    assert call.usage.cost == 0.5
    assert call.extra == {"mood": "calm"}
    assert (label.message, label.role, label.text, label.usage, label.extra) == (None, None, "", None, {})


def test_an_entry_offers_the_text_of_a_summary_and_of_an_extension():
    session = st.memory()
    session.append(st.user("Why?"))
    summary = session.append(st.BranchSummary(summary="It failed.", usage={"input": 3}))
    note = session.append(st.CustomMessage(custom_type="note", content=[{"type": "text", "text": "Mind the gap."}]))

    assert (summary.text, note.text) == ("It failed.", "Mind the gap.")
    assert summary.usage is not None
    assert summary.usage.input == 3
