"""Gemini CLI: chat logs with rewinds, cancels, compressions and resumes, older chats, and checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest

from sessiontree.export.snapshot import Snapshot, read_snapshot
from sessiontree.interop import gemini_cli
from sessiontree.interop.base import Conversation, FileHead, MemoryFile
from tests.interop.conformance import (
    FIXTURES,
    Plain,
    describe_branch,
    describe_context,
    detect,
    expect_messages,
    get_messages,
    list_fixtures,
    load_expected,
    merge,
    read_one,
    simplify,
)

GEMINI = FIXTURES / "gemini"
SESSIONS = [
    pytest.param(folder / name, expected, id=f"{folder.name}-{name[-13:-6]}")
    for folder in list_fixtures("gemini")
    for name, expected in load_expected(folder)["sessions"].items()
]
HEADER = {"sessionId": "s1", "projectHash": "h", "startTime": "2026-01-02T09:30:00.000Z", "kind": "main"}


def read_log(*records: Plain, name: str = "chat.jsonl") -> Conversation:
    """Read a chat with these events behind a header."""
    content = b"".join(json.dumps(record).encode() + b"\n" for record in (HEADER, *records))
    [conversation] = gemini_cli.read(MemoryFile(name, content), [])
    return conversation


def write_user(id: str, text: str) -> Plain:
    return {"id": id, "timestamp": "2026-01-02T09:30:01.000Z", "type": "user", "content": [{"text": text}]}


def write_gemini(id: str, text: str, **fields: Any) -> Plain:
    return {"id": id, "timestamp": "2026-01-02T09:30:02.000Z", "type": "gemini", "content": text, **fields}


def list_paths(snapshot: Snapshot) -> list[list[Plain]]:
    """Return the conversations up to every entry."""
    return [
        merge(simplify(message for item in snapshot.tree.path(entry.id) for message in get_messages(item)))
        for entry in snapshot.tree.entries
    ]


def expect_talk(messages: list[Plain]) -> list[Plain]:
    """Return the expected messages without notices. Gemini writes thoughts in two ways; the second has asterisks."""
    talk = [message for message in expect_messages(messages) if message["role"] != "info"]
    return json.loads(json.dumps(talk).replace('"Thought First', '"**Thought** First'))


@pytest.mark.parametrize(("path", "expected"), SESSIONS)
def test_a_chat_has_the_branches_that_were_recorded(path: Path, expected: Any) -> None:
    assert detect(path) is gemini_cli.FORMAT
    snapshot = read_one(path)

    assert describe_branch(snapshot, "main") == expect_talk(expected["branches"][0]["messages"])
    paths = list_paths(snapshot)
    for branch in expected["branches"][1:]:
        assert expect_talk(branch["messages"]) in paths
    assert snapshot.name == (expected["title"].strip() if "title" in expected else None)
    assert snapshot.problems == ()


@pytest.mark.parametrize("folder", list_fixtures("gemini"), ids=lambda folder: folder.name)
def test_the_context_is_what_gemini_sends_when_it_resumes(folder: Path) -> None:
    expected = load_expected(folder)
    [path] = [folder / name for name in expected["sessions"] if expected["resumed"][:8] in Path(name).name]

    context = describe_context(read_one(path))

    sent: list[Plain] = []
    for message in expect_messages(expected["sent_on_resume"][:-1]):
        if message not in sent or message["role"] != "tool":  # Gemini sends results twice
            sent.append(message)
    assert [drop_prefix(message) for message in context] == sent


def drop_prefix(message: Plain) -> Plain:
    """Return a message as Gemini sends it: without thoughts, and without the tool's name before the id of a call."""
    message = {key: value for key, value in message.items() if key != "thinking"}
    if message["role"] == "tool":
        message["id"] = message["id"].partition("__")[2]
    if "calls" in message:
        message["calls"] = [{**call, "id": call["id"].partition("__")[2]} for call in message["calls"]]
    return message


def test_resuming_makes_no_branches() -> None:
    snapshot = read_one(GEMINI / "tools" / "tmp/project/chats/session-2026-11-17T23-08-2bdacbc3.jsonl")

    assert list(snapshot.heads.heads) == ["main"]


def test_a_rewind_makes_a_branch_of_what_it_drops() -> None:
    snapshot = read_one(GEMINI / "rewind" / "tmp/project/chats/session-2026-11-17T23-10-9c6103e9.jsonl")

    assert list(snapshot.heads.heads) == ["main", "dropped"]
    assert snapshot.heads.heads["dropped"] == "abe65a20-f0cb-4cdd-bdf6-576c23801a82"


