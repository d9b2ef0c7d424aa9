import copy
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.message_input import check_message
from sessiontree.core.messages import (
    BRANCH_LEAD,
    COMPACTION_LEAD,
    ToolCall,
    UsageSum,
    assistant,
    build_bash_execution,
    build_image_block,
    coerce_number,
    complete_message,
    complete_usage,
    convert_for_model,
    describe_shortcoming,
    estimate_tokens,
    extract_text,
    get_answered_call,
    get_model,
    get_role,
    get_tool_calls,
    has_failed,
    is_complete,
    is_failed_turn,
    iter_blocks,
    name_author,
    sum_usage,
    tool_call,
    tool_result,
    user,
)
from sessiontree.core.ready_messages import is_ready
from tests.builders import MESSAGES_AND_FAILURES
from tests.strategies import json_values

NOTHING_SPENT = {
    "input": 0,
    "output": 0,
    "cacheRead": 0,
    "cacheWrite": 0,
    "totalTokens": 0,
    "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0},
}


def get_sent_text(message):
    """Return the text that is sent to the model for `message` as a user message."""
    sent = convert_for_model(message)
    assert sent["role"] == "user"
    [block] = sent["content"]
    assert block["type"] == "text"
    return block["text"]


# Making messages


def test_a_user_message_keeps_text_or_blocks_unchanged():
    assert user("hi").message == {"role": "user", "content": "hi"}
    assert user([{"type": "text", "text": "hi"}]).message["content"] == [{"type": "text", "text": "hi"}]


def test_an_author_is_named_only_if_there_is_one():
    message = user("How?")

    assert name_author(message, "anna").message == {**message.message, "author": "anna"}
    assert name_author(message, "") is message


def test_an_assistant_message_has_only_the_given_fields():
    message = assistant("hi").message

    assert message["content"] == [{"type": "text", "text": "hi"}]
    assert message["usage"] == NOTHING_SPENT
    assert not {"provider", "model", "stopReason", "errorMessage"} & set(message)


def test_an_assistant_message_carries_model_stop_and_error_when_given():
    message = assistant("hi", model="m", provider="p", stop_reason="error", error="broke").message

    assert (message["provider"], message["model"]) == ("p", "m")
    assert (message["stopReason"], message["errorMessage"]) == ("error", "broke")


def test_a_call_and_its_result_share_an_id():
    calling = assistant([tool_call("c1", "read", {"path": "x"})]).message
    result = tool_result("c1", "read", "text", error=True).message

    [call] = get_tool_calls(calling)
    assert call == ToolCall("c1", "read", {"path": "x"})
    assert get_answered_call(result) == call.id
    assert (result["toolName"], result["isError"]) == ("read", True)


def test_usage_is_completed_to_the_full_form():
    full = complete_usage({"input": 10, "output": 5, "cost": 0.01, "reasoning": 3})

    assert full["totalTokens"] == 15
    assert full["cost"] == {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0.01}
    assert full["reasoning"] == 3


def test_an_explicit_total_is_kept():
    assert complete_usage({"input": 10, "totalTokens": 99})["totalTokens"] == 99
    assert complete_usage({"cost": {"input": 1, "total": 7}})["cost"]["total"] == 7


def test_costs_by_kind_are_added_up():
    assert complete_usage({"cost": {"input": 1, "cacheRead": 2}})["cost"]["total"] == 3


def test_complete_usage_is_not_changed():
    full = complete_usage({"input": 10, "cost": 0.01})

    assert complete_usage(full) == full
    assert complete_usage({**full, "cost": {"input": 1}})["cost"]["total"] == 1


def test_a_message_is_completed_as_peers_write_it():
    filled = complete_message({"role": "assistant", "content": "hi"}, now=7, provider="p", model="m")

    assert filled == {
        "role": "assistant",
        "content": [{"type": "text", "text": "hi"}],
        "api": "unknown",
        "provider": "p",
        "model": "m",
        "usage": NOTHING_SPENT,
        "stopReason": "stop",
        "timestamp": 7,
    }


