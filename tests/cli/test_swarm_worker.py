"""`sessiontree worker`, and swarms that run with `--durable`."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree.swarm.agent_runner import SwarmJob
from sessiontree.swarm.durable.database import JobRequest, WorkDatabase
from sessiontree.swarm.durable.executor import has_active_jobs
from sessiontree.swarm.durable.job_queue import JobQueue, WorkerInfo
from sessiontree.swarm.journal import list_swarms
from tests.cli.conftest import Run
from tests.cli.test_branch_ops import server as server
from tests.cli.test_serve import run_server
from tests.model.fake_server import FakeServer
from tests.swarm.test_durable import LONG, WorkerProcesses

REVIEW = """\
name = "review"
task = "Review app.py."
agents = 2
tools = ["ls"]
system = "Be brief."
"""


@pytest.fixture
def file(here: Path) -> Path:
    path = here / "review.toml"
    path.write_text(REVIEW)
    return path


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[WorkerProcesses]:
    workers = WorkerProcesses(tmp_path)
    yield workers
    workers.end()


def test_running_workers_are_listed(cli: Run, home: Path) -> None:
    assert cli("worker", "--list") == "no workers\n"
    queue = JobQueue(WorkDatabase())
    queue.register(WorkerInfo(id="tower-1", host="\x1b[2Jtower", home="h", concurrency=4), 60)
    queue.submit("w1", JobRequest(work=SwarmJob(session="s", swarm="w", agent="a", prompt="p"), where="/s"))
    queue.do_round("tower-1", renew=False, free=1)
    (row,) = cli("worker", "--list").splitlines()[1:]
    assert row.split("  ")[0] == "tower-1"
    assert row.endswith("1 of 4")
    assert "\x1b" not in row
    (listed,) = map(json.loads, cli("worker", "--list", "--json").splitlines())
    assert listed == {"id": "tower-1", "host": "\x1b[2Jtower", "concurrency": 4, "work": ["w1"]}


@pytest.mark.parametrize("command", [["worker"], ["worker", "--list"], ["swarm", "run", "review.toml", "--durable"]])
def test_an_unsupported_database_is_reported_on_one_line_and_creates_no_file(
    fails: Run, file: Path, here: Path, command: list[str]
) -> None:
    message = fails(*command, "--database", "mysql://ann:secret@db.example/work")

    assert message == (
        "sessiontree: mysql://… is not supported; use postgresql://host/database or the path of a SQLite file\n"
    )
    assert [path.name for path in here.iterdir()] == [file.name]
    assert st.sessions(all=True) == []


def test_an_unreachable_database_is_reported_on_one_line(fails: Run) -> None:
    message = fails("worker", "--database", "postgresql://ann:secret@127.0.0.1:1/work?connect_timeout=1")
    assert "secret" not in message


def test_a_swarm_whose_jobs_cannot_be_queued_leaves_no_session(fails: Run, file: Path) -> None:
    fails("swarm", "run", str(file), "--durable", "--database", "postgresql://127.0.0.1:1/work?connect_timeout=1")

    assert st.sessions(all=True) == []


def test_worker_options_require_durable(fails: Run, file: Path) -> None:
    assert "require --durable" in fails("swarm", "run", str(file), "--concurrency", "2", code=2)


def test_a_stopped_durable_swarm_prints_the_resume_command(server: FakeServer, file: Path) -> None:
    command = [sys.executable, "-m", "sessiontree", "swarm", "run", str(file), "--durable"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    while "in session" not in running.stderr.readline():  # then the process waits for workers
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=LONG)

    assert running.returncode == 130
    assert "resume with `sessiontree swarm resume review --durable`" in err


def test_a_swarm_held_by_workers_is_not_run_by_another_process(server: FakeServer, file: Path, fails: Run) -> None:
    command = [sys.executable, "-m", "sessiontree", "swarm", "run", str(file), "--durable"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    while "in session" not in (line := running.stderr.readline()):
        assert running.poll() is None
    _, _, id, *_ = line.split()
    while not has_active_jobs(id):
        assert running.poll() is None
    running.kill()
    running.communicate(timeout=LONG)

    assert "`sessiontree swarm resume review --durable`" in fails("swarm", "resume", "review")
    assert server.requests == []


def test_a_finished_swarm_is_not_reported_as_waiting_for_workers(
    server: FakeServer, file: Path, cli: Run, fails: Run
) -> None:
    server.add("Fine.", "Good.")
    cli("swarm", "run", str(file))

    assert "review is completed" in fails("swarm", "resume", "review", "--durable")


async def test_a_swarm_waits_for_a_worker_and_the_worker_runs_it(
    server: FakeServer, file: Path, workers: WorkerProcesses
) -> None:
    server.add("Fine.", "Good.")
    command = [sys.executable, "-m", "sessiontree", "swarm", "run", str(file), "--durable", "--concurrency", "1"]
    running = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert "no worker is running" in running.stderr.readline()
    workers.start()
    out, err = await asyncio.to_thread(running.communicate, timeout=LONG)
    assert running.returncode == 0, err
    message: dict[str, Any] = json.loads(out)
    assert message["status"] == "completed"
    assert sorted(agent["text"] for agent in message["agents"]) == ["Fine.", "Good."]
    first, second = server.requests
    assert [tool["function"]["name"] for tool in first["tools"]] == ["ls"]
    assert second["messages"][0]["content"] == "Be brief."
    with st.open("review") as session:
        assert [status.status for status in list_swarms(session)] == ["completed"]
        assert not session.problems


def test_workers_resume_with_the_tools_and_prompt_that_the_swarm_started_with(
    server: FakeServer, file: Path, workers: WorkerProcesses, cli: Run
) -> None:
    file.write_text(REVIEW.replace("agents = 2", 'agents = 2\nstrategy = "pipeline"'))
    server.add("Fine.", "Good.")
    cli("swarm", "run", str(file), "--max-tokens", "10", code=3)
    workers.start()

    output = cli("swarm", "resume", "review", "--durable", "--max-tokens", "0")

    assert "review completed" in output
    assert [[tool["function"]["name"] for tool in body["tools"]] for body in server.requests] == [["ls"]] * 2
    assert [body["messages"][0]["content"] for body in server.requests] == ["Be brief."] * 2


async def test_a_swarm_whose_server_was_killed_is_resumed_from_another_folder(
    server: FakeServer, here: Path, workers: WorkerProcesses, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker was there yet when the server died; the swarm is adopted by the command, and then by a worker."""
    server.add("Fine.", "Good.")
    with run_server("--allow-run") as (process, base, token), st.create("talk", cwd=here) as session:
        session.append(st.user("Hello"))
        asked = {"name": "crew", "task": "Look", "session": session.id, "agents": 2, "durable": True}
        headers = {"authorization": f"Bearer {token}"}
        created = httpx.post(f"{base}/api/swarms", json=asked, headers=headers, timeout=60)
        assert created.status_code == 201, created.text
        async with asyncio.timeout(LONG):
            while not has_active_jobs(created.json()["id"]):
                await asyncio.sleep(0.05)
        process.kill()
        process.wait()
    elsewhere = here.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    workers.start()

    output = await asyncio.to_thread(cli, "swarm", "resume", "crew", "--durable")

    assert "crew completed" in output
    assert len(server.requests) == 2
    with st.open(session.id) as again:
        assert [status.status for status in list_swarms(again)] == ["completed"]
        assert not again.problems


def test_a_name_that_several_swarms_of_other_folders_have_is_not_guessed(
    server: FakeServer, file: Path, cli: Run, fails: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(*["Fine."] * 4)
    for _ in range(2):
        cli("swarm", "run", str(file))
    elsewhere = file.parent.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    assert "swarm 'review' is ambiguous" in fails("swarm", "resume", "review", "--durable")
    assert "searched the sessions of this folder" in fails("swarm", "resume", "review")
    assert "searched all sessions" in fails("swarm", "resume", "other", "--durable")
