"""The annotations of a session that name snapshots, and the steps between two places of the tree.

A record names the commits with the files before and after a tool call. Changes between two calls, which the agent did
not make, are therefore not taken for changes of the agent.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from sessiontree.core.entries import FILES_RECORD, Chain, Custom, Entry, EntryId, JsonObject
from sessiontree.core.messages import is_list, is_object
from sessiontree.core.tree import Tree
from sessiontree.files.snapshot_store import FileChange, LeftOut, check_object_id

RecordKind = Literal["call", "restore"]
MAX_LISTED = 50
"""Paths that were left out which a record lists; the commit lists all of them."""


class FilesRecord(Struct, frozen=True, kw_only=True):
    """One annotation that names a snapshot."""

    id: EntryId
    place: EntryId | None
    """The entry whose files these are."""
    kind: RecordKind
    commit: str
    before: str
    """The snapshot before the tool call or the restore."""
    folder: str
    """The name of the store."""
    branch: str
    """The branch that the agent worked on."""
    is_private: bool = False
    """Whether the snapshot is of the private folder of the branch."""
    added: int = 0
    changed: int = 0
    deleted: int = 0
    left_out: tuple[LeftOut, ...] = ()
    moved_from: EntryId | None = None
    """For a restore: the place that the files belonged to before."""
    leaf: EntryId | None = None
    """For a restore: the head of the branch before the move. The files may have belonged to another place."""
    undoes: EntryId | None = None
    """For a restore: the record of the restore that it reverts."""
    is_interrupted: bool = False
    """Whether the process of the call was killed. Then the user or another program may have made the changes."""


def build_record(
    kind: RecordKind,
    *,
    commit: str,
    before: str,
    folder: str,
    branch: str,
    changes: Sequence[FileChange],
    is_private: bool = False,
    is_interrupted: bool = False,
    left_out: Sequence[LeftOut] = (),
    moved_from: EntryId | None = None,
    leaf: EntryId | None = None,
    undoes: EntryId | None = None,
) -> Custom:
    """Return the annotation for a snapshot."""
    added, changed, deleted = count_changes(changes)
    data: JsonObject = {"kind": kind, "commit": commit, "before": before, "folder": folder, "branch": branch}
    data |= {"added": added, "changed": changed, "deleted": deleted}
    if is_private:
        data["private"] = True
    if is_interrupted:
        data["interrupted"] = True
    if left_out:
        data["leftOut"] = [{"path": make_printable(item.path), "reason": item.reason} for item in left_out[:MAX_LISTED]]
        if len(left_out) > MAX_LISTED:
            data["leftOutCount"] = len(left_out)
    if moved_from is not None:
        data["from"] = moved_from
    if leaf is not None:
        data["leaf"] = leaf
    if undoes is not None:
        data["undoes"] = undoes
    return Custom(custom_type=FILES_RECORD, data=data)


def count_changes(changes: Iterable[FileChange]) -> tuple[int, int, int]:
    """Return how many files were added, changed and deleted."""
    added = changed = deleted = 0
    for change in changes:
        if change.old is None:
            added += 1
        elif change.new is None:
            deleted += 1
        else:
            changed += 1
    return added, changed, deleted


def make_printable(path: str) -> str:
    """Return a path that may not be UTF-8 as valid text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class FilesLog:
    """The records of a session, in the order of the file. Annotations of other folders are ignored."""

    def __init__(self, tree: Tree, folder: str) -> None:
        self._tree = tree
        self.records: list[FilesRecord] = []
        self._by_place: dict[EntryId | None, FilesRecord] = {}
        self._calls_by_place: dict[EntryId | None, FilesRecord] = {}
        for item in tree.items:
            record = _parse_item(item, tree)
            if record is not None and record.folder == folder:
                self.records.append(record)
                self._by_place[record.place] = record
                if record.kind == "call":
                    self._calls_by_place[record.place] = record

    def find_at(self, place: EntryId | None, *, only_calls: bool = False) -> FilesRecord | None:
        """Return the record of the nearest snapshot at a place or above it."""
        found = self._calls_by_place if only_calls else self._by_place
        for id in self._tree.walk_up_ids(place):
            if id in found:
                return found[id]
        return found.get(None)

    def find_commit(self, place: EntryId | None, *, only_calls: bool = False) -> str | None:
        """Return the commit with the files of a place; `None` if no snapshot of this path is known.

        Without a change on the path, the files are those before the first change that started nearest to it. With
        `only_calls`, they are as the agent left them: a snapshot of a restore also has what the user changed by then.
        """
        record = self.find_at(place, only_calls=only_calls)
        if record is not None:
            return record.commit
        above = {id: distance for distance, id in enumerate([*self._tree.walk_up_ids(place), None])}

        def measure_distance(record: FilesRecord) -> int:
            return next(above[id] for id in (*self._tree.walk_up_ids(record.place), None) if id in above)

        calls = (record for record in self.records if record.kind == "call")
        first = min(calls, key=measure_distance, default=None)
        return None if first is None else first.before

    def _is_below(self, id: EntryId | None, place: EntryId | None) -> bool:
        return place is None or place in self._tree.walk_up_ids(id)

    def find_position(self, branch: str, leaf: EntryId | None, *, in_private_folder: bool = False) -> EntryId | None:
        """Return the place that the files on disk belong to, for the agent on a branch.

        Moves of the conversation alone do not change it. An agent that has not changed files yet found them where the
        last one left them, unless it has a private folder.
        """
        known = [record for record in self.records if record.is_private == in_private_folder]
        own = [record for record in known if record.branch == branch]
        if not own and (in_private_folder or not known):
            return leaf
        place = (own or known)[-1].place
        return place if place is None or place in self._tree else leaf

    def find_restore(self, branch: str, left: EntryId | None, back_at: EntryId | None) -> FilesRecord | None:
        """Return the restore that belongs to a move from `back_at` to `left`, when that move is undone.

        There is none if the agent on the branch has changed files since.
        """
        reverted = {record.undoes for record in self.records}
        for record in reversed(self.records):
            if record.kind == "call" and record.branch == branch:
                return None
            if record.kind == "restore" and record.undoes is None and record.id not in reverted:
                is_match = self._is_below(left, record.place) and self._is_same_place(back_at, record.leaf)
                return record if is_match else None
        return None

    def find_restore_of_files_only(self, branch: str, leaf: EntryId | None) -> FilesRecord | None:
        """Return the restore that was the last change to the files of a branch, and moved no conversation."""
        reverted = {record.undoes for record in self.records}
        for record in reversed(self.records):
            if record.branch != branch or record.undoes is not None or record.id in reverted:
                continue
            is_match = record.kind == "restore" and self._is_same_place(leaf, record.leaf)
            return record if is_match else None
        return None

    def _is_same_place(self, one: EntryId | None, other: EntryId | None) -> bool:
        if one is None or other is None or other not in self._tree:
            return one == other
        return self._tree.skip_annotations(one) == self._tree.skip_annotations(other)

    def list_steps(self, start: EntryId | None, end: EntryId | None) -> tuple[list[FilesRecord], list[FilesRecord]]:
        """Return the changes of the agent on the way between two places.

        First the ones to revert, newest first, then the ones to apply, oldest first.
        """
        common = self._tree.find_common_ancestor(start, end)
        above = {None, *self._tree.walk_up_ids(common)}
        calls: dict[EntryId | None, list[FilesRecord]] = {}
        for record in self.records:
            if record.kind == "call":
                calls.setdefault(record.place, []).append(record)

        def collect(leaf: EntryId | None) -> list[FilesRecord]:
            """Return the steps from `leaf` up to the common ancestor, newest first."""
            places = [id for id in self._tree.walk_up_ids(leaf) if id not in above]
            return [record for id in places for record in reversed(calls.get(id, []))]

        return collect(start), collect(end)[::-1]


