"""Calling functions of users and extensions."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sessiontree.hooks.invoke import call, run_in_thread

WHO = contextvars.ContextVar("WHO", default="nobody")


async def test_a_function_in_a_thread_sees_the_context_variables_of_its_caller() -> None:
    WHO.set("ada")

    def function(function: str, *, named: int) -> tuple[object, ...]:
        return function, named, WHO.get(), threading.current_thread() is threading.main_thread()

    assert await call(function, function="a", named=1) == ("a", 1, "ada", False)


async def test_an_async_function_behind_a_plain_one_is_awaited_in_the_loop() -> None:
    async def where(city: str) -> tuple[str, bool]:
        return city, threading.current_thread() is threading.main_thread()

    @functools.wraps(where)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        return where(*arguments, **named)

    assert await call(where, "Rome") == await call(wrapped, city="Rome") == ("Rome", True)


async def test_exceptions_of_a_function_are_raised() -> None:
    nothing: Iterator[int] = iter(())

    with pytest.raises(RuntimeError, match="it raised StopIteration"):
        await asyncio.wait_for(call(next, nothing), 10)
    with pytest.raises(SystemExit):
        await call(sys.exit, 2)


async def test_a_hanging_thread_is_abandoned_and_blocks_no_other_thread() -> None:
    let_go = threading.Event()
    hanging = [run_in_thread(let_go.wait, 30) for _ in range(50)]

    assert await asyncio.wait_for(call(abs, -1), 10) == 1
    assert not any(future.done() for future in hanging)
    for future in hanging:
        future.cancel()
    let_go.set()


def test_a_hanging_thread_does_not_block_the_exit_of_the_program() -> None:
    code = """
import asyncio, threading
from sessiontree.hooks.invoke import run_in_thread

async def main():
    began = threading.Event()
    future = run_in_thread(lambda: (began.set(), threading.Event().wait()))
    await run_in_thread(began.wait)
    future.cancel()

asyncio.run(main())
print("over")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("over\n", "", 0)


def test_a_thread_that_returns_after_the_loop_closed_is_ignored() -> None:
    let_go = threading.Event()
    threads: list[threading.Thread] = []

    async def main() -> None:
        began = threading.Event()

        def late() -> None:
            threads.append(threading.current_thread())
            began.set()
            let_go.wait(30)

        run_in_thread(late).cancel()
        await run_in_thread(began.wait, 30)

    asyncio.run(main())
    let_go.set()
    threads[0].join(30)

    assert not threads[0].is_alive()
