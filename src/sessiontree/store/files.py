"""Files: what a store asks of the operating system, done whole or not at all.

No session here, and no lines: bytes, names and folders.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from time import monotonic, sleep, time_ns
from typing import IO, TypeAlias

from sessiontree.errors import StoreError

Identity: TypeAlias = tuple[int, int]
"""Which file it is, whatever its name."""
NO_LINK_ERRNOS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""What `link` says on a file system that has none."""


PRIVATE_MODE = 0o600
"""The mode of files: their owner's alone."""

MAX_READ_SIZE = 1 << 24
"""How much is read at once, in bytes."""

NANOSECONDS = 1_000_000_000
CLOCK_TICK, COARSE_CLOCK_TICK = NANOSECONDS // 50, 3 * NANOSECONDS
"""Two changes of a folder that are no further apart may have one time: by the clock of the kernel, and on file systems
that keep whole seconds. In nanoseconds."""

LEASE_SECONDS = 5.0
"""How long a file that another process has to itself is waited for, which takes it microseconds."""

TRUST_SECONDS = 1.0
"""How long a look at names is believed, in seconds."""


def format_os_error(error: OSError) -> str:
    """What the system said."""
    return os.strerror(error.errno) if error.errno else str(error)


def get_identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def close_quietly(fd: int | None) -> None:
    """Close a file that was read, or whose bytes are where they should be already."""
    if fd is not None:
        with suppress(OSError):
            os.close(fd)


def discard(path: str) -> None:
    """Remove a file that is not needed; it does no harm if it stays."""
    with suppress(OSError):
        os.unlink(path)


def iter_numbered_paths(path: str) -> Generator[str]:
    """`path`, and then with a number behind it."""
    yield path
    number = 1
    while True:
        yield f"{path}-{number}"
        number += 1


