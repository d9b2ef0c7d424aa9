"""Merge the files of one branch into a folder: a three-way merge of snapshots, applied completely or not at all."""

from __future__ import annotations

import os

from msgspec import Struct

from sessiontree.files.git_command import split_records
from sessiontree.files.restore_plan import LEFT_OUT, OTHER, read_version
from sessiontree.files.snapshot_store import FileChange, SnapshotStore

BOTH_CHANGED = "both sides changed it"


class MergeConflict(Struct, frozen=True):
    """A path that both sides changed in different ways."""

    path: str
    reason: str


class FileMerge(Struct, frozen=True, kw_only=True):
    """The result of a merge that is not yet applied."""

    changes: tuple[FileChange, ...] = ()
    """What the merge changes in the folder."""
    conflicts: tuple[MergeConflict, ...] = ()
    """If there are any, nothing can be applied."""


def merge_files(store: SnapshotStore, *, base: str, ours: str, theirs: str) -> FileMerge:
    """Merge what `theirs` changed since `base` into `ours`. All three are trees or commits of the store."""
    # Three commits without history: the merge base of a conversation is not always the one that git would find.
    root = _commit_tree(store, base)
    output = _commit_tree(store, ours, root), _commit_tree(store, theirs, root)
    code, result = store.git.run_with_code("merge-tree", "--write-tree", "-z", "--messages", *output, ok_codes=(0, 1))
    records = split_records(result)
    if code == 0:
        return FileMerge(changes=tuple(store.diff(ours, records[0].decode())))
    return FileMerge(conflicts=_parse_conflicts(records[1:]))


def find_hidden_files(store: SnapshotStore, base: str, tree: str) -> FileMerge:
    """Return the files of the folder that `tree`, a snapshot of it, leaves out although `base` has them.

    They were not deleted, but ignored, became part of a nested repository, or grew too large. `changes` brings them
    back into the tree. Files that differ from the base are conflicts, since no snapshot has their content.
    """
    changes: list[FileChange] = []
    conflicts: list[MergeConflict] = []
    for change in store.diff(base, tree):
        if change.new is None:
            version = read_version(store.folder, change.path)
            if version == change.old:
                changes.append(FileChange(change.path, None, version))
            elif version is not None and version != OTHER:
                conflicts.append(MergeConflict(os.fsdecode(change.path), LEFT_OUT))
    return FileMerge(changes=tuple(changes), conflicts=tuple(conflicts))


def _commit_tree(store: SnapshotStore, tree: str, *parents: str) -> str:
    options = [part for parent in parents for part in ("-p", parent)]
    made = store.git.run("commit-tree", *options, "-m", "merge", f"{tree}^{{tree}}")
    return made.decode().strip()


def _parse_conflicts(records: list[bytes]) -> tuple[MergeConflict, ...]:
    """Read the paths in conflict, and the messages that explain them.

    Paths are `mode oid stage TAB path`, up to an empty record. Each message is a count, that many paths, its kind, and
    its text.
    """
    end = records.index(b"") if b"" in records else len(records)
    reasons = {record.partition(b"\t")[2]: BOTH_CHANGED for record in records[:end]}
    rest = records[end + 1 :]
    while len(rest) > 2 and rest[0].isdigit():
        count = int(rest[0])
        paths, kind = rest[1 : 1 + count], rest[1 + count].decode(errors="replace")
        if kind.startswith("CONFLICT"):
            reason = kind.removeprefix("CONFLICT (").removesuffix(")")
            reasons |= dict.fromkeys(paths, BOTH_CHANGED if reason == "contents" else reason)
        rest = rest[3 + count :]
    return tuple(MergeConflict(os.fsdecode(path), reason) for path, reason in sorted(reasons.items()))
