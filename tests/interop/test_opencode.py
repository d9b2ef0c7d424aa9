"""opencode: exports, its database, undone prompts, compactions and subagents."""

import json
from pathlib import Path
from typing import Any

import pytest

from sessiontree.core.context import build_context
from sessiontree.core.entries import Compaction
from sessiontree.export.snapshot import Snapshot, read_snapshot
from sessiontree.interop import opencode
from sessiontree.interop.base import Conversation, FileHead, MemoryFile
from tests.interop.conformance import (
    FIXTURES,
    Plain,
    describe_branch,
    describe_context,
    detect,
    expect_messages,
    list_fixtures,
    load_expected,
    read_file,
    read_one,
)

SESSIONS = [
    pytest.param(folder / name, expected, id=f"{folder.name}-{name[4:12]}")
    for folder in list_fixtures("opencode")
    for name, expected in load_expected(folder)["sessions"].items()
]
RESUMED = [folder for folder in list_fixtures("opencode") if load_expected(folder)["sent_on_resume"]]
REVERT = FIXTURES / "opencode" / "revert"


def read_messages(*messages: Plain, **info: Any) -> Conversation:
    """Read an export with these messages."""
    document = {"info": {"id": "ses_1", "version": "1.0", **info}, "messages": list(messages)}
    [conversation] = opencode.read(MemoryFile("export.json", json.dumps(document).encode()), [])
    return conversation


def write_message(id: str, role: str, *parts: Plain, **info: Any) -> Plain:
    listed = [{"id": f"prt_{id}_{index}", **part} for index, part in enumerate(parts)]
    return {"info": {"id": id, "role": role, "time": {"created": 1794956755771}, **info}, "parts": listed}


def write_text(text: str, **fields: Any) -> Plain:
    return {"type": "text", "text": text, **fields}


def reshape(messages: list[Plain]) -> list[Plain]:
    """Return what opencode makes of a conversation: a summary is an answer, and images of results are a prompt."""
    shaped: list[Plain] = []
    for message in messages:
        if message["role"] == "summary":
            shaped.append({"role": "user", "text": "What did we do so far?"})
            shaped.append({"role": "assistant", "text": message["text"]})
        elif message["role"] == "tool" and "images" in message:
            shaped.append({key: value for key, value in message.items() if key != "images"})
            shaped.append({"role": "user", "text": "Attached media from tool result:", "images": message["images"]})
        else:
            shaped.append(message)
    return shaped


@pytest.mark.parametrize(("path", "expected"), SESSIONS)
def test_an_export_has_the_branches_that_were_recorded(path: Path, expected: Any) -> None:
    assert detect(path) is opencode.FORMAT
    snapshot = read_one(path)

    assert snapshot.header.cwd == "/project"
    assert snapshot.header.origin == {"program": "opencode", "version": "1.18.33"}
    assert snapshot.name == expected["title"]
    branches = [describe_branch(snapshot, name) for name in snapshot.heads.heads]
    assert branches == [expect_messages(branch["messages"]) for branch in expected["branches"]]
    assert snapshot.heads.current == "main"
    assert snapshot.problems == ()


@pytest.mark.parametrize("folder", RESUMED, ids=lambda folder: folder.name)
def test_the_context_is_what_opencode_sends_when_it_resumes(folder: Path) -> None:
    expected = load_expected(folder)
    snapshot = read_one(folder / f"{expected['resumed']}.json")

    assert reshape(describe_context(snapshot)) == expect_messages(expected["sent_on_resume"][:-1])


@pytest.mark.parametrize("folder", list_fixtures("opencode"), ids=lambda folder: folder.name)
def test_a_session_of_the_database_is_its_export(folder: Path) -> None:
    path = folder / "opencode.db.sql"
    assert detect(path) is opencode.FORMAT

    for conversation in read_file(path):
        export = folder / f"{conversation.id}.json"
        assert conversation.original is not None
        assert json.loads(conversation.original) == json.loads(export.read_bytes())
        main = describe_branch(read_snapshot(conversation.lines), "main")
        assert main == describe_branch(read_one(export), "main")
        assert conversation.problems == []


def test_the_database_still_has_messages_that_were_undone_and_deleted() -> None:
    snapshot = read_one(REVERT / "opencode.db.sql")

    pending = load_expected(FIXTURES / "opencode" / "revert-pending")
    [session] = pending["sessions"].values()
    assert list(snapshot.heads.heads) == ["main", "undone"]
    assert describe_branch(snapshot, "undone") == expect_messages(session["branches"][1]["messages"])