def test_completing_keeps_existing_fields():
    given_ = {"role": "assistant", "content": [tool_call("c", "n", {})], "model": "mine", "timestamp": 1}

    filled = complete_message(given_, now=7, model="other")

    assert (filled["model"], filled["timestamp"], filled["stopReason"]) == ("mine", 1, "toolUse")
    assert filled["content"] == given_["content"]
    assert "provider" not in given_
    assert complete_message({**given_, "stopReason": "length"}, now=7)["stopReason"] == "length"


def test_completing_a_result_marks_it_as_no_error():
    filled = complete_message({"role": "toolResult", "toolCallId": "c", "content": "text"}, now=7)

    assert filled["isError"] is False
    assert filled["content"] == [{"type": "text", "text": "text"}]
    assert complete_message({"role": "toolResult"}, now=7)["content"] == []


@pytest.mark.parametrize("role", ["user", "assistant", "toolResult"])
def test_a_complete_message_is_not_changed(role):
    whole = complete_message({"role": role, "content": [{"type": "text", "text": "x"}]}, now=7)

    assert complete_message(whole, now=8) is whole


@pytest.mark.parametrize("lacking", ["content", "usage", "api", "provider", "model", "stopReason", "timestamp"])
def test_an_incomplete_answer_is_completed(lacking):
    whole = complete_message({"role": "assistant", "content": [{"type": "text", "text": "x"}]}, now=7)

    filled = complete_message({key: value for key, value in whole.items() if key != lacking}, now=7)

    assert filled.keys() == whole.keys()


def test_complete_usage_keeps_its_order_and_extra_fields():
    whole = complete_message({"role": "assistant", "content": []}, now=7)
    usage = {"reasoning": 5, **dict(reversed(whole["usage"].items()))}

    assert complete_message({**whole, "usage": usage}, now=8)["usage"] is usage


@pytest.mark.parametrize(
    "usage", [None, 5, [], "cost", {**NOTHING_SPENT, "cost": 5}, {**NOTHING_SPENT, "cost": {"input": 1}}]
)
def test_incomplete_usage_is_completed(usage):
    whole = complete_message({"role": "assistant", "content": []}, now=7)

    filled = complete_message({**whole, "usage": usage}, now=8)["usage"]

    assert (filled.keys(), filled["cost"].keys()) == (NOTHING_SPENT.keys(), NOTHING_SPENT["cost"].keys())


def test_a_dict_that_invents_missing_keys_is_not_changed():
    given_ = defaultdict(list, role="assistant", content=[])

    filled = complete_message(given_, now=7)

    assert (filled["api"], filled["timestamp"], given_) == ("unknown", 7, {"role": "assistant", "content": []})


def test_completing_another_role_adds_only_the_timestamp():
    assert complete_message({"role": "user", "content": "x"}, now=7) == {"role": "user", "content": "x", "timestamp": 7}


# Reading messages


@pytest.mark.parametrize("odd", [None, True, "5", float("inf"), float("-inf"), float("nan"), 10**400, [], {}])
def test_a_value_that_is_not_a_finite_number_counts_as_zero(odd):
    assert coerce_number(odd) == 0


def test_a_number_keeps_its_value():
    assert coerce_number(5) == 5
    assert coerce_number(0.25) == 0.25
    assert coerce_number(10**50) == 10**50


def test_text_joins_the_text_blocks_and_ignores_others():
    content = [
        {"type": "text", "text": "a"},
        {"type": "image"},
        "stray",
        {"type": "text"},
        {"type": "text", "text": "b"},
    ]

    assert extract_text(content) == "a\n\nb"
    assert extract_text("plain") == "plain"
    assert extract_text(None) == ""


def test_a_plain_string_is_one_text_block():
    assert list(iter_blocks("a")) == [{"type": "text", "text": "a"}]
    assert list(iter_blocks(7)) == []


def test_only_an_assistant_calls_tools():
    call = tool_call("c", "n", {})

    assert list(get_tool_calls({"role": "user", "content": [call]})) == []
    assert list(get_tool_calls({"role": "assistant", "content": [call, {"type": "text"}]})) == [ToolCall("c", "n", {})]


def test_only_a_tool_result_answers():
    assert get_answered_call({"role": "user", "toolCallId": "c"}) is None
    assert get_answered_call({"role": "toolResult"}) == ""


