"""The detection of other processes that have a session open."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.library.other_processes import PresenceLock, is_session_open, read_change_mark
from sessiontree.session import Session
from tests.reliability.harness import suspend_lock_holder


@pytest.fixture
def session(tmp_path: Path) -> Session:
    session = st.create(file=tmp_path / "talk.jsonl")
    session.append(st.user("hello"))
    return session


def test_a_later_process_is_not_alone_until_all_others_have_exited(session: Session) -> None:
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


def test_a_suspended_process_that_holds_the_lock_is_not_waited_for(session: Session, home: Path) -> None:
    first = PresenceLock(session)
    [lock] = (home / ".sessiontree" / "open").iterdir()
    first.release()

    with suspend_lock_holder(lock):
        own = PresenceLock(session)

        assert not own.is_alone
        own.release()


def test_is_session_open_works_without_an_own_lock(session: Session, home: Path) -> None:
    place = str(session.file)
    assert not is_session_open(place)
    first, second = PresenceLock(session), PresenceLock(session)

    for left in (first, second):
        assert is_session_open(place)
        left.release()
    assert not is_session_open(place)
    assert list((home / ".sessiontree" / "open").iterdir()) == []


def test_a_lock_file_deleted_during_acquisition_is_recreated(
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


def test_an_unwritable_home_does_not_block(session: Session, home: Path) -> None:
    (home / ".sessiontree").mkdir(parents=True)
    (home / ".sessiontree" / "open").write_text("in the way")

    mark = PresenceLock(session)

    assert mark.is_alone
    assert is_session_open(str(session.file))  # cannot be determined
    mark.release()


def test_an_in_memory_session_has_no_lock_file() -> None:
    session = st.memory()
    mark = PresenceLock(session)

    assert (mark.is_alone, mark.belongs_to(session), PresenceLock(session).is_alone) == (True, False, True)
    mark.release()


def test_a_symlink_refers_to_the_same_session(session: Session, tmp_path: Path) -> None:
    os.symlink(tmp_path / "talk.jsonl", tmp_path / "link.jsonl")
    mark = PresenceLock(session)

    assert not PresenceLock(st.open(tmp_path / "link.jsonl")).is_alone
    mark.release()


def test_a_copied_file_is_a_different_session_with_the_same_id(session: Session, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "talk.jsonl", tmp_path / "copy.jsonl")
    copy, mark = st.open(tmp_path / "copy.jsonl"), PresenceLock(session)

    assert copy.id == session.id
    assert PresenceLock(copy).is_alone
    mark.release()


def test_the_change_mark_changes_with_every_write_and_not_without_one(session: Session) -> None:
    before = read_change_mark(session)
    assert read_change_mark(session) == before

    st.open(str(session.file)).append(st.user("from another process"))

    assert read_change_mark(session) != before
