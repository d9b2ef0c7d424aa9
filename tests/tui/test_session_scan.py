"""A scan in a thread: progress and cancellation."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sessiontree.tui.services import session_scan
from sessiontree.tui.services.session_scan import Progress, scan_in_thread


async def test_a_scan_reports_progress_and_returns_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_scan, "PROGRESS_SECONDS", 0)
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
