"""Private folders: a copy of the files at a snapshot for one branch. Agents there do not overwrite each other.

A private folder belongs to a session and a branch. Its snapshots go to the store of the folder that it was made from,
so the branches of a conversation can be compared and merged. Where an overlay can be mounted, the files are shared
with other private folders of the same snapshot until they are changed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from secrets import token_hex
from time import time
from typing import Any, Literal

from msgspec import Struct, structs

from sessiontree.config import FileSettings, load_config
from sessiontree.files.file_records import FilesLog
from sessiontree.files.folder_snapshot import FolderSnapshots, copy_index
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.snapshot_store import (
    SnapshotStore,
    check_object_id,
    forget_snapshots,
    hash_name,
    hold_file_lock,
)
from sessiontree.home import get_home
from sessiontree.regular_file import open_regular_file
from sessiontree.session import Branch
from sessiontree.store.file_operations import discard, make_private_directory, write_private

FOLDERS, FROZEN = "folders", "frozen"
"""The folder in the home with all private folders, and the one for checkouts that overlays share."""
MARKER, FILES = "private.json", "files"
FolderMethod = Literal["overlay", "reflink", "checkout"]
KEEP_SECONDS = 86_400.0
"""Unused checkouts are kept for this time: the next private folder may start from the same snapshot."""
METHODS: tuple[FolderMethod, ...] = ("overlay", "reflink", "checkout")
"""How a private folder can be made, fastest first. `reflink` is a checkout whose large files share their blocks."""
MIN_CLONED = 1 << 16
"""To write a smaller file is as fast as to clone it."""
CLONE_REQUEST = 0x40049409
"""The ioctl FICLONE of Linux."""
NO_CLONES = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS)
"""Errors of file systems that cannot clone files."""


class PrivateFolder(Struct, frozen=True, kw_only=True):
    """The folder of one branch."""

    path: str
    """The folder that tools work in."""
    source: str
    """The folder of the project that it was made from."""
    key: str
    """The name of the snapshot store of the source."""
    session: str
    branch: str
    commit: str
    """The snapshot that it started from."""
    tree: str
    method: FolderMethod

    @property
    def root(self) -> str:
        """The folder with everything that belongs to this private folder."""
        return os.path.dirname(os.path.dirname(self.path))

    def open_store(self) -> SnapshotStore:
        """Return the store of the source, which takes snapshots of this folder."""
        name = os.path.basename(self.root)
        return SnapshotStore(self.key, self.path, source=self.source, index_name=f"private-{name}.index")


def get_folders_root() -> str:
    return os.path.join(get_home(), FOLDERS)


def _get_root(session: str, branch: str) -> str:
    return os.path.join(get_folders_root(), hash_name(f"{session}\0{branch}"))


def find_private_folder(session: str, branch: str) -> PrivateFolder | None:
    """Return the private folder of a branch; `None` if it works in the shared folder."""
    return _read_marker(_get_root(session, branch))


def find_folder_of_path(path: str) -> PrivateFolder | None:
    """Return the private folder that a path is in; `None` if it is in none."""
    real, root = os.path.realpath(path), os.path.join(os.path.realpath(get_folders_root()), "")
    if not real.startswith(root):
        return None
    return _read_marker(os.path.join(root, real[len(root) :].split(os.sep)[0]))


def list_private_folders(session: str | None = None) -> list[PrivateFolder]:
    """Return all private folders, or only the folders of one session, without folders whose marker is damaged."""
    found: list[PrivateFolder] = []
    for root in _list_roots():
        with suppress(SnapshotError):
            folder = _read_marker(root)
            if folder is not None and session in (None, folder.session):
                found.append(folder)
    return found


def count_private_bytes() -> int:
    """Return the disk use of all private folders, and of the checkouts that overlays share."""
    total = 0
    for root, folders, names in os.walk(get_folders_root()):
        # A mounted overlay shows files that are counted where they are.
        folders[:] = [name for name in folders if not os.path.ismount(os.path.join(root, name))]
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
    return total


def _list_roots() -> list[str]:
    with suppress(FileNotFoundError):
        return [os.path.join(get_folders_root(), name) for name in sorted(os.listdir(get_folders_root()))]
    return []


def open_snapshot_store(folder: str) -> SnapshotStore:
    """Open the store for snapshots of a folder: its own, or that of the source of a private folder."""
    private = find_folder_of_path(folder)
    return SnapshotStore.open(folder) if private is None else private.open_store()


def find_snapshot_store(folder: str) -> SnapshotStore | None:
    """Return the store for snapshots of a folder; `None` if it has none."""
    private = find_folder_of_path(folder)
    return SnapshotStore.find(folder) if private is None else private.open_store()


def create_branch_folder(branch: Branch, source: str, settings: FileSettings) -> PrivateFolder:
    """Create the private folder of a branch from the files at its head, with the changes in `source` since then."""
    store, session = open_snapshot_store(source), branch.session
    log = FilesLog(session.tree, store.key)
    start = log.find_at(branch.leaf)
    current = log.find_at(log.find_position(session.head.name, session.head.leaf))
    if start is not None and start != current:  # the files in `source` belong to another place
        commit = start.commit
    else:
        file = None if session.file is None else str(session.file)
        state = FolderSnapshots(store, settings, session_file=file).take()
        commit = store.commit(
            state.tree,
            [] if start is None else [start.commit],
            author="person",
            entry=branch.leaf,
            session=session.id,
            prompt="changes outside of tool calls",
            left_out=state.left_out,
        )
    return create_private_folder(store, commit, session=session.id, branch=branch.name, settings=settings)


def create_folder_here(branch: Branch) -> PrivateFolder:
    """Create the private folder of a new branch from the current folder, with the settings of the user."""
    try:
        return create_branch_folder(branch, os.getcwd(), load_config().files)
    except SnapshotError as error:
        raise SnapshotError(f"branch {branch.name!r} was created without a private folder: {error}") from error


def create_private_folder(
    store: SnapshotStore,
    commit: str,
    *,
    session: str,
    branch: str,
    settings: FileSettings,
    methods: Sequence[FolderMethod] = METHODS,
) -> PrivateFolder:
    """Create the folder of a branch from a snapshot. The first method that works here is used.

    Raises `SnapshotError` if the branch has a private folder, or if none can be created.
    """
    root = _get_root(session, branch)
    make_private_directory(get_folders_root())
    with hold_file_lock(f"{root}.lock"):
        if _read_marker(root) is not None:
            raise SnapshotError(f"branch {branch!r} already has a private folder")
        _remove_tree(root)  # of a process that was killed before it wrote the marker
        store.keep(session, commit)
        path = os.path.join(root, FILES, os.path.basename(store.folder) or "folder")
        try:
            os.makedirs(path, 0o700)
            tree = store.get_tree(commit)
            method = _fill(store, tree, path, root, methods)
            folder = PrivateFolder(
                path=path,
                source=store.folder,
                key=store.key,
                session=session,
                branch=branch,
                commit=commit,
                tree=tree,
                method=method,
            )
            _copy_ignored(store.folder, path, settings)
            _write_marker(root, folder)
        except (OSError, SnapshotError) as error:
            _remove_tree(root)
            raise SnapshotError(f"cannot create a private folder for branch {branch!r}: {error}") from error
    return folder


def open_private_folder(folder: PrivateFolder) -> str:
    """Return the path of a private folder that can be used. An overlay is mounted again after a restart."""
    if folder.method == "overlay" and not os.path.ismount(folder.path):
        with hold_file_lock(f"{folder.root}.lock"):
            if not os.path.ismount(folder.path):
                _mount(_get_frozen(folder.key, folder.tree), folder.root, folder.path)
    return folder.path


def save_private_folder(folder: PrivateFolder, settings: FileSettings) -> str:
    """Take a snapshot of a private folder, point the ref of its branch to it, and return the commit."""
    open_private_folder(folder)
    store = folder.open_store()
    last = store.read_ref(store.get_ref(folder.session, folder.branch)) or folder.commit
    state = FolderSnapshots(store, settings).take()
    if store.get_tree(last) == state.tree:
        return last
    commit = store.commit(
        state.tree,
        [last],
        author="person",
        entry=None,
        session=folder.session,
        prompt="changes outside of tool calls",
        left_out=state.left_out,
    )
    store.set_branch(folder.session, folder.branch, commit)
    return commit


def remove_private_folder(folder: PrivateFolder, settings: FileSettings) -> str:
    """Remove a private folder and return its last snapshot, which is kept. Raises `SnapshotError` if that fails."""
    with hold_file_lock(f"{folder.root}.lock"):
        commit = save_private_folder(folder, settings)
        folder.open_store().keep(folder.session, commit)
        _discard(folder)
    _remove_unused_checkouts()
    return commit


def _discard(folder: PrivateFolder) -> None:
    discard(os.path.join(folder.root, MARKER))
    _remove_tree(folder.root)
    discard(folder.open_store().index_path)


def forget_files(session: str) -> None:
    """Delete the private folders and the snapshots of a session. Called when it is deleted for good."""
    for folder in list_private_folders(session):
        with hold_file_lock(f"{folder.root}.lock"), suppress(SnapshotError):
            _discard(folder)
    forget_snapshots(session)


# The marker


def _write_marker(root: str, folder: PrivateFolder) -> None:
    names = ("path", "source", "key", "session", "branch", "commit", "tree", "method")
    write_private(os.path.join(root, MARKER), json.dumps({name: getattr(folder, name) for name in names}).encode())


def _read_marker(root: str) -> PrivateFolder | None:
    """Read the marker of a private folder; `None` if there is none. Raises `SnapshotError` if it is damaged.

    The folder is where the marker is: the home may have been moved since. To take a damaged marker for no folder would
    let the agent change the shared files.
    """
    marker = os.path.join(root, MARKER)
    try:
        with open(marker, "rb") as file:
            wire: Any = json.load(file)
        folder = PrivateFolder(**wire)
        name = os.path.basename(folder.path)
        is_sound = check_object_id(folder.commit) and check_object_id(folder.tree) and folder.method in METHODS
        if is_sound and name not in ("", os.curdir, os.pardir):
            return structs.replace(folder, path=os.path.join(root, FILES, name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError) as error:
        raise SnapshotError(f"cannot read {marker}, which names a private folder: {error}") from error
    raise SnapshotError(f"{marker}, which names a private folder, is damaged; move {root} away to stop using it")


# Making the files


def _fill(store: SnapshotStore, tree: str, path: str, root: str, methods: Sequence[FolderMethod]) -> FolderMethod:
    """Put the files of a tree into an empty folder, and return how."""
    index = SnapshotStore(store.key, path, index_name=f"private-{os.path.basename(root)}.index").index_path
    for method in methods:
        if method == "overlay":
            if os.geteuid() != 0:
                continue  # the mount of another user is seen only in its own namespace
            try:
                frozen = _make_frozen(store, tree)
            except SnapshotError:  # another process keeps its lock, for example; the other methods do not share
                continue
            if _try_mount(frozen, root, path):
                copy_index(f"{frozen}.index", index)
                return method
        elif method == "checkout" or _clone_large_files(store, tree, path):
            _check_out(store, tree, path, index)
            return method
    raise SnapshotError("no way to copy files works here")


def _clone_large_files(store: SnapshotStore, tree: str, path: str) -> bool:
    """Clone the large files of a tree from the folder of the store, and return whether there are any.

    The checkout that follows replaces files that differ from the tree.
    """
    source, target, has_any = os.fsencode(store.folder), os.fsencode(path), False
    for name, version in store.list_files(tree).items():
        try:
            status = os.lstat(os.path.join(source, name))
            if not stat.S_ISREG(status.st_mode) or status.st_size < MIN_CLONED or version.mode == "120000":
                continue
            with open_regular_file(os.fsdecode(os.path.join(source, name))) as file:
                full = os.path.join(target, name)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                mode = 0o777 if version.mode == "100755" else 0o666
                fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
                try:
                    fcntl.ioctl(fd, CLONE_REQUEST, file.fileno())
                finally:
                    os.close(fd)
            has_any = True
        except OSError as error:
            if error.errno in NO_CLONES:
                return False
    return has_any


def _check_out(store: SnapshotStore, tree: str, path: str, index: str) -> None:
    """Write the files of a tree into a folder. Files that already exist are only written if they differ."""
    git = SnapshotStore(store.key, path).git
    discard(index)
    git.run("read-tree", tree, index=index)
    if os.listdir(path):
        git.run("update-index", "-q", "--ignore-missing", "--refresh", index=index, with_work_tree=True)
    git.run("checkout-index", "-a", "-u", "-f", index=index, with_work_tree=True)


def _get_frozen(key: str, tree: str) -> str:
    return os.path.join(get_folders_root(), FROZEN, f"{key}-{tree}")


def _make_frozen(store: SnapshotStore, tree: str) -> str:
    """Return a checkout of a tree that nothing changes. Private folders of the same snapshot share it."""
    frozen = _get_frozen(store.key, tree)
    make_private_directory(os.path.dirname(frozen))
    with hold_file_lock(f"{frozen}.lock"):
        if not os.path.isdir(frozen):
            partial = f"{frozen}.{token_hex(4)}.partial"
            try:
                os.mkdir(partial, 0o700)
                _check_out(store, tree, partial, f"{frozen}.index")
                os.rename(partial, frozen)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        os.utime(frozen)
    return frozen


def _remove_unused_checkouts() -> None:
    with suppress(FileNotFoundError, SnapshotError):  # a damaged marker may name any of them
        folders = [folder for root in _list_roots() if (folder := _read_marker(root)) is not None]
        used = {_get_frozen(folder.key, folder.tree) for folder in folders}
        for name in os.listdir(os.path.join(get_folders_root(), FROZEN)):
            path = os.path.join(get_folders_root(), FROZEN, name)
            if os.path.isdir(path) and path not in used and time() - os.stat(path).st_atime > KEEP_SECONDS:
                with hold_file_lock(f"{path}.lock"):
                    shutil.rmtree(path, ignore_errors=True)
                    discard(f"{path}.index")


def _try_mount(frozen: str, root: str, path: str) -> bool:
    try:
        _mount(frozen, root, path)
        return True
    except SnapshotError:
        return False


def _mount(frozen: str, root: str, path: str) -> None:
    upper, work = os.path.join(root, "upper"), os.path.join(root, "work")
    for folder in (upper, work):
        os.makedirs(folder, 0o700, exist_ok=True)
    if any(char in text for text in (frozen, upper, work) for char in ",:\\"):
        raise SnapshotError("the path of the home folder cannot be used for an overlay")
    options = f"lowerdir={frozen},upperdir={upper},workdir={work}"
    _run("mount", "-t", "overlay", "sessiontree", "-o", options, path)


def _run(*command: str) -> None:
    environment = {"PATH": os.environ.get("PATH") or "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    try:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, check=False)
    except OSError as error:
        raise SnapshotError(f"{command[0]} cannot run: {error.strerror}") from error
    if ran.returncode:
        raise SnapshotError(f"{command[0]} failed: {ran.stderr.decode(errors='replace').strip()[:300]}")


def _copy_ignored(source: str, path: str, settings: FileSettings) -> None:
    """Copy the folders that are ignored but needed, such as `.venv`. They are never part of a snapshot."""
    for name in settings.copied_folders:
        full = os.path.join(source, name)
        if os.path.isdir(full) and not os.path.islink(full) and not os.path.lexists(os.path.join(path, name)):
            _run("cp", "-a", "--reflink=auto", "--", full, path)


def _remove_tree(root: str) -> None:
    files = os.path.join(root, FILES)
    with suppress(FileNotFoundError):
        for name in os.listdir(files):
            if os.path.ismount(os.path.join(files, name)):
                _run("umount", "--lazy", os.path.join(files, name))
    shutil.rmtree(root, ignore_errors=True)
    if os.path.isdir(files):
        raise SnapshotError(f"cannot remove {root}")
