"""Sessions in a database: kill -9 of backends and of the server, many writers, and checked histories."""

from __future__ import annotations

import os
import random
import signal
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress

import psycopg
import pytest

import sessiontree as st
from sessiontree.session import Session
from sessiontree.store.base import Cursor
from sessiontree.store.postgres import schema
from sessiontree.store.postgres.store import PostgresStore
from tests.postgres import Proxy, Server
from tests.reliability.harness import Child, start_child, times
from tests.reliability.remote import write

WRITERS = 16


@pytest.fixture
def killable_server() -> Iterator[Server]:
    """A separate server, to be killed."""
    server = Server()
    yield server
    server.stop()


def create_session(url: str) -> str:
    """Return the address of a new session."""
    store = PostgresStore(f"{url}#{uuid.uuid4()}")
    Session.create(store, id=store.id).close()
    return store.location


def check_history(address: str, told: Sequence[Iterable[str]]) -> None:
    """Check that every acknowledged entry is present once, in the order of its writer, and lines have no gaps."""
    url, _, id = address.partition("#")
    with psycopg.connect(url) as connection:
        lines = connection.execute(
            "SELECT e.position, octet_length(e.line), e.id, s.size FROM sessiontree.entry e"
            " JOIN sessiontree.session s ON s.key = e.session WHERE s.id = %s ORDER BY e.position",
            (id,),
        ).fetchall()
    ends = [position + length + 1 for position, length, _, _ in lines]
    assert [position for position, _, _, _ in lines] == [0, *ends[:-1]], "lines have gaps or overlap"
    assert ends[-1] == lines[-1][3], "the session does not end with its last line"
    order = {entry: index for index, (_, _, entry, _) in enumerate(lines)}
    count = Counter(entry for _, _, entry, _ in lines[1:])
    assert not [entry for entry, number in count.items() if number > 1], "an entry is duplicated"
    for acks in told:
        places = [order.get(entry, -1) for entry in acks]
        assert -1 not in places, "an acknowledged entry is lost"
        assert places == sorted(places), "entries of one writer are out of order"
    session = st.open(address, read_only=True)
    assert not [problem for problem in session.problems if problem.severity == "fault"]
    assert len(session.tree) == len(lines) - 1


def kill_a_backend(server: Server, database: str, rng: random.Random) -> None:
    """Kill -9 a backend that serves a writer. The server then ends all others too, and recovers."""
    with suppress(psycopg.OperationalError), psycopg.connect(server.url(database), autocommit=True) as connection:
        pids = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'sessiontree' AND pid <> pg_backend_pid()"
        ).fetchall()
        if pids:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(pids)[0], signal.SIGKILL)


def test_acknowledged_entries_survive_the_death_of_backends_and_of_the_server(killable_server: Server) -> None:
    url = killable_server.new_database()
    address = create_session(url)
    rng = random.Random(7)
    kills, per_kill = times(4, torture=500), times(4, torture=6)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(start_child(write, address, name, kills * per_kill + 10, 0.5 if name == "a" else 60))
            for name in ("a", "b", "c")
        ]
        for kill in range(kills):
            writers[kill % 3].wait_for((kill + 1) * per_kill, seconds=60)
            if kill % 2:
                killable_server.kill()
                killable_server.start()
            else:
                kill_a_backend(killable_server, url.rpartition("/")[2], rng)
        killable_server.wait_until_ready()
        told = [writer.rest() for writer in writers]

    assert [len(acks) for acks in told] == [kills * per_kill + 10] * 3
    check_history(address, told)


def test_sixteen_processes_write_to_one_session_and_some_are_killed(server: Server) -> None:
    address = create_session(server.new_database())
    count = times(6, torture=200)
    with ExitStack() as stack:
        writers: list[Child] = [
            stack.enter_context(start_child(write, address, f"w{number}", count, 60)) for number in range(WRITERS)
        ]
        for writer in writers[:4]:
            writer.wait_for(2, seconds=60)
        killed = [writer.kill() for writer in writers[:4]]
        told = [*killed, *(writer.rest() for writer in writers[4:])]

    assert [len(acks) for acks in told[4:]] == [count] * (WRITERS - 4)
    check_history(address, told)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


def write_through_proxy(proxy: Proxy, url: str, count: int) -> tuple[str, list[str]]:
    """Write a session whose writer gets only some responses. Return its address and the acknowledged entries."""
    rng = random.Random(3)
    address = create_session(url)
    store = PostgresStore(f"postgresql://postgres@127.0.0.1:{proxy.port}/{address.rpartition('/')[2]}")
    cursor = store.read_end().cursor
    line = '{"type":"message","id":"%s","parentId":null,"timestamp":"","branch":"main","message":{"cut":"cut me here"}}'
    acks: list[str] = []
    for number in range(count):
        proxy.cuts = [rng.choice(("before", "after", "late")) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
        cursor = store.append([(line % f"e{number}").encode()], after=cursor)
        acks.append(f"e{number}")
    return address, acks


def test_responses_lost_at_random_neither_duplicate_nor_lose_entries(proxy: Proxy, server: Server) -> None:
    address, acks = write_through_proxy(proxy, server.new_database(), times(30, torture=2000))

    url, _, id = address.partition("#")
    with psycopg.connect(url) as connection:
        ids = connection.execute(
            "SELECT e.id FROM sessiontree.entry e JOIN sessiontree.session s ON s.key = e.session"
            " WHERE s.id = %s AND e.id IS NOT NULL ORDER BY e.position",
            (id,),
        ).fetchall()
    assert [entry for (entry,) in ids] == acks


def test_the_harness_finds_a_store_that_only_retries(
    proxy: Proxy, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = PostgresStore.append

    def retry(self: PostgresStore, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        try:
            return append(self, lines, after=after)
        except st.Conflict:
            return append(self, lines, after=self.read_end().cursor)

    def report_missing(*_: object) -> None:
        raise st.Conflict("here", "another writer appended first")

    forgetful = schema.APPEND_LINES.replace("%s::uuid", "coalesce(gen_random_uuid(), %s::uuid)")
    monkeypatch.setattr(schema, "APPEND_LINES", forgetful)
    monkeypatch.setattr(PostgresStore, "_explain_refusal", report_missing)
    monkeypatch.setattr(PostgresStore, "append", retry)
    address, acks = write_through_proxy(proxy, server.new_database(), 12)

    with pytest.raises(AssertionError, match="duplicated"):
        check_history(address, [acks])
