"""The tally: what a session took, and how full the model's window is where one is.

It goes on from what was counted before. A large session is counted in a thread, while the last count stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct
from textual.widget import Widget

from sessiontree.core.compaction import count_context_tokens
from sessiontree.core.context import find_context_path
from sessiontree.core.entries import Entry, EntryId
from sessiontree.core.messages import list_usages, sum_usage
from sessiontree.session import Branch, Session

THREAD_ENTRIES = 2000
"""Entries from which on a session is counted in a thread."""
USAGE_TYPES = frozenset({"message", "usage", "model_usage", "compaction", "branch_summary"})
"""Types of entries that may say what they took."""


class CountedUsage(Struct, frozen=True):
    """What the whole session took."""

    tokens: float = 0
    cost: float = 0

    def add_entries(self, entries: Iterable[Entry]) -> CountedUsage:
        """With what more entries took."""
        tokens, cost = self.tokens, self.cost
        for entry in entries:
            if entry.type in USAGE_TYPES:
                for used in filter(None, map(sum_usage, list_usages(entry.decode()))):
                    tokens, cost = tokens + used.tokens, cost + used.cost
        return CountedUsage(tokens, cost)


class UsageCount(Struct, frozen=True, kw_only=True):
    """What was counted, and of what."""

    session: Session | None = None
    leaf: EntryId | None = None
    entries: int = 0
    """How many entries of the session are in it."""
    usage: CountedUsage = CountedUsage()
    context_tokens: int | None = None
    """Tokens of a request at the leaf; `None` while that is not known."""


class UsageCounter:
    def __init__(self, widget: Widget, changed: Callable[[], Any]) -> None:
        """The tally of a widget, whose `changed` is called when something was counted in a thread."""
        self.count = UsageCount()
        self._owner = widget
        self._on_change = changed
        self._is_counting = False

    def update(self, branch: Branch) -> None:
        """Count what is new, in a session or since one was elsewhere in it."""
        session, leaf, known = branch.session, branch.leaf, self.count
        if known.session is not session:
            self.count = known = UsageCount(session=session)
        elif known.context_tokens is not None and (known.leaf, known.entries) == (leaf, session.tree.count):
            return
        if session.tree.count < THREAD_ENTRIES:
            self.count = _count_usage(known, session, leaf)
        elif not self._is_counting:
            self._is_counting = True
            self._owner.run_worker(self._count_in_thread(known, session, leaf), group="count", exit_on_error=False)

    async def _count_in_thread(self, known: UsageCount, session: Session, leaf: EntryId | None) -> None:
        try:
            count = await asyncio.to_thread(_count_usage, known, session, leaf)
            if self.count is known:  # one is still there
                self.count = count
        finally:
            self._is_counting = False
        self._on_change()


def _count_usage(known: UsageCount, session: Session, leaf: EntryId | None) -> UsageCount:
    with session.hold_lock():
        new = session.tree.get_entries_from(known.entries)
        path = find_context_path(session.tree, leaf)
    return UsageCount(
        session=session,
        leaf=leaf,
        entries=known.entries + len(new),
        usage=known.usage.add_entries(new),
        context_tokens=count_context_tokens(path),
    )
