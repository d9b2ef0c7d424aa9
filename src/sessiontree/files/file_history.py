"""The history of files: which turns changed a path, who wrote each line, and how two places differ."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from secrets import token_hex

from msgspec import Struct

from sessiontree.core.entries import EntryId
from sessiontree.files.file_records import FilesLog
from sessiontree.files.git_command import SnapshotError, split_records
from sessiontree.files.private_folder import find_snapshot_store
from sessiontree.files.restore_plan import OTHER, RestorePlan, read_version
from sessiontree.files.snapshot_store import CommitInfo, FileVersion, SnapshotStore, get_session_refs
from sessiontree.regular_file import open_regular_file
from sessiontree.store.file_operations import discard

DIFF_OPTIONS = ("--no-ext-diff", "--no-textconv", "--no-color")
MAX_DIFF_BYTES = 1 << 20
"""Size of the largest file on disk that a preview compares."""
MAX_TIPS = 50
"""Branches that `blame` looks at to find the one that the file on disk belongs to."""
_BLAME_HEADER = re.compile(rb"([0-9a-f]{40}) \d+ (\d+)")


class FileStat(Struct, frozen=True, kw_only=True):
    """How much of a file differs between two places."""

    path: str
    added: int | None
    """The number of added lines; `None` for a binary file."""
    deleted: int | None


class BlamedLine(Struct, frozen=True, kw_only=True):
    """A line of a file, and who wrote it."""

    number: int
    text: str
    author: str
    """`agent`, or `person` for everything that was not written by a tool call."""
    commit: str | None = None
    """The first snapshot with the line; `None` before that."""
    session: str | None = None
    entry: EntryId | None = None
    prompt: str = ""
    """The first line of the prompt that the agent worked on."""


def find_places(log: FilesLog, a: EntryId | None, b: EntryId | None) -> tuple[str, str] | None:
    """Return the commits with the files that the agent left at two places; `None` if those of one are not known."""
    first, second = log.find_commit(a, only_calls=True), log.find_commit(b, only_calls=True)
    return None if first is None or second is None else (first, second)


def read_stats(store: SnapshotStore, old: str, new: str) -> list[FileStat]:
    """Return how much of each file differs between two commits."""
    output = store.git.run("diff", *DIFF_OPTIONS, "--numstat", "-z", "--no-renames", old, new)
    stats: list[FileStat] = []
    for record in split_records(output):
        added, deleted, path = record.split(b"\t", 2)
        stats.append(FileStat(path=os.fsdecode(path), added=_parse_number(added), deleted=_parse_number(deleted)))
    return stats


def _parse_number(value: bytes) -> int | None:
    return None if value == b"-" else int(value)


def read_diff(store: SnapshotStore, old: str, new: str, paths: Sequence[str] = ()) -> str:
    """Return the differences between two commits as a unified diff."""
    names = [os.fsencode(path) for path in paths]
    output = store.git.run("--literal-pathspecs", "diff", *DIFF_OPTIONS, "--no-renames", old, new, "--", *names)
    return output.decode("utf-8", "replace")


def read_restore_diff(plan: RestorePlan) -> str:
    """Return what a restore would change on disk as a unified diff, with the conflicts as if they were restored."""
    store = find_snapshot_store(plan.folder)
    if store is None:
        raise SnapshotError(f"the folder {plan.folder} has no snapshots")
    on_disk: dict[bytes, FileVersion] = {}
    targets: dict[bytes, FileVersion] = {}
    left_out: list[str] = []
    for item in (*plan.changes, *plan.conflicts):
        path = os.fsencode(item.path)
        current = None if item.current is None else _store_file(store, path)
        if item.current is not None and current is None:
            left_out.append(f"{item.path}: too large to show, or not a file\n")
            continue
        if current is not None:
            on_disk[path] = current
        if item.target is not None:
            targets[path] = item.target
    return read_diff(store, _write_tree(store, on_disk), _write_tree(store, targets)) + "".join(left_out)


def _store_file(store: SnapshotStore, path: bytes) -> FileVersion | None:
    """Put a file on disk into the store for git to compare; `None` for what a diff cannot show."""
    version, full = read_version(store.folder, path), os.path.join(os.fsencode(store.folder), path)
    if version is None or version == OTHER:
        return None
    try:
        if version.mode == "120000":
            content = os.readlink(full)
        else:
            with open_regular_file(os.fsdecode(full)) as file:
                content = file.read(MAX_DIFF_BYTES + 1)
    except OSError:
        return None
    if len(content) > MAX_DIFF_BYTES:
        return None
    blob = store.git.run("hash-object", "-w", "--stdin", input=content).decode().strip()
    return FileVersion(version.mode, blob)


def read_log(store: SnapshotStore, path: str, session: str | None = None) -> list[CommitInfo]:
    """Return the snapshots that changed a path, newest first; of all sessions, or of one."""
    refs = store.list_refs("refs/sessions" if session is None else get_session_refs(session))
    if not refs:
        return []
    return list(store.read_commits("--date-order", *refs, "--", b":(literal)" + os.fsencode(path)))


def blame(store: SnapshotStore, path: str, session: str | None = None) -> list[BlamedLine]:
    """Return every line of the file on disk with the turn that wrote it. Raises `SnapshotError`.

    With `session`, only snapshots of that session count. Lines that no snapshot has yet were written by a person.
    """
    full = os.path.join(store.folder, path)
    tips = store.list_tips(None if session is None else get_session_refs(session))
    if not os.path.isfile(full) or os.path.islink(full):
        raise SnapshotError(f"{path} is not a regular file")
    start = _choose_start(store, tips, path)
    if start is None:
        raise SnapshotError(f"no snapshot has the file {path}")
    on_disk = _commit_file(store, start, path)
    output = store.git.run("--literal-pathspecs", "blame", "--porcelain", on_disk, "--", os.fsencode(path))
    lines: list[tuple[int, str, str]] = []
    commit, number = "", 0
    for line in output.split(b"\n"):
        header = _BLAME_HEADER.match(line)
        if line.startswith(b"\t"):
            lines.append((number, commit, line[1:].decode("utf-8", "replace")))
        elif header is not None:
            commit, number = header[1].decode(), int(header[2])
    commits = sorted({commit for _, commit, _ in lines if commit != on_disk})
    infos = {info.commit: info for info in store.read_commits("--no-walk=unsorted", *commits)} if commits else {}
    return [_build_line(number, text, infos.get(commit)) for number, commit, text in lines]


def _choose_start(store: SnapshotStore, tips: Sequence[str], path: str) -> str | None:
    """Return the newest snapshot with the file as it is on disk, or else the newest one that has the file."""
    on_disk, newest = read_version(store.folder, os.fsencode(path)), None
    for tip in tips[:MAX_TIPS]:
        version = store.find_version(tip, os.fsencode(path))
        if version is not None and version == on_disk:
            return tip
        newest = tip if newest is None and version is not None else newest
    return newest


def _commit_file(store: SnapshotStore, parent: str, path: str) -> str:
    """Return a commit with the file as it is on disk. The commit has no ref, so git removes it later."""
    full = os.path.join(store.folder, path)
    blob = store.git.run("hash-object", "-w", "--no-filters", "--", os.fsencode(full)).decode().strip()
    tree = _write_tree(store, {os.fsencode(path): FileVersion("100644", blob)}, start=parent)
    return store.commit(tree, [parent], author="person", entry=None, session="")


def _write_tree(store: SnapshotStore, files: Mapping[bytes, FileVersion], start: str | None = None) -> str:
    """Write a tree with the files of `start` and these files, and return its id."""
    index = os.path.join(store.path, f"index.{os.getpid()}.{token_hex(4)}")
    try:
        store.git.run("read-tree", "--empty" if start is None else start, index=index)
        lines = [b"%s %s\t%s\0" % (file.mode.encode(), file.blob.encode(), path) for path, file in files.items()]
        store.git.run("update-index", "-z", "--index-info", input=b"".join(lines), index=index)
        return store.git.run("write-tree", index=index).decode().strip()
    finally:
        discard(index)


def _build_line(number: int, text: str, info: CommitInfo | None) -> BlamedLine:
    if info is None:
        return BlamedLine(number=number, text=text, author="person")
    is_agent = info.author == "agent"
    return BlamedLine(
        number=number,
        text=text,
        author="agent" if is_agent else "person",
        commit=info.commit,
        session=info.session,
        entry=info.entry if is_agent else None,
        prompt=info.prompt if is_agent else "",
    )
