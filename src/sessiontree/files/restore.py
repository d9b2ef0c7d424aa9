"""Carry out a restore plan: replace each file atomically, and finish or revert a restore that was killed.

The state before is saved as a snapshot, so every restore can be undone. New contents are written to temporary files
first; only then are files renamed and deleted. A journal in the store lists all paths until the restore is recorded.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Any, Literal

from msgspec import Struct, structs

from sessiontree.core.entries import Custom, EntryId
from sessiontree.core.number_text import pluralize
from sessiontree.errors import SessionTreeError, StoreError
from sessiontree.files.file_records import RecordKind, build_record
from sessiontree.files.folder_snapshot import TEMPORARY_PREFIX, FolderSnapshots, FolderState
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.restore_plan import (
    CHANGED_ON_DISK,
    NO_FOLDER,
    PathConflict,
    PathRestore,
    RestorePlan,
    has_real_parents,
    read_version,
    read_version_for,
)
from sessiontree.files.running_calls import CALLS, has_running_calls, is_locked
from sessiontree.files.snapshot_store import BlobReader, FileVersion, SnapshotStore, get_stores_folder
from sessiontree.store.file_operations import close_quietly, discard, write_private

JOURNALS = "restores"
HOW_TO_RECOVER = "run `sessiontree files recover` in this folder with --finish or --revert"
RecoveryChoice = Literal["finish", "revert"]
WriteRecord = Callable[[Custom, "EntryId | None"], object]
"""Appends the annotation of a restore at a place of the session."""


class RestoreOutcome(Struct, frozen=True, kw_only=True):
    """What a restore did."""

    written: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    conflicts: tuple[PathConflict, ...] = ()
    """Paths that were kept: the conflicts of the plan, and paths that changed after the preview."""
    before: str | None = None
    """The snapshot of the state before; `None` if there was nothing to do."""
    after: str | None = None
    missing: str | None = None
    """Why the files are not known; then nothing was restored."""

    @property
    def summary(self) -> str:
        """One line: what the restore did."""
        if self.missing is not None:
            return f"files were not restored: {self.missing}"
        if self.before is None and not self.conflicts:
            return "no files to restore"
        counts = {"restored": len(self.written), "deleted": len(self.deleted)}
        parts = [f"{verb} {pluralize(count, 'file')}" for verb, count in counts.items() if count]
        if self.conflicts:
            parts.append(f"kept {pluralize(len(self.conflicts), 'conflict')}")
        return ", ".join(parts)


class NothingRestored(SnapshotError):
    """A restore failed, and all files are as they were before."""


class InterruptedRestore(Struct, frozen=True, kw_only=True):
    """A restore that was killed before it was complete."""

    journal: str
    """The path of its journal."""
    folder: str
    """The folder whose files it changed. Private folders share the store of their source."""
    session: str
    branch: str
    before: str
    """The snapshot of the state before it."""
    start: EntryId | None
    place: EntryId | None
    changes: tuple[PathRestore, ...]
    token: str
    leaf: EntryId | None = None
    kind: RecordKind = "restore"
    file: str | None = None
    """The file of the session; `None` if it is not in a file."""
    merged: str | None = None
    """The snapshot of another folder that the contents come from."""


def restore(
    plan: RestorePlan,
    snapshots: FolderSnapshots,
    *,
    session: str,
    branch: str,
    parent: str | None,
    write_record: WriteRecord,
    start_parent: str | None = None,
    kind: RecordKind = "restore",
    file: str | None = None,
    merged: str | None = None,
) -> RestoreOutcome:
    """Carry out a plan and append its annotation.

    `file` is the file of the session, if it has one: another session finds it there after a kill. `merged` is the
    snapshot of another folder whose changes the plan makes: `blame` finds there who wrote a line.
    `kind` is `call` if the change belongs to the agent and is reverted by going back, as that of a tool call is.
    `parent` is the commit of the place and `start_parent` that of the start, if there are any. A path that changed
    after the plan was made is kept and reported. Raises `SnapshotError` with no file changed if the state before cannot
    be saved or a file cannot be prepared.
    """
    if plan.missing is not None:
        raise SnapshotError(f"files cannot be restored: {plan.missing}")
    if not plan.changes:
        return RestoreOutcome(conflicts=plan.conflicts)
    try:
        return _restore(plan, snapshots, session, branch, parent, write_record, start_parent, kind, file, merged)
    except (OSError, StoreError) as error:
        raise SnapshotError(f"files were not restored: {error}") from error


def _restore(
    plan: RestorePlan,
    snapshots: FolderSnapshots,
    session: str,
    branch: str,
    parent: str | None,
    write_record: WriteRecord,
    start_parent: str | None,
    kind: RecordKind,
    file: str | None,
    merged: str | None,
) -> RestoreOutcome:
    store = snapshots.store
    with _hold_lock(store):
        if find_interrupted(store):
            raise SnapshotError(f"an earlier restore was interrupted; {HOW_TO_RECOVER} first")
        if has_running_calls(store):
            raise SnapshotError(f"a tool call is running in {store.folder}; retry when it is done")
        state = _include_current(snapshots, snapshots.take(), plan.changes)
        before = store.commit(
            state.tree,
            [] if start_parent is None else [start_parent],
            author="person",
            entry=plan.start,
            session=session,
            prompt="before a restore",
            left_out=state.left_out,
        )
        store.keep(session, before)
        interrupted = InterruptedRestore(
            journal=os.path.join(store.path, JOURNALS, f"{token_hex(8)}.json"),
            folder=store.folder,
            session=session,
            branch=branch,
            before=before,
            start=plan.start,
            place=plan.place,
            changes=plan.changes,
            token=token_hex(6),
            leaf=plan.leaf,
            kind=kind,
            file=file,
            merged=merged,
        )
        with _write_journal(interrupted):
            outcome = _apply_or_revert(store, interrupted)
            try:
                after = _record(store, interrupted, state, parent, write_record, undoes=plan.undoes)
            except (OSError, SessionTreeError) as error:
                text = f"files were restored, but this could not be recorded: {error}; {HOW_TO_RECOVER}"
                raise SnapshotError(text) from error
        return structs.replace(outcome, before=before, after=after, conflicts=(*plan.conflicts, *outcome.conflicts))


def _include_current(snapshots: FolderSnapshots, state: FolderState, changes: Sequence[PathRestore]) -> FolderState:
    """Add the files that the restore replaces and that a snapshot leaves out. Undo needs them."""
    store = snapshots.store
    files = store.list_files(state.tree)
    missing: dict[bytes, FileVersion | None] = {}
    for change in changes:
        path = os.fsencode(change.path)
        if change.current is None or files.get(path) == change.current:
            continue
        if read_version(store.folder, path) != change.current:
            continue  # it changed since the plan was made, which is a conflict later
        if store.save_file(path, is_link=change.current.mode == "120000") == change.current.blob:
            missing[path] = change.current
    left_out = tuple(item for item in state.left_out if os.fsencode(item.path) not in missing)
    return FolderState(store.update_tree(state.tree, missing), left_out)


def _apply_or_revert(store: SnapshotStore, interrupted: InterruptedRestore) -> RestoreOutcome:
    """Write all files. If that fails half way, revert it; if that fails too, the journal stays."""
    try:
        return _apply(store, interrupted, interrupted.changes)
    except OSError as error:
        try:
            _complete(store, interrupted, "revert")
        except (OSError, SnapshotError) as second:
            text = f"restoring files stopped half way: {error}; reverting it failed: {second}; {HOW_TO_RECOVER}"
            raise SnapshotError(text) from error
        raise NothingRestored(f"no file was restored: {error}") from error


def _record(
    store: SnapshotStore,
    done: InterruptedRestore,
    before: FolderState,
    parent: str | None,
    write_record: WriteRecord,
    undoes: EntryId | None = None,
) -> str:
    """Commit the state before with the restored files, without changes by others. Return the commit."""
    restored: dict[bytes, FileVersion | None] = {}
    deleted = {os.fsencode(change.path) for change in done.changes if change.target is None}
    for change in done.changes:
        path = os.fsencode(change.path)
        if read_version_for(store.folder, path, change.target, deleted) == change.target:
            restored[path] = change.target
    tree = store.update_tree(before.tree, restored)
    after = store.commit(
        tree,
        list(dict.fromkeys(filter(None, (parent or done.before, done.merged)))),  # git refuses a parent twice
        author="person",
        entry=done.place,
        session=done.session,
        prompt="after a restore",
        left_out=before.left_out,
    )
    store.keep(done.session, after)
    record = build_record(
        done.kind,
        commit=after,
        before=done.before,
        folder=store.key,
        is_private=store.is_private,
        branch=done.branch,
        changes=store.diff(before.tree, tree),
        left_out=before.left_out,
        moved_from=done.start,
        leaf=done.leaf,
        undoes=undoes,
    )
    write_record(record, done.place)
    return after


# Interrupted restores


def find_interrupted(store: SnapshotStore) -> list[InterruptedRestore]:
    """Return the restores of this folder that were killed half way. Running ones are not included."""
    folder = os.path.join(store.path, JOURNALS)
    found: list[InterruptedRestore] = []
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if name.endswith(".json") and not is_locked(path):
                interrupted = _read_journal(path)
                if interrupted is not None and interrupted.folder == store.folder:
                    found.append(interrupted)
    return found


def has_journals() -> bool:
    """Return whether any folder has a restore or a call that runs or was killed. Starts no process."""
    stores = get_stores_folder()
    with suppress(FileNotFoundError, NotADirectoryError):
        for key in os.listdir(stores):
            for name in (JOURNALS, CALLS):
                with suppress(FileNotFoundError, NotADirectoryError):
                    if os.listdir(os.path.join(stores, key, name)):
                        return True
    return False


def recover(
    snapshots: FolderSnapshots,
    interrupted: InterruptedRestore,
    choice: RecoveryChoice,
    *,
    parent: str | None = None,
    write_record: WriteRecord | None = None,
) -> RestoreOutcome:
    """Finish an interrupted restore, or revert what it did. Paths that changed since are kept."""
    store = snapshots.store
    try:
        with _hold_lock(store):
            outcome = _complete(store, interrupted, choice)
            after = None
            if choice == "finish" and write_record is not None:
                left_out = next(store.read_commits("-1", interrupted.before)).left_out
                before = FolderState(store.get_tree(interrupted.before), left_out)
                after = _record(store, interrupted, before, parent, write_record)
            os.unlink(interrupted.journal)
            return structs.replace(outcome, before=interrupted.before, after=after)
    except (OSError, StoreError) as error:
        raise SnapshotError(f"the restore is still interrupted: {error}; try again") from error


def _complete(store: SnapshotStore, interrupted: InterruptedRestore, choice: RecoveryChoice) -> RestoreOutcome:
    """Write the paths that are not as the restore leaves them, or not as it found them."""
    _discard_temporaries(store.folder, interrupted)
    wanted: list[PathRestore] = []
    conflicts: list[PathConflict] = []
    moves = [
        (change.path, change.current, change.target)
        if choice == "finish"
        else (change.path, change.target, change.current)
        for change in interrupted.changes
    ]
    deleted = {os.fsencode(path) for path, _, end in moves if end is None}
    for path, start, end in moves:
        current = read_version_for(store.folder, os.fsencode(path), end, deleted)
        if current == start and current != end:
            wanted.append(PathRestore(path=path, current=start, target=end))
        elif current != end:
            conflicts.append(_build_conflict(path, CHANGED_ON_DISK, current, end))
    outcome = _apply(store, interrupted, wanted)
    return structs.replace(outcome, conflicts=(*conflicts, *outcome.conflicts))


@contextmanager
def _hold_lock(store: SnapshotStore) -> Generator[None]:
    """Let one process at a time restore files of a folder."""
    fd = os.open(os.path.join(store.path, "restore.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another process is restoring files in {store.folder}; retry when it is done"
            raise SnapshotError(text) from None
        yield
    finally:
        close_quietly(fd)


@contextmanager
def _write_journal(interrupted: InterruptedRestore) -> Generator[None]:
    """Write the journal, hold it while the restore runs, and remove it at the end unless the process is killed."""
    wire = {
        **{
            name: getattr(interrupted, name)
            for name in (
                "folder",
                "session",
                "branch",
                "before",
                "start",
                "place",
                "token",
                "leaf",
                "kind",
                "file",
                "merged",
            )
        },
        "changes": [[change.path, change.current, change.target] for change in interrupted.changes],
    }
    os.makedirs(os.path.dirname(interrupted.journal), 0o700, exist_ok=True)
    write_private(interrupted.journal, json.dumps(wire).encode())
    fd = os.open(interrupted.journal, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
        os.unlink(interrupted.journal)
    except NothingRestored:
        os.unlink(interrupted.journal)
        raise
    finally:
        close_quietly(fd)


def _read_journal(path: str) -> InterruptedRestore | None:
    try:
        with open(path, "rb") as file:
            wire: Any = json.load(file)
        changes = tuple(
            PathRestore(path=name, current=_parse_version(current), target=_parse_version(target))
            for name, current, target in wire.pop("changes")
        )
        known = {name: wire[name] for name in InterruptedRestore.__struct_fields__ if name in wire}  # a later version
        return InterruptedRestore(journal=path, changes=changes, **known)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _parse_version(value: Any) -> FileVersion | None:
    return None if value is None else FileVersion(*value)


# Files


def _apply(store: SnapshotStore, restore: InterruptedRestore, changes: Sequence[PathRestore]) -> RestoreOutcome:
    """Prepare all new contents, then delete and rename. Paths that changed in between are kept."""
    folder = os.fsencode(store.folder)
    staged: dict[str, bytes] = {}
    written: list[str] = []
    deleted: list[str] = []
    conflicts: list[PathConflict] = []
    try:
        with store.open_blobs() as blobs:
            for number, change in enumerate(changes):
                if change.target is not None:
                    name = os.fsencode(f"{TEMPORARY_PREFIX}{restore.token}-{number}")
                    temporary = os.path.join(_find_existing_parent(folder, os.fsencode(change.path)), name)
                    staged[change.path] = temporary
                    _write_temporary(temporary, change.target, blobs)
    except (OSError, SnapshotError) as error:
        for temporary in staged.values():
            _discard_bytes(temporary)
        raise NothingRestored(f"no file was restored: {error}") from error
    try:
        # Deletions first: a file may become a folder, and deeper paths come first for the opposite.
        for change in sorted(changes, key=lambda change: (change.target is not None, -change.path.count("/"))):
            path = os.fsencode(change.path)
            current = read_version(store.folder, path)
            if current != change.current and not (change.current is None and _is_empty_folder(folder, path)):
                conflicts.append(_build_conflict(change.path, CHANGED_ON_DISK, current, change.target))
            elif change.target is None:
                os.unlink(os.path.join(folder, path))
                _remove_empty_parents(folder, path)
                deleted.append(change.path)
            elif not _make_parents(folder, path):
                conflicts.append(_build_conflict(change.path, NO_FOLDER, current, change.target))
            else:
                _replace(os.path.join(folder, path), staged.pop(change.path), change)
                written.append(change.path)
    finally:
        for temporary in staged.values():
            _discard_bytes(temporary)
    return RestoreOutcome(written=tuple(sorted(written)), deleted=tuple(sorted(deleted)), conflicts=tuple(conflicts))


def _build_conflict(path: str, reason: str, current: FileVersion | None, target: FileVersion | None) -> PathConflict:
    return PathConflict(path=path, reason=reason, current=current, target=target)


def _write_temporary(path: bytes, version: FileVersion, blobs: BlobReader) -> None:
    data = blobs.read(version.blob)
    if version.mode == "120000":
        os.symlink(data, path)
        return
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    with open(fd, "wb") as file:
        file.write(data)
        if version.mode == "100755":
            mode = os.fstat(fd).st_mode
            os.fchmod(fd, stat.S_IMODE(mode) | (mode & 0o444) >> 2)


def _replace(path: bytes, temporary: bytes, change: PathRestore) -> None:
    """Move the new file into place. The permissions of an existing file stay, except the executable bits."""
    assert change.target is not None
    if os.path.isdir(path) and not os.path.islink(path):
        os.rmdir(path)
    elif change.target.mode != "120000":
        with suppress(FileNotFoundError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                mode = stat.S_IMODE(status.st_mode) & ~0o111
                if change.target.mode == "100755":
                    mode |= (mode & 0o444) >> 2
                os.chmod(temporary, mode)
    os.replace(temporary, path)


def _make_parents(folder: bytes, path: bytes) -> bool:
    """Create the folders above a path. Return whether all of them are real folders now."""
    if not has_real_parents(os.fsdecode(folder), path):
        return False
    parts = path.split(b"/")[:-1]
    for depth in range(1, len(parts) + 1):
        parent = os.path.join(folder, *parts[:depth])
        with suppress(FileExistsError):
            os.mkdir(parent)
    return True


def _remove_empty_parents(folder: bytes, path: bytes) -> None:
    parent = os.path.dirname(os.path.join(folder, path))
    with suppress(OSError):  # a folder that is not empty stays
        while parent != folder:
            os.rmdir(parent)
            parent = os.path.dirname(parent)


def _is_empty_folder(folder: bytes, path: bytes) -> bool:
    full = os.path.join(folder, path)
    return os.path.isdir(full) and not os.path.islink(full) and not os.listdir(full)


def _discard_bytes(path: bytes) -> None:
    discard(os.fsdecode(path))


def _find_existing_parent(folder: bytes, path: bytes) -> bytes:
    """Return the deepest folder above a path that exists: a rename from there stays on one file system."""
    found = folder
    for name in path.split(b"/")[:-1]:
        below = os.path.join(found, name)
        if os.path.islink(below) or not os.path.isdir(below):
            break
        found = below
    return found


def _discard_temporaries(folder: str, interrupted: InterruptedRestore) -> None:
    """Remove the temporary files of a killed restore."""
    prefix = os.fsencode(f"{TEMPORARY_PREFIX}{interrupted.token}-")
    root = os.fsencode(folder)
    parents = {root}
    for change in interrupted.changes:
        found = _find_existing_parent(root, os.fsencode(change.path))
        while found not in parents:
            parents.add(found)
            found = os.path.dirname(found)
    for parent in parents:
        for name in os.listdir(parent):
            if name.startswith(prefix):
                _discard_bytes(os.path.join(parent, name))
