"""Find the session that was continued last, by reading only the ends of the newest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, suppress

from sessiontree.core.timestamps import parse_timestamp
from sessiontree.errors import SessionTreeError, isolate_errors
from sessiontree.format.tail import find_last_activity
from sessiontree.store.base import Store


def find_most_recent(written: Iterable[tuple[str, int]], open_store: Callable[[str], Store]) -> str | None:
    """Return the session with the latest message or move. Names and labels do not count.

    `written` are sessions and their modification times in nanoseconds, the latest first.
    """
    best: str | None = None
    when = 0
    for session, modified in written:
        if best is not None and modified <= when:
            break  # the others were not written later
        moment = _find_last_activity(open_store(session), modified)
        if best is None or moment > when:
            best, when = session, moment
    return best


def _find_last_activity(store: Store, modified: int) -> int:
    """Return the time of the last message or move, or else the modification time, in nanoseconds."""
    with suppress(OSError, SessionTreeError), closing(store), isolate_errors(store.location):
        found = find_last_activity(store.read_backward(store.read_end().cursor))
        moment = parse_timestamp(found[1]) if found is not None and found[0] else None
        if moment is not None:
            return min(modified, moment * 1_000_000)
    return modified
