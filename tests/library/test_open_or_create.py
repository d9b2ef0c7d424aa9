"""Opening a session, or creating it if there is none, also from several processes at the same time."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import sessiontree as st

RACERS = 4
RACE = """
import sys
import sessiontree as st
print("ready", flush=True)
sys.stdin.readline()
with st.open(sys.argv[1], create=True) as session:
    session.create_branch(sys.argv[2], at="root", current=False)
    print(session.id)
"""


@pytest.fixture(params=["folder", "postgres"])
def store(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "postgres":
        monkeypatch.setenv("SESSIONTREE_STORE", request.getfixturevalue("database"))
    return request.param


def race(session: str) -> set[str]:
    """Open or create a session in several processes that start together. Return the ids that they got."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, session, f"racer-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(RACERS)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    return {racer.communicate()[0].strip() for racer in racers}


def test_processes_that_race_for_a_name_get_one_session(store: str) -> None:
    ids = race("shared")

    (summary,) = st.sessions()
    assert ids == {summary.id}
    with st.open("shared", read_only=True) as session:
        assert {info.name for info in session.branches} == {"main", *(f"racer-{number}" for number in range(RACERS))}


def test_processes_that_race_for_a_file_get_one_session(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "shared.jsonl"

    (id,) = race(str(file))

    with st.open(file) as session:
        assert session.id == id
        assert len(session.branches) == RACERS + 1


def test_a_session_is_created_once_and_opened_after_that(store: str) -> None:
    with st.open("auth", create=True) as session:
        session.append(st.user("hello"))

    with st.open("auth", create=True) as again:
        assert (again.id, again.name, len(again.context().messages)) == (session.id, "auth", 1)
    assert st.open(session.id, create=True).id == session.id


def test_the_most_recent_session_is_created_without_a_name(store: str) -> None:
    created = st.open("@", create=True)

    assert created.name is None
    assert st.open("@", create=True).id == created.id


def test_an_address_can_name_a_session_to_create(database: str, home: Path) -> None:
    created = st.open(f"{database}#new one", create=True)

    assert created.name == "new one"
    assert st.open(f"{database}#new one", create=True).id == created.id


def test_nothing_is_created_unless_asked(store: str) -> None:
    with pytest.raises(st.NotFound):
        st.open("auth")
    with pytest.raises(st.InvalidOperation, match="read-only cannot be created"):
        st.open("auth", create=True, read_only=True)
    with pytest.raises(st.InvalidOperation, match="one line"):
        st.open("two\nlines", create=True)
    assert st.sessions(all=True) == []


def test_a_name_that_two_sessions_have_stays_ambiguous(store: str) -> None:
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        st.create("twin")
        st.create("twin")

    with pytest.raises(st.Ambiguous):
        st.open("twin", create=True)


def test_creating_a_name_that_exists_warns_and_names_open(store: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = st.create("twin")
        st.create("other")
        st.create()
        st.create(first.id[:8])  # part of an id is not the name

    for _ in ("one", "several"):
        with pytest.warns(
            UserWarning, match=r"another session is named 'twin'.*st\.open\('twin', create=True\)"
        ) as seen:
            st.create("twin")
        assert [os.path.basename(warning.filename) for warning in seen] == ["test_open_or_create.py"]
