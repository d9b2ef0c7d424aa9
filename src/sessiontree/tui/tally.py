"""The tally: what a session took, and how full the model's window is where one is.

It goes on from what was counted before. A large session is counted in a thread, while the last count stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct
from textual.widget import Widget

from sessiontree.comparison import usages
from sessiontree.core.compaction import context_tokens
from sessiontree.core.context import reach
from sessiontree.core.entries import Entry, EntryId
from sessiontree.core.messages import spent
from sessiontree.session import Branch, Session

LARGE = 2000
"""Entries from which on a session is counted in a thread."""
SPENDING = frozenset({"message", "usage", "model_usage", "compaction", "branch_summary"})
"""Types of entries that may say what they took."""


class Taken(Struct, frozen=True):
    """What the whole session took."""

    tokens: float = 0
    cost: float = 0

    def plus(self, entries: Iterable[Entry]) -> Taken:
        """With what more entries took."""
        tokens, cost = self.tokens, self.cost
        for entry in entries:
            if entry.type in SPENDING:
                for used in filter(None, map(spent, usages(entry.decoded()))):
                    tokens, cost = tokens + used.tokens, cost + used.cost
        return Taken(tokens, cost)


class Count(Struct, frozen=True, kw_only=True):
    """What was counted, and of what."""

    session: Session | None = None
    leaf: EntryId | None = None
    entries: int = 0
    """How many entries of the session are in it."""
    taken: Taken = Taken()
    filled: int | None = None
    """Tokens of a request at the leaf; `None` while that is not known."""


class Tally:
    def __init__(self, widget: Widget, changed: Callable[[], Any]) -> None:
        """The tally of a widget, whose `changed` is called when something was counted in a thread."""
        self.count = Count()
        self._widget = widget
        self._changed = changed
        self._counting = False

    def look(self, branch: Branch) -> None:
        """Count what is new, in a session or since one was elsewhere in it."""
        session, leaf, known = branch.session, branch.leaf, self.count
        if known.session is not session:
            self.count = known = Count(session=session)
        elif known.filled is not None and (known.leaf, known.entries) == (leaf, session.tree.count):
            return
        if session.tree.count < LARGE:
            self.count = _counted(known, session, leaf)
        elif not self._counting:
            self._counting = True
            self._widget.run_worker(self._in_thread(known, session, leaf), group="count", exit_on_error=False)

    async def _in_thread(self, known: Count, session: Session, leaf: EntryId | None) -> None:
        try:
            count = await asyncio.to_thread(_counted, known, session, leaf)
            if self.count is known:  # one is still there
                self.count = count
        finally:
            self._counting = False
        self._changed()


def _counted(known: Count, session: Session, leaf: EntryId | None) -> Count:
    with session.held():
        new = session.tree.entries_from(known.entries)
        path = reach(session.tree, leaf)
    return Count(
        session=session,
        leaf=leaf,
        entries=known.entries + len(new),
        taken=known.taken.plus(new),
        filled=context_tokens(path),
    )
