"""The shelf: sessions put aside, thrown away, and brought back.

An archived session has an empty file `<session>.archived` beside it. So it stays where it is: paths,
forks and programs that have it open still find it, the mark goes along when the folder is copied,
and it does not depend on the index, which is a cache.

A deleted session is moved to `$SESSIONTREE_HOME/trash/`, into a folder of its own, with what stands
beside it (backups, torn lines) and a note of where it was. It is kept there until it is purged;
nothing is purged by itself. Sessions of other programs are theirs: they are refused.

Those in a database are marked there; see `index.postgres`.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from sessiontree.catalog import find, in_database, pick, sessions_dir, sources, summaries_of
from sessiontree.core.times import iso
from sessiontree.errors import InvalidOperation, NotFound, ReadOnly, StoreError
from sessiontree.home import home
from sessiontree.index.folder import ARCHIVED, SUFFIX, Found, files_in, folders_in
from sessiontree.session import Session
from sessiontree.store.files import make_private_directory, sync_directory, write_all
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.postgres.address import is_address, parse

if TYPE_CHECKING:
    from sessiontree.index.postgres import Shelf
    from sessiontree.index.reading import SessionSummary

ORIGIN = "origin"
"""The file in a folder of the trash that says where the session was."""
AT_ONCE = 1 << 20
"""So many bytes of a file are copied at once."""


def archive(session: str | os.PathLike[str], *, archived: bool = True) -> str:
    """Take a session out of listings, or put it back. Nothing of it changes. Returns its file."""
    if (named := _in_database(session)) is not None:
        return named[0].archive(named[1], archived=archived)
    file = _own(session)
    mark = file + ARCHIVED
    try:
        if archived:
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            os.chmod(mark, 0o600)
        elif os.path.lexists(mark):
            os.unlink(mark)
        sync_directory(os.path.dirname(mark) or ".")
    except OSError as error:
        raise _failed(mark, error) from error
    return file


def delete(session: str | os.PathLike[str]) -> str:
    """Move a session to the trash. Returns its file there."""
    if (named := _in_database(session)) is not None:
        return named[0].delete(named[1])
    file = _own(session)
    stamp = iso(time.time_ns() // 1_000_000).replace(":", "-").replace(".", "-")
    folder = os.path.join(trash(), f"{stamp}-{os.urandom(4).hex()}")
    make_private_directory(folder)
    try:
        _write(os.path.join(folder, ORIGIN), [os.fsencode(os.path.abspath(file))])
        sync_directory(folder)
        names = [file, *_beside(file)]
        for path in names:
            _move(path, os.path.join(folder, os.path.basename(path)))
        sync_directory(folder)
        sync_directory(os.path.dirname(os.path.abspath(file)))
    except OSError as error:
        with suppress(OSError):
            if set(os.listdir(folder)) <= {ORIGIN}:  # nothing was moved: nothing stays behind
                _drop(os.path.join(folder, ORIGIN))
                os.rmdir(folder)
        raise _failed(file, error) from error
    return os.path.join(folder, os.path.basename(file))


def restore(session: str) -> str:
    """Put a session from the trash back where it was. Returns its file."""
    if (named := _in_database(session)) is not None:
        return named[0].restore(named[1])
    file = _in_trash(session)
    folder = os.path.dirname(file)
    try:
        with open(os.path.join(folder, ORIGIN), "rb") as note:
            origin = os.fsdecode(note.read())
    except OSError as error:
        raise _failed(os.path.join(folder, ORIGIN), error) from error
    if os.path.basename(origin) != os.path.basename(file) or not os.path.isabs(origin):
        raise InvalidOperation(f"{os.path.join(folder, ORIGIN)} does not say where {os.path.basename(file)} was")
    if os.path.lexists(origin):
        raise InvalidOperation(f"{origin} exists: it is not written over")
    make_private_directory(os.path.dirname(origin))
    try:
        for path in (*_beside(file), file):
            _move(path, os.path.join(os.path.dirname(origin), os.path.basename(path)))
        sync_directory(os.path.dirname(origin))
        _drop(os.path.join(folder, ORIGIN))
        os.rmdir(folder)
    except OSError as error:
        raise _failed(origin, error) from error
    return origin


def purge(session: str | os.PathLike[str]) -> str:
    """Remove a session for good, from the trash or from where it lives. Returns the file it was."""
    if (named := _in_database(session)) is not None:
        return named[0].purge(named[1])
    try:
        file = _in_trash(os.fspath(session))
    except NotFound:
        file = _own(session)
    folder = os.path.dirname(os.path.abspath(file))
    try:
        for path in (file, *_beside(file)):
            os.unlink(path)
        if os.path.dirname(folder) == os.path.abspath(trash()):
            _drop(os.path.join(folder, ORIGIN))
            os.rmdir(folder)
        else:
            sync_directory(folder)
    except OSError as error:
        raise _failed(file, error) from error
    return file


def trash() -> str:
    return os.path.join(home(), "trash")


def thrown_away() -> list[SessionSummary]:
    """The sessions in the trash, as listings show them, newest first."""
    database = in_database()
    listed = summaries_of(trashed()) if database is None else database.sessions(deleted=True)
    return sorted(listed, key=lambda summary: summary.modified, reverse=True)


def _in_database(session: str | os.PathLike[str]) -> tuple[Shelf, str] | None:
    """The database that a session is in, and what it is called there; `None` for one that is a file."""
    text = os.fspath(session)
    if is_address(text):
        database, text = in_database(text), parse(text).named
    elif isinstance(session, os.PathLike) or text.endswith(SUFFIX) or os.sep in text:
        return None
    else:
        database = in_database()
    return None if database is None else (database, text)


def trashed() -> list[Found]:
    """The session files in the trash."""
    return [file for folder in folders_in(trash()) for file in files_in(folder)]


def _in_trash(session: str) -> str:
    found = pick(session, trashed())
    if found is None:
        raise NotFound("session in the trash", session)
    return found


def _own(session: str | os.PathLike[str]) -> str:
    """The file of a session that may be put aside: a regular file, a session, and not another program's."""
    file = find(session)
    if not stat.S_ISREG(os.lstat(file).st_mode):
        raise StoreError(file, "not a regular file")
    real = os.path.realpath(file)
    for name, root in sources().items():
        if real.startswith(os.path.join(os.path.realpath(root), "")):
            raise ReadOnly(file, f"it is one of {name}'s own")
    ours = any(real.startswith(os.path.join(os.path.realpath(root), "")) for root in (home(), sessions_dir()))
    if not ours or not file.endswith(SUFFIX):
        Session(JsonlStore(file), read_only="it is only looked at")  # anything else on the disk is no session
    return file


def _beside(file: str) -> list[str]:
    """What belongs to a session: its mark, backups, torn lines, and its lock with what may be noted there."""
    folder, name = os.path.split(os.path.abspath(file))
    with os.scandir(folder) as entries:
        return sorted(
            entry.path
            for entry in entries
            if entry.name.startswith(f"{name}.") and entry.is_file(follow_symlinks=False)
        )


def _move(source: str, target: str) -> None:
    """Move a file, never onto another one, also from one disk to another; all of it or nothing."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP):
            raise
        _copy(source, target)
    try:
        os.unlink(source)
    except OSError:
        _drop(target)
        raise


def _copy(source: str, target: str) -> None:
    with open(source, "rb") as file:
        _write(target, iter(lambda: file.read(AT_ONCE), b""))
        status = os.fstat(file.fileno())
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _write(path: str, parts: Iterable[bytes]) -> None:
    """A new file, all of it or none."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        for part in parts:
            write_all(fd, part)
        os.fsync(fd)
    except OSError:
        _drop(path)
        raise
    finally:
        os.close(fd)


def _drop(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)


def _failed(path: str, error: OSError) -> StoreError:
    return StoreError(path, os.strerror(error.errno) if error.errno else str(error))
