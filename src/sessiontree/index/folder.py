"""Folders of sessions: which files are in them, without opening any.

Only what stands in a folder itself is seen. Links are not followed: a link to a folder is passed
over, and a link, a pipe or anything else that is called like a session and is no regular file is
told as such, so that it can be shown and is never opened. No database here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Container
from typing import NamedTuple

SUFFIX = ".jsonl"
ARCHIVED = ".archived"
"""A session is archived when a file with this behind its name stands beside it."""


class Found(NamedTuple):
    """A file in a folder of sessions, as it was when the folder was looked at."""

    path: str
    size: int
    mtime: int
    inode: int
    archived: bool = False
    fault: str | None = None
    """Why it cannot be a session: it is no regular file."""


def files_in(folder: str) -> list[Found]:
    """The session files in a folder; none where there is no such folder."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return [Found(folder, 0, 0, 0, fault=error.strerror)]
    try:
        with os.scandir(fd) as entries:  # by descriptor: each `stat` looks up a name, not a path
            seen = {entry.name: entry for entry in entries if entry.name.endswith((SUFFIX, ARCHIVED))}
        return [file for name, entry in seen.items() if name.endswith(SUFFIX) and (file := _found(folder, entry, seen))]
    finally:
        os.close(fd)


def _found(folder: str, entry: os.DirEntry[str], seen: Container[str]) -> Found | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None  # taken away in this moment
    fault = None if stat.S_ISREG(status.st_mode) else _fault(status.st_mode)
    path = os.path.join(folder, entry.name)
    return Found(path, status.st_size, status.st_mtime_ns, status.st_ino, entry.name + ARCHIVED in seen, fault)


def _fault(mode: int) -> str:
    return "a link, which is not followed" if stat.S_ISLNK(mode) else "not a regular file"


def folders_in(root: str) -> list[str]:
    """The folders right below `root`, links left out."""
    try:
        with os.scandir(root) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def id_of(file: str) -> str:
    """The session id in a file's name."""
    return os.path.basename(file).removesuffix(SUFFIX).rpartition("_")[2]
