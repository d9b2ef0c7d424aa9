"""Scans with progress, and the check for problems."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.tui.services import session_checks
from sessiontree.tui.services.session_checks import (
    Progress,
    find_problems,
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
