"""Wait for a condition instead of for a time, with a limit that a busy machine does not reach."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SECONDS = 60


async def wait_until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait until the condition is true. Other tasks run in between."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        await asyncio.sleep(0.005)
