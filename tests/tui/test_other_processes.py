"""Whether another app has a session open, which is told of a file."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.session import Session
from sessiontree.tui.services.other_processes import PresenceLock, is_session_open


@pytest.fixture
def session(tmp_path: Path) -> Session:
    session = st.create(file=tmp_path / "talk.jsonl")
    session.append(st.user("hello"))
    return session


def test_who_comes_later_is_not_alone_until_all_others_have_left(session: Session) -> None:
    first, second = PresenceLock(session), PresenceLock(session)
    assert (first.is_alone, second.is_alone) == (True, False)

    first.release()
    third = PresenceLock(session)
    assert not third.is_alone
    second.release()
    third.release()

    last = PresenceLock(session)
    assert last.is_alone
    last.release()


def test_whether_somebody_has_a_session_open_is_told_without_a_mark_of_ones_own(session: Session, home: Path) -> None:
    place = str(session.file)
    assert not is_session_open(place)
    first, second = PresenceLock(session), PresenceLock(session)

    for left in (first, second):
        assert is_session_open(place)
        left.release()
    assert not is_session_open(place)
    assert list((home / ".sessiontree" / "open").iterdir()) == []


def test_a_mark_that_is_taken_away_while_one_comes_is_put_anew(
    session: Session, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    first = PresenceLock(session)

    def release_first(fd: int, how: int) -> None:
        monkeypatch.setattr("fcntl.flock", flock)
        first.release()
        flock(fd, how)

    monkeypatch.setattr("fcntl.flock", release_first)
    second = PresenceLock(session)

    assert second.is_alone
    assert not PresenceLock(session).is_alone
    second.release()


def test_a_home_where_no_mark_can_be_put_makes_nobody_wait(session: Session, home: Path) -> None:
    (home / ".sessiontree").mkdir(parents=True)
    (home / ".sessiontree" / "open").write_text("in the way")

    mark = PresenceLock(session)

    assert mark.is_alone
    assert is_session_open(str(session.file))  # nobody can tell
    mark.release()


def test_a_session_in_memory_has_no_mark() -> None:
    session = st.memory()
    mark = PresenceLock(session)

    assert (mark.is_alone, mark.belongs_to(session), PresenceLock(session).is_alone) == (True, False, True)
    mark.release()


def test_a_file_is_the_same_by_another_name(session: Session, tmp_path: Path) -> None:
    os.symlink(tmp_path / "talk.jsonl", tmp_path / "link.jsonl")
    mark = PresenceLock(session)

    assert not PresenceLock(st.open(tmp_path / "link.jsonl")).is_alone
    mark.release()


def test_a_copy_of_a_file_is_another_session_though_it_has_the_same_id(session: Session, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "talk.jsonl", tmp_path / "copy.jsonl")
    copy, mark = st.open(tmp_path / "copy.jsonl"), PresenceLock(session)

    assert copy.id == session.id
    assert PresenceLock(copy).is_alone
    mark.release()
