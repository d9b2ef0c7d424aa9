"""`sessiontree fan-out`, with a fake model server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sessiontree as st
from tests.cli.conftest import Run
from tests.cli.test_branch_ops import server as server
from tests.model.fake_server import FakeServer, calls, fail


@pytest.fixture
def question(here: Path) -> str:
    with st.create("speed") as session:
        return session.append(st.user("How?")).id


def test_every_prompt_goes_to_every_model_on_its_own_branch(cli: Run, server: FakeServer, question: str) -> None:
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
        assert session.head.leaf == question
        assert session.branch("variant-4").leaf == lines[3]["head"]


def test_without_a_prompt_the_models_answer_the_last_message(cli: Run, server: FakeServer, question: str) -> None:
    server.add("So.", "Thus.")

    shown = cli("fan-out", "@", "--model", "openai:a", "--model", "openai:b", "--name", "first", "--name", "second")

    names = [line.split()[0] for line in shown.splitlines()[::2]]
    assert names == ["first", "second"]
    assert sorted(shown.splitlines()[1::2]) == ["So.", "Thus."]


def test_a_failed_variant_is_reported_and_sets_the_exit_code(cli: Run, server: FakeServer, question: str) -> None:
    server.add(fail(401, "no key"), "Fine.")

    shown = cli("fan-out", "@", "--prompt", "a", "--prompt", "b", "--json", code=3)

    errors = [json.loads(line)["error"] for line in shown.splitlines()]
    assert sum(error is None for error in errors) == 1
    assert any("no key" in (error or "") for error in errors)


def test_extensions_apply_to_all_variants(cli: Run, server: FakeServer, question: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate.py"
    gate.write_text("def setup(api):\n    api.on('tool_call', lambda event, ctx: {'cancel': True, 'reason': 'no'})\n")
    server.add(calls(("c1", "bash", {"command": "touch ran"})), "Stopped.")

    cli("fan-out", "@", "--prompt", "a", "-e", str(gate))

    assert not Path("ran").exists()
    assert "no" in str(server.requests[1]["messages"][-1])


def test_every_branch_needs_a_name_if_names_are_given(fails: Run, question: str) -> None:
    message = fails("fan-out", "@", "--prompt", "a", "--name", "x", "--name", "y", code=2)

    assert "--name: expected 1, one for each branch, not 2" in message
