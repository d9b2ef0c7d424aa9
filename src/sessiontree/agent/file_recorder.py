"""Record what tool calls do to files: a snapshot before and after each call that may change them.

The snapshot before a call shows what others changed since the last one. If a call changed files, an annotation on its
result names both snapshots. A snapshot that fails never stops a run: listeners get one warning.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from time import monotonic, time_ns
from typing import NamedTuple, TypeVar

from sessiontree.agent.run_writer import RunWriter
from sessiontree.agent.tool import Tool
from sessiontree.config import FileSettings
from sessiontree.core.entries import Entry, EntryId
from sessiontree.core.operation_plans import find_prompt_text
from sessiontree.errors import SessionTreeError
from sessiontree.files.file_records import FilesLog, build_record, was_private
from sessiontree.files.folder_snapshot import FolderSnapshots, FolderState, Progress
from sessiontree.files.git_command import SnapshotsUnavailable
from sessiontree.files.private_folder import open_snapshot_store
from sessiontree.files.running_calls import RunningCall, record_interrupted_calls
from sessiontree.files.snapshot_store import LeftOut, SnapshotStore
from sessiontree.home import get_home
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Notice, SnapshotProgress

T = TypeVar("T")

REUSE_SECONDS = 0.05
"""A call of the same answer that starts within this time after another one uses its snapshot. In seconds."""
MIN_REPORTED = 1000
"""Progress is reported if at least this many files have to be stored."""
NEAR_ENTRIES = 200
"""Entries above the head that are searched for the last snapshot before the whole session is."""


class _Saved(NamedTuple):
    """A snapshot with a commit."""

    commit: str
    tree: str
    place: EntryId | None
    time: int
    """When the snapshot began that found these files, in nanoseconds since 1970."""
    left_out: tuple[LeftOut, ...] = ()


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
        self._ending: asyncio.Future[None] | None = None
        """Takes the snapshot after the calls; a call that starts now waits for it."""
        self._after: FolderState | None = None
        """The files after the calls, until their result is written."""
        self._after_began = 0
        self._after_time = 0.0
        self._running = 0
        """The number of calls that may change files and are running."""
        self._noted: tuple[RunWriter, Entry] | None = None
        """The last result that was written, and its run."""
        self._outlasts_turn = False
        """Whether a call of an earlier turn was running when this one began."""
        self._mark: RunningCall | None = None
        """Shows other processes, and a later one, that calls are running."""
        self._warnings: list[str] = []
        """Warnings about the folder and calls of killed processes that are not yet shown."""
        self._has_warned = False
        self._unavailable: str | None = None
        """The folder that cannot have snapshots."""

    def follow(self, writer: RunWriter) -> None:
        """Record the calls of a run."""
        self._writer = writer

    async def begin_turn(self) -> None:
        """Start a turn when the model has answered. Others may have changed files since the last call.

        A call that was aborted may end after its turn. Its record is written now, on the last result of that turn. If
        it still runs, the calls of this turn have to share its record, which then counts as interrupted.
        """
        self._after_time = 0.0
        if self._ending is not None:
            await asyncio.shield(self._ending)
        if self._noted is not None:
            await self._write_record(*self._noted)
        self._outlasts_turn = self._running > 0

    @asynccontextmanager
    async def watch(self, tool: Tool | None, cwd: str) -> AsyncGenerator[None]:
        """Take the snapshots before and after a call, unless the tool only reads. Calls may overlap."""
        if tool is None or tool.does == "reads" or self._writer is None or cwd == self._unavailable:
            yield
            return
        if self._ending is not None:
            await asyncio.shield(self._ending)
        self._running += 1
        try:
            if self._running == 1:
                if self._mark is not None:
                    self._mark.is_running = True
                is_noted, self._after = self._after is None, None
                # A call that overlaps with an earlier one whose result is not written yet shares its record.
                if is_noted or self._before is None:
                    progress = partial(self._report, asyncio.get_running_loop())
                    self._saving = asyncio.ensure_future(self._run(self._save_before, cwd, progress))
            if self._saving is not None:
                self._before = await asyncio.shield(self._saving)
            while self._warnings:
                self._hooks.notify_listeners(Notice(level="warning", text=self._warnings.pop()))
            yield
        finally:
            self._running -= 1
            if self._running == 0:
                self._saving = None
            if self._running == 0 and self._before is not None:
                self._ending = asyncio.ensure_future(self._end_calls())
                await asyncio.shield(self._ending)

    async def _end_calls(self) -> None:
        """Take the snapshot after the calls. If it fails, they have no record."""
        self._after = await self._run(self._take_after, partial(self._report, asyncio.get_running_loop()))
        self._after_time = monotonic()
        if self._mark is not None:
            self._mark.is_running = False
        if self._after is None:
            self._before = None
            self._remove_mark()
        self._ending = None

    def _remove_mark(self) -> None:
        if self._mark is not None:
            self._mark.end()
            self._mark = None

    async def note(self, entry: Entry) -> None:
        """Write the annotation for the calls that ended, on the result that was just written."""
        if self._writer is not None:
            self._noted = self._writer, entry
            await self._write_record(self._writer, entry)

    async def _write_record(self, writer: RunWriter, entry: Entry) -> None:
        before, after = self._before, self._after
        if self._running or before is None or after is None:
            return
        self._before = self._after = None
        if after.tree == before.tree:
            self._saved = before
        else:
            await self._run(self._save_after, writer, entry, before, after)
        self._outlasts_turn = False
        self._remove_mark()  # also after a failure, which was reported

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
            branch = self._writer.branch.name
            if not store.is_private and was_private(session.tree, branch):
                where = f"branch {branch!r} worked in a private folder, which {get_home()} does not have"
                self._warnings.append(f"{where}; its agent now changes the files in {store.folder}")
            self._warnings += record_interrupted_calls(self._snapshots, session)
        return self._snapshots

    def _report(self, loop: asyncio.AbstractEventLoop, done: int, total: int) -> None:
        if total >= MIN_REPORTED:
            event = SnapshotProgress(done=done, total=total)
            loop.call_soon_threadsafe(self._hooks.notify_listeners, event)

    def _save_before(self, cwd: str, progress: Progress) -> _Saved:
        """Take the snapshot before a call, and mark that calls are running."""
        writer, snapshots = self._writer, self._open(cwd)
        assert writer is not None
        before = self._take_before(writer, snapshots, cwd, progress)
        if self._mark is None:
            self._mark = RunningCall(
                snapshots.store,
                session=writer.branch.session.id,
                branch=writer.branch.name,
                place=writer.leaf,
                before=before.commit,
            )
        return before

    def _take_before(self, writer: RunWriter, snapshots: FolderSnapshots, cwd: str, progress: Progress) -> _Saved:
        """Take a snapshot, and commit it if files changed since the last one."""
        last = self._find_last(writer, snapshots.store)
        if last is not None and monotonic() - self._after_time < REUSE_SECONDS and last is self._saved:
            return last
        time = time_ns()
        try:
            state = snapshots.take(clean=True, progress=progress)
        except SnapshotsUnavailable:
            self._unavailable = cwd
            raise
        if last is not None and (last.tree, last.left_out) == (state.tree, state.left_out):
            return last._replace(time=time)
        # The first snapshot of a path continues the history of the folder: `blame` also shows earlier sessions.
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
        self._saved = _Saved(commit, state.tree, place, time, state.left_out)
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
        left_out = next(store.read_commits("-1", record.commit)).left_out
        return _Saved(record.commit, store.get_tree(record.commit), record.place, 0, left_out)

    def _take_after(self, progress: Progress) -> FolderState:
        assert self._snapshots is not None
        self._after_began = time_ns()
        return self._snapshots.take(progress=progress)

    def _save_after(self, writer: RunWriter, entry: Entry, before: _Saved, after: FolderState) -> None:
        assert self._snapshots is not None
        store, session = self._snapshots.store, writer.branch.session
        tree, changes = self._snapshots.add_older_files(before.tree, after.tree, before.time)
        if tree != before.tree:
            before = self._save_older_files(writer, before, tree)
        if not changes:
            return
        commit = store.commit(
            after.tree,
            [before.commit],
            author="agent",
            entry=entry.id,
            session=session.id,
            prompt=find_prompt_text(session.tree, entry.id),
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
            changes=changes,
            left_out=after.left_out,
            is_interrupted=self._outlasts_turn,
        )
        session.append(record, parent=entry, branch=None)
        self._saved = _Saved(commit, after.tree, entry.id, self._after_began, after.left_out)
        self._has_warned = False

    def _save_older_files(self, writer: RunWriter, before: _Saved, tree: str) -> _Saved:
        """Add the files to the snapshot before a call that it only made visible: they are not the agent's."""
        assert self._snapshots is not None
        store, session = self._snapshots.store, writer.branch.session
        commit = store.commit(
            tree,
            [before.commit],
            author="person",
            entry=before.place,
            session=session.id,
            prompt="files that were there before",
            left_out=before.left_out,
        )
        store.set_branch(session.id, writer.branch.name, commit, before.commit)
        self._saved = before._replace(commit=commit, tree=tree)
        return self._saved
