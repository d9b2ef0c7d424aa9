"""Listings and searches use a read replica of the database, if `SESSIONTREE_READ_STORE` names one."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import sessiontree as st
from sessiontree.errors import InvalidOperation
from tests.postgres import Server


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    """A primary and its standby."""
    primary = Server()
    replica = Server(primary=primary)
    yield primary, replica
    replica.stop()
    primary.stop()


@pytest.fixture
def store(servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch) -> str:
    primary, replica = servers
    url = primary.new_database()
    monkeypatch.setenv("SESSIONTREE_STORE", url)
    monkeypatch.setenv("SESSIONTREE_READ_STORE", replica.url(url.rpartition("/")[2]))
    return url


def pause(server: Server, database: str, *, resume: bool = False) -> None:
    """Let a standby stop following, or follow again."""
    with psycopg.connect(server.url(database), autocommit=True) as connection:
        connection.execute(b"SELECT pg_wal_replay_resume()" if resume else b"SELECT pg_wal_replay_pause()")
        while not resume and connection.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() != ("paused",):
            pass


def test_listings_and_searches_read_from_the_replica(servers: tuple[Server, Server], store: str) -> None:
    primary, replica = servers
    with st.create("first") as session:
        session.append(st.user("Where is the needle?"))
    replica.follow(primary)
    pause(replica, store.rpartition("/")[2])
    try:
        with st.create("second") as session:
            session.append(st.user("The other needle"))

        assert [summary.name for summary in st.sessions()] == ["first"], "the replica does not have the second yet"
        assert [hit.name for hit in st.search("needle")] == ["first"]
        with st.open("second") as session:  # everything else asks the database itself
            assert session.head.path()[-1].text == "The other needle"
    finally:
        pause(replica, store.rpartition("/")[2], resume=True)
    replica.follow(primary)
    assert {summary.name for summary in st.sessions()} == {"first", "second"}
    assert {hit.name for hit in st.search("needle")} == {"first", "second"}


def test_without_its_replica_the_database_answers_itself(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with st.create("first") as session:
        session.append(st.user("Where is the needle?"))
    monkeypatch.setenv("SESSIONTREE_READ_STORE", "postgresql://postgres@127.0.0.1:1/nothing")

    assert [summary.name for summary in st.sessions()] == ["first"]
    assert [hit.name for hit in st.search("needle")] == ["first"]


def test_a_replica_without_the_tables_is_not_used(
    servers: tuple[Server, Server], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    st.create("first").close()
    empty = servers[0].new_database()
    monkeypatch.setenv("SESSIONTREE_READ_STORE", empty)

    assert [summary.name for summary in st.sessions()] == ["first"]
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'sessiontree'").fetchone() is None


def test_the_address_of_the_replica_is_checked(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONTREE_READ_STORE", "localhost")

    with pytest.raises(InvalidOperation, match="SESSIONTREE_READ_STORE must be an address"):
        st.sessions()
