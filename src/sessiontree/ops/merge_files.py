"""Bring the files of a branch that worked in a private folder into another folder, and remove such folders."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs

from sessiontree.config import FileSettings
from sessiontree.core.entries import Custom, EntryId
from sessiontree.core.number_text import pluralize
from sessiontree.files.file_records import FilesLog
from sessiontree.files.folder_merge import MergeConflict, find_hidden_files, merge_files
from sessiontree.files.folder_snapshot import FolderSnapshots
from sessiontree.files.private_folder import (
    PrivateFolder,
    find_private_folder,
    open_private_folder,
    remove_private_folder,
    save_private_folder,
)
from sessiontree.files.restore import restore
from sessiontree.files.restore_plan import plan_changes
from sessiontree.files.snapshot_store import SnapshotStore
from sessiontree.session import Branch, Session


class FilesMerged(Struct, frozen=True, kw_only=True):
    """What a merge did to the files of a folder."""

    folder: str
    written: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    """If there are any, no file was changed."""

    @property
    def summary(self) -> str:
        """One line: what the merge did."""
        if self.conflicts:
            names = ", ".join(f"{conflict.path} ({conflict.reason})" for conflict in self.conflicts[:10])
            return f"files not merged into {self.folder}: {pluralize(len(self.conflicts), 'conflict')}: {names}"
        counts = {"wrote": len(self.written), "deleted": len(self.deleted)}
        parts = [f"{verb} {pluralize(count, 'file')}" for verb, count in counts.items() if count]
        return f"{', '.join(parts)} in {self.folder}" if parts else f"no files to merge into {self.folder}"


def merge_branch_files(
    source: Branch, into: Branch, settings: FileSettings, *, old_leaf: EntryId | None
) -> FilesMerged | None:
    """Merge what an agent changed in the private folder of `source` into the folder of `into`.

    All changes are applied, or none if any conflicts with a change there. Going back before the head of `into` reverts
    them, and so does undoing the operation that moved `into` from `old_leaf`. Returns `None` if `source` has no private
    folder. Raises `SnapshotError`.
    """
    session = source.session
    private = find_private_folder(session.id, source.name)
    if private is None:
        return None
    theirs = save_private_folder(private, settings)
    hidden = find_hidden_files(private.open_store(), private.commit, theirs)
    store = _find_target(private, into)
    if hidden.conflicts:
        return FilesMerged(folder=store.folder, conflicts=hidden.conflicts)
    snapshots = FolderSnapshots(store, settings, session_file=None if session.file is None else str(session.file))
    tree = store.update_tree(store.get_tree(theirs), {change.path: change.new for change in hidden.changes})
    merged = merge_files(store, base=private.commit, ours=snapshots.take().tree, theirs=tree)
    place, log = into.leaf, FilesLog(session.tree, store.key)
    plan, kind = plan_changes(store.folder, merged.changes, place), "call"
    kept = tuple(MergeConflict(conflict.path, conflict.reason) for conflict in plan.conflicts)
    if merged.conflicts or kept:
        return FilesMerged(folder=store.folder, conflicts=merged.conflicts or kept)
    parent = log.find_commit(place)
    if source.leaf in (None, *session.tree.walk_up_ids(place)):
        # The calls of `source` are on the path to `place`: their records revert the changes, and this one must not.
        start = log.find_position(into.name, old_leaf, in_private_folder=store.is_private)
        plan, kind = structs.replace(plan, start=start, leaf=old_leaf), "restore"

    def write_record(record: Custom, at: EntryId | None) -> None:
        session.append(record, parent=session.tree[at] if at is not None else None, branch=None)

    outcome = restore(
        plan,
        snapshots,
        session=session.id,
        branch=into.name,
        parent=parent,
        start_parent=parent,
        write_record=write_record,
        kind=kind,
        file=None if session.file is None else str(session.file),
        merged=theirs,
    )
    conflicts = tuple(MergeConflict(conflict.path, conflict.reason) for conflict in outcome.conflicts)
    return FilesMerged(folder=store.folder, written=outcome.written, deleted=outcome.deleted, conflicts=conflicts)


def _find_target(private: PrivateFolder, into: Branch) -> SnapshotStore:
    target = find_private_folder(into.session.id, into.name)
    if target is None or target.key != private.key:
        return SnapshotStore(private.key, private.source)
    open_private_folder(target)
    return target.open_store()


def remove_branch_folders(session: Session, branches: Iterable[str], settings: FileSettings) -> list[str]:
    """Remove the private folders of branches, and return the names of those that had one. Their files stay in the
    last snapshot. Raises `SnapshotError` if that cannot be taken."""
    removed: list[str] = []
    for name in branches:
        folder = find_private_folder(session.id, name)
        if folder is not None:
            remove_private_folder(folder, settings)
            removed.append(name)
    return removed
