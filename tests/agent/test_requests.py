"""Requests to a provider after branches, summaries, compactions, edits, aborts and a crash.

End to end: from the agent through the adapter to a local server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.tool import tool
from sessiontree.config import Config, ModelSettings, RetrySettings
from sessiontree.core.context import NO_RESULT
from sessiontree.core.entries import ContextEdit
from sessiontree.core.messages import BRANCH_LEAD, COMPACTION_LEAD
from sessiontree.hooks.events import MessageDelta, ToolStart
from sessiontree.model.adapter import ProviderModel
from sessiontree.model.base import ModelError
from sessiontree.model.providers import ModelTarget
from sessiontree.ops.navigate import navigate
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.session import Session
from tests.agent.conftest import format_messages, get_last_message, record_events
from tests.model.fake_server import FakeServer, calls, cut, fail, overflow, slow
from tests.waiting import wait_until


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def session() -> Session:
    return st.memory()


@tool(concurrent=True)
def look(what: str) -> str:
    """Look."""
    return f"seen {what}"


def create_agent(session: Session, server: FakeServer, window: int = 100_000) -> Agent:
    target = ModelTarget(provider="vllm", model="qwen", api="openai-completions", base_url=server.url, key="secret")
    model = ProviderModel(target, ModelSettings(context_window=window))
    return Agent(session.head, model, [look], system="Be brief.", settings=Config())


def list_request_messages(server: FakeServer, index: int = -1) -> list[dict[str, Any]]:
    """Return the messages of a request with text as strings."""
    return [
        {**message, "content": _simplify_message(message.get("content"))}
        for message in server.requests[index]["messages"]
    ]


def _simplify_message(content: Any) -> Any:
    if isinstance(content, list) and all(part["type"] == "text" for part in content):
        return "\n".join(part["text"] for part in content)
    return content


SYSTEM = {"role": "system", "content": "Be brief."}


def build_user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def build_answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def build_call(id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": function}]}


def build_result(id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


async def test_a_turn_with_tools_sends_calls_and_results_in_order(server: FakeServer, session: Session) -> None:
    server.add(calls(("c1", "look", {"what": "a"}), ("c2", "look", {"what": "b"})), "Both.")
    agent = create_agent(session, server)

    outcome = await agent.run("Look twice")

    assert outcome.text == "Both."
    request = server.requests[-1]
    sent = list_request_messages(server)
    assert sent[:2] == [SYSTEM, build_user("Look twice")]
    assert [call["id"] for call in sent[2]["tool_calls"]] == ["c1", "c2"]
    assert sent[3:] == [build_result("c1", "seen a"), build_result("c2", "seen b")]
    assert request["tools"][0]["function"]["name"] == "look"
    assert get_last_message(session.head)["usage"]["totalTokens"] == 17
    assert get_last_message(session.head)["provider"] == "vllm"


async def test_a_request_contains_only_the_path_of_its_branch(server: FakeServer, session: Session) -> None:
    server.add("One.", "On main.", "On idea.")
    agent = create_agent(session, server)
    await agent.run("1")
    session.create_branch("idea", current=False)
    await agent.run("main only")

    other = create_agent(session, server)
    other.branch = session.branch("idea")
    await other.run("idea only")

    assert list_request_messages(server) == [SYSTEM, build_user("1"), build_answer("One."), build_user("idea only")]


async def test_a_request_contains_the_summary_of_an_abandoned_branch(server: FakeServer, session: Session) -> None:
    server.add("One.", "Two.", "It went nowhere.", "Three.")
    agent = create_agent(session, server)
    await agent.run("1")
    start = session.head.leaf
    await agent.run("2")

    await navigate(session, start, hooks=agent.hooks, summary=SummaryRequest(model=agent.model))
    await agent.run("3")

    sent = list_request_messages(server)
    assert sent[:3] == [SYSTEM, build_user("1"), build_answer("One.")]
    assert sent[3]["content"].startswith(BRANCH_LEAD)
    assert "It went nowhere." in sent[3]["content"]
    assert sent[4:] == [build_user("3")]


async def test_after_a_compaction_the_summary_replaces_earlier_messages(server: FakeServer, session: Session) -> None:
    server.add("One.", "Two.", "All that was said.", "Three.")
    agent = create_agent(session, server)
    await agent.run("1")
    await agent.run("2")

    await agent.compact()
    await agent.run("3")

    sent = list_request_messages(server)
    assert sent[0] == SYSTEM
    assert sent[1]["content"].startswith(COMPACTION_LEAD)
    assert "All that was said." in sent[1]["content"]
    assert "1" not in [message["content"] for message in sent]
    assert sent[-1] == build_user("3")


async def test_a_context_edit_changes_what_is_sent_and_nothing_else(server: FakeServer, session: Session) -> None:
    server.add("One.", "Two.")
    agent = create_agent(session, server)
    await agent.run("1")
    answer = session.head.path()[-1]

    session.append(ContextEdit(target=answer.id, replacement={"content": "Edited."}))
    await agent.run("2")

    assert list_request_messages(server) == [SYSTEM, build_user("1"), build_answer("Edited."), build_user("2")]


async def test_an_aborted_answer_is_not_sent_again(server: FakeServer, session: Session) -> None:
    server.add(slow(), "Fine.")
    agent = create_agent(session, server)
    events = record_events(agent.hooks)
    asking = asyncio.create_task(agent.run("1"))
    await wait_until(lambda: any(isinstance(event, MessageDelta) for event in events))

    agent.abort()
    outcome = await asyncio.wait_for(asking, 20)
    assert server.wait_for(lambda server: server.disconnects == 1)
    await agent.run("2")

    assert outcome.aborted
    assert outcome.text.startswith("word")
    assert list_request_messages(server) == [SYSTEM, build_user("1"), build_user("2")]


async def test_an_aborted_tool_call_is_reported_to_the_model(server: FakeServer, session: Session) -> None:
    server.add(calls(("c1", "wait", {})), "I see.")

    @tool
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(30)
        return ""

    agent = create_agent(session, server)
    agent.tools = {"wait": wait}
    events = record_events(agent.hooks)
    asking = asyncio.create_task(agent.run("1"))
    await wait_until(lambda: any(isinstance(event, ToolStart) for event in events))
    agent.abort()
    await asking
    await agent.run("2")

    assert list_request_messages(server) == [
        SYSTEM,
        build_user("1"),
        build_call("c1", "wait", {}),
        build_result("c1", "The call was aborted."),
        build_user("2"),
    ]


async def test_a_broken_connection_keeps_the_partial_answer_and_the_run_can_continue(
    server: FakeServer, session: Session
) -> None:
    server.add(cut("This is not"), "Whole.")
    agent = create_agent(session, server)
    agent.settings = Config(retry=RetrySettings(attempts=1))

    outcome = await agent.run("1")

    assert isinstance(outcome.error, ModelError)
    assert outcome.error.kind == "network"
    assert format_messages(session.head) == ["user: 1", "assistant: This is not"]
    assert (await agent.continue_()).text == "Whole."
    assert list_request_messages(server) == [SYSTEM, build_user("1")]


async def test_a_request_refused_as_too_long_is_compacted_and_sent_again(server: FakeServer, session: Session) -> None:
    server.add("One.", overflow(), "All that was said.", "Two.")
    agent = create_agent(session, server)
    await agent.run("1")

    outcome = await agent.run("2")

    assert outcome.text == "Two."
    sent = list_request_messages(server)
    assert sent[1]["content"].startswith(COMPACTION_LEAD)
    assert sent[2:] == [build_user("2")]


async def test_a_failure_by_a_wrong_api_key_is_written(server: FakeServer, session: Session) -> None:
    server.add(fail(401, "no such key"))

    outcome = await create_agent(session, server).run("1")

    assert isinstance(outcome.error, ModelError)
    assert outcome.error.kind == "auth"
    assert get_last_message(session.head)["stopReason"] == "error"


# A crash

CHILD = """
import asyncio, sys
import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.tools import builtin_tools
from sessiontree.model.scripted import Delay, ScriptedModel
from sessiontree.core.messages import ToolCall

