"""The agent as a program uses it: what it takes, and what a run returns."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

import sessiontree as st
from sessiontree.agent.loop import RunStopped
from sessiontree.agent.system_prompt import SystemPart
from sessiontree.core.message_views import TokenUsage
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.bus import HookContext, Hooks
from sessiontree.hooks.events import BeforeMessage, BeforeRequest, Input, MessageDelta
from sessiontree.model.base import ModelError
from sessiontree.model.scripted import Delay, ScriptedModel, ScriptedUsage
from tests.agent.conftest import format_messages, get_scripted_model


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CALL = st.ToolCall("c1", "add", {"a": 2, "b": 3})


async def collect(events: Any) -> list[Any]:
    return [event async for event in events]


# What an agent takes


def test_an_agent_without_a_session_works_in_memory() -> None:
    agent = st.Agent(model=ScriptedModel(["Hello."]))

    assert agent.run_sync("Hi").text == "Hello."
    assert agent.session.file is None
    assert format_messages(agent.branch) == ["user: Hi", "assistant: Hello."]


def test_an_agent_on_a_session_works_on_its_current_branch() -> None:
    session = st.memory()
    session.create_branch("side")

    assert st.Agent(session, ScriptedModel([])).branch == session.head
    assert st.Agent(session.branch("main"), ScriptedModel([])).branch == session.branch("main")


def test_functions_and_tools_can_be_mixed() -> None:
    agent = st.Agent(model=ScriptedModel([CALL, "It is 5."]), tools=[add, *st.builtin_tools("read")])

    assert list(agent.tools) == ["add", "read"]
    assert agent.run_sync("2 + 3?").text == "It is 5."
    assert format_messages(agent.branch)[2] == "toolResult: 5"


def test_tools_may_be_none() -> None:
    assert st.Agent(model=ScriptedModel("Hello."), tools=None).run_sync("Hi").text == "Hello."


def test_a_model_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")

    assert st.Agent(model="openai:gpt-5.5").model.info.name == "openai:gpt-5.5"


def test_a_model_without_its_key_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(st.NoModel, match="OPENAI_API_KEY is not set"):
        st.Agent(model="openai:gpt-5.5")


def test_the_text_of_an_agent_shows_its_branch_model_and_tools() -> None:
    assert "main" in repr(st.Agent(model=ScriptedModel([]), tools=[add]))
    assert repr(st.Agent(model=ScriptedModel([]), tools=[add])).endswith("'scripted:scripted', tools=['add'])")


async def test_a_prompt_can_have_images() -> None:
    agent = st.Agent(model=ScriptedModel(["A dot."]))
    agent.hooks.on("input", lambda event, context: {"text": "What is this?"})

    await agent.run("Look", [st.Image(b"png", "image/png")])

    assert get_scripted_model(agent).requests[0].messages[0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "data": "cG5n", "mimeType": "image/png"},
    ]


# The system prompt


async def test_an_agent_of_a_program_has_no_system_prompt() -> None:
    agent = st.Agent(model=ScriptedModel(["Yes."]), tools=[add])
    await agent.run("Go")

    assert get_scripted_model(agent).requests[0].system == ""


async def test_a_front_end_sets_the_system_prompt_on_its_hooks() -> None:
    def build(cwd: str, tools: Any) -> list[SystemPart]:
        return [SystemPart(name="folder", text=f"{cwd}: {[tool.name for tool in tools]}")]

    hooks = Hooks(HookContext(build_system_prompt=build))
    agent = st.Agent(None, ScriptedModel(["Yes."]), [add], hooks, cwd="/there")
    await agent.run("Go")
    own = st.Agent(None, ScriptedModel(["Yes."]), [add], hooks, system="Be brief.")
    await own.run("Go")

    assert get_scripted_model(agent).requests[0].system == "/there: ['add']"
    assert get_scripted_model(own).requests[0].system == "Be brief."


# The result


def test_usage_and_cost_are_summed_over_the_run() -> None:
    usage = ScriptedUsage({"input": 10, "output": 2, "cacheRead": 3, "cost": {"total": 0.25}})
    agent = st.Agent(model=ScriptedModel([[CALL, usage], ["It is 5.", usage]]), tools=[add])

    result = agent.run_sync("2 + 3?")

    assert result.usage == TokenUsage(input=20, output=4, cache_read=6, total=30, cost=0.5)
    assert result.cost == 0.5
    assert agent.session.head.append(st.user("x"))


def test_a_run_that_succeeds_returns_its_text_as_output() -> None:
    result = st.Agent(model=ScriptedModel(["Hello."])).run_sync("Hi")

    assert result.output == "Hello."
    assert result.raise_for_error() is result


def test_a_run_that_fails_raises_its_error_on_demand() -> None:
    failure = ModelError("scripted:scripted", "auth", "the key is not valid")
    result = st.Agent(model=ScriptedModel([failure])).run_sync("Hi")

    assert not result.ok
    with pytest.raises(ModelError, match="the key is not valid"):
        result.raise_for_error()
    with pytest.raises(ModelError, match="the key is not valid"):
        result.output  # noqa: B018


@pytest.mark.parametrize("event", [Input, BeforeMessage, BeforeRequest])
def test_a_handler_that_cancels_is_named_in_the_result(event: type[Any]) -> None:
    def refuse(event: Any, context: Any) -> dict[str, bool]:
        return {"cancel": True}

    by_function, by_extension = st.Agent(model=ScriptedModel(["Yes."])), st.Agent(model=ScriptedModel(["Yes."]))
    by_function.hooks.on(event, refuse)
    by_extension.hooks.on(event, refuse, source="guard.py")

    result = by_function.run_sync("Hi")

    assert (result.cancelled, result.cancelled_by) == (True, "refuse")
    assert by_extension.run_sync("Hi").cancelled_by == "guard.py"
    with pytest.raises(RunStopped, match=r"^the run was cancelled by refuse$"):
        result.raise_for_error()


async def test_an_aborted_run_is_marked_as_aborted() -> None:
    agent = st.Agent(model=ScriptedModel([["Half", Delay(30)]]))
    agent.hooks.listen(lambda event: agent.abort() if isinstance(event, MessageDelta) else None)

    result = await agent.run("Go")

    assert result.stop_text == "the run was aborted"
    with pytest.raises(RunStopped, match="aborted"):
        result.raise_for_error()


# Sync and async


async def test_run_sync_in_an_event_loop_names_the_call_to_await() -> None:
    with pytest.raises(InvalidOperation, match=r"write `await agent.run\(…\)`"):
        st.Agent(model=ScriptedModel(["Yes."])).run_sync("Go")


def test_run_sync_can_be_called_again() -> None:
    agent = st.Agent(model=ScriptedModel(["One.", "Two."]))

    assert [agent.run_sync("1").text, agent.run_sync("2").text] == ["One.", "Two."]


def test_a_script_of_five_lines_needs_no_other_import() -> None:
    script = """import sessiontree as st
