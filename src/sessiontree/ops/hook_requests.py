"""Helpers of all operations: ask hooks, stop when a handler cancels or the signal aborts, find the current head."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from sessiontree.core.entries import EntryId
from sessiontree.errors import BranchMoved
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Answer, Event, MergeAnswer, NavigateAnswer, Notice, Signal, Summary
from sessiontree.session import Branch

T = TypeVar("T")
E = TypeVar("E", bound=Event)

GRACE_SECONDS = 5.0
"""How long handlers and tools may still run after an abort, in seconds."""


class OperationStopped(Exception):
    """A handler cancelled the operation, or the signal aborted it.

    Operations catch it and report it in their outcome; callers never see it.
    """

    def __init__(self, *, aborted: bool) -> None:
        super().__init__("aborted" if aborted else "cancelled")
        self.aborted = aborted


async def ask_hooks(hooks: Hooks, event: E, signal: Signal) -> tuple[E, Answer]:
    """Return the event as changed by the handlers, and their answer. Raises `OperationStopped`."""
    changed, answer = await run_unless_aborted(signal, hooks.ask(event))
    if answer.cancel:
        raise OperationStopped(aborted=False)
    return changed, answer


def get_supplied_summary(hooks: Hooks, answer: Answer) -> Summary | None:
    """Return the summary supplied by a handler. Report an empty one and ignore it."""
    given = answer.summary if isinstance(answer, NavigateAnswer | MergeAnswer) else None
    if not isinstance(given, Summary):
        return None
    if not given.summary.strip():
        hooks.notify_listeners(Notice(level="error", text="a handler supplied an empty summary"))
        return None
    return given


def find_grown_head(branch: Branch, planned: EntryId | None) -> EntryId | None:
    """Return the head of a branch that may have grown since it was at `planned`. Raises `BranchMoved` if it moved."""
    head = branch.leaf
    if planned is not None and planned not in branch.session.tree.walk_up_ids(head):
        raise BranchMoved(branch.name, planned, head)
    return head


async def emit_event(hooks: Hooks, event: Event, signal: Signal) -> None:
    """Emit an event after the fact. After an abort, handlers get a short grace period."""
    with suppress(OperationStopped):
        await wait_with_grace(signal, hooks.emit(event), GRACE_SECONDS)


async def wait_with_grace(signal: Signal, work: Awaitable[T], grace: float) -> T:
    """Return the result of `work`.

    Raises `OperationStopped` when the signal aborts. If it has aborted before, `work` gets `grace` seconds.
    """
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
    """Return the result of `work`. Raises `OperationStopped` and cancels `work` when the signal aborts."""
    working = asyncio.ensure_future(work)
    aborted = asyncio.ensure_future(signal.wait())
    try:
        await asyncio.wait({working, aborted}, return_when=asyncio.FIRST_COMPLETED)
        if signal.aborted:
            raise OperationStopped(aborted=True)
        return await working
    finally:
        for task in (working, aborted):
            task.cancel()
        await asyncio.gather(working, aborted, return_exceptions=True)
