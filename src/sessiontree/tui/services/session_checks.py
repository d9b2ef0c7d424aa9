"""Check sessions without blocking the app: list and search with progress, and find problems.

The first scan can take long, because it builds the index if it is missing or stale.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec

from sessiontree.errors import SessionTreeError
from sessiontree.home import build_self_command
from sessiontree.library import catalog

T = TypeVar("T")

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished and of all items."""

PROGRESS_SECONDS = 0.05
"""Minimum time between two progress reports."""
SUBPROCESS_BYTES = 16 << 20
"""Larger files are checked in a subprocess, because a thread would slow down the UI."""


class _ScanCancelled(Exception):
    """Raised in the thread when the caller has been cancelled."""


async def scan_in_thread(work: Callable[[Progress], T], show_percent: Callable[[int], None]) -> T:
    """Run `work` in a thread and return its result. `show_percent` is called in the event loop.

    If this call is cancelled, `work` stops at its next progress report. The part of the index built so far is kept.
    """
    loop = asyncio.get_running_loop()
    is_cancelled, last_report = False, time.monotonic()

    def report_progress(done: int, total: int) -> None:
        nonlocal last_report
        if is_cancelled:
            raise _ScanCancelled
        now = time.monotonic()
        if now - last_report >= PROGRESS_SECONDS:
            last_report = now
            loop.call_soon_threadsafe(show_percent, done * 100 // max(total, 1))

    try:
        return await asyncio.to_thread(work, report_progress)
    except asyncio.CancelledError:
        is_cancelled = True
        raise


async def find_problems(file: str) -> list[str]:
    """Return the problems of a session file. A missing file has none; the next write reports it."""
    try:
        large = os.stat(file).st_size >= SUBPROCESS_BYTES
        return await (_check_in_subprocess(file) if large else asyncio.to_thread(_check_session, file))
    except (SessionTreeError, OSError, msgspec.MsgspecError):
        return []


def _check_session(file: str) -> list[str]:
    with catalog.open(file, read_only=True) as session:
        return [problem.message for problem in session.problems if problem.severity == "fault"]


async def _check_in_subprocess(file: str) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        *build_self_command(__name__, os.path.abspath(file)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return msgspec.json.decode(output, type=list[str])


def main() -> None:
    """Check the session file in `sys.argv` and print its problems as JSON. Entry point of the subprocess."""
    sys.stdout.buffer.write(msgspec.json.encode(_check_session(sys.argv[1])))
