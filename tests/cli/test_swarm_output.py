"""Output about swarms: limits and unknown usage."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.test_branch_ops import server as server
from tests.cli.test_swarm import REVIEW
from tests.cli.test_swarm import file as file
from tests.model.fake_server import Answer, FakeServer


def test_a_limit_that_cannot_be_enforced_pauses_the_swarm_and_resume_can_remove_it(
    cli: Run, server: FakeServer, file: Path
) -> None:
    file.write_text(REVIEW.replace("agents = 2", 'strategy = "pipeline"\nagents = 2'))
    server.add("One.", "Two.")

    paused = cli("swarm", "run", "review.toml", "--max-cost", "1", code=3)
    asked = len(server.requests)
    shown = cli("swarm", "resume", "review", "--max-cost", "0")

    assert "- of the budget used" in paused
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
