"""Restore files together with a move of the conversation, or alone: plan, preview, and do.

The default of every move is the conversation alone. A front end shows the `RestorePlan` first. The conversation moves
before the files: if restoring fails, a second attempt restores the files only.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from msgspec import structs

from sessiontree.config import FileSettings
from sessiontree.core.entries import Custom, EntryId
from sessiontree.core.operation_plans import NavigatePlan
from sessiontree.core.place_names import find_branch
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.files.file_records import FilesLog, list_folders
from sessiontree.files.folder_snapshot import FolderSnapshots
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.private_folder import (
    find_private_folder,
    find_snapshot_store,
    open_private_folder,
    open_snapshot_store,
)
from sessiontree.files.restore import (
    InterruptedRestore,
    RecoveryChoice,
    RestoreOutcome,
    find_interrupted,
    recover,
    restore,
)
from sessiontree.files.restore_plan import RestorePlan, plan_restore, plan_undo
from sessiontree.files.running_calls import has_interrupted_calls, record_interrupted_calls
from sessiontree.files.snapshot_store import SnapshotStore, hash_name, list_stores
from sessiontree.library import catalog
from sessiontree.session import Branch, Place, Session
from sessiontree.store.file_operations import discard

FilesChoice = Literal["conversation", "both", "files"]
"""What a move changes: the conversation, the conversation and the files, or the files only."""

UNDONE_RESTORE = "the restore of files"
"""What an undo names when it moves no conversation."""
MAX_OTHERS = 5
"""Other sessions that a preview names."""


async def restore_after_move(mover: FileMover, plan: RestorePlan) -> RestoreOutcome:
    """Restore files after the conversation moved. Errors mention that the conversation is already there."""
    try:
        return await asyncio.to_thread(mover.restore, plan)
    except SnapshotError as error:
        text = f"the conversation moved, but its files did not: {error}; restore only the files to try again"
        raise SnapshotError(text) from error


def find_interrupted_restores(folder: str) -> list[InterruptedRestore]:
    """Return the restores in a folder, by any session, that were killed half way."""
    store = find_snapshot_store(folder)
    return [] if store is None or not os.path.isdir(store.folder) else find_interrupted(store)


def recover_restore(interrupted: InterruptedRestore, choice: RecoveryChoice, settings: FileSettings) -> RestoreOutcome:
    """Finish or revert a restore of a session that is not open. If the session is gone, it can only be reverted."""
    session = _open_session(interrupted)
    if session is None:
        if choice == "finish":
            text = f"session {interrupted.session} no longer exists; its restore can only be reverted"
            raise InvalidOperation(text)
        store = open_snapshot_store(interrupted.folder)
        return recover(FolderSnapshots(store, settings), interrupted, choice)
    with session:
        mover = FileMover.find(session.branch(interrupted.branch), settings, interrupted.folder)
        return mover.recover(interrupted, choice)


def _open_session(interrupted: InterruptedRestore) -> Session | None:
    for name in (interrupted.file, interrupted.session):
        with suppress(NotFound):
            if name is not None:
                return catalog.open(name)
    return None


class FileMover:
    """Plans and carries out restores for the files of one branch."""

    def __init__(self, branch: Branch, store: SnapshotStore | None, settings: FileSettings) -> None:
        self.branch = branch
        self.session: Session = branch.session
        self.store = store
        self._settings = settings

    @classmethod
    def find(cls, branch: Branch, settings: FileSettings, cwd: str | None = None) -> FileMover:
        """Find the snapshots of a branch: in the folder `cwd`, or in the folder that the agent worked in last."""
        private = find_private_folder(branch.session.id, branch.name)
        if private is not None:
            open_private_folder(private)
            return cls(branch, private.open_store(), settings)
        folders = list_folders(branch.session.tree, branch.name)
        store = None if cwd is None else find_snapshot_store(cwd)
        if store is not None and store.key not in folders and has_interrupted_calls(store, branch.session.id):
            return cls(branch, store, settings)  # the first call of the session was killed
        if store is None or store.key not in folders:
            stores = {store.key: store for store in list_stores()} if folders else {}
            store = next((stores[key] for key in folders if key in stores), None)
        return cls(branch, store, settings)

    @property
    def log(self) -> FilesLog:
        return FilesLog(self.session.tree, "" if self.store is None else self.store.key)

    def plan(self, place: EntryId | None) -> RestorePlan:
        """Plan to restore the files of a place. If they are not known, the plan has the reason."""
        self.record_interrupted_calls()
        store, log = self.store, self.log
        is_private = store is not None and store.is_private
        start = log.find_position(self.branch.name, self.branch.leaf, in_private_folder=is_private)
        if store is None or not os.path.isdir(store.folder):
            return self._build_missing_plan(start, place)
        return self._complete_plan(plan_restore(store, log, start, place))

    def plan_switch(self, place: Place) -> RestorePlan:
        """Plan the files of a switch to a branch, or of a move to exactly a place."""
        session = self.session
        name = find_branch(place, session.tree, session.heads) if isinstance(place, str) else None
        leaf = session.resolve_place(place)
        if name is not None and self._has_private_folder(name, self.branch.name):
            return RestorePlan(folder="", start=None, place=leaf)  # each of the branches keeps its own files
        return self.plan(leaf)

    def plan_undo(self, plan_move: Callable[[], NavigatePlan]) -> RestorePlan:
        """Plan the files of an undo: revert the restore of the move that `plan_move` undoes.

        If the last restore moved no conversation, it is reverted first, and `is_files_only` is true.
        """
        self.record_interrupted_calls()
        store = self.store if self.store is not None and os.path.isdir(self.store.folder) else None
        alone = self.log.find_restore_of_files_only(self.branch.name, self.branch.leaf)
        if store is not None and alone is not None:
            plan = self._complete_plan(plan_undo(store, alone))
            if not plan.is_empty and plan.missing is None:
                return structs.replace(plan, is_files_only=True)
        move, undone = plan_move(), self.session.heads.undoable
        if undone is not None and undone.switched and self._has_private_folder(undone.branch, self.branch.name):
            return RestorePlan(folder="", start=None, place=move.new_leaf)  # each of the branches keeps its own files
        restored = self.log.find_restore(self.branch.name, move.old_leaf, move.new_leaf)
        if store is None or restored is None:
            return self.plan(move.new_leaf)
        return self._complete_plan(plan_undo(store, restored))

    def _has_private_folder(self, *branches: str) -> bool:
        return any(find_private_folder(self.session.id, branch) is not None for branch in branches)

    def _build_missing_plan(self, start: EntryId | None, place: EntryId | None) -> RestorePlan:
        if self.store is not None:
            why = f"the folder {self.store.folder} does not exist"
            return RestorePlan(folder=self.store.folder, start=start, place=place, missing=why)
        if not list_folders(self.session.tree, self.branch.name):
            return RestorePlan(folder="", start=start, place=place)  # the agent has not changed any file
        why = "the snapshots of this session are not on this machine"
        return RestorePlan(folder="", start=start, place=place, missing=why)

    def _complete_plan(self, plan: RestorePlan) -> RestorePlan:
        """Add the head, and the other sessions and branches that changed files since the last snapshot of this one."""
        store = self.store
        assert store is not None
        own_session, own_branch = hash_name(self.session.id), hash_name(self.branch.name)
        tips = store.list_branches()
        own = next((tip.time for tip in tips if (tip.session, tip.branch) == (own_session, own_branch)), 0)
        names = {hash_name(name): name for name in self.session.heads.heads}
        others: list[str] = []
        for tip in tips:
            if tip.time < own or (tip.session, tip.branch) == (own_session, own_branch):
                continue
            if tip.session == own_session:
                others.append(f"branch {names.get(tip.branch, 'deleted')}")
            else:
                info = next(store.read_commits("-1", tip.commit))
                others.append(f"session {info.session}")
        return structs.replace(plan, others=tuple(dict.fromkeys(others))[:MAX_OTHERS], leaf=self.branch.leaf)

    def restore(self, plan: RestorePlan) -> RestoreOutcome:
        """Carry out a plan. Raises `SnapshotError`. Unknown files are reported in the outcome."""
        if plan.missing is not None or not plan.changes:
            return RestoreOutcome(conflicts=plan.conflicts, missing=plan.missing)
        return restore(
            plan,
            self._open_snapshots(),
            session=self.session.id,
            branch=self.branch.name,
            parent=self._find_parent(plan.place),
            start_parent=self._find_parent(plan.start),
            write_record=self._write_record,
            file=None if self.session.file is None else str(self.session.file),
        )

    def record_interrupted_calls(self) -> list[str]:
        """Write the records of tool calls whose process was killed. Return a sentence for each."""
        store = self.store
        if store is None or self.session.read_only is not None or not os.path.isdir(store.folder):
            return []
        if not has_interrupted_calls(store, self.session.id):
            return []
        return record_interrupted_calls(self._open_snapshots(), self.session)

    def find_interrupted(self) -> list[InterruptedRestore]:
        """Return restores of this session that were killed half way."""
        if self.store is None or not os.path.isdir(self.store.folder):
            return []
        return [found for found in find_interrupted(self.store) if found.session == self.session.id]

    def recover(self, interrupted: InterruptedRestore, choice: RecoveryChoice) -> RestoreOutcome:
        """Finish an interrupted restore, or revert it."""
        assert self.store is not None
        recorded = next((record for record in self.log.records if record.before == interrupted.before), None)
        if recorded is not None:  # the process was killed after the last step
            discard(interrupted.journal)
            plan = RestorePlan(folder=self.store.folder, start=None, place=None)
            return self.restore(plan_undo(self.store, recorded) if choice == "revert" else plan)
        parent = self._find_parent(interrupted.place)
        return recover(self._open_snapshots(), interrupted, choice, parent=parent, write_record=self._write_record)

    def _open_snapshots(self) -> FolderSnapshots:
        assert self.store is not None
        file = None if self.session.file is None else str(self.session.file)
        return FolderSnapshots(self.store, self._settings, session_file=file)

    def _find_parent(self, place: EntryId | None) -> str | None:
        assert self.store is not None
        commit = self.log.find_commit(place)
        return commit if commit is not None and self.store.has_commits([commit]) else None

    def _write_record(self, record: Custom, place: EntryId | None) -> None:
        tree = self.session.tree
        parent = tree[place] if place is not None and place in tree else None
        self.session.append(record, parent=parent, branch=None)