def list_folders(tree: Tree, branch: str) -> list[str]:
    """Return the names of the stores that a session names, with the last one of a branch first."""
    records = [record for item in tree.items if (record := _parse_item(item, tree)) is not None]
    ordered = [record for record in records if record.branch == branch][::-1] + records[::-1]
    return list(dict.fromkeys(record.folder for record in ordered))


def was_private(tree: Tree, branch: str) -> bool:
    """Return whether the agent on a branch changed files of a private folder last."""
    found = (record for item in reversed(tree.items) if (record := _parse_item(item, tree)) is not None)
    return next((record.is_private for record in found if record.branch == branch), False)


def list_calls(tree: Tree) -> list[FilesRecord]:
    """Return the records of calls that changed files, of all folders, in the order of the file."""
    found = (_parse_item(item, tree) for item in tree.items)
    return [record for record in found if record is not None and record.kind == "call"]


def count_changed_files(items: Iterable[Entry | Chain], tree: Tree) -> Counter[EntryId]:
    """Return how many files the agent changed, by the entry that the records among `items` belong to."""
    counts: Counter[EntryId] = Counter()
    for item in items:
        record = _parse_item(item, tree)
        if record is not None and record.kind == "call" and record.place is not None:
            counts[record.place] += record.added + record.changed + record.deleted
    return counts


def _parse_item(item: Entry | Chain, tree: Tree) -> FilesRecord | None:
    if not isinstance(item, Entry) or item.custom_type != FILES_RECORD or item.type != "custom":
        return None
    return parse_record(item, tree)


def parse_record(entry: Entry, tree: Tree) -> FilesRecord | None:
    """Read an annotation; `None` if it is not valid. Session files may contain anything."""
    body = entry.decode()
    data: Any = body.data if isinstance(body, Custom) else None
    if not is_object(data):
        return None
    commit, before = check_object_id(data.get("commit")), check_object_id(data.get("before"))
    kind, folder, branch = data.get("kind"), data.get("folder"), data.get("branch")
    if commit is None or before is None or not isinstance(folder, str) or not isinstance(branch, str):
        return None
    if kind not in ("call", "restore"):
        return None
    left_out = data.get("leftOut")
    return FilesRecord(
        id=entry.id,
        place=tree.skip_annotations(tree.parent(entry.id)),
        kind="call" if kind == "call" else "restore",
        commit=commit,
        before=before,
        folder=folder,
        branch=branch,
        is_private=data.get("private") is True,
        added=_parse_count(data.get("added")),
        changed=_parse_count(data.get("changed")),
        deleted=_parse_count(data.get("deleted")),
        left_out=tuple(map(_parse_left_out, filter(is_object, left_out))) if is_list(left_out) else (),
        moved_from=_parse_id(data.get("from")),
        leaf=_parse_id(data.get("leaf")),
        undoes=_parse_id(data.get("undoes")),
        is_interrupted=data.get("interrupted") is True,
    )


def _parse_count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _parse_id(value: object) -> EntryId | None:
    return value if isinstance(value, str) else None


def _parse_left_out(item: JsonObject) -> LeftOut:
    return LeftOut(str(item.get("path")), str(item.get("reason")))
