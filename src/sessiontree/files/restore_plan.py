"""Plan a restore: which paths to write or delete, and which ones are in conflict. Nothing is changed here.

A restore reverts the changes of the agent on the way up to the common ancestor of two places, and applies the changes
on the way down. A path is in conflict if the user or another program changed it after the agent did.
Paths that the agent did not change are never touched.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, structs

from sessiontree.core.entries import EntryId
from sessiontree.core.number_text import pluralize
from sessiontree.files.file_records import FilesLog, FilesRecord
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.snapshot_store import FileChange, FileVersion, SnapshotStore
from sessiontree.regular_file import open_regular_file

CHANGED_ON_DISK = "changed on disk since"
CHANGED_BETWEEN = "changed between two turns"
LEFT_OUT = "left out of a snapshot"
INTERRUPTED = "changed during or after a call that was interrupted"
IN_THE_WAY = "a folder is in the way"
NO_FOLDER = "its folder is a file or a link"

OTHER = FileVersion("", "")
"""Something on disk that is neither a regular file nor a link."""
PIECE = 1 << 20


class PathRestore(Struct, frozen=True, kw_only=True):
    """A path to write or delete."""

    path: str
    current: FileVersion | None
    """The version on disk; `None` without a file."""
    target: FileVersion | None
    """What the restore leaves there; `None` deletes the file."""

    @property
    def action(self) -> Literal["add", "change", "delete"]:
        if self.target is None:
            return "delete"
        return "add" if self.current is None else "change"


class PathConflict(Struct, frozen=True, kw_only=True):
    """A path that the restore keeps as it is, unless it is named."""

    path: str
    reason: str
    current: FileVersion | None
    target: FileVersion | None

    @property
    def can_take(self) -> bool:
        """Whether it can be restored by name: the path is a file, and its parent is a folder."""
        return self.current != OTHER and self.reason != NO_FOLDER


class RestorePlan(Struct, frozen=True, kw_only=True):
    """What a restore will do. Front ends show it before anything happens."""

    folder: str
    start: EntryId | None
    """The place that the files on disk belong to."""
    place: EntryId | None
    """The place whose files are restored."""
    changes: tuple[PathRestore, ...] = ()
    conflicts: tuple[PathConflict, ...] = ()
    missing: str | None = None
    """Why the files of the place are not known; then nothing can be restored."""
    others: tuple[str, ...] = ()
    """Other sessions and branches that work in the folder."""
    leaf: EntryId | None = None
    """The head of the branch when the plan was made."""
    undoes: EntryId | None = None
    """The record of the restore that this plan reverts."""
    is_files_only: bool = False
    """Whether the plan reverts a restore that moved no conversation, so that its undo moves none either."""

    @property
    def is_empty(self) -> bool:
        return not self.changes and not self.conflicts

    def count(self, action: Literal["add", "change", "delete"]) -> int:
        return sum(change.action == action for change in self.changes)

    @property
    def summary(self) -> str:
        """One line: what the restore does."""
        if self.missing is not None:
            return f"files cannot be restored: {self.missing}"
        names = {"add": "to add", "change": "to change", "delete": "to delete"}
        parts = [f"{pluralize(count, 'file')} {text}" for key, text in names.items() if (count := self.count(key))]  # pyright: ignore[reportArgumentType]
        if self.conflicts:
            parts.append(f"{pluralize(len(self.conflicts), 'conflict')} to keep")
        return ", ".join(parts) if parts else "no files to restore"

    def take(self, paths: Collection[str]) -> RestorePlan:
        """Return a plan that also restores these conflicts. Raises `SnapshotError` for a path without a conflict."""
        by_path = {conflict.path: conflict for conflict in self.conflicts}
        unknown = sorted(set(paths) - by_path.keys())
        if unknown:
            raise SnapshotError(f"no conflict at {', '.join(unknown)}; conflicts: {', '.join(by_path) or 'none'}")
        refused = [path for path in paths if not by_path[path].can_take]
        if refused:
            raise SnapshotError(f"cannot restore {', '.join(refused)}: move away what is there first")
        taken = [
            PathRestore(path=path, current=by_path[path].current, target=by_path[path].target) for path in set(paths)
        ]
        return structs.replace(
            self,
            changes=tuple(sorted([*self.changes, *taken], key=lambda change: change.path)),
            conflicts=tuple(conflict for conflict in self.conflicts if conflict.path not in paths),
        )


class NetChange(Struct):
    """What the steps between two places do to a path, taken together."""

    expected: FileVersion | None
    target: FileVersion | None
    reason: str = ""
    """Why it is a conflict; empty if the steps fit together."""
    is_applied: bool = False
    """Whether the last step was one to apply, not one to revert."""


def combine_steps(
    reverted: Iterable[Sequence[FileChange]], applied: Iterable[Sequence[FileChange]]
) -> dict[bytes, NetChange]:
    """Combine steps to revert, newest first, and steps to apply, oldest first, into one change of each path."""
    net: dict[bytes, NetChange] = {}
    for step in reverted:
        for change in step:
            known = net.get(change.path)
            if known is None:
                net[change.path] = NetChange(change.new, change.old)
                continue
            if known.target != change.new:
                known.reason = CHANGED_BETWEEN
            known.target = change.old
    for step in applied:
        for change in step:
            known = net.get(change.path)
            if known is None:
                net[change.path] = NetChange(change.old, change.new, is_applied=True)
                continue
            if not known.is_applied and known.target != change.old:
                known.reason = CHANGED_BETWEEN
            known.target, known.is_applied = change.new, True
    return net


def plan_restore(store: SnapshotStore, log: FilesLog, start: EntryId | None, place: EntryId | None) -> RestorePlan:
    """Plan to restore the files of a place, when those on disk belong to `start`."""
    reverted, applied = log.list_steps(start, place)
    return _plan_steps(store, reverted, applied, start=start, place=place)


def plan_undo(store: SnapshotStore, restored: FilesRecord) -> RestorePlan:
    """Plan to revert a restore, including the conflicts that it restored by name."""
    return _plan_steps(store, [restored], [], start=restored.place, place=restored.moved_from, undoes=restored.id)


def plan_changes(folder: str, changes: Iterable[FileChange], place: EntryId | None) -> RestorePlan:
    """Plan to make changes to a folder at an entry. A path that is not as the changes expect it is a conflict."""
    net = {change.path: NetChange(change.old, change.new) for change in changes}
    return _compare_with_disk(folder, net, start=place, place=place, undoes=None)


def _plan_steps(
    store: SnapshotStore,
    reverted: Sequence[FilesRecord],
    applied: Sequence[FilesRecord],
    *,
    start: EntryId | None,
    place: EntryId | None,
    undoes: EntryId | None = None,
) -> RestorePlan:
    steps = [*reverted, *applied]
    commits = [commit for step in steps for commit in (step.before, step.commit)]
    trees = store.find_trees(commits) if commits else {}
    if trees is None:
        why = "the snapshots are not in the store of this folder; the session may come from another machine or folder"
        return RestorePlan(folder=store.folder, start=start, place=place, missing=why, undoes=undoes)
    left_out = store.read_left_out(commits)
    changes = store.diff_trees([(trees[step.before], trees[step.commit]) for step in steps])
    diffs = dict(zip([step.id for step in steps], changes, strict=True))
    net = combine_steps([diffs[step.id] for step in reverted], [diffs[step.id] for step in applied])
    for step in steps:
        if step.is_interrupted:
            for change in diffs[step.id]:
                net[change.path].reason = INTERRUPTED
    paths = {os.fsencode(path) for paths in left_out.values() for path in paths}
    folders = tuple(path for path in paths if path.endswith(b"/"))  # nested repositories
    for path, change in net.items():
        if path in paths or path.startswith(folders):
            change.reason = LEFT_OUT
    return _compare_with_disk(store.folder, net, start=start, place=place, undoes=undoes)


def _compare_with_disk(
    folder: str, net: Mapping[bytes, NetChange], *, start: EntryId | None, place: EntryId | None, undoes: EntryId | None
) -> RestorePlan:
    changes: dict[bytes, PathRestore] = {}
    conflicts: dict[bytes, PathConflict] = {}
    deleted = {path for path, change in net.items() if change.target is None and not change.reason}
    for path, change in sorted(net.items()):
        current = read_version_for(folder, path, change.target, deleted)
        reason = change.reason
        if current == change.target:
            continue
        if not reason and current != change.expected:
            reason = IN_THE_WAY if current == OTHER else CHANGED_ON_DISK
        if change.target is not None and not _has_usable_parents(folder, path, deleted):
            reason = NO_FOLDER
        text = os.fsdecode(path)
        if reason:
            conflicts[path] = PathConflict(path=text, reason=reason, current=current, target=change.target)
        else:
            changes[path] = PathRestore(path=text, current=current, target=change.target)
    return RestorePlan(
        folder=folder,
        start=start,
        place=place,
        changes=tuple(changes.values()),
        conflicts=tuple(conflicts.values()),
        undoes=undoes,
    )


# The disk


def read_version(folder: str, path: bytes) -> FileVersion | None:
    """Return the version on disk at a path, `None` without a file, or `OTHER`. Links are not followed."""
    full = os.path.join(os.fsencode(folder), path)
    if not has_real_parents(folder, path):
        return None
    try:
        status = os.lstat(full)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(full)
            return FileVersion("120000", _hash_blob(len(target), [target]))
        if not stat.S_ISREG(status.st_mode):
            return OTHER
        with open_regular_file(os.fsdecode(full)) as file:
            size = os.fstat(file.fileno()).st_size
            blob = _hash_blob(size, iter(lambda: file.read(PIECE), b""))
        return FileVersion("100755" if status.st_mode & stat.S_IXUSR else "100644", blob)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return OTHER  # unreadable: never taken for a known version


def read_version_for(
    folder: str, path: bytes, target: FileVersion | None, deleted: Collection[bytes]
) -> FileVersion | None:
    """Return the version on disk at a path that will become `target`, when the files in `deleted` are gone.

    A folder counts as no file, unless `target` is a file and the folder keeps other files.
    """
    current = read_version(folder, path)
    full = os.path.join(os.fsencode(folder), path)
    if current == OTHER and os.path.isdir(full) and (target is None or _is_emptied(folder, path, deleted)):
        return None
    return current


def _hash_blob(size: int, pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def has_real_parents(folder: str, path: bytes) -> bool:
    """Return whether all parents of a path that exist are folders, not links."""
    return _check_parents(folder, path, lambda parent: False)


def _has_usable_parents(folder: str, path: bytes, deleted: Collection[bytes]) -> bool:
    """Return whether a path can be written: each parent is a folder, missing, or a file that will be deleted."""
    return _check_parents(folder, path, lambda parent: parent in deleted)


def _check_parents(folder: str, path: bytes, accept: Callable[[bytes], bool]) -> bool:
    parts = path.split(b"/")[:-1]
    for depth in range(1, len(parts) + 1):
        parent = b"/".join(parts[:depth])
        try:
            mode = os.lstat(os.path.join(os.fsencode(folder), parent)).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return True
        if not stat.S_ISDIR(mode):
            return accept(parent)
    return True


def _is_emptied(folder: str, path: bytes, deleted: Collection[bytes]) -> bool:
    """Return whether a folder in the way contains only files that will be deleted."""
    for root, folders, names in os.walk(os.path.join(os.fsencode(folder), path)):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        for name in (*names, *links):
            if os.path.relpath(os.path.join(root, name), os.fsencode(folder)) not in deleted:
                return False
    return True
