"""Scans with progress, the check for problems, and the detection of other processes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import threading
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.session import Session
from sessiontree.tui.services import session_checks
from sessiontree.tui.services.session_checks import (
    PresenceLock,
    Progress,
    find_problems,
    is_session_open,
    scan_in_thread,
)


async def test_a_scan_reports_progress_and_returns_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_checks, "PROGRESS_SECONDS", 0)
    told: list[int] = []

    def work(progress: Progress) -> str:
        for done in range(5):
            progress(done, 4)
        return "found"

    assert await scan_in_thread(work, told.append) == "found"
    await asyncio.sleep(0)
    assert told == [0, 25, 50, 75, 100]


async def test_a_cancelled_scan_stops() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(progress: Progress) -> None:
        try:
            while True:
                begun.set()
                progress(1, 2)
        finally:
            ended.set()

    looked = asyncio.create_task(scan_in_thread(work, lambda percent: None))
    await asyncio.to_thread(begun.wait, 10)
    looked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looked

    assert await asyncio.to_thread(ended.wait, 10)


@pytest.fixture
def damaged(project: Path) -> str:
    with st.create("damaged") as session:
        session.append(st.user("hello"))
        file = session.file
    assert file is not None
    file.write_bytes(
        file.read_bytes() + b'{"type":"message","id":"lost","parentId":"nobody","timestamp":"","message":{}}\n'
    )
    return str(file)


@pytest.mark.parametrize("large", [0, 1 << 30])
async def test_problems_are_found_in_a_thread_and_in_a_subprocess(
    damaged: str, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_checks, "SUBPROCESS_BYTES", large)

    assert await find_problems(damaged) == ["entry 'lost' names a parent 'nobody' that is not in the file"]


async def test_a_missing_session_has_no_problems(project: Path) -> None:
    assert await find_problems(str(project / "gone.jsonl")) == []


async def test_a_cancelled_check_ends_its_subprocess(damaged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_checks, "SUBPROCESS_BYTES", 0)
    looking = asyncio.create_task(find_problems(damaged))
    await asyncio.sleep(0)
    looking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await looking


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
