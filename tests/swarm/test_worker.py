"""The durable worker, inside one process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sessiontree.swarm.durable.worker import DurableWorker


@asynccontextmanager
async def open_nothing(*_: Any) -> Any:
    raise AssertionError("no job is run")
    yield


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancellation_that_comes_with_a_round_is_not_lost(tmp_path: Path, steps: int) -> None:
    """A cancelled job must not go on to ask its model, however close the cancellation is to the end of the wait."""
    worker = DurableWorker(open_nothing, database=str(tmp_path / "work.db"))
    worker._round_at = float("-inf")
    waiting = asyncio.create_task(worker._wait_for_fresh_round())
    for _ in range(3):
        await asyncio.sleep(0)

    worker._round_at = float("inf")
    worker._round_done.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    was_running = waiting.cancel()

    await asyncio.wait([waiting])
    assert waiting.cancelled() == was_running
