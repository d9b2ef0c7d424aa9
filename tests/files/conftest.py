"""A folder with files, its snapshots, and a session whose tool calls change the files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from time import time_ns

import pytest

import sessiontree as st
from sessiontree.config import FileSettings
from sessiontree.files.file_records import FilesLog, build_record
from sessiontree.files.folder_snapshot import FolderSnapshots, FolderState
from sessiontree.files.private_folder import list_private_folders, remove_private_folder
from sessiontree.files.restore import JOURNALS, InterruptedRestore, RestoreOutcome, _write_journal, restore
from sessiontree.files.restore_plan import RestorePlan, plan_restore, plan_undo
from sessiontree.files.snapshot_store import FileChange, SnapshotStore
from sessiontree.ops.move_files import FileMover
from sessiontree.session import Session


def run_git(folder: Path, *arguments: str) -> str:
    """Run git as a person would, with the configuration of the project."""
    command = ["git", "-c", "user.name=p", "-c", "user.email=p@localhost", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def read_folder(folder: Path) -> dict[str, object]:
    """Return every file of a folder with its content, executable bit and kind. The `.git` folder is not included."""
    found: dict[str, object] = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git"]
        for name in (*names, *(name for name in folders if os.path.islink(os.path.join(root, name)))):
            path = Path(root, name)
            key = os.path.relpath(path, folder)
            if path.is_symlink():
                found[key] = ("link", os.readlink(path))
            else:
                found[key] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


class Workspace:
    """A folder and a session in memory. `call` is a tool call of the agent; everything else is done by a person."""

    def __init__(self, folder: Path, settings: FileSettings | None = None) -> None:
        self.folder = folder
        self.store = SnapshotStore.open(str(folder))
        self.snapshots = FolderSnapshots(self.store, settings or FileSettings())
        self.session: Session = st.memory()
        self._states: dict[str, FolderState] = {}
        """What the commits of this workspace have."""

    def take(self) -> FolderState:
        return self.snapshots.take(clean=True)

    def commit(self, state: FolderState, parents: list[str], author: str, entry: str | None) -> str:
        commit = self.store.commit(
            state.tree, parents, author=author, entry=entry, session=self.session.id, left_out=state.left_out
        )
        self.store.set_branch(self.session.id, self.session.head.name, commit, next(iter(parents), None))
        self._states[commit] = state
        return commit

    def call(self, work: Callable[[], object], text: str = "do it") -> str:
        """Append a turn whose tool call does `work`. Return the id of its last entry."""
        head = self.session.head
        since = time_ns()
        before_state = self.take()
        log = FilesLog(self.session.tree, self.store.key)
        last = log.find_at(head.leaf)
        if last is not None and self._states.get(last.commit) == before_state:
            before = last.commit
        else:
            before = self.commit(before_state, [] if last is None else [last.commit], "person", head.leaf)
        head.append(st.user(text))
        work()
        after_state = self.snapshots.take()
        entry = head.append(st.assistant(f"did {text}"))
        if after_state.tree == before_state.tree:
            return entry.id
        before_tree, changes = self.snapshots.add_older_files(before_state.tree, after_state.tree, since)
        if before_tree != before_state.tree:
            before = self.commit(FolderState(before_tree, before_state.left_out), [before], "person", head.leaf)
        if changes:
            after = self.commit(after_state, [before], "agent", entry.id)
            record = build_record(
                "call",
                commit=after,
                before=before,
                folder=self.store.key,
                branch=head.name,
                changes=changes,
                left_out=after_state.left_out,
            )
            self.session.append(record, parent=entry, branch=None)
        return entry.id

    @property
    def log(self) -> FilesLog:
        return FilesLog(self.session.tree, self.store.key)

    def plan(self, place: str | None) -> RestorePlan:
        head, log = self.session.head, self.log
        return plan_restore(self.store, log, log.find_position(head.name, head.leaf), place)

    def restore(self, plan: RestorePlan) -> RestoreOutcome:
        return restore(
            plan,
            self.snapshots,
            session=self.session.id,
            branch=self.session.head.name,
            parent=self.log.find_commit(plan.place),
            write_record=self.write_record,
        )

    def write_record(self, record: st.Custom, place: str | None) -> object:
        entry = None if place is None else self.session.tree[place]
        return self.session.append(record, parent=entry, branch=None)

    def go(self, place: str | None) -> RestoreOutcome:
        """Restore the files of a place and move the conversation there."""
        done = self.restore(self.plan(place))
        self.session.move(None if place is None else self.session.tree[place])
        return done

    def undo_restore(self) -> RestoreOutcome:
        record = next(record for record in reversed(self.log.records) if record.kind == "restore")
        return self.restore(plan_undo(self.store, record))

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def list_changes(self, old: FolderState, new: FolderState) -> dict[str, str]:
        return {os.fsdecode(change.path): describe(change) for change in self.store.diff(old.tree, new.tree)}


def interrupt_restore(session: Session, place: str | None) -> None:
    """Leave the journal of a restore that was killed before it changed a file."""
    mover = FileMover.find(session.head, FileSettings())
    plan = mover.plan(place)
    assert mover.store is not None
    interrupted = InterruptedRestore(
        journal=os.path.join(mover.store.path, JOURNALS, "killed.json"),
        session=session.id,
        branch=session.head.name,
        folder=mover.store.folder,
        before=mover.log.records[-1].commit,
        start=plan.start,
        place=plan.place,
        changes=plan.changes,
        token="killed",
        file=None if session.file is None else str(session.file),
    )
    with pytest.raises(KeyboardInterrupt), _write_journal(interrupted):
        raise KeyboardInterrupt


def describe(change: FileChange) -> str:
    if change.old is None:
        return "added"
    return "deleted" if change.new is None else "changed"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def workspace(folder: Path) -> Iterator[Workspace]:
    yield Workspace(folder)
    for private in list_private_folders():  # an overlay would stay mounted
        remove_private_folder(private, FileSettings())
