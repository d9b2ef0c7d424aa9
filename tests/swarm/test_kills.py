"""Processes that are killed while they run a swarm: the next one resumes it and repeats nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.swarm.journal import list_swarms

ROOT = Path(__file__).parents[2]


def run_until_killed(file: Path, calls: Path, strategy: str, kill_at: int) -> int:
    """Run a process that is killed at its `kill_at`-th write, and return the exit code."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.swarm.swarm_process", str(file), str(calls), strategy],
        cwd=ROOT,
        env={**os.environ, "KILL_AT": str(kill_at)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode in (0, -signal.SIGKILL), run.stderr
    return run.returncode


@pytest.mark.parametrize(("strategy", "step"), [("parallel", 7), ("map-reduce", 9), ("pipeline", 5), ("tree", 4)])
def test_a_swarm_completes_although_its_process_is_killed_repeatedly(tmp_path: Path, strategy: str, step: int) -> None:
    file, calls = tmp_path / "s.jsonl", tmp_path / "calls"
    with st.create(file=file) as session:
        session.append(st.user("Hello"))

    kills = 0
    while run_until_killed(file, calls, strategy, step) != 0:
        kills += 1
        with st.open(file) as session:
            assert not [problem for problem in session.problems if problem.severity == "fault"]
            done = [agent for status in list_swarms(session) for agent in status.agents if agent.status == "completed"]
        assert kills < 20

    assert kills > 0
    with st.open(file) as session:
        (status,) = list_swarms(session)
        assert not session.problems
    assert status.status == "completed"
    assert all(agent.status == "completed" for agent in status.agents)
    assert {agent.id for agent in done} <= {agent.id for agent in status.agents}
    # Only calls that were in progress when their process died are repeated.
    asked = calls.read_text().splitlines()
    assert len(status.agents) <= len(asked) <= len(status.agents) + kills * 3
    answers = [entry for entry in session.tree if entry.type == "agent_action" and entry.body.action == "complete"]
    assert len(answers) == len(status.agents)


def test_finished_work_is_not_repeated(tmp_path: Path) -> None:
    """The process dies after the first of three stages; the next process runs the other two."""
    file, calls = tmp_path / "s.jsonl", tmp_path / "calls"
    st.create(file=file).close()
    kill_at = 0
    while not calls.exists() or not any("stage 2" in line for line in calls.read_text().splitlines()):
        kill_at += 1
        if run_until_killed(file, calls, "pipeline", kill_at) == 0:
            break
    before = calls.read_text().splitlines()
    with st.open(file) as session:
        done = {agent.id: agent for agent in list_swarms(session)[0].agents if agent.status == "completed"}

    assert run_until_killed(file, calls, "pipeline", 10_000) == 0

    after = calls.read_text().splitlines()[len(before) :]
    assert "stage-1" in done
    assert not any("stage 1" in line for line in after)
    with st.open(file) as session:
        (status,) = list_swarms(session)
    assert status.status == "completed"
    assert {agent.id: agent for agent in status.agents}["stage-1"] == done["stage-1"]
