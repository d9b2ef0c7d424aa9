"""Durable swarms: real workers that are killed, suspended and stopped, and a model server that counts requests."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

import sessiontree as st
from sessiontree.core.entries import AgentAction, Message
from sessiontree.core.messages import extract_text, get_role
from sessiontree.errors import InvalidOperation
from sessiontree.session import Session
from sessiontree.swarm.agent_runner import SwarmJob
from sessiontree.swarm.durable.database import (
    JobReport,
    JobRequest,
    WorkDatabase,
    build_id_prefix,
    decode_report,
    decode_request,
    encode,
)
from sessiontree.swarm.durable.executor import DurableExecutor, has_active_jobs
from sessiontree.swarm.durable.job_queue import JobQueue
from sessiontree.swarm.events import EventLog, build_spool_path
from sessiontree.swarm.journal import list_swarms
from sessiontree.swarm.records import AgentSpec, SwarmStatus
from sessiontree.swarm.swarm import Swarm
from tests.model.fake_server import Answer, FakeServer, calls, slow
from tests.postgres import Server as PostgresServer
from tests.swarm.network_island import Island, can_create_islands

ROOT = Path(__file__).parents[2]
LEASE = "20"
"""Seconds. Most tests declare workers dead instead of waiting for the lease."""
LONG = 240.0
"""The time limit for everything here, in seconds."""


@cache
def start_fork_server() -> subprocess.Popen[str]:
    """Start a process that forks workers, which saves their import time."""
    command = [sys.executable, "-m", "tests.swarm.worker_process"]
    started = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(started.kill)
    return started


def ask_fork_server(question: Any) -> Any:
    asked, said = start_fork_server().stdin, start_fork_server().stdout
    assert asked is not None
    assert said is not None
    print(json.dumps(question), file=asked, flush=True)
    return json.loads(said.readline())


class WorkerProcess:
    """A worker process."""

    def __init__(self, log: Path, options: tuple[str, ...], environment: dict[str, str]) -> None:
        self._log = log
        self._code: int | None = None
        given = ["--lease", LEASE, "--concurrency", "2", *options]
        self._pid: int = ask_fork_server([environment, str(log), given])

    @property
    def code(self) -> int | None:
        """The exit code; `None` while the process runs."""
        if self._code is None:
            self._code = ask_fork_server(self._pid)
        return self._code

    def send(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)

    def kill(self) -> None:
        while self.code is None:
            self.send(signal.SIGKILL)

    async def wait_until_ended(self) -> int:
        """Wait for its end and return the exit code."""
        await wait_until(lambda: self.code is not None)
        assert self._code is not None
        return self._code

    @property
    def is_stopped(self) -> bool:
        return Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    @property
    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


class WorkerProcesses:
    """Worker processes, which end with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[WorkerProcess] = []

    def start(self, *options: str, kill_at: str | None = None, **environment: str) -> WorkerProcess:
        given = {**os.environ, **environment, **({} if kill_at is None else {"KILL_AT": kill_at})}
        allowed = ("--permission-mode", "allow-all", *options)
        worker = WorkerProcess(self._folder / f"worker-{len(self._all)}.log", allowed, given)
        self._all.append(worker)
        return worker

    def declare_dead(self, *dead: WorkerProcess) -> None:
        """Mark all or some workers as dead without waiting for their leases."""
        queue = JobQueue(WorkDatabase())
        for worker in queue.list_workers():
            if not dead or any(worker.id in other.output for other in dead):
                queue.retire(worker.id)
        queue.database.close()

    def end(self) -> None:
        for worker in self._all:
            worker.kill()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[WorkerProcesses]:
    workers = WorkerProcesses(tmp_path)
    yield workers
    workers.end()


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG):
        while not condition():
            await asyncio.sleep(0.02)


