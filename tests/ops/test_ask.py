import asyncio

import pytest

from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Answer, BeforeFork, Signal
from sessiontree.ops.ask import Stopped, ask, unless_aborted

FORK = BeforeFork(entry=None, position="at")


async def test_an_answer_that_does_not_cancel_is_given_on() -> None:
    assert await ask(Hooks(), FORK, Signal()) == (FORK, Answer())


async def test_a_handler_that_cancels_stops_the_operation(hooks: Hooks) -> None:
    hooks.on(BeforeFork, lambda event, ctx: {"cancel": True})

    with pytest.raises(Stopped) as stopped:
        await ask(hooks, FORK, Signal())

    assert stopped.value.aborted is False


async def test_the_signal_ends_the_work_and_nobody_waits_for_a_handler(hooks: Hooks) -> None:
    ended = []

    async def hang(event, ctx):
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(1)

    hooks.on(BeforeFork, hang)
    signal = Signal()
    work = asyncio.ensure_future(ask(hooks, FORK, signal))
    await asyncio.sleep(0.01)

    signal.abort()

    with pytest.raises(Stopped) as stopped:
        await asyncio.wait_for(work, 5)
    assert stopped.value.aborted
    await asyncio.sleep(0)
    assert ended == [1]


async def test_work_that_ends_by_itself_gives_what_it_gives() -> None:
    async def work() -> int:
        return 3

    async def fail() -> int:
        raise ValueError("x")

    assert await unless_aborted(Signal(), work()) == 3
    with pytest.raises(ValueError, match="x"):
        await unless_aborted(Signal(), fail())
