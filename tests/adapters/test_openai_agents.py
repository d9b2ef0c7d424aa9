"""One suite for `SQLiteSession` of the OpenAI Agents SDK and for ours, then what only ours can do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    Session,
    SessionSettings,
    SQLiteSession,
    function_tool,
)
from agents.exceptions import UserError
from agents.extensions.memory import AdvancedSQLiteSession
from agents.items import TResponseInputItem
from agents.models.openai_responses import OpenAIResponsesModel
from agents.usage import Usage
from openai import AsyncOpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

import sessiontree as st
from sessiontree.adapters.openai_agents import TreeSession
from tests.model.fake_server import FakeServer, calls
from tests.test_docs import DOCS, read_blocks

OpenSession = Callable[..., Any]
QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture(params=["sqlite", "tree"])
def open_session(request: pytest.FixtureRequest, tmp_path: Path, folder: Path) -> OpenSession:
    """Return a function that opens a session by its id."""
    if request.param == "sqlite":
        return lambda id="s", **options: SQLiteSession(id, tmp_path / "sessions.db", **options)
    return lambda id="s", **options: TreeSession(id, folder, **options)


def user(text: str) -> TResponseInputItem:
    return {"role": "user", "content": text}


def reply(text: str) -> TResponseInputItem:
    return {"role": "assistant", "content": text}


def call(id: str, arguments: str = '{"city": "Ulm"}') -> Any:
    return {"type": "function_call", "call_id": id, "name": "weather", "arguments": arguments, "status": "completed"}


def output(id: str, text: str = "Rain") -> Any:
    return {"type": "function_call_output", "call_id": id, "output": text}


ITEMS: list[Any] = [
    user("Hello"),
    {"role": "user", "content": "With a type", "type": "message"},
    {"role": "developer", "content": "Be brief"},
    {"role": "system", "content": [{"type": "input_text", "text": "Be polite"}]},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Look"},
            {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
            {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"},
            {"type": "input_file", "file_id": "file_1"},
        ],
    },
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}], "encrypted_content": "e"},
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [
            {"type": "output_text", "text": "I look. 😀", "annotations": [], "logprobs": []},
            {"type": "refusal", "refusal": "No"},
        ],
    },
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"id": "fc_1", **call("c1")},
    call("c2", ""),
    call("c3", "{not json"),
    {"type": "custom_tool_call", "call_id": "c4", "name": "patch", "input": "*** Begin"},
    output("c1"),
    output("c2", ""),
    {**output("c3"), "output": [{"type": "input_text", "text": "one part"}]},
    {"type": "custom_tool_call_output", "call_id": "c4", "output": "done"},
    {"type": "computer_call_output", "call_id": "c5", "output": {"type": "computer_screenshot", "image_url": "x"}},
    {"type": "item_reference", "id": "msg_0"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_audio", "data": "AA=="}]},
    {"role": "tool", "content": "not in this API"},
    {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
    reply("Done"),
]
"""Every kind of item, in the order of a run."""


class ScriptedModel(Model):
    """A model that returns the next answer of a list, and remembers its input."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.inputs: list[Any] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        self.inputs.append(input)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return ModelResponse(
            output=answer if isinstance(answer, list) else [build_message(answer)],
            usage=Usage(requests=1, input_tokens=1000, output_tokens=100, total_tokens=1100),
            response_id=None,
        )

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def build_message(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
    return ResponseOutputMessage(id="msg_1", content=[part], role="assistant", status="completed", type="message")


def build_calls(*cities: str) -> list[Any]:
    return [
        ResponseFunctionToolCall(
            call_id=f"call-{city}", name="weather", arguments=f'{{"city": "{city}"}}', type="function_call"
        )
        for city in cities
    ]


@function_tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"Rain in {city}"


# Both sessions


async def test_a_new_session_is_empty(open_session: OpenSession) -> None:
    session = open_session()

    assert isinstance(session, Session)
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.clear_session()
    await session.add_items([])
    assert await session.get_items() == []


async def test_items_come_back_equal_and_in_order(open_session: OpenSession) -> None:
    session = open_session()

    await session.add_items(ITEMS)

    assert await session.get_items() == ITEMS
    assert await open_session().get_items() == ITEMS


async def test_items_that_are_added_one_by_one_come_back_equal(open_session: OpenSession) -> None:
    session = open_session()

    for item in ITEMS:
        await session.add_items([item])

    assert await session.get_items() == ITEMS


async def test_items_are_popped_one_by_one(open_session: OpenSession) -> None:
    session = open_session()
    await session.add_items(ITEMS)

    popped = [await session.pop_item() for _ in ITEMS]

    assert popped == ITEMS[::-1]
    assert await session.pop_item() is None


async def test_a_session_continues_after_items_were_popped(open_session: OpenSession) -> None:
    session = open_session()
    await session.add_items([user("a"), call("c1"), call("c2"), output("c1"), output("c2")])

    assert [await session.pop_item() for _ in range(3)] == [output("c2"), output("c1"), call("c2")]
    await session.add_items([output("c1"), reply("b")])

    assert await session.get_items() == [user("a"), call("c1"), output("c1"), reply("b")]


@pytest.mark.parametrize(("limit", "count"), [(None, 22), (1, 1), (3, 3), (9, 9), (99, 22), (0, 0), (-1, 22)])
async def test_a_limit_returns_the_last_items(open_session: OpenSession, limit: int | None, count: int) -> None:
    session = open_session()
    await session.add_items(ITEMS)

    assert await session.get_items(limit=limit) == ITEMS[len(ITEMS) - count :]


async def test_the_settings_have_a_limit(open_session: OpenSession) -> None:
    await open_session().add_items(ITEMS)

    for settings in (SessionSettings(limit=2), {"limit": 2}):
        session = open_session(session_settings=settings)
        assert await session.get_items() == ITEMS[-2:]
        assert await session.get_items(limit=3) == ITEMS[-3:]


async def test_a_cleared_session_starts_again(open_session: OpenSession) -> None:
    session = open_session()
    await session.add_items([user("a"), reply("b")])

    await session.clear_session()
    assert await session.get_items() == []
    await session.add_items([user("c")])

    assert await open_session().get_items() == [user("c")]


async def test_sessions_are_separate(open_session: OpenSession) -> None:
    one, two = open_session("one"), open_session("two")
    await one.add_items([user("a")])
    await two.add_items([user("b")])

    await one.clear_session()

    assert await two.get_items() == [user("b")]


async def test_what_the_caller_changes_later_is_not_stored(open_session: OpenSession) -> None:
    session, item = open_session(), {"role": "user", "content": [{"type": "input_text", "text": "a"}]}
    await session.add_items([item])
    item["content"][0]["text"] = "changed"  # type: ignore[index]
    (await session.get_items())[0]["content"][0]["text"] = "changed"

    assert (await session.get_items())[0]["content"][0]["text"] == "a"


async def test_tasks_that_add_items_at_the_same_time_lose_none(open_session: OpenSession) -> None:
    sessions = [open_session(), open_session()]

    await asyncio.gather(*(sessions[n % 2].add_items([user(f"{n}"), reply(f"{n}")]) for n in range(20)))

    items = await open_session().get_items()
    assert sorted(item["content"] for item in items) == sorted(f"{n}" for n in range(20) for _ in range(2))
    assert all(items[index]["content"] == items[index + 1]["content"] for index in range(0, 40, 2))


async def test_items_that_are_not_json_are_refused_and_the_rest_stays(open_session: OpenSession) -> None:
    session = open_session()
    await session.add_items([user("a")])

    with pytest.raises((UserError, TypeError)):
        await session.add_items([user("b"), {"role": "user", "content": object()}])

    assert await session.get_items() == [user("a")]


async def test_a_closed_session_is_refused(open_session: OpenSession) -> None:
    session = open_session()
    await session.add_items([user("a")])
    session.close()
    session.close()

    for items in ([], [user("b")]):
        with pytest.raises((UserError, RuntimeError)):
            await session.add_items(items)


async def test_an_agent_remembers_earlier_runs(open_session: OpenSession) -> None:
    model = ScriptedModel("Hello Ann", "You are Ann")
    agent = Agent(name="a", model=model)

    await Runner.run(agent, "I am Ann", session=open_session(), run_config=QUIET)
    result = await Runner.run(agent, "Who am I?", session=open_session(), run_config=QUIET)

    assert result.final_output == "You are Ann"
    assert [item["role"] for item in model.inputs[1]] == ["user", "assistant", "user"]
    items = await open_session().get_items()
    assert items == result.to_input_list()


async def test_a_run_with_several_tools_is_stored(open_session: OpenSession) -> None:
    model = ScriptedModel(build_calls("Ulm", "Bonn"), "Rain", "Still rain")
    agent = Agent(name="a", model=model, tools=[weather])

    first = await Runner.run(agent, "Weather?", session=open_session(), run_config=QUIET)
    await Runner.run(agent, "And now?", session=open_session(), run_config=QUIET)

    items = await open_session().get_items()
    assert items[: len(first.to_input_list())] == first.to_input_list()
    kinds = [item.get("type", item.get("role")) for item in items]
    assert kinds[:6] == ["user", *["function_call"] * 2, *["function_call_output"] * 2, "message"]
    assert model.inputs[2] == items[:-1]


async def test_a_run_that_fails_keeps_what_was_stored(open_session: OpenSession) -> None:
    model = ScriptedModel("Hello", ValueError("broken"), "Back")
    agent = Agent(name="a", model=model)
    await Runner.run(agent, "Hi", session=open_session(), run_config=QUIET)

    with pytest.raises(ValueError, match="broken"):
        await Runner.run(agent, "Fail", session=open_session(), run_config=QUIET)
    await Runner.run(agent, "Again", session=open_session(), run_config=QUIET)

    contents = [item["content"] for item in await open_session().get_items() if item["role"] == "user"]
    assert contents == ["Hi", "Fail", "Again"]


async def test_a_streamed_run_over_http_is_stored(open_session: OpenSession) -> None:
    with FakeServer([calls(("c1", "weather", {"city": "Ulm"})), "Rain in Ulm", "Still."]) as server:
        client = AsyncOpenAI(base_url=server.url, api_key="none")
        agent = Agent(name="a", model=OpenAIResponsesModel("scripted", client), tools=[weather])
        for prompt in ("Weather?", "And now?"):
            result = Runner.run_streamed(agent, prompt, session=open_session(), run_config=QUIET)
            async for _ in result.stream_events():
                pass
        await client.close()

    items = await open_session().get_items()
    assert [item.get("role", item.get("type")) for item in items] == [
        "user",
        "function_call",
        "function_call_output",
        "assistant",
        "user",
        "assistant",
    ]
    assert server.requests[-1]["input"][:4] == items[:4]


def test_the_ten_lines_of_the_page_run(tmp_path: Path) -> None:
    blocks = read_blocks(DOCS / "adapters" / "openai-agents.md")
    code = next(block.text for block in blocks if block.language == "py")
    with FakeServer(["Rain.", "Sun."]) as server:
        env = {
            **os.environ,
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "none",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert (done.stdout, done.stderr) == ("Rain.\nSun.\n", "")
    session = st.open("trip")
    assert [entry.text for entry in session.head.path() if entry.role] == [
        "Weather in Ulm?",
        "Rain.",
        "And tomorrow?",
        "Sun.",
    ]


@pytest.mark.parametrize("mode", ["immediate", "after_turn"])
async def test_a_streamed_run_that_is_cancelled_can_be_continued(open_session: OpenSession, mode: Any) -> None:
    with FakeServer(["One two three four", "Five"]) as server:
        client = AsyncOpenAI(base_url=server.url, api_key="none")
        agent = Agent(name="a", model=OpenAIResponsesModel("scripted", client))
        result = Runner.run_streamed(agent, "Count", session=open_session(), run_config=QUIET)
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                result.cancel(mode=mode)
        again = Runner.run_streamed(agent, "Go on", session=open_session(), run_config=QUIET)
        async for _ in again.stream_events():
            pass
        await client.close()

    items = await open_session().get_items()
    asked = [item["content"] for item in items if item["role"] == "user"]
    assert asked == ["Count", "Go on"] if mode == "after_turn" else asked[-1] == "Go on"
    assert items[-1]["content"][0]["text"] == "Five"


WRITER = """
import asyncio, sys
from agents import SQLiteSession
from sessiontree.adapters.openai_agents import TreeSession

async def main(kind, path, name):
    session = TreeSession("s", path) if kind == "tree" else SQLiteSession("s", path)
    for number in range(10):
        await session.add_items([{"role": "user", "content": f"{name}{number}"}])

asyncio.run(main(*sys.argv[1:]))
"""


async def test_processes_that_add_items_lose_none(open_session: OpenSession, folder: Path) -> None:
    session = open_session()
    kind, path = ("tree", folder) if isinstance(session, TreeSession) else ("sqlite", session.db_path)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, kind, str(path), name]) for name in "ab"]
    assert [writer.wait(120) for writer in writers] == [0, 0]

    contents = [item["content"] for item in await session.get_items()]

    assert sorted(contents) == sorted(f"{name}{number}" for name in "ab" for number in range(10))
    assert [text for text in contents if text[0] == "a"] == [f"a{number}" for number in range(10)]


