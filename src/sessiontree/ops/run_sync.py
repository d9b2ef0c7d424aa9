"""Run an asynchronous operation from a script."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from inspect import iscoroutine
from typing import Any, TypeVar

from sessiontree.errors import InvalidOperation

T = TypeVar("T")


def run_sync(operation: Coroutine[Any, Any, T]) -> T:
    """Run an asynchronous operation in a program without an event loop, and return its result.

    Raises `InvalidOperation` where an event loop is running, as in a notebook: write `await` there.
    """
    if not iscoroutine(operation):
        raise InvalidOperation(
            "run_sync takes an operation that is async, such as st.run_sync(branch.navigate(place)), not "
            f"{type(operation).__name__}; what is not async needs no run_sync"
        )
    if not _is_loop_running():
        return asyncio.run(operation)
    operation.close()
    raise InvalidOperation(
        "an event loop is running, as in a notebook or an async function: write `await …` instead of st.run_sync(…)"
    )


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
