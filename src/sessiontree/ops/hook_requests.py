"""Between a plan and its writing: asking the hooks, and giving up, by a handler that cancels or by the signal.

And which summaries count, and where a branch has gone on to meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from sessiontree.core.entries import EntryId
from sessiontree.errors import BranchMoved, InvalidOperation
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Answer, Event, MergeAnswer, NavigateAnswer, Notice, Signal, Summary
from sessiontree.session import Branch

T = TypeVar("T")
E = TypeVar("E", bound=Event)

GRACE_SECONDS = 5.0
"""Seconds that what goes on after an abort has to come to its end; then it is left behind."""


class OperationStopped(Exception):
    """A handler cancelled, or the signal was given. It never leaves an operation, whose outcome says so instead."""

    def __init__(self, *, aborted: bool) -> None:
        super().__init__("aborted" if aborted else "cancelled")
        self.aborted = aborted


async def ask_hooks(hooks: Hooks, event: E, signal: Signal) -> tuple[E, Answer]:
    """The event as the handlers changed it, and their answer. Raises `Stopped`."""
    asked, answer = await run_unless_aborted(signal, hooks.ask(event))
    if answer.cancel:
        raise OperationStopped(aborted=False)
    return asked, answer


def check_summary_text(summary: str | None) -> None:
    """Raises `InvalidOperation` for a summary in the user's own words that has none."""
    if summary is not None and not summary.strip():
        raise InvalidOperation("the summary is empty")


def get_supplied_summary(hooks: Hooks, answer: Answer) -> Summary | None:
    """The summary that a handler supplied. An empty one is told, and counts as if it were not there."""
    given = answer.summary if isinstance(answer, NavigateAnswer | MergeAnswer) else None
    if not isinstance(given, Summary):
        return None
    if not given.summary.strip():
        hooks.notify_listeners(Notice(level="error", text="a handler supplied a summary that is empty"))
        return None
    return given


def find_grown_head(branch: Branch, planned: EntryId | None) -> EntryId | None:
    """The head of a branch that may have grown since it was at `planned`. Raises `BranchMoved` if it is elsewhere."""
    head = branch.leaf
    if planned is not None and planned not in branch.session.tree.walk_up_ids(head):
        raise BranchMoved(branch.name, planned, head)
    return head


async def emit_event(hooks: Hooks, event: Event, signal: Signal) -> None:
    """Tell of what has happened, for as long as the signal lets one wait for handlers."""
    with suppress(OperationStopped):
        await wait_with_grace(signal, hooks.emit(event), GRACE_SECONDS)


async def wait_with_grace(signal: Signal, work: Awaitable[T], grace: float) -> T:
    """What `work` gives. Raises `Stopped` as soon as the signal is given, or `grace` seconds after an earlier one."""
    if not signal.aborted:
        return await run_unless_aborted(signal, work)
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({working}, timeout=grace)
        if not working.done():
            raise OperationStopped(aborted=True)
        return working.result()
    finally:
        working.cancel()


async def run_unless_aborted(signal: Signal, work: Awaitable[T]) -> T:
    """What `work` gives. Raises `Stopped` as soon as the signal is given, and ends the work."""
    working = asyncio.ensure_future(work)
    given = asyncio.ensure_future(signal.wait())
    try:
        await asyncio.wait({working, given}, return_when=asyncio.FIRST_COMPLETED)
        if signal.aborted:
            raise OperationStopped(aborted=True)
        return await working
    finally:
        for task in (working, given):
            task.cancel()
        await asyncio.gather(working, given, return_exceptions=True)