# Branches


async def test_a_branch_at_the_end_leaves_the_first_as_it_is(folder: Path) -> None:
    session = TreeSession("s", folder)
    await session.add_items([user("a"), reply("b")])

    await session.branch("other")
    await session.add_items([user("c")])

    assert await session.get_items() == [user("a"), reply("b"), user("c")]
    assert await session.get_items(branch="main") == [user("a"), reply("b")]
    await session.switch("main")
    await session.add_items([user("d")])
    assert await session.get_items() == [user("a"), reply("b"), user("d")]
    assert [info.name for info in await session.branches()] == ["main", "other"]
    assert await TreeSession("s", folder).get_items() == await session.get_items()
    assert (await TreeSession("s", folder, branch="other").get_items())[-1] == user("c")


async def test_advanced_sessions_branch_before_a_turn_only_and_ours_everywhere(folder: Path) -> None:
    theirs = AdvancedSQLiteSession(session_id="s", create_tables=True)
    ours = TreeSession("s", folder)
    for session in (theirs, ours):
        await session.add_items([user("a"), reply("b"), user("c"), reply("d")])

    await theirs.create_branch_from_turn(2, "again")
    await ours.branch("again", at=2)
    assert await ours.get_items() == await theirs.get_items() == [user("a"), reply("b")]
    await theirs.switch_to_branch("main")
    with pytest.raises(ValueError, match="Turn 3 does not contain"):
        await theirs.create_branch_from_turn(3, "end")  # there is no turn after the last one
    await ours.switch("main")
    await ours.branch("end")
    assert await ours.get_items() == [user("a"), reply("b"), user("c"), reply("d")]
    (turn,) = await ours.turns("C")
    await ours.branch("at an entry", at=turn.entry)
    assert await ours.get_items() == [user("a"), reply("b"), user("c")]


