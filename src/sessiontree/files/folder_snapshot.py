"""Take a snapshot of a folder: find what changed, read it, and store it as a tree of the snapshot store.

git lists the paths that differ from the index of the store. This module decides what belongs to a snapshot, and checks
that no file changed while it was read. All work is done on a copy of the index, which replaces the index at the end. So
a snapshot that fails, or is killed, does not exist.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from sessiontree.config import FileSettings
from sessiontree.errors import StoreError
from sessiontree.files.git_command import GitCommand, SnapshotError, SnapshotsUnavailable, join_records, split_records
from sessiontree.files.ignore_rules import build_exclude_text, find_project, read_user_rules
from sessiontree.files.snapshot_store import FileChange, FileVersion, LeftOut, SnapshotStore
from sessiontree.home import get_home, is_below
from sessiontree.store.file_operations import discard, open_private, write_private

MAX_ATTEMPTS = 3
"""How often a file is read again that changes while it is read."""
MAX_RACES = 20
"""How often a snapshot starts again because another process took one or deleted a folder."""
VANISHED = re.compile(r"could not open directory '.*': No such file or directory")
MIN_CHUNK, MAX_CHUNKS = 500, 20
"""Files are stored in chunks, with a progress report after each one."""
MIN_PACKED = 250
"""At least this many files are stored together as one pack."""
CLOCK_TICK = 10_000_000
"""The times of files may be this much behind the clock. In nanoseconds."""
RULES_NAME = b".gitignore"
TEMPORARY_PREFIX = ".sessiontree-restore-"
"""How the names of temporary files of a restore begin."""
SESSION_SUFFIX, LOCK_SUFFIX = b".jsonl", b".lock"

NESTED = "a nested repository"
CHANGING = "it keeps changing"
NOT_A_FILE = "not a regular file"
RESERVED = "git reserves this name"
SESSION_DATA = "a session of sessiontree"
TEMPORARY = "a temporary file of a restore"

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of files that are stored and the total."""
Identity: TypeAlias = tuple[int, int, int, int, int, int]


class FolderState(Struct, frozen=True):
    """The files of a folder as a tree of the store, and the files that are left out."""

    tree: str
    left_out: tuple[LeftOut, ...] = ()


class _Raced(Exception):
    """Another process took a snapshot after the changes were listed, or deleted a folder while git listed them."""


class _Listing(NamedTuple):
    """What differs from the index."""

    added: list[bytes]
    """Files that are not in the index, and nested repositories with a slash at the end."""
    changed: list[bytes]
    """Files of the index that were changed or deleted."""

    @property
    def is_empty(self) -> bool:
        return not self.added and not self.changed


