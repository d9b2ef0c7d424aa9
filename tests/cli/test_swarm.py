"""`sessiontree swarm`, with a fake model server."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click
import pytest

import sessiontree as st
from sessiontree.cli.app import run
from sessiontree.cli.swarm import swarm
from sessiontree.cli.swarm_run import AgentTable, BudgetTable, SwarmFile, format_resume_command, load_swarm_file
from sessiontree.config import ConfigError
from sessiontree.errors import StoreError
from sessiontree.extensions.project_trust import TrustStore, read_named_extensions
from sessiontree.home import get_home
from sessiontree.store.jsonl import JsonlStore
from sessiontree.swarm.journal import list_swarms
from sessiontree.swarm.records import SwarmStatus
from tests.cli.conftest import Run
from tests.cli.test_branch_ops import server as server
from tests.cli.test_cli import complete
from tests.model.fake_server import Answer, FakeServer, calls, fail, slow

PAGE = Path(__file__).parents[2] / "docs" / "swarm-file.md"

REVIEW = """\
name = "review"
task = "Review app.py."
agents = 2
tools = []
"""


@pytest.fixture
def file(here: Path) -> Path:
    path = here / "review.toml"
    path.write_text(REVIEW)
    return path


def parse_lines(shown: str) -> list[Any]:
    return [json.loads(line) for line in shown.splitlines()]


def read_status(name: str = "review") -> SwarmStatus:
    session = st.open("review", read_only=True)
    return next(found for found in list_swarms(session) if found.branch == name)


# Run and resume


def test_a_swarm_runs_from_its_file_in_a_new_session(cli: Run, server: FakeServer, file: Path) -> None:
    server.add("Fine.", "Fine.")

    shown = cli("swarm", "run", "review.toml")

    head, task, columns, first, second, total, _, *result = shown.splitlines()
    assert head.startswith("review completed ")
    assert task == "Review app.py."
    assert columns.split() == ["agent", "state", "model", "tokens", "cost", "time", "last"]
    assert first.split()[1] == second.split()[1] == "completed"
    assert first.endswith("Fine.")
    assert total.split()[:2] == ["all", "100%"]
    assert "Fine." in "\n".join(result)
    with st.open("review") as session:
        assert len(session.branches) == 4
        assert not session.problems


def test_each_step_is_reported_as_it_happens(
    server: FakeServer, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add("Fine.", "Fine.")

    assert run(["swarm", "run", "review.toml"]) == 0

    message = capsys.readouterr().err
    assert message.count("started as worker") == 2
    assert message.count("completed, 17 tokens") == 2
    assert "swarm completed" in message


def test_the_status_is_printed_as_json(cli: Run, server: FakeServer, file: Path) -> None:
    server.add("Fine.", "Fine.")

    (found,) = parse_lines(cli("swarm", "run", "review.toml", "--json"))

    assert (found["status"], found["strategy"], found["progress"]) == ("completed", "parallel", 1.0)
    assert [agent["text"] for agent in found["agents"]] == ["Fine.", "Fine."]
    assert {"sessionId", "currentBranch", "branchCount", "createdAt", "budgetUsed"} <= set(found)


def test_agents_strategy_and_prompts_come_from_the_file(cli: Run, server: FakeServer, here: Path) -> None:
    server.add("A.", "B.")
    Path("stages.toml").write_text(
        'name = "stages"\ntask = "Write it."\nstrategy = "pipeline"\nsystem = "Be terse."\ntools = ["read"]\n'
        '[[agent]]\nname = "draft"\nmodel = "openai:small"\n[[agent]]\nname = "polish"\nmodel = "openai:large"\n'
    )

    (found,) = parse_lines(cli("swarm", "run", "stages.toml", "--json"))

    assert [agent["id"] for agent in found["agents"]] == ["draft", "polish"]
    assert [request["model"] for request in server.requests] == ["small", "large"]
    assert all(request["messages"][0]["content"] == "Be terse." for request in server.requests)
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == ["read"]
    assert found["result"] == "B."


def test_a_swarm_runs_in_an_existing_session_from_a_place(cli: Run, server: FakeServer, file: Path) -> None:
    with st.create("review") as session:
        first = session.append(st.user("What is there?")).id
        session.append(st.assistant("A file."))
    server.add("Fine.", "Fine.")

    cli("swarm", "run", "review.toml", "--session", "review", "--at", first)

    assert "What is there?" in str(server.requests[0]["messages"])
    assert "A file." not in str(server.requests[0]["messages"])


def test_a_failed_agent_is_reported_and_sets_the_exit_code(cli: Run, server: FakeServer, file: Path) -> None:
    server.add(fail(401, "no key"), "Fine.")

    shown = cli("swarm", "run", "review.toml", code=3)

    assert "failed" in shown
    assert "no key" in shown


def test_the_finished_work_of_a_failed_swarm_is_reported(cli: Run, server: FakeServer, file: Path) -> None:
    file.write_text(REVIEW.replace("agents = 2", 'strategy = "pipeline"\nagents = 2'))
    server.add("One.", fail(401, "no key"))

    shown = cli("swarm", "run", "review.toml", code=3)

    total = next(line for line in shown.splitlines() if line.startswith("all"))
    assert total.split()[:2] == ["all", "50%"]
    assert cli("swarm", "ls").splitlines()[1].split()[1:6] == ["failed", "pipeline", "1", "of", "2"]


def test_a_budget_pauses_a_swarm_and_a_larger_one_resumes_it(cli: Run, server: FakeServer, file: Path) -> None:
    file.write_text(REVIEW.replace("agents = 2", 'strategy = "pipeline"\nagents = 2'))
    server.add("One.", "Two.")

    paused = cli("swarm", "run", "review.toml", "--max-tokens", "10", code=3)
    asked = len(server.requests)
    shown = cli("swarm", "resume", "review", "--file", "review.toml", "--max-tokens", "1000")

    assert "paused: the budget is used up: 17 of 10 tokens" in paused
    assert "resume with a larger budget: `sessiontree swarm resume review`" in paused
    assert asked == 1
    assert "review completed" in shown
    assert len(server.requests) == 2


def test_resume_keeps_other_limits_and_0_removes_one(cli: Run, server: FakeServer, file: Path) -> None:
    limits = "[budget]\ntokens = 10\ncost = 5\nseconds = 900\n[agent_budget]\ntokens = 500\nseconds = 90\n"
    file.write_text(REVIEW.replace("agents = 2", 'strategy = "pipeline"\nagents = 3') + limits)
    server.add("One.", "Two.", "Three.")
    cli("swarm", "run", "review.toml", code=3)

    cli("swarm", "resume", "review", "--max-tokens", "20", "--max-agent-cost", "2", code=3)
    first = read_status()
    cli("swarm", "resume", "review", "--max-tokens", "0", "--max-agent-tokens", "0")
    second = read_status()

    assert (first.budget, first.agent_budget) == (
        st.Budget(cost=5, tokens=20, seconds=900),
        st.Budget(cost=2, tokens=500, seconds=90),
    )
    assert (second.budget, second.agent_budget) == (st.Budget(cost=5, seconds=900), st.Budget(cost=2, seconds=90))


def test_an_agent_resumes_with_a_larger_budget_and_only_new_events_are_reported(
    server: FakeServer, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(
        REVIEW.replace("agents = 2", "agents = 1").replace("[]", '["ls"]') + "[agent_budget]\ntokens = 10\n"
    )
    server.add(calls(("c1", "ls", {})), "Two.")

    assert run(["swarm", "run", "review.toml"]) == 3
    paused = capsys.readouterr()
    assert run(["swarm", "resume", "review", "--file", "review.toml", "--max-agent-tokens", "100000"]) == 0
    again = capsys.readouterr()

    assert "paused: the budget of worker-1 is used up" in paused.out
    assert "review completed" in again.out
    assert "swarm created" in paused.err
    assert "swarm created" not in again.err
    assert "worker-1 completed" in again.err


def test_a_long_task_is_shortened(cli: Run, server: FakeServer, file: Path) -> None:
    file.write_text(REVIEW.replace("Review app.py.", "Review it. " + "word " * 10_000))
    server.add("Fine.", "Fine.")

    shown = cli("swarm", "run", "review.toml")

    assert "Review it. word" in shown
    assert len(shown) < 2500
    assert read_status().task.count("word") == 10_000


# From another process


def start_process(*arguments: str, err: int = subprocess.PIPE, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from sessiontree.cli import main; main()", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, **options)


def test_another_process_can_stop_a_swarm(cli: Run, server: FakeServer, file: Path) -> None:
    server.add(slow("word " * 2000), slow("word " * 2000))
    with start_process("swarm", "run", "review.toml") as working:
        assert server.wait_for(lambda server: len(server.requests) == 2, 60)
        listed = cli("swarm", "ls")

        output = cli("swarm", "stop", "review", "--reason", "enough")
        out, err = working.communicate(timeout=60)

    assert listed.splitlines()[1].split()[:3] == ["review", "running", "parallel"]
    assert output == "review cancelled enough\n"
    assert working.returncode == 3
    assert "review cancelled" in out
    assert "swarm cancelled: enough" in err
    assert [agent.status for agent in read_status().agents] == ["cancelled", "cancelled"]


def test_a_swarm_of_a_killed_process_is_orphaned_and_can_be_resumed(cli: Run, server: FakeServer, file: Path) -> None:
    file.write_text(REVIEW.replace("agents = 2", 'strategy = "pipeline"\nagents = 2'))
    server.add("One.", slow("word " * 2000))
    with start_process("swarm", "run", "review.toml") as working:
        assert server.wait_for(lambda server: len(server.requests) == 2, 60)
        working.kill()
        working.communicate(timeout=60)
    left = cli("swarm", "ls")
    server.add("Two.")

    shown = cli("swarm", "resume", "review", "--file", "review.toml")

    assert left.splitlines()[1].split()[:2] == ["review", "orphaned"]
    assert "review completed" in shown
    assert len(server.requests) == 3


def list_tools(server: FakeServer) -> list[list[str]]:
    """Return the names of the tools in each request."""
    return [[tool["function"]["name"] for tool in body.get("tools", [])] for body in server.requests]


def test_a_resumed_swarm_uses_the_tools_and_prompts_of_its_file(cli: Run, server: FakeServer, file: Path) -> None:
    reading = 'tools = ["read"]\nsystem = "Only read."\nstrategy = "pipeline"\n'
    file.write_text(REVIEW.replace("tools = []\n", reading))
    server.add("One.", "Two.")
    cli("swarm", "run", "review.toml", "--max-tokens", "10", code=3)
    file.unlink()

    cli("swarm", "resume", "review", "--max-tokens", "1000")

    assert [body["messages"][0]["content"] for body in server.requests] == ["Only read."] * 2
    assert list_tools(server) == [["read"]] * 2


def test_a_file_overrides_saved_settings_on_resume(cli: Run, server: FakeServer, file: Path) -> None:
    file.write_text(REVIEW.replace("agents = 2", 'strategy = "pipeline"\nagents = 2'))
    server.add("One.", "Two.")
    cli("swarm", "run", "review.toml", "--max-tokens", "10", code=3)
    file.write_text(REVIEW.replace("tools = []", 'tools = ["read"]'))

    cli("swarm", "resume", "review", "--file", "review.toml", "--max-tokens", "1000")

    assert list_tools(server) == [[], ["read"]]


def test_a_pause_from_another_process_lets_calls_in_progress_finish(cli: Run, server: FakeServer, file: Path) -> None:
    file.write_text(REVIEW.replace("agents = 2", 'strategy = "pipeline"\nagents = 2'))
    paused = threading.Event()

    def answer(body: Any) -> str:
        return "One." if paused.wait(60) else ""

    server.add(answer, "Two.")
    with start_process("swarm", "run", "review.toml") as working:
        assert server.wait_for(lambda server: len(server.requests) == 1, 60)
        cli("swarm", "pause", "review")
        paused.set()
        out, _ = working.communicate(timeout=60)

    assert working.returncode == 3
    assert "review paused" in out
    assert len(server.requests) == 1
    assert "review completed" in cli("swarm", "resume", "review", "--file", "review.toml")


def test_a_terminal_shows_a_progress_table_and_other_processes_can_follow(
    cli: Run, server: FakeServer, file: Path
) -> None:
    server.add(slow("word " * 8, pause=0.05), slow("word " * 8, pause=0.05))
    master, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    with start_process("swarm", "run", "review.toml", err=terminal, env=environment) as working:
        os.close(terminal)
        assert server.wait_for(lambda server: len(server.requests) == 2, 60)
        wanted = ("--type", "text_delta", "--type", "swarm")
        followed = parse_lines(cli("swarm", "events", "review", "--follow", *wanted, "--json"))
        out, _ = working.communicate(timeout=60)
    drawn = os.read(master, 1 << 20)
    os.close(master)

    assert b"agent" in drawn
    assert b"worker-1" in drawn
    assert b"started as" not in drawn
    assert "review completed" in out
    assert "".join(event.get("delta", "") for event in followed).count("word") == 16
    assert followed[-1]["status"] == "completed"


def test_a_write_error_is_reported_with_the_resume_command(
    cli: Run, server: FakeServer, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full, has_room = threading.Event(), threading.Event()
    append: Any = JsonlStore.append

    def failing(store: JsonlStore, *given: Any, **named: Any) -> Any:
        if full.is_set():
            raise StoreError("review.jsonl", "no space left")
        return append(store, *given, **named)

    def answer(body: Any) -> str:
        if not has_room.is_set():  # an agent that failed before its request leaves its answer to the next one
            full.set()
        return "Fine."

    monkeypatch.setattr(JsonlStore, "append", failing)
    server.add(answer, answer)
    assert run(["swarm", "run", "review.toml"]) == 1
    err = capsys.readouterr().err
    has_room.set()
    full.clear()
    server.add("Fine.", "Fine.")

    assert "review.jsonl: no space left" in err
    assert "`sessiontree swarm resume review`" in err
    assert "never retrieved" not in err
    assert "review completed" in cli("swarm", "resume", "review")


# Listing


def test_swarms_are_listed_and_shown(cli: Run, server: FakeServer, file: Path) -> None:
    assert cli("swarm", "ls") == "no swarms\n"
    server.add(*["Fine."] * 4)
    cli("swarm", "run", "review.toml")
    cli("swarm", "run", "review.toml", "--session", "review")

    listed = cli("swarm", "ls").splitlines()
    (first, second) = parse_lines(cli("swarm", "ls", "--session", "review", "--json"))

    assert [line.split()[0] for line in listed[1:]] == ["review", "review-2"]
    assert listed[1].split()[3:6] == ["2", "of", "2"]
    assert (first["branch"], second["branch"]) == ("review", "review-2")
    assert "review-2 completed" in cli("swarm", "show", "review-2")
    assert parse_lines(cli("swarm", "show", second["id"][:8], "--json")) == [second]
    assert complete("sessiontree", "swarm", "show", "rev") == ["review", "review-2"]


def test_swarms_are_listed_and_shown_if_a_session_has_copies(cli: Run, server: FakeServer, file: Path) -> None:
    server.add("Fine.", "Fine.")
    cli("swarm", "run", "review.toml")
    session = st.open("review").file
    assert session is not None
    session.with_name("backup.jsonl").write_bytes(session.read_bytes())

    assert len(cli("swarm", "ls", "--json").splitlines()) == 2
    assert cli("swarm", "show", "review").startswith("review completed")


def test_events_are_printed_and_filtered(cli: Run, server: FakeServer, file: Path) -> None:
    server.add("Fine.", "Fine.")
    cli("swarm", "run", "review.toml")

    everything = cli("swarm", "events", "review").splitlines()
    done = parse_lines(cli("swarm", "events", "review", "--type", "agent_complete", "--json"))
    one = parse_lines(cli("swarm", "events", "review", "--agent", done[0]["agent"], "--json"))
    rest = parse_lines(cli("swarm", "events", "review", "--after", str(len(everything) - 2), "--json", "--follow"))

    assert [int(line.split()[0]) for line in everything] == list(range(1, len(everything) + 1))
    assert [event["type"] for event in done] == ["agent_complete", "agent_complete"]
    assert {event["agent"] for event in one} == {done[0]["agent"]}
    assert [event["seq"] for event in rest] == [len(everything) - 1, len(everything)]
    assert rest[-1]["status"] == "completed"


def test_text_from_a_swarm_cannot_control_the_terminal(cli: Run, server: FakeServer, file: Path) -> None:
    file.write_text(REVIEW.replace("Review app.py.", "Review \\u001B[2J app.py."))
    server.add("Fine \x1b[2J \u202e.", "Fine \x9b31m.")
    cli("swarm", "run", "review.toml")

    shown = [cli("swarm", *words) for words in (("ls",), ("show", "review"), ("events", "review"))]
    shown.append(cli("swarm", "show", "review", "--json") + cli("swarm", "events", "review", "--json"))

    assert not any(set(text) & {"\x1b", "\x9b", "\u202e"} for text in shown)


# Errors


def test_a_missing_swarm_agent_or_event_is_reported_on_one_line(
    fails: Run, cli: Run, server: FakeServer, file: Path
) -> None:
    assert "swarm 'review' not found" in fails("swarm", "show", "review")
    assert "nowhere.toml" in fails("swarm", "run", "nowhere.toml")
    server.add("Fine.", "Fine.")
    cli("swarm", "run", "review.toml")
    assert "swarm review is already completed" in fails("swarm", "stop", "review")
    assert "swarm review is completed" in fails("swarm", "resume", "review")
    assert "agent 'nobody' not found; agents: worker-1, worker-2" in fails(
        "swarm", "events", "review", "--agent", "nobody"
    )
    assert "unknown event 'gossip'" in fails("swarm", "events", "review", "--type", "gossip", code=2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = ", "not valid TOML"),
        ("name = " + "[" * 9000, "nested too deeply"),
        ("", "name: required, but missing"),
        ('name = "x"\n', "task: required, but missing"),
        (REVIEW + "agent = 3\n", "agent: expected array, got int"),
        (REVIEW + "[budget]\ncost = 'much'\n", "budget.cost: expected float"),
        (REVIEW + "[budget]\nmoney = 1\n", "budget.money: unknown setting"),
        (REVIEW + "thinking = 'hard'\n", "thinking: choose one of off, minimal"),
        (REVIEW + "[[agent]]\nname = 'a'\n", "agents: use a number of agents or [[agent]] tables, not both"),
    ],
)
def test_an_invalid_file_is_reported_with_the_field(here: Path, text: str, reason: str) -> None:
    Path("swarm.toml").write_text(text)

    with pytest.raises(ConfigError) as raised:
        load_swarm_file("swarm.toml")

    assert str(raised.value).startswith(f"swarm.toml: {reason}")


@pytest.mark.parametrize(
    "line",
    [
        'strategy = "chaos"',
        'model = "nobody:nothing"',
        "agents = 0",
        "retries = -1",
        'at = "nowhere"',
        'extensions = ["nothing.py"]',
        'agent = [{ name = "a", model = "nobody:nothing" }]',
        "budget.cost = 0",
    ],
)
def test_a_swarm_that_cannot_start_leaves_no_session(fails: Run, server: FakeServer, file: Path, line: str) -> None:
    file.write_text(REVIEW.replace("agents = 2", line))

    fails("swarm", "run", "review.toml")

    assert st.sessions() == []


def test_a_swarm_with_a_failing_extension_leaves_no_session(server: FakeServer, file: Path) -> None:
    file.write_text(REVIEW + 'extensions = ["broken.py"]\n')
    (file.parent / "broken.py").write_text("raise RuntimeError('broken')\n")

    assert run(["swarm", "run", "review.toml", "-e", "broken.py"]) == 1
    assert st.sessions() == []

    st.create("review").close()
    assert run(["swarm", "run", "review.toml", "-e", "broken.py", "--session", "review"]) == 1
    assert len(st.sessions()) == 1


def test_a_session_with_messages_of_another_process_is_kept_if_the_swarm_fails(server: FakeServer, file: Path) -> None:
    file.write_text(REVIEW + 'extensions = ["broken.py"]\n')
    (file.parent / "broken.py").write_text(
        "import sessiontree as st\n"
        "with st.open('@') as session:\n    session.append(st.user('said elsewhere'))\n"
        "raise RuntimeError('broken')\n"
    )

    assert run(["swarm", "run", "review.toml", "-e", "broken.py"]) == 1
    assert [summary.first_message for summary in st.sessions()] == ["said elsewhere"]


@pytest.mark.parametrize("form", ["file", "folder"])
def test_extensions_of_a_swarm_file_run_only_if_trusted(
    server: FakeServer, file: Path, fails: Run, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    own = file.parent / "own"
    code = own / "__init__.py" if form == "folder" else file.parent / "own.py"
    code.parent.mkdir(exist_ok=True)
    code.write_text("from pathlib import Path\nPath('ran').touch()\ndef setup(api): pass\n")
    file.write_text(REVIEW + f'extensions = ["{own.name if form == "folder" else code.name}"]\n')
    ran = file.parent / "ran"

    assert "untrusted extensions" in fails("swarm", "run", "review.toml")
    assert not ran.exists()
    assert st.sessions() == []

    server.add("Fine.", "Fine.", "Fine.", "Fine.")
    TrustStore(get_home()).add(read_named_extensions(str(file), [str(own if form == "folder" else code)]))
    assert run(["swarm", "run", "review.toml"]) == 0
    assert ran.exists()
    capsys.readouterr()

    ran.unlink()
    code.write_text(code.read_text() + "# changed\n")
    assert "untrusted extensions" in fails("swarm", "run", "review.toml")
    assert not ran.exists()


def test_an_extension_named_on_the_command_line_needs_no_trust(server: FakeServer, file: Path) -> None:
    (file.parent / "own.py").write_text("from pathlib import Path\nPath('ran').touch()\ndef setup(api): pass\n")
    file.write_text(REVIEW + 'extensions = ["own.py"]\n')
    server.add("Fine.", "Fine.")

    assert run(["swarm", "run", "review.toml", "-e", "own.py"]) == 0
    assert (file.parent / "ran").exists()


def test_every_subcommand_has_help_with_an_example_and_is_documented(cli: Run) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()

    for name, command in swarm.commands.items():
        assert "Example" in cli("swarm", name, "--help")
        assert f"`swarm {name}" in page
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert all(f"`{option}`" in page for option in parameter.opts), parameter.opts


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_the_documented_examples_are_valid(here: Path, block: str) -> None:
    Path("swarm.toml").write_text(block)

    assert load_swarm_file("swarm.toml").team


def test_every_setting_is_documented() -> None:
    text = PAGE.read_text()

    for struct in (SwarmFile, AgentTable, BudgetTable):
        for name in struct.__struct_fields__:
            assert re.search(rf"`\[*{name}\]*`", text), name


def test_the_resume_command_is_quoted_for_the_shell() -> None:
    assert (
        format_resume_command("crew; touch pwned", durable=True)
        == "sessiontree swarm resume 'crew; touch pwned' --durable"
    )


def test_a_limit_that_cannot_be_enforced_pauses_the_swarm_and_resume_can_remove_it(
    cli: Run, server: FakeServer, file: Path
) -> None:
    file.write_text(REVIEW.replace("agents = 2", 'strategy = "pipeline"\nagents = 2'))
    server.add("One.", "Two.")

    paused = cli("swarm", "run", "review.toml", "--max-cost", "1", code=3)
    asked = len(server.requests)
    shown = cli("swarm", "resume", "review", "--max-cost", "0")

    assert "budget use unknown" in paused
    assert "paused: the cost limit cannot be enforced: the cost of openai:scripted is unknown" in paused
    assert "resume with 0 for that limit: `sessiontree swarm resume review`" in paused
    assert asked == 1
    assert "review completed" in shown
    assert "of the budget" not in shown


def test_unreported_usage_is_shown_as_unknown(cli: Run, server: FakeServer, file: Path) -> None:
    server.add(*[Answer(text="Fine.", usage=None)] * 2)

    shown = cli("swarm", "run", "review.toml")

    _, _, _, first, _, total, *_ = shown.splitlines()
    assert first.split()[3:5] == ["-", "-"]
    assert total.split()[2:4] == ["-", "-"]
    assert cli("swarm", "ls").splitlines()[1].split()[6:8] == ["-", "-"]