async def test_moves_can_be_undone(folder: Path) -> None:
    session = TreeSession("s", folder)
    items = [user("a"), call("c1"), call("c2"), output("c1")]
    await session.add_items(items)

    await session.pop_item()
    await session.pop_item()
    assert await session.get_items() == items[:2]
    await session.undo()
    await session.undo()
    assert await session.get_items() == items
    await session.clear_session()
    await session.undo()
    assert await session.get_items() == items
    await session.branch("other")
    await session.switch("main")
    await session.undo()
    await session.add_items([user("x")])
    assert await session.get_items(branch="main") == items


async def test_wrong_branches_are_errors_of_the_sdk(folder: Path) -> None:
    session = TreeSession("s", folder)
    with pytest.raises(UserError, match="no items"):
        await session.switch("main")
    await session.add_items([user("a")])

    for wrong in (
        session.switch("none"),
        session.branch("main"),
        session.branch(""),
        session.branch("x", at=2),
        session.branch("x", at=0),
        session.get_items(branch="none"),
        session.archive_branch("none"),
    ):
        with pytest.raises(UserError):
            await wrong
    assert await session.get_items() == [user("a")]


async def test_two_processes_may_work_on_two_branches(folder: Path) -> None:
    one, two = TreeSession("s", folder), TreeSession("s", folder)
    await one.add_items([user("a")])
    await one.branch("one")
    await two.branch("two", at="main")

    await asyncio.gather(*(s.add_items([user(f"{n}")]) for n in range(5) for s in (one, two)))

    for session in (one, two):
        assert [item["content"] for item in await session.get_items()] == ["a", "0", "1", "2", "3", "4"]


