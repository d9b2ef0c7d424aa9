"""`sessiontree -p` with commands, prompt files and extensions."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.cli.agent_setup import print_notice
from sessiontree.cli.app import run
from sessiontree.hooks.events import Notice, RetryScheduled, RunEnd
from sessiontree.model.selection import remember_model
from tests.cli.conftest import HOSTILE, Run
from tests.cli.test_chat import read_asked
from tests.cli.test_chat import server as server
from tests.model.fake_server import FakeServer, calls, fail

HOME = "SESSIONTREE_HOME"

GATE = """
def setup(api):
    @api.on("tool_call")
    async def gate(event, ctx):
        if not await ctx.ui.confirm("Let it run?"):
            return {"cancel": True, "reason": "nobody agreed"}

    @api.on("session_shutdown")
    def ended(event, ctx):
        ctx.ui.notify(f"ended with {event.reason}")
"""


def test_a_slash_command_runs_without_a_model(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    st.create("work").append(st.user("Hello."))

    assert "user: Hello." in cli("-p", "-c", "/tree")
    assert cli("-p", "-c", "/name other work") == "other work\n"
    assert st.recent().name == "other work"


def test_notices_are_printed_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_notice(Notice(level="warning", text=f"careful {HOSTILE}"))
    print_notice(RetryScheduled(attempt=1, attempts=4, delay=2.0, error="busy"))
    print_notice(RunEnd(aborted=False))

    captured = capsys.readouterr()
    first, second = captured.err.splitlines()
    assert captured.out == ""
    assert first.startswith("sessiontree: careful ")
    assert "\x1b" not in first
    assert second == "sessiontree: busy. Retrying (1 of 3) in 2 s…"


def test_slash_commands_that_move_are_saved(cli: Run, server: FakeServer) -> None:
    server.add("One.", "Two.", "It was two.")
    cli("-p", "one")
    cli("-p", "-c", "two")

    moved, words = cli("-p", "-c", "/pop").splitlines()

    assert moved.endswith("with a summary")
    assert words == "two"

    body = st.recent().head.path()[-1].body
    assert isinstance(body, st.BranchSummary)


def test_json_mode_prints_the_output_of_a_command_as_one_line(cli: Run, server: FakeServer) -> None:
    lines = [json.loads(line) for line in cli("-p", "--mode", "json", "/name work").splitlines()]

    assert [line["type"] for line in lines] == ["session", "session_start", "command_end", "session_shutdown"]
    assert lines[2] == {"type": "command_end", "text": "work", "editorText": None}


def test_an_unknown_command_is_rejected_but_a_path_is_a_prompt(fails: Run, cli: Run, server: FakeServer) -> None:
    assert "command '/treee' not found; similar: /tree" in fails("-p", "--no-session", "/treee")

    server.add("A folder.")
    assert cli("-p", "--no-session", "/usr/bin", "is what?") == "A folder.\n"


def test_piped_input_is_never_a_command(cli: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add("I read it.", "And that.")
    monkeypatch.setattr(sys, "stdin", io.StringIO("/quit"))
    assert cli("-p") == "I read it.\n"

    monkeypatch.setattr(sys, "stdin", io.StringIO("!touch ran"))
    assert cli("-p") == "And that.\n"

    assert not Path("ran").exists()


def test_a_prompt_file_receives_arguments_and_piped_input(
    cli: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.environ[HOME]) / "commands"
    folder.mkdir()
    (folder / "review.md").write_text("Review this: $ARGUMENTS\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("- a\n+ b\n"))
    server.add("Good.")

    assert cli("-p", "/review", "carefully") == "Good.\n"

    assert read_asked(server) == ["user: Review this: carefully\n\n- a\n+ b"]


def test_an_extension_blocks_tools_and_sees_the_end_of_the_session(
    server: FakeServer, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = tmp_path / "gate.py"
    gate.write_text(GATE)
    server.add(calls(("c1", "bash", {"command": "touch ran"})), "I may not.")

    assert run(["-p", "-e", str(gate), "touch it"]) == 0

    assert capsys.readouterr() == ("I may not.\n", "ended with quit\n")
    assert not Path("ran").exists()
    assert "nobody agreed" in str(server.requests[1]["messages"][-1])


def test_a_missing_extension_stops_the_command_before_the_prompt(fails: Run, server: FakeServer) -> None:
    assert fails("-p", "-e", "none.py", "hello") == "sessiontree: extension 'none.py' not found\n"

    assert not server.requests


def test_untrusted_project_extensions_do_not_run(
    cli: Run, server: FakeServer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = here / ".sessiontree" / "extensions"
    folder.mkdir(parents=True)
    (folder / "evil.py").write_text("open('ran', 'w')\ndef setup(api): pass\n")
    server.add("Hello.")

    assert run(["-p", "hello"]) == 0

    captured = capsys.readouterr()
    assert captured.out == "Hello.\n"
    assert captured.err.startswith(
        f"sessiontree: extensions in {here}/.sessiontree are not loaded: you have not trusted it"
    )
    assert captured.err.count("\n") == 1
    assert not Path("ran").exists()


def test_a_failing_extension_stops_the_command_before_the_prompt(
    server: FakeServer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = here / "gate.py"
    gate.write_text("def setup(api):\n    raise RuntimeError('broken gate')\n")

    assert run(["-p", "hello", "-e", "gate.py"]) == 1

    assert capsys.readouterr().err == (
        "sessiontree: extension gate is not loaded: RuntimeError: broken gate\n"
        f"sessiontree: {gate}: the extension failed to load; nothing was done\n"
    )
    assert not server.requests


TRIGGER = """
def setup(api):
    @api.register_command("check")
    async def check(args, ctx):
        await api.send_message("The build broke.", trigger_turn=True)

    @api.register_command("ask")
    async def ask(args, ctx):
        return "What broke?"
