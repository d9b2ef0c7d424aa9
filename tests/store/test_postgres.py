"""The PostgreSQL store beyond the protocol: schema, roles, lost responses, forks and waiting."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import sessiontree as st
from sessiontree.library import catalog
from sessiontree.library.transfer import copy, verify
from sessiontree.session import Session
from sessiontree.store.base import FenceRaised
from sessiontree.store.memory import MemoryStore
from sessiontree.store.postgres import schema
from sessiontree.store.postgres.address import Address, has_several_hosts, is_database_address, parse_address
from sessiontree.store.postgres.block_cache import BlockCache
from sessiontree.store.postgres.connection import PostgresDatabase
from sessiontree.store.postgres.driver import read_timeline
from sessiontree.store.postgres.rows import clean_text
from sessiontree.store.postgres.store import PostgresStore
from tests.postgres import Proxy, Server
from tests.reliability.harness import times
from tests.simulation import Simulation
from tests.strategies import damaged_sessions, sessions

TORTURE = bool(os.environ.get("SESSIONTREE_TORTURE"))
LATE = 2.0
"""Seconds by which a busy machine may be late."""


def new(database: str, id: str | None = None) -> PostgresStore:
    return PostgresStore(f"{database}#{id or uuid.uuid4()}")


def rows(database: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(database, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


def line_of(wire: dict[str, Any]) -> bytes:
    return json.dumps(wire).encode()


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the statements sent to the server."""
    sent: list[str] = []
    execute = psycopg.Connection.execute

    def counted(self: Any, query: Any, *values: Any, **options: Any) -> Any:
        sent.append(query.decode() if isinstance(query, bytes) else str(query))
        return execute(self, query, *values, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", counted)
    return sent


# Addresses


def test_an_address_is_shown_without_secrets() -> None:
    address = parse_address(
        "postgres://ann:s3cret@[::1]:5433,other/talks?sslmode=require&password=hidden&host=db#my%20session"
    )

    assert address.safe_url == "postgresql://ann@[::1]:5433,other/talks?host=db"
    assert address.session == "my session"
    assert address.format_session_address("x") == f"{address.safe_url}#x"
    assert "s3cret" in address.url
    assert parse_address(address.format_session_address("x")).url == address.url, (
        "the process that has seen the full address opens the safe one"
    )


def test_the_variable_must_be_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONTREE_STORE", "/some/folder")

    with pytest.raises(st.InvalidOperation, match="SESSIONTREE_STORE"):
        st.sessions()
    assert not is_database_address("/some/folder")
    assert not is_database_address(None)


def test_a_store_needs_a_session(shared_database: str) -> None:
    with pytest.raises(st.InvalidOperation, match="has no session"):
        PostgresStore(shared_database)
    with pytest.raises(st.InvalidOperation):
        PostgresStore(f"{shared_database}#a%00b")


def test_a_password_is_in_no_message(server: Server) -> None:
    address = parse_address(server.url("nowhere", password="s3cret") + "#x")

    with pytest.raises(st.StoreError) as refused:
        PostgresStore(address).read_end()

    assert "s3cret" not in str(refused.value)
    assert "does not exist" in str(refused.value)


def test_an_unreachable_server_is_an_error_after_the_retries() -> None:
    store = PostgresStore("postgresql://nobody@127.0.0.1:1/none#x")
    store.database.retry_seconds = 0.2

    with pytest.raises(st.StoreError, match="cannot be reached") as refused:
        store.read_end()
    assert not isinstance(refused.value, st.OutcomeUnknown)


def test_a_database_that_was_never_reached_is_retried_for_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessiontree.store.postgres.connection.FIRST_RETRY_SECONDS", 0.1)
    database = PostgresDatabase(parse_address("postgresql://nobody@127.0.0.1:1/none"), retry_seconds=600)

    with pytest.raises(st.StoreError, match="cannot be reached"):
        database.run(lambda connection: None)


def test_after_a_lost_connection_the_idle_ones_are_not_used(shared_database: str) -> None:
    database = PostgresDatabase(Address(f"{shared_database}?application_name=lost", shared_database, None))
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: database.run(lambda connection: together.wait(60)), range(8)))
    rows(
        shared_database, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'lost'"
    )
    tries: list[int] = []

    def work(connection: psycopg.Connection[Any]) -> Any:
        tries.append(connection.info.backend_pid)
        return connection.execute("SELECT 1").fetchone()

    assert database.run(work) == (1,)
    assert len(tries) == 2
    database.close()


@pytest.fixture
def two_ways(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, PostgresDatabase]]:
    """A database whose address has two servers; the first one is a proxy. Slow statements are noticed early."""
    monkeypatch.setattr("sessiontree.store.postgres.failover_watch.SLOW_SECONDS", 0.05)
    monkeypatch.setattr("sessiontree.store.postgres.failover_watch.CHECK_SECONDS", 0.05)
    first = Proxy(server.port)
    url = f"postgresql://postgres@127.0.0.1:{first.port},127.0.0.1:{server.port}/postgres?connect_timeout=3"
    database = PostgresDatabase(parse_address(url), prepare=lambda connection, where: None)
    yield first, database
    database.close()
    first.close()


def test_a_statement_on_a_server_that_is_not_the_primary_any_more_is_sent_to_the_new_one(
    two_ways: tuple[Proxy, PostgresDatabase],
) -> None:
    first, database = two_ways
    ports: list[int] = []

    def work(connection: psycopg.Connection[Any]) -> None:
        ports.append(connection.info.port)
        if len(ports) == 1:
            first.is_down = True  # and the connection hangs, as if the server was suspended
            connection.execute("SELECT pg_sleep(3600)")

    database.run(work)

    assert ports[0] == first.port
    assert len(ports) == 2
    assert ports[1] != first.port


def test_a_slow_statement_on_the_primary_is_left_alone(two_ways: tuple[Proxy, PostgresDatabase]) -> None:
    _, database = two_ways
    tries: list[int] = []

    def work(connection: psycopg.Connection[Any]) -> None:
        tries.append(1)
        connection.execute("SELECT pg_sleep(1)")

    database.run(work)

    assert len(tries) == 1