def test_a_turn_with_an_error_or_an_abort_is_a_failed_turn():
    assert is_failed_turn({"role": "assistant", "stopReason": "error"})
    assert is_failed_turn({"role": "assistant", "stopReason": "aborted"})
    assert not is_failed_turn({"role": "assistant", "stopReason": "length"})
    assert not is_failed_turn({"role": "user", "stopReason": "error"})
    assert not is_failed_turn({"role": "assistant", "stopReason": ["error"]})


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"content": "42", "stopReason": "stop"}, None),
        ({"content": [{"type": "text", "text": "42"}]}, None),
        ({"content": "4", "stopReason": "length"}, "its answer was cut off"),
        ({"content": "4", "stopReason": "aborted"}, "its answer was cut off"),
        ({"content": " \n", "stopReason": "stop"}, "it answered nothing"),
        ({"content": [{"type": "thinking", "thinking": "Hm."}], "stopReason": "stop"}, "it answered nothing"),
        ({}, "it answered nothing"),
    ],
)
def test_a_truncated_or_empty_answer_has_a_shortcoming(message, why):
    assert describe_shortcoming({"role": "assistant", **message}) == why


def test_the_model_is_known_only_if_an_assistant_message_names_it_in_full():
    assert get_model({"role": "assistant", "provider": "p", "model": "m"}) == ("p", "m")
    assert get_model({"role": "assistant", "model": "m"}) is None
    assert get_model({"role": "user", "provider": "p", "model": "m"}) is None


def test_the_tokens_of_usage_are_its_total_or_else_the_sum():
    assert sum_usage({"totalTokens": 9, "input": 1, "cost": {"total": 0.5}}) == UsageSum(9, 0.5)
    assert sum_usage({"input": 1, "output": 2, "cost": 0.5}) == UsageSum(3, 0.5)


@pytest.mark.parametrize("nothing", [None, {}, {"totalTokens": 0, "cost": {"total": 0}}, "odd"])
def test_usage_without_numbers_is_none_rather_than_zero(nothing):
    assert sum_usage(nothing) is None


# Conversion for a model


@pytest.mark.parametrize("kind", ["user", "assistant", "toolResult", "system"])
def test_the_roles_that_models_know_are_sent_unchanged(kind):
    message = {"role": kind, "content": "x", "extra": 1}

    assert convert_for_model(message) is message


def test_summaries_are_sent_as_user_messages_with_a_lead():
    compacted = get_sent_text({"role": "compactionSummary", "summary": "S"})
    branch = get_sent_text({"role": "branchSummary", "summary": "S"})

    assert compacted == f"{COMPACTION_LEAD}\n\n<summary>\nS\n</summary>"
    assert branch == f"{BRANCH_LEAD}\n\n<summary>\nS\n</summary>"


@pytest.mark.parametrize("kind", ["custom", "hookMessage"])
def test_custom_messages_are_sent_as_user_messages_without_details(kind):
    message = {"role": kind, "content": "x", "details": {"secret": 1}, "timestamp": 5}

    assert convert_for_model(message) == {"role": "user", "content": [{"type": "text", "text": "x"}], "timestamp": 5}
    assert convert_for_model({"role": kind, "content": [{"type": "image"}, 3]})["content"] == [{"type": "image"}]


def test_a_developer_message_is_sent_as_a_system_message():
    assert convert_for_model({"role": "developer", "content": "x"}) == {"role": "system", "content": "x"}


def test_an_unknown_role_is_not_sent():
    assert convert_for_model({"role": "martian", "content": "x"}) is None
    assert convert_for_model({}) is None


def test_a_shell_command_is_sent_with_its_output():
    sent = get_sent_text({"role": "bashExecution", "command": "ls", "output": "a.txt", "exitCode": 0})

    assert "`ls`" in sent
    assert "```\na.txt\n```" in sent
    assert "exited" not in sent


def test_a_shell_command_reports_no_output_failure_cancelling_and_truncation():
    assert "printed nothing" in get_sent_text({"role": "pythonExecution", "code": "pass"})
    assert "`pass`" in get_sent_text({"role": "pythonExecution", "code": "pass"})
    assert "code 2" in get_sent_text({"role": "bashExecution", "command": "x", "exitCode": 2})
    cancelled = get_sent_text({"role": "bashExecution", "command": "x", "exitCode": 2, "cancelled": True})
    assert "cancelled" in cancelled
    assert "code 2" not in cancelled
    cut = {"role": "bashExecution", "command": "x", "truncated": True, "fullOutputPath": "/tmp/all"}
    assert "/tmp/all" in get_sent_text(cut)
    assert "/tmp/all" not in get_sent_text({**cut, "truncated": False})
    assert "truncated" in get_sent_text({**cut, "fullOutputPath": None})


