"""Entries, events and tool calls as updates, with hostile content."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import sessiontree as st
from sessiontree.acp.session_updates import ConversationUpdates, UpdateStream, build_text_chunk
from sessiontree.acp.tool_call_display import MAX_OUTPUT_CHARS, describe_call, quote_output
from sessiontree.agent.tools import builtin_tools
from sessiontree.core.messages import ToolCall, tool_call
from sessiontree.hooks.events import MessageDelta, MessageEnd, MessageStart, RunEnd, ToolUpdate

TOOLS = {tool.name: tool for tool in builtin_tools()}


def build_updates() -> ConversationUpdates:
    return ConversationUpdates(lambda: TOOLS, lambda: "/project")


def describe(name: str, arguments: Any, cwd: str = "/project") -> dict[str, Any]:
    return describe_call(ToolCall(id="c", name=name, arguments=arguments), TOOLS.get(name), cwd, is_new=True)


def test_titles_are_one_short_line_without_control_characters() -> None:
    hostile = "a\nb\x1b[2J\u202e" + "x" * 10_000

    for name, key in (("bash", "command"), ("read", "path"), (f"tool {hostile}", "x")):
        title = describe(name, {key: hostile})["title"]
        assert title.isprintable()
        assert len(title) <= 201


def test_arguments_of_a_wrong_type_are_shown_as_far_as_possible() -> None:
    for arguments in ("text", None, [], {"path": 5}, {"path": "a\0b"}, {"path": ["x"]}, {"path": "x", "content": 3}):
        for name in ("edit", "write", "read", "bash", "unknown"):
            fields = describe(name, arguments)
            assert fields["title"]
            assert "content" not in fields


def test_large_arguments_are_not_sent_in_raw_form() -> None:
    assert "rawInput" not in describe("write", {"path": "a", "content": "x" * (MAX_OUTPUT_CHARS + 1)})
    assert "rawInput" in describe("write", {"path": "a", "content": "x"})


def test_the_diff_of_a_write_never_reads_secrets_pipes_or_binary_files(tmp_path: Path, home: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\0\1")
    secret = home / ".sessiontree" / "token"
    secret.parent.mkdir(parents=True)
    secret.write_text("secret")
    (tmp_path / "link").symlink_to(secret)
    (tmp_path / "text").write_text("old")

    for name in ("pipe", "binary", "link", str(secret), "missing"):
        (diff,) = describe("write", {"path": name, "content": "new"}, str(tmp_path))["content"]
        assert "oldText" not in diff, name
    (diff,) = describe("write", {"path": "text", "content": "new"}, str(tmp_path))["content"]
    assert diff["oldText"] == "old"


def test_output_cannot_leave_its_code_block() -> None:
    quoted = quote_output("before\n````\n# after")

    assert quoted == "`````\nbefore\n````\n# after\n`````"
    assert len(quote_output("x" * 10_000_000)) < MAX_OUTPUT_CHARS + 100


def test_a_history_is_replayed_with_calls_and_results_and_open_calls_fail() -> None:
    session = st.memory()
    session.append(st.user("Look"))
    calls = [tool_call("c1", "read", {"path": "a.py"}), tool_call("c2", "gone", {})]
    session.append(st.assistant([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "I look."}, *calls]))
    session.append(st.tool_result("c1", "read", "content"))

    updates = list(build_updates().replay(session.head.path()))

    assert [(update["sessionUpdate"], update.get("status")) for update in updates] == [
        ("user_message_chunk", None),
        ("agent_thought_chunk", None),
        ("agent_message_chunk", None),
        ("tool_call", "pending"),
        ("tool_call", "pending"),
        ("tool_call_update", "completed"),
        ("tool_call_update", "failed"),
    ]
    assert updates[3]["locations"] == [{"path": "/project/a.py"}]


def test_the_list_of_steps_is_a_plan_and_an_invalid_one_is_empty() -> None:
    session = st.memory()
    steps = {"items": [{"text": "Look\nhere", "status": "done"}, {"text": "Write", "status": "in_progress"}]}
    for arguments in (steps, {"items": 5}):
        session.append(st.assistant([tool_call("c1", "todo", arguments)]))
        session.append(st.tool_result("c1", "todo", "shown"))

    updates = list(build_updates().replay(session.head.path()))

    assert [update["entries"] for update in updates if update["sessionUpdate"] == "plan"] == [
        [
            {"content": "Look here", "priority": "medium", "status": "completed"},
            {"content": "Write", "priority": "medium", "status": "in_progress"},
        ],
        [],
    ]


def test_a_call_id_that_a_model_uses_twice_is_unique_for_the_client() -> None:
    updates, session = build_updates(), st.memory()
    ids: list[str] = []
    for _ in range(2):
        for event in (
            MessageStart(role="assistant"),
            MessageDelta(kind="tool_call", text="", call="c1", name="bash"),
            MessageEnd(entry=session.append(st.assistant([tool_call("c1", "bash", {"command": "ls"})]))),
            ToolUpdate(call=ToolCall(id="c1", name="bash", arguments={}), text="out"),
            MessageEnd(entry=session.append(st.tool_result("c1", "bash", "out"))),
            RunEnd(aborted=False),
        ):
            ids += [update["toolCallId"] for update in updates.show_event(event)]

    assert len(ids) == 8
    assert len(set(ids)) == 2


async def test_waiting_pieces_of_one_message_are_joined_in_order() -> None:
    sent: list[Any] = []
    is_free = asyncio.Event()

    async def send(update: Any) -> None:
        await is_free.wait()
        sent.append(update["content"]["text"])

    stream = UpdateStream(send)
    stream.put([build_text_chunk("agent_message_chunk", "early ", "1")])
    stream.open()
    await asyncio.sleep(0)
    await asyncio.to_thread(stream.put, [build_text_chunk("agent_message_chunk", text, "2") for text in "abc"])
    stream.put([build_text_chunk("agent_thought_chunk", "d", "2"), build_text_chunk("agent_message_chunk", "e", "3")])
    is_free.set()
    await stream.close()

    assert sent == ["early ", "abc", "d", "e"]
