"""`sessiontree acp` with a real client: sessions, prompts, permissions, options, and everything that goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

import acp
import sessiontree as st
from sessiontree.acp.stdio_transport import MAX_MESSAGE_BYTES, READ_BYTES
from sessiontree.acp.tool_call_display import MAX_OUTPUT_CHARS
from sessiontree.slash_commands.plan_mode import APPROVE, APPROVE_EDITS, KEEP, LEAVE
from tests.acp.editor import COMMAND, SECONDS, Editor, spawn_editor, start_editor
from tests.agent.mcp_client.servers import SCRIPT
from tests.model.fake_server import Answer, FakeServer, calls, fail, slow

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)


def read_messages(session: str) -> list[str]:
    """Return the messages of the current branch of a saved session, as `role: text`."""
    with st.open(session, read_only=True) as saved:
        return [f"{entry.role}: {entry.text}" for entry in saved.head.path() if entry.role]


def read_asked(server: FakeServer, index: int = -1) -> list[str]:
    """Return the messages of a request as `role: text`, without the system prompt."""
    return [
        f"{message['role']}: {join_text(message.get('content'))}"
        for message in server.requests[index]["messages"]
        if message["role"] != "system"
    ]


def read_system(server: FakeServer) -> str:
    """Return the system prompt of the last request."""
    return join_text(server.requests[-1]["messages"][0]["content"])


def join_text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", f"<{part['type']}>") for part in content)
    return content or ""


async def fails(request: Any) -> acp.RequestError:
    with pytest.raises(acp.RequestError) as caught:
        await request
    return caught.value


# Prompts


async def test_a_prompt_streams_the_answer_and_is_saved(server: FakeServer, here: Path) -> None:
    server.add(Answer(text="A folder.", thinking="Let me see."), "Yes.")
    async with start_editor(cwd=here) as editor:
        session = await editor.open(here)
        assert await editor.prompt(session, "What is this?") == "end_turn"
        assert (editor.read_text("agent_thought_chunk"), editor.read_text()) == ("Let me see.", "A folder.")
        (usage,) = editor.read("usage_update")
        assert 0 < usage["used"] < usage["size"]
        assert await editor.prompt(session, "Sure?") == "end_turn"

    assert read_asked(server) == ["user: What is this?", "assistant: A folder.", "user: Sure?"]
    assert read_messages(session) == ["user: What is this?", "assistant: A folder.", "user: Sure?", "assistant: Yes."]


async def test_a_prompt_may_have_images_and_files_and_says_what_it_cannot_take(server: FakeServer, here: Path) -> None:
    server.add("Seen.")
    image = acp.image_block(b64encode(PNG).decode(), "image/jpeg")
    file = acp.resource_block(acp.embedded_text_resource(f"file://{here}/a%20b.py", "x = 1"))
    link = acp.resource_link_block("notes.md", f"file://{here}/notes.md")
    async with start_editor(cwd=here) as editor:
        session = await editor.open(here)
        assert await editor.prompt(session, "Look at ", file, " and ", link, image) == "end_turn"
        refused = [
            await fails(editor.prompt(session, *blocks))
            for blocks in (
                [acp.audio_block("AAAA", "audio/wav")],
                [acp.image_block("not base64!", "image/png")],
                [acp.image_block(b64encode(b"text").decode(), "image/png")],
                ["  "],
            )
        ]

    asked = server.requests[0]["messages"][-1]["content"]
    assert join_text(asked) == (
        f"Look at [@a b.py](file://{here}/a%20b.py) and [@notes.md](file://{here}/notes.md)\n\n"
        f'<file path="{here}/a b.py">\nx = 1\n</file><image_url>'
    )
    assert asked[-1]["image_url"]["url"].startswith("data:image/png")  # the client named another type
    assert {error.code for error in refused} == {-32602}
    assert [str(error) for error in refused] == [
        "a prompt cannot contain audio content",
        "the image is not valid base64",
        "the image is not an image that models accept; use png, jpeg, gif or webp",
        "the prompt is empty",
    ]
    assert len(server.requests) == 1


async def test_a_failing_model_is_an_error_and_the_next_prompt_works(server: FakeServer, here: Path) -> None:
    server.add(fail(400, "no such model"), Answer(text="Half of it", finish="length"))
    async with start_editor(cwd=here) as editor:
        session = await editor.open(here)
        error = await fails(editor.prompt(session, "One"))
        assert "no such model" in str(error)
        assert await editor.prompt(session, "Two") == "max_tokens"


async def test_cancelling_stops_the_stream_keeps_the_part_and_allows_the_next_prompt(
    server: FakeServer, here: Path
) -> None:
    server.add(slow(), calls(("c1", "bash", {"command": "sleep 60"})), calls(("c2", "bash", {"command": "ls"})), "Ok.")
    async with start_editor("--allow", "bash:sleep *", cwd=here) as editor:
        session = await editor.open(here)
        asking = asyncio.create_task(editor.prompt(session, "Count"))
        await editor.wait_for(lambda: len(editor.read_text()) > 20)
        busy = await fails(editor.prompt(session, "And this"))
        assert "already running" in str(busy)
        await editor.connection.cancel(session_id=session)
        assert await asking == "cancelled"

        asking = asyncio.create_task(editor.prompt(session, "Sleep"))
        await editor.wait_for(lambda: any(call.get("status") == "in_progress" for call in editor.read_calls()))
        await editor.connection.cancel(session_id=session)
        assert await asking == "cancelled"
        assert editor.read_calls()[0]["status"] == "failed"

        async def cancel_question(_: Any) -> None:
            await editor.connection.cancel(session_id=session)

        editor.choose = cancel_question
        assert await editor.prompt(session, "List") == "cancelled"
        assert [call["status"] for call in editor.read_calls()] == ["failed", "failed"]
        assert await editor.prompt(session, "Go on") == "end_turn"

    messages = read_messages(session)
    assert messages[1].startswith("assistant: word word")
    assert messages[-1] == "assistant: Ok."


# Tools and permissions


async def test_edits_ask_with_a_diff_and_each_answer_has_its_effect(server: FakeServer, here: Path) -> None:
    (here / "a.txt").write_text("one\ntwo\n")
    edit = {"path": "a.txt", "old_text": "two", "new_text": "TWO"}
    server.add(
        calls(("c1", "edit", edit)), "Refused.",
        calls(("c1", "edit", edit)), "Done.",
        calls(("c2", "bash", {"command": "echo hi"})), "Said.",
        calls(("c3", "bash", {"command": "echo hi"})), "Again.",
        calls(("c4", "write", {"path": "b.txt", "content": "new"})), "Made.",
        calls(("c5", "write", {"path": "b.txt", "content": "newer"})), "Kept.",
    )  # fmt: skip
    async with start_editor(cwd=here) as editor:
        session = await editor.open(here)
        editor.choose = "no"
        await editor.prompt(session, "Edit")
        assert (here / "a.txt").read_text() == "one\ntwo\n"
        (refused,) = editor.read_calls()
        assert refused["status"] == "failed"
        assert "denied by the user" in refused["content"][0]["content"]["text"]

        editor.choose = "once"
        await editor.prompt(session, "Edit")
        assert (here / "a.txt").read_text() == "one\nTWO\n"
        question = editor.permissions[-1]
        diff = {"type": "diff", "path": str(here / "a.txt"), "oldText": "two", "newText": "TWO"}
        shown_diff, detail = question["toolCall"]["content"]
        assert shown_diff == diff
        assert detail["content"]["text"] == "```\npath: a.txt\n- two\n+ TWO\n```"
        assert [option["kind"] for option in question["options"]] == [
            "allow_once", "allow_always", "allow_always", "reject_once",
        ]  # fmt: skip
        done = editor.read_calls()[1]
        assert (done["status"], done["content"]) == ("completed", [diff])
        assert done["locations"] == [{"path": str(here / "a.txt"), "line": 2}]
        assert done["toolCallId"] == question["toolCall"]["toolCallId"] != "c1"  # the model used the id before

        editor.choose = "always"
        await editor.prompt(session, "Say")
        await editor.prompt(session, "Say again")
        assert len(editor.permissions) == 3  # the rule covers the second call

        editor.choose = "a choice that was not offered"
        await editor.prompt(session, "Write")
        assert not (here / "b.txt").exists()
        editor.choose = "session"
        (here / "b.txt").write_text("old")
        await editor.prompt(session, "Write")
        assert (here / "b.txt").read_text() == "newer"
        assert editor.read_calls()[-1]["content"] == [
            {"type": "diff", "path": str(here / "b.txt"), "oldText": "old", "newText": "newer"}
        ]

    assert "echo hi" in (Path(os.environ["SESSIONTREE_HOME"]) / "permissions.toml").read_text()


async def test_a_plan_is_approved_in_the_editor_before_anything_changes(server: FakeServer, here: Path) -> None:
    write = calls(("c1", "write", {"path": "a.txt", "content": "x"}))
    server.add("1. Write a.txt", "2. Check it", write, "Done.")
    async with start_editor("--permission-mode", "allow-all", cwd=here) as editor:
        session = await editor.open(here)
        editor.choose = KEEP
        await editor.prompt(session, "/plan Write a file")
        question = editor.permissions[-1]
        assert question["toolCall"]["kind"] == "switch_mode"
        assert [(option["name"], option["kind"]) for option in question["options"]] == [
            (APPROVE, "allow_once"), (APPROVE_EDITS, "allow_always"), (KEEP, "reject_once"), (LEAVE, "reject_always"),
        ]  # fmt: skip
        assert not (here / "a.txt").exists()

        async def cancel(_: Any) -> None:
            await editor.connection.cancel(session_id=session)

        editor.choose = cancel
        assert await editor.prompt(session, "And how will you check it?") == "cancelled"
        assert "You are in plan mode" in read_system(server)

        editor.choose = APPROVE
        assert await editor.prompt(session, "/plan") == "end_turn"
        assert (here / "a.txt").read_text() == "x"
        assert "You are in plan mode" not in read_system(server)
        asked = [call for call in editor.read_calls() if call.get("kind") == "switch_mode"]
        assert [call["content"][0]["content"]["text"] for call in asked] == [KEEP, KEEP, APPROVE]
        assert {call["status"] for call in asked} == {"completed"}


async def test_an_editor_that_never_answers_about_a_plan_can_cancel(server: FakeServer, here: Path) -> None:
    server.add("1. Write a.txt")
    async with start_editor(cwd=here) as editor:
        session = await editor.open(here)
        never = asyncio.Event()

        async def wait(_: Any) -> None:
            await never.wait()

        editor.choose = wait
        prompt = asyncio.create_task(editor.prompt(session, "/plan Write a file"))
        await editor.wait_for(lambda: editor.permissions)
        await editor.connection.cancel(session_id=session)

        assert await prompt == "cancelled"
        editor.choose = LEAVE
        await editor.prompt(session, "/plan")
        assert "Left plan mode." in editor.read_text()
        never.set()


async def test_a_question_shows_all_arguments_and_a_call_too_long_to_show_is_denied(
    server: FakeServer, here: Path
) -> None:
    long = "echo " + "a" * 300 + "; touch hidden-at-the-end\u202e"
    server.add(
        calls(("c1", "bash", {"command": long})), "Refused.",
        calls(("c2", "bash", {"command": "# " + "a" * MAX_OUTPUT_CHARS + "\ntouch made"}), piece=4096), "Too long.",
        calls(("c3", "write", {"path": "b.txt", "content": "a" * MAX_OUTPUT_CHARS}), piece=4096), "Too long.",
    )  # fmt: skip
    async with start_editor(cwd=here) as editor:
        session = await editor.open(here)
        editor.choose = "no"
        await editor.prompt(session, "Run")
        (question,) = editor.permissions
        assert "touch hidden-at-the-end\\u202e" in question["toolCall"]["content"][-1]["content"]["text"]
        editor.choose = "once"
        await editor.prompt(session, "Run")
        await editor.prompt(session, "Write")
        assert len(editor.permissions) == 1

    assert os.listdir(here) == []
    results = [message for message in read_messages(session) if message.startswith("toolResult")]
    assert ["longer than the 64 KiB that the editor can show" in text for text in results] == [False, True, True]


async def test_files_go_through_the_editor_and_its_unsaved_changes(server: FakeServer, here: Path) -> None:
    file, image = here / "a.txt", here / "a.png"
    file.write_text("on disk")
    image.write_bytes(PNG)
    server.add(
        calls(
            ("c1", "read", {"path": "a.txt"}),
            ("c2", "edit", {"path": "a.txt", "old_text": "unsaved", "new_text": "edited"}),
            ("c3", "write", {"path": "b.txt", "content": "new"}),
            ("c4", "read", {"path": "a.png"}),
            ("c5", "read", {"path": "missing.txt"}),
        ),
        "Done.",
    )
    async with start_editor("--permission-mode", "allow-edits", cwd=here, fs=True) as editor:
        editor.buffers[str(file)] = "unsaved text"
        session = await editor.open(here)
        await editor.prompt(session, "Go")
        read, edited, wrote, viewed, missing = editor.read_calls()

    assert "unsaved text" in read["content"][0]["content"]["text"]
    assert [edited["status"], wrote["status"], missing["status"]] == ["completed", "completed", "failed"]
    assert editor.written == {str(file): "edited text", str(here / "b.txt"): "new"}
    assert viewed["content"][-1]["content"]["type"] == "image"


async def test_commands_run_in_a_terminal_of_the_editor_without_secrets(
    server: FakeServer, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    server.add(
        calls(("c1", "bash", {"command": "echo key=$OPENAI_API_KEY$MY_TOKEN; pwd; exit 3"})),
        calls(("c2", "bash", {"command": "sleep 60", "timeout": 0.2})),
        calls(("c3", "bash", {"command": "echo started; sleep 60"})),
    )
    async with start_editor("--permission-mode", "allow-all", cwd=here, terminal=True) as editor:
        session = await editor.open(here)
        asking = asyncio.create_task(editor.prompt(session, "Go"))
        await editor.wait_for(lambda: len(editor.terminals) == 3)
        await editor.connection.cancel(session_id=session)
        assert await asking == "cancelled"
        shown = [
            update["content"][0]["terminalId"]
            for update in editor.read("tool_call_update")
            if update.get("content", [{}])[0].get("type") == "terminal"
        ]

    assert shown == editor.released == ["terminal-1", "terminal-2", "terminal-3"]
    results = [message for message in read_messages(session) if message.startswith("toolResult")]
    assert f"key=\n{here}" in results[0]
    assert "exited with code 3" in results[0]
    assert "stopped after 0.2 seconds" in results[1]
    assert "was aborted" in results[2]


BIG_TOOL = """
from sessiontree.extensions.api import ExtensionApi