async def test_usage_is_stored_so_that_branches_have_a_cost(folder: Path) -> None:
    session = TreeSession("s", folder, model="gpt-4o")
    agent = Agent(name="a", model=ScriptedModel("Hi", build_calls("Ulm"), "Rain", "Short"), tools=[weather])
    await Runner.run(agent, "Hi", session=session, run_config=QUIET)
    await session.branch("long")
    await Runner.run(agent, "Weather?", session=session, run_config=QUIET)
    await session.switch("main")
    await session.branch("short")
    await Runner.run(agent, "Weather?", session=session, run_config=QUIET)

    compared = st.compare(await session.open_session(), ["long", "short"])

    assert [round(stats.cost, 6) for stats in compared.branches] == [0.007, 0.0035]
    assert [stats.tokens for stats in compared.branches] == [2200, 1100]
    assert compared.winner == "short"
    used = await session.usage(branch="long")
    assert (used.requests, used.input_tokens, used.output_tokens) == (3, 3000, 300)


async def test_what_advanced_sessions_tell_about_usage_is_here_too(folder: Path) -> None:
    theirs = AdvancedSQLiteSession(session_id="s", create_tables=True)
    ours = TreeSession("s", folder)
    for session in (theirs, ours):
        agent = Agent(name="a", model=ScriptedModel(build_calls("Ulm"), "Rain", "Still"), tools=[weather])
        for prompt in ("Weather?", "And now?"):
            result = await Runner.run(agent, prompt, session=session, run_config=QUIET)
            if isinstance(session, AdvancedSQLiteSession):
                await session.store_run_usage(result)

    stored = await theirs.get_session_usage()
    used = await ours.usage()
    assert stored is not None
    assert (stored["requests"], stored["total_tokens"]) == (used.requests, used.total_tokens) == (3, 3300)
    turns = await theirs.get_conversation_turns()
    assert [turn["content"] for turn in turns] == [turn.text for turn in await ours.turns()]
    assert await theirs.find_turns_by_content("now") != []
    assert [turn.number for turn in await ours.turns("now")] == [2]


