"""The store and durable swarms on three database machines whose primary is killed, paused or cut off in every round."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

import sessiontree as st
from sessiontree.swarm.durable.executor import DurableExecutor
from sessiontree.swarm.journal import list_swarms
from sessiontree.swarm.records import AgentSpec
from sessiontree.swarm.swarm import Swarm
from tests.model.fake_server import Answer, FakeServer, calls
from tests.reliability.failover_cluster import Cluster, find_missing_requirement, wait_until
from tests.reliability.harness import ROOT, TORTURE, start_child
from tests.reliability.remote import write_until
from tests.reliability.test_postgres import check_history, create_session

FAULTS = ("kill_server", "pause", "kill", "disconnect")
ROUNDS = int(os.environ.get("SESSIONTREE_FAILOVERS", "100"))
WRITERS = ("a", "b", "c")
AGENTS = 3
CALLS = 4
"""How often each agent of a swarm calls its model."""

pytestmark = [pytest.mark.torture]
if TORTURE:
    reason = find_missing_requirement()
    pytestmark.append(pytest.mark.skipif(reason is not None, reason=f"no cluster: {reason}"))
else:
    pytestmark.append(pytest.mark.skip(reason="run by make torture"))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        cluster.wait_until_whole()
        yield cluster
    finally:
        cluster.close()


class Worker:
    """A worker process that is started again if it exits, as systemd does."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "worker.log"
        self.start_count = 0
        self._process: subprocess.Popen[bytes] | None = None

    def ensure_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self.start_count += 1
            command = [sys.executable, "-m", "sessiontree", "worker", "--concurrency", "4", "--tools", "ls"]
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)

    @property
    def is_ready(self) -> bool:
        return "takes jobs" in self._log.read_text()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


class CountingModel:
    """Answers with a few calls of a tool, a second each. Counts which request was sent how often."""

    def __init__(self) -> None:
        self.sent = Counter[tuple[str, int]]()

    def __call__(self, body: dict[str, Any]) -> str | Answer:
        task = next(str(message["content"]) for message in body["messages"] if "round " in str(message["content"]))
        done = sum(message["role"] == "tool" for message in body["messages"])
        self.sent[task, done] += 1
        if done == CALLS - 1:
            return Answer(text="Done.", pause=0.1)
        return calls((f"c{done}", "ls", {}), pause=0.1)


async def run_swarm(session: st.Session, number: int) -> None:
    executor = DurableExecutor(session)
    specs = [AgentSpec(task=f"round {number} agent {one}") for one in range(AGENTS)]
    try:
        while True:
            try:
                known = [swarm for swarm in list_swarms(session) if swarm.name == f"round-{number}"]
                if known:
                    swarm = Swarm.open(session, known[0].id, executor=executor)
                else:
                    swarm = await Swarm.create(
                        session, f"round-{number}", "Look", agents=specs, model="test:scripted", executor=executor
                    )
                status = await swarm.run()
                break
            except st.StoreError:  # its process would be started again
                session.refresh()
    finally:
        await executor.close()
    assert status.status == "completed", [agent.error for agent in status.agents]


def test_no_failover_loses_or_doubles_anything(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers and a durable swarm go on by themselves in every round, on the machine that takes over."""
    with psycopg.connect(cluster.build_address("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE talks TEMPLATE template0 ENCODING 'UTF8'")
    url = cluster.build_address("talks")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("SESSIONTREE_HOME", str(home))
    monkeypatch.setenv("SESSIONTREE_STORE", url)
    session_address = create_session(url)
    chance, model = random.Random(26), CountingModel()
    seconds: dict[str, list[float]] = {fault: [] for fault in FAULTS}
    worker = Worker(tmp_path)
    with (
        FakeServer([model] * (ROUNDS * AGENTS * CALLS * 2)) as server,
        st.create("swarms", cwd=tmp_path) as session,
        ExitStack() as stack,
    ):
        (home / "config.toml").write_text(f'[models."test:scripted"]\nbase_url = "{server.url}"\n')
        session.append(st.user("Hello"))
        stack.callback(worker.stop)
        stop_file = tmp_path / "stop"
        writers = [
            stack.enter_context(start_child(write_until, url, session_address, name, str(stop_file)))
            for name in WRITERS
        ]
        worker.ensure_running()
        wait_until(lambda: worker.is_ready)
        for number in range(ROUNDS):
            worker.ensure_running()
            fault = FAULTS[number % len(FAULTS)]
            primary, timeline = cluster.find_primary(), cluster.find_timeline()

            async def run_round(
                primary: Any = primary, fault: str = fault, number: int = number, timeline: int = timeline
            ) -> None:
                running = asyncio.create_task(run_swarm(session, number))
                await asyncio.sleep(chance.uniform(0, 3))  # any moment of the swarm
                began = time.monotonic()
                await asyncio.to_thread(getattr(primary, fault))
                await asyncio.to_thread(cluster.wait_for_new_primary, timeline)
                seconds[fault].append(time.monotonic() - began)
                while not running.done():
                    worker.ensure_running()
                    await asyncio.wait([running], timeout=1)
                await running

            asyncio.run(run_round())
            counts = [len(writer.read_acks()) for writer in writers]
            for writer, count in zip(writers, counts, strict=True):
                writer.wait_for(count + 3, seconds=120)
                assert len(writer.read_acks()) >= count + 3, "a writer does not go on"
            primary.heal()
            cluster.wait_until_whole()
            repeated = {key: count for key, count in model.sent.items() if count > 1}
            print(
                f"round {number + 1}: {fault}, {seconds[fault][-1]:.0f} s, acknowledged {counts},"
                f" {len(model.sent)} requests, repeated {repeated}, {worker.start_count} worker starts",
                flush=True,
            )
        stop_file.touch()
        told = [writer.rest() for writer in writers]
        check_history(session_address, told)
        session.refresh()
        ids = [entry.id for entry in session.tree.entries]
        assert len(ids) == len(set(ids))
        assert not [problem for problem in session.problems if problem.severity == "fault"]
        # Each agent answered each time; only requests in progress when a worker died are repeated.
        assert set(model.sent) == {
            (f"round {number} agent {one}", done)
            for number in range(ROUNDS)
            for one in range(AGENTS)
            for done in range(CALLS)
        }
        assert model.sent.total() <= ROUNDS * AGENTS * CALLS + AGENTS * (worker.start_count - 1)
        for fault, times in seconds.items():
            print(f"{fault}: {len(times)} rounds, a new primary after {min(times):.0f} to {max(times):.0f} s")
