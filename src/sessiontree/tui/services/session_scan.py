"""Looking through sessions in a thread, with the progress told, and given up when nobody waits for it any more.

Where an index of the sessions is missing or old, the first look makes it, which may take a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Progress: TypeAlias = Callable[[int, int], None]
"""Told how much is done, and how much there is."""

PROGRESS_SECONDS = 0.05
"""Seconds between two tellings."""


class _ScanCancelled(Exception):
    """Nobody waits for what is looked for."""


async def scan_in_thread(work: Callable[[Progress], T], tell: Callable[[int], None]) -> T:
    """What `work` finds, in another thread. `tell` is called here, with the percentage that is done.

    When the waiting is cancelled, the work ends where it tells its progress next. What it has kept by then stays.
    """
    loop = asyncio.get_running_loop()
    given_up, told = False, time.monotonic()

    def report_progress(done: int, total: int) -> None:
        nonlocal told
        if given_up:
            raise _ScanCancelled
        now = time.monotonic()
        if now - told >= PROGRESS_SECONDS:
            told = now
            loop.call_soon_threadsafe(tell, done * 100 // max(total, 1))

    try:
        return await asyncio.to_thread(work, report_progress)
    except asyncio.CancelledError:
        given_up = True
        raise
