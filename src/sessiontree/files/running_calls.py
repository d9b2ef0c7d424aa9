"""Notes of running tool calls, which show later that the process of a call was killed.

While calls run, a file in the store names the snapshot before them, and its process holds a lock on it. A file without
a lock belongs to a process that was killed, or that could not write the result. Others may have made the changes since
then, so going back keeps these paths unless they are named.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from secrets import token_hex
from typing import Any

from msgspec import Struct

from sessiontree.core.entries import EntryId
from sessiontree.core.number_text import pluralize
from sessiontree.core.operation_plans import find_prompt_text
from sessiontree.files.file_records import build_record
from sessiontree.files.folder_snapshot import FolderSnapshots
from sessiontree.files.snapshot_store import SnapshotStore, check_object_id, hash_name
from sessiontree.session import Session
from sessiontree.store.file_operations import close_quietly, discard

CALLS = "calls"
"""The folder in a store with a file for each running call."""
PARTIAL_SUFFIX = ".partial"
_own_marks = dict[str, "RunningCall"]()
"""The marks of this process. Their locks look like locks of another process."""


class RunningCall:
    """The mark of the calls that run in this process. `end` removes it."""

    is_running = True
    """False between the end of the calls and their record."""

    def __init__(self, store: SnapshotStore, *, session: str, branch: str, place: EntryId | None, before: str) -> None:
        wire = {"folder": store.folder, "branch": branch, "place": place, "before": before}
        folder = os.path.join(store.path, CALLS)
        os.makedirs(folder, 0o700, exist_ok=True)
        self._path = os.path.join(folder, f"{hash_name(session)}-{token_hex(8)}")
        partial = f"{self._path}{PARTIAL_SUFFIX}"
        self._fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            os.write(self._fd, json.dumps(wire).encode())
            os.rename(partial, self._path)
            _own_marks[self._path] = self
        except BaseException:
            discard(partial)
            close_quietly(self._fd)
            raise

    def end(self) -> None:
        discard(self._path)
        _own_marks.pop(self._path, None)
        close_quietly(self._fd)


class InterruptedCall(Struct, frozen=True, kw_only=True):
    """A call that has no record because its process was killed."""

    folder: str
    branch: str
    place: EntryId | None
    """The entry that the agent was at."""
    before: str
    """The snapshot before the call."""


def has_interrupted_calls(store: SnapshotStore, session: str) -> bool:
    """Return whether there may be any. Starts no process."""
    return bool(_list_marks(store, session))


def has_running_calls(store: SnapshotStore) -> bool:
    """Return whether an agent of this or another process runs a tool call in the folder."""
    return any(
        _is_running(path) and (call := _read_mark(path)) and call.folder == store.folder for path in _list_marks(store)
    )


def _is_running(path: str) -> bool:
    own = _own_marks.get(path)
    return is_locked(path) if own is None else own.is_running


def is_locked(path: str) -> bool:
    """Return whether a process holds a lock on a file, or has just removed it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        close_quietly(fd)


def record_interrupted_calls(snapshots: FolderSnapshots, session: Session) -> list[str]:
    """Write the records that killed processes could not write. Return a sentence for each.

    Raises `SnapshotError`; then the next attempt finds the same calls.
    """
    store, told = snapshots.store, list[str]()
    for path in _list_marks(store, session.id):
        with suppress(FileNotFoundError, BlockingIOError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                call = _read_mark(path)
                if call is not None and call.folder != store.folder:
                    continue
                text = None if call is None else _record(snapshots, session, call)
                told += [] if text is None else [text]
                discard(path)
            finally:
                close_quietly(fd)
    return told


def _list_marks(store: SnapshotStore, session: str | None = None) -> list[str]:
    """Return the marks of a session, or of all sessions."""
    folder, prefix = os.path.join(store.path, CALLS), "" if session is None else f"{hash_name(session)}-"
    with suppress(FileNotFoundError):
        names = sorted(os.listdir(folder))
        return [
            os.path.join(folder, name)
            for name in names
            if name.startswith(prefix) and not name.endswith(PARTIAL_SUFFIX)
        ]
    return []


def _read_mark(path: str) -> InterruptedCall | None:
    try:
        with open(path, "rb") as file:
            wire: Any = json.load(file)
        call = InterruptedCall(**wire)
    except (OSError, ValueError, TypeError):
        return None
    return call if check_object_id(call.before) else None


def _record(snapshots: FolderSnapshots, session: Session, call: InterruptedCall) -> str | None:
    store, tree = snapshots.store, session.tree
    if not store.has_commits([call.before]) or (call.place is not None and call.place not in tree):
        return None
    state = snapshots.take()
    changes = store.diff(call.before, state.tree)
    if not changes:
        return None
    commit = store.commit(
        state.tree,
        [call.before],
        author="agent",
        entry=call.place,
        session=session.id,
        prompt=find_prompt_text(tree, call.place),
        left_out=state.left_out,
    )
    store.set_branch(session.id, call.branch, commit, call.before)
    record = build_record(
        "call",
        commit=commit,
        before=call.before,
        folder=store.key,
        is_private=store.is_private,
        is_interrupted=True,
        branch=call.branch,
        changes=changes,
        left_out=state.left_out,
    )
    session.append(record, parent=None if call.place is None else tree[call.place], branch=None)
    count = pluralize(len(changes), "file")
    return f"a tool call was interrupted; {count} changed since it started; going back keeps them unless you name them"
