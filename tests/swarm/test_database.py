"""The database of durable swarms: registering workers, leases and access."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from sessiontree.errors import StoreError
from sessiontree.swarm.durable.database import WorkDatabase
from sessiontree.swarm.durable.worker_roster import Roster, WorkerInfo
from tests.postgres import Server


@pytest.fixture(params=["file", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> WorkDatabase:
    where = str(tmp_path / "work.db") if request.param == "file" else request.getfixturevalue("shared_database")
    database = WorkDatabase(where)
    database.migrate()
    return database


@pytest.fixture
def roster(database: WorkDatabase) -> Iterator[Roster]:
    roster = Roster(database)
    roster.create_table()
    roster.create_table()
    yield roster
    for worker in roster.list_alive():
        roster.retire(worker.id)
    roster.close()


def build_worker(name: str) -> WorkerInfo:
    return WorkerInfo(id=f"{name}-{os.urandom(4).hex()}", host="here", concurrency=3, home="h")


def test_a_worker_is_listed_from_register_to_retire(roster: Roster) -> None:
    a, b = build_worker("a"), build_worker("b")
    roster.register(a)
    roster.register(b)
    assert roster.renew(b.id, ["w1", "w2"])
    assert roster.list_alive() == [a, WorkerInfo(id=b.id, host="here", concurrency=3, home="h", work=("w1", "w2"))]
    roster.retire(a.id)
    assert [one.id for one in roster.list_alive()] == [b.id]
    assert a.id in roster.mark_dead()
    assert b.id not in roster.mark_dead()


def test_a_worker_with_an_expired_lease_cannot_renew_it(database: WorkDatabase, roster: Roster) -> None:
    hasty = Roster(database, lease=-1)  # already expired
    a, b = build_worker("a"), build_worker("b")
    hasty.register(a)
    roster.register(b)
    assert [one.id for one in roster.list_alive()] == [b.id]
    assert a.id in roster.mark_dead()
    assert not hasty.renew(a.id, [])
    assert roster.renew(b.id, [])
    hasty.close()


def test_the_database_file_is_private(tmp_path: Path) -> None:
    database = WorkDatabase(str(tmp_path / "deep" / "work.db"))
    database.migrate()
    assert stat.S_IMODE(os.stat(tmp_path / "deep" / "work.db").st_mode) == 0o600


def test_the_work_database_is_in_the_home_or_with_the_sessions(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WorkDatabase().display_name == str(home / ".sessiontree" / "work.db")
    monkeypatch.setenv("SESSIONTREE_STORE", "postgresql://ann:secret@db.example/work")
    assert WorkDatabase().display_name == "postgresql://ann@db.example/work"
    assert "secret" in WorkDatabase().url


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
    roster = Roster(database)
    roster.create_table()
    assert roster.list_alive() == []
    roster.close()


def test_hosts_without_a_port_have_the_usual_one() -> None:
    database = WorkDatabase("postgresql://ann:p%40ss@[::1],db.example:6000/work?sslmode=require")

    assert database.url == "postgresql://ann:p%40ss@/work?host=::1,db.example&port=5432,6000&sslmode=require"


def test_a_query_after_hosts_without_a_path_is_kept() -> None:
    database = WorkDatabase("postgresql://one,two?sslmode=verify-full&user=ann")

    assert database.url == "postgresql:///?host=one,two&port=5432,5432&sslmode=verify-full&user=ann"


def test_a_database_that_cannot_be_reached_is_an_error_without_its_password() -> None:
    database = WorkDatabase("postgresql://ann:secret@127.0.0.1:1/work?connect_timeout=1")
    with pytest.raises(StoreError) as raised:
        database.migrate()
    assert "secret" not in str(raised.value)


def test_several_processes_can_create_the_database_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: WorkDatabase(str(tmp_path / "work.db")).migrate(), range(8)))