class FolderSnapshots:
    """Takes snapshots of one folder. Create one for each agent; several processes may share the store."""

    def __init__(self, store: SnapshotStore, settings: FileSettings, *, session_file: str | None = None) -> None:
        """`session_file` is the file of the session, which is never part of a snapshot."""
        self.store = store
        self.folder = store.folder
        self._settings = settings
        self._folder = os.fsencode(store.folder)
        self._index = store.index_path
        self._session_file = None if session_file is None else os.fsencode(os.path.realpath(session_file))
        self._project = find_project(store.source)
        self._user_rules = read_user_rules()
        self._home = self._find_home_inside()
        self._known: tuple[Identity, str] | None = None
        """The identity of the index, and its tree."""
        self._listed: Identity | None = None
        """The index that the changes were listed against."""
        self._seen_rules: object = None
        """The state of the ignore rules when tracked files were last looked up."""
        self._must_clean = True
        """Whether a file of the index may be ignored now."""

    def take(self, *, clean: bool = False, progress: Progress | None = None) -> FolderState:
        """Return the files as they are now. Raises `SnapshotError`, with nothing stored, if anything goes wrong.

        With `clean`, files that are ignored now leave the snapshot. A snapshot after a tool call never does that: going
        back would take the change of a rule for a deletion.
        """
        try:
            for _ in range(MAX_RACES):
                with suppress(_Raced):
                    return self._take(clean=clean, progress=progress)
        except (OSError, StoreError) as error:
            raise SnapshotError(f"no snapshot of {self.folder}: {error}") from error
        raise SnapshotError(f"no snapshot of {self.folder}: other processes keep changing it")

    def _take(self, *, clean: bool, progress: Progress | None) -> FolderState:
        rules_changed = self._write_rules()
        self._listed = _identify(self._index)
        found = self._list_changes()
        if len(found.added) > self._settings.max_files:
            raise SnapshotsUnavailable(
                f"no snapshots of {self.folder}: it has more than {self._settings.max_files} files that are not "
                "ignored (`files.max_files` in config.toml)"
            )
        if any(path.rpartition(b"/")[2] == RULES_NAME for path in (*found.added, *found.changed)) or rules_changed:
            self._seen_rules, self._must_clean = None, True
        tracked = self._list_tracked_ignored()
        removed: list[bytes] = []
        if clean and self._must_clean and os.path.exists(self._index):
            removed = self._list_ignored(tracked)
            self._must_clean = False
        if found.is_empty and not tracked and not removed:
            return FolderState(self._read_known_tree())
        selection = _Selection(self, found.changed)
        selection.add_all((*found.added, *found.changed, *tracked))
        selection.removed.update(removed)
        selection.leave_out_special_files()
        if not selection.wanted and not selection.removed:
            return FolderState(self._read_known_tree(), selection.build_left_out())
        tree = self._store_changes(selection, progress)
        return FolderState(tree, selection.build_left_out())

    def add_older_files(self, before: str, after: str, since: int) -> tuple[str, list[FileChange]]:
        """Return the tree `before` with the files that were on disk by then and are only in the tree `after`.

        They were ignored or in a nested repository, and a call made them visible. `since` is the time when the snapshot
        before began, in nanoseconds. Files in a folder that was renamed are older too, but are gone from another path.
        The changes from that tree to `after` come with it.
        """
        changes = self.store.diff(before, after)
        gone = {(change.old, os.path.basename(change.path)) for change in changes if change.new is None}
        older: dict[bytes, FileVersion | None] = {}
        for change in changes:
            if change.old is None and (change.new, os.path.basename(change.path)) not in gone:
                status = _lstat(os.path.join(self._folder, change.path))
                if status is not None and status.st_ctime_ns < since - CLOCK_TICK:
                    older[change.path] = change.new
        return self.store.update_tree(before, older), [change for change in changes if change.path not in older]

    # What changed

    def _list_changes(self) -> _Listing:
        try:
            output = self.store.git.run(
                *("ls-files", "-z", "-t", "-o", "-m", "-d", "--exclude-standard", "--"),
                *self._build_pathspecs(),
                index=self._index,
                with_work_tree=True,
            )
        except SnapshotError as error:
            if VANISHED.search(str(error)):
                raise _Raced from error
            raise
        added: list[bytes] = []
        changed: dict[bytes, None] = {}
        for record in split_records(output):
            if record.startswith(b"? "):
                added.append(record[2:])
            else:
                changed[record[2:]] = None
        return _Listing(added, list(changed))

    def _build_pathspecs(self) -> Iterable[bytes]:
        return () if self._home is None else (b".", b":(exclude,literal)" + self._home)

    def _find_home_inside(self) -> bytes | None:
        """Return the path of the home of sessiontree inside the folder; `None` if it is elsewhere."""
        home = os.path.realpath(get_home())
        return os.fsencode(os.path.relpath(home, self.folder)) if is_below(home, self.folder) else None

    def _write_rules(self) -> bool:
        """Write the exclude file of the store. Return whether its rules changed."""
        text = build_exclude_text(self.store.source, self._project, self._user_rules).encode("utf-8", "surrogateescape")
        path = os.path.join(self.store.path, "info", "exclude")
        try:
            with open(path, "rb") as file:
                if file.read() == text:
                    return False
        except FileNotFoundError:
            pass
        write_private(path, text)
        return True

    def _list_tracked_ignored(self) -> list[bytes]:
        """Return the files that the project tracks although they are ignored, if they may have changed."""
        project = self._project
        if project is None:
            return []
        seen = _identify(project.index_file)
        if seen is None or seen == self._seen_rules:
            return []
        # A private folder is not in the project: the files are listed where it was copied from.
        prefix = os.fsencode(os.path.relpath(self.store.source, project.root))
        prefix = b"" if prefix == b"." else prefix + b"/"
        git = GitCommand(self.store.path, project.root)
        try:
            output = git.run(
                *("ls-files", "-z", "-c", "-i", "--exclude-standard", "--", b":(literal)" + (prefix or b".")),
                index=project.index_file,
                with_work_tree=True,
            )
        except SnapshotError:  # an index of another format; its tracked files count as ignored
            output = b""
        self._seen_rules = seen
        paths = [path.removeprefix(prefix) for path in dict.fromkeys(split_records(output))]
        return [path for path in paths if _lstat(os.path.join(self._folder, path)) is not None]

    def _list_ignored(self, tracked: Iterable[bytes]) -> list[bytes]:
        """Return the files of the index that are ignored now."""
        kept = {*tracked, *self._list_tracked_again()}
        output = self.store.git.run(
            *("ls-files", "-z", "-c", "-i", "--exclude-standard"), index=self._index, with_work_tree=True
        )
        return [path for path in split_records(output) if path not in kept]

    def _list_tracked_again(self) -> list[bytes]:
        self._seen_rules = None
        return self._list_tracked_ignored()

    # What belongs to a snapshot

    def find_reason(self, path: bytes, status: os.stat_result) -> str | None:
        """Return why a file is left out; `None` if it belongs to the snapshot."""
        name = path.rpartition(b"/")[2]
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
            return NOT_A_FILE
        if any(part.lower() == b".git" for part in path.split(b"/")):
            return RESERVED
        if name == b".gitmodules" and stat.S_ISLNK(status.st_mode):
            return RESERVED
        if name.startswith(TEMPORARY_PREFIX.encode()):
            return TEMPORARY
        if self._is_session_data(path):
            return SESSION_DATA
        if status.st_size > self._settings.max_file_bytes:
            return f"larger than {_format_size(self._settings.max_file_bytes)}"
        return None

    def _is_session_data(self, path: bytes) -> bool:
        full = os.path.join(self._folder, path)
        own = self._session_file
        if own is not None and (full == own or full.startswith(own + b".")):
            return True
        if self._home is not None and (path == self._home or path.startswith(self._home + b"/")):
            return True
        if path.endswith(SESSION_SUFFIX + LOCK_SUFFIX):
            return True
        return path.endswith(SESSION_SUFFIX) and _lstat(full + LOCK_SUFFIX) is not None

    def list_ignored(self, paths: Iterable[bytes]) -> set[bytes]:
        """Return the paths among these that are ignored."""
        output = self.store.git.run(
            *("check-ignore", "-z", "--no-index", "--stdin"),
            input=join_records(paths),
            index=self._index,
            ok_codes=(0, 1),
            with_work_tree=True,
        )
        return set(split_records(output))

    def is_nested(self, folder: bytes) -> bool:
        """Return whether a folder below this one is a separate repository."""
        return _lstat(os.path.join(self._folder, folder, b".git")) is not None

    # Storing

    def _store_changes(self, selection: _Selection, progress: Progress | None) -> str:
        work = f"{self._index}.{os.getpid()}.{token_hex(4)}"
        try:
            if copy_index(self._index, work) != self._listed:
                raise _Raced
            tree = self._update_index(work, selection, progress)
            os.replace(work, self._index)
            self._remember(tree)
            return tree
        finally:
            discard(work)
            discard(f"{work}.lock")

    def _update_index(self, work: str, selection: _Selection, progress: Progress | None) -> str:
        for attempt in range(MAX_ATTEMPTS + 1):
            if selection.removed:
                self._run_index(work, "--force-remove", "--stdin", paths=sorted(selection.removed))
            paths = sorted(selection.wanted)
            size = max(MIN_CHUNK, -(-len(paths) // MAX_CHUNKS))
            for start in range(0, len(paths), size):
                chunk = paths[start : start + size]
                if not self._add_chunk(work, chunk, selection):
                    break
                if progress is not None and attempt == 0:
                    progress(min(start + size, len(paths)), len(paths))
            changed = selection.find_changed()
            if not changed:
                break
            selection.retry(changed, give_up=attempt >= MAX_ATTEMPTS - 1)
        return self.store.git.run("write-tree", index=work).decode().strip()

    def _add_chunk(self, work: str, paths: Sequence[bytes], selection: _Selection) -> bool:
        """Store files. Return whether it worked; if not, files changed at the same time and must be read again."""
        try:
            self._run_index(work, "--add", "--replace", "--stdin", paths=paths)
            return True
        except SnapshotError:
            discard(f"{work}.lock")
            if selection.find_changed():  # a file was deleted or truncated while git read it
                return False
            raise

    def _run_index(self, work: str, *arguments: str, paths: Sequence[bytes]) -> None:
        # Writing thousands of objects to separate files takes several times as long as one pack.
        pack = ("-c", "core.bigFileThreshold=1") if len(paths) >= MIN_PACKED else ()
        self.store.git.run(
            *pack, "update-index", "-z", *arguments, input=join_records(paths), index=work, with_work_tree=True
        )

    def _read_known_tree(self) -> str:
        """Return the tree of the index, which has no changes."""
        identity = _identify(self._index)
        if self._known is not None and identity == self._known[0]:
            return self._known[1]
        return self._store_changes(_Selection(self, ()), None)

    def _remember(self, tree: str) -> None:
        identity = _identify(self._index)
        self._known = None if identity is None else (identity, tree)


class _Selection:
    """The files of one snapshot that have to be stored, removed or left out."""

    def __init__(self, snapshots: FolderSnapshots, indexed: Iterable[bytes]) -> None:
        self._snapshots = snapshots
        self._folder = os.fsencode(snapshots.folder)
        self._indexed = set(indexed)
        self.wanted: dict[bytes, Identity] = {}
        """The files to store, as they were before they are read."""
        self.removed: set[bytes] = set()
        self._left_out: dict[bytes, str] = {}
        self._parents: dict[bytes, str] = {b"": ""}
        """The problem of each parent folder; empty if it has none."""

    def add_all(self, paths: Iterable[bytes]) -> None:
        for path in paths:
            self._add(path)

    def _add(self, path: bytes) -> None:
        if path.endswith(b"/"):
            self._leave_out(path, NESTED)
            return
        problem = self._check_parents(path)
        status = None if problem else _lstat(os.path.join(self._folder, path))
        if problem == NESTED:
            self._leave_out(path, NESTED)
        elif status is None or stat.S_ISDIR(status.st_mode):  # deleted, or replaced by a folder
            self.wanted.pop(path, None)
            self._remove(path)
        elif reason := self._snapshots.find_reason(path, status):
            self._leave_out(path, reason)
        else:
            self.wanted[path] = _get_identity(status)

    def leave_out_special_files(self) -> None:
        """Name the pipes, sockets and devices in the folders of these files. git does not list them."""
        found: set[bytes] = set()
        for parent in {b"", *(path.rpartition(b"/")[0] for path in (*self.wanted, *self.removed))}:
            with suppress(OSError), os.scandir(os.path.join(self._folder, parent)) as entries:
                for entry in entries:
                    is_usual = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
                    if not is_usual and not entry.is_symlink():
                        found.add(os.path.join(parent, entry.name))
        if found:
            for path in found - self._snapshots.list_ignored(found):
                self._leave_out(path, NOT_A_FILE)

    def _check_parents(self, path: bytes) -> str:
        """Return why a path cannot be read through its parent folders; empty if it can."""
        parent = path.rpartition(b"/")[0]
        known = self._parents.get(parent)
        if known is None:
            known = self._check_parents(parent)
            if not known:
                status = _lstat(os.path.join(self._folder, parent))
                if status is None or not stat.S_ISDIR(status.st_mode):
                    known = "gone"
                elif self._snapshots.is_nested(parent):
                    known = NESTED
            self._parents[parent] = known
        return known

    def _leave_out(self, path: bytes, reason: str) -> None:
        self.wanted.pop(path, None)
        self._left_out[path] = reason
        self._remove(path)

    def _remove(self, path: bytes) -> None:
        if path in self._indexed:
            self.removed.add(path)

    def find_changed(self) -> list[bytes]:
        """Return the wanted files that changed since they were looked at."""
        return [path for path, before in self.wanted.items() if _identify(os.path.join(self._folder, path)) != before]

    def retry(self, paths: Iterable[bytes], *, give_up: bool) -> None:
        """Look at files again that changed while they were read. With `give_up`, leave them out."""
        self._indexed.update(self.wanted)
        for path in paths:
            if give_up:
                self._leave_out(path, CHANGING)
            else:
                del self.wanted[path]
                self._add(path)

    def build_left_out(self) -> tuple[LeftOut, ...]:
        return tuple(LeftOut(os.fsdecode(path), reason) for path, reason in sorted(self._left_out.items()))


def _lstat(path: bytes | str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _get_identity(status: os.stat_result) -> Identity:
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _identify(path: bytes | str) -> Identity | None:
    status = _lstat(path)
    return None if status is None else _get_identity(status)


def copy_index(source: str, target: str) -> Identity | None:
    """Copy an index with its time, and return its identity; `None` before the first snapshot.

    git compares the times of the index and of files to find edits in the same clock tick.
    """
    try:
        with open(source, "rb") as file, open(open_private(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as copy:
            status = os.fstat(file.fileno())
            shutil.copyfileobj(file, copy, 1 << 20)
    except FileNotFoundError:
        return None
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    return _get_identity(status)


def _format_size(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 and not size % (1 << 20) else f"{size} bytes"
