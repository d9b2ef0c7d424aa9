"""Folders of sessions: which files are in them, without opening any.

Only what stands in a folder itself is seen. Names that begin with a dot are no sessions to those who list and find:
other programs put such files beside what they work on. A link, a pipe or anything else that is called like a session
and is no regular file is told as such, so that it can be shown and is never opened; and so is what cannot be looked at.
No database here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from sessiontree.errors import NotFound
from sessiontree.store.files import close_quietly, format_os_error
from sessiontree.store.jsonl import JsonlStore

SESSION_SUFFIX = ".jsonl"
ARCHIVED_SUFFIX = ".archived"
"""A session is archived when a file with this behind its name stands beside it."""
_MAX_INT64 = (1 << 63) - 1
"""Some 292 years."""


OpenStore: TypeAlias = Callable[[str], JsonlStore]
"""Opens the store of the session in a file."""


class SessionFile(NamedTuple):
    """A file in a folder of sessions, as it was when the folder was looked at."""

    path: str
    size: int
    mtime: int
    inode: int
    name: str = ""
    archived: bool = False
    fault: str | None = None
    """Why it cannot be a session: it is no regular file, or cannot be looked at; or it is a folder that cannot."""


@contextmanager
def pause_gc() -> Generator[None]:
    """Thousands of small values and no cycles among them: looking for some would take a third of the time."""
    import gc

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def resolve_folder(folder: str | os.PathLike[str]) -> str:
    """Raises `NotFound` where there is no current folder any more."""
    try:
        return os.path.abspath(folder)
    except FileNotFoundError:
        raise NotFound("folder", os.fspath(folder), "the current folder was deleted") from None


def list_session_files(folder: str, also: str | None = None, *, hidden: bool = True) -> list[SessionFile]:
    """The session files in a folder, and the one that is called `also`; none where there is no such folder.

    Without the `hidden` ones, those whose names begin with a dot are passed over.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return [_build_unreadable(folder, error)]
    found: list[SessionFile] = []
    try:
        with os.scandir(fd) as entries:  # by descriptor: each `stat` looks up a name, not a path
            seen = list(entries)
        archived = {entry.name for entry in seen if entry.name.endswith(ARCHIVED_SUFFIX)}
        for entry in seen:
            name = entry.name
            if (name.endswith(SESSION_SUFFIX) and (hidden or name[0] != ".")) or name == also:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # taken away in this moment
                except OSError as error:
                    found.append(_build_unreadable(f"{folder}/{name}", error))
                    continue
                fault = None if stat.S_ISREG(status.st_mode) else _describe_fault(status.st_mode)
                found.append(
                    SessionFile(
                        f"{folder}/{name}", *get_file_stamp(status), name, name + ARCHIVED_SUFFIX in archived, fault
                    )
                )
        return found
    except OSError as error:
        return [_build_unreadable(folder, error)]
    finally:
        close_quietly(fd)


def _build_unreadable(path: str, error: OSError) -> SessionFile:
    return SessionFile(path, 0, 0, 0, os.path.basename(path), fault=format_os_error(error))


def get_file_stamp(status: os.stat_result) -> tuple[int, int, int]:
    """Size, when it was last written to in nanoseconds, and inode of a file, as a database can hold them.

    A file system may tell any year, and calendars end: the nearest counts. An inode may have 64 bits and no sign.
    """
    moment, inode = status.st_mtime_ns, status.st_ino
    return (
        status.st_size,
        max(-_MAX_INT64, min(moment, _MAX_INT64)),
        inode if inode <= _MAX_INT64 else inode - (1 << 64),
    )


def _describe_fault(mode: int) -> str:
    return "a link, which is not followed" if stat.S_ISLNK(mode) else "not a regular file"


def list_folders(root: str) -> list[str]:
    """The folders right below `root`, and those that links there lead to, each once.

    One that cannot be looked into is given itself: `files_in` tells why.
    """
    try:
        with os.scandir(root) as entries:
            seen = sorted(entries, key=attrgetter("path"))
        folders = [entry.path for entry in seen if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        return [root]
    links = [entry.path for entry in seen if entry.is_symlink() and os.path.isdir(entry.path)]
    if not links:
        return folders
    each = {os.path.realpath(folder): folder for folder in (*reversed(links), root, *folders)}
    return sorted(folder for folder in each.values() if folder != root)


def is_id_match(text: str, id: str) -> bool:
    """Whether a session's id can be meant: all of it, the first 4 characters or more, or the last 8 or more."""
    return text == id or (len(text) >= 4 and id.startswith(text)) or (len(text) >= 8 and id.endswith(text))


def parse_session_id(file: str) -> str:
    """The session id in a file's name, or in an address. A header may say anything: it is only looked at."""
    if "://" in file and "#" in file:
        from urllib.parse import unquote

        return unquote(file.rpartition("#")[2])
    return os.path.basename(file).removesuffix(SESSION_SUFFIX).rpartition("_")[2]


def is_text(path: str) -> bool:
    """Whether a path can be written down as text; on the disk it may be any bytes."""
    if path.isascii():
        return True
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