def test_every_id_of_the_log_names_a_place() -> None:
    snapshot = read_one(GEMINI / "compact" / "tmp/project/chats/session-2026-11-17T23-09-803fabc7.jsonl")

    echo = snapshot.tree["6c94c277-9b72-4186-a6a9-740457df11be"]  # repeats the result of a call
    assert echo.type == "alias"
    assert snapshot.tree[echo.parent or ""].role == "toolResult"


def test_model_usage_and_times_survive_a_resume_that_drops_them() -> None:
    snapshot = read_one(GEMINI / "plain" / "tmp/project/chats/session-2026-11-17T23-08-18733ab5.jsonl")

    answer = snapshot.tree["82e1fcab-67be-495e-822b-8bec8e9aa942"]
    assert answer.timestamp == "2026-11-17T23:08:39.585Z"
    assert answer.usage is not None
    assert (answer.usage.input, answer.usage.output, answer.usage.cache_read) == (129, 20, 7)
    assert answer.message is not None
    assert answer.message.raw["model"] == "gemini-2.5-flash"


def test_a_subagent_is_a_branch_below_its_call() -> None:
    snapshot = read_one(GEMINI / "subagent" / "tmp/project/chats/session-2026-11-17T23-09-7700ba4b.jsonl")

    assert list(snapshot.heads.heads) == ["main", "agent-5a5d15b4"]
    first = describe_branch(snapshot, "agent-5a5d15b4")[0]
    assert first["text"] == "Count the files and report."
    point = snapshot.tree["5a5d15b4-da0c-401b-86b5-a42b7e5e946c-branch"]
    assert [call.name for call in snapshot.tree[point.parent or ""].tool_calls] == ["invoke_agent"]


def test_a_compression_that_keeps_messages_copies_them_below_the_summary() -> None:
    conversation = read_log(
        write_user("u1", "old"),
        write_gemini("g1", "answer"),
        write_user("u2", "kept"),
        write_gemini("g2", "kept answer"),
        {
            "$set": {
                "messages": [write_user("s", "summary"), write_user("u2", "kept"), write_gemini("g2", "kept answer")]
            }
        },
        write_user("u3", "new"),
    )

    snapshot = read_snapshot(conversation.lines)
    assert [message["text"] for message in describe_context(snapshot)] == ["summary", "kept", "kept answer", "new"]
    assert snapshot.tree["u2-2"].extra["copiedFrom"] == "u2"
    assert [message["text"] for message in describe_branch(snapshot, "dropped")] == [
        "old",
        "answer",
        "kept",
        "kept answer",
    ]


def test_a_chat_of_an_older_version_is_one_document() -> None:
    document = {**HEADER, "messages": [write_user("u1", "ask"), write_gemini("g1", "answer")]}
    data = json.dumps(document, indent=2).encode()
    assert gemini_cli.detect(FileHead(name="session.json", data=data, is_whole=True))

    [conversation] = gemini_cli.read(MemoryFile("session.json", data), [])

    snapshot = read_snapshot(conversation.lines)
    assert [entry.id for entry in snapshot.get_path() if entry.type == "message"] == ["u1", "g1"]


def test_a_checkpoint_opens_with_its_tag_as_title() -> None:
    path = GEMINI / "saved" / "tmp/project/checkpoint-first-stop.json"
    assert detect(path) is gemini_cli.FORMAT

    snapshot = read_one(path)

    assert snapshot.name == "first-stop"
    assert describe_branch(snapshot, "main") == [
        {"role": "user", "text": "Question one"},
        {"role": "assistant", "text": "Answer to: Question one"},
    ]


def test_the_working_folder_is_read_from_the_project() -> None:
    chat = MemoryFile("/home/tmp/p/chats/c.jsonl", json.dumps(HEADER).encode())
    assert list(gemini_cli.find_related(chat)) == ["s1/*.jsonl", "../.project_root"]

    [conversation] = gemini_cli.read(chat, [MemoryFile("/home/tmp/p/.project_root", b"/project")])

    assert read_snapshot(conversation.lines).header.cwd == "/project"


def test_broken_and_unknown_lines_are_reported_with_their_number() -> None:
    content = b'{"sessionId":"s1","projectHash":"h"}\nnot json\n{"$jump":1}\n{"$rewindTo":"x"}\n'

    [conversation] = gemini_cli.read(MemoryFile("c.jsonl", content), [])

    assert [problem.line for problem in conversation.problems] == [2, 3, 4]


def test_parts_that_cannot_be_read_are_kept() -> None:
    message = {**write_user("u1", "ask"), "content": [{"text": "ask"}, {"inlineData": 3}, 5]}
    conversation = read_log(message)

    snapshot = read_snapshot(conversation.lines)
    assert snapshot.tree["u1"].text == "ask"
    assert snapshot.tree["u1"].extra["gemini"]["parts"] == [{"part": 5}]
    assert [problem.kind for problem in conversation.problems] == ["unsent"]
