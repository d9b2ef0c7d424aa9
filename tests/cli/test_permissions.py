"""Permissions of agents that commands run, with a fake model server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.cli.app import run
from sessiontree.swarm.journal import list_swarms
from tests.cli.conftest import Run
from tests.cli.test_chat import read_asked
from tests.cli.test_chat import server as server
from tests.model.fake_server import FakeServer, calls

TOUCH = ("c1", "bash", {"command": "touch made"})


def test_a_prompt_may_read_and_other_calls_are_denied_and_listed(
    cli: Run, server: FakeServer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "a.txt").write_text("seen")
    server.add(calls(TOUCH, ("c2", "read", {"path": "a.txt"}), ("c3", "write", {"path": "b", "content": "x"})), "Done.")

    assert run(["-p", "go"]) == 0

    captured = capsys.readouterr()
    assert captured.out == "Done.\n"
    assert "denied bash: touch made: it can change anything, and no user is present to approve it" in captured.err
    assert "--allow 'bash:touch made'" in captured.err
    assert "denied write: b" in captured.err
    assert sorted(os.listdir(here)) == ["a.txt"]
    results = [text for text in read_asked(server) if text.startswith("tool")]
    assert results[0].startswith("tool: Permission denied: bash: touch made was not run")
    assert "seen" in results[1]


@pytest.mark.parametrize(
    "options",
    [
        ["--allow", "bash"],
        ["--allow", "bash:touch *"],
        ["--permission-mode", "allow-all"],
        ["--allow", "read", "--allow", "bash:touch made"],
    ],
)
def test_a_flag_allows_a_command(cli: Run, server: FakeServer, here: Path, options: list[str]) -> None:
    server.add(calls(TOUCH), "Done.")

    cli("-p", *options, "go")

    assert (here / "made").exists()


@pytest.mark.parametrize("options", [["--allow", "bash:git *"], ["--permission-mode", "allow-edits"]])
def test_a_flag_allows_nothing_else(cli: Run, server: FakeServer, here: Path, options: list[str]) -> None:
    server.add(calls(TOUCH), "Done.")

    cli("-p", *options, "go")

    assert not (here / "made").exists()


def test_a_flag_that_names_no_tool_is_reported(
    server: FakeServer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add("Done.")
    (here / "ext.py").write_text(
        "import sessiontree as st\n"
        "def setup(api: st.ExtensionApi) -> None:\n"
        "    @api.register_tool\n"
        "    def deploy() -> str:\n"
        '        "Deploy."\n'
        '        return "ok"\n'
    )
    options = [part for name in ("Bash", "Bash:x", "deploy", "mcp__a__b", "r*", "read") for part in ("--allow", name)]

    assert run(["-p", "-e", "ext.py", *options, "go"]) == 0

    captured = capsys.readouterr()
    assert captured.err == (
        "sessiontree: --allow: no tool is called 'Bash'; tools: read, write, edit, bash, grep, find, ls, deploy\n"
    )


def test_rules_in_the_configuration_apply_to_prompts(cli: Run, server: FakeServer, here: Path) -> None:
    config = Path(os.environ["SESSIONTREE_HOME"]) / "config.toml"
    config.write_text(config.read_text() + '[permissions]\nallow = ["bash:touch *"]\n')
    server.add(calls(TOUCH), "Done.")

    cli("-p", "go")

    assert (here / "made").exists()


def test_invalid_options_are_rejected_before_anything_runs(fails: Run, server: FakeServer) -> None:
    assert "--allow: expected TOOL or TOOL:PATTERN" in fails("-p", "--allow", "bash:", "x", code=2)
    both = fails("-p", "--allow", "bash", "--permission-mode", "read-only", "x", code=2)
    assert "--allow and --permission-mode read-only are mutually exclusive" in both
    (Path(os.environ["SESSIONTREE_HOME"]) / "permissions.toml").write_text("allow = 1\n")
    assert "permissions.toml: allow" in fails("-p", "x")


def test_permissions_apply_to_fan_out_variants(
    cli: Run, server: FakeServer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    st.create("fanned").close()
    server.add(calls(TOUCH), "Done.")
    server.add(calls(TOUCH), "Done.")
    assert run(["fan-out", "fanned", "--prompt", "go"]) == 0
    assert "denied bash: touch made" in capsys.readouterr().err
    assert not (here / "made").exists()

    cli("fan-out", "fanned", "--prompt", "go", "--allow", "bash")
    assert (here / "made").exists()


def test_permissions_apply_to_experiment_runs_and_denials_are_printed(
    cli: Run, server: FakeServer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    st.create("tried").close()
    server.add(calls(TOUCH), "Done.", calls(TOUCH), "Done.")
    assert run(["ab", "tried", "--arm", "a=go", "--arm", "b=go", "--runs", "1", "--concurrency", "1", "--json"]) == 0
    captured = capsys.readouterr()
    assert "denied bash: touch made" in captured.err
    assert json.loads(captured.out)["runs"][0]["denied"] == ["bash: touch made"]
    assert not (here / "made").exists()


def test_permissions_apply_to_swarm_agents_and_denials_are_saved(
    cli: Run, server: FakeServer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "s.toml").write_text('name = "review"\ntask = "Go."\nagents = 1\n')
    server.add(calls(TOUCH), "Done.")
    assert run(["swarm", "run", "s.toml"]) == 0
    captured = capsys.readouterr()
    assert "denied bash: touch made" in captured.err
    assert "denied bash: touch made" in captured.out
    assert not (here / "made").exists()
    (status,) = list_swarms(st.open("review", read_only=True))
    assert status.agents[0].denied == ("bash: touch made",)

    server.add(calls(TOUCH), "Done.")
    cli("swarm", "run", "s.toml", "--allow", "bash:touch *")
    assert (here / "made").exists()


def test_a_durable_swarm_rejects_permission_options(fails: Run, server: FakeServer, here: Path) -> None:
    (here / "s.toml").write_text('name = "review"\ntask = "Go."\nagents = 1\n')

    message = fails("swarm", "run", "s.toml", "--durable", "--allow", "bash", code=2)

    assert "`sessiontree worker`" in message