def test_a_primary_that_became_a_standby_is_left_if_there_are_others(
    two_ways: tuple[Proxy, PostgresDatabase], shared_database: str
) -> None:
    tries: list[int] = []

    def work(connection: psycopg.Connection[Any]) -> None:
        tries.append(1)
        if len(tries) == 1:
            connection.execute("SET default_transaction_read_only = on")
        connection.execute("CREATE TABLE pg_temp.t ()")
        connection.execute("CREATE TABLE IF NOT EXISTS t ()")

    two_ways[1].run(work)
    assert len(tries) == 2
    tries.clear()
    with pytest.raises(st.StoreError, match="the database is read-only"):
        PostgresDatabase(parse_address(shared_database)).run(work)


def test_a_server_with_an_older_timeline_is_refused(
    two_ways: tuple[Proxy, PostgresDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover, a primary that wakes up from a suspension still accepts writes."""
    _, database = two_ways
    timelines = [2, 1, 1, 2]
    monkeypatch.setattr("sessiontree.store.postgres.connection.read_timeline", lambda connection: timelines.pop(0))
    database.run(lambda connection: None)
    database.close()

    assert database.run(lambda connection: connection.execute("SELECT 1").fetchone()) == (1,)
    assert timelines == []


def test_the_timeline_of_a_server_is_read(shared_database: str) -> None:
    with psycopg.connect(shared_database) as connection:
        assert read_timeline(connection) == 1


def test_addresses_of_several_servers_are_recognized() -> None:
    assert has_several_hosts("postgresql://ann:pa,ss@a,b:5432/talks") is True
    assert has_several_hosts("postgresql:///talks?host=a,b&user=ann") is True
    assert has_several_hosts("postgresql://ann:pa,ss@a/talks?application_name=x,y") is False


# The schema


def test_many_processes_can_create_the_schema_at_once(server: Server) -> None:
    url = server.new_database()
    address = parse_address(url)
    start = threading.Barrier(8)

    def create_schema() -> None:
        database = PostgresDatabase(address)
        connection = database.connect()
        start.wait(30)
        schema.ensure_schema(connection, "here")
        connection.close()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(create_schema) for _ in range(8)]:
            done.result(60)

    assert rows(url, "SELECT number FROM sessiontree.step ORDER BY 1") == [
        (number,) for number in range(1, len(schema.MIGRATIONS) + 1)
    ]


def test_a_server_without_optional_features_works(server: Server) -> None:
    """Some distributed servers have no advisory locks and no BRIN indexes."""
    url = server.new_database()
    with psycopg.connect(url, autocommit=True) as less:
        less.execute("SET allow_system_table_mods = on")
        for function in ("pg_advisory_xact_lock(bigint)", "pg_advisory_xact_lock(integer, integer)"):
            less.execute(f"ALTER FUNCTION pg_catalog.{function} RENAME TO missing".encode())
        less.execute("UPDATE pg_am SET amname = 'missing' WHERE amname = 'brin'")

    with Session.create(new(url, "s"), id="s", cwd="/p") as session:
        seen = session.append(st.user("word"))
        end = session.store.read_end().cursor
        st.open(f"{url}#s").append(st.user("more"))

        assert session.store.wait_for_change(end, 60)
        assert [entry.parent for entry in session.refresh()] == [seen.id]
    assert [hit.entry for hit in catalog.search("word", all=True, dir=url)] == [seen.id]


def test_tables_of_a_newer_version_are_refused(server: Server) -> None:
    url = server.new_database()
    new(url).create([b"header"])
    rows(url, "INSERT INTO sessiontree.step (number) VALUES (99)")

    with pytest.raises(st.StoreError, match="newer version"):
        PostgresDatabase(parse_address(url)).run(lambda connection: None)


def test_a_database_that_is_not_utf8_is_refused(server: Server) -> None:
    rows(server.url("postgres"), "CREATE DATABASE latin ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")

    with pytest.raises(st.StoreError, match="UTF8"):
        new(server.url("latin")).create([b"header"])


# Roles, as docs/deploy.md grants them


def grant(database: str) -> None:
    """Create the roles of the page."""
    run_page(database, 0)


def run_page(database: str, number: int) -> None:
    """Run a block of statements of the page. Roles belong to the server, and other tests may have created them."""
    page = Path(__file__).parents[2] / "docs" / "deploy.md"
    for statement in page.read_text().split("```sql\n")[number + 1].partition("```")[0].split(";\n"):
        with suppress(psycopg.errors.DuplicateObject):
            rows(database, statement)


def test_a_writer_can_append_and_read_but_not_change_entries(server: Server) -> None:
    url = server.new_database()
    owner = new(url, "theirs")
    owner.create([b'{"type":"session","version":3,"id":"theirs","timestamp":"","cwd":"/p"}', b"one", b"two"])
    grant(url)
    rows(url, "CREATE ROLE ann LOGIN IN ROLE sessiontree_writer")
    mine = parse_address(url.replace("postgres@", "ann@"))

    with Session.create(PostgresStore(mine._replace(session="own")), id="own", cwd="/p") as session:
        session.append(st.user("hello"))
        session.create_branch("try").append(st.user("branch"))
        forked = catalog.fork(session)
        forked.append(st.user("more"))
    theirs = PostgresStore(mine._replace(session="theirs"))
    theirs.append([b"three"], after=theirs.read_end().cursor)
    assert owner.read().data.endswith(b"one\ntwo\nthree\n")
    assert {summary.id for summary in catalog.sessions(all=True, dir=mine.url)} == {"theirs", "own", forked.id}

    for statement in (
        "UPDATE sessiontree.entry SET line = 'x'",
        "DELETE FROM sessiontree.entry",
        "INSERT INTO sessiontree.entry (session, position, line) VALUES (1, 3, 'x')",
        "INSERT INTO sessiontree.shared VALUES (1, 3, 1, 0, 5)",
        "UPDATE sessiontree.session SET size = 0",
        "UPDATE sessiontree.session SET current = false",
        "UPDATE sessiontree.session SET tail = 'x'",
        "DELETE FROM sessiontree.session",
        "TRUNCATE sessiontree.entry",
        "DROP TABLE sessiontree.entry",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(mine.url, statement)
    with pytest.raises(st.StoreError, match="lacks permission"):
        catalog.purge(theirs.location)
    assert owner.read().data.endswith(b"one\ntwo\nthree\n")


def test_a_writer_changes_the_listing_only_of_sessions_that_it_created(server: Server) -> None:
    url = server.new_database()
    for id in ("s", "t"):
        with Session.create(PostgresStore(parse_address(f"{url}#{id}")), id=id, cwd="/p", name="true") as session:
            session.append(st.user("hello"))
    grant(url)
    rows(url, "CREATE ROLE liar LOGIN IN ROLE sessiontree_writer")
    liar = url.replace("postgres@", "liar@")
    with Session.create(PostgresStore(parse_address(f"{liar}#own")), id="own", cwd="/p", name="mine") as own:
        own.append(st.user("hello"))

    for role in ("", "SET ROLE sessiontree_writer; "):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="another role created the session"):
            rows(liar, f"{role}UPDATE sessiontree.session SET name = 'false', messages = 9 WHERE id = 's'")
    rows(liar, "UPDATE sessiontree.session SET name = 'false', messages = 9 WHERE id = 'own'")
    rows(url, "UPDATE sessiontree.session SET told = false WHERE id = 't'")  # the owner may
    with st.open(f"{liar}#s") as session:  # appending to a session of another role works as before
        session.append(st.user("more"))
        store = session.store
        assert isinstance(store, PostgresStore)
        store.backdate(0)

    listed = {summary.id: (summary.name, summary.message_count) for summary in catalog.sessions(all=True, dir=liar)}
    assert listed == {"s": ("true", 2), "t": ("true", 1), "own": ("false", 9)}
    page = Path(__file__).parents[2] / "docs" / "postgres.md"
    rows(url, page.read_text().split("```sql\n")[1].partition("```")[0])
    listed = {summary.id: (summary.name, summary.message_count) for summary in catalog.sessions(all=True, dir=url)}
    assert listed == {"s": ("true", 2), "t": ("true", 1), "own": ("mine", 1)}


def test_a_writer_can_copy_a_file_with_an_unfinished_last_line(server: Server, tmp_path: Path) -> None:
    url = server.new_database()
    catalog.sessions(dir=url)  # creates the tables
    grant(url)
    rows(url, "CREATE ROLE dan LOGIN IN ROLE sessiontree_writer")
    mine = url.replace("postgres@", "dan@")
    file = tmp_path / "torn.jsonl"
    file.write_bytes(b'{"type":"session","version":3,"id":"torn","timestamp":"","cwd":"/p"}\n{"cut')
    os.utime(file, (0, 1_500_000_000))

    assert [copied.state for copied in copy(str(file), mine)] == ["copied"]
    assert [summary.modified for summary in catalog.sessions(all=True, dir=mine)] == ["2017-07-14T02:40:00.000Z"]
    assert [copied.state for copied in verify(str(file), mine)] == ["same"]
    assert [copied.state for copied in copy(str(file), mine)] == ["same"]
    with st.open(f"{mine}#torn") as session:
        session.append(st.user("goes on"))
    (key,) = rows(url, "SELECT key FROM sessiontree.session")
    assert rows(mine, f"SELECT sessiontree.leave({key[0]}, 0, 'x')") == [(False,)], "only behind the end"


def test_a_reader_can_read_list_and_search_and_nothing_else(server: Server) -> None:
    url = server.new_database()
    new(url, "theirs").create(
        [
            b'{"type":"session","version":3,"id":"theirs","timestamp":"","cwd":"/p"}',
            b'{"type":"message","id":"a","parentId":null,"timestamp":"","message":{"role":"user","content":"word"}}',
        ]
    )
    grant(url)
    rows(url, "CREATE ROLE bob LOGIN IN ROLE sessiontree_reader")
    reader = url.replace("postgres@", "bob@")

    assert [summary.entry_count for summary in catalog.sessions(all=True, dir=reader)] == [1]
    assert [hit.entry for hit in catalog.search("word", all=True, dir=reader)] == ["a"]
    with st.open(f"{reader}#theirs") as session, pytest.raises(st.StoreError, match="lacks permission"):
        session.append(st.user("mine"))


def test_projects_can_be_isolated(server: Server) -> None:
    rows(server.url("postgres"), "CREATE ROLE keeper LOGIN")
    url = server.new_database(owner="keeper")
    superuser = url.replace("keeper@", "postgres@")
    for id, cwd in (("a", "/projects/a"), ("b", "/projects/b")):
        Session.create(new(url, id), id=id, cwd=cwd).append(st.user(f"word of {id}"))
    grant(superuser)
    run_page(url, 1)
    rows(superuser, "CREATE ROLE carl LOGIN IN ROLE sessiontree_writer")
    rows(url, "INSERT INTO sessiontree_project VALUES ('carl', '/projects/a')")
    mine = parse_address(url.replace("keeper@", "carl@"))

    assert [summary.id for summary in catalog.sessions(all=True, dir=mine.url)] == ["a"]
    assert [hit.session for hit in catalog.search("word", all=True, dir=mine.url)] == ["a"]
    st.open(f"{mine.url}#a").append(st.user("more"))
    with pytest.raises(st.NotFound):
        st.open(f"{mine.url}#b")
    (key,) = rows(superuser, "SELECT key, size FROM sessiontree.session WHERE id = 'b'")
    nothing = "'{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', NULL, '{}'"
    assert rows(mine.url, f"SELECT sessiontree.append({key[0]}, {key[1]}, {nothing})") == [(None,)]
    with pytest.raises(st.StoreError, match="row-level security"):
        st.create(cwd="/projects/b", dir=mine.url)
    assert st.create(cwd="/projects/a", dir=mine.url).append(st.user("own"))
    rows(superuser, "INSERT INTO sessiontree.torn VALUES (%s, %s, 'a secret of b')", *key)
    assert rows(mine.url, "SELECT bytes FROM sessiontree.torn") == []

    with pytest.raises(subprocess.CalledProcessError):
        server.program("pg_dump", "--schema", "sessiontree", url)
    run_page(superuser, 2)
    dump = server.program("pg_dump", "--schema", "sessiontree", url.replace("keeper@", "sessiontree_backup@"))
    again = server.new_database()
    server.program("psql", "--quiet", again, input=dump)
    assert {"a", "b"} <= {summary.id for summary in catalog.sessions(all=True, dir=again)}


def test_even_the_owner_can_only_append(server: Server, shared_database: str) -> None:
    store = new(shared_database)
    store.create([b"header"])

    for statement in (
        "UPDATE sessiontree.entry SET line = 'x'",
        "UPDATE sessiontree.session SET size = size - 1",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
            rows(shared_database, statement)


# Lost responses


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


def open_through_proxy(proxy: Proxy, database: str) -> PostgresStore:
    """Return a store behind the proxy."""
    name = database.rpartition("/")[2]
    return new(f"postgresql://postgres@127.0.0.1:{proxy.port}/{name}")


@pytest.mark.parametrize(
    "cuts",
    [["before"], ["after"], ["before", "after", "after"], ["late"], ["late", "before", "late", "after"]],
    ids="-".join,
)
def test_an_append_whose_response_is_lost_is_stored_once(proxy: Proxy, shared_database: str, cuts: list[str]) -> None:
    store = open_through_proxy(proxy, shared_database)
    cursor = store.create([b"header"])

    for number in range(9):
        # The driver prepares a statement after several uses: then other bytes are cut.
        proxy.cuts = list(cuts) if number in (1, 8) else []
        cursor = store.append([b"cut me here %d" % number, b"and more"], after=cursor)
        assert proxy.cuts == []

    lines = store.read().data.splitlines()[1:]
    assert lines == [line for number in range(9) for line in (b"cut me here %d" % number, b"and more")]
    assert store.read_end().cursor == cursor


@pytest.mark.parametrize("cut", ["before", "after"])
def test_create_and_replace_are_stored_once_too(proxy: Proxy, shared_database: str, cut: str) -> None:
    store = open_through_proxy(proxy, shared_database)
    proxy.cuts = [cut]
    cursor = store.create([b"cut me here"])
    proxy.cuts = [cut]
    cursor = store.replace([b"cut me here", b"again"], after=cursor)

    assert proxy.cuts == []
    assert store.read().data == b"cut me here\nagain\n"
    assert store.read_end().cursor == cursor


@pytest.mark.parametrize("cut", ["before", "after"])
def test_after_an_unknown_outcome_repeating_the_append_is_safe(proxy: Proxy, shared_database: str, cut: str) -> None:
    store = open_through_proxy(proxy, shared_database)
    cursor = store.create([b"header"])
    store.database.retry_seconds = 0.1
    proxy.cuts, proxy.is_down = [cut], True

    with pytest.raises(st.OutcomeUnknown):
        store.append([b"cut me here"], after=cursor)

    proxy.is_down = False
    after = store.append([b"cut me here"], after=cursor)
    assert store.read().data == b"header\ncut me here\n"
    assert store.append([b"next"], after=after) == store.read_end().cursor


def test_a_session_resolves_an_unknown_outcome_by_refreshing(proxy: Proxy, shared_database: str) -> None:
    store = open_through_proxy(proxy, shared_database)
    session = Session.create(store, id=store.id)
    session.append(st.user("first"))
    store.database.retry_seconds = 0.1
    proxy.cuts, proxy.is_down = ["after"], True
    with pytest.raises(st.OutcomeUnknown):
        session.append(st.user("cut me here"))
    proxy.is_down = False

    with pytest.raises(st.BranchMoved):
        session.append(st.user("cut me here"))

    assert [entry.body.message["content"] for entry in session.head.path()] == ["first", "cut me here"]


def test_reading_continues_after_every_connection_is_reset(proxy: Proxy, shared_database: str) -> None:
    store = open_through_proxy(proxy, shared_database)
    store.create([b"header", b"one"])

    for _ in range(3):
        proxy.cut_all()
        assert store.read().data == b"header\none\n"


# Reading by index


def deep(database: str, entries: int) -> Session:
    """Create a session with a long second branch."""
    session = Session.create(new(database), id=str(uuid.uuid4()))
    session.append(st.user("question"))
    session.append(st.assistant("answer", provider="p", model="m"))
    session.create_branch("aside")
    session.extend([st.user(f"step {number} " + "x" * 200) for number in range(entries)])
    session.switch("main")
    return session


def test_the_context_of_every_branch_takes_few_statements(shared_database: str, statements: list[str]) -> None:
    session = deep(shared_database, 3000)
    where = session.location
    whole = {name: session.branch(name).context() for name in ("main", "aside")}
    session.close()

    for name, most in (("main", 6), ("aside", 11)):
        again = st.open(where)
        statements.clear()
        context = again.context(name)
        assert context == whole[name]
        assert len(statements) <= most, statements
    assert len(whole["aside"].messages) == 3002


def test_a_compacted_path_is_read_no_further_than_its_compaction(shared_database: str, statements: list[str]) -> None:
    session = deep(shared_database, 1000)
    session.switch("aside")
    kept = session.head.path()[-2].id
    session.append(st.Compaction(summary="so far", first_kept=kept, tokens_before=9))
    whole = session.head.context()
    again = st.open(session.location)
    statements.clear()

    context = again.context("aside")

    assert context == whole
    assert len(context.messages) == 3
    assert len(statements) <= 3


def test_heads_far_back_take_one_statement(shared_database: str, statements: list[str]) -> None:
    with st.create(dir=shared_database) as session:
        old = session.create_branch("old", current=False).append(st.user("long ago"))
        other = session.create_branch("other", current=False).append(st.user("also"))
        for _ in range(12):
            session.extend([st.user("x" * 2000) for _ in range(60)])
    with st.open(session.location) as again:
        statements.clear()
        assert (again.heads.heads["old"], again.heads.heads["other"]) == (old.id, other.id)
        assert len([text for text in statements if "AS wanted (id)" in text]) == 1
        assert not [text for text in statements if "WITH RECURSIVE" in text]
        assert again.branch("old").path()[-1].text == "long ago"


def test_heads_near_the_end_are_read_once(shared_database: str, statements: list[str]) -> None:
    with st.create(dir=shared_database) as session:
        for number in range(12):
            session.extend([st.user("x" * 2000) for _ in range(20)])
            session.create_branch(f"b{number}", current=False).append(st.user("y" * 2000))
        session.append(st.user("z" * 70_000))
    with st.open(session.location) as again:
        statements.clear()
        assert len(again.heads.heads) == 13
    # One looks for changed lines, and each page from the end is read once.
    assert len([text for text in statements if "SELECT l.position" in text]) <= 5


def test_ids_that_cannot_be_indexed_are_found_by_reading(shared_database: str) -> None:
    store = new(shared_database)
    line = (
        '{"type":"message","id":"%s","parentId":%s,"timestamp":"","branch":"main",'
        '"message":{"role":"user","content":"%s"}}'
    )
    odd = ["a\\u0000b", "x" * 3000, "\\ud800"]
    lines = [line % (odd[0], "null", "1")]
    lines += [line % (id, f'"{above}"', "more") for above, id in pairwise(odd)]
    lines += [line % ("last", f'"{odd[-1]}"', "end")]
    store.create([b'{"type":"session","version":3,"id":"s","timestamp":"","cwd":""}', *map(str.encode, lines)])

    session = Session(store)

    assert [message["content"] for message in session.context().messages] == ["1", "more", "more", "end"]


def test_a_session_that_was_read_is_cached(shared_database: str, statements: list[str]) -> None:
    session = st.open(deep(shared_database, 500).location)
    assert len(session.tree) > 500
    statements.clear()

    assert sum(len(entry.raw) for entry in session.tree) > 100_000

    assert statements == []


def test_the_least_recently_used_blocks_are_dropped() -> None:
    blocks = BlockCache(limit=30)
    for start in (0, 1000, 2000):
        blocks.put(start, bytes(10))
    assert blocks.get(5, 5) == bytes(5)

    blocks.put(3000, bytes(10))

    assert blocks.get(1000, 1) is None
    assert blocks.get(0, 10) == bytes(10)
    assert blocks.get(5, 6) is None
    blocks.put(10, b"next to it")
    assert blocks.get(5, 10) == bytes(5) + b"next "


def test_long_sessions_are_read_in_parts_and_again_from_any_place(shared_database: str) -> None:
    store = new(shared_database)
    lines = [b"%d " % number + b"x" * (number * 7919 % 30_000) for number in range(300)]
    end = store.create(lines)
    data = b"\n".join([*lines, b""])

    assert b"".join(block for block, _ in reversed(list(store.read_backward(end)))) == data
    assert [start for _, start in store.read_backward(end)][-1] == 0
    again = PostgresStore(store.location)
    parts, cursor = [], None
    while cursor != end:
        chunk = again.read(cursor, before=end, limit=1 << 16)
        parts.append(chunk.data)
        cursor = chunk.cursor
    assert b"".join(parts) == data
    assert len(parts) > 20
    fresh = PostgresStore(store.location)
    for start in (0, 5, 100_000, len(data) - 3):
        assert fresh.fetch(start, 3) == data[start : start + 3]
    with pytest.raises(st.Conflict):
        fresh.fetch(len(data) - 1, 5)


@settings(max_examples=3000 if TORTURE else 40)
@given(data=some.one_of(sessions(), damaged_sessions()))
def test_a_random_session_is_the_same_in_a_database_and_in_memory(shared_database: str, data: bytes) -> None:
    memory, store = MemoryStore(), new(shared_database)
    lines = data.removesuffix(b"\n").split(b"\n")
    memory.create(lines)
    store.create(lines)
    try:
        ours = Session(memory)
    except st.FormatError:
        with pytest.raises(st.FormatError):
            Session(store)
        return

    lazy = {name: Session(store).context(name) for name, head in ours.heads.heads.items() if head in ours.tree}
    theirs = Session(store)

    assert theirs.read_lines() == ours.read_lines()
    assert theirs.heads.heads == ours.heads.heads
    assert theirs.problems == ours.problems
    for name, context in lazy.items():
        assert context == ours.context(name)


@pytest.mark.parametrize(
    ("branch", "cost"), [("a\0b", 1.0), ("\ud800", 1.0), ("b" * 600, 1.0), ("main", 1e308), ("main", -1e308)]
)
def test_values_that_no_column_can_store_are_listed_from_the_lines(database: str, branch: str, cost: float) -> None:
    memory, store = MemoryStore(), new(database)
    said = {"role": "assistant", "content": "hi", "usage": {"totalTokens": 1, "cost": {"total": cost}}}
    for one in (memory, store):
        one.create([line_of({"type": "session", "version": 3, "id": "s", "timestamp": "", "cwd": "/projects/a"})])
        for number, parent in enumerate((None, "1", "2"), 1):
            entry = {"type": "message", "id": str(number), "parentId": parent, "timestamp": "", "message": said}
            one.append([line_of({**entry, "branch": branch})], after=one.read().cursor)

    (listed,) = catalog.sessions(all=True, dir=database)
    assert Session(store).heads.heads == Session(memory).heads.heads
    assert (listed.entry_count, listed.branch) == (3, clean_text(branch))


@pytest.mark.parametrize("peers", [False, True])
def test_a_random_history_of_several_writers_is_stored_and_listed_correctly(database: str, peers: bool) -> None:
    address = f"{database}#s"
    simulation = Simulation(writers=3, peers=peers, store=lambda: PostgresStore(address))
    for number in range(100):
        simulation.step(number * 7919 % 101, number * 104729 % 97, number * 1299709 % 89)
    simulation.check()

    ((told,),) = rows(database, "SELECT told FROM sessiontree.session")
    listed = catalog.sessions(all=True, dir=database)
    rows(database, "UPDATE sessiontree.session SET told = false")
    assert catalog.sessions(all=True, dir=database) == listed, "the sums of the lines equal those of the whole session"
    assert told is not peers


# Copied files


@pytest.mark.parametrize("tail", [b'{"whole":1}', b'{"cut'])
def test_the_unfinished_last_line_of_a_copied_file_is_kept_and_moved_away_by_an_append(
    shared_database: str, tail: bytes
) -> None:
    store = new(shared_database)
    store.write_tail(tail, after=store.create([b"{}"]))
    whole = tail == b'{"whole":1}'
    chunk = PostgresStore(store.location).read()
    assert chunk.data + chunk.unfinished == b"{}\n" + tail
    assert (chunk.unfinished == b"") is whole
    assert store.read(chunk.cursor).data == b""
    assert store.fetch(0, 3) == b"{}\n"

    other = PostgresStore(store.location)
    seen = other.read_end().cursor
    end = store.append([b'{"a":1}'], after=chunk.cursor)

    assert store.read().data == (b'{}\n{"whole":1}\n{"a":1}\n' if whole else b'{}\n{"a":1}\n')
    assert store.read_end().cursor == end
    assert other.read(seen).data == b'{"a":1}\n'
    with pytest.raises(st.Conflict):
        other.append([b"late"], after=seen)
    torn = rows(shared_database, "SELECT bytes FROM sessiontree.torn t JOIN sessiontree.session s ON s.key = t.session"
                " WHERE s.id = %s", store.id)  # fmt: skip
    assert torn == ([] if whole else [(tail,)])


def test_a_rewrite_keeps_the_old_lines_as_a_backup(shared_database: str) -> None:
    store = new(shared_database)
    store.replace([b"new"], after=store.create([b"old", b"lines"]))

    kept = rows(
        shared_database,
        "SELECT s.current, string_agg(e.line, '/' ORDER BY e.position) FROM sessiontree.session s"
        " JOIN sessiontree.entry e ON e.session = s.key WHERE s.id = %s GROUP BY s.key ORDER BY s.key",
        store.id,
    )

    assert kept == [(False, b"old/lines"), (True, b"new")]


# Forks that share


def test_a_fork_of_a_long_path_writes_few_rows(shared_database: str) -> None:
    session = deep(shared_database, 2000)
    session.switch("aside")
    session.label("HEAD", "here")

    forked = catalog.fork(session, name="fork")

    (own,) = rows(
        shared_database,
        "SELECT count(*) FROM sessiontree.entry e JOIN sessiontree.session s ON s.key = e.session WHERE s.id = %s",
        forked.id,
    )
    assert own[0] < 10
    as_file = catalog.fork(session, name="fork", dir=os.environ["HOME"])
    assert len(forked.tree) == len(as_file.tree) == 2005
    assert forked.head.context() == as_file.head.context()
    assert [entry.raw for entry in forked.head.path()] == [entry.raw for entry in as_file.head.path()]
    assert not [problem for problem in forked.problems if problem.severity == "fault"]
    assert forked.read_lines()[1:-3] == as_file.read_lines()[1:-3]


def test_a_fork_can_be_appended_to_and_forked_and_survives_a_purge_of_its_source(
    database: str, statements: list[str]
) -> None:
    session = deep(database, 300)
    forked = catalog.fork(session, at="aside")
    forked.append(st.user("only in the fork"))
    again = catalog.fork(forked, whole=True)
    session.append(st.user("only in the source"))
    paths = [[entry.raw for entry in each.head.path()] for each in (forked, again)]

    assert len(paths[0]) == 303
    assert paths[0] == paths[1]
    assert len(catalog.search('"step 7"', all=True, dir=database)) == 3 * 11
    assert [hit.session for hit in catalog.search("fork", all=True, dir=database)] == [again.id, forked.id]
    fresh = st.open(again.location)
    statements.clear()
    assert fresh.context("main") == again.head.context()
    assert len(statements) <= 8
    held = [st.open(each.location) for each in (forked, again)]
    assert [len(each.context().messages) for each in held] == [303, 303]
    catalog.purge(session.location)
    assert [len(each.tree) for each in held] == [len(forked.tree), len(again.tree)]
    for each, path in zip((forked, again), paths, strict=True):
        alone = st.open(each.location)
        assert [entry.raw for entry in alone.head.path()] == path
        alone.append(st.user("still alive"))
    assert catalog.sessions(all=True, dir=database)[0].entry_count > 300


def test_a_fork_keeps_the_lines_of_a_source_purged_at_the_same_time(database: str) -> None:
    session = deep(database, 50)
    (source,) = rows(database, "SELECT key, size FROM sessiontree.session")
    head = len(next(iter(session.store.read().data.splitlines(keepends=True))))
    with psycopg.connect(database) as forking, ThreadPoolExecutor(1) as pool:
        made = "INSERT INTO sessiontree.session (id) VALUES ('fork') RETURNING key"
        (fork,) = forking.execute(made).fetchone() or ()
        forking.execute("SELECT sessiontree.share(%s, 0, %s, %s, %s)", (fork, [source[0]], [head], [source[1] - head]))
        purging = pool.submit(catalog.purge, session.location)
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        deadline = time.monotonic() + 60
        while not purging.done() and not rows(database, waiting):
            assert time.monotonic() < deadline, "it neither waits nor ends"
        forking.commit()
        purging.result(60)

    assert len(PostgresStore(f"{database}#fork").read().data) == source[1] - head


def test_lines_with_a_changed_parent_are_stored_by_the_fork(shared_database: str) -> None:
    store = new(shared_database)
    message = b'{"type":"message","id":"%s","parentId":%s,"timestamp":"","message":{"role":"user","content":"%s"}}'
    label = b'{"type":"label","id":"l","parentId":"a","timestamp":"","targetId":"a","label":"x"}'
    store.create(
        [
            b'{"type":"session","version":3,"id":"s","timestamp":"","cwd":"/p"}',
            message % (b"a", b"null", b"1"), label, message % (b"b", b'"l"', b"2"), message % (b"c", b'"b"', b"3"),
        ]
    )  # fmt: skip

    forked = catalog.fork(Session(store))

    assert [(entry.id, entry.parent) for entry in forked.head.path()] == [("a", None), ("b", "a"), ("c", "b")]
    assert st.open(forked.location).context().messages == Session(store).context().messages


# Operation


def read_page_commands(*names: str) -> list[str]:
    """Return the commands of docs/deploy.md that start with `prefix`."""
    page = Path(__file__).parents[2] / "docs" / "deploy.md"
    return [line for line in page.read_text().splitlines() if line.startswith(names)]


def test_a_dump_is_restored_as_it_was(server: Server, database: str, tmp_path: Path) -> None:
    session = deep(database, 300)
    forked = catalog.fork(session, at="aside")
    other = server.new_database()

    for command in read_page_commands("pg_dump", "pg_restore"):
        command = command.replace("postgresql://db.example/talks", database)
        name, *arguments = command.replace("postgresql://db.example/again", other).split()
        server.program(name, *(str(tmp_path / part) if part == "talks.dump" else part for part in arguments))

    assert rows(other, "SELECT 1 FROM pg_class WHERE relname = 'entry_said'"), "searching has its index"
    assert {copied.state for copied in verify(database, other)} == {"same"}
    again = st.open(f"{other}#{forked.id}")
    assert again.head.context() == forked.head.context()
    again.append(st.user("goes on"))


def test_a_forked_process_opens_new_connections(shared_database: str) -> None:
    store = new(shared_database)
    end = store.create([b"header"])
    child = os.fork()
    if child == 0:
        try:
            store.append([b"of the child"], after=end)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert store.read().data == b"header\nof the child\n"


# Writers on different branches


def open_on_branches(database: str, *names: str) -> tuple[Session, list[Session]]:
    """Return a session with these branches, and one more opening of it for each of them."""
    session = Session.create(new(database), id="s", cwd="/p")
    session.append(st.user("start"))
    for name in names:
        session.create_branch(name)
    opened = [st.open(session.location) for _ in names]
    for each in opened:
        assert each.heads.heads.keys() >= set(names)
    return session, opened


def test_an_append_goes_behind_lines_of_other_branches(database: str, statements: list[str]) -> None:
    _, (one, two) = open_on_branches(database, "a", "b")
    first = one.append(st.user("on a"), branch="a")
    statements.clear()

    second = two.append(st.user("on b"), branch="b")

    assert len(statements) == 1, "it was not refused, and returned the line on a"
    assert [entry.id for entry in two.tree.entries][-2:] == [first.id, second.id]
    assert two.heads.heads["a"] == first.id
    assert not two.refresh()
    assert [entry.id for entry in one.refresh()] == [second.id]
    assert one.heads.heads == two.heads.heads


def test_an_append_is_refused_if_its_branch_or_the_current_branch_was_moved(database: str) -> None:
    session, (one, two) = open_on_branches(database, "a", "b")
    one.append(st.user("on a"), branch="a")
    with pytest.raises(st.BranchMoved):
        two.append(st.user("on a, too"), branch="a")

    session.refresh()
    session.switch("b")
    entry = two.append(st.user("on a"), branch="a")  # built again: the line names the branch that is current now

    assert entry.current == "b"
    assert st.open(session.location).heads.current == "b"


def test_require_unchanged_refuses_an_append_behind_other_branches(database: str) -> None:
    _, (one, two) = open_on_branches(database, "a", "b")
    one.append(st.user("on a"), branch="a")
    with two.require_unchanged(), pytest.raises(st.Conflict):
        two.append(st.user("on b"), branch="b")
    assert two.append(st.user("on b"), branch="b")


@pytest.mark.parametrize("seed", range(times(4, torture=300)))
def test_writers_that_never_refresh_agree_on_every_branch(database: str, seed: int) -> None:
    rng = random.Random(seed)
    names = ["a", "b", "c", "d"]
    session, opened = open_on_branches(database, *names)
    expected: dict[str, list[str]] = {name: [] for name in names}
    for number in range(100):
        at = rng.randrange(4)
        writer, name = opened[at], names[at]
        match rng.randrange(12):
            case 0:
                with suppress(st.Conflict):  # another writer switched
                    writer.switch(rng.choice(names))
            case 1:
                writer.label(writer.heads.heads[name], f"l{number}")
            case 2:
                writer.create_branch(f"n{number}")
            case 3:
                leaf = writer.heads.heads[name]
                writer.append(st.Custom(custom_type="late", data={}), parent=leaf, branch=None)
            case 4:
                expected[name] += [
                    entry.id for entry in writer.extend([st.user(f"{number}"), st.assistant("yes")], branch=name)
                ]
            case _:
                expected[name].append(writer.append(st.user(f"{number}"), branch=name).id)

    whole = st.open(session.location)
    assert not [problem for problem in whole.problems if problem.severity == "fault"]
    for name in names:
        path = [entry.id for entry in whole.tree.walk_up(whole.heads.heads[name])][::-1]
        assert [id for id in path if id in expected[name]] == expected[name]
        assert all(id not in path for other in names if other != name for id in expected[other])
    for writer in opened:
        writer.refresh()
        assert writer.heads.heads == whole.heads.heads
        assert writer.heads.current == whole.heads.current
        assert [entry.raw for entry in writer.tree.entries] == [entry.raw for entry in whole.tree.entries]


def test_writers_on_different_branches_take_fair_turns(server: Server) -> None:
    names = [f"w{number}" for number in range(8)]
    session, opened = open_on_branches(server.new_database(), *names)
    counts = dict.fromkeys(names, 0)
    done = threading.Event()

    def write(writer: Session, name: str) -> None:
        while not done.is_set():
            writer.append(st.user("more"), branch=name)
            counts[name] += 1
            if sum(counts.values()) >= 400:
                done.set()

    with ThreadPoolExecutor(len(names)) as pool:
        for each in [pool.submit(write, *pair) for pair in zip(opened, names, strict=True)]:
            each.result(120)
    assert min(counts.values()) >= sum(counts.values()) / len(names) / 2, counts
    session.refresh()
    assert all(session.branch(name).path()[-1].text == "more" for name in names)


def test_a_worker_whose_fence_was_raised_cannot_append(database: str) -> None:
    session, (old, successor) = open_on_branches(database, "a", "b")
    assert isinstance(old.store, PostgresStore)
    assert isinstance(successor.store, PostgresStore)
    old.store.raise_fence("agent", 1)
    old.append(st.user("before"), branch="a")

    successor.store.raise_fence("agent", 2)

    with pytest.raises(FenceRaised, match="another worker"):
        old.append(st.user("late"), branch="a")
    with pytest.raises(FenceRaised):
        old.store.raise_fence("agent", 1)
    successor.refresh()
    successor.append(st.user("after"), branch="a")
    session.append(st.user("not a worker"))
    texts = [entry.text for entry in st.open(session.location).tree.entries if entry.type == "message"]
    assert texts == ["start", "before", "after", "not a worker"]


def test_a_fence_waits_for_an_append_that_is_under_way(database: str) -> None:
    session, (successor,) = open_on_branches(database, "a")
    assert isinstance(successor.store, PostgresStore)
    (key,) = rows(database, "SELECT key FROM sessiontree.session")[0]
    with psycopg.connect(database) as held, ThreadPoolExecutor(1) as pool:
        held.execute("UPDATE sessiontree.session SET size = size WHERE key = %s", (key,))
        raising = pool.submit(successor.store.raise_fence, "agent", 2)
        waiting = "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%%raise_fence%%' AND wait_event_type = 'Lock'"
        while not rows(database, waiting):
            assert not raising.done()
        held.rollback()
        raising.result(60)
    assert session.append(st.user("no fence"))


def test_updates_of_a_session_need_no_new_index_entries(server: Server) -> None:
    url = server.new_database()
    session = Session.create(new(url), id="s", cwd="/p")
    for _ in range(200):
        session.append(st.user("more"))
    session.store.database.close()  # type: ignore[attr-defined]  # the backend reports its figures when it ends
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'session'"
    deadline = time.monotonic() + 60
    while (found := rows(url, query)[0])[0] < 200:
        assert time.monotonic() < deadline
    assert found[1] > 0.9 * found[0]


def test_tables_of_the_first_release_are_migrated_in_place(server: Server) -> None:
    url = server.new_database()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE SCHEMA sessiontree; CREATE TABLE sessiontree.step (number int PRIMARY KEY)")
        owner.execute("ALTER TABLE sessiontree.step ADD at timestamptz NOT NULL DEFAULT now()")
        for number in (0, 1):
            owner.execute(schema.MIGRATIONS[number].encode())
            owner.execute("INSERT INTO sessiontree.step VALUES (%s)", (number + 1,))
        owner.execute("INSERT INTO sessiontree.session (id, created, cwd) VALUES ('s', '', '/p')")
        header = '{"type":"session","version":3,"id":"s","timestamp":"","cwd":"/p"}'
        nothing = "ARRAY[NULL], ARRAY[NULL], ARRAY[NULL], ARRAY[NULL], ARRAY[NULL], ARRAY[0], ARRAY['']"
        gain = '{"told": true, "entries": 0, "messages": 0, "cost": 0, "named": false, "branches": []}'
        old_append = f"SELECT sessiontree.append(1, %s, ARRAY[%s::bytea], {nothing}, NULL, '{gain}')"
        end = owner.execute(old_append, (0, header.encode())).fetchone()
        for statement in (
            "CREATE ROLE old_writer LOGIN",
            "GRANT USAGE ON SCHEMA sessiontree TO old_writer",
            "GRANT SELECT ON ALL TABLES IN SCHEMA sessiontree TO old_writer",
            "GRANT EXECUTE ON FUNCTION sessiontree.append TO old_writer",
        ):
            owner.execute(statement.encode())

        with st.open(f"{url}#s") as session:
            first = session.append(st.user("new"))
        old = url.replace("postgres@", "old_writer@")
        written = st.open(f"{old}#s")
        second = written.append(st.user("by the old role"))
        assert isinstance(written.store, PostgresStore)
        written.store.raise_fence("agent", 1)
        assert owner.execute(old_append, (end[0] if end else 0, b"{}")).fetchone() == (None,), "not at the end"
        size = written.store.read_end().cursor.value[1]
        assert owner.execute(old_append, (size, b'{"type":"x","id":"y"}')).fetchone() == (size + 22,)
    assert [entry.id for entry in st.open(f"{url}#s").tree.entries] == [first.id, second.id, "y"]


# Waiting for other writers


def test_a_waiter_is_woken_within_half_a_second_of_an_append(database: str) -> None:
    store = new(database)
    end = store.create([b"header"])
    writer = PostgresStore(store.location)

    assert not store.wait_for_change(end, 0)
    for number in range(3):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.wait_for_change, end, 60)
            while not store.database.watcher.waiter_count:
                time.sleep(0.01)
            after = writer.append([b"%d" % number], after=end)
            appended = time.monotonic()
            assert waiting.result(60)
        assert time.monotonic() - appended < 0.5 + LATE
        assert store.wait_for_change(end, 0)
        end = after


def test_many_waiters_share_one_query(database: str, monkeypatch: pytest.MonkeyPatch, statements: list[str]) -> None:
    stores = [new(database) for _ in range(10)]
    ends = [store.create([b"header"]) for store in stores]
    watcher = stores[0].database.watcher
    with ThreadPoolExecutor(len(stores)) as pool:
        waiting = [pool.submit(store.wait_for_change, end, 60) for store, end in zip(stores, ends, strict=True)]
        while watcher.waiter_count < len(stores):
            time.sleep(0.01)
        statements.clear()
        watched = watcher.round_count
        while watcher.round_count < watched + 3:
            time.sleep(0.01)
        assert 3 <= len(statements) <= 4
        for store, end in zip(stores, ends, strict=True):
            PostgresStore(store.location).append([b"one"], after=end)
        assert all(each.result(60) for each in waiting)


def test_waiting_continues_after_all_connections_are_killed(shared_database: str) -> None:
    store = new(shared_database)
    end = store.create([b"header"])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.wait_for_change, end, 60)
        while not store.database.watcher.waiter_count:
            time.sleep(0.01)
        rows(
            shared_database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        PostgresStore(store.location).append([b"one"], after=end)
        assert waiting.result(60)


def test_an_address_is_plain_data() -> None:
    assert parse_address("postgresql://h/d") == Address("postgresql://h/d", "postgresql://h/d", None)


def test_the_driver_is_imported_only_when_it_is_needed() -> None:
    import subprocess
    import sys

    code = "import sys, sessiontree as st; st.memory(); st.sessions(); print('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
