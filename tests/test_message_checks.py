"""Every way into a session checks messages in the same place: known forms are converted, others refused.

Importers convert the same forms, and keep what is refused as it is, unsent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.cli.app import run
from sessiontree.compat.pi import SessionManager
from sessiontree.core.context import build_context
from sessiontree.core.message_input import check_message
from sessiontree.export.snapshot import read_snapshot
from sessiontree.extensions.api import ExtensionApi, UiRegistry
from sessiontree.hooks.events import BeforeMessage, Notice
from sessiontree.interop.base import REFUSED_MESSAGE, ConversationBuilder
from sessiontree.slash_commands.controller import SessionController
from tests.server.conftest import ServerEnv, open_client
from tests.slash_commands.conftest import ScriptedModels, take_agent_options

Json = dict[str, Any]
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}

CONVERTED: dict[str, Json] = {
    "a list of strings": {"role": "user", "content": ["hi"]},
    "tool calls beside null": {"role": "assistant", "content": None, "tool_calls": [CALL]},
    "a refusal beside null": {"role": "assistant", "content": None, "refusal": "No."},
    "a result of OpenAI": {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
    "an image with its data": {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}],
    },
    "the usage of OpenAI": {
        "role": "assistant",
        "content": "hi",
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    },
}
REFUSED: dict[str, tuple[Json, str]] = {
    "a tool without a call": (
        {"role": "tool", "content": "a.txt"},
        'a message with the role "tool" needs the "tool_call_id" that it answers; use st.tool_result(call, …)',
    ),
    "an image by its address": (
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]},
        "an image must be stored with its data, not by address; the content of a user message is text, or a list of "
        "st.Text(text) and st.Image(data, media_type)",
    ),
    "an unknown role": (
        {"role": "critic", "content": "hi"},
        'a message has the unknown role "critic"; roles: user, assistant, toolResult, system',
    ),
    "an unknown block": (
        {"role": "user", "content": [{"type": "video", "data": "x"}]},
        'blocks of type "video" are not sent to models; the content of a user message is text, or a list of '
        "st.Text(text) and st.Image(data, media_type)",
    ),
    "an ambiguous usage": (
        {"role": "assistant", "content": "hi", "usage": {"tokens": 5}},
        'usage has an ambiguous key "tokens"; the form is {"input": 10, "output": 5, "cost": 0.01}',
    ),
    "a usage that is text": (
        {"role": "assistant", "content": "hi", "usage": "5 tokens"},
        'usage must be an object such as {"input": 10, "output": 5, "cost": 0.01}, not str',
    ),
}

PYTHON: dict[str, Callable[[st.Session, st.Message], Any]] = {
    "session.append": lambda session, body: session.append(body),
    "append with fields": lambda session, body: session.append(body, extra={"x": 1}),
    "append below a place": lambda session, body: session.append(body, parent="root", branch=None),
    "branch.append": lambda session, body: session.head.append(body),
    "extend": lambda session, body: session.extend([st.user("first"), body]),
    "extend by a list of one": lambda session, body: session.extend([body]),
    "an item with an id": lambda session, body: session.extend([st.Item(body, id="mine")]),
    "an item with a time": lambda session, body: session.extend([st.Item(body, timestamp="2026-03-01T09:30:00.000Z")]),
    "append_at_head": lambda session, body: session.append_at_head(lambda: st.Item(body)),
    "the facade of pi": lambda session, body: SessionManager(session).append_message(body.message),
    "AsyncSession.append": lambda session, body: st.run_sync(st.AsyncSession(session).append(body)),
}


def store(session: st.Session, write: Callable[[st.Session, st.Message], Any], message: Json) -> Json:
    """Write a message, and return it as it is stored."""
    write(session, st.Message(message))
    return find_last_message(session)


def find_last_message(session: st.Session) -> Json:
    entry = list(session.tree.entries)[-1]
    assert isinstance(entry.body, st.Message)
    return entry.body.message


def assert_stored(stored: Json, given: Json) -> None:
    """Assert that a message is stored as `check_message` converts it; further fields are those that peers expect."""
    expected = check_message(given)
    usage = expected.pop("usage", None)
    assert stored["content"] == (
        [{"type": "text", "text": expected["content"]}]
        if isinstance(expected["content"], str) and expected["role"] != "user"
        else expected["content"]
    )
    assert {key: stored[key] for key in expected if key != "content"} == {
        key: value for key, value in expected.items() if key != "content"
    }
    assert usage is None or {key: stored["usage"][key] for key in usage} == usage


@pytest.fixture
def session(tmp_path: Path) -> st.Session:
    session = st.create("ways", file=tmp_path / "ways.jsonl", durability="none")
    session.append(st.assistant([st.ToolCall("c1", "read", {"path": "a"})]))
    return session


@pytest.mark.parametrize("way", PYTHON)
@pytest.mark.parametrize("case", CONVERTED)
def test_python_converts_a_known_form(case: str, way: str, session: st.Session) -> None:
    assert_stored(store(session, PYTHON[way], CONVERTED[case]), CONVERTED[case])


@pytest.mark.parametrize("way", PYTHON)
@pytest.mark.parametrize("case", REFUSED)
def test_python_refuses_what_a_model_never_gets(case: str, way: str, session: st.Session) -> None:
    message, sentence = REFUSED[case]
    lines = session.read_lines()

    with pytest.raises(st.InvalidOperation) as refused:
        PYTHON[way](session, st.Message(message))

    assert str(refused.value) == sentence
    assert session.read_lines() == lines


OPTIONS: dict[str, Callable[[Json], list[str]]] = {
    "--message": lambda message: ["--message", json.dumps(message)],
    "--entry": lambda message: ["--entry", json.dumps({"type": "message", "message": message})],
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("case", CONVERTED)
def test_the_command_converts_a_known_form(case: str, option: str, session: st.Session) -> None:
    assert run(["append", str(session.file), *OPTIONS[option](CONVERTED[case])]) == 0

    session.refresh()
    assert_stored(find_last_message(session), CONVERTED[case])


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("case", REFUSED)
def test_the_command_refuses_what_a_model_never_gets(
    case: str, option: str, session: st.Session, capsys: pytest.CaptureFixture[str]
) -> None:
    message, sentence = REFUSED[case]
    lines = session.read_lines()

    assert run(["append", str(session.file), *OPTIONS[option](message)]) == 2

    assert f"{option}: {sentence}" in capsys.readouterr().err
    session.refresh()
    assert session.read_lines() == lines


async def test_the_server_converts_and_refuses_the_same(tmp_path: Path) -> None:
    env = ServerEnv(tmp_path)
    id = env.create_session()
    async with open_client(env.build_app(), env.owner) as client:
        for message in CONVERTED.values():
            wire = {"entry": {"type": "message", "message": message}}
            written = await client.post(f"/api/sessions/{id}/entries", json=wire)
            assert written.status_code == 201, written.text
            with st.open(id, read_only=True) as session:
                assert_stored(find_last_message(session), message)
        for message, sentence in REFUSED.values():
            wire = {"entry": {"type": "message", "message": message}}
            refused = await client.post(f"/api/sessions/{id}/entries", json=wire)
            assert (refused.status_code, refused.json()["error"]["message"]) == (422, sentence)


@pytest.mark.parametrize("case", CONVERTED)
def test_an_importer_converts_a_known_form(case: str) -> None:
    builder = ConversationBuilder("other", "id")
    builder.add(st.Message(CONVERTED[case]), id="one", parent=None)

    snapshot = read_snapshot(builder.build({"main": "one"}).lines)

    body = snapshot.tree["one"].body
    assert isinstance(body, st.Message)
    assert body.message == {**check_message(CONVERTED[case]), "timestamp": body.message["timestamp"]}


@pytest.mark.parametrize("case", REFUSED)
def test_an_importer_keeps_opaquely_what_it_cannot_convert(case: str) -> None:
    message, sentence = REFUSED[case]
    builder = ConversationBuilder("other", "id")
    builder.add(st.user("Ask"), id="one", parent=None)
    builder.add(st.Message(message), id="two", parent="one")
    builder.add(st.user("And then?"), id="three", parent="two")

    conversation = builder.build({"main": "three"})
    snapshot = read_snapshot(conversation.lines)

    kept = snapshot.tree["two"].body
    assert isinstance(kept, st.Opaque)
    assert kept.type == REFUSED_MESSAGE
    assert {key: kept.fields["message"][key] for key in message} == message
    assert [entry.id for entry in snapshot.tree.path("three")] == ["one", "two", "three"]
    context = build_context(snapshot.tree, "three")
    assert [item["content"] for item in context.messages] == ["Ask", "And then?"]
    [problem] = conversation.problems
    assert (problem.kind, problem.message) == (
        "malformed_line",
        f"message 'two' is kept but not sent to a model: {sentence}",
    )


@pytest.fixture
def api(tmp_path: Path) -> ExtensionApi:
    options: Json = {"model": st.ScriptedModel(["Hello."]), "system": ""}
    controller = SessionController(
        st.create(cwd=tmp_path), models=ScriptedModels(), options=take_agent_options(options), **options
    )
    return ExtensionApi("mine", controller, UiRegistry())


async def test_an_extension_converts_and_refuses_the_same(api: ExtensionApi) -> None:
    await api.send_message(["hi"])  # type: ignore[list-item]  # as an extension without types may
    body = list(api.session.tree.entries)[-1].body
    assert isinstance(body, st.CustomMessage)
    assert body.content == [{"type": "text", "text": "hi"}]

    message, sentence = REFUSED["an unknown block"]
    with pytest.raises(st.InvalidOperation) as refused:
        await api.send_message(message["content"])
    assert str(refused.value) == sentence


@pytest.mark.parametrize("case", [case for case in CONVERTED if CONVERTED[case]["role"] == "user"])
async def test_a_handler_can_change_a_message_to_a_known_form(case: str) -> None:
    hooks = st.Hooks()
    hooks.on("before_message", lambda event, ctx: replace_prompt(event, CONVERTED[case]))
    session = st.memory()

    await st.Agent(session, st.ScriptedModel(["Hello."]), hooks=hooks).run("Ask")

    prompt = next(entry for entry in session.head.path() if entry.role == "user")
    assert isinstance(prompt.body, st.Message)
    assert_stored(prompt.body.message, CONVERTED[case])


@pytest.mark.parametrize("case", [case for case in REFUSED if REFUSED[case][0]["role"] == "user"])
async def test_a_handlers_change_that_a_model_never_gets_is_ignored_with_a_notice(case: str) -> None:
    message, sentence = REFUSED[case]
    hooks = st.Hooks()
    hooks.on("before_message", lambda event, ctx: replace_prompt(event, message))
    notices: list[str] = []
    hooks.listen(lambda event: notices.append(event.text) if isinstance(event, Notice) else None)
    session = st.memory()

    await st.Agent(session, st.ScriptedModel(["Hello."]), hooks=hooks).run("Ask")

    assert [entry.text for entry in session.head.path() if entry.role == "user"] == ["Ask"]
    assert notices == [f"a handler's change to a message was ignored: {sentence}"]


@pytest.mark.parametrize("case", REFUSED)
async def test_a_queued_message_is_refused_before_it_waits(case: str) -> None:
    message, sentence = REFUSED[case]
    agent = st.Agent(st.memory(), st.ScriptedModel(["Hello."]))

    with pytest.raises(st.InvalidOperation) as refused:
        await agent.queue_for_next_turn(st.Message(message))

    assert str(refused.value) == sentence
    assert (await agent.run("Ask")).ok


def replace_prompt(event: BeforeMessage, message: Json) -> Json | None:
    return {"message": message} if event.message["role"] == "user" else None


def test_the_usage_of_a_message_may_be_used_for_another() -> None:
    usage = st.assistant("x", usage={"input": 10, "output": 5, "cacheRead": 2, "cost": 0.01}).message["usage"]
    entry = st.memory().append(st.assistant("x", usage=usage))
    assert entry.usage is not None

    assert st.assistant("y", usage=entry.usage).message["usage"] == usage
    assert st.assistant("y", usage=st.TokenUsage(input=1, output=2)).message["usage"]["totalTokens"] == 3
