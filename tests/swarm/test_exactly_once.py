"""Entries are written once, even if two processes do the same work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.errors import BranchMoved, OutcomeUnknown
from sessiontree.store.base import Cursor
from sessiontree.store.jsonl import JsonlStore
from sessiontree.swarm.durable.exactly_once import IdempotentSession


@pytest.fixture
def file(tmp_path: Path) -> str:
    with st.create(file=tmp_path / "s.jsonl") as session:
        session.append(st.user("Hello"))
    return str(tmp_path / "s.jsonl")


def open_session(file: str, work: str = "w1") -> IdempotentSession:
    return IdempotentSession(JsonlStore(file), work)


def count_entries(file: str) -> int:
    with st.open(file) as session:
        assert not session.problems
        return len(session.tree.entries)


def test_the_same_answer_written_by_two_processes_exists_once(file: str) -> None:
    first, second = open_session(file), open_session(file)
    head = first.heads.leaf
    assert second.heads.leaf == head
    before = count_entries(file)
    mine = first.append(st.assistant("Done."), branch="main", expected=head)
    theirs = second.append(st.assistant("Done."), branch="main", expected=head)
    assert mine.id == theirs.id
    assert count_entries(file) == before + 1


def test_a_late_worker_finds_its_entry_below_newer_ones(file: str) -> None:
    first, second = open_session(file), open_session(file)
    head = second.heads.leaf
    first.extend([st.assistant("Done."), st.user("And now?")], branch="main", expected=head)
    first.append(st.assistant("Now too."))
    before = count_entries(file)
    done, asked = second.extend([st.assistant("Done."), st.user("And now?")], branch="main", expected=head)
    assert (done.parent, asked.parent) == (head, done.id)
    assert count_entries(file) == before


def test_another_answer_at_the_same_place_raises_branch_moved(file: str) -> None:
    first, second = open_session(file), open_session(file)
    head = second.heads.leaf
    first.append(st.assistant("Done."), branch="main", expected=head)
    with pytest.raises(BranchMoved):
        second.append(st.assistant("Something else."), branch="main", expected=head)


def test_late_results_are_written_once(file: str) -> None:
    first, second = open_session(file), open_session(file)
    place = first.tree[first.heads.leaf or ""]
    before = count_entries(file)
    for session in (first, second):
        session.append(st.assistant("Late."), parent=place, branch=None)
    assert count_entries(file) == before + 1


def test_the_same_message_twice_in_one_job_makes_two_entries(file: str) -> None:
    session = open_session(file)
    assert session.append(st.assistant("Yes.")).id != session.append(st.assistant("Yes.")).id


def test_another_job_has_other_ids(file: str) -> None:
    first, second = open_session(file, "w1"), open_session(file, "w2")
    head = first.heads.leaf
    assert second.heads.leaf == head
    first.append(st.assistant("Done."), branch="main", expected=head)
    with pytest.raises(BranchMoved):
        second.append(st.assistant("Done."), branch="main", expected=head)


def test_a_write_with_a_lost_reply_is_found_or_raises(file: str) -> None:
    class Lossy(JsonlStore):
        writes = True

        def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
            if self.writes:
                super().append(lines, after=after)
            raise OutcomeUnknown(self.location, "the connection was lost")

    store = Lossy(file)
    session = IdempotentSession(store, "w1")
    before = count_entries(file)
    assert session.append(st.assistant("Done.")).id == session.heads.leaf
    assert count_entries(file) == before + 1
    store.writes = False
    with pytest.raises(OutcomeUnknown):
        session.append(st.assistant("Gone."))
    assert count_entries(file) == before + 1


def test_nothing_is_written_if_before_write_raises(file: str) -> None:
    class NotOurs(Exception):
        pass

    def check() -> None:
        raise NotOurs

    before = count_entries(file)
    with pytest.raises(NotOurs):
        IdempotentSession(JsonlStore(file), "w1", check).append(st.assistant("Done."))
    assert count_entries(file) == before


@pytest.mark.parametrize("place", ["file", "database"])
def test_the_end_of_a_job_adds_nothing_that_other_agents_of_a_database_wait_for(
    file: str, shared_database: str, place: str
) -> None:
    """A program that reads a file takes the last line as the current place, so there it is recorded."""
    where = {"file": file} if place == "file" else {"dir": shared_database}
    with st.open(file) if place == "file" else st.create(**where) as session:
        session.append(st.user("Hello"))
        session.create_branch("side", current=False)
    job = IdempotentSession.open_at(session.location, "w1")
    done = job.append(st.assistant("Done."), branch="side")
    job.close()

    with st.open(session.location) as again:
        assert (again.tree.entries[-1].id == done.id) == (place == "database")
        assert again.heads.heads["side"] == done.id
        assert (again.heads.current, again.head.path()[-1].text) == ("main", "Hello")
        assert not again.problems


def test_new_entries_are_not_looked_for_in_the_lines_before_the_loaded_ones(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    with st.create(file=file) as long:
        long.extend([st.user(f"{count} " + "x" * 2000) for count in range(400)])
    session = open_session(str(file))
    head = session.heads.leaf
    assert session.tree.is_partial
    read = JsonlStore.read_backward
    JsonlStore.read_backward = None  # type: ignore[assignment,method-assign]
    try:
        session.append(st.user("Go on."), branch="main", expected=head)
    finally:
        JsonlStore.read_backward = read  # type: ignore[method-assign]
    assert session.tree.is_partial
