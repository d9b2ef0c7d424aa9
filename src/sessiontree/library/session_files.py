"""Session files in a folder, listed without opening any of them.

Hidden files are not sessions: other programs create them as temporary files. Links, pipes and other things that are
named like a session but are not regular files are listed with a fault and never opened. So are unreadable files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from sessiontree.errors import NotFound
from sessiontree.home import CONFIG_NAME, get_home
from sessiontree.regular_file import open_regular_file
from sessiontree.store.file_operations import close_quietly, format_os_error
from sessiontree.store.jsonl import JsonlStore

SESSION_SUFFIX = ".jsonl"
ARCHIVED_SUFFIX = ".archived"
"""A session is archived if a file with its name and this suffix exists."""
MAX_INT64 = (1 << 63) - 1
"""As nanoseconds, about 292 years."""


OpenStore: TypeAlias = type[JsonlStore]
"""The class of stores that session files are opened with."""


class SessionFile(NamedTuple):
    """A file in a folder of sessions, as it was when the folder was listed."""

    path: str
    size: int
    mtime: int
    inode: int
    name: str = ""
    archived: bool = False
    fault: str | None = None
    """Why it is not a readable session: not a regular file, no permission, or a folder that cannot be listed."""


@contextmanager
def pause_gc() -> Generator[None]:
    """Pause garbage collection, which takes a third of the time when thousands of small objects are created."""
    import gc

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def resolve_folder(folder: str | os.PathLike[str]) -> str:
    """Return an absolute path. Raises `NotFound` if the current folder was deleted."""
    try:
        return os.path.abspath(folder)
    except FileNotFoundError:
        raise NotFound("folder", os.fspath(folder), "the current folder was deleted") from None


def list_session_files(folder: str, also: str | None = None, *, hidden: bool = True) -> list[SessionFile]:
    """List the session files in a folder, and the file named `also`. A missing folder has none.

    Without `hidden`, files whose names start with a dot are skipped.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return [_build_unreadable(folder, error)]
    found: list[SessionFile] = []
    try:
        with os.scandir(fd) as entries:  # by descriptor: each `stat` resolves only a name
            seen = list(entries)
        archived = {entry.name for entry in seen if entry.name.endswith(ARCHIVED_SUFFIX)}
        for entry in seen:
            name = entry.name
            if (name.endswith(SESSION_SUFFIX) and (hidden or name[0] != ".")) or name == also:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed in this moment
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
    """Return size, modification time in nanoseconds and inode of a file, as signed 64-bit integers.

    A file system may report any year; times out of range are clamped. Inodes are unsigned and wrap around.
    """
    moment, inode = status.st_mtime_ns, status.st_ino
    return (
        status.st_size,
        max(-MAX_INT64, min(moment, MAX_INT64)),
        inode if inode <= MAX_INT64 else inode - (1 << 64),
    )


def _describe_fault(mode: int) -> str:
    return "a link, which is not followed" if stat.S_ISLNK(mode) else "not a regular file"


def list_folders(root: str) -> list[str]:
    """List the subfolders of `root` and the targets of links in it, each once.

    If `root` cannot be listed, return it instead: `list_session_files` reports why.
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
    """Return whether `text` is the id, or its first 4 or more characters, or its last 8 or more."""
    return text == id or (len(text) >= 4 and id.startswith(text)) or (len(text) >= 8 and id.endswith(text))


def parse_session_id(file: str) -> str:
    """Return the session id in a file name or an address. It may come from a header, so nothing is opened."""
    if "://" in file and "#" in file:
        from urllib.parse import unquote

        return unquote(file.rpartition("#")[2])
    name = os.path.basename(file)
    if "#" in name and not name.endswith(SESSION_SUFFIX):
        return name.rpartition("#")[2]  # a conversation of a database
    return name.removesuffix(SESSION_SUFFIX).rpartition("_")[2]


def is_text(path: str) -> bool:
    """Return whether a path is valid Unicode: file names may be any bytes."""
    if path.isascii():
        return True
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def get_sessions_folder() -> str:
    """Return where session files live. Raises `ConfigError` if the configuration cannot be read."""
    if os.path.lexists(os.path.join(get_home(), CONFIG_NAME)):
        from sessiontree.config import load_config

        folder = load_config().sessions
        if folder is not None:
            return folder
    return os.path.join(get_home(), "sessions")


def is_path(session: str | os.PathLike[str]) -> bool:
    """Return whether this looks like a path, and not like an id or a name."""
    text = os.fspath(session)
    return isinstance(session, os.PathLike) or text.endswith(SESSION_SUFFIX) or os.sep in text


def is_file(session: str | os.PathLike[str]) -> bool:
    """Return whether this is the path of an existing file, or `PATH#ID` for a conversation in one."""
    if os.path.lexists(session):
        return is_path(session) or os.path.isfile(session)
    path, found, _ = os.fspath(session).rpartition("#")
    return bool(found) and os.path.isfile(path)


OWN_STARTS = (b'{"type":"session"', b'{"type":"title"')
"""How nearly all of our own session files begin."""


def starts_like_session(path: str) -> bool:
    """Return whether a file begins as our own sessions do, or cannot be read. Others may be of another program."""
    try:
        with open_regular_file(path) as file:
            return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(OWN_STARTS)
    except OSError:
        return not is_file(path)