def add(a: int, b: int) -> int: return a + b
model = st.ScriptedModel([st.ToolCall("c1", "add", {"a": 2, "b": 3}), "It is 5."])
agent = st.Agent(model=model, tools=[add])
print(agent.run_sync("What is 2 + 3?").text)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("It is 5.\n", "")


def test_a_tool_without_pydantic_types_does_not_import_pydantic() -> None:
    script = """import sys, sessiontree as st
def add(a: int, b: int) -> int: return a + b
st.Agent(model=st.ScriptedModel(["Yes."]), tools=[add]).run_sync("Go", output=int)
print("pydantic" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


def test_an_agent_runs_in_a_route_of_fastapi() -> None:
    app = FastAPI()

    @app.get("/ask")
    async def ask(question: str) -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        async with st.Agent(model=ScriptedModel([CALL, "It is 5."]), tools=[add]) as agent:
            return {"answer": (await agent.run(question)).text}

    with TestClient(app) as client:
        answers = [client.get("/ask", params={"question": "2 + 3?"}).json() for _ in range(2)]

    assert answers == [{"answer": "It is 5."}] * 2


async def test_leaving_the_block_of_an_agent_aborts_its_run_and_leaves_no_task() -> None:
    started = asyncio.Event()
    async with st.Agent(model=ScriptedModel([["Half", Delay(30)]])) as agent:
        agent.hooks.listen(lambda event: started.set() if isinstance(event, MessageDelta) else None)
        running = asyncio.create_task(agent.run("Go"))
        await started.wait()

    assert (await running).aborted
    assert not agent.running
    assert asyncio.all_tasks() == {asyncio.current_task()}


# Events


async def test_events_end_when_a_handler_cancels_the_run() -> None:
    agent = st.Agent(model=ScriptedModel(["Yes."]))
    agent.hooks.on("input", lambda event, context: {"cancel": True})
    events = agent.events()
    running = asyncio.create_task(agent.run("Go"))

    assert [type(event).__name__ for event in await asyncio.wait_for(collect(events), 30)] == ["Input"]
    assert (await running).cancelled


async def test_a_reader_that_leaves_early_leaves_no_task_and_no_listener() -> None:
    agent = st.Agent(model=ScriptedModel(["One two three.", "Four."]))
    running = asyncio.create_task(agent.run("Go"))
    async for _ in agent.events():
        break
    await running
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert agent._event_queues == []  # pyright: ignore[reportPrivateUsage]
    assert agent.hooks._listeners == []  # pyright: ignore[reportPrivateUsage]


async def test_a_reader_that_is_cancelled_leaves_no_task_and_no_listener() -> None:
    agent = st.Agent(model=ScriptedModel(["One."]))
    reading = asyncio.create_task(collect(agent.events()))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert agent.hooks._listeners == []  # pyright: ignore[reportPrivateUsage]
