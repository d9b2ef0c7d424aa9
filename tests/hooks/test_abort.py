"""Aborting operations: hooks, the grace period after an abort, and the results of work."""

import asyncio

import pytest

from sessiontree.hooks.abort import OperationStopped, ask_hooks, emit_event, run_unless_aborted, wait_with_grace
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Answer, BeforeFork, Event, Forked, Signal

FORK = BeforeFork(entry=None, position="at")


async def test_an_answer_that_does_not_cancel_is_returned() -> None:
    assert await ask_hooks(Hooks(), FORK, Signal()) == (FORK, Answer())


async def test_a_handler_that_cancels_stops_the_operation(hooks: Hooks) -> None:
    hooks.on(BeforeFork, lambda event, ctx: {"cancel": True})

    with pytest.raises(OperationStopped) as stopped:
        await ask_hooks(hooks, FORK, Signal())

    assert stopped.value.aborted is False


async def test_the_signal_cancels_the_handler_without_waiting(hooks: Hooks) -> None:
    at_work, ended = asyncio.Event(), []

    async def hang(event, ctx):
        at_work.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(1)

    hooks.on(BeforeFork, hang)
    signal = Signal()
    work = asyncio.ensure_future(ask_hooks(hooks, FORK, signal))
    await at_work.wait()

    signal.abort()

    with pytest.raises(OperationStopped) as stopped:
        await asyncio.wait_for(work, 20)
    assert stopped.value.aborted
    await asyncio.sleep(0)
    assert ended == [1]


async def test_the_signal_ends_the_wait_for_handlers(hooks: Hooks) -> None:
    at_work = asyncio.Event()

    async def hang(event, ctx):
        at_work.set()
        await asyncio.Event().wait()

    hooks.on(Forked, hang)
    signal = Signal()
    work = asyncio.ensure_future(emit_event(hooks, Forked(entry=None), signal))
    await asyncio.wait_for(at_work.wait(), 20)

    signal.abort()

    await asyncio.wait_for(work, 20)


async def test_handlers_called_after_the_signal_get_a_grace_period(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick: list[Event] = []
    events: list[Event] = []
    hooks.listen(events.append)

    async def hang(event, ctx):
        await asyncio.sleep(0)
        quick.append(event)
        await asyncio.Event().wait()

    hooks.on(Forked, hang)
    signal = Signal()
    signal.abort()
    monkeypatch.setattr("sessiontree.hooks.abort.GRACE_SECONDS", 1.0)

    await asyncio.wait_for(emit_event(hooks, Forked(entry=None), signal), 20)

    assert quick == events == [Forked(entry=None)]


async def test_work_after_the_signal_returns_its_result() -> None:
    async def work() -> int:
        return 3

    signal = Signal()
    signal.abort()

    assert await wait_with_grace(signal, work(), 1) == 3


async def test_work_that_completes_returns_its_result() -> None:
    async def work() -> int:
        return 3

    async def fail() -> int:
        raise ValueError("x")

    assert await run_unless_aborted(Signal(), work()) == 3
    with pytest.raises(ValueError, match="x"):
        await run_unless_aborted(Signal(), fail())