@contextmanager
def serve_model(home: Path, answer: Callable[[dict[str, Any]], str | Answer]) -> Iterator[FakeServer]:
    """Run a model server that is configured as `test:scripted`."""
    with FakeServer([answer] * 200) as server:
        folder = home / ".sessiontree"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text(
            f'model = "test:scripted"\n[models."test:scripted"]\nbase_url = "{server.url}"\n'
        )
        yield server


def copy_home(home: Path, name: str) -> Path:
    """Create another home with the same configuration."""
    return Path(shutil.copytree(home / ".sessiontree", home / name))


def create_worker_role(address: str) -> str:
    """Return the address for workers, with the role that docs/deploy.md describes."""
    st.create(dir=address).close()
    WorkDatabase(address).migrate()
    page = (ROOT / "docs" / "deploy.md").read_text().split("```sql\n")
    with psycopg.connect(address, autocommit=True) as connection:
        for block in (page[1], page[-1], "CREATE ROLE dora LOGIN IN ROLE sessiontree_worker;\n"):
            for statement in block.partition("```")[0].split(";\n"):
                with suppress(psycopg.errors.DuplicateObject):  # other tests create these roles too
                    connection.execute(statement.encode())
    return address.replace("postgres@", "dora@")


def create_file_session(tmp_path: Path) -> Session:
    session = st.create(file=tmp_path / "s.jsonl", cwd=tmp_path)
    session.append(st.user("Hello"))
    return session


async def run_swarm(session: Session, *, database: str | None = None, **options: Any) -> SwarmStatus:
    """Create or resume the swarm of the session, and run it with workers."""
    executor = DurableExecutor(session, database=database)
    known = list_swarms(session)
    try:
        if known:
            swarm = Swarm.open(session, known[0].id, executor=executor)
        else:
            given = {"agents": 1, "model": "test:scripted", **options}
            swarm = await Swarm.create(session, "crowd", "Do it", executor=executor, **given)
        async with asyncio.timeout(LONG):
            return await swarm.run()
    finally:
        await executor.close()


def check_integrity(session: Session) -> None:
    """Check that no entry exists twice and that the tree has no problems."""
    session.refresh()
    assert not [problem for problem in session.problems if problem.severity == "fault"]
    ids = [entry.id for entry in session.tree.entries]
    assert len(ids) == len(set(ids))
    completed = [
        entry.body.agent
        for entry in session.tree.entries
        if isinstance(entry.body, AgentAction) and entry.body.action == "complete"
    ]
    assert len(completed) == len(set(completed))
    assert not [entry for entry in session.tree.entries if entry.branch is None]


def list_messages(session: Session, branch: str) -> list[str]:
    bodies = [entry.body for entry in session.branch(branch).path()]
    return [
        f"{get_role(body.message)}: {extract_text(body.message.get('content'))}"
        for body in bodies
        if isinstance(body, Message)
    ]


def answer_with_tool(command: str) -> Callable[[dict[str, Any]], str | Answer]:
    """Return a model that runs a command once and then answers."""

    def answer(body: dict[str, Any]) -> str | Answer:
        if any(message["role"] == "tool" for message in body["messages"]):
            return "Done."
        return calls(("c1", "bash", {"command": command}))

    return answer


async def test_a_worker_denies_tool_calls_without_permission_and_reports_them(
    tmp_path: Path, home: Path, workers: WorkerProcesses
) -> None:
    made = tmp_path / "made"
    with serve_model(home, answer_with_tool(f"touch {made}")), create_file_session(tmp_path) as session:
        running = asyncio.create_task(run_swarm(session, agents=1))
        worker = workers.start("--permission-mode", "ask")
        status = await running
        await wait_until(lambda: "denied bash: touch" in worker.output)

    assert [agent.denied for agent in status.agents] == [(f"bash: touch {made}",)]
    assert not made.exists()


# Workers that crash


