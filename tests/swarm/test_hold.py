"""Holds: one process at a time works on a swarm, wherever its session is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import sessiontree as st
from sessiontree.session import Session
from sessiontree.store.memory import MemoryStore
from sessiontree.swarm.hold import Hold, hold_of, is_worked_on


@contextmanager
def machine(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another machine: it shares nothing but what is in the database."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SESSIONTREE_HOME", str(path))
        yield


def test_of_a_session_in_memory_nobody_else_knows() -> None:
    session = Session.create(MemoryStore(), id="s")

    assert hold_of(session, "w").take()
    assert not is_worked_on(session, "w")


def test_one_at_a_time_has_it(tmp_path: Path) -> None:
    first, second = Hold(str(tmp_path / "w.lock")), Hold(str(tmp_path / "w.lock"))

    assert first.take()
    assert first.take(), "it is ours already"
    assert not second.take()
    assert second.taken
    first.let_go()
    assert not second.taken
    assert second.take()


def test_looking_makes_nothing(tmp_path: Path) -> None:
    assert not Hold(str(tmp_path / "none" / "w.lock")).taken
    assert not (tmp_path / "none").exists()


def test_machines_that_share_a_database_take_turns(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = st.create("talk", dir=database)
    here = hold_of(session, "w")
    with machine(tmp_path / "other", monkeypatch):
        there, other_work = hold_of(session, "w"), hold_of(session, "v")

    assert here.take()
    assert not there.take()
    assert there.taken
    assert other_work.take(), "every piece of work has its own"
    here.let_go()
    assert not there.taken
    assert there.take()
    assert not here.take()
    assert is_worked_on(session, "w")


def test_the_database_takes_it_from_who_is_gone(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = st.create("talk", dir=database)
    here = hold_of(session, "w")
    with machine(tmp_path / "other", monkeypatch):
        there = hold_of(session, "w")
    assert here.take()

    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'")

    assert there.take()
