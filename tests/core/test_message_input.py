"""Every way to write a message checks it: known forms are converted, and content that models never get is refused."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given

import sessiontree as st
from sessiontree.core.message_input import (
    check_content,
    check_message,
    check_new_message,
    check_usage,
    describe_unsent,
    find_unsent_blocks,
)
from tests.strategies import json_values

TEXT = {"type": "text", "text": "hi"}
CALL = {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "a"}}


class Blocks(list):
    """A list of another type, as SDKs return."""


PNG = {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": [TEXT, PNG]},
        {
            "role": "assistant",
            "content": [TEXT, CALL, {"type": "thinking", "thinking": "hm", "thinkingSignature": "s"}],
        },
        {"role": "assistant", "content": [PNG], "usage": None},
        {"role": "assistant", "content": [], "usage": {"input": 1, "cost": {"total": 0.1}}},
        {"role": "assistant", "content": [], "usage": {"input": 1, "reasoning": 2}},
        {"role": "toolResult", "toolCallId": "c1", "toolName": "read", "content": [TEXT]},
        {"role": "system", "content": "Be brief.", "sections": {"a": "b"}},
        {"role": "bashExecution", "command": "ls", "output": ""},
    ],
)
def test_a_message_in_our_form_is_accepted_as_it_is(message):
    assert check_message(message) == message


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"role": "user", "content": ["hi"]}, {"role": "user", "content": [TEXT]}),
        ({"role": "user", "content": ("hi", TEXT)}, {"role": "user", "content": [TEXT, TEXT]}),
        ({"role": "user", "content": st.Text("hi")}, {"role": "user", "content": [TEXT]}),
        ({"role": "user", "content": TEXT}, {"role": "user", "content": [TEXT]}),
        ({"role": "user", "content": Blocks(["hi"])}, {"role": "user", "content": [TEXT]}),
        ({"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, {"role": "user", "content": [TEXT]}),
        (
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}],
            },
            {"role": "user", "content": [PNG]},
        ),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,iVBORw=="}]},
            {"role": "user", "content": [PNG]},
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "base64", "data": "iVBORw==", "media_type": "image/png"}}
                ],
            },
            {"role": "user", "content": [PNG]},
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}}],
            },
            {"role": "assistant", "content": [CALL]},
        ),
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "function": {"name": "read", "arguments": '{"path": "a"}'}}],
            },
            {"role": "assistant", "content": [CALL]},
        ),
        (
            {"role": "assistant", "content": [{**CALL, "arguments": '{"path": "a"}'}]},
            {"role": "assistant", "content": [CALL]},
        ),
        (
            {"role": "assistant", "content": [{**CALL, "arguments": '{"a":' * 300 + "1" + "}" * 300}]},
            {"role": "assistant", "content": [{**CALL, "arguments": '{"a":' * 300 + "1" + "}" * 300}]},
        ),
        (
            {"role": "assistant", "content": [{**CALL, "arguments": '{"path"'}]},
            {"role": "assistant", "content": [{**CALL, "arguments": '{"path"'}]},
        ),
        (
            {"role": "assistant", "content": [{**CALL, "arguments": None}]},
            {"role": "assistant", "content": [{**CALL, "arguments": {}}]},
        ),
        (
            {"role": "assistant", "content": [{**CALL, "arguments": '{"path": "\ud800"}'}]},
            {"role": "assistant", "content": [{**CALL, "arguments": '{"path": "\ud800"}'}]},
        ),
        (
            {"role": "assistant", "content": "hi", "tool_calls": [{"id": "c1", "function": {"name": "read"}}]},
            {"role": "assistant", "content": [TEXT, {**CALL, "arguments": {}}]},
        ),
        (
            {"role": "assistant", "content": [TEXT], "refusal": "No."},
            {"role": "assistant", "content": [TEXT, {"type": "text", "text": "No."}]},
        ),
        (
            {"role": "tool", "tool_call_id": "c1", "name": "read", "content": "hi"},
            {"role": "toolResult", "toolCallId": "c1", "toolName": "read", "content": "hi"},
        ),
        (
            {"role": "tool", "toolCallId": "c1", "content": "hi"},
            {"role": "toolResult", "toolCallId": "c1", "content": "hi"},
        ),
    ],
)
def test_the_form_of_another_program_is_converted_if_its_meaning_is_certain(given, stored):
    assert check_message(given) == stored


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("hi", "must be a JSON object, not str"),
        ({"content": "hi"}, "has no role; roles: user"),
        ({"role": "human", "content": "hi"}, 'unknown role "human"'),
        ({"role": ["user"], "content": "hi"}, "unknown role"),
        ({"role": "tool", "content": "hi"}, '"tool_call_id"'),
        ({"role": "toolResult", "content": "hi"}, '"toolCallId"'),
        ({"role": "model", "parts": []}, "st.from_gemini"),
        ({"role": "user", "content": 3}, "not int"),
        ({"role": "user", "content": [3]}, "a content block must be an object, not int"),
        (
            {"role": "user", "content": [{"type": "video"}]},
            '"video" are not sent to models; the content of a user message',
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "lacks its text"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/a.png"}}]},
            "not by address",
        ),
        ({"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]}, "not by address"),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]}, "st.from_anthropic"),
        ({"role": "user", "content": [CALL]}, 'type "toolCall"'),
        ({"role": "assistant", "content": [{"type": "toolCall", "name": "read"}]}, "lacks its id, name or arguments"),
        ({"role": "assistant", "content": None, "tool_calls": "read"}, "must be a list"),
        ({"role": "assistant", "content": None, "tool_calls": ["read"]}, "not a function call"),
        ({"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "read"}}]}, 'has no "id"'),
        (
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c", "function": {"name": "r", "arguments": "{"}}],
            },
            "not a JSON object",
        ),
        ({"role": "system", "content": [PNG]}, "the content of a system message is text"),
        ({"role": "assistant", "content": "hi", "usage": "12 tokens"}, "usage must be an object"),
    ],
)
def test_a_message_that_no_model_would_see_is_refused_with_the_right_form(message, sentence):
    with pytest.raises(st.InvalidOperation) as error:
        check_message(message)

    assert sentence in str(error.value)


def test_a_message_of_a_peer_may_lack_content_but_a_new_one_may_not():
    assert check_message({"role": "assistant", "content": None}) == {"role": "assistant", "content": None}
    with pytest.raises(st.InvalidOperation, match="needs content"):
        check_new_message({"role": "user"})
    with pytest.raises(st.InvalidOperation, match="needs content"):
        st.user(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"input": 1, "output": 2}, {"input": 1, "output": 2}),
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            {"input": 10, "output": 5, "totalTokens": 15},
        ),
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
            {"input": 6, "output": 5, "cacheRead": 4},
        ),
        (
            {"input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 4, "totalTokens": 10, "service_tier": "standard"},
            {"input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 4, "totalTokens": 10},
        ),
        (
            {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3, "service_tier": "standard"},
            {"input": 1, "output": 2, "cacheRead": 3},
        ),
    ],
)
def test_usage_of_other_programs_is_converted(given, stored):
    assert check_usage(given) == stored
    message = {"role": "assistant", "content": "hi", "usage": given}
    assert check_message(message) == {**message, "usage": stored}


@pytest.mark.parametrize(
    ("usage", "sentence"),
    [
        ({"tokens": 5}, 'ambiguous key "tokens"'),
        ({"input": 5, "prompt_tokens": 6}, 'ambiguous key "prompt_tokens"'),
        ({"prompt_tokens": 5, "input_tokens": 6}, 'ambiguous key "input_tokens"'),
        ({"spent": 5}, "unknown keys: spent"),
        ({"input": "5"}, "not a number"),
        ({"input": True}, "not a number"),
        (dict.fromkeys(("input", "output", "cacheRead", "cacheWrite", "cost", "tokens"), 1), 'ambiguous key "tokens"'),
        (
            {**dict.fromkeys(("input", "output", "cacheRead", "cacheWrite", "cost"), 1), "totalTokens": "1"},
            "not a number",
        ),
        ({"input": 1, "cost": "cheap"}, "not a number of US dollars"),
        ({"input": 1, "cost": {"total": "cheap"}}, "not a number of US dollars"),
        (5, "not int"),
    ],
)
def test_usage_that_would_not_be_counted_is_refused(usage, sentence):
    with pytest.raises(st.InvalidOperation) as error:
        st.assistant("hi", usage=usage)

    assert sentence in str(error.value)


@given(json_values)
def test_any_message_is_accepted_or_refused(value):
    for message in (
        {"role": "assistant", "content": value, "usage": value, "tool_calls": value},
        {"role": value},
        value,
    ):
        with suppress(st.InvalidOperation):
            json.dumps(check_message(message))  # type: ignore[arg-type]


def test_content_of_an_extension_is_checked_alike():
    assert check_content(["hi"]) == [TEXT]
    session = st.memory()
    with pytest.raises(st.InvalidOperation, match="video"):
        session.append(st.CustomMessage(custom_type="note", content=[{"type": "video"}]))
    note = session.append(st.CustomMessage(custom_type="note", content=["hi"]))
    assert note.text == "hi"
    with pytest.raises(st.InvalidOperation, match="role"):
        session.append(st.Compaction(summary="S", system_message={"content": "hi"}))


@pytest.mark.parametrize(
    "write",
    [
        lambda session, bad: session.append(bad),
        lambda session, bad: session.extend([st.user("first"), bad]),
        lambda session, bad: session.append(bad, extra={"mood": "calm"}),
    ],
    ids=["append", "extend", "extra"],
)
def test_every_way_to_write_checks_and_writes_nothing_on_refusal(write):
    session = st.memory()
    session.append(st.user("hi"))
    before = session.read_lines()
    bad = st.Message({"role": "user", "content": [{"type": "video"}]})

    with pytest.raises(st.InvalidOperation, match="video"):
        write(session, bad)
    assert session.read_lines() == before


def write_file(path: Path, *messages: dict) -> st.Session:
    lines = [{"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/p"}]
    parent = None
    for index, message in enumerate(messages):
        lines.append({"type": "message", "id": f"e{index}", "parentId": parent, "timestamp": "", "message": message})
        parent = f"e{index}"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return st.open(path)


def test_a_stored_message_that_is_not_sent_to_models_opens_and_is_reported(tmp_path: Path):
    session = write_file(
        tmp_path / "s.jsonl",
        {"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {"url": "https://x"}}]},
        {"role": "tool", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},
    )

    assert [(problem.kind, problem.message) for problem in session.problems] == [
        ("unsent", "blocks of type image_url are not sent to models"),
        ("unsent", 'messages with the role "tool" are not sent to models'),
        ("unsent", '"tool_calls" outside the content is not sent to models'),
    ]
    first = session.head.explain().entries[0]
    assert (first.reaches_model, first.omitted, first.reason) == (True, ("image_url",), "as it is, without image_url")


def test_a_stored_message_that_is_not_sent_to_models_can_be_copied(tmp_path: Path):
    session = write_file(tmp_path / "s.jsonl", {"role": "user", "content": [TEXT, {"type": "video"}]})

    forked = session.fork()

    assert forked.tree["e0"].raw == session.tree["e0"].raw


def test_an_explanation_names_the_thinking_that_is_sent_again():
    session = st.memory()
    session.append(st.user("Why?"))
    thought = {"type": "thinking", "thinking": "hm", "thinkingSignature": "s"}
    session.append(st.assistant([thought, TEXT], provider="a", model="m"))
    only = session.append(st.assistant([thought], provider="a", model="m"))
    assert [item.omitted for item in session.head.explain().entries] == [(), (), ()]

    session.append(st.ModelChange(provider="b", model="n"))

    explained = {item.entry.id: item for item in session.head.explain().entries}
    assert explained[only.id].omitted == ("thinking",)
    assert explained[only.id].reason == "as it is, without thinking"


def test_an_image_that_a_model_made_is_not_sent_back():
    assert find_unsent_blocks({"role": "assistant", "content": [PNG, TEXT]}) == ["image"]
    assert describe_unsent({"role": "assistant", "content": [PNG, TEXT]}) is None
    assert find_unsent_blocks({"role": "assistant", "content": "hi"}) == []
    assert find_unsent_blocks({"role": "user", "content": [3]}) == ["int"]
    openai = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    assert find_unsent_blocks(openai) == ["tool_calls"]
    assert find_unsent_blocks({**openai, "content": [TEXT, {"type": "refusal"}]}) == ["refusal", "tool_calls"]
    assert find_unsent_blocks({**openai, "tool_calls": []}) == find_unsent_blocks({"role": "robot"}) == []


def test_a_system_message_is_built_from_text():
    assert st.memory().append(st.system("Be brief.")).role == "system"
