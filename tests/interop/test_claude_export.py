"""Claude.ai's data export."""

import json
from typing import Any

from sessiontree.export.snapshot import read_snapshot
from sessiontree.interop import claude_export
from sessiontree.interop.base import Conversation, FileHead, MemoryFile
from sessiontree.interop.formats import detect_format
from tests.interop.conformance import Plain, describe_branch


def write_message(id: str, sender: str, *content: Any, **fields: Any) -> Plain:
    blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
    return {"uuid": id, "sender": sender, "text": "", "content": blocks, "created_at": "2026-01-02T09:30:01Z", **fields}


def read_one(*messages: Plain, **fields: Any) -> Conversation:
    conversation = {"uuid": "c1", "name": "A talk", "account": {"uuid": "x"}, "chat_messages": messages, **fields}
    data = json.dumps([conversation]).encode()
    assert detect_format(FileHead(name="conversations.json", data=data, is_whole=True)) is claude_export.FORMAT
    [read] = claude_export.read(MemoryFile("conversations.json", data), [])
    return read


def test_messages_without_parents_are_a_list() -> None:
    conversation = read_one(write_message("m1", "human", "Ask"), write_message("m2", "assistant", "Answer"))

    snapshot = read_snapshot(conversation.lines)
    assert [entry.id for entry in snapshot.get_path() if entry.type == "message"] == ["m1", "m2"]
    assert snapshot.name == "A talk"
    assert json.loads(conversation.original or b"")["uuid"] == "c1"


def test_messages_with_parents_are_a_tree() -> None:
    root = "00000000-0000-4000-8000-000000000000"
    conversation = read_one(
        write_message("m1", "human", "Ask", parent_message_uuid=root),
        write_message("m2", "assistant", "First", parent_message_uuid="m1"),
        write_message("m3", "assistant", "Second", parent_message_uuid="m1"),
        current_leaf_message_uuid="m2",
    )

    snapshot = read_snapshot(conversation.lines)
    branches = {name: [m["text"] for m in describe_branch(snapshot, name)] for name in snapshot.heads.heads}
    assert branches == {"main": ["Ask", "First"], "alternative": ["Ask", "Second"]}
    assert conversation.problems == []


def test_results_inside_an_answer_become_entries() -> None:
    conversation = read_one(
        write_message("m1", "human", "Ask"),
        write_message(
            "m2",
            "assistant",
            {"type": "thinking", "thinking": "I weigh it."},
            {"type": "tool_use", "name": "search", "input": {"q": "x"}},
            {
                "type": "tool_result",
                "name": "search",
                "content": [{"type": "text", "text": "found"}],
                "is_error": False,
            },
            "Answer",
        ),
    )

    snapshot = read_snapshot(conversation.lines)
    assert [entry.id for entry in snapshot.get_path() if entry.type == "message"] == ["m1", "m2-1", "m2-2", "m2"]
    thinking, result, answer = describe_branch(snapshot, "main")[1:]
    assert thinking["thinking"] == "I weigh it."
    assert result == {"role": "tool", "text": "found", "id": thinking["calls"][0]["id"]}
    assert answer["text"] == "Answer"
    assert snapshot.problems == ()


def test_attachments_are_sent_and_missing_files_are_reported() -> None:
    attachment = {"file_name": "a.txt", "extracted_content": "the text of the file"}
    conversation = read_one(
        write_message("m1", "human", "Read", attachments=[attachment], files=[{"file_name": "a.png"}])
    )

    snapshot = read_snapshot(conversation.lines)
    assert [message["text"] for message in describe_branch(snapshot, "main")] == ["Read", "the text of the file"]
    assert [problem.kind for problem in conversation.problems] == ["unsent"]
    assert snapshot.tree["m1"].extra["claude-ai"]["files"] == [{"file_name": "a.png"}]


def test_an_old_export_has_only_text() -> None:
    conversation = read_one({"uuid": "m1", "sender": "human", "text": "Ask"}, "broken", {"sender": "oracle"})

    assert describe_branch(read_snapshot(conversation.lines), "main")[0] == {"role": "user", "text": "Ask"}
    assert [problem.kind for problem in conversation.problems] == ["malformed_line", "unsent"]
