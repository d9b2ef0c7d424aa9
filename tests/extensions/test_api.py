"""Every function of the extension API."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.entries import BranchSummary, CustomMessage
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.extensions.api import ExtensionApi, UiRegistry
from sessiontree.extensions.project_trust import ExtensionError
from sessiontree.hooks.events import Notice, TurnEnd
from sessiontree.slash_commands.controller import SessionController
from tests.slash_commands.conftest import (
    ScriptedModels,
    ScriptedUser,
    make_scripted_model,
    record_events,
    run,
    take_agent_options,
    talk,
)


@pytest.fixture
def api(tmp_path: Path) -> ExtensionApi:
    return ExtensionApi("mine", make_controller(tmp_path), UiRegistry())


def make_controller(folder: Path, *answers: Any, **options: Any) -> SessionController:
    options.setdefault("model", make_scripted_model("usual", *answers))
    options["system"] = ""
    return SessionController(
        st.create(cwd=folder), models=ScriptedModels(), options=take_agent_options(options), **options
    )


def get_controller(api: ExtensionApi) -> SessionController:
    return api._controller


async def test_handlers_are_registered_by_type_name_or_a_peers_name(api: ExtensionApi) -> None:
    seen: list[str] = []
    get_controller(api).model.add("Hello.")
    api.on(TurnEnd, lambda event, ctx: seen.append("type"))
    api.on("turn_end", lambda event, ctx: seen.append("name"))

    @api.on("agent_end")
    async def ended(event, ctx) -> None:
        seen.append(ctx.session.id)

    await get_controller(api).submit("hi")

    assert seen == ["type", "name", api.session.id]


async def test_a_command_returns_a_prompt_or_none(api: ExtensionApi) -> None:
    get_controller(api).model.add("Very well.")

    @api.register_command("ask", usage="WHAT", complete=lambda controller, begun: ["what", "why"])
    async def ask(args, ctx):
        """Ask for something.

        At length."""
        return f"Please: {args}" if args else None

    assert (await get_controller(api).submit("/ask")).outcome is None
    done = await get_controller(api).submit("/ask what it is")

    assert done.outcome is not None
    assert get_controller(api).model.requests[0].messages[0]["content"] == "Please: what it is"
    assert await run(get_controller(api), "/help ask") == "/ask [WHAT]\nAsk for something (from mine)"
    assert get_controller(api).commands.complete(get_controller(api), "/ask wh").choices == ("what", "why")


async def test_a_failing_command_names_its_extension(api: ExtensionApi) -> None:
    api.register_command("crash", lambda args, ctx: 1 / 0)
    api.register_command("stop", lambda args, ctx: next(iter(())))
    api.register_command("junk", lambda args, ctx: 42)
    api.register_command("leave", lambda args, ctx: sys.exit(2))
    api.register_command("refuse", lambda args, ctx: api.session.resolve_place("nowhere"))

    with pytest.raises(ExtensionError, match="extension mine: /crash failed with ZeroDivisionError"):
        await run(get_controller(api), "/crash")
    with pytest.raises(ExtensionError, match="/stop failed with RuntimeError: it raised StopIteration"):
        await asyncio.wait_for(run(get_controller(api), "/stop"), 20)
    with pytest.raises(ExtensionError, match="/junk must return"):
        await run(get_controller(api), "/junk")
    with pytest.raises(ExtensionError, match="/leave failed with SystemExit: 2"):
        await run(get_controller(api), "/leave")
    with pytest.raises(NotFound, match="nowhere"):
        await run(get_controller(api), "/refuse")


@pytest.mark.parametrize("given", [[None, 5], 7, None, ["a", sys]])
async def test_an_invalid_completer_returns_nothing_and_is_reported_once(api: ExtensionApi, given: Any) -> None:
    controller = get_controller(api)
    events = record_events(controller)
    api.register_command("odd", lambda args, ctx: None, complete=lambda controller, begun: given)

    offered = [controller.commands.complete(controller, line).choices for line in ("/odd a", "/odd ab")]

    assert offered == [(), ()]
    (notice,) = [event.text for event in events if isinstance(event, Notice)]
    assert notice.startswith("extension mine: the completion of /odd failed with TypeError: ")


async def test_a_tool_can_replace_a_built_in_tool(tmp_path: Path) -> None:
    from sessiontree.agent.tools import builtin_tools

    controller = make_controller(tmp_path, [ToolCall("1", "read", {"path": "a"})], "Read.", tools=builtin_tools("read"))
    api = ExtensionApi("mine", controller, UiRegistry())

    @api.register_tool
    def read(path: str) -> str:
        """Read a file."""
        return f"my own {path}"

    await controller.submit("read a")

    assert "my own a" in str(controller.model.requests[1].messages[-1])
    api.close()
    assert [tool.description for tool in controller.tools] == [builtin_tools("read")[0].description]


async def test_messages_of_extensions_are_in_the_context_and_can_be_answered(api: ExtensionApi) -> None:
    controller = get_controller(api)
    controller.model.add("I see.")

    await api.send_message("The build is broken.", details={"job": 7})
    await api.send_message("Look at it.", custom_type="ci", trigger_turn=True)
    await controller.agent.wait_until_idle()

    first, second = [entry.body for entry in api.entries() if isinstance(entry.body, CustomMessage)]
    assert (first.custom_type, first.details) == ("mine", {"job": 7})
    assert second.custom_type == "ci"
    assert [message["role"] for message in api.rebuild_context().to_llm()] == ["user", "user", "assistant"]


async def test_a_message_without_a_model_is_written_and_raises(tmp_path: Path) -> None:
    controller = make_controller(tmp_path, model=None)
    api = ExtensionApi("mine", controller, UiRegistry())

    await api.send_message("Now.")
    with pytest.raises(InvalidOperation, match=r"cannot be answered: no model: choose one"):
        await api.send_message("Later.", trigger_turn=True)

    assert isinstance(controller.session.head.path()[-1].body, CustomMessage)


async def test_state_is_an_entry_that_the_model_does_not_see(api: ExtensionApi) -> None:
    talk(api.session, "one", "1")
    place = api.branch.leaf
    api.append_entry("state", {"n": 1})
    await api.navigate(place)
    api.append_entry("state", {"n": 2})

    assert [entry.body.data for entry in api.path("state")] == [{"n": 2}]
    assert [entry.body.data for entry in api.entries("state")] == [{"n": 1}, {"n": 2}]
    assert len(api.rebuild_context().to_llm()) == 2


async def test_an_extension_moves_branches_and_forks(api: ExtensionApi) -> None:
    first, answer, *_ = talk(api.session, "one", "1", "two", "2")
    get_controller(api).model.add("Two was tried.")

    outcome = await api.navigate(answer, summarize=True, label="back")
    assert isinstance(api.path()[-1].body, BranchSummary)
    assert api.session.tree.labels[outcome.summary_entry.id] == "back"

    outcome = await api.branch_in_place(first, name="side", summary="Two was tried.")
    assert api.branch == api.session.branch("side")
    assert api.branch.leaf == outcome.summary_entry.id

    before = api.session
    forked = await api.fork(first, position="before")
    assert forked.editor_text == "one"
    assert api.session is forked.session
    assert api.session is not before


async def test_programs_are_run_without_a_shell(api: ExtensionApi, tmp_path: Path) -> None:
    ran = await api.exec("printf", "%s|", "a b", "$HOME", cwd=str(tmp_path))

    assert (ran.exit_code, ran.output) == (0, "a b|$HOME|")
    assert (await api.exec("sleep", "30", timeout=0.1)).timed_out


async def test_without_a_session_folder_programs_run_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    controller = SessionController(st.memory(), model=None, models=ScriptedModels())

    ran = await ExtensionApi("mine", controller, UiRegistry()).exec("pwd")

    assert ran.output.strip() == str(tmp_path)


async def test_renderers_and_shortcuts_are_available_until_removed(tmp_path: Path) -> None:
    fittings, pressed = UiRegistry(), list[str]()
    api = ExtensionApi("mine", make_controller(tmp_path), fittings)
    api.register_renderer("state", lambda entry: "shown")

    @api.register_shortcut("ctrl+g")
    def press(ctx) -> None:
        "Note the session."
        pressed.append(ctx.session.id)

    await fittings.shortcuts["ctrl+g"].run()

    assert pressed == [api.session.id]
    assert (fittings.shortcuts["ctrl+g"].help, fittings.shortcuts["ctrl+g"].source) == ("Note the session.", "mine")
    with pytest.raises(ExtensionError, match=r"registered a shortcut for 'ctrl\+g'"):
        ExtensionApi("other", make_controller(tmp_path), fittings).register_shortcut("ctrl+g", press)
    api.close()
    assert not fittings.renderers
    assert not fittings.shortcuts


async def test_the_user_is_asked_through_the_ui(tmp_path: Path) -> None:
    api = ExtensionApi("mine", make_controller(tmp_path, ui=ScriptedUser("b")), UiRegistry())

    assert await api.ui.select("Which?", ["a", "b"]) == "b"


async def test_duplicate_names_are_refused(api: ExtensionApi) -> None:
    with pytest.raises(InvalidOperation, match="/tree already"):
        api.register_command("tree", lambda args, ctx: None)
    with pytest.raises(NotFound, match="event 'nonsense' not found"):
        api.on("nonsense", print)


def test_every_ability_of_extensions_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "extension.md").read_text()

    for name in vars(ExtensionApi):
        if not name.startswith("_") and name != "close":
            assert f"`api.{name}" in text, name


async def test_what_an_extension_writes_is_checked_like_every_message(api: ExtensionApi) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x"}}

    with pytest.raises(st.InvalidOperation, match="an image must be stored with its data, not by address"):
        await api.send_message([image])
    with pytest.raises(st.InvalidOperation, match="an image must be stored with its data, not by address"):
        api.session.append(st.Message({"role": "user", "content": [image]}))

    assert [entry for entry in api.entries() if not entry.is_annotation] == []
