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

import pytest

import sessiontree as st
from sessiontree.swarm.durable.database import WorkDatabase
from sessiontree.swarm.durable.executor import has_active_jobs
from sessiontree.swarm.durable.roster import Roster, WorkerInfo
from sessiontree.swarm.journal import list_swarms
from tests.cli.conftest import Run
from tests.cli.test_branch_ops import server as server
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


@pytest.fixture
def roster(home: Path) -> Iterator[Roster]:
    database = WorkDatabase()
    database.migrate()
    roster = Roster(database)
    roster.create_table()
    yield roster
    roster.close()


def test_the_workers_that_are_there_are_listed(cli: Run, roster: Roster) -> None:
    assert cli("worker", "--list") == "no workers\n"
    roster.register(WorkerInfo(id="tower-1", host="\x1b[2Jtower", home="h", concurrency=4))
    roster.renew("tower-1", ["w1"])
    (row,) = cli("worker", "--list").splitlines()[1:]
    assert row.split("  ")[0] == "tower-1"
    assert row.endswith("1 of 4")
    assert "\x1b" not in row
    (listed,) = map(json.loads, cli("worker", "--list", "--json").splitlines())
    assert listed == {"id": "tower-1", "host": "\x1b[2Jtower", "concurrency": 4, "work": ["w1"]}


@pytest.mark.parametrize("command", [["worker"], ["worker", "--list"], ["swarm", "run", "review.toml", "--durable"]])
def test_a_database_of_another_kind_is_one_sentence_and_no_file(
    fails: Run, file: Path, here: Path, command: list[str]
) -> None:
    said = fails(*command, "--database", "mysql://ann:secret@db.example/work")

    assert said == (
        "sessiontree: mysql://… is not supported; use postgresql://host/database or the path of a SQLite file\n"
    )
    assert [path.name for path in here.iterdir()] == [file.name]
    assert st.sessions(all=True) == []


def test_a_database_that_is_not_there_is_one_sentence(fails: Run) -> None:
    said = fails("worker", "--database", "postgresql://ann:secret@127.0.0.1:1/work?connect_timeout=1")
    assert "secret" not in said


def test_nothing_is_left_of_a_swarm_whose_work_cannot_be_sent(fails: Run, file: Path) -> None:
    fails("swarm", "run", str(file), "--durable", "--database", "postgresql://127.0.0.1:1/work?connect_timeout=1")

    assert st.sessions(all=True) == []


@pytest.mark.parametrize("command", [["worker", "--list"], ["swarm", "run", "review.toml", "--durable"]])
def test_without_what_workers_take_one_is_told_how_to_get_it(
    fails: Run, file: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("worker", "database"):
        monkeypatch.setitem(sys.modules, f"sessiontree.swarm.durable.{name}", None)

    assert "pip install 'sessiontree[swarm]'" in fails(*command)


def test_options_for_workers_need_the_durable_one(fails: Run, file: Path) -> None:
    assert "require --durable" in fails("swarm", "run", str(file), "--concurrency", "2", code=2)


def test_one_that_is_stopped_says_how_workers_go_on_with_it(server: FakeServer, file: Path) -> None:
    command = [sys.executable, "-m", "sessiontree", "swarm", "run", str(file), "--durable"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    while "in session" not in running.stderr.readline():  # from then on it waits for workers
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=LONG)

    assert running.returncode == 130
    assert "resume with `sessiontree swarm resume review --durable`" in err


def test_what_workers_have_is_not_done_by_another_process_too(server: FakeServer, file: Path, fails: Run) -> None:
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


def test_a_swarm_that_is_over_is_not_told_to_wait_for_workers(
    server: FakeServer, file: Path, cli: Run, fails: Run
) -> None:
    server.add("Fine.", "Good.")
    cli("swarm", "run", str(file))

    assert "review is completed" in fails("swarm", "resume", "review", "--durable")


async def test_a_swarm_waits_for_a_worker_which_carries_it_out(
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
    told: dict[str, Any] = json.loads(out)
    assert told["status"] == "completed"
    assert sorted(agent["text"] for agent in told["agents"]) == ["Fine.", "Good."]
    first, second = server.requests
    assert [tool["function"]["name"] for tool in first["tools"]] == ["ls"]
    assert second["messages"][0]["content"] == "Be brief."
    with st.open("review") as session:
        assert [status.status for status in list_swarms(session)] == ["completed"]
        assert not session.problems


def test_workers_go_on_with_the_tools_and_the_prompt_that_a_swarm_began_with(
    server: FakeServer, file: Path, workers: WorkerProcesses, cli: Run
) -> None:
    file.write_text(REVIEW.replace("agents = 2", 'agents = 2\nstrategy = "pipeline"'))
    server.add("Fine.", "Good.")
    cli("swarm", "run", str(file), "--max-tokens", "10", code=3)
    workers.start()

    told = cli("swarm", "resume", "review", "--durable", "--max-tokens", "0")

    assert "review completed" in told
    assert [[tool["function"]["name"] for tool in body["tools"]] for body in server.requests] == [["ls"]] * 2
    assert [body["messages"][0]["content"] for body in server.requests] == ["Be brief."] * 2