def test_a_shell_command_can_be_excluded_from_the_context():
    assert convert_for_model({"role": "bashExecution", "command": "x", "excludeFromContext": True}) is None
    assert convert_for_model({"role": "bashExecution", "command": "x", "excludeFromContext": False}) is not None


def test_mentioned_files_are_sent_with_their_paths():
    files = [{"path": "a.py", "content": "print()"}, "odd", {"path": "b.py"}]

    sent = get_sent_text({"role": "fileMention", "text": "look", "content": "here", "files": files})

    assert sent == "look\n\nhere\n\na.py\nprint()\n\nb.py\n"
    assert get_sent_text({"role": "fileMention", "files": "odd"}) == ""


ROLES = st.sampled_from(
    ["user", "assistant", "toolResult", "custom", "bashExecution", "fileMention", "branchSummary", "developer", "?"]
)
KEYS = ["content", "usage", "stopReason", "toolCallId", "summary", "exitCode", "files", "output", "model", "provider"]


@given(ROLES, st.dictionaries(st.sampled_from(KEYS), json_values))
def test_any_json_can_be_read_as_a_message(kind, fields):
    message = {"role": kind, **fields}

    assert get_role(message) == kind
    assert isinstance(is_failed_turn(message), bool)
    assert all(isinstance(call.id, str) for call in get_tool_calls(message))
    assert all(isinstance(block, dict) for block in iter_blocks(fields.get("content")))
    sent = convert_for_model(message)
    assert sent is None or sent["role"] in ("user", "assistant", "toolResult", "system")
    assert complete_message(message, now=1)["role"] == kind
    assert (sum_usage(fields.get("usage")) or UsageSum(1, 1)) != UsageSum(0, 0)


def test_a_tool_result_may_have_details_that_no_model_sees() -> None:
    message = tool_result("c1", "edit", "Edited.", details={"diff": "+x"}).message

    assert message["details"] == {"diff": "+x"}
    assert "details" not in tool_result("c1", "edit", "Edited.").message


def test_a_user_command_is_written_in_the_form_of_peers() -> None:
    ran = build_bash_execution("make", "ok", exit_code=0).message
    ended = build_bash_execution(
        "make", "…", exit_code=None, truncated=True, full_output="/tmp/all", in_context=False
    ).message

    assert ran == {
        "role": "bashExecution",
        "command": "make",
        "output": "ok",
        "exitCode": 0,
        "cancelled": False,
        "truncated": False,
    }
    assert ended == {
        "role": "bashExecution",
        "command": "make",
        "output": "…",
        "cancelled": True,
        "truncated": True,
        "fullOutputPath": "/tmp/all",
        "excludeFromContext": True,
    }
    assert convert_for_model(ended) is None


def test_an_image_is_a_block() -> None:
    assert build_image_block(b"\0\1", "image/png") == {"type": "image", "data": "AAE=", "mimeType": "image/png"}


# Estimation of tokens


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("four", 1), ("fives", 2), ("x" * 400, 100)])
def test_four_characters_are_one_token_rounded_up(text, tokens):
    assert estimate_tokens({"role": "user", "content": text}) == tokens


def test_thinking_images_and_calls_count_too_and_unknown_blocks_do_not():
    assert estimate_tokens({"role": "assistant", "content": [{"type": "thinking", "thinking": "12345678"}]}) == 2
    assert estimate_tokens({"role": "user", "content": [{"type": "image", "data": "x" * 9999}]}) == 1200
    assert estimate_tokens({"role": "user", "content": [{"type": "hologram", "text": "12345678"}]}) == 0


def test_a_call_costs_its_name_and_its_arguments_as_compact_json():
    call = {"type": "toolCall", "id": "c", "name": "read", "arguments": {"path": "ä"}}

    assert estimate_tokens({"role": "assistant", "content": [call]}) == 4  # read{"path":"ä"} has 16 characters


