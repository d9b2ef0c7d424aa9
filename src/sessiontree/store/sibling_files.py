"""Files next to a session file: new versions of it, backups and torn tails."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from sessiontree.store.base import Cursor
from sessiontree.store.file_operations import (
    NO_LINK_ERRNOS,
    discard,
    get_identity,
    iter_numbered_paths,
    write_all,
)
from sessiontree.store.jsonl_file import CURSOR_CONTEXT_SIZE

CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def write_sibling_file(base: str, suffix: str, parts: Iterable[bytes], *, sync: bool) -> tuple[str, Cursor]:
    """Write a new file next to the session file `base`, complete or not at all. Return its path and its end."""
    path, fd = _create_sibling_file(base, suffix)
    size, seen = 0, b""
    try:
        try:
            os.fchmod(fd, 0o600)
            for part in parts:
                write_all(fd, part)
                size, seen = size + len(part), (seen + part[-CURSOR_CONTEXT_SIZE:])[-CURSOR_CONTEXT_SIZE:]
            if sync:
                os.fsync(fd)
            return path, Cursor((get_identity(os.fstat(fd)), size, seen))
        finally:
            os.close(fd)
    except BaseException:
        discard(path)
        raise


def _create_sibling_file(base: str, suffix: str) -> tuple[str, int]:
    for path in iter_numbered_paths(f"{base}{suffix}"):
        try:
            return path, os.open(path, CREATE_FLAGS | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        except BaseException:
            with suppress(OSError):
                if not os.lstat(path).st_size:  # created, but interrupted
                    os.unlink(path)
            raise
    raise AssertionError


def link_in_place(temporary: str, path: str) -> bool:
    """Link a new session file to its final name. Return `False` if the name is taken. The caller holds the lock."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINK_ERRNOS:
            raise
        # With the lock held, only a program that does not lock can create the file now.
        if os.path.lexists(path):
            return False
        os.rename(temporary, path)
    return True
