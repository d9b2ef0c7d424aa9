"""Check sessions without blocking the app: list and search with progress, find problems, detect other processes.

The first scan can take long, because it builds the index if it is missing or stale. Every process that has a session
open holds a shared lock on a file in the home folder. A process that can get an exclusive lock is alone. The operating
system releases the locks when a process dies.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2s
from typing import TypeAlias, TypeVar

import msgspec

from sessiontree.errors import SessionTreeError, StoreError
from sessiontree.home import build_self_command, get_home
from sessiontree.library import catalog
from sessiontree.session import Session
from sessiontree.store.files import make_private_directory, open_private

T = TypeVar("T")

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished and of all items."""

PROGRESS_SECONDS = 0.05
"""Minimum time between two progress reports."""
SUBPROCESS_BYTES = 16 << 20
"""Larger files are checked in a subprocess, because a thread would slow down the UI."""


class _ScanCancelled(Exception):
    """Raised in the thread when the caller has been cancelled."""


async def scan_in_thread(work: Callable[[Progress], T], show_percent: Callable[[int], None]) -> T:
    """Run `work` in a thread and return its result. `show_percent` is called in the event loop.

    If this call is cancelled, `work` stops at its next progress report. The part of the index built so far is kept.
    """
    loop = asyncio.get_running_loop()
    is_cancelled, last_report = False, time.monotonic()

    def report_progress(done: int, total: int) -> None:
        nonlocal last_report
        if is_cancelled:
            raise _ScanCancelled
        now = time.monotonic()
        if now - last_report >= PROGRESS_SECONDS:
            last_report = now
            loop.call_soon_threadsafe(show_percent, done * 100 // max(total, 1))

    try:
        return await asyncio.to_thread(work, report_progress)
    except asyncio.CancelledError:
        is_cancelled = True
        raise


async def find_problems(file: str) -> list[str]:
    """Return the problems of a session file. A missing file has none; the next write reports it."""
    try:
        large = os.stat(file).st_size >= SUBPROCESS_BYTES
        return await (_check_in_subprocess(file) if large else asyncio.to_thread(_check_session, file))
    except (SessionTreeError, OSError, msgspec.MsgspecError):
        return []


def _check_session(file: str) -> list[str]:
    with catalog.open(file, read_only=True) as session:
        return [problem.message for problem in session.problems if problem.severity == "fault"]


async def _check_in_subprocess(file: str) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        *build_self_command(__name__, os.path.abspath(file)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return msgspec.json.decode(output, type=list[str])


def main() -> None:
    """Check the session file in `sys.argv` and print its problems as JSON. Entry point of the subprocess."""
    sys.stdout.buffer.write(msgspec.json.encode(_check_session(sys.argv[1])))


class PresenceLock:
    """The lock of this process on one session."""

    def __init__(self, session: Session) -> None:
        """Acquire the shared lock."""
        self.is_alone = True
        """Whether no other process had the session open when the lock was acquired."""
        self._fd: int | None = None
        self._path = None if session.address is None else _build_lock_path(session.address)
        if self._path is None:
            return
        try:
            make_private_directory(os.path.dirname(self._path))
            while self._fd is None:
                self._fd = open_private(self._path, os.O_RDWR | os.O_CREAT)
                self.is_alone = _is_free(self._fd)
                fcntl.flock(self._fd, fcntl.LOCK_SH)
                if not _is_same_file(self._path, self._fd):  # another process has just deleted the file
                    self._close()
        except (OSError, StoreError):  # without a lock, other processes are not detected
            self._close()

    def belongs_to(self, session: Session) -> bool:
        return session.address is not None and self._path == _build_lock_path(session.address)

    def release(self) -> None:
        """Release the lock. The last process deletes the file."""
        if self._fd is not None and self._path is not None:
            with suppress(OSError):
                if _is_free(self._fd):
                    os.unlink(self._path)
        self._close()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def is_session_open(place: str) -> bool:
    """Return whether a process has the session at this path or address open, or this cannot be determined."""
    try:
        fd = os.open(_build_lock_path(place), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return not _is_free(fd)
    except OSError:
        return True
    finally:
        os.close(fd)


def _build_lock_path(place: str) -> str:
    # Use the location, not the id, because a copy of the file has the same id.
    known = catalog.normalize_location(place)
    return os.path.join(get_home(), "open", blake2s(os.fsencode(known), digest_size=16).hexdigest())


def _is_free(fd: int) -> bool:
    """Return whether no other process holds a lock. This drops our own shared lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_file(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
