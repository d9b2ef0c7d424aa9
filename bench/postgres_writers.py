"""Appends per second of many writers to PostgreSQL: `python -m bench.postgres_writers`, with PostgreSQL installed.

`fsync` is on, and a library that is compiled here adds 3 ms to each `fdatasync`, as on network storage; without a
compiler, nothing is added. On a busy machine, a larger `--delay` shows what waits for what, and not what the processor
has time for. "Bare" is psycopg with one UPDATE and one INSERT for each commit and the same guarantee: the
lines of a session have one order. Ours and bare take turns, with each writer a process of its own. Prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psycopg
from tests.postgres import Server

import sessiontree as st

DELAY_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int)) dlsym(RTLD_NEXT, "fdatasync");
    struct timespec pause = {0, DELAY * 1000000};
    nanosleep(&pause, 0);
    return real(file);
}
"""
TABLES = """
CREATE TABLE talk (key bigint PRIMARY KEY, size bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE line (talk bigint, position bigint, data bytea NOT NULL, PRIMARY KEY (talk, position))
"""
APPEND = """
WITH grown AS (UPDATE talk SET size = size + %(size)s WHERE key = %(key)s RETURNING size)
INSERT INTO line SELECT %(key)s, size - %(size)s, %(line)s FROM grown
"""
TEXT = "A message of about the length that people write to an agent, with a question in it?"


@contextmanager
def slow_disk(delay: int) -> Iterator[int]:
    """Start servers with slow syncs in this context. Yield how many milliseconds are added."""
    compiler = shutil.which("cc")
    if compiler is None:
        yield 0
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        source, library = Path(folder, "delay.c"), Path(folder, "delay.so")
        source.write_text(DELAY_SOURCE)
        subprocess.run([compiler, f"-DDELAY={delay}", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        os.environ["LD_PRELOAD"] = str(library)
        try:
            yield delay
        finally:
            del os.environ["LD_PRELOAD"]


def count_appends(append: Callable[[], object], start: Any, seconds: float) -> list[float]:
    """Append for some seconds, and return how long each append took."""
    start.wait()
    times: list[float] = []
    end = time.monotonic() + seconds
    while (before := time.monotonic()) < end:
        append()
        times.append(time.monotonic() - before)
    return times


def write_ours(url: str, address: str, branch: str, start: Any, seconds: float, results: Any) -> None:
    session = st.open(address) if address else st.create(dir=url)
    name = branch if address else "main"
    session.append(st.user(TEXT), branch=name)
    results.put(count_appends(lambda: session.append(st.user(TEXT), branch=name), start, seconds))


def write_bare(url: str, key: int, start: Any, seconds: float, results: Any) -> None:
    line = json.dumps({"type": "message", "id": "0" * 16, "message": {"role": "user", "content": TEXT}}).encode()
    values = {"key": key, "line": line, "size": len(line) + 1}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(APPEND, values)
        results.put(count_appends(lambda: connection.execute(APPEND, values), start, seconds))


def run(target: Callable[..., None], given: list[tuple[Any, ...]], seconds: float) -> list[list[float]]:
    """Run the writers at the same time, and return the times of each."""
    context = get_context("fork")
    start, results = context.Barrier(len(given)), context.Queue()
    processes = [context.Process(target=target, args=(*one, start, seconds, results)) for one in given]
    for process in processes:
        process.start()
    found = [results.get(timeout=seconds + 300) for _ in processes]
    for process in processes:
        process.join()
    return found


def measure(server: Server, kind: str, writers: int, rounds: int, seconds: float) -> dict[str, float]:
    ours: list[list[float]] = []
    rates: dict[str, list[float]] = {"ours": [], "bare": []}
    shares: list[float] = []
    url = server.new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute("INSERT INTO talk SELECT number, 0 FROM generate_series(0, %s) AS number", (writers,))
    address = ""
    if kind == "one session":
        session = st.create(dir=url)
        session.append(st.user("start"))
        for number in range(writers):
            session.create_branch(f"b{number}")
        address = f"{url}#{session.id}"
        session.store.database.close()  # type: ignore[attr-defined]  # the writers are forks of this process
    for _ in range(rounds):
        for name in rates:
            if name == "ours":
                found = run(write_ours, [(url, address, f"b{number}") for number in range(writers)], seconds)
                ours += found
                counts = [len(times) for times in found]
                shares.append(min(counts) / statistics.mean(counts))
            else:
                found = run(write_bare, [(url, 0 if address else number) for number in range(writers)], seconds)
            rates[name].append(sum(map(len, found)) / seconds)
    times = sorted(time for each in ours for time in each)
    return {
        "bare": statistics.median(rates["bare"]),
        "ours": statistics.median(rates["ours"]),
        "ratio": statistics.median(a / b for a, b in zip(rates["ours"], rates["bare"], strict=True)),
        "p99": times[int(0.99 * len(times))] / statistics.median(times),
        "least": min(shares),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--writers", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--delay", type=int, default=3, metavar="MS")
    given = parser.parse_args()
    with slow_disk(given.delay) as delay:
        server = Server(fsync=True)
        try:
            print(f"{delay} ms are added to each sync")
            for kind in ("many sessions", "one session"):
                for writers in map(int, given.writers.split(",")):
                    found = measure(server, kind, writers, given.rounds, given.seconds)
                    print(
                        f"{kind}, {writers} writers: bare {found['bare']:.0f}/s, ours {found['ours']:.0f}/s,"
                        f" ratio {found['ratio']:.2f}, p99 {found['p99']:.1f} times the median,"
                        f" slowest writer {found['least']:.2f} of the mean",
                        flush=True,
                    )
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