# The session


async def test_a_session_is_one_that_all_commands_read(folder: Path) -> None:
    agent = Agent(name="a", model=ScriptedModel(build_calls("Ulm", "Bonn"), "Rain everywhere"), tools=[weather])
    await Runner.run(agent, "Weather?", session=TreeSession("trip", folder), run_config=QUIET)

    (summary,) = st.sessions(dir=folder)
    session = st.open(summary.file)

    assert (summary.name, summary.first_message) == ("trip", "Weather?")
    messages = session.context().to_llm()
    assert [message["role"] for message in messages] == ["user", "assistant", "toolResult", "toolResult", "assistant"]
    assert [block["type"] for block in messages[1]["content"]] == ["toolCall", "toolCall"]
    assert messages[2]["toolName"] == "weather"
    assert len(st.search("everywhere", dir=folder)) == 1
    assert "Rain in Bonn" in session.export("md").content.decode()
    assert session.problems == []


async def test_a_result_finds_its_call_in_an_earlier_batch(folder: Path) -> None:
    session = TreeSession("s", folder)
    await session.add_items([user("a"), {"id": "fc_1", **call("c1")}])
    await session.add_items([output("c1")])

    stored = (await session.open_session()).context().to_llm()

    assert [message["role"] for message in stored] == ["user", "assistant", "toolResult"]
    assert stored[2]["toolName"] == "weather"
    assert stored[2]["content"][0]["text"] == "Rain"
    assert (await session.get_items())[-1] == output("c1")


async def test_a_result_finds_its_call_before_other_calls(folder: Path) -> None:
    session = TreeSession("s", folder)
    for item in (call("c1"), user("a"), {**call("c2"), "name": "time"}, output("c1")):
        await session.add_items([item])

    assert (await session.open_session()).context().messages[-1]["toolName"] == "weather"


async def test_messages_and_compactions_of_other_programs_are_items(folder: Path) -> None:
    session = TreeSession("s", folder)
    await session.add_items([user("a"), reply("b"), user("c")])
    other = st.open(st.sessions(dir=folder)[0].file)
    kept = other.append(st.assistant("from the app"))
    assert (await session.get_items())[-1] == reply("from the app")

    other.append(st.Compaction(summary="all of it", first_kept=kept.id))

    items = await session.get_items()
    assert len(items) == 2
    assert "all of it" in str(items[0])


