"""Call functions of users and extensions, async or not: handlers, tools and commands.

The caller decides about time limits and failures.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def call(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Call a function and return its result. An async function is awaited; any other runs in its own thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments, **named)
    given = await run_in_thread(function, *arguments, **named)
    return await given if inspect.isawaitable(given) else given


def run_in_thread(function: Callable[P, R], /, *arguments: P.args, **named: P.kwargs) -> asyncio.Future[R]:
    """Call a function in its own daemon thread, which does not block other threads or the exit of the program.

    Cancelling the future abandons the thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()
    work = partial(contextvars.copy_context().run, function, *arguments, **named)

    def set_outcome(given: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_result(given) if error is None else future.set_exception(error)

    def run() -> None:
        given, error = None, None
        try:
            given = work()
        except BaseException as raised:  # noqa: BLE001 - the function may raise anything
            error = RuntimeError("it raised StopIteration") if isinstance(raised, StopIteration) else raised
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(set_outcome, given, error)

    threading.Thread(target=run, daemon=True).start()
    return future
