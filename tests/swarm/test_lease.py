"""Leases: one process at a time runs a swarm, in files and databases."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import sessiontree as st
from sessiontree.core.messages import extract_text
from sessiontree.errors import InvalidOperation
from sessiontree.model.scripted import Delay, ScriptedModel
from sessiontree.session import Session
from sessiontree.store.memory import MemoryStore
from sessiontree.store.postgres import connection
from sessiontree.store.postgres.address import parse_address
from sessiontree.swarm.experiment.experiment import Arm, Experiment, find_plan
from sessiontree.swarm.experiment.experiment import experiment as run_experiment
from sessiontree.swarm.experiment.results import ExperimentLog
from sessiontree.swarm.lease import Lease, build_lease_path, is_leased, open_lease


@contextmanager
def use_machine(path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Simulate another machine, which shares only the database."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SESSIONTREE_HOME", str(path))
        yield


def test_the_lease_of_a_session_in_memory_is_always_free() -> None:
    session = Session.create(MemoryStore(), id="s")

    assert open_lease(session, "w").acquire()
    assert not is_leased(session, "w")


def test_a_lease_has_one_holder(tmp_path: Path) -> None:
    first, second = Lease(str(tmp_path / "w.lock")), Lease(str(tmp_path / "w.lock"))

    assert first.acquire()
    assert first.acquire(), "it is ours already"
    assert not second.acquire()
    assert second.is_held
    first.release()
    assert not second.is_held
    assert second.acquire()


def test_is_held_does_not_block_acquire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.lock"
    with path.open("w") as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_EX)
        monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(looked_at, fcntl.LOCK_UN))

        assert Lease(str(path)).acquire()


async def test_a_cancelled_acquire_releases_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold, begun, go_on = Lease(str(tmp_path / "w.lock")), threading.Event(), threading.Event()

    def acquire_slowly() -> bool:
        begun.set()
        assert go_on.wait(60)
        return Lease.acquire(hold)

    monkeypatch.setattr(hold, "acquire", acquire_slowly)
    taking = asyncio.create_task(hold.acquire_async())
    await asyncio.to_thread(begun.wait, 60)
    taking.cancel()
    await asyncio.wait([taking])
    go_on.set()

    async with asyncio.timeout(60):
        while hold.is_held or not (tmp_path / "w.lock").exists():
            await asyncio.sleep(0.005)
    assert taking.cancelled()


def test_is_held_creates_no_file(tmp_path: Path) -> None:
    assert not Lease(str(tmp_path / "none" / "w.lock")).is_held
    assert not (tmp_path / "none").exists()


def test_a_lease_depends_on_the_id_and_a_fork_has_its_own(tmp_path: Path) -> None:
    session = st.create(file=tmp_path / "s.jsonl")
    before = Lease(build_lease_path("w"))

    assert before.acquire()
    assert is_leased(session, "w")
    assert not open_lease(session, "w").acquire()
    assert open_lease(session, "w", is_own=False).acquire()


async def test_a_fork_resumes_an_experiment_while_another_process_runs_the_original(
    tmp_path: Path,
) -> None:
    session = st.create(file=tmp_path / "s.jsonl")
    session.append(st.user("Hello"))
    arms = [Arm(name="a", prompt="one"), Arm(name="b", prompt="two")]
    model = ScriptedModel(["Yes."] * 2)
    made = Experiment.create(session, "HEAD", arms, runs=1, model=model)
    forked = session.fork(whole=True)
    hold = open_lease(session, made.id)
    assert hold.acquire()

    result = await Experiment.open(forked, made.id, model=model).run()
    assert len(result.runs) == 2
    with pytest.raises(InvalidOperation, match="another process is running experiment ab-1"):
        await made.run()


def test_machines_that_share_a_database_take_turns(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = st.create("talk", dir=database)
    here = open_lease(session, "w")
    with use_machine(tmp_path / "other", monkeypatch):
        there, other_work = open_lease(session, "w"), open_lease(session, "v")

    assert here.acquire()
    assert not there.acquire()
    assert there.is_held
    assert other_work.acquire(), "every piece of work has its own"
    here.release()
    assert not there.is_held
    assert there.acquire()
    assert not here.acquire()
    assert is_leased(session, "w")


def lose_connections(database: str) -> None:
    """Terminate all connections that hold locks, like a server restart."""
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE locktype = 'advisory'")


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "that does not happen"
        time.sleep(0.005)


CHILD = """
import sys
import sessiontree as st
from sessiontree.swarm.lease import open_lease
lease = open_lease(st.open(sys.argv[1]), "w")
print(lease.acquire(), flush=True)
sys.stdin.read()
"""


def test_the_database_releases_the_lease_of_a_dead_process(database: str, tmp_path: Path) -> None:
    session = st.create("talk", dir=database)
    elsewhere = {**os.environ, "SESSIONTREE_HOME": str(tmp_path / "other")}
    command = [sys.executable, "-c", CHILD, session.location]
    with subprocess.Popen(command, env=elsewhere, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        assert not open_lease(session, "w").acquire()
        child.kill()

    wait_until(open_lease(session, "w").acquire)


def test_a_lease_is_acquired_again_after_a_lost_connection(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiontree.store.postgres.advisory_lock.CHECK_SECONDS", 0.01)
    session = st.create("talk", dir=database)
    here = open_lease(session, "w")
    with use_machine(tmp_path / "other", monkeypatch):
        there = open_lease(session, "w")
    assert here.acquire()

    lose_connections(database)

    wait_until(lambda: there.is_held)
    assert not there.acquire()
    here.release()
    wait_until(there.acquire)


def test_a_process_that_acquires_during_a_lost_connection_keeps_the_lease(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiontree.store.postgres.advisory_lock.CHECK_SECONDS", 600)
    session = st.create("talk", dir=database)
    here = open_lease(session, "w")
    with use_machine(tmp_path / "other", monkeypatch):
        there = open_lease(session, "w")
    assert here.acquire()

    lose_connections(database)

    assert there.acquire()
    here.release()
    assert there.is_held
    assert not here.acquire()


def acquire_elsewhere(database: str) -> psycopg.Connection[Any]:
    """Simulate a process that waited for the lock and got it when the connection was lost."""
    admin, other = (psycopg.connect(database, autocommit=True) for _ in range(2))
    find = "SELECT pid, classid::bigint, objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted"
    pid, *key = admin.execute(find).fetchone() or ()
    signed = [part - (1 << 32) if part >= 1 << 31 else part for part in key]
    waiting = threading.Thread(target=other.execute, args=("SELECT pg_advisory_lock(%s, %s)", signed))
    waiting.start()
    wait_until(lambda: bool(admin.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone()))
    admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
    waiting.join(60)
    admin.close()
    return other


def test_a_lost_lease_is_detected(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessiontree.store.postgres.advisory_lock.CHECK_SECONDS", 0.01)
    here = open_lease(st.create("talk", dir=database), "w")
    assert here.acquire()
    assert not here.is_lost

    with acquire_elsewhere(database):
        wait_until(lambda: here.is_lost)
    here.release()
    assert not here.is_lost


async def test_a_swarm_stops_when_another_machine_takes_it_over(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessiontree.store.postgres.advisory_lock.CHECK_SECONDS", 0.01)
    monkeypatch.setattr("sessiontree.swarm.swarm.POLL_INTERVAL", 0.01)
    session = st.create("talk", dir=database)
    model = ScriptedModel([["half of ", Delay(600), "too late"]])
    swarm = await st.Swarm.create(session, "w", "Try it", agents=1, model=model)
    await swarm.start()
    while not model.requests:
        await asyncio.sleep(0.005)
    at = session.branch("w/worker-1").leaf

    with await asyncio.to_thread(acquire_elsewhere, database):
        async with asyncio.timeout(60):
            status = await swarm.wait()

    assert (status.status, swarm.is_running) == ("running", False)
    last = session.tree.entries[-1]
    assert (session.branch("w/worker-1").leaf, last.branch, last.parent) == (at, None, at), "it moves nobody there"
    assert extract_text(last.body.message["content"]) == "half of "


async def test_an_experiment_stops_when_another_machine_takes_it_over(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiontree.store.postgres.advisory_lock.CHECK_SECONDS", 0.01)
    monkeypatch.setattr("sessiontree.swarm.lease.POLL_INTERVAL", 0.01)
    session = st.create("talk", dir=database)
    session.append(st.user("Which is better?"))
    arms = [Arm(name="one"), Arm(name="other")]
    model = ScriptedModel([[Delay(600), "too late"]] * 2)
    running = asyncio.create_task(run_experiment(session, "HEAD", arms, runs=1, model=model, name="e"))
    while len(model.requests) < 2:
        await asyncio.sleep(0.005)

    with await asyncio.to_thread(acquire_elsewhere, database):
        async with asyncio.timeout(60):
            with pytest.raises(InvalidOperation, match="another process took over experiment e"):
                await running

    assert [run.finished for run in ExperimentLog(session).list_pending(find_plan(session, "e"))] == [None, None]


def test_the_server_detects_a_dead_connection(database: str) -> None:
    with connection.get_database(parse_address(database)).connect() as held:
        seconds = [held.execute(f"SHOW tcp_keepalives_{name}".encode()).fetchone() for name in ("idle", "interval")]
        count = held.execute("SHOW tcp_keepalives_count").fetchone()
        unheard = held.execute("SHOW tcp_user_timeout").fetchone()

    assert (seconds, count, unheard) == ([("10",), ("5",)], ("3",), ("30000",))