async def test_jobs_of_killed_workers_are_resumed(tmp_path: Path, home: Path, workers: WorkerProcesses) -> None:
    """Workers are killed before and after an answer is written, in a tool, and during a model call."""
    made, dead = tmp_path / "made", threading.Event()

    def answer(body: dict[str, Any]) -> str | Answer:
        results = [message for message in body["messages"] if message["role"] == "tool"]
        if "stage 2" in str(body["messages"]):
            return "Second."
        if not results:
            return calls(("c1", "bash", {"command": f"echo x >> {made}; exec sleep 60"}))
        dead.wait(LONG)
        return "First."

    with serve_model(home, answer) as server, create_file_session(tmp_path) as session:
        running = asyncio.create_task(run_swarm(session, agents=2, strategy="pipeline"))
        first = workers.start(kill_at="before 1")
        assert await first.wait_until_ended() == -signal.SIGKILL, first.output
        assert len(server.requests) == 1
        workers.declare_dead()
        second = workers.start()
        await wait_until(made.exists)
        second.kill()
        assert len(server.requests) == 1
        workers.declare_dead()
        third = workers.start()
        await wait_until(lambda: len(server.requests) == 2)
        third.kill()
        dead.set()
        workers.declare_dead()
        fourth = workers.start(kill_at="after 1")
        assert await fourth.wait_until_ended() == -signal.SIGKILL, fourth.output
        assert len(server.requests) == 3
        workers.declare_dead()
        workers.start()
        status = await running

        assert status.status == "completed"
        assert [agent.text for agent in status.agents] == ["First.", "Second."]
        assert len(server.requests) == 4  # one request was in progress when its worker was killed, and was repeated
        assert made.read_text() == "x\n"
        check_integrity(session)
        (shown,) = [message for message in server.requests[2]["messages"] if message["role"] == "tool"]
        assert "interrupted" in str(shown) or "aborted" in str(shown), shown


async def test_a_suspended_worker_writes_nothing_twice(
    tmp_path: Path, home: Path, workers: WorkerProcesses, server: PostgresServer
) -> None:
    """A worker is suspended before it writes a stored answer. Another worker writes it, and the first one wakes up.

    The work is in PostgreSQL and the session in a file, because a suspended process may keep a SQLite file locked.
    """
    database = server.new_database()
    with serve_model(home, lambda body: "Done.") as model, create_file_session(tmp_path) as session:
        first = workers.start("--database", database, "--lease", "4", STOP_AT="before 1")
        running = asyncio.create_task(run_swarm(session, database=database))
        await wait_until(lambda: first.is_stopped)
        workers.start("--database", database)  # its lease is long; the lease of the other expires soon
        assert (await running).status == "completed"
        first.send(signal.SIGCONT)
        assert await first.wait_until_ended() == 75
        assert "exits: " in first.output
        assert len(model.requests) == 1
        assert list_messages(session, "crowd/worker-1")[-2:] == ["user: Do it", "assistant: Done."]
        check_integrity(session)


