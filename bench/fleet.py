"""What a worker asks of the database: `python -m bench.fleet`, with PostgreSQL installed.

Transactions and connections are counted, which do not depend on what else the machine does, and memory. The figures are
in docs/deploy.md, and what a fleet of any size needs follows from them by multiplication.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from subprocess import DEVNULL, Popen

import psycopg
from tests.model.fake_server import FakeServer as ModelServer
from tests.model.fake_server import calls
from tests.postgres import Server

import sessiontree as st
from sessiontree.swarm.durable.executor import DurableExecutor

IDLE = 30.0
AGENTS = 100
TURNS = 5


def answer(body: dict) -> object:
    """Some calls of a tool, one after the other, and then the end."""
    done = sum(message["role"] == "tool" for message in body["messages"])
    return "Done." if done == TURNS - 1 else calls((f"c{done}", "ls", {}))


class Count:
    """What the server has done since."""

    def __init__(self, address: str) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        self.begin()

    def begin(self) -> None:
        self._start, self.since = self._read(), time.monotonic()

    def _read(self) -> int:
        time.sleep(1.5)  # the server tells its figures with a delay
        query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        return self._connection.execute(query).fetchone()[0]

    @property
    def transactions(self) -> int:
        return self._read() - self._start


def connections(process: Popen[bytes], port: int) -> int:
    """How many connections a process has to a port of this machine."""
    sockets = {os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and f"socket:[{row[9]}]" in sockets for row in rows)


def memory(process: Popen[bytes]) -> float:
    """What a process has in memory, in MB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def tell(worker: Popen[bytes], port: int) -> list[str]:
    return [f"{connections(worker, port)} connections", f"{memory(worker):.0f} MB"]


async def swarm(session: st.Session) -> None:
    executor = DurableExecutor(session)
    made = await st.Swarm.create(session, "fleet", "Look", agents=AGENTS, model="test:scripted", executor=executor)
    status = await made.run()
    await executor.close()
    assert status.status == "completed", status.reason


def main() -> None:
    server = Server()
    home = Path(tempfile.mkdtemp(prefix="sessiontree-fleet-"))
    os.environ.update(SESSIONTREE_HOME=str(home), SESSIONTREE_STORE=server.new_database())
    address = os.environ["SESSIONTREE_STORE"]
    worker = None
    try:
        with ModelServer([answer] * (AGENTS * TURNS)) as model, st.create(cwd=home) as session:
            (home / "config.toml").write_text(f'[models."test:scripted"]\nbase_url = "{model.url}"\n')
            session.append(st.user("Hello"))
            count = Count(address)
            command = [sys.executable, "-m", "sessiontree", "worker", "--concurrency", "10", "--tools", "ls"]
            worker = Popen(command, stderr=DEVNULL)
            time.sleep(IDLE / 2)
            count.begin()
            time.sleep(IDLE)
            idle = count.transactions / (time.monotonic() - count.since)
            print(f"idle: {idle:.1f} transactions/s", *tell(worker, server.port), sep=", ")
            count.begin()
            asyncio.run(swarm(session))
            seconds = time.monotonic() - count.since
            spent = (count.transactions - idle * seconds) / AGENTS / TURNS
            print(f"10 agents at a time: {spent:.0f} transactions for each call of a model", end=", ")
            print(*tell(worker, server.port), f"{seconds:.0f} s", sep=", ")
    finally:
        if worker is not None:
            worker.kill()
            worker.wait()
        server.stop()


if __name__ == "__main__":
    main()