def setup(api: ExtensionApi) -> None:
    def fetch() -> str:
        "Fetch a lot."
        print("this must not reach the client")
        return "x" * 50_000_000

    api.register_tool(fetch)
"""


async def test_a_tool_result_of_50_mb_and_output_of_extensions_do_not_disturb_the_editor(
    server: FakeServer, here: Path
) -> None:
    (here / "big.py").write_text(BIG_TOOL)
    server.add(calls(("c1", "fetch", {})), *["Much."] * 9)  # a context that long is compacted
    async with spawn_editor("-e", str(here / "big.py"), "--allow", "fetch", cwd=here) as editor:
        session = await editor.open(here)
        assert await editor.prompt(session, "Fetch") == "end_turn"
        (call,) = editor.read_calls()

    assert call["status"] == "completed"
    assert 60_000 < len(call["content"][0]["content"]["text"]) < 70_000
    assert all(len(json.dumps(value)) < 200_000 for _, _, value in editor.messages)
    assert read_messages(session)[-1] == "assistant: Much."


async def test_the_agent_uses_mcp_servers_that_the_editor_passes(server: FakeServer, here: Path) -> None:
    def call_echo(body: dict[str, Any]) -> Answer:
        names = [tool["function"]["name"] for tool in body["tools"]]
        (echo,) = [name for name in names if name.endswith("echo")]
        return calls(("c1", echo, {"text": "over MCP"}))

    server.add(call_echo, "Done.", call_echo, "Refused.")
    stdio = {"name": "my example!", "command": sys.executable, "args": [SCRIPT, "stdio"], "env": []}
    old = {"type": "sse", "name": "old", "url": "http://127.0.0.1:1/sse", "headers": []}
    async with start_editor(cwd=here) as editor:
        opened = await editor.request("session/new", {"cwd": str(here), "mcpServers": [stdio, old]})
        assert await editor.prompt(opened["sessionId"], "Echo") == "end_turn"
        editor.choose = "no"
        await editor.prompt(opened["sessionId"], "Echo")
        done, refused = editor.read_calls()

    assert editor.messages[0][2]["agentCapabilities"]["mcpCapabilities"] == {"http": True}
    assert "over MCP" in done["content"][0]["content"]["text"]
    assert (done["status"], refused["status"]) == ("completed", "failed")
    assert "the MCP server old of the editor is not used" in editor.read_text()
    assert len(editor.permissions) == 2


# Sessions


async def test_sessions_are_listed_loaded_resumed_forked_closed_and_deleted(server: FakeServer, here: Path) -> None:
    (here / "a.txt").write_text("content")
    server.add(calls(("c1", "read", {"path": "a.txt"}), text="Let me look."), "It says so.", "Forked answer.")
    async with start_editor(cwd=here) as first:
        session = await first.open(here)
        await first.prompt(session, "Read a.txt")
    with st.open(session) as saved:
        saved.rename("My work")

    async with start_editor(cwd=here) as editor:
        (listed,) = (await editor.connection.list_sessions(cwd=str(here))).sessions
        assert (listed.session_id, listed.title, listed.cwd) == (session, "My work", str(here))
        assert (await editor.connection.list_sessions(cwd="/")).sessions == []

        loaded = await editor.connection.load_session(cwd=str(here), session_id=session, mcp_servers=[])
        assert loaded.modes is not None
        assert (editor.read_text("user_message_chunk"), editor.read_text()) == (
            "Read a.txt",
            "Let me look.It says so.",
        )
        (call,) = editor.read_calls()
        assert (call["title"], call["status"]) == ("read a.txt", "completed")
        await editor.wait_for(lambda: editor.read("session_info_update"))
        assert editor.read("session_info_update")[0]["title"] == "My work"
        assert "tree" in [
            command["name"] for command in editor.read("available_commands_update")[0]["availableCommands"]
        ]

        forked = (await editor.connection.fork_session(session_id=session, cwd=str(here))).session_id
        await editor.prompt(forked, "And now?")
        await editor.connection.close_session(session_id=session)
        assert (await fails(editor.prompt(session, "Hello"))).code == -32002
        editor.clear()
        await editor.connection.resume_session(session_id=session, cwd=str(here))
        assert editor.read_text() == ""

        await editor.request("session/delete", {"sessionId": session})
        await editor.request("session/delete", {"sessionId": session})  # it is gone already
        assert (await fails(editor.prompt(session, "Hello"))).code == -32002
        remaining = (await editor.connection.list_sessions()).sessions
        assert [item.session_id for item in remaining] == [forked]
        for unknown in (session, "nothing", "My work", str(here / "a.txt"), "", "../x", "x" * 10_000):
            error = await fails(editor.connection.load_session(cwd=str(here), session_id=unknown, mcp_servers=[]))
            assert error.code == -32002, unknown
        wrong = await fails(editor.connection.list_sessions(cursor="nothing"))
        assert wrong.code == -32602

    assert read_messages(forked)[-2:] == ["user: And now?", "assistant: Forked answer."]


async def test_an_empty_session_is_not_kept_and_a_folder_must_exist(server: FakeServer, here: Path) -> None:
    async with start_editor(cwd=here) as editor:
        await editor.open(here)
        for folder in ("relative", str(here / "missing")):
            assert (await fails(editor.connection.new_session(cwd=folder, mcp_servers=[]))).code == -32602

    assert st.sessions(all=True) == []


async def test_two_editors_and_another_program_share_a_session(server: FakeServer, here: Path) -> None:
    server.add("One.", "Two.", "Three.")
    async with spawn_editor(cwd=here) as one, spawn_editor(cwd=here) as other:
        session = await one.open(here)
        await one.prompt(session, "First")
        await other.connection.load_session(cwd=str(here), session_id=session, mcp_servers=[])
        await other.prompt(session, "Second")
        await one.wait_for(lambda: "Second" in one.read_text("user_message_chunk") and "Two." in one.read_text())

        with st.open(session) as app:
            app.append(st.user("From the app"))
        await one.prompt(session, "Third")
        assert read_asked(server)[-2:] == ["user: From the app", "user: Third"]

        one.clear()
        with st.open(session) as app:
            await app.head.navigate("HEAD~4")
        await one.wait_for(lambda: "moved branch main" in one.read_text())

    messages = [entry.text for entry in st.open(session).tree if entry.role == "assistant"]
    assert messages == ["One.", "Two.", "Three."]


async def test_two_prompts_at_once_on_one_branch_lose_nothing(server: FakeServer, here: Path) -> None:
    server.add("Start.", slow("first " * 20), slow("other " * 20))
    async with spawn_editor(cwd=here) as one, spawn_editor(cwd=here) as other:
        session = await one.open(here)
        await one.prompt(session, "Begin")
        await other.connection.load_session(cwd=str(here), session_id=session, mcp_servers=[])
        results = await asyncio.gather(
            one.prompt(session, "Mine"), other.prompt(session, "Yours"), return_exceptions=True
        )

    assert "end_turn" in results
    for result in results:
        assert result == "end_turn" or "branch" in str(result)
    texts = [entry.text for entry in st.open(session).tree if entry.role]
    assert {"Begin", "Start.", "first " * 20, "other " * 20} <= set(texts) or len(server.requests) == 2


# Options and commands


async def test_modes_models_and_thinking_levels_can_be_chosen(server: FakeServer, here: Path) -> None:
    server.models = ["scripted", "second"]
    server.add("Ok.")
    async with start_editor(cwd=here) as editor:
        opened = await editor.connection.new_session(cwd=str(here), mcp_servers=[])
        session = opened.session_id
        assert opened.modes is not None
        assert opened.modes.current_mode_id == "ask"
        assert [mode.id for mode in opened.modes.available_modes] == ["read-only", "ask", "allow-edits", "allow-all"]

        await editor.connection.set_session_mode(session_id=session, mode_id="read-only")
        await editor.wait_for(lambda: editor.read("current_mode_update"))
        answer = await editor.connection.set_config_option(session_id=session, config_id="model", value="openai:second")
        assert answer is not None
        values = {option.id: option.current_value for option in answer.config_options}
        assert values == {"mode": "read-only", "model": "openai:second", "thinking": "off"}
        await editor.connection.set_config_option(session_id=session, config_id="thinking", value="high")
        await editor.connection.set_config_option(session_id=session, config_id="mode", value="allow-edits")
        await editor.prompt(session, "Hello")
        assert server.requests[-1]["model"] == "second"

        await editor.prompt(session, "/permissions ask")
        assert editor.read("current_mode_update")[-1]["currentModeId"] == "ask"
        for config, value in (("model", "nobody:x"), ("thinking", "much"), ("mode", "any"), ("x", "y"), ("mode", True)):
            error = await fails(editor.connection.set_config_option(session_id=session, config_id=config, value=value))
            assert error.code in (-32602, -32002, -32000)
        assert (await fails(editor.connection.set_session_mode(session_id=session, mode_id="any"))).code == -32602


async def test_slash_commands_run_and_print_text(server: FakeServer, here: Path) -> None:
    prompts = Path(os.environ["SESSIONTREE_HOME"]) / "commands"
    prompts.mkdir(parents=True)
    (prompts / "review.md").write_text("---\ndescription: Review a file\n---\nReview $1 with care.")
    server.add("One.", "Two.", "Reviewed.")
    async with start_editor(cwd=here) as editor:
        session = await editor.open(here)
        await editor.prompt(session, "First")
        await editor.prompt(session, "Second")
        shown: dict[str, str] = {}
        for line in ("/tree", "/tree HEAD~2", "/undo", "/branches", "/nothing", "/quit", "/merge"):
            editor.clear()
            assert await editor.prompt(session, line) == "end_turn"
            shown[line] = editor.read_text()
        assert len(server.requests) == 2
        file = acp.resource_block(acp.embedded_text_resource(f"file://{here}/a.py", "x = 1"))
        await editor.prompt(session, "/review ", file)
        await editor.prompt(session, "/name My work")
        assert editor.read("session_info_update")[-1]["title"] == "My work"

    assert shown["/tree"].startswith("```\n")
    assert "First" in shown["/tree"]
    assert "Moved from" in shown["/tree HEAD~2"]
    assert "Undid" in shown["/undo"]
    assert "main" in shown["/branches"]
    assert "/nothing" in shown["/nothing"]
    assert "/quit" in shown["/quit"]
    assert "missing arguments" in shown["/merge"]
    asked = read_asked(server)[-1]
    assert asked.startswith("user: Review [@a.py]")
    assert asked.endswith("x = 1\n</file>")
    assert len(read_asked(server)) == 5  # the undo took the move back


# Authentication


async def test_without_a_model_the_editor_must_authenticate_but_can_read_old_sessions(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("LLAMA_ARG_PORT", "1")
    for name in list(os.environ):
        if name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    with st.create(cwd=here) as old:
        old.append(st.user("From before"))
    async with start_editor(cwd=here) as editor:
        _, _, answer = editor.messages[0]
        (method,) = answer["authMethods"]
        assert "ANTHROPIC_API_KEY" in method["description"]
        error = await fails(editor.connection.new_session(cwd=str(here), mcp_servers=[]))
        assert (error.code, "no model is available" in str(error)) == (-32000, True)
        assert (await fails(editor.connection.authenticate(method_id="api-key"))).code == -32000
        assert (await fails(editor.connection.authenticate(method_id="other"))).code == -32602
        await editor.connection.load_session(cwd=str(here), session_id=old.id, mcp_servers=[])
        assert editor.read_text("user_message_chunk") == "From before"
        assert (await fails(editor.prompt(old.id, "Hello"))).code == -32000

    assert len(st.sessions(all=True)) == 1


# Bad input and the end


async def test_bad_messages_are_answered_with_errors_and_the_agent_continues(server: FakeServer, here: Path) -> None:
    server.add("Still here.")
    async with spawn_editor(cwd=here, initialize=False) as editor:
        assert editor.process.stdin is not None
        assert (await fails(editor.request("session/list", {}))).code == -32600
        await editor.connection.initialize(protocol_version=99)
        assert editor.messages[-1][2]["protocolVersion"] == 1
        lines = [
            b"not json", b"[]", b"42", b"null", b'"text"', b'{"jsonrpc":"2.0","id":[],"method":"x"}', b"\xff\xfe",
            b'{"jsonrpc":"2.0","id":7,"method":5}', b'{"id":{},"result":{}}', b'{"id":0,"error":"text"}', b"{}",
            b"[" * 200_000, b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"none"}}',
            b'{"jsonrpc":"2.0","method":"nothing/known"}', b"x" * (MAX_MESSAGE_BYTES + 10), b"",
        ]  # fmt: skip
        editor.process.stdin.write(b"\n".join(lines) + b"\n")
        session = await editor.open(here)
        for method, params in (
            ("nothing/known", {}),
            ("_own/method", {}),
            ("session/new", {"cwd": 5}),
            ("session/new", None),
            ("session/new", []),
            ("session/prompt", {"sessionId": session}),
            ("session/prompt", {"sessionId": session, "prompt": [{"type": "video"}]}),
            ("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "x"}, {"type": "video"}]}),
            ("session/new", {"cwd": str(here), "mcpServers": [{"name": "x"}]}),
            ("session/set_mode", {"sessionId": session, "modeId": None}),
            ("session/fork", {"sessionId": "x", "cwd": str(here)}),
        ):
            error = await fails(editor.request(method, params))
            assert error.code in (-32601, -32602, -32002), method
            assert str(error)
        meta = {"session_id": "other", "self": 1, "prompt": []}
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "Hello \ud800"}], "_meta": meta}
        assert await editor.request("session/prompt", prompt) == {"stopReason": "end_turn"}


async def test_a_request_that_is_too_long_gets_an_error_with_its_id(server: FakeServer, here: Path) -> None:
    server.add("Still here.")
    async with start_editor(cwd=here) as editor:
        session = await editor.open(here)
        text = {"type": "text", "text": "x" * (MAX_MESSAGE_BYTES + READ_BYTES)}
        error = await fails(editor.request("session/prompt", {"sessionId": session, "prompt": [text]}))
        assert (error.code, str(error)) == (-32600, "the message is longer than 64 MiB")
        assert await editor.prompt(session, "Hello") == "end_turn"


async def test_a_notification_about_a_session_that_is_not_open_is_one_line_in_the_log(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with start_editor(cwd=here) as editor:
        await editor.connection.cancel(session_id="none")
        await editor.connection.list_sessions()

    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("WARNING", None)]
    assert "open session 'none' not found" in caplog.text


async def start_streaming(editor: Editor, here: Path) -> tuple[str, asyncio.Task[str]]:
    session = await editor.open(here)
    asking = asyncio.create_task(editor.prompt(session, "Count"))
    await editor.wait_for(lambda: len(editor.read_text()) > 20)
    return session, asking


async def test_when_the_editor_dies_or_the_agent_is_terminated_the_part_is_saved(
    server: FakeServer, here: Path
) -> None:
    for end in ("eof", "signal"):
        server.add(slow())
        async with spawn_editor(cwd=here) as editor:
            session, asking = await start_streaming(editor, here)
            assert editor.process.stdin is not None
            if end == "eof":
                editor.process.stdin.close()
            else:
                editor.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(editor.process.wait(), SECONDS) == 0
            asking.cancel()
            await asyncio.wait([asking])
        assert read_messages(session)[1].startswith("assistant: word word")
        assert server.wait_for(lambda server: server.disconnects > 0)


def test_an_editor_that_does_not_read_is_survived(server: FakeServer, here: Path) -> None:
    server.add(Answer(text="x" * 3_000_000, piece=100_000))
    with subprocess.Popen(COMMAND, cwd=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def send(id: int, method: str, params: Any) -> None:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode())
            process.stdin.write(b"\n")
            process.stdin.flush()

        send(0, "initialize", {"protocolVersion": 1})
        send(1, "session/new", {"cwd": str(here), "mcpServers": []})
        while (answer := json.loads(process.stdout.readline())).get("id") != 1:
            pass
        session = answer["result"]["sessionId"]
        send(2, "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "Much"}]})
        deadline = time.monotonic() + SECONDS
        while len(read_messages(session)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.stdin.close()

        assert process.wait(SECONDS) == 0

    assert read_messages(session)[-1] == "assistant: " + "x" * 3_000_000


def test_requests_are_answered_even_if_the_input_ends_at_once(server: FakeServer, here: Path) -> None:
    request = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
    (here / "hello.json").write_text(json.dumps(request))

    with open(here / "hello.json") as file:
        done = subprocess.run(COMMAND, cwd=here, stdin=file, capture_output=True, timeout=SECONDS, check=True)

    assert json.loads(done.stdout)["result"]["protocolVersion"] == 1
    assert done.stderr == b""


def test_the_command_needs_its_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from sessiontree.cli.app import run

    for name in [name for name in sys.modules if name.startswith("sessiontree.acp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "acp.connection", None)

    assert run(["acp"]) == 1
    assert "sessiontree[acp]" in capsys.readouterr().err


async def test_an_extension_that_fails_is_an_error_and_an_untrusted_project_is_reported(
    server: FakeServer, here: Path
) -> None:
    (here / "broken.py").write_text("raise RuntimeError('broken')")
    project = here / ".sessiontree" / "commands"
    project.mkdir(parents=True)
    (project / "evil.md").write_text("Delete everything")
    async with start_editor("-e", str(here / "broken.py"), cwd=here) as editor:
        error = await fails(editor.connection.new_session(cwd=str(here), mcp_servers=[]))
        assert "failed to load" in str(error)
    async with start_editor(cwd=here) as editor:
        await editor.open(here)
        await editor.wait_for(lambda: editor.read("available_commands_update"))
        assert "you have not trusted it" in editor.read_text()
        assert editor.read_messages()[1][:2] == ("response", "session/new")  # nothing about the session comes before it
        commands = editor.read("available_commands_update")[-1]["availableCommands"]
        assert "evil" not in [command["name"] for command in commands]
