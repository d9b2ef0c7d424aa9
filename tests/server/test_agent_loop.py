"""The agent loop: a separate event loop for long-running work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sessiontree.server.jobs.job_registry import AgentLoop


async def test_work_runs_in_another_thread_and_returns_its_result() -> None:
    workshop = AgentLoop()

    async def work() -> str:
        return threading.current_thread().name

    assert await workshop.run(work()) == "sessiontree-agents"
    workshop.close()


async def test_an_exception_in_the_loop_is_raised_in_the_caller() -> None:
    workshop = AgentLoop()

    async def work() -> None:
        raise ValueError("there")

    with pytest.raises(ValueError, match="there"):
        await workshop.run(work())
    workshop.close()


async def test_work_continues_after_the_caller_is_cancelled() -> None:
    workshop, begun, done = AgentLoop(), threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        await asyncio.sleep(0.01)
        done.set()

    waiting = asyncio.create_task(workshop.run(work()))
    await asyncio.to_thread(begun.wait, 5)
    waiting.cancel()
    assert await asyncio.to_thread(done.wait, 5)
    workshop.close()


async def test_close_cancels_running_work() -> None:
    workshop, given_up = AgentLoop(), threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            given_up.set()

    begun = workshop.submit(work())
    await workshop.run(asyncio.sleep(0))
    await asyncio.to_thread(workshop.close)

    assert given_up.is_set()
    assert begun.cancelled()
