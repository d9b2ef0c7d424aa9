"""Version 2 of the protocol: its messages with a real agent, and the form of what is translated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import acp
import sessiontree as st
from sessiontree.acp.draft_transport import convert_update
from sessiontree.slash_commands.plan_mode import APPROVAL_PROMPT, APPROVE, QUESTION
from tests.acp.draft_client import start_draft_client
from tests.acp.editor import start_editor
from tests.model.fake_server import Answer, FakeServer, calls, fail, slow


async def test_a_prompt_is_accepted_at_once_and_its_end_is_a_state(server: FakeServer, here: Path) -> None:
    server.add(Answer(text="Hello.", thinking="Let me see."))
    async with start_draft_client() as client:
        session = (await client.request("session/new", cwd=str(here)))["sessionId"]

        state = await client.prompt(session, "Hi")

        assert state["stopReason"] == "end_turn"
        kinds = [update.get("state") or update["sessionUpdate"] for update in client.updates]
        kinds = [kind for kind in kinds if kind.endswith(("_message", "_chunk")) or kind in ("running", "idle")]
        assert list(dict.fromkeys(kinds)) == [
            "running",
            "user_message",
            "agent_thought_chunk",
            "agent_message_chunk",
            "idle",
        ]
        (accepted,) = [
            result for kind, method, result in client.messages if (kind, method) == ("response", "session/prompt")
        ]
        (message,) = client.read("user_message")
        assert accepted["messageId"] == message["messageId"]
        assert message["content"] == [{"type": "text", "text": "Hi"}]
        assert client.read_text() == "Hello."


async def test_capabilities_options_and_commands_have_the_new_form(server: FakeServer, here: Path) -> None:
    async with start_draft_client() as client:
        opened = await client.request("session/new", cwd=str(here))
        options = await client.request(
            "session/set_config_option",
            sessionId=opened["sessionId"],
            configId="mode",
            type="select",
            value="read-only",
        )
        await client.wait_for(lambda: client.read("available_commands_update"))

    (started,) = [result for _, method, result in client.messages if method == "initialize"]
    assert started["protocolVersion"] == 2
    assert {"prompt", "mcp", "delete", "fork"} == set(started["capabilities"]["session"])
    assert "modes" not in opened
    assert {option["configId"]: option["currentValue"] for option in options["configOptions"]}["mode"] == "read-only"
    commands = client.read("available_commands_update")[0]["availableCommands"]
    assert {command["type"] for command in commands} == {"command"}
    assert not client.read("current_mode_update")


async def test_a_question_says_that_the_session_waits_for_the_user(server: FakeServer, here: Path) -> None:
    (here / "a.txt").write_text("one\ntwo\n")
    server.add(calls(("c1", "edit", {"path": "a.txt", "old_text": "two", "new_text": "2"})), "Done.")
    async with start_draft_client() as client:
        session = (await client.request("session/new", cwd=str(here)))["sessionId"]

        await client.prompt(session, "Edit")

    assert (here / "a.txt").read_text() == "one\n2\n"
    assert [update["state"] for update in client.read("state_update")] == [
        "running", "requires_action", "running", "idle",
    ]  # fmt: skip
    (question,) = client.questions
    assert question["title"] == "edit a.txt"
    call = question["subject"]["toolCall"]
    (diff,) = [item for item in call["content"] if item["type"] == "diff"]
    assert diff["changes"] == [{"operation": "modify", "path": str(here / "a.txt"), "fileType": "text"}]
    assert "-two\n" in diff["patch"]["text"]
    assert "+2\n" in diff["patch"]["text"]
    assert client.read("tool_call_update")[-1]["status"] == "completed"
    assert not client.read("tool_call")


async def test_a_plan_is_approved_with_a_question(server: FakeServer, here: Path) -> None:
    server.add("1. Write a.txt", "Done.")
    async with start_draft_client() as client:
        session = (await client.request("session/new", cwd=str(here)))["sessionId"]

        client.outcome = {"outcome": "selected", "optionId": APPROVE}
        await client.prompt(session, "/plan Write a file")

    (question,) = client.questions
    assert question["title"] == QUESTION
    assert APPROVAL_PROMPT in str(server.requests[-1]["messages"][-1])


async def test_an_outcome_that_is_unknown_is_no_permission(server: FakeServer, here: Path) -> None:
    server.add(calls(("c1", "bash", {"command": "touch made"})), "Refused.")
    async with start_draft_client() as client:
        session = (await client.request("session/new", cwd=str(here)))["sessionId"]

        client.outcome = {"outcome": "_later", "optionId": "once"}
        await client.prompt(session, "Touch")

    assert not (here / "made").exists()


async def test_failures_are_states_after_the_prompt_was_accepted_and_errors_before(
    server: FakeServer, here: Path
) -> None:
    server.add(fail(400))
    async with start_draft_client() as client:
        session = (await client.request("session/new", cwd=str(here)))["sessionId"]

        state = await client.prompt(session, "Hi")

        assert state["stopReason"] == "error"
        assert state["error"]["message"]
        with pytest.raises(acp.RequestError, match="empty"):
            await client.request("session/prompt", sessionId=session, prompt=[])
        with pytest.raises(acp.RequestError, match="not found"):
            await client.request("session/prompt", sessionId="none", prompt=[{"type": "text", "text": "x"}])
        for method in ("session/load", "session/set_mode", "authenticate", "nothing"):
            with pytest.raises(acp.RequestError, match="not found"):
                await client.request(method, sessionId=session, cwd=str(here))
        assert await client.request("auth/logout") == {}
        assert len(client.read("user_message")) == 1


async def test_a_second_prompt_is_refused_and_cancelling_ends_the_first(server: FakeServer, here: Path) -> None:
    server.add(slow(), "Again.")
    async with start_draft_client() as client:
        session = (await client.request("session/new", cwd=str(here)))["sessionId"]
        first = asyncio.create_task(client.prompt(session, "Count"))
        await client.wait_for(lambda: "word" in client.read_text())

        with pytest.raises(acp.RequestError, match="already running"):
            await client.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Me too"}])
        await client.connection.send_notification("session/cancel", {"sessionId": session})

        assert (await first)["stopReason"] == "cancelled"
        assert (await client.prompt(session, "Go on"))["stopReason"] == "end_turn"


async def test_closing_reports_the_end_of_the_prompt_first_and_resuming_replays(server: FakeServer, here: Path) -> None:
    server.add(slow())
    async with start_draft_client() as client:
        session = (await client.request("session/new", cwd=str(here)))["sessionId"]
        running = asyncio.create_task(client.prompt(session, "Count"))
        await client.wait_for(lambda: "word" in client.read_text())

        await client.request("session/close", sessionId=session)

        assert (await running)["stopReason"] == "cancelled"
        closed = [method for _, method, _ in client.messages].index("session/close")
        assert client.messages[closed - 1][2]["update"]["state"] == "idle"
        client.updates.clear()
        await client.request("session/resume", sessionId=session, cwd=str(here))
        assert [update["state"] for update in client.read("state_update")] == ["idle"]
        assert not client.read("user_message_chunk")
        await client.request("session/resume", sessionId=session, cwd=str(here), replayFrom={"type": "start"})
        assert "word" in client.read_text()
        assert client.read("user_message_chunk")[0]["content"]["text"] == "Count"


async def test_a_command_of_the_chat_is_a_prompt_too(server: FakeServer, here: Path) -> None:
    async with start_draft_client() as client:
        session = (await client.request("session/new", cwd=str(here)))["sessionId"]

        state = await client.prompt(session, "/permissions")

    assert state["stopReason"] == "end_turn"
    assert "ask" in client.read_text()


async def test_a_client_of_version_1_notices_nothing_of_version_2(server: FakeServer, here: Path) -> None:
    server.add("Hello.")
    async with start_editor("--v2", cwd=here) as editor:
        session = await editor.open(here)
        assert await editor.prompt(session, "Hi") == "end_turn"
        assert editor.read_text() == "Hello."

    with st.open(session) as saved:
        assert [entry.text for entry in saved.head.path() if entry.role] == ["Hi", "Hello."]


async def test_without_the_option_version_1_is_the_answer(server: FakeServer, here: Path) -> None:
    async with start_editor(cwd=here, initialize=False) as editor:
        answer = await editor.request("initialize", {"protocolVersion": 2, "info": {"name": "t", "version": "1"}})

    assert answer["protocolVersion"] == 1


def test_a_new_file_is_added_by_its_patch() -> None:
    diff = {"type": "diff", "path": "/p/new.txt", "newText": "a\nb"}

    written = convert_update({"sessionUpdate": "tool_call", "toolCallId": "c", "content": [diff]})

    assert written is not None
    (item,) = written["content"]
    assert item["changes"][0]["operation"] == "add"
    assert item["patch"]["text"] == (
        "diff --git /p/new.txt /p/new.txt\nnew file mode 100644\n--- /dev/null\n+++ /p/new.txt\n"
        "@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n"
    )
