"""`sessiontree ab` and `sessiontree fan-out`, with a fake model server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from tests.cli.conftest import HOSTILE, Run
from tests.cli.test_branch_ops import server as server
from tests.cli.test_cli import complete
from tests.model.fake_server import Answer, FakeServer, calls, fail, slow

LONG = 120
"""Seconds after which a process is stuck, even on a busy machine."""
ARMS = ("--arm", "short=In one word.", "--arm", "long=At length.")


@pytest.fixture
def question(here: Path) -> str:
    with st.create("sums") as session:
        session.append(st.user("How much is 6 times 7?"))
        return session.append(st.assistant("Shall I be brief?")).id


def answer_arm(body: dict[str, Any]) -> Answer:
    if "grade" in str(body["messages"][0]["content"]):
        return Answer(text="GRADE: 5" if '"42"' in str(body["messages"][-1]) else "GRADE: 2")
    short = "one word" in str(body["messages"][-1]["content"])
    return Answer(text="42" if short else "It is, all told, 42.")


def parse_lines(shown: str) -> list[Any]:
    return [json.loads(line) for line in shown.splitlines()]


def test_every_arm_runs_the_given_number_of_times_and_a_clear_winner_is_declared(
    cli: Run, server: FakeServer, question: str
) -> None:
    server.add(*[answer_arm] * 40)

    shown = cli(
        "ab", "@", *ARMS, "--score", "exact=42", "--score", "matches=4.", "--no-tools", "--runs", "9", "--all-runs"
    )

    head, columns, short, long, difference, earlier, places, winner, best = shown.splitlines()
    assert earlier.startswith("the interval was ")
    assert head.startswith("ab-1 ")
    assert head.endswith("18 of 18 runs")
    assert columns.split() == ["arm", "runs", "failed", "cost", "tokens", "time", "exact", "matches"]
    assert short.split()[:3] == ["short", "9", "0"]
    assert "1 (0.594 to 1)" in short
    assert "0 (0 to 0.406)" in long
    assert difference.startswith("short - long: 1, 95 % confidence interval 0.")
    assert places == "all runs start from one place; the result says nothing about other tasks"
    assert winner.startswith("winner: short (highest exact: 1 more than long (95% confidence interval: 0.")
    assert best.startswith("best run: ab-1/short-")
    with st.open("sums") as session:
        assert session.head.leaf == question
        assert sum(name.startswith("ab-1/") for name in session.heads.heads) == 18


def test_too_little_data_has_no_winner(cli: Run, server: FakeServer, question: str) -> None:
    server.add(*[answer_arm] * 4)

    shown = cli("ab", "@", *ARMS, "--runs", "2", "--score", "exact=42", "--no-tools")

    assert shown.splitlines()[-1].startswith(
        "no winner: not enough data: short and long do not differ significantly by exact"
    )


def test_results_are_shown_again_later_and_as_json(cli: Run, server: FakeServer, question: str) -> None:
    assert cli("ab", "@") == "no experiments\n"
    server.add(*[answer_arm] * 6)
    first = cli("ab", "@", *ARMS, "--runs", "1", "--no-tools", "--metric", "tokens", "--json")
    cli("ab", "@", *ARMS, "--runs", "2", "--no-tools", "--name", "again")

    found = parse_lines(cli("ab", "@", "--json"))

    assert [one["name"] for one in found] == ["ab-1", "again"]
    assert [found[0]] == parse_lines(first)
    assert (found[0]["metric"], found[0]["planned"], found[0]["winner"]) == ("tokens", 2, None)
    assert cli("ab", "@").count("no winner: not enough data") == 2
    assert complete("sessiontree", "ab", "@", "--resume", "a") == ["ab-1", "again"]


def test_arms_can_be_models_and_thinking_levels(cli: Run, server: FakeServer, question: str) -> None:
    server.add(*[answer_arm] * 2)
    arms = ("--arm-model", "small=openai:s", "--arm-model", "large=openai:l", "--arm-system", "large=Be large.")

    cli("ab", "@", "--prompt", "Go.", *arms, "--runs", "1", "--no-tools")

    asked = {request["model"]: request["messages"] for request in server.requests}
    assert set(asked) == {"s", "l"}
    assert "Be large." in str(asked["l"][0])
    assert "Be large." not in str(asked["s"][0])


def test_the_usage_of_a_judge_is_reported_separately(cli: Run, server: FakeServer, question: str) -> None:
    server.add(*[answer_arm] * 80)

    shown = cli(
        "ab", "@", *ARMS, "--runs", "12", "--all-runs", "--score", "judge", "--judge", "openai:judge", "--no-tools"
    )

    assert "winner: short (highest judge: 3 more than long" in shown
    assert "scoring used" in shown
    assert sum(request["model"] == "judge" for request in server.requests) == 24


def test_failed_runs_are_reported_and_repeated(cli: Run, server: FakeServer, question: str) -> None:
    server.add(fail(401, "no key"), *[answer_arm] * 3)
    failed = cli("ab", "@", *ARMS, "--runs", "2", "--no-tools", "--concurrency", "1", code=3)
    server.add(answer_arm)

    shown = cli("ab", "@", "--resume", "ab-1", "--retry-failed", "--json")

    assert "no key" in failed
    assert "tools" not in server.requests[-1]  # as in the first run
    assert [run["ok"] for run in parse_lines(shown)[0]["runs"]] == [True] * 4
    assert sum(arm["failed"] for arm in parse_lines(shown)[0]["arms"]) == 1
    assert len(server.requests) == 5


def test_an_interrupted_experiment_stops_and_can_be_resumed(cli: Run, server: FakeServer, question: str) -> None:
    server.add(answer_arm, slow("word " * 10_000), answer_arm)
    command = [sys.executable, "-c", "from sessiontree.cli import main; main()"]
    arguments = ["ab", "sums", *ARMS, "--runs", "1", "--concurrency", "1", "--no-tools"]
    with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True) as working:
        assert server.wait_for(lambda server: len(server.requests) == 2, LONG)
        working.send_signal(signal.SIGINT)
        _, err = working.communicate(timeout=LONG)

    (found,) = parse_lines(cli("ab", "sums", "--resume", "ab-1", "--no-tools", "--json"))

    assert working.returncode == 130
    assert "resume with `sessiontree ab … --resume ab-1`" in err
    assert [run["ok"] for run in found["runs"]] == [True, True]
    assert len(server.requests) == 3


def test_a_budget_stops_the_experiment(cli: Run, server: FakeServer, question: str) -> None:
    server.add(*[answer_arm] * 10)

    shown = cli("ab", "@", *ARMS, "--max-tokens", "1", "--concurrency", "1", "--no-tools")

    assert "1 of 40 runs are done: the budget is used up" in shown
    assert len(server.requests) == 1


def test_the_winner_is_promoted_on_request(cli: Run, server: FakeServer, question: str) -> None:
    server.add(*[answer_arm] * 40)

    cli("ab", "@", *ARMS, "--score", "exact=42", "--no-tools", "--promote")

    with st.open("sums") as session:
        assert session.heads.current == "main"
        assert "Experiment ab-1: short won" in str(session.head.context().to_llm()[-1])
        assert [info.name for info in session.branches if not info.archived] == ["main"]


def test_each_run_is_reported_when_it_finishes(
    cli: Run, server: FakeServer, question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from sessiontree.cli.app import run

    server.add(*[answer_arm] * 2)

    assert run(["ab", "@", *ARMS, "--runs", "1", "--no-tools", "--concurrency", "1"]) == 0

    outlook, *message = capsys.readouterr().err.splitlines()
    assert outlook.startswith(
        "up to 1 run of each arm; for comparison, 100% against 40% of right answers needs about 1"
    )
    assert [line.split(":")[0] for line in message] == ["1 of 2", "2 of 2"]


def test_runs_are_added_to_an_experiment_and_a_repetition_is_pointed_out(
    cli: Run, server: FakeServer, question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from sessiontree.cli.app import run

    server.add(*[answer_arm] * 12)
    cli("ab", "@", *ARMS, "--runs", "2", "--no-tools")

    shown = cli("ab", "@", "--resume", "ab-1", "--more", "2", "--no-tools", "--json")
    assert run(["ab", "@", *ARMS, "--runs", "2", "--no-tools"]) == 0

    assert (parse_lines(shown)[0]["planned"], len(parse_lines(shown)[0]["runs"])) == (8, 8)
    assert "this repeats ab-1" in capsys.readouterr().err
    assert run(["ab", "@", *ARMS, "--more", "2"]) == 2


def test_text_from_a_session_is_escaped(cli: Run, question: str) -> None:
    arm = {"name": HOSTILE.replace("\ud800", ""), "model": "m"}
    plan = {"kind": "plan", "experiment": HOSTILE.replace("\ud800", ""), "name": "\x1b[2Jx", "at": None, "arms": [arm]}
    plan |= {"runs": 1, "metric": "\x1b]0;cost\x07", "better": "lower", "scorers": [{"name": "\x1b[31m"}], "seed": 0}
    with st.open("sums") as session:
        session.append(st.Custom(custom_type="sessiontree.experiment", data=plan))

    for shown in (cli("ab", "@"), cli("ab", "@", "--json")):
        assert shown
        assert not any(character in shown for character in "\x1b\x07\x9b\u202e")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arm", "short"), "--arm: expected NAME=VALUE, not 'short'"),
        (("--arm", "a=1", "--arm", "a=2"), "--arm: arm 'a' has two values"),
        (("--arm-thinking", "a=lots"), "unknown level 'lots'"),
        ((*ARMS, "--score", "beauty"), "--score: expected exact=TEXT"),
        (("--prompt", "Go."), "no arms"),
        (("--promote",), "no arms"),
        ((*ARMS, "--max-cost", "0"), "--max-cost"),
        ((*ARMS, "--max-tokens", "many"), "--max-tokens"),
        ((*ARMS, "--resume", "ab-1"), "--resume uses the plan of the experiment"),
        (("--resume", "ab-1", "--metric", "time"), "--resume uses the plan of the experiment"),
        (("--resume", "ab-1", "--runs", "9"), "--resume uses the plan of the experiment"),
        (("--resume", "ab-1", "--at", "HEAD"), "--resume uses the plan of the experiment"),
        (("--resume", "ab-1", "--seed", "0"), "--resume uses the plan of the experiment"),
    ],
)
def test_contradictory_options_are_wrong_usage(
    fails: Run, server: FakeServer, question: str, arguments: tuple[str, ...], message: str
) -> None:
    assert message in fails("ab", "@", *arguments, code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arm", "a=1"), "an experiment needs at least two arms"),
        ((*ARMS, "--max-cost", "nan"), "a budget of nan dollars is invalid"),
        (("--resume", "ab-7"), "experiment 'ab-7' not found"),
    ],
)
def test_an_impossible_experiment_is_reported_on_one_line(
    fails: Run, server: FakeServer, question: str, arguments: tuple[str, ...], message: str
) -> None:
    assert message in fails("ab", "@", *arguments)


# Fan out


@pytest.fixture
def speed_question(here: Path) -> str:
    with st.create("speed") as session:
        return session.append(st.user("How?")).id


def test_every_prompt_goes_to_every_model_on_its_own_branch(cli: Run, server: FakeServer, speed_question: str) -> None:
    server.add(*["Fine."] * 4)
    models = ("--model", "openai:small", "--model", "openai:large")

    shown = cli("fan-out", "@", "--prompt", "a cache", "--prompt", "a table", *models, "--json")

    lines = [json.loads(line) for line in shown.splitlines()]
    assert [(line["branch"], line["prompt"], line["model"]) for line in lines] == [
        ("variant-1", "a cache", "openai:small"),
        ("variant-2", "a cache", "openai:large"),
        ("variant-3", "a table", "openai:small"),
        ("variant-4", "a table", "openai:large"),
    ]
    assert all(line["text"] == "Fine." and line["error"] is None for line in lines)
    assert sorted(request["model"] for request in server.requests) == ["large", "large", "small", "small"]
    with st.open("speed") as session:
        assert session.heads.current == "main"
        assert session.head.leaf == speed_question
        assert session.branch("variant-4").leaf == lines[3]["head"]


def test_without_a_prompt_the_models_answer_the_last_message(cli: Run, server: FakeServer, speed_question: str) -> None:
    server.add("So.", "Thus.")

    shown = cli("fan-out", "@", "--model", "openai:a", "--model", "openai:b", "--name", "first", "--name", "second")

    names = [line.split()[0] for line in shown.splitlines()[::2]]
    assert names == ["first", "second"]
    assert sorted(shown.splitlines()[1::2]) == ["So.", "Thus."]


def test_a_failed_variant_is_reported_and_sets_the_exit_code(cli: Run, server: FakeServer, speed_question: str) -> None:
    server.add(fail(401, "no key"), "Fine.")

    shown = cli("fan-out", "@", "--prompt", "a", "--prompt", "b", "--json", code=3)

    errors = [json.loads(line)["error"] for line in shown.splitlines()]
    assert sum(error is None for error in errors) == 1
    assert any("no key" in (error or "") for error in errors)


def test_extensions_apply_to_all_variants(cli: Run, server: FakeServer, speed_question: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate.py"
    gate.write_text("def setup(api):\n    api.on('tool_call', lambda event, ctx: {'cancel': True, 'reason': 'no'})\n")
    server.add(calls(("c1", "bash", {"command": "touch ran"})), "Stopped.")

    cli("fan-out", "@", "--prompt", "a", "-e", str(gate))

    assert not Path("ran").exists()
    assert "no" in str(server.requests[1]["messages"][-1])


def test_every_branch_needs_a_name_if_names_are_given(fails: Run, speed_question: str) -> None:
    message = fails("fan-out", "@", "--prompt", "a", "--name", "x", "--name", "y", code=2)

    assert "--name: expected 1, one for each branch, not 2" in message
