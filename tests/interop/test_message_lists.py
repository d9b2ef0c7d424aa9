"""Plain message lists of OpenAI and Anthropic."""

import json
from typing import Any

import pytest

from sessiontree.errors import FormatError
from sessiontree.export.snapshot import read_snapshot
from sessiontree.interop import message_lists
from sessiontree.interop.base import HEAD_SIZE, FileHead, MemoryFile
from sessiontree.interop.formats import detect_format
from tests.interop.conformance import Plain, describe_branch

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Ask"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
    {"role": "assistant", "content": "Answer"},
]
ANTHROPIC = [
    {"role": "user", "content": "Ask"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "ls", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "a.txt"}]},
    {"role": "assistant", "content": "Answer"},
]
RESPONSES = [
    {"role": "user", "content": "Ask"},
    {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Answer"}]},
]
LISTS = pytest.mark.parametrize(
    ("messages", "program"),
    [(CHAT, "openai-chat"), (ANTHROPIC, "anthropic-messages"), (RESPONSES, "openai-responses")],
    ids=["chat", "anthropic", "responses"],
)
TALK = [
    {"role": "user", "text": "Ask"},
    {"role": "assistant", "calls": [{"id": "c1", "name": "ls", "arguments": {}}]},
    {"role": "tool", "text": "a.txt", "id": "c1"},
    {"role": "assistant", "text": "Answer"},
]


def read_all(data: bytes) -> list[tuple[list[Plain], Any]]:
    """Return what each conversation of a file says, and the program that it is from."""
    head = FileHead(name="list.json", data=data[:HEAD_SIZE], is_whole=len(data) <= HEAD_SIZE)
    assert detect_format(head) is message_lists.FORMAT
    found: list[tuple[list[Plain], Any]] = []
    for conversation in message_lists.read(MemoryFile("list.json", data), []):
        snapshot = read_snapshot(conversation.lines)
        assert snapshot.problems == ()
        found.append((describe_branch(snapshot, "main"), (snapshot.header.origin or {})["program"]))
    return found


@LISTS
def test_a_list_can_be_an_array_a_request_or_lines(messages: list[Plain], program: str) -> None:
    array = json.dumps(messages, indent=2).encode()
    request = json.dumps({"model": "m", "messages": messages}).encode()
    lines = b"".join(json.dumps(message).encode() + b"\n" for message in messages)

    for data in (array, request, lines):
        assert read_all(data) == [(TALK, program)]


def test_a_file_with_a_request_per_line_has_several_conversations() -> None:
    line = json.dumps({"messages": CHAT}).encode() + b"\n"

    assert read_all(line * 3) == [(TALK, "openai-chat")] * 3


def test_a_list_longer_than_the_head_is_detected() -> None:
    messages = [*ANTHROPIC, {"role": "user", "content": "x" * HEAD_SIZE}]

    [(talk, program)] = read_all(json.dumps(messages).encode())

    assert talk[:-1] == TALK
    assert program == "anthropic-messages"


def test_ids_do_not_change_when_the_list_grows() -> None:
    first, second = (
        next(message_lists.read(MemoryFile("a.json", json.dumps(messages).encode()), []))
        for messages in (CHAT[:2], CHAT)
    )

    assert first.id == second.id
    ids = [read_snapshot(item.lines).tree.entries[1].id for item in (first, second)]
    assert ids[0] == ids[1]


def test_a_malformed_message_is_kept_and_the_others_are_read() -> None:
    messages = [{"role": "user", "content": "Ask"}, {"role": "user", "content": 5}, "x", CHAT[-1]]
    data = json.dumps(messages).encode()

    [conversation] = message_lists.read(MemoryFile("a.json", data), [])

    texts = [message["text"] for message in describe_branch(read_snapshot(conversation.lines), "main")]
    assert texts == ["Ask", "Answer"]
    assert [problem.kind for problem in conversation.problems] == ["unsent", "unsent"]


def test_other_json_is_not_a_list() -> None:
    for data in (b"[]", b"{}", b"[1]", b'{"messages": []}', b"text", b'[{"role": "king", "content": ""}]'):
        assert detect_format(FileHead(name="messages.json", data=data, is_whole=True)) is None
        with pytest.raises(FormatError):
            list(message_lists.read(MemoryFile("messages.json", data), []))
