"""Trash for session files: the marker of archived sessions, and the folder that deleted sessions are moved to.

- An archived session has an empty marker file `<session>.archived` next to it. The session itself stays where it is, so
  paths, forks and programs that use it still work, and the marker is copied along with the folder.
- A deleted session is moved to a new folder in `$SESSIONTREE_HOME/trash/`, together with its backups, its torn lines
  and a note of where it was. Nothing is purged automatically. Sessions of other programs are refused.
- A session is moved while its lock is held. Every acknowledged entry is in the moved file, and programs that have the
  session open are refused their next write.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import Ambiguous, Conflict, InvalidOperation, ReadOnly, StoreError
from sessiontree.home import get_home
from sessiontree.library.session_files import (
    ARCHIVED_SUFFIX,
    SESSION_SUFFIX,
    OpenStore,
    SessionFile,
    list_folders,
    list_session_files,
)
from sessiontree.regular_file import read_regular_file
from sessiontree.session import Session
from sessiontree.store.base import Cursor
from sessiontree.store.file_operations import (
    NO_LINK_ERRNOS,
    discard,
    format_os_error,
    get_identity,
    iter_numbered_paths,
    make_private_directory,
    sync_directory,
    write_all,
)
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.lock import FileLock, get_lock_path

ORIGIN_NAME = "origin"
"""The file in a trash folder that contains the original path of the session."""
COPY_SIZE = 1 << 20
"""How many bytes of a file are copied at a time."""
COMPANION_PATTERN = re.compile(
    rf"{re.escape(ARCHIVED_SUFFIX)}|\.(bak|new|tmp)(-\d+)?|\.torn-\d+(-\d+)?|\.rest(-\d+)?\.(txt|json)", re.ASCII
)
"""The suffixes of files that belong to a session, except its lock file."""


def archive_file(file: str, *, archived: bool) -> None:
    """Create or remove the marker file that hides a session from listings."""
    mark = file + ARCHIVED_SUFFIX
    try:
        if archived:
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            os.chmod(mark, 0o600)
        elif os.path.lexists(mark):
            os.unlink(mark)
        sync_directory(os.path.dirname(mark) or ".")
    except OSError as error:
        raise _build_store_error(mark, error) from error


def delete_file(file: str) -> str:
    """Move a session file to the trash, with everything that belongs to it. Returns its path there."""
    stamp = format_timestamp(time.time_ns() // 1_000_000).replace(":", "-").replace(".", "-")
    folder = os.path.join(get_trash_folder(), f"{stamp}-{os.urandom(4).hex()}")
    make_private_directory(folder)
    try:
        _write_new_file(os.path.join(folder, ORIGIN_NAME), [os.fsencode(os.path.abspath(file))])
        with _hold_lock(file):
            _move_files([file, *_list_companions(file)], folder)
    except OSError as error:
        raise _build_store_error(file, error) from error
    finally:
        _remove_empty_folder(folder)
    return os.path.join(folder, os.path.basename(file))


def restore_file(file: str) -> str:
    """Move a session file of the trash back to where it was. Returns its path there."""
    folder = os.path.dirname(file)
    try:
        origin = _read_origin(folder)
    except OSError as error:
        raise _build_store_error(os.path.join(folder, ORIGIN_NAME), error) from error
    if os.path.basename(origin) != os.path.basename(file) or not os.path.isabs(origin):
        raise InvalidOperation(
            f"{os.path.join(folder, ORIGIN_NAME)} does not contain the original path of {os.path.basename(file)}"
        )
    there = os.path.dirname(origin)
    make_private_directory(there)
    try:
        with _hold_lock(file), _hold_lock(origin):
            paths = [file, *_list_companions(file)]
            for path in paths:
                if os.path.lexists(taken := os.path.join(there, os.path.basename(path))):
                    raise InvalidOperation(f"{taken} exists and is not overwritten")
            _move_files(paths, there)
    except OSError as error:
        raise _build_store_error(origin, error) from error
    _remove_empty_folder(folder)
    return origin


def purge_file(file: str, *, at: Cursor | None, open_store: OpenStore = JsonlStore) -> None:
    """Remove a session file and everything that belongs to it. Raises `Conflict` if it does not end at `at`."""
    folder = os.path.dirname(os.path.abspath(file))
    try:
        with _hold_lock(file):
            if at is not None and open_store(file).read_end().cursor != at:
                raise Conflict(file, "another writer appended first")
            for path in (file, *_list_companions(file)):
                os.unlink(path)
            sync_directory(folder)
    except OSError as error:
        raise _build_store_error(file, error) from error
    if os.path.dirname(folder) == os.path.abspath(get_trash_folder()):
        _remove_empty_folder(folder)


def get_trash_folder() -> str:
    return os.path.join(get_home(), "trash")


def list_trash() -> list[SessionFile]:
    """List the session files in the trash."""
    folders = [folder for folder in list_folders(get_trash_folder()) if not os.path.islink(folder)]
    return [
        file
        for folder in folders
        for file in list_session_files(folder, os.path.basename(_read_origin_or_empty(folder)), hidden=False)
    ]


def find_in_trash(session: str, pick: Callable[[str, Sequence[SessionFile]], str | None]) -> str | None:
    """Return the path of a session in the trash, given its path there, the path it had, or a name that `pick` knows."""
    files, path = list_trash(), session
    with suppress(FileNotFoundError):  # the current folder was deleted, so no relative path can be resolved
        path = os.path.abspath(session)
    if path in [file.path for file in files]:
        return path
    were_there = [file.path for file in files if _read_origin_or_empty(os.path.dirname(file.path)) == path]
    if len(were_there) > 1:
        raise Ambiguous("session in the trash", session, were_there)
    return were_there[0] if were_there else pick(session, files)


def check_own_session(file: str, own_folders: Iterable[str], foreign: Mapping[str, str], open_store: OpenStore) -> None:
    """Check that a file may be archived or deleted: a regular file, a session, and not another program's.

    `foreign` are the folders and databases of other programs, by name. Raises `StoreError` or `ReadOnly`.
    """
    real = os.path.realpath(file)
    for name, root in foreign.items():
        owner = os.path.realpath(root)
        if real == owner or real.startswith((os.path.join(owner, ""), f"{owner}#")):
            raise ReadOnly(file, f"it belongs to {name}")
    try:
        mode = os.lstat(file).st_mode
    except OSError as error:
        raise _build_store_error(file, error) from error
    if not stat.S_ISREG(mode):
        raise StoreError(file, "not a regular file")
    is_ours = any(real.startswith(os.path.join(os.path.realpath(root), "")) for root in own_folders)
    if not is_ours or not file.endswith(SESSION_SUFFIX):
        Session(open_store(file), read_only="it was opened for reading")  # raises for a file that is not a session


def _read_origin(folder: str) -> str:
    """Return the original path of the session in a trash folder. Raises `OSError`."""
    return os.fsdecode(read_regular_file(os.path.join(folder, ORIGIN_NAME)))


def _read_origin_or_empty(folder: str) -> str:
    """Like `_read_origin`, but return an empty string if the note is missing."""
    with suppress(OSError):
        return _read_origin(folder)
    return ""


def _list_companions(file: str) -> list[str]:
    """List the files that belong to a session: marker, backups, torn lines, cut-off messages, temporary files."""
    folder, name = os.path.split(os.path.abspath(file))
    with os.scandir(folder) as entries:
        return sorted(
            entry.path
            for entry in entries
            if entry.name.startswith(name)
            and COMPANION_PATTERN.fullmatch(entry.name, len(name))
            and entry.is_file(follow_symlinks=False)
        )


@contextmanager
def _hold_lock(file: str) -> Generator[None]:
    """Lock a session and undo an unfinished batch of a dead writer.

    Only the lock file describes such a batch. It is removed when no session is left at this path.
    """
    lock = get_lock_path(os.path.realpath(file))
    with JsonlStore(file).hold_lock() if os.path.lexists(file) else FileLock(lock):
        try:
            yield
        finally:
            if not os.path.lexists(file):
                discard(lock)  # while we hold it: a waiting process creates a new one


class _FileMove(NamedTuple):
    """A file that is being moved and exists in two places."""

    source: str
    target: str
    copied_status: os.stat_result | None
    """The state of the source before it was copied; `None` if both are links to one file."""

    def check_source(self) -> None:
        """Raise `Conflict` if the source changed since it was copied: it must not be removed."""
        same = self.has_same_source()
        if self.copied_status is not None:
            now, before = os.lstat(self.source), self.copied_status
            same = same and (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        if not same:
            raise Conflict(self.source, "another program wrote to it while it was moved")

    def has_same_source(self) -> bool:
        """Return whether the source is still the same file, whatever its content."""
        return get_identity(os.lstat(self.source)) == get_identity(self.copied_status or os.lstat(self.target))


def _move_files(paths: Sequence[str], folder: str) -> None:
    """Move files to another folder, also across file systems, all or none. Nothing is overwritten."""
    placed: list[_FileMove] = []
    taken: list[_FileMove] = []
    try:
        for path in paths:
            placed.append(_place_file(path, os.path.join(folder, os.path.basename(path))))
        sync_directory(folder)
        for one in placed:
            one.check_source()
        for one in placed:
            taken.append(one)  # unlink may report an error and still succeed
            os.unlink(one.source)
    except BaseException:
        for one in placed:
            with suppress(OSError, Conflict):  # what cannot be moved back stays in the new place
                if not os.path.lexists(one.source):
                    _place_file(one.target, one.source)
                elif one in taken or not one.has_same_source():
                    one.check_source()  # the source may be another program's file now, and this the only copy
                os.unlink(one.target)
        raise
    sync_directory(os.path.dirname(os.path.abspath(paths[0])))


def _place_file(source: str, target: str) -> _FileMove:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in {*NO_LINK_ERRNOS, errno.EXDEV}:
            raise
        return _FileMove(source, target, _copy_file(source, target))
    return _FileMove(source, target, None)


def _copy_file(source: str, target: str) -> os.stat_result:
    """Copy a file under a temporary name and rename it: no partial copy is visible. Return its state before."""
    temporary = _find_unused_name(f"{target}.tmp")
    with open(source, "rb") as file:
        before = os.fstat(file.fileno())
        _write_new_file(temporary, iter(lambda: file.read(COPY_SIZE), b""))
    try:
        os.utime(temporary, ns=(before.st_atime_ns, before.st_mtime_ns))
        try:
            os.link(temporary, target)
        except OSError as error:
            if error.errno not in NO_LINK_ERRNOS or os.path.lexists(target):
                raise
            os.rename(temporary, target)
    finally:
        discard(temporary)
    return before


def _find_unused_name(path: str) -> str:
    return next(name for name in iter_numbered_paths(path) if not os.path.lexists(name))


def _write_new_file(path: str, parts: Iterable[bytes]) -> None:
    """Write a new file, completely or not at all."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        for part in parts:
            write_all(fd, part)
        os.fsync(fd)
    except BaseException:
        discard(path)
        raise
    finally:
        os.close(fd)


def _remove_empty_folder(folder: str) -> None:
    """Remove a trash folder without a session. If that fails, an empty folder stays."""
    with suppress(OSError):
        if set(os.listdir(folder)) <= {ORIGIN_NAME}:
            discard(os.path.join(folder, ORIGIN_NAME))
            os.rmdir(folder)


def _build_store_error(path: str, error: OSError) -> StoreError:
    return StoreError(path, format_os_error(error))