WHERE = {
    "before the answer": [[Delay(60)]],
    "in the answer": [["Half of it ", Delay(60)]],
    "in a tool": [[ToolCall("c1", "ls", {}), ToolCall("c2", "bash", {"command": "sleep 60.5"})]],
    "after a tool": [[ToolCall("c1", "ls", {})], [Delay(60)]],
}
model = ScriptedModel(WHERE[sys.argv[2]])
agent = Agent(st.open(sys.argv[1]).head, model, builtin_tools(), system="", cwd=sys.argv[3])
agent.hooks.listen(lambda event: print(type(event).__name__, flush=True))
asyncio.run(agent.run("Go"))
"""


@pytest.mark.parametrize(
    ("moment", "sign", "kept"),
    [
        ("before the answer", "BeforeRequest", ["user: Go"]),
        ("in the answer", "MessageDelta", ["user: Go"]),
        ("in a tool", "ToolStart ToolEnd ToolStart", ["user: Go", "assistant: ", "toolResult: . is empty."]),
        ("after a tool", "TurnEnd TurnStart", ["user: Go", "assistant: ", "toolResult: . is empty."]),
    ],
)
async def test_a_session_can_be_continued_after_its_process_was_killed(
    tmp_path: Path, server: FakeServer, moment: str, sign: str, kept: list[str]
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    file = tmp_path / "s.jsonl"
    st.create(file=file, cwd=folder).close()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(file), moment, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    for name in sign.split():
        while child.stdout.readline().strip() != name:
            assert child.poll() is None
    time.sleep(0.1)
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    child.stdout.close()

    session = st.open(file)
    assert format_messages(session.head) == kept

    server.add("Again.")
    outcome = await create_agent(session, server).continue_()

    assert outcome.text == "Again."
    contents = [message["content"] for message in list_request_messages(server)]
    assert (NO_RESULT in contents) == (moment == "in a tool")
    _end_orphans("60.5")


def _end_orphans(mark: str) -> None:
    """End the command of a tool whose agent was killed; it would keep running."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words:
            os.kill(int(pid), signal.SIGKILL)
