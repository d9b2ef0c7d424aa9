"""Whether another app has a session open, which is told of a file."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.session import Session
from sessiontree.tui.presence import Presence, is_open


@pytest.fixture
def session(tmp_path: Path) -> Session:
    session = st.create(file=tmp_path / "talk.jsonl")
    session.append(st.user("hello"))
    return session


def test_who_comes_later_is_not_alone_until_all_others_have_left(session: Session) -> None:
    first, second = Presence(session), Presence(session)
    assert (first.alone, second.alone) == (True, False)

    first.leave()
    third = Presence(session)
    assert not third.alone
    second.leave()
    third.leave()

    last = Presence(session)
    assert last.alone
    last.leave()


def test_whether_somebody_has_a_session_open_is_told_without_a_mark_of_ones_own(session: Session, home: Path) -> None:
    place = str(session.file)
    assert not is_open(place)
    first, second = Presence(session), Presence(session)

    for left in (first, second):
        assert is_open(place)
        left.leave()
    assert not is_open(place)
    assert list((home / ".sessiontree" / "open").iterdir()) == []


def test_a_mark_that_is_taken_away_while_one_comes_is_put_anew(
    session: Session, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    first = Presence(session)

    def leaves_first(fd: int, how: int) -> None:
        monkeypatch.setattr("fcntl.flock", flock)
        first.leave()
        flock(fd, how)

    monkeypatch.setattr("fcntl.flock", leaves_first)
    second = Presence(session)

    assert second.alone
    assert not Presence(session).alone
    second.leave()


def test_a_home_where_no_mark_can_be_put_makes_nobody_wait(session: Session, home: Path) -> None:
    (home / ".sessiontree").mkdir(parents=True)
    (home / ".sessiontree" / "open").write_text("in the way")

    mark = Presence(session)

    assert mark.alone
    assert is_open(str(session.file))  # nobody can tell
    mark.leave()


def test_a_session_in_memory_has_no_mark() -> None:
    session = st.memory()
    mark = Presence(session)

    assert (mark.alone, mark.is_of(session), Presence(session).alone) == (True, False, True)
    mark.leave()


def test_a_file_is_the_same_by_another_name(session: Session, tmp_path: Path) -> None:
    os.symlink(tmp_path / "talk.jsonl", tmp_path / "link.jsonl")
    mark = Presence(session)

    assert not Presence(st.open(tmp_path / "link.jsonl")).alone
    mark.leave()


def test_a_copy_of_a_file_is_another_session_though_it_has_the_same_id(session: Session, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "talk.jsonl", tmp_path / "copy.jsonl")
    copy, mark = st.open(tmp_path / "copy.jsonl"), Presence(session)

    assert copy.id == session.id
    assert Presence(copy).alone
    mark.leave()