class FolderMonitor:
    """A folder, which tells whether names in it may have changed since somebody looked at them closely.

    Its own time of change tells: that is another one whenever something in it is made, renamed, replaced or deleted,
    and when it is renamed itself. What happens to the folders above it does not show, so no look is believed for long.
    """

    _fd: int | None = None

    def __init__(self, path: str) -> None:
        self._path = path
        self._change_time = self._checked_at = 0
        self._trusted_change_time = -1
        """When it had changed when it was asked, and when that was; when it had changed before the look believed."""
        self._trusted_until = 0.0

    def is_unchanged(self) -> bool:
        """Whether all names are as they were at the last look that is believed."""
        fd = self._fd
        if fd is None:
            try:
                fd = self._fd = os.open(self._path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                return False
        changed = os.fstat(fd).st_ctime_ns
        if changed == self._trusted_change_time and monotonic() < self._trusted_until:
            return True
        self._change_time, self._checked_at = changed, time_ns()
        return False

    def trust_names(self) -> None:
        """The names were looked at since it was asked. A change right before that may hide one right after it."""
        changed = self._change_time
        if (
            self._fd is None
            or not changed
            or self._checked_at - changed <= (CLOCK_TICK if changed % NANOSECONDS else COARSE_CLOCK_TICK)
        ):
            return
        if get_identity(os.stat(self._path)) == get_identity(os.fstat(self._fd)):
            self._trusted_change_time, self._trusted_until = changed, monotonic() + TRUST_SECONDS
        else:
            self.close()

    def close(self) -> None:
        fd, self._fd, self._trusted_change_time = self._fd, None, -1
        close_quietly(fd)

    def __del__(self) -> None:
        close_quietly(self._fd)


def open_nonblocking(path: str, flags: int) -> int:
    """Open a file that may be a pipe or a device by now, which is never waited for.

    A file whose end is being cut by another process (`cut_if_alone`) is closed to others for a moment.
    """
    until = monotonic() + LEASE_SECONDS
    while True:
        try:
            return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
        except BlockingIOError:
            if monotonic() > until:
                raise
            sleep(0.001)


def truncate_if_unshared(fd: int, size: int, start: int) -> bool:
    """Cut a file of `size` bytes at `start`, if nobody else has it open. Says whether it was cut.

    The kernel lets `ftruncate` wait for a `write` of another process and then cuts off what that has written. A write
    lease is granted only while nobody else has the file open, and others cannot open it before the lease ends.
    """
    lease = getattr(fcntl, "F_SETLEASE", None)
    if lease is None:  # not Linux
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # whoever opens the file has us signalled; SIGIO would end us
        fcntl.fcntl(fd, lease, fcntl.F_WRLCK)
    except OSError:  # somebody has it open, it is not our file, or the file system has no leases
        return False
    try:
        if os.fstat(fd).st_size != size:
            return False
        os.ftruncate(fd, start)
        return True
    finally:
        with suppress(OSError):
            fcntl.fcntl(fd, lease, fcntl.F_UNLCK)


_BLANKS = bytes(byte if byte == 0x0A else 0x20 for byte in range(256))


def blank_lines(data: bytes) -> bytes:
    """So many bytes that say nothing: blank lines where lines were, the last one ended."""
    return data[:-1].translate(_BLANKS) + b"\n" if data else b""


def read_all(fd: int, start: int, size: int) -> bytes:
    """Bytes of a file; fewer where it ends."""
    if 0 < size <= MAX_READ_SIZE:
        part = os.pread(fd, size, start)
        if len(part) == size:  # as nearly always
            return part
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(fd, min(size, MAX_READ_SIZE), start)
        if not part:
            break
        parts.append(part)
        start += len(part)
        size -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    done = os.write(fd, data)
    while done < len(data):
        written = os.write(fd, memoryview(data)[done:])
        if written == 0:
            raise OSError(errno.EIO, "nothing was written")
        done += written


def open_private(path: str, flags: int) -> int:
    """Open a file that is this user's alone; if it is made, its owner can read and write it whatever the umask is."""
    fd = os.open(path, flags | os.O_CLOEXEC, PRIVATE_MODE)
    try:
        if os.fstat(fd).st_mode & PRIVATE_MODE != PRIVATE_MODE:
            with suppress(PermissionError):  # another user's file
                os.fchmod(fd, PRIVATE_MODE)
    except BaseException:
        os.close(fd)
        raise
    return fd


PIECE_SIZE = 1 << 20
"""Bytes of a file that are read at once."""


def read_pieces(file: IO[bytes]) -> Iterator[bytes]:
    """The bytes of a file from where it is read, in pieces; it is closed at the end."""
    with file:
        while piece := file.read(PIECE_SIZE):
            yield piece


def write_private(path: str, data: bytes | Iterable[bytes], *, overwrite: bool = True) -> None:
    """Put a file in its place whole, or not at all, for this user alone; where one is, only if it may be written over.

    `data` may come in pieces, which are written as they come. Raises `StoreError`.
    """
    from tempfile import mkstemp

    try:
        fd, beside = mkstemp(dir=os.path.dirname(path) or os.curdir, prefix=".sessiontree-")
        try:
            with open(fd, "wb") as file:
                os.fchmod(fd, PRIVATE_MODE)
                file.writelines((data,) if isinstance(data, bytes) else data)
                file.flush()
                os.fsync(fd)
            if overwrite:
                os.replace(beside, path)
            else:
                _link_new_file(beside, path)
        except BaseException:
            discard(beside)
            raise
    except OSError as error:
        raise StoreError(path, format_os_error(error)) from error


def _link_new_file(beside: str, path: str) -> None:
    try:
        os.link(beside, path)
        os.unlink(beside)
    except OSError as error:
        if error.errno not in NO_LINK_ERRNOS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "") from None
        os.replace(beside, path)


def make_private_directory(path: str) -> None:
    """Make `path` and what is missing above it, for this user alone."""
    path = os.path.abspath(path)
    missing: list[str] = []
    while not os.path.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        try:
            os.mkdir(directory, 0o700)
            os.chmod(directory, 0o700)
            sync_directory(os.path.dirname(directory))
        except FileExistsError:
            continue
        except OSError as error:
            raise StoreError(directory, format_os_error(error)) from error


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that syncs no directories
            raise
    finally:
        os.close(fd)


def sync_data(fd: int) -> None:
    """Wait until the bytes of a file are on the disk."""
    getattr(os, "fdatasync", os.fsync)(fd)  # not every system has the cheaper one
