"""The working folder of tools: the current folder, or the session's folder if the user confirms it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.factory import AgentOptions
from sessiontree.agent.system_prompt import build_coding_prompt
from sessiontree.agent.tools import builtin_tools
from sessiontree.cli.app import run
from sessiontree.core.messages import ToolCall
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Event, Notice
from sessiontree.model.scripted import ScriptedModel
from sessiontree.slash_commands.controller import SessionController
from tests.cli.test_branch_ops import server as server
from tests.model.fake_server import FakeServer, calls
from tests.slash_commands.conftest import ScriptedModels, ScriptedUser

PWD = ToolCall("c1", "bash", {"command": "pwd"})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "AGENTS.md").write_text("Rules of here.")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.stdin", None)
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "AGENTS.md").write_text("Rules of there.")
    return folder


def list_results(session: st.Session) -> list[str]:
    messages = [json.loads(entry.raw)["message"] for entry in session.tree if entry.type == "message"]
    return [message["content"][0]["text"] for message in messages if message["role"] == "toolResult"]


def build_system(agent: Agent) -> str:
    return "\n".join(part.text for part in agent.build_system_parts())


async def test_an_agent_runs_tools_in_the_current_folder(here: Path, there: Path) -> None:
    session = st.create(cwd=there)
    agent = Agent(session.head, ScriptedModel([PWD, "Done."]), builtin_tools("bash"), system=build_coding_prompt)

    await agent.run("Go")

    assert list_results(session) == [str(here)]
    assert "Rules of here." in build_system(agent)
    assert "Rules of there." not in build_system(agent)


@pytest.mark.parametrize("confirmed", [True, False])
async def test_the_user_is_asked_whether_tools_may_use_the_session_folder(
    here: Path, there: Path, confirmed: bool
) -> None:
    person = ScriptedUser("yes" if confirmed else "no")
    session = st.create(cwd=there)
    controller = SessionController(
        session,
        model=ScriptedModel([PWD, "Done."]),
        models=ScriptedModels(),
        options=AgentOptions(tools=builtin_tools("bash")),
        ui=person,
    )

    await controller.start()
    await controller.submit("Go")

    assert list_results(session) == [str(there if confirmed else here)]
    assert ("Rules of there." in build_system(controller.agent)) is confirmed
    ((title, [text]),) = person.questions
    assert title == "Run tools in the session's folder?"
    assert text == f"The session belongs to {there}. You are in {here}."


async def test_the_current_folder_and_missing_folders_need_no_confirmation(here: Path, there: Path) -> None:
    for folder in (here, there / "gone", there.parent / "there" / ".." / "here"):
        controller = SessionController(
            st.create(cwd=folder),
            models=ScriptedModels(),
            options=AgentOptions(tools=builtin_tools()),
            ui=ScriptedUser(),
        )
        await controller.start()

        assert controller.cwd == str(here)


async def test_the_question_is_asked_once_for_each_session(here: Path, there: Path) -> None:
    other = st.create("other", cwd=there)
    other.append(st.user("Hello"))
    other.close()
    own = st.create("own", cwd=here)
    own.append(st.user("Hello"))
    person = ScriptedUser("yes")
    controller = SessionController(
        own,
        model=ScriptedModel([PWD, "Done."]),
        models=ScriptedModels(),
        options=AgentOptions(tools=builtin_tools("bash")),
        ui=person,
    )
    await controller.start()
    assert person.questions == []

    await controller.open_session(other.location)
    assert controller.cwd == controller.agent.cwd == str(there)
    await controller.open_session(own.location)
    assert controller.cwd == controller.agent.cwd == str(here)
    await controller.open_session(other.location)
    assert controller.cwd == controller.agent.cwd == str(there)
    await controller.submit("Go")

    assert len(person.questions) == 1
    assert list_results(controller.session) == [str(there)]


async def test_a_folder_name_cannot_inject_text_into_the_dialog(here: Path, there: Path) -> None:
    odd = there / "a\n\nThis was checked.\x1b[2J"
    odd.mkdir()
    person = ScriptedUser("no")
    controller = SessionController(st.create(cwd=odd), models=ScriptedModels(), ui=person)

    await controller.start()

    ((_, [text]),) = person.questions
    assert "\n" not in text
    assert "\x1b" not in text


async def test_without_a_user_the_folder_is_reported(here: Path, there: Path) -> None:
    told: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Notice):
            told.append(event.text)

    hooks = Hooks()
    hooks.listen(listen)
    controller = SessionController(
        st.create(cwd=there), models=ScriptedModels(), options=AgentOptions(tools=builtin_tools()), hooks=hooks
    )
    await controller.start()

    assert controller.cwd == str(here)
    (text,) = told
    assert text.startswith(f"tools run in {here}, not in the session's folder {there}; use --cwd")


def test_a_prompt_runs_tools_in_the_current_folder_and_reports_it(
    here: Path, there: Path, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with st.create("talk", cwd=there) as session:
        session.append(st.user("Hello"))
    server.add(calls(("c1", "bash", {"command": "pwd"})), "Done.")

    assert run(["-p", "--allow", "bash", "--session", session.location, "Where?"]) == 0

    assert f"tools run in {here}, not in the session's folder {there}" in capsys.readouterr().err
    assert list_results(st.open(session.location)) == [str(here)]


def test_a_prompt_runs_tools_in_the_folder_that_the_user_names(
    here: Path, there: Path, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with st.create("talk", cwd=there) as session:
        session.append(st.user("Hello"))
    server.add(calls(("c1", "bash", {"command": "pwd"})), "Done.")

    assert run(["-p", "--allow", "bash", "--session", session.location, "--cwd", str(there), "Where?"]) == 0

    assert "tools run in" not in capsys.readouterr().err
    assert list_results(st.open(session.location)) == [str(there)]