@pytest.mark.parametrize("kept", [0, 300, 8 << 20])
async def test_items_are_equal_and_own_objects_however_many_are_kept(
    kept: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiontree.adapters.openai_agents.MAX_KEPT", kept)
    session = TreeSession("s", folder)
    items = [*ITEMS, user("a big number"), {**user("x"), "size": 10**30}, user("last")]
    await session.add_items(items)

    for _ in range(3):
        found: list[Any] = await session.get_items()
        assert found == items
        assert await session.get_items(limit=3) == items[-3:]
        for item in found:
            item.clear()


async def test_an_edited_message_is_read_as_it_is_now(folder: Path) -> None:
    session = TreeSession("s", folder)
    await session.add_items([user("a"), reply("b")])
    assert await session.get_items() == [user("a"), reply("b")]
    other = st.open(st.sessions(dir=folder)[0].file)
    first = other.head.path()[-2]

    other.append(st.ContextEdit(target=first.id, replacement={"content": "A"}))

    assert "A" in str((await session.get_items())[0])


async def test_nothing_is_created_before_the_first_item(folder: Path) -> None:
    session = TreeSession("s", folder)
    await session.get_items()
    await session.pop_item()
    await session.clear_session()

    for rubbish in (["text"], [None], [{}], [{"content": "x"}], [{"type": 3}], [{1: 2}], [[user("a")]], "text"):
        with pytest.raises(UserError):
            await session.add_items(rubbish)  # type: ignore[arg-type]

    assert not folder.exists()


@pytest.mark.parametrize("id", ["", " s", "a\nb"])
async def test_an_id_that_is_no_name_is_refused(folder: Path, id: str) -> None:
    with pytest.raises(UserError, match="cannot be the name of a session"):
        await TreeSession(id, folder).add_items([user("a")])


async def test_an_id_that_is_no_text_is_refused_and_finds_no_session_without_a_name(folder: Path) -> None:
    with st.create(dir=folder) as unnamed:
        unnamed.append(st.user("not yours"))

    for id in (None, 5):
        session: Any = TreeSession(id, folder)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="the name of a session is text, not"):
            await session.get_items()


async def test_an_output_of_50_megabytes_is_stored_and_does_not_block_the_event_loop(folder: Path) -> None:
    session = TreeSession("s", folder)
    items = [user("a"), call("c1"), output("c1", "x" * 50_000_000)]

    waits = 0
    adding = asyncio.create_task(session.add_items(items))
    while not adding.done():
        await asyncio.sleep(0.005)
        waits += 1
    await adding

    assert waits > 2
    assert await session.get_items() == items
    assert Path(st.sessions(dir=folder)[0].file).stat().st_size < 50_100_000
    assert await session.pop_item() == items[-1]


async def test_a_cancelled_call_is_whole_and_the_next_one_sees_it(folder: Path) -> None:
    session = TreeSession("s", folder)
    await session.add_items([user("first")])
    for number in range(10):
        adding = asyncio.create_task(session.add_items([user(f"{number}"), reply(f"{number}")]))
        await asyncio.sleep(0)
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)

    items = await session.get_items()
    assert len(items) % 2 == 1
    assert all(items[index]["content"] == items[index + 1]["content"] for index in range(1, len(items), 2))


async def test_a_database_holds_sessions_too(database: str) -> None:
    session = TreeSession("s", database)
    await session.add_items([user("a"), reply("b")])
    await session.branch("other", at=1)
    await session.add_items([user("c")])

    again = TreeSession("s", database)
    assert await again.get_items() == [user("c")]
    await again.switch("main")
    assert await again.pop_item() == reply("b")
    assert await again.get_items() == [user("a")]
    again.close()
    session.close()


def test_one_session_works_in_several_event_loops(folder: Path) -> None:
    session = TreeSession("s", folder)
    agent = Agent(name="a", model=ScriptedModel("one", "two"))

    for prompt in ("a", "b"):
        Runner.run_sync(agent, prompt, session=session, run_config=QUIET)

    assert len(asyncio.run(session.get_items())) == 4