def test_a_shell_command_costs_its_text_and_its_output():
    assert (
        estimate_tokens({"role": "bashExecution", "command": "1234", "output": "12345678", "content": "ignored"}) == 3
    )
    assert estimate_tokens({"role": "pythonExecution", "code": "1234"}) == 1


@pytest.mark.parametrize("role", ["compactionSummary", "branchSummary"])
def test_a_summary_costs_its_text(role):
    assert estimate_tokens({"role": role, "summary": "12345678"}) == 2


def test_a_system_message_costs_its_content_its_sections_and_its_tools():
    plain = {"role": "system", "content": "1234"}

    assert estimate_tokens(plain) == 1
    assert estimate_tokens({**plain, "sections": {"a": "1234", "gone": None}}) == 2
    assert estimate_tokens({**plain, "toolsAdded": ["12"]}) == 3  # 1234["12"] has 10 characters
    assert estimate_tokens({**plain, "sections": "odd", "toolsAdded": []}) == 1


# Messages that need no more checks

CALL = {"type": "toolCall", "id": "c1", "name": "look", "arguments": {}}
TEXT = {"type": "text", "text": "hi"}
READY = [
    {"role": "user", "content": "hi", "timestamp": 1},
    {"role": "user", "content": [TEXT], "timestamp": 1},
    {"role": "toolResult", "toolCallId": "c1", "content": [TEXT], "isError": False, "timestamp": 1},
    {
        "role": "assistant",
        "content": [TEXT, {"type": "thinking", "thinking": "hm"}, CALL],
        "api": "a",
        "provider": "p",
        "model": "m",
        "usage": NOTHING_SPENT,
        "stopReason": "stop",
        "timestamp": 1,
    },
]


def list_places(value, place=()):
    """Return where all values in a message are, each as its keys and indexes."""
    inner = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(*place, key) for key, _ in inner] + [
        found for key, item in inner for found in list_places(item, (*place, key))
    ]


@pytest.mark.parametrize("message", READY, ids=lambda message: message["role"])
def test_messages_as_agents_write_them_are_ready(message):
    assert is_ready(message)


ODD_VALUES = (None, True, "", "x", 1, 0.5, [], {}, [TEXT], [CALL], ["hi"], [None], defaultdict(str), TEXT)


@pytest.mark.parametrize("message", READY, ids=lambda message: message["role"])
def test_a_ready_message_needs_no_conversion_and_no_more_fields_whatever_was_changed_in_it(message):
    ready = 0
    extra_keys = ("tool_calls", "refusal", "usage", "extra", "prompt_tokens")
    changes = [(place, value) for place in list_places(message) for value in (*ODD_VALUES, KeyError)]
    changes += [((key,), value) for key in extra_keys for value in ODD_VALUES]
    for (*outer, key), value in changes:
        changed = copy.deepcopy(message)
        parent = changed
        for step in outer:
            parent = parent[step]
        if value is KeyError:
            del parent[key]
        else:
            parent[key] = copy.deepcopy(value)
        if is_ready(changed):
            ready += 1
            assert check_message(changed) is changed
            assert is_complete(changed)
    assert 0 < ready < len(changes)


def test_only_a_plain_dict_of_a_common_role_is_ready():
    message = READY[0]

    assert not is_ready(defaultdict(str, message))
    assert not is_ready({**message, "role": "system"})
    assert not is_ready({**message, "content": [defaultdict(str, TEXT)]})


@pytest.mark.parametrize("message", READY, ids=lambda message: message["role"])
def test_half_of_a_surrogate_pair_does_no_harm(message):
    for changed in (
        {**message, "\ud800": 1},
        {**message, "content": [{**TEXT, "\ud800": 1}]},
        {**message, "content": [{"type": "text", "text": "\ud800"}]},
    ):
        if is_ready(changed):
            assert check_message(changed) is changed


@given(json_values)
def test_an_arbitrary_value_is_not_ready(value):
    assert not is_ready(value)


@pytest.mark.parametrize(("body", "failed"), MESSAGES_AND_FAILURES)
def test_stopped_answers_and_errors_of_models_tools_and_commands_are_failures(body, failed):
    assert has_failed(body.message) is failed
