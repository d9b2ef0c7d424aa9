"""The database of durable swarms: registering workers, leases and access."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest

from sessiontree.errors import StoreError
from sessiontree.swarm.agent_runner import SwarmJob
from sessiontree.swarm.durable.database import JobReport, JobRequest, WorkConnection, WorkDatabase, encode
from sessiontree.swarm.durable.job_queue import JobQueue, WorkerInfo
from tests.postgres import Server


@pytest.fixture(params=["file", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> WorkDatabase:
    where = str(tmp_path / "work.db") if request.param == "file" else request.getfixturevalue("shared_database")
    database = WorkDatabase(where)
    database.migrate()
    return database


@pytest.fixture
def queue(database: WorkDatabase) -> Iterator[JobQueue]:
    queue = JobQueue(database)
    yield queue
    database.run(
        lambda connection: [connection.execute(f"DELETE FROM {{t}}{table}") for table in ("job", "answer", "worker")]
    )
    database.close()


def register(queue: JobQueue, name: str, lease: float = 60) -> str:
    """Register a worker, and return its id."""
    worker = WorkerInfo(id=f"{name}-{os.urandom(4).hex()}", host="here", concurrency=3, home="h")
    queue.register(worker, lease)
    return worker.id


def submit(queue: JobQueue, *ids: str) -> None:
    for id in ids:
        queue.submit(id, JobRequest(work=SwarmJob(session="s", swarm="w", agent=id, prompt="p"), where="/s"))


def take(queue: JobQueue, worker: str, free: int = 10) -> list[str]:
    done = queue.do_round(worker, renew=True, free=free)
    assert done is not None
    return [taken.id for taken in done.taken]


def test_a_job_is_taken_by_one_worker_in_the_order_of_sending(queue: JobQueue) -> None:
    a, b = register(queue, "a"), register(queue, "b")
    submit(queue, "w/1/x", "w/2/x", "w/3/x")
    assert sorted(take(queue, a, free=2)) == ["w/1/x", "w/2/x"]
    assert take(queue, b) == ["w/3/x"]
    assert take(queue, a) == []
    assert [(one.id, one.work) for one in queue.list_workers()] == [(a, ("w/1/x", "w/2/x")), (b, ("w/3/x",))]
    queue.finish("w/1/x", a, JobReport(error="no"))
    (status,) = queue.get_statuses(["w/1/x"])
    assert (status.state, status.runner) == ("done", a)
    assert queue.find_active("w/1/") is None
    assert queue.find_active("w/2/") == "w/2/x"


def test_many_workers_never_take_the_same_job(queue: JobQueue) -> None:
    names = [register(queue, f"w{number}") for number in range(4)]
    submit(queue, *(f"w/{number}/x" for number in range(40)))
    with ThreadPoolExecutor(4) as threads:
        rounds = [threads.submit(take, queue, name, 3) for name in names * 5]
        taken = [id for one in rounds for id in one.result(60)]
    assert len(taken) == len(set(taken)) == 40


def test_jobs_of_a_dead_worker_are_taken_however_long_it_is_dead(queue: JobQueue) -> None:
    late, here = register(queue, "late", lease=-1), register(queue, "here")
    submit(queue, "w/1/x", "w/2/x")
    first = queue.do_round(late, renew=True, free=1)
    assert first is not None
    assert [one.id for one in queue.list_workers()] == [here]
    queue.database.execute("DELETE FROM {t}worker WHERE id = :id", id=late)  # as after an hour

    second = queue.do_round(here, renew=True, free=5)
    assert second is not None
    tokens = {taken.id: taken.token for taken in second.taken}
    assert set(tokens) == {"w/1/x", "w/2/x"}
    assert tokens["w/1/x"] > first.taken[0].token
    assert not queue.is_mine("w/1/x", late)
    assert queue.do_round(late, renew=True, free=5) is None, "it is dead for good"
    assert not queue.store_answer("w/1/x", late, "k", "{}")
    assert queue.load_answers("w/1/x") == {}
    queue.finish("w/1/x", late, JobReport())
    assert queue.is_mine("w/1/x", here)


def test_jobs_of_three_workers_that_died_long_ago_are_taken_by_the_next_one(queue: JobQueue) -> None:
    """Their rows are forgotten after an hour, and their jobs are not."""
    dead = [register(queue, name) for name in ("a", "b", "c")]
    submit(queue, "w/1/x", "w/2/x", "w/3/x", "w/4/x")
    assert [take(queue, worker, free=1) for worker in dead] == [["w/1/x"], ["w/2/x"], ["w/3/x"]]
    assert queue.store_answer("w/1/x", dead[0], "k", "paid")
    assert take(queue, register(queue, "early")) == ["w/4/x"], "the others are alive"
    queue.database.execute("UPDATE {t}worker SET seen = seen - 3700")

    here = register(queue, "here")

    assert [worker.id for worker in queue.list_workers()] == [here]
    assert sorted(take(queue, here)) == ["w/1/x", "w/2/x", "w/3/x", "w/4/x"]
    assert queue.load_answers("w/1/x") == {"k": "paid"}
    assert [queue.do_round(worker, renew=True, free=1) for worker in dead] == [None] * 3


def test_a_late_worker_keeps_the_jobs_that_no_other_worker_has(queue: JobQueue) -> None:
    away = register(queue, "away", lease=-1)
    submit(queue, "w/1/x")
    assert take(queue, away) == ["w/1/x"]
    again = queue.do_round(away, renew=True, free=0)
    assert again is not None
    assert again.held == {"w/1/x": "running"}


def test_a_job_that_crashes_its_workers_is_abandoned(queue: JobQueue) -> None:
    submit(queue, "w/1/x")
    for number in range(11):
        worker = register(queue, f"w{number}")
        assert take(queue, worker) == ["w/1/x"]
        queue.retire(worker)
    assert take(queue, register(queue, "last")) == []
    assert [status.state for status in queue.get_statuses(["w/1/x"])] == ["abandoned"]


def test_a_released_job_counts_as_no_crash(queue: JobQueue) -> None:
    submit(queue, "w/1/x")
    for _ in range(15):
        worker = register(queue, "w")
        assert take(queue, worker) == ["w/1/x"]
        queue.release("w/1/x", worker)


def test_a_cancelled_job_is_held_until_its_worker_ends_it(queue: JobQueue) -> None:
    worker = register(queue, "w")
    submit(queue, "w/1/x", "w/2/x")
    assert take(queue, worker, free=1) == ["w/1/x"]
    queue.cancel("w/1/x")
    queue.cancel("w/2/x")
    assert queue.is_held("w/1/")
    assert not queue.is_held("w/2/")
    held = queue.do_round(worker, renew=False, free=5)
    assert held is not None
    assert (held.held, list(held.taken)) == ({"w/1/x": "cancelled"}, [])
    queue.finish("w/1/x", worker, JobReport())
    assert not queue.is_held("w/1/")
    assert [status.state for status in queue.get_statuses(["w/1/x"])] == ["cancelled"]


def test_answers_are_kept_until_the_job_is_deleted(queue: JobQueue) -> None:
    worker = register(queue, "w")
    submit(queue, "w/1/x")
    assert take(queue, worker) == ["w/1/x"]
    assert queue.store_answer("w/1/x", worker, "k", "first")
    assert queue.store_answer("w/1/x", worker, "k", "second")
    assert queue.load_answers("w/1/x") == {"k": "first"}
    queue.delete("w/1/x")
    assert queue.load_answers("w/1/x") == {}


def create_first_release(database: WorkDatabase, seen: str) -> None:
    """Create tables as version 0.1 has them, with a job and a stored answer."""
    schema = "" if database.file is not None else "dbos."

    def work(connection: WorkConnection) -> None:
        if schema:
            connection.execute("CREATE SCHEMA dbos")
        for statement in (
            "CREATE TABLE {s}workflow_status (workflow_uuid text, name text, status text, created_at bigint)",
            "CREATE TABLE {s}workflow_input (workflow_uuid text, inputs text)",
            "CREATE TABLE {s}operation_outputs (workflow_uuid text, function_name text, output text)",
            "CREATE TABLE {s}sessiontree_worker (id text, seen double precision, lease double precision, gone integer)",
            "INSERT INTO {s}workflow_status VALUES ('w/1/x', 'sessiontree.agent', 'PENDING', 1795034953000)",
            "INSERT INTO {s}workflow_status VALUES ('w/2/x', 'sessiontree.agent', 'SUCCESS', 1795034953000)",
            f"INSERT INTO {{s}}sessiontree_worker VALUES ('old', {seen}, 20, 0)",
        ):
            connection.execute(statement.replace("{s}", schema))
        request = encode(JobRequest(work=SwarmJob(session="s", swarm="w", agent="1", prompt="p"), where="/s"))
        inputs = msgspec.json.encode({"namedArgs": {}, "positionalArgs": [request]}).decode()
        connection.execute(f"INSERT INTO {schema}workflow_input VALUES ('w/1/x', :inputs)", inputs=inputs)
        output = msgspec.json.encode({"key": "k", "kept": "{}"}).decode()
        connection.execute(f"INSERT INTO {schema}operation_outputs VALUES ('w/1/x', 'answer', :output)", output=output)

    if database.file is not None:
        with closing(sqlite3.connect(database.file)):
            pass
    database.run(work)


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_jobs_of_the_first_release_are_taken_over(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    def locate() -> WorkDatabase:
        if kind == "file":
            return WorkDatabase(str(tmp_path / f"{os.urandom(4).hex()}.db"))
        return WorkDatabase(request.getfixturevalue("server").new_database())

    database = locate()
    create_first_release(database, "0")
    database.migrate()
    queue = JobQueue(database)
    assert queue.find_active("w/") == "w/1/x"
    assert queue.load_answers("w/1/x") == {"k": "{}"}
    assert take(queue, register(queue, "w")) == ["w/1/x"]

    running = locate()
    create_first_release(running, "{now}")
    with pytest.raises(StoreError, match=r"workers of version 0.1 are running; stop them first: old"):
        running.migrate()


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_tables_of_the_first_version_get_the_later_ones(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where = str(tmp_path / "w.db") if kind == "file" else request.getfixturevalue("server").new_database()
    database = WorkDatabase(where)
    database.migrate()
    queue = JobQueue(database)
    submit(queue, "w/1/x")
    for table in ("provider", "call", "reply"):
        database.execute(f"DROP TABLE {{t}}{table}")
    database.execute("DELETE FROM {t}step WHERE number > 1")

    database.migrate()

    assert queue.find_active("w/") == "w/1/x"
    assert database.query("SELECT count(*) FROM {t}reply")[0][0] == 0


def test_tables_of_a_newer_version_are_refused(database: WorkDatabase) -> None:
    database.execute("INSERT INTO {t}step VALUES (99)")
    try:
        with pytest.raises(StoreError, match="newer version"):
            database.migrate()
    finally:
        database.execute("DELETE FROM {t}step WHERE number = 99")


def test_the_database_file_is_private(tmp_path: Path) -> None:
    database = WorkDatabase(str(tmp_path / "deep" / "work.db"))
    database.migrate()
    assert stat.S_IMODE(os.stat(tmp_path / "deep" / "work.db").st_mode) == 0o600


def test_the_work_database_is_in_the_home_or_with_the_sessions(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WorkDatabase().display_name == str(home / ".sessiontree" / "work.db")
    monkeypatch.setenv("SESSIONTREE_STORE", "postgresql://ann:secret@db.example/work")
    assert WorkDatabase().display_name == "postgresql://ann@db.example/work"


def test_a_role_that_cannot_create_tables_gets_a_clear_error(server: Server) -> None:
    url = server.new_database()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE ROLE weak LOGIN")

    with pytest.raises(StoreError, match=r"job tables are missing .* may not create them: permission denied"):
        WorkDatabase(url.replace("postgres@", "weak@")).migrate()


@pytest.mark.parametrize("query", ["", "?target_session_attrs=read-write"])
def test_an_address_may_have_several_hosts(server: Server, shared_database: str, query: str) -> None:
    name = shared_database.rpartition("/")[2]
    database = WorkDatabase(f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{server.port}/{name}{query}")

    database.migrate()
    assert JobQueue(database).find_active("w/") is None
    database.close()


def test_a_database_that_cannot_be_reached_is_an_error_without_its_password() -> None:
    database = WorkDatabase("postgresql://ann:secret@127.0.0.1:1/work?connect_timeout=1")
    with pytest.raises(StoreError) as raised:
        database.migrate()
    assert "secret" not in str(raised.value)


def test_several_processes_can_create_the_database_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: WorkDatabase(str(tmp_path / "work.db")).migrate(), range(8)))
