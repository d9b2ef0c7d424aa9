"""One measurement of sessions in PostgreSQL, in a separate process: `python postgres.py '{"file": …, "count": …}'`.

With `{"counts": [1000, …]}` it measures how an append and a context grow with the session.

A server is started for it, with `fsync` on, and stopped. Beside each of ours, psycopg alone sends the very same
statements with the same values and fetches all they give. Prints one line of JSON; times are in seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import psycopg  # noqa: E402
from tests.postgres import Server  # noqa: E402

import sessiontree as st  # noqa: E402
from ours import messages  # noqa: E402
from sessiontree.library.transfer import copy  # noqa: E402
from sessiontree.session import Session  # noqa: E402
from sessiontree.store.postgres.store import PostgresStore  # noqa: E402

BATCH = 16
ROUNDS = 15

Statement = tuple[Any, Any]


class Recorder:
    """Records every statement that is sent, with its values."""

    def __init__(self) -> None:
        self.sent: list[Statement] = []
        self._execute = psycopg.Connection.execute

    def __enter__(self) -> Recorder:
        recorder = self

        def execute(connection: Any, query: Any, values: Any = None, **options: Any) -> Any:
            recorder.sent.append((query, values))
            return recorder._execute(connection, query, values, **options)

        psycopg.Connection.execute = execute  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        psycopg.Connection.execute = self._execute  # type: ignore[method-assign]


def bare(connection: psycopg.Connection[Any], statements: list[Statement]) -> float:
    start = perf_counter()
    for query, values in statements:
        cursor = connection.execute(query, values)
        if cursor.description:
            cursor.fetchall()
    return perf_counter() - start


def measure_appends(url: str, bodies: list[st.Message]) -> dict[str, float]:
    """Appends by turns: sixteen of ours, and the same statements for another session."""
    ours: list[float] = []
    alone: list[float] = []
    session, twin = st.create(dir=url), st.create(dir=url)
    assert not len(session.tree)  # read before anything is timed
    key = twin.store.read_end().cursor.value[0]
    with psycopg.connect(url, autocommit=True) as connection:
        shift = twin.store.read_end().cursor.value[1] - session.store.read_end().cursor.value[1]
        for at in range(0, len(bodies) - BATCH, BATCH):
            with Recorder() as recorder:
                start = perf_counter()
                for body in bodies[at : at + BATCH]:
                    session.append(body)
                ours.append((perf_counter() - start) / BATCH)
            statements = [
                (query, (key, values[1] + shift, *values[2:-2], uuid.uuid4(), values[-1]))
                for query, values in recorder.sent
            ]
            alone.append(bare(connection, statements) / BATCH)
    assert twin.refresh()
    return {"pg append": statistics.median(ours), "pg bare append": statistics.median(alone)}


def contexts(url: str, where: str, name: str) -> dict[str, float]:
    ours: list[float] = []
    alone: list[float] = []
    with Recorder() as recorder:
        Session(PostgresStore(where)).context()
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(ROUNDS):
            start = perf_counter()
            Session(PostgresStore(where)).context()
            ours.append(perf_counter() - start)
            alone.append(bare(connection, recorder.sent))
    return {f"pg {name}": statistics.median(ours), f"pg bare {name}": statistics.median(alone)}


def measure(file: str, count: int) -> dict[str, float]:
    server = Server(fsync=True)
    try:
        url = server.new_database()
        (copied,) = copy(file, url)
        assert copied.target is not None
        return {**measure_appends(url, messages(file, count)), **contexts(url, copied.target, "context")}
    finally:
        server.stop()


def growth(counts: list[int]) -> dict[str, dict[str, float]]:
    """How long an append and a context take in sessions of so many entries, the last compaction 200 before the end."""
    server = Server(fsync=True)
    found: dict[str, dict[str, float]] = {}
    try:
        url = server.new_database()
        for count in counts:
            store = PostgresStore(f"{url}#{count}-entries")
            start = perf_counter()
            store.create(list(short_session(count)))
            filled = perf_counter() - start
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE sessiontree.entry")  # as autovacuum does later
                connection.execute("CHECKPOINT")
            session = Session(store)
            context = contexts(url, store.location, "context")["pg context"]
            assert len(session.tree) == count
            times: list[float] = []
            for _ in range(200):
                start = perf_counter()
                session.append(st.user("one more"))
                times.append(perf_counter() - start)
            found[str(count)] = {"append": statistics.median(times), "context": context, "fill": filled}
            print(count, found[str(count)], file=sys.stderr)
    finally:
        server.stop()
    return found


def short_session(count: int) -> Iterator[bytes]:
    """A session of short messages."""
    yield b'{"type":"session","version":3,"id":"s","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/p"}'
    stamp = b'"timestamp":"2026-01-01T00:00:00.000Z","branch":"main"'
    parent = b"null"
    for number in range(count):
        id = b'"%016x"' % number
        body = b'"type":"message","id":%s,"parentId":%s,%s,"message":{"role":"user","content":"message number %d"}' % (
            id, parent, stamp, number,
        )  # fmt: skip
        if number == count - 200:
            body = (
                b'"type":"compaction","id":%s,"parentId":%s,%s,"summary":"so far","firstKeptEntryId":%s,'
                b'"tokensBefore":9,"state":{"thinkingLevel":"off"}' % (id, parent, stamp, id)
            )
        yield b"{%s}" % body
        parent = id


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(growth(**given) if "counts" in given else measure(**given)))
