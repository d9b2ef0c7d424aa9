"""Commands that show information or set the model, the thinking level and the permission mode."""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.agent.permission_rules import RuleSet, parse_rule
from sessiontree.agent.permissions import Permissions
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.hooks.events import Notice
from sessiontree.model.base import ModelInfo
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Session
from tests.slash_commands.conftest import (
    FakeHost,
    MakeController,
    ScriptedModels,
    ScriptedUser,
    make_scripted_model,
    record_events,
    run,
    talk,
)
from tests.store.test_file_operations import limit_file_size


async def test_context_lists_system_prompt_parts_and_messages(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, "one", "1")
    at = make_controller(system=None)

    shown = await run(at, "/context")

    assert "sessiontree" in shown
    assert "folder" in shown
    assert "user: one" in shown
    assert "of 128k tokens" in shown
    full = await run(at, "/context full")
    assert f"The working folder is {session.cwd}" in full
    assert "--- user\none" in full
    with pytest.raises(InvalidOperation):
        await run(at, "/context all")


async def test_context_shows_what_a_compaction_replaces(make_controller: MakeController, session: Session) -> None:
    talk(session, *["word " * 400] * 12)
    at = make_controller("A lot of words.")
    await run(at, "/compact")

    shown = await run(at, "/context")

    assert "replaced by" in shown


