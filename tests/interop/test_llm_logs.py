"""The logs of `llm`: threads over a tree of messages, and the responses of older versions."""

import json

import pytest

from sessiontree.export.snapshot import Snapshot, read_snapshot
from sessiontree.interop import llm_logs
from sessiontree.interop.base import Conversation
from tests.interop.conformance import FIXTURES, describe_branch, detect, read_file

THREADS = FIXTURES / "llm" / "threads.sql"
RESPONSES = FIXTURES / "llm" / "responses.sql"
BOTH = pytest.mark.parametrize("path", [THREADS, RESPONSES], ids=["threads", "responses"])


def find(path: object, title: str) -> tuple[Conversation, Snapshot]:
    """Return the conversation with a title that begins so."""
    assert path in (THREADS, RESPONSES)
    for conversation in read_file(THREADS if path == THREADS else RESPONSES):
        snapshot = read_snapshot(conversation.lines)
        if (snapshot.name or "").startswith(title):
            return conversation, snapshot
    raise AssertionError(title)


@BOTH
def test_a_database_holds_several_conversations(path: object) -> None:
    assert detect(THREADS) is detect(RESPONSES) is llm_logs.FORMAT
    conversation, snapshot = find(path, "Question one")

    assert snapshot.header.origin == {"program": "llm"}
    assert [message["text"] for message in describe_branch(snapshot, "main")] == [
        "Question one",
        "Answer to: Question one",
        "Question two",
        "Answer to: Question two",
    ]
    first = snapshot.get_path()[0]
    assert (first.role, first.text) == ("system", "Be brief.")
    assert conversation.problems == []
    assert snapshot.problems == ()


@BOTH
def test_calls_results_and_errors_are_kept(path: object) -> None:
    _, snapshot = find(path, "[[bash ls]]")

    results = [entry.message.raw for entry in snapshot.get_path() if entry.message and entry.role == "toolResult"]
    assert [(item["toolCallId"], item["isError"]) for item in results] == [
        ("call_3_0", False),
        ("call_4_0", True),
        ("call_6_0", False),
        ("call_6_1", False),
    ]
    calls = [call.name for entry in snapshot.get_path() for call in entry.tool_calls]
    assert calls == ["bash"] * 4


@BOTH
def test_an_image_with_data_is_sent_and_one_with_a_path_is_only_kept(path: object) -> None:
    conversation, snapshot = find(path, "What is this?")

    images = [message.get("images", 0) for message in describe_branch(snapshot, "main")]
    assert images == [1, 0, 0, 0]
    assert [problem.kind for problem in conversation.problems] == ["unsent"]
    kept = snapshot.tree[conversation.problems[0].entry or ""].extra["llm"]
    assert "/project/other.png" in str(kept)


@BOTH
def test_fragments_are_part_of_the_prompt(path: object) -> None:
    _, snapshot = find(path, "a fragment text")

    assert snapshot.get_path()[0].text == "\na fragment text\n About the fragment"


@BOTH
def test_usage_and_times_are_kept(path: object) -> None:
    _, snapshot = find(path, "Question one")

    answer = next(entry for entry in snapshot.get_path() if entry.role == "assistant")
    assert answer.usage is not None
    assert (answer.usage.input, answer.usage.cache_read, answer.usage.output) == (15, 7, 20)
    assert answer.timestamp.startswith("2026-11-18T13:4")


def test_a_forked_thread_is_a_branch_of_the_session() -> None:
    _, snapshot = find(THREADS, "Question one")

    assert list(snapshot.heads.heads) == ["main", "Second-try"]
    assert [message["text"] for message in describe_branch(snapshot, "Second-try")] == [
        "Question one",
        "Answer to: Question one",
    ]


def test_the_id_of_a_turn_names_its_answer() -> None:
    _, snapshot = find(THREADS, "Question one")

    aliases = [entry for entry in snapshot.tree.entries if entry.type == "alias"]
    assert [snapshot.tree[alias.parent or ""].role for alias in aliases] == ["assistant", "assistant"]


@BOTH
def test_the_original_of_a_conversation_is_its_own_rows(path: object) -> None:
    conversation, _ = find(path, "What is this?")

    original = json.loads(conversation.original or b"")
    assert "Question one" not in json.dumps(original)
    assert original["attachments"][0]["content"].startswith("iVBORw0KGgo")