"""


def test_a_turn_triggered_by_a_command_runs_and_its_answer_is_printed(cli: Run, server: FakeServer, here: Path) -> None:
    (here / "trigger.py").write_text(TRIGGER)
    server.add("I see.")

    assert cli("-p", "-e", "trigger.py", "/check") == "I see.\n"

    assert read_asked(server) == ["user: The build broke."]
    with st.recent() as session:
        assert [entry.type for entry in session.head.path()][-2:] == ["custom_message", "message"]


def test_a_failed_turn_triggered_by_a_command_is_an_error(
    server: FakeServer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "trigger.py").write_text(TRIGGER)
    server.add(fail(401, "no such key"))

    assert run(["-p", "-e", "trigger.py", "/check"]) == 3

    assert capsys.readouterr().err.count("no such key") == 1


@pytest.mark.parametrize("command", ["/check", "/ask"])
def test_a_command_without_its_model_explains_how_to_get_one(
    fails: Run, here: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    for variable in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("LLAMA_ARG_PORT", "1")
    (here / "trigger.py").write_text(TRIGGER)

    message = fails("-p", "-e", "trigger.py", command)

    assert "no model is available: set an API key" in message


def test_the_selected_model_is_the_default_after_a_restart(cli: Run, server: FakeServer, home: Path) -> None:
    server.add("One.", "Two.", "Three.", "Four.")
    assert cli("-p", "1") == "One.\n"
    first = st.recent().id

    assert cli("-p", "--no-session", "/model openai:two") == "Model: openai:two\n"
    cli("-p", "2")
    cli("-p", "--session", first, "3")
    assert [request["model"] for request in server.requests] == ["scripted", "two", "scripted"]

    config = home / ".sessiontree" / "config.toml"
    config.write_text(config.read_text().replace("openai:scripted", "openai:other"))
    cli("-p", "4")
    assert server.requests[-1]["model"] == "other", "what the configuration names since then wins"


def test_an_unavailable_selected_model_is_reported(
    server: FakeServer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add("One.")
    remember_model("groq:gone", "openai:scripted")

    assert run(["-p", "1"]) == 0

    message = "groq:gone, the model chosen last, is not available; using openai:scripted"
    assert message in capsys.readouterr().err
