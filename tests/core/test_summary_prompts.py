import pytest

from sessiontree.core.entries import BranchSummary, Compaction
from sessiontree.core.messages import assistant, tool_call, tool_result, user
from sessiontree.core.summary_prompts import (
    BRANCH_PROMPT,
    HISTORY_PROMPT,
    NO_HISTORY,
    RESULT_LENGTH,
    UPDATE_PROMPT,
    TouchedFiles,
    build_branch_prompt,
    build_history_prompt,
    build_prefix_prompt,
    choose_prompts,
    collect_files,
    format_message,
    format_newest,
    join_split_turn,
    join_within_budget,
    merge_files,
    strip_file_lists,
    truncate,
)
from tests.builders import entry, say

IMAGE = {"type": "image", "data": "", "mimeType": "image/png"}


def make_call(name, **arguments):
    return assistant([tool_call("c", name, arguments)]).message


# The conversation as text


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (user("hello"), "[User]: hello"),
        (user([{"type": "text", "text": "look"}, IMAGE]), "[User]: look\n(an image)"),
        (user([IMAGE]), "[User]: (an image)"),
        (user(""), None),
        (assistant("hi"), "[Assistant]: hi"),
        (assistant(""), None),
        (tool_result("c", "bash", "out"), "[Result of bash]: out"),
        (tool_result("c", "bash", "", error=True), "[Result of bash, an error]: (nothing)"),
        (say("toolResult", "x", toolCallId="c"), "[Result of a tool]: x"),
        (say("custom", "note"), "[User]: note"),
        (say("system", "be brief"), None),
        (say("unheard-of", "?"), None),
        (assistant("half", stop_reason="aborted"), None),
        (say("bashExecution", command="ls", output="a"), "[User]: I ran `ls`\n\n```\na\n```"),
        (say("bashExecution", command="ls", output="a", excludeFromContext=True), None),
    ],
)
def test_a_message_is_formatted_for_the_summarizer(message, words):
    assert format_message(message.message) == words


def test_thinking_is_left_out_and_calls_are_shown_with_their_arguments():
    thought = {"type": "thinking", "thinking": "hmm"}
    turn = assistant([thought, {"type": "text", "text": "I look"}, tool_call("c", "read", {"path": "ä.py", "line": 3})])

    assert format_message(turn.message) == '[Assistant]: I look\n[Assistant calls]: read(path="ä.py", line=3)'


def test_arguments_that_are_not_an_object_are_shown_unchanged():
    odd = say("assistant", [{"type": "toolCall", "id": "c", "name": "read", "arguments": "{broken"}])

    assert format_message(odd.message) == '[Assistant calls]: read(="{broken")'


def test_long_results_are_cut_with_a_count_of_missing_characters():
    words = format_message(tool_result("c", "bash", "x" * (RESULT_LENGTH + 7)).message)

    assert words == f"[Result of bash]: {'x' * RESULT_LENGTH}\n[… 7 more characters]"
    assert truncate("short", 5) == "short"


def test_as_many_texts_are_joined_as_fit_the_budget():
    texts = ["a" * 10, "b" * 10, "c" * 100, "d"]

    assert join_within_budget(texts, 6) == ("a" * 10 + "\n\n" + "b" * 10, 2)
    assert join_within_budget(texts[:1], 6) == ("a" * 10, 1)


def test_the_first_text_is_always_included_and_cut_if_necessary():
    assert join_within_budget(["c" * 100, "d"], 6) == ("c" * 24 + "\n[… 76 more characters]", 1)


def test_the_newest_messages_come_first_into_the_budget_and_stay_in_order():
    messages = [user("one " * 20).message, assistant("two").message, tool_result("c", "x", "out").message]

    assert format_newest([*messages, user("three").message], 10) == "[Assistant]: two\n\n[User]: three"
    assert format_newest([], 10) == ""


def test_the_last_message_is_always_included_and_cut_if_necessary():
    assert format_newest([user("x" * 99).message], 5) == f"{'[User]: ' + 'x' * 12}\n[… 87 more characters]"


def test_a_summary_that_does_not_fit_is_cut():
    summary = say("branchSummary", summary="s" * 99).message

    shown = format_newest([summary, user("last").message], 12)

    assert shown.endswith("more characters]\n\n[User]: last")
    assert shown.startswith("[User]: Summary of another branch")


# Prompts


