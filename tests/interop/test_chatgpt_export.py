"""ChatGPT's data export."""

import json
from typing import Any

from sessiontree.export.snapshot import read_snapshot
from sessiontree.interop import chatgpt_export
from sessiontree.interop.base import HEAD_SIZE, Conversation, FileHead, MemoryFile
from sessiontree.interop.formats import detect_format
from tests.interop.conformance import Plain, describe_branch

Node = tuple[str, str | None, Plain | None]


def write_message(role: str, *parts: Any, kind: str = "text", **fields: Any) -> Plain:
    return {
        "author": {"role": role, "name": fields.pop("name", None)},
        "create_time": 1767346201.5,
        "content": {"content_type": kind, "parts": list(parts)},
        "metadata": fields.pop("metadata", {}),
        "recipient": "all",
        **fields,
    }


def write_conversation(*nodes: Node, current: str) -> Plain:
    mapping = {
        id: {"id": id, "parent": parent, "children": [], "message": message and {"id": id, **message}}
        for id, parent, message in nodes
    }
    return {"title": "A talk", "create_time": 1767346200.0, "mapping": mapping, "current_node": current, "id": "c1"}


def read_one(*nodes: Node, current: str) -> Conversation:
    data = json.dumps([write_conversation(*nodes, current=current)]).encode()
    [conversation] = chatgpt_export.read(MemoryFile("conversations.json", data), [])
    return conversation


ROOT: Node = ("root", None, None)
ASK: Node = ("q1", "root", write_message("user", "Ask"))


def test_edits_and_regenerations_are_branches() -> None:
    conversation = read_one(
        ROOT,
        ASK,
        ("a1", "q1", write_message("assistant", "First", metadata={"model_slug": "gpt-5"})),
        ("a2", "q1", write_message("assistant", "Second")),
        ("q2", "root", write_message("user", "Ask better")),
        current="a2",
    )

    snapshot = read_snapshot(conversation.lines)
    branches = {name: [m["text"] for m in describe_branch(snapshot, name)] for name in snapshot.heads.heads}
    assert branches == {
        "main": ["Ask", "Second"],
        "alternative": ["Ask", "First"],
        "alternative-2": ["Ask better"],
    }
    assert snapshot.name == "A talk"
    assert snapshot.tree["a1"].timestamp == "2026-01-02T09:30:01.500Z"
    assert snapshot.tree["a1"].message is not None
    assert snapshot.tree["a1"].message.raw["model"] == "gpt-5"
    assert snapshot.problems == ()


def test_thoughts_belong_to_the_answer_below_them() -> None:
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "Plan", "content": "I weigh it."}]}
    conversation = read_one(
        ROOT,
        ASK,
        ("t", "q1", {**write_message("assistant"), "content": thoughts}),
        ("r", "t", write_message("assistant", kind="reasoning_recap")),
        ("a", "r", write_message("assistant", "Answer")),
        current="a",
    )

    snapshot = read_snapshot(conversation.lines)
    assert describe_branch(snapshot, "main")[-1] == {
        "role": "assistant",
        "thinking": "Plan\n\nI weigh it.",
        "text": "Answer",
    }
    assert snapshot.tree["t"].type == "alias"
    assert snapshot.tree["t"].parent == "a"


def test_thoughts_without_an_answer_stay() -> None:
    thoughts = {"content_type": "thoughts", "thoughts": [{"content": "I weigh it."}]}
    conversation = read_one(
        ROOT,
        ASK,
        ("t", "q1", {**write_message("assistant"), "content": thoughts}),
        ("r", "t", write_message("assistant", kind="reasoning_recap")),
        current="r",
    )

    snapshot = read_snapshot(conversation.lines)
    assert describe_branch(snapshot, "main")[-1] == {"role": "assistant", "thinking": "I weigh it."}


def test_a_message_to_a_tool_is_a_call() -> None:
    conversation = read_one(
        ROOT,
        ASK,
        ("c", "q1", write_message("assistant", '{"query": "x"}', recipient="browser")),
        ("t", "c", write_message("tool", "found", name="browser")),
        ("a", "t", write_message("assistant", "Done")),
        current="a",
    )

    snapshot = read_snapshot(conversation.lines)
    assert describe_branch(snapshot, "main")[1:3] == [
        {"role": "assistant", "calls": [{"id": "c", "name": "browser", "arguments": {"query": "x"}}]},
        {"role": "tool", "text": "found", "id": "c"},
    ]


def test_images_are_named_by_the_export_and_only_kept() -> None:
    pointer = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-1"}
    conversation = read_one(
        ROOT, ("q", "root", write_message("user", "What?", pointer, kind="multimodal_text")), current="q"
    )

    snapshot = read_snapshot(conversation.lines)
    assert [problem.kind for problem in conversation.problems] == ["unsent"]
    assert "file-service://file-1" in str(snapshot.tree["q"].extra)


def test_every_conversation_of_a_large_file_is_read() -> None:
    listed = [write_conversation(ROOT, ("q", "root", write_message("user", "x" * 3000)), current="q")] * 30
    data = json.dumps(listed).encode()

    assert detect_format(FileHead(name="a.json", data=data[:HEAD_SIZE])) is chatgpt_export.FORMAT
    assert len(list(chatgpt_export.read(MemoryFile("a.json", data), []))) == 30


def test_cycles_and_missing_parents_are_cut() -> None:
    conversation = read_one(
        ("a", "b", write_message("user", "a")),
        ("b", "a", write_message("assistant", "b")),
        ("c", "gone", write_message("user", "c")),
        current="nowhere",
    )

    snapshot = read_snapshot(conversation.lines)
    assert all(id in snapshot.tree for id in ("a", "b", "c"))
    assert [problem.kind for problem in conversation.problems] == ["orphan"]