def test_a_subagent_is_a_branch_below_its_call() -> None:
    snapshot = read_one(FIXTURES / "opencode" / "subagent" / "opencode.db.sql")

    assert list(snapshot.heads.heads) == ["main", "agent-general"]
    texts = [message.get("text") for message in describe_branch(snapshot, "agent-general")]
    assert texts == ["Count the files and report.", "Answer to: Count the files and report."]
    point = snapshot.tree["ses_e143c6406ffeujs3XaD3mWylWr-branch"]
    assert [call.name for call in snapshot.tree[point.parent or ""].tool_calls] == ["task"]
    context = build_context(snapshot.tree, snapshot.heads.heads["agent-general"])
    assert len(context.messages) == 2  # nothing above the start of the subagent


def test_foreign_ids_model_usage_and_times_are_kept() -> None:
    snapshot = read_one(FIXTURES / "opencode" / "plain" / "ses_e143d9090ffeHo4lQgW9Uj9YJj.json")

    question, answer = snapshot.tree.path(snapshot.leaf)[:2]
    assert question.id.startswith("msg_")
    assert answer.parent == question.id
    assert answer.timestamp.startswith("2026-11-17T23:05:")
    assert answer.usage is not None
    assert (answer.usage.cost, answer.usage.cache_read) == (0.0024717, 7)
    assert snapshot.tree[answer.id].extra["opencode"]["mode"] == "build"


def test_a_compaction_keeps_the_messages_from_its_tail_on() -> None:
    conversation = read_messages(
        write_message("msg_1", "user", write_text("old")),
        write_message("msg_2", "user", write_text("kept")),
        write_message("msg_3", "user", {"type": "compaction", "auto": True, "tail_start_id": "msg_2"}),
        write_message("msg_4", "assistant", write_text("what was"), summary=True, parentID="msg_3"),
        write_message("msg_5", "user", write_text("new")),
    )

    snapshot = read_snapshot(conversation.lines)
    body = snapshot.tree["msg_4"].body
    assert isinstance(body, Compaction)
    assert body.first_kept == "msg_2"
    assert [message.get("text") for message in describe_context(snapshot)] == ["what was", "kept", "new"]


def test_a_pruned_result_is_sent_as_cleared() -> None:
    state = {"status": "completed", "input": {}, "output": "long", "time": {"start": 1, "end": 2, "compacted": 3}}
    call = {"type": "tool", "tool": "bash", "callID": "c1", "state": state}
    conversation = read_messages(
        write_message("msg_1", "user", write_text("go")), write_message("msg_2", "assistant", call)
    )

    snapshot = read_snapshot(conversation.lines)
    assert snapshot.tree["prt_msg_2_0"].text == "long"
    assert describe_context(snapshot)[-1] == {"role": "tool", "text": opencode.CLEARED, "id": "c1"}


def test_an_interrupted_call_has_no_result() -> None:
    call = {"type": "tool", "tool": "bash", "callID": "c1", "state": {"status": "running", "input": {"a": 1}}}
    conversation = read_messages(
        write_message("msg_1", "user", write_text("go")), write_message("msg_2", "assistant", call)
    )

    snapshot = read_snapshot(conversation.lines)
    assert [entry.id for entry in snapshot.get_path() if entry.type == "message"] == ["msg_1", "msg_2"]


def test_messages_are_in_the_order_of_their_ids() -> None:
    conversation = read_messages(
        write_message("msg_2", "assistant", write_text("answer")), write_message("msg_1", "user", write_text("ask"))
    )

    assert [message["text"] for message in describe_branch(read_snapshot(conversation.lines), "main")] == [
        "ask",
        "answer",
    ]


def test_what_is_not_understood_is_kept_and_reported() -> None:
    conversation = read_messages(
        write_message("msg_1", "user", write_text("ask"), {"type": "hologram", "data": [1]}),
        write_message("msg_2", "oracle", write_text("yes")),
        version="7.1",
    )

    snapshot: Snapshot = read_snapshot(conversation.lines)
    assert [problem.kind for problem in conversation.problems] == ["newer_version", "unsent", "unsent"]
    assert snapshot.tree["msg_1"].extra["opencode"]["parts"][0]["data"] == [1]
    assert "msg_2" in snapshot.tree


def test_a_document_with_other_fields_is_not_detected() -> None:
    for data in (b'{"info": {"id": "x"}}', b'[{"info": {"id": "ses_1"}}]', b"", b'{"messages": []}'):
        assert not opencode.detect(FileHead(name="ses_1.json", data=data, is_whole=True))
    assert not opencode.detect(FileHead(name="opencode.db", tables={"session": ["id", "directory", "title"]}))
