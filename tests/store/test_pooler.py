"""PgBouncer in front of the database, in transaction mode: each transaction may run on another connection."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

import sessiontree as st
from sessiontree.errors import InvalidOperation
from sessiontree.library import catalog
from sessiontree.store.postgres.advisory_lock import AdvisoryLock
from tests.postgres import Server, find_free_port
from tests.swarm.test_durable import LONG, WorkerProcesses, check_integrity, run_swarm, serve_model

WRITERS, APPENDS = 8, 12
CONFIG = """
[databases]
{database} = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
"""

pytestmark = pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="pgbouncer is not installed")


@pytest.fixture
def pooler(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start PgBouncer with two connections to a new database, and set both variables. Yields its address."""
    direct, port = server.new_database(), find_free_port()
    database = direct.rpartition("/")[2]
    pooled = f"postgresql://postgres@127.0.0.1:{port}/{database}"
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        config = Path(folder, "pgbouncer.ini")
        config.write_text(CONFIG.format(database=database, server=server.port, port=port))
        become = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        with open(f"{folder}/log", "wb") as log:
            process = subprocess.Popen([*become, "pgbouncer", str(config)], stdout=log, stderr=log, cwd="/")
        try:
            deadline = time.monotonic() + LONG
            while True:
                try:
                    psycopg.connect(pooled, prepare_threshold=None).close()
                    break
                except psycopg.OperationalError:
                    assert process.poll() is None, Path(folder, "log").read_text()
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            monkeypatch.setenv("SESSIONTREE_STORE", pooled)
            monkeypatch.setenv("SESSIONTREE_DIRECT_STORE", direct)
            yield pooled
        finally:
            process.terminate()
            process.wait(30)


def test_many_writers_share_the_connections_of_a_pooler(pooler: str) -> None:
    session = st.create("shared")
    session.append(st.user("pomegranate"))

    def write(number: int) -> None:
        with st.open("shared") as own:
            branch = own.create_branch(f"b{number}", current=False)
            for count in range(APPENDS):
                branch.append(st.user(f"{number} says {count}"))

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))

    session.refresh()
    for number in range(WRITERS):
        said = [entry.text for entry in session.branch(f"b{number}").path() if " says " in entry.text]
        assert said == [f"{number} says {count}" for count in range(APPENDS)]
    assert [hit.snippet for hit in catalog.search("pomegranate")] == ["pomegranate"]
    assert st.sessions()[0].entry_count == len(session.tree)


def test_locks_are_held_on_the_direct_connection(pooler: str) -> None:
    first, second = AdvisoryLock(pooler, "swarm"), AdvisoryLock(pooler, "swarm")

    assert first.acquire()
    for _ in range(5):
        st.sessions()  # other transactions get the connections of the pooler
        assert not second.acquire()
        assert second.is_held
    first.release()
    assert second.acquire()
    second.release()


async def test_workers_run_a_durable_swarm_through_a_pooler(
    pooler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONTREE_HOME", str(tmp_path / ".sessiontree"))
    workers = WorkerProcesses(tmp_path)
    try:
        with serve_model(tmp_path, lambda body: "Done.") as model, st.create(cwd=tmp_path) as session:
            session.append(st.user("Hello"))
            running = asyncio.create_task(run_swarm(session, agents=4))
            workers.start()
            workers.start()
            status = await running
            assert (status.status, len(model.requests)) == ("completed", 4)
            check_integrity(session)
    finally:
        workers.end()


def test_the_direct_address_must_be_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONTREE_STORE", "postgresql://127.0.0.1:1/none")
    monkeypatch.setenv("SESSIONTREE_DIRECT_STORE", "localhost")

    with pytest.raises(InvalidOperation, match="SESSIONTREE_DIRECT_STORE must be an address"):
        st.sessions()
