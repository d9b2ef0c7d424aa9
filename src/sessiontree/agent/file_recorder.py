"""Record what tool calls do to files: a snapshot before and after each call that may change them.

The snapshot before a call tells what somebody else changed since the last one. If a call changed files, an annotation
on its result names both snapshots. A snapshot that fails never stops a run: listeners get one warning.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import islice
from time import monotonic
from typing import NamedTuple, TypeVar

from sessiontree.agent.run_writer import RunWriter
from sessiontree.agent.tool import Tool
from sessiontree.config import FileSettings
from sessiontree.core.entries import Entry, EntryId, Message
from sessiontree.core.messages import extract_text
from sessiontree.core.operation_plans import find_last_prompt
from sessiontree.errors import SessionTreeError
from sessiontree.files.file_records import FilesLog, build_record
from sessiontree.files.folder_snapshot import FolderSnapshots, FolderState
from sessiontree.files.git_command import SnapshotsUnavailable
from sessiontree.files.private_folder import open_snapshot_store
from sessiontree.files.snapshot_store import SnapshotStore
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Notice

T = TypeVar("T")

REUSE_SECONDS = 0.05
"""A call of the same answer that starts within this time after another one uses its snapshot. In seconds."""
NEAR_ENTRIES = 200
"""Entries above the head that are searched for the last snapshot before the whole session is."""


class _Saved(NamedTuple):
    """A snapshot with a commit."""

    commit: str
    tree: str
    place: EntryId | None


class FileRecorder:
    def __init__(self, settings: FileSettings, hooks: Hooks) -> None:
        self._settings = settings
        self._hooks = hooks
        self._writer: RunWriter | None = None
        self._snapshots: FolderSnapshots | None = None
        self._saved: _Saved | None = None
        """The last snapshot of this run."""
        self._before: _Saved | None = None
        """The snapshot before the calls that are running."""
        self._saving: asyncio.Future[_Saved | None] | None = None
        """Takes the snapshot before the calls; all of them wait for it."""
        self._after: FolderState | None = None
        """The files after the calls, until their result is written."""
        self._after_time = 0.0
        self._running = 0
        """The number of calls that may change files and are running."""
        self._has_warned = False
        self._unavailable: str | None = None
        """The folder that cannot have snapshots."""

    def follow(self, writer: RunWriter) -> None:
        """Record the calls of a run."""
        self._writer = writer

    def begin_turn(self) -> None:
        """Tell that the model answered: somebody may have changed files since the last call."""
        self._after_time = 0.0

    @asynccontextmanager
    async def watch(self, tool: Tool | None, cwd: str) -> AsyncGenerator[None]:
        """Take the snapshots before and after a call, unless the tool only reads. Calls may overlap."""
        if tool is None or tool.does == "reads" or self._writer is None or cwd == self._unavailable:
            yield
            return
        self._running += 1
        try:
            if self._running == 1:
                is_noted, self._after = self._after is None, None
                # A call that overlaps with an earlier one whose result is not written yet shares its record.
                if is_noted or self._before is None:
                    self._saving = asyncio.ensure_future(self._run(self._save_before, cwd))
            if self._saving is not None:
                self._before = await asyncio.shield(self._saving)
            yield
        finally:
            self._running -= 1
            if self._running == 0:
                self._saving = None
            if self._running == 0 and self._before is not None:
                self._after = await self._run(self._take_after)
                self._after_time = monotonic()

    async def note(self, entry: Entry) -> None:
        """Write the annotation for the calls that ended, on the result that was just written."""
        before, after, writer = self._before, self._after, self._writer
        if self._running or before is None or after is None or writer is None:
            return
        self._before = self._after = None
        if after.tree == before.tree:
            self._saved = before
        else:
            await self._run(self._save_after, writer, entry, before, after)

    async def _run(self, work: Callable[..., T], *arguments: object) -> T | None:
        """Run in a thread, to the end even if the call is cancelled. Return `None` after a failure."""
        try:
            return await asyncio.shield(asyncio.to_thread(work, *arguments))
        except (SessionTreeError, OSError) as error:
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            text = f"no snapshot of the files: {error}; going back to this place will not restore files"
            self._hooks.notify_listeners(Notice(level="warning", text=text))
        self._has_warned = True

    # In a thread

    def _open(self, cwd: str) -> FolderSnapshots:
        assert self._writer is not None
        session = self._writer.branch.session
        if self._snapshots is None or self._snapshots.folder != os.path.realpath(cwd):
            try:
                store = open_snapshot_store(cwd)
                file = None if session.file is None else str(session.file)
                self._snapshots = FolderSnapshots(store, self._settings, session_file=file)
            except SnapshotsUnavailable:
                self._unavailable = cwd
                raise
            self._saved = None
        return self._snapshots

    def _save_before(self, cwd: str) -> _Saved:
        """Take the snapshot before a call, and commit it if somebody changed files since the last one."""
        writer, snapshots = self._writer, self._open(cwd)
        assert writer is not None
        last = self._find_last(writer, snapshots.store)
        if last is not None and monotonic() - self._after_time < REUSE_SECONDS and last is self._saved:
            return last
        try:
            state = snapshots.take(clean=True)
        except SnapshotsUnavailable:
            self._unavailable = cwd
            raise
        if last is not None and last.tree == state.tree:
            return last
        # The first snapshot of a path continues the history of the folder, so that `blame` sees earlier sessions.
        parent = snapshots.store.find_latest() if last is None else last.commit
        session, place = writer.branch.session.id, writer.leaf
        commit = snapshots.store.commit(
            state.tree,
            [] if parent is None else [parent],
            author="person",
            entry=place,
            session=session,
            prompt="changes outside of tool calls",
            left_out=state.left_out,
        )
        snapshots.store.set_branch(session, writer.branch.name, commit, parent)
        self._saved = _Saved(commit, state.tree, place)
        return self._saved

    def _find_last(self, writer: RunWriter, store: SnapshotStore) -> _Saved | None:
        """Return the last snapshot on the path of the run; `None` if there is none in the store."""
        tree, leaf = writer.branch.session.tree, writer.leaf
        saved = self._saved
        if saved is not None and (saved.place is None or saved.place in islice(tree.walk_up_ids(leaf), NEAR_ENTRIES)):
            return saved
        record = FilesLog(tree, store.key).find_at(leaf)
        if record is None or not store.has_commits([record.commit]):
            return None
        return _Saved(record.commit, store.get_tree(record.commit), record.place)

    def _take_after(self) -> FolderState:
        assert self._snapshots is not None
        return self._snapshots.take()

    def _save_after(self, writer: RunWriter, entry: Entry, before: _Saved, after: FolderState) -> None:
        assert self._snapshots is not None
        store, session = self._snapshots.store, writer.branch.session
        prompt = find_last_prompt(session.tree.path(entry.id))
        body = None if prompt is None else prompt.body
        commit = store.commit(
            after.tree,
            [before.commit],
            author="agent",
            entry=entry.id,
            session=session.id,
            prompt=extract_text(body.message.get("content")) if isinstance(body, Message) else "",
            left_out=after.left_out,
        )
        store.set_branch(session.id, writer.branch.name, commit, before.commit)
        record = build_record(
            "call",
            commit=commit,
            before=before.commit,
            folder=store.key,
            is_private=store.is_private,
            branch=writer.branch.name,
            changes=store.diff(before.tree, after.tree),
            left_out=after.left_out,
        )
        session.append(record, parent=entry, branch=None)
        self._saved = _Saved(commit, after.tree, entry.id)
        self._has_warned = False