async def test_branches_are_compared_and_places_diffed(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")
    session.create_branch("side", current=False)
    session.append(st.assistant("aside", usage={"input": 10, "output": 5, "cost": 0.5}), branch="side")
    talk(session, "two", "2")
    at = make_controller()

    difference = await run(at, "/diff side")
    assert "- " in difference
    assert "user: two" in difference
    assert "assistant: aside" in difference
    assert "--- HEAD  tokens unknown, cost unknown" in difference
    assert "+++ side  15 tokens, $0.5000" in difference
    assert await run(at, "/diff HEAD side") == difference
    comparison = await run(at, "/compare side")
    assert [line.split()[0] for line in comparison.splitlines()[1:3]] == ["main", "side"]
    assert "$0.5000" in comparison
    with pytest.raises(InvalidOperation, match="you are on branch 'main'; name another branch"):
        await run(at, "/compare main")


async def test_the_last_answer_is_copied_or_shown_without_a_clipboard(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, "one", "1", "two")
    screen = FakeHost()

    assert await run(make_controller(host=screen), "/copy") == "sent"
    assert screen.copied == ["1"]
    assert await run(make_controller(), "/copy") == "1"


async def test_the_model_command_changes_the_model(make_controller: MakeController, session: Session) -> None:
    large = make_scripted_model("large", "From the large one.")
    at = make_controller("From the usual one.", models=ScriptedModels(large=large), ui=ScriptedUser("large"))
    await at.submit("one")

    assert await run(at, "/model") == "Model: scripted:large"
    done = await at.submit("two")

    assert done.outcome is not None
    assert done.outcome.text == "From the large one."
    assert session.head.context().state.model == "large"
    with pytest.raises(NotFound):
        await run(at, "/model scripted:none")


async def test_without_available_models_the_model_command_explains_why(make_controller: MakeController) -> None:
    person = ScriptedUser()

    with pytest.raises(NotFound, match="not found"):
        await run(make_controller(model=None, models=ScriptedModels(), ui=person), "/model")

    assert person.questions == []


async def test_a_controller_without_a_model_gets_one(make_controller: MakeController) -> None:
    at = make_controller(model=None, models=ScriptedModels(large=make_scripted_model("large", "Here.")))
    with pytest.raises(InvalidOperation, match="no model: choose one"):
        await at.submit("one")
    assert await run(at, "/model") == "No model."

    await run(at, "/model scripted:large")

    done = await at.submit("one")
    assert done.outcome is not None
    assert done.outcome.text == "Here."


async def test_thinking_off_is_sent_explicitly(make_controller: MakeController) -> None:
    at = make_controller(model=ScriptedModel([], info=ModelInfo(provider="scripted", model="plain")))
    events = record_events(at)

    await run(at, "/thinking high")
    await run(at, "/thinking off")

    notices = [event.text for event in events if isinstance(event, Notice)]
    assert notices == ["scripted:plain does not support thinking; the level has no effect"]


async def test_the_thinking_level_is_shown_and_changed(make_controller: MakeController) -> None:
    at = make_controller("Hm.")

    assert await run(at, "/thinking") == "off"
    await run(at, "/thinking high")
    await at.submit("one")

    assert at.model.requests[0].thinking == "high"
    with pytest.raises(InvalidOperation, match="choose one of off, minimal"):
        await run(at, "/thinking hard")


async def test_dialogs_preselect_the_current_level_and_model(make_controller: MakeController) -> None:
    person = ScriptedUser("high", "low", "usual")
    at = make_controller(
        ui=person, models=ScriptedModels(usual=make_scripted_model("usual"), other=make_scripted_model("other"))
    )

    for line in ("/thinking", "/thinking", "/model"):
        await run(at, line)

    assert person.preselected == ["off", "high", "scripted:usual (current)"]
    assert at.agent.thinking == "low"


async def test_thinking_without_a_model_is_refused_without_a_dialog(make_controller: MakeController) -> None:
    person = ScriptedUser()

    with pytest.raises(InvalidOperation, match="no model: choose one"):
        await run(make_controller(model=None, ui=person), "/thinking")

    assert person.questions == []


async def test_help_lists_all_commands_and_explains_one(make_controller: MakeController) -> None:
    at = make_controller()

    listed = await run(at, "/help")

    assert all(command.usage in listed for command in at.commands)
    assert (await run(at, "/help /pop")).startswith("/pop [PLACE] [--files|--files-only]\nGo back to your last message")


async def test_reload_without_a_loader_is_refused(make_controller: MakeController) -> None:
    with pytest.raises(InvalidOperation, match="cannot be reloaded"):
        await run(make_controller(), "/reload")


async def test_an_answer_that_could_not_be_written_can_be_saved_elsewhere(
    make_controller: MakeController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = st.create(file=tmp_path / "s.jsonl", cwd=tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    full = contextlib.ExitStack()

    def answer(request: Any) -> str:
        full.enter_context(limit_file_size(session.file.stat().st_size))
        return "It cost much."

    at = make_controller(session=session, model=make_scripted_model("usual", answer))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with pytest.raises(InvalidOperation, match="no unsaved answers"):
        await run(at, "/save-unsaved kept.jsonl")
    with full:
        outcome = (await at.submit("Hello")).outcome
    signal.signal(signal.SIGXFSZ, before)

    assert outcome is not None
    assert outcome.text == "It cost much."
    assert await run(at, "/save-unsaved kept.jsonl") == f"Saved to {Path.cwd() / 'kept.jsonl'}."
    assert json.loads(Path("kept.jsonl").read_text())["content"][0]["text"] == "It cost much."


async def test_the_mode_and_all_rules_are_shown(make_controller: MakeController, tmp_path: Path) -> None:
    (tmp_path / "permissions.toml").write_text('deny = ["bash:sudo *"]\n')
    at = make_controller(permissions=Permissions(allow=["bash:git *"], ask=["edit"], home=str(tmp_path)))

    shown = (await at.submit("/permissions")).text.split("\n")

    assert [line.split() for line in shown] == [
        ["mode", "ask"],
        ["deny", "bash:sudo", "*"],
        ["ask", "edit"],
        ["allow", "bash:git", "*"],
    ]


async def test_the_mode_changes_and_a_project_limits_it(make_controller: MakeController) -> None:
    permissions = Permissions()
    at = make_controller(permissions=permissions)

    assert (await at.submit("/permissions allow-edits")).text == "Permission mode: allow-edits"
    assert permissions.mode == "allow-edits"
    permissions.restrict("ask", RuleSet(deny=(parse_rule("bash"),)))
    limited = (await at.submit("/permissions allow-all")).text
    assert limited == "Permission mode: ask (restricted by the project)"
    with pytest.raises(InvalidOperation, match="no permission mode 'all'"):
        await at.submit("/permissions all")


async def test_permissions_off_is_reported(make_controller: MakeController) -> None:
    with pytest.raises(InvalidOperation, match="may use all of its tools"):
        await make_controller().submit("/permissions")


async def test_grants_of_a_session_do_not_apply_to_the_next(make_controller: MakeController) -> None:
    permissions = Permissions()
    at = make_controller(permissions=permissions)
    permissions._shared.granted.append(parse_rule("bash"))

    await at.submit("/new")

    assert permissions.granted == ()
