"""Show in an export what each tool call did to files: the lines of a session with diffs from its snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sessiontree.core.entries import EntryId
from sessiontree.core.message_views import is_object
from sessiontree.core.number_text import pluralize
from sessiontree.errors import SessionTreeError
from sessiontree.files.file_history import read_diff
from sessiontree.files.file_records import list_calls
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.snapshot_store import list_stores
from sessiontree.format.json_line import NotJson, read_object, write_value
from sessiontree.format.splice import set_value
from sessiontree.session import Session

MAX_DIFF = 100_000
"""Characters of the diff of one call."""


def read_call_diffs(session: Session) -> dict[EntryId, str]:
    """Return what each call did to files as a unified diff, by its result. Without its snapshot, it is a count."""
    try:
        stores = {store.key: store for store in list_stores()}
    except SnapshotError:  # without git
        stores = {}
    diffs: dict[EntryId, str] = {}
    for record in list_calls(session.tree):
        store, place = stores.get(record.folder), record.place
        if place is None:
            continue
        try:
            diff = None if store is None else read_diff(store, record.before, record.commit)
        except SessionTreeError:  # the store does not have these commits
            diff = None
        if diff is None:
            count = pluralize(record.added + record.changed + record.deleted, "file")
            diff = f"changed {count}; the snapshots are not on this machine\n"
        elif len(diff) > MAX_DIFF:
            diff = f"{diff[:MAX_DIFF]}\n… {len(diff) - MAX_DIFF:,} more characters\n"
        diffs[place] = diffs.get(place, "") + diff
    return diffs


def add_call_diffs(lines: Iterable[bytes], diffs: Mapping[EntryId, str]) -> Iterator[bytes]:
    """Yield the lines of a session with these diffs in the details of tool results, where exports show them."""
    for line in lines:
        yield _add_diff(line, diffs) if b'"toolResult"' in line else line


def _add_diff(line: bytes, diffs: Mapping[EntryId, str]) -> bytes:
    try:
        wire = read_object(line)
    except NotJson:
        return line
    message, diff = wire.get("message"), diffs.get(str(wire.get("id")))
    if diff is None or not is_object(message):
        return line
    details = message.get("details")
    details = {**details, "diff": diff} if is_object(details) else {"diff": diff}
    return set_value(line, "message", write_value({**message, "details": details}))