async def test_two_workers_share_a_database_and_one_resumes_the_jobs_of_the_other(
    home: Path, tmp_path: Path, workers: WorkerProcesses, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Session and work are in PostgreSQL. Each worker has its own home and login, as on separate machines."""
    address = server.new_database()
    theirs = create_worker_role(address)
    monkeypatch.setenv("SESSIONTREE_STORE", address)
    alone = threading.Event()

    def answer(body: dict[str, Any]) -> str:
        alone.wait(LONG)
        return "Done."

    with serve_model(home, answer) as model, st.create(cwd=tmp_path) as session:
        session.append(st.user("Hello"))
        first, second = (
            workers.start(SESSIONTREE_HOME=str(copy_home(home, name)), SESSIONTREE_STORE=theirs)
            for name in ("one", "two")
        )
        running = asyncio.create_task(run_swarm(session, agents=4))
        await wait_until(lambda: len(model.requests) == 4)
        started = [line for worker in (first, second) for line in worker.output.splitlines() if "is running" in line]
        assert len(started) == 4
        assert all("is running" in worker.output for worker in (first, second))
        first.kill()
        alone.set()
        workers.declare_dead(first)
        status = await running
        assert [agent.text for agent in status.agents] == ["Done."] * 4
        assert len(model.requests) == 6
        check_integrity(session)
        # The workers have other homes. Their events are relayed from the session.
        log = EventLog(build_spool_path(status.id))
        for agent in status.agents:
            told = [event.type for event in log.read(agent=agent.id)]
            assert told == ["branch", "agent_start", "turn_start", "text_delta", "turn_end", "agent_complete"]


async def test_events_of_a_worker_that_writes_before_the_swarm_waits_for_it_are_relayed(
    home: Path, tmp_path: Path, workers: WorkerProcesses, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.new_database()
    monkeypatch.setenv("SESSIONTREE_STORE", address)
    submit = DurableExecutor._submit

    with serve_model(home, lambda body: "Done.") as model, st.create(cwd=tmp_path) as session:

        async def submit_and_wait_for_the_first_request(executor: DurableExecutor, *args: Any) -> str:
            id = await submit(executor, *args)
            await wait_until(lambda: bool(model.requests))
            await asyncio.to_thread(session.refresh)
            return id

        monkeypatch.setattr(DurableExecutor, "_submit", submit_and_wait_for_the_first_request)
        session.append(st.user("Hello"))
        workers.start(SESSIONTREE_HOME=str(copy_home(home, "one")), SESSIONTREE_STORE=create_worker_role(address))
        status = await run_swarm(session, agents=1)
        (agent,) = status.agents
        events = [event.type for event in EventLog(build_spool_path(status.id)).read(agent=agent.id)]
        assert events == ["branch", "agent_start", "turn_start", "text_delta", "turn_end", "agent_complete"]


async def test_a_worker_that_is_stopped_hands_over_its_jobs_between_two_calls(
    tmp_path: Path, home: Path, workers: WorkerProcesses
) -> None:
    go_on = tmp_path / "go-on"
    command = f"while [ ! -e {go_on} ]; do sleep 0.05; done"
    with serve_model(home, answer_with_tool(command)) as server, create_file_session(tmp_path) as session:
        first = workers.start()
        running = asyncio.create_task(run_swarm(session))
        await wait_until(lambda: server.requests)
        first.send(signal.SIGTERM)
        await wait_until(lambda: "no more jobs" in first.output)
        go_on.touch()
        assert await first.wait_until_ended() == 0, first.output
        workers.start()
        assert (await running).status == "completed"
        assert len(server.requests) == 2
        check_integrity(session)


@pytest.mark.torture
@pytest.mark.skipif(not os.environ.get("SESSIONTREE_TORTURE"), reason="run by make torture")
@pytest.mark.parametrize("store", ["files", "database"])
@pytest.mark.parametrize("seed", range(10))
async def test_randomly_killed_workers_lose_nothing_and_repeat_nothing(
    home: Path, tmp_path: Path, workers: WorkerProcesses, request: pytest.FixtureRequest, seed: int, store: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each agent takes three notes with a tool, one after the other, while workers are killed at any moment."""
    random = Random(seed)
    if store == "database":
        monkeypatch.setenv("SESSIONTREE_STORE", request.getfixturevalue("server").new_database())
    notes = tmp_path / "notes"
    turns: list[tuple[str, int]] = []

    def answer(body: dict[str, Any]) -> str | Answer:
        task = next(str(message["content"]) for message in body["messages"] if "of agent" in str(message["content"]))
        done = sum(message["role"] == "tool" for message in body["messages"])
        turns.append((task, done))
        if done == 3:
            return Answer(text=f"All {task}.", pause=0.02)
        call = (f"c{done}", "bash", {"command": f"echo {task[-1]}{done} >> {notes}; sleep 0.2"})
        return calls(call, pause=0.05)

    with (
        serve_model(home, answer),
        create_file_session(tmp_path) if store == "files" else st.create(cwd=tmp_path) as session,
    ):
        specs = [AgentSpec(task=f"work of agent {number}") for number in range(4)]
        running = asyncio.create_task(run_swarm(session, agents=specs))
        alive = [workers.start("--lease", "3"), workers.start("--lease", "3")]
        kills = 0
        while not running.done():
            await asyncio.wait([running], timeout=random.uniform(0.5, 5))
            # A worker that a busy machine delays for longer than its lease exits.
            victims = [number for number in range(2) if alive[number].code is not None] or [random.randrange(2)]
            if not running.done() and (kills < 12 or alive[victims[0]].code is not None):
                kills += len(victims)
                for victim in victims:
                    alive[victim].kill()
                    alive[victim] = workers.start("--lease", "3")
        status = await running
        assert status.status == "completed", [agent.error for agent in status.agents]
        check_integrity(session)
        # Only requests in progress at a kill are repeated, and no note is written twice.
        again = Counter(turns)
        assert set(again) == {(f"work of agent {number}", done) for number in range(4) for done in range(4)}
        assert again.total() <= 16 + 2 * kills
        taken = notes.read_text().split()
        assert len(taken) == len(set(taken))


@pytest.mark.torture
@pytest.mark.skipif(not os.environ.get("SESSIONTREE_TORTURE"), reason="run by make torture")
async def test_a_disconnected_machine_exits_and_another_continues_its_jobs(
    home: Path, tmp_path: Path, workers: WorkerProcesses, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers in separate networks; one link is cut while agents wait for their models."""
    if not can_create_islands():
        pytest.skip("no network namespaces can be made here")
    address = server.new_database()
    monkeypatch.setenv("SESSIONTREE_STORE", address)
    cut = threading.Event()

    def answer(body: dict[str, Any]) -> str:
        cut.wait(LONG)
        return "Done."

    with serve_model(home, answer) as model, st.create(cwd=tmp_path) as session, ExitStack() as stack:
        session.append(st.user("Hello"))
        islands = [Island(1), Island(2)]
        first, second = [start_on_island(stack, workers, island, home, server.port, model.port) for island in islands]
        running = asyncio.create_task(run_swarm(session, agents=4))
        await wait_until(lambda: len(model.requests) == 4)
        assert all("is running" in worker.output for worker in (first, second))
        islands[0].disconnect()
        cut.set()
        assert (await running).status == "completed"
        assert await first.wait_until_ended() == 75
        assert "the database was unreachable" in first.output
        assert len(model.requests) == 6
        check_integrity(session)


def start_on_island(
    stack: ExitStack, workers: WorkerProcesses, island: Island, home: Path, database: int, model: int
) -> WorkerProcess:
    """Start a worker that reaches the database and the model through the link of the island."""
    stack.callback(island.close)
    for port in (database, model):
        island.forward_port(port)
    folder = copy_home(home, island.name)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("127.0.0.1", island.address))
    address = os.environ["SESSIONTREE_STORE"].replace("127.0.0.1", island.address)
    given = {"ISLAND": island.name, "SESSIONTREE_HOME": str(folder), "SESSIONTREE_STORE": address}
    return workers.start("--lease", "5", **given)


# One worker, for several tests


class SharedServer:
    """A home with a worker and a model server. Tests set the answers."""

    def __init__(self, folder: Path, server: FakeServer) -> None:
        self.folder = folder
        self.server = server
        self.answer: Callable[[dict[str, Any]], str | Answer] = lambda body: "Done."


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    home = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SESSIONTREE_HOME", str(home / ".sessiontree"))
        server = stack.enter_context(serve_model(home, lambda body: place.answer(body)))
        place = SharedServer(home, server)
        workers = WorkerProcesses(home)
        stack.callback(workers.end)
        worker = workers.start("--tools", "bash,ls")
        asyncio.run(wait_until(lambda: "takes jobs" in worker.output))
        yield place


@pytest.fixture
def place(shared: SharedServer, monkeypatch: pytest.MonkeyPatch) -> SharedServer:
    monkeypatch.setenv("SESSIONTREE_HOME", str(shared.folder / ".sessiontree"))
    shared.answer = lambda body: "Done."
    shared.server.requests.clear()
    return shared


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with create_file_session(tmp_path) as session:
        yield session


async def test_agents_run_in_workers_and_their_events_are_readable_here(place: SharedServer, session: Session) -> None:
    status = await run_swarm(session, agents=3)
    assert status.status == "completed"
    assert [agent.text for agent in status.agents] == ["Done."] * 3
    assert len(place.server.requests) == 3
    told = [event.type for event in EventLog(build_spool_path(status.id)).read() if event.agent == "worker-1"]
    assert told == ["branch", "agent_start", "turn_start", "text_delta", "turn_end", "agent_complete"]
    check_integrity(session)


async def test_a_worker_limits_concurrent_agents(place: SharedServer, session: Session) -> None:
    pairs = threading.Barrier(2)

    def answer(body: dict[str, Any]) -> str:
        pairs.wait(LONG)  # two run at the same time
        return "Done."

    place.answer = answer
    running = asyncio.create_task(run_swarm(session, agents=6))
    most = 0
    queue = JobQueue(WorkDatabase())
    while not running.done():
        most = max(most, *(len(worker.work) for worker in await asyncio.to_thread(queue.list_workers)))
    assert (await running).status == "completed"
    assert most == 2


async def test_the_executor_limits_concurrent_agents(place: SharedServer, session: Session) -> None:
    executor = DurableExecutor(session, concurrency=1)
    swarm = await Swarm.create(session, "crowd", "Do it", agents=3, model="test:scripted", executor=executor)
    sent: list[int] = []

    def answer(body: dict[str, Any]) -> str:
        with closing(sqlite3.connect(place.folder / ".sessiontree" / "work.db", timeout=30)) as database:
            waiting = "SELECT count(*) FROM work_job WHERE state IN ('queued', 'running')"
            sent.extend(database.execute(waiting).fetchone())
        return "Done."

    place.answer = answer
    assert (await swarm.run()).status == "completed"
    await executor.close()
    assert sent == [1, 1, 1]


async def test_a_cancelled_swarm_stops_its_agents_wherever_they_are(place: SharedServer, session: Session) -> None:
    place.answer = lambda body: slow()
    executor = DurableExecutor(session)
    swarm = await Swarm.create(session, "crowd", "Do it", agents=2, model="test:scripted", executor=executor)
    await swarm.start()
    gone = place.server.disconnects
    await wait_until(lambda: len(place.server.requests) == 2)
    await swarm.cancel("it takes too long")
    assert place.server.wait_for(lambda server: server.disconnects == gone + 2)
    assert swarm.status().status == "cancelled"
    assert [worker.work for worker in await executor.list_workers()] == [()]
    await executor.close()
    check_integrity(session)


async def test_a_process_that_lost_the_swarm_does_not_cancel_its_jobs(place: SharedServer, session: Session) -> None:
    place.answer = lambda body: slow()
    executor = DurableExecutor(session)
    swarm = await Swarm.create(session, "crowd", "Do it", agents=1, model="test:scripted", executor=executor)
    await swarm.start()
    await wait_until(lambda: place.server.requests)

    executor.hand_over(swarm.id)
    await swarm.detach()

    assert await asyncio.to_thread(has_active_jobs, swarm.id)
    again = DurableExecutor(session)  # like the other process: it finds the sent jobs and may cancel them
    swarm = Swarm.open(session, swarm.id, executor=again)
    await swarm.start()
    await wait_until(lambda: len(again._waiters) == 1)
    assert len(place.server.requests) == 1
    await swarm.cancel()
    await swarm.wait()
    await wait_until(lambda: not has_active_jobs(swarm.id))
    await executor.close()
    await again.close()


async def test_a_swarm_cancelled_by_another_process_stops_too(place: SharedServer, session: Session) -> None:
    place.answer = lambda body: slow()
    running = asyncio.create_task(run_swarm(session))
    await wait_until(lambda: place.server.requests)
    gone = place.server.disconnects
    with st.open(session.location) as other:
        await Swarm.open(other, "crowd").cancel()
    assert (await running).status == "cancelled"
    assert place.server.wait_for(lambda server: server.disconnects > gone)


async def test_a_budget_limits_agents_in_other_processes(place: SharedServer, session: Session) -> None:
    place.answer = lambda body: calls(("c1", "ls", {}))
    status = await run_swarm(session, agents=2, budget=st.Budget(tokens=60))
    assert status.status == "paused"
    assert 60 <= status.tokens <= 60 + 2 * 17
    assert len(place.server.requests) == status.tokens / 17


async def test_workers_use_only_the_tools_that_the_swarm_requests(place: SharedServer, session: Session) -> None:
    executor = DurableExecutor(session, tools=["ls", "write"], system="Be brief.")
    swarm = await Swarm.create(session, "crowd", "Do it", agents=1, model="test:scripted", executor=executor)
    await swarm.run()
    await executor.close()
    (request,) = place.server.requests
    assert [tool["function"]["name"] for tool in request["tools"]] == ["ls"]
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}


async def test_a_worker_uses_its_default_model_if_the_swarm_names_none(place: SharedServer, session: Session) -> None:
    assert (await run_swarm(session, model=None)).status == "completed"
    assert len(place.server.requests) == 1


async def test_a_model_that_the_worker_does_not_have_fails_its_agent(place: SharedServer, session: Session) -> None:
    status = await run_swarm(session, model="elsewhere:one")
    assert status.status == "failed"
    assert "elsewhere" in str(status.agents[0].error)


async def test_a_session_that_the_worker_cannot_open_does_not_change_the_swarm(
    place: SharedServer, session: Session, tmp_path: Path
) -> None:
    file, moved = tmp_path / "s.jsonl", tmp_path / "elsewhere.jsonl"
    executor = DurableExecutor(session)
    swarm = await Swarm.create(session, "crowd", "Do it", agents=1, model="test:scripted", executor=executor)
    work = SwarmJob(session=session.id, swarm=swarm.id, agent="worker-1", prompt="Do it")
    file.rename(moved)
    with pytest.raises(st.StoreError, match="a worker could not run agent worker-1"):
        await executor.run(work, swarm.run_job)
    moved.rename(file)
    await executor.close()
    assert swarm.status().status == "created"


async def test_jobs_of_a_dead_swarm_process_are_found_and_awaited(place: SharedServer, tmp_path: Path) -> None:
    """The process that runs the strategy is killed; agents continue, and the next process waits for them."""
    create_file_session(tmp_path).close()
    dead = threading.Event()

    def answer(body: dict[str, Any]) -> str:
        dead.wait(LONG)
        return "Done."

    place.answer = answer
    code = f"""
import asyncio, sessiontree as st
from tests.swarm.test_durable import run_swarm
with st.open({str(tmp_path / "s.jsonl")!r}) as session:
    asyncio.run(run_swarm(session, agents=2))
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        await wait_until(lambda: len(place.server.requests) == 2)
    finally:
        process.kill()
        process.wait()
    dead.set()
    with st.open(tmp_path / "s.jsonl") as session:
        status = await run_swarm(session)
        assert status.status == "completed"
        assert len(place.server.requests) == 2
        check_integrity(session)


# Values


def test_a_session_in_memory_cannot_be_sent_to_workers() -> None:
    with pytest.raises(InvalidOperation, match="in memory"):
        DurableExecutor(st.memory())


def test_requests_and_reports_survive_encoding() -> None:
    work = SwarmJob(session="s", swarm="w", agent="a/b %#", prompt="Do it", model="m:n", may_split=True)
    order = JobRequest(work=work, where="/x.jsonl", tools=("read",), system="Be brief.", thinking="low")
    assert decode_request(encode(order)) == order
    assert decode_report(encode(JobReport(error="no"))) == JobReport(error="no")
    assert not build_id_prefix(work).startswith(build_id_prefix(SwarmJob(session="s", swarm="w", agent="a", prompt="")))