def test_the_history_prompt_includes_the_earlier_summary_and_the_focus():
    first = build_history_prompt("TALK")
    later = build_history_prompt("TALK", previous="EARLIER", focus=" the tests ")

    assert first == f"<conversation>\nTALK\n</conversation>\n\n{HISTORY_PROMPT}"
    assert later.startswith("<conversation>\nTALK\n</conversation>\n\n<earlier-summary>\nEARLIER\n</earlier-summary>")
    assert UPDATE_PROMPT in later
    assert HISTORY_PROMPT not in later
    assert later.endswith("Pay special attention to this: the tests")
    assert build_history_prompt("TALK", focus=" ") == first


def test_the_start_of_a_turn_has_its_own_prompt():
    assert build_prefix_prompt("TALK").startswith(
        "<conversation>\nTALK\n</conversation>\n\nThe conversation above is the first part"
    )
    assert "EARLIER" in build_prefix_prompt("TALK", previous="EARLIER")


def test_instructions_for_a_branch_are_added_or_replace_the_task():
    assert BRANCH_PROMPT in build_branch_prompt("TALK", BRANCH_PROMPT)
    added = build_branch_prompt("TALK", BRANCH_PROMPT, instructions="the API")
    assert BRANCH_PROMPT in added
    assert added.endswith("Pay special attention to this: the API")
    replaced = build_branch_prompt("TALK", BRANCH_PROMPT, instructions="In one word.", replace=True)
    assert replaced == "<conversation>\nTALK\n</conversation>\n\nIn one word."
    assert build_branch_prompt("TALK", BRANCH_PROMPT, replace=True) == build_branch_prompt("TALK", BRANCH_PROMPT)


def test_models_with_a_small_window_are_asked_for_a_few_sentences():
    task = choose_prompts(4096)

    assert build_history_prompt("TALK", task=task).endswith(task.history)
    assert build_history_prompt("TALK", task=task, previous="EARLIER").endswith(task.update)
    assert build_prefix_prompt("TALK", task=task).endswith(task.prefix)
    for words in (task.history, task.update, task.prefix, task.branch, task.merge):
        assert "short sentences" in words
        assert len(words) < 300
    assert choose_prompts(32_768).history == HISTORY_PROMPT


def test_a_split_turn_joins_the_history_and_its_first_part():
    assert join_split_turn("H", "P").startswith("H\n\n---\n\n")
    assert join_split_turn(None, "P").startswith(NO_HISTORY)


# Files


def test_files_are_sorted_and_a_modified_file_is_not_listed_as_read():
    calls = [
        make_call("read", path="b"),
        make_call("read", path="a"),
        make_call("edit", path="b"),
        make_call("write", path="c"),
    ]

    assert collect_files(calls) == TouchedFiles(read=("a",), modified=("b", "c"))


def test_calls_without_a_path_and_other_tools_touch_no_files():
    odd = say("assistant", [{"type": "toolCall", "id": "c", "name": "read", "arguments": "x"}]).message

    assert (
        collect_files([make_call("read", path=3), make_call("read", path=""), make_call("bash", path="x"), odd])
        == TouchedFiles()
    )


def test_lists_of_earlier_summaries_are_carried_over_but_not_those_of_hooks():
    details = {"readFiles": ["r", "m", 3], "modifiedFiles": ["m"]}
    earlier = [
        entry("a", body=Compaction(summary="", details=details)),
        entry("b", body=BranchSummary(summary="", details={"readFiles": ["r2"], "modifiedFiles": "odd"})),
        entry("c", body=Compaction(summary="", details={"readFiles": ["hook"]}, from_hook=True)),
        entry("d", body=Compaction(summary="", details=["odd"])),
        entry("e"),
    ]

    files = collect_files([make_call("edit", path="r")], earlier)

    assert files == TouchedFiles(read=("r2",), modified=("m", "r"))
    assert files.to_wire() == {"readFiles": ["r2"], "modifiedFiles": ["m", "r"]}


def test_several_file_lists_are_merged():
    lists = [TouchedFiles(read=("a", "b")), TouchedFiles(read=("c",), modified=("a",))]

    assert merge_files(lists) == TouchedFiles(read=("b", "c"), modified=("a",))


def test_file_lists_are_appended_to_a_summary_and_can_be_removed():
    tagged = TouchedFiles(read=("a", "b"), modified=("c",)).append_to_summary("What happened.")

    expected = "What happened.\n\n<read-files>\na\nb\n</read-files>\n\n<modified-files>\nc\n</modified-files>"
    assert tagged == expected
    assert strip_file_lists(tagged) == "What happened."
    assert TouchedFiles().append_to_summary("x") == strip_file_lists("x") == "x"
