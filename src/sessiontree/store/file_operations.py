"""File operations that a store needs: reading, writing, truncating and syncing, each complete or not at all.

Nothing here knows about sessions or lines.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from time import monotonic, sleep, time_ns
from typing import IO, TypeAlias

from sessiontree.errors import StoreError

Identity: TypeAlias = tuple[int, int]
"""Device and inode: identifies a file whatever its name."""
NO_LINK_ERRNOS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""Errors of `link` on a file system without hard links."""


PRIVATE_MODE = 0o600
"""The mode of files that only their owner may read and write."""

MAX_READ_SIZE = 1 << 24
"""Bytes read with one system call."""

NANOSECONDS = 1_000_000_000
CLOCK_TICK, COARSE_CLOCK_TICK = NANOSECONDS // 50, 3 * NANOSECONDS
"""Two changes of a folder within this time may get the same timestamp: by the clock of the kernel, and on file systems
with timestamps of whole seconds. In nanoseconds."""

LEASE_SECONDS = 5.0
"""Seconds to wait for a file that another process has leased. A lease lasts microseconds."""

TRUST_SECONDS = 1.0
"""Seconds for which a check of file names is trusted."""


def format_os_error(error: OSError) -> str:
    """Return the message of the operating system."""
    return os.strerror(error.errno) if error.errno else str(error)


def get_identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def close_quietly(fd: int | None) -> None:
    """Close a file and ignore errors: it was only read, or its bytes are already synced."""
    if fd is not None:
        with suppress(OSError):
            os.close(fd)


def discard(path: str) -> None:
    """Remove an unneeded file, and ignore errors."""
    with suppress(OSError):
        os.unlink(path)


def iter_numbered_paths(path: str) -> Generator[str]:
    """Yield `path`, then `path-1`, `path-2` and so on."""
    yield path
    number = 1
    while True:
        yield f"{path}-{number}"
        number += 1


class FolderMonitor:
    """Detects whether names in a folder may have changed since they were last checked.

    The change time of the folder is different after anything in it was created, renamed, replaced or deleted, and after
    the folder itself was renamed. Changes to its parent folders are not visible, so a check is trusted only briefly.
    """

    _fd: int | None = None

    def __init__(self, path: str) -> None:
        self._path = path
        self._change_time = self._checked_at = 0
        self._trusted_change_time = -1
        """`_change_time` was read at `_checked_at`; `_trusted_change_time` is the one of the last trusted check."""
        self._trusted_until = 0.0

    def is_unchanged(self) -> bool:
        """Return whether no name has changed since the last trusted check."""
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
        """Trust a check of the names since `is_unchanged`, unless the folder changed right before it.

        A second change within one clock tick would have the same timestamp.
        """
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
    """Open a file without blocking, even if it was replaced by a pipe or a device.

    A file that another process is truncating (see `truncate_if_unshared`) cannot be opened for a moment.
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
    """Truncate a file of `size` bytes to `start` if no other process has opened it. Return whether it was truncated.

    A plain `ftruncate` waits for a concurrent `write` of another process and then cuts off its bytes. A write
    lease is granted only while no other process has the file open, and none can open it before the lease ends.
    """
    lease = getattr(fcntl, "F_SETLEASE", None)
    if lease is None:  # not Linux
        return False
    import signal

    try:
        # The kernel sends a signal when another process opens the file. The default, SIGIO, would kill this process.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, lease, fcntl.F_WRLCK)
    except OSError:  # open elsewhere, owned by another user, or a file system without leases
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
    """Return blank lines of the same lengths, the last one with a newline."""
    return data[:-1].translate(_BLANKS) + b"\n" if data else b""


def read_all(fd: int, start: int, size: int) -> bytes:
    """Read bytes of a file; fewer if it ends before."""
    if 0 < size <= MAX_READ_SIZE:
        part = os.pread(fd, size, start)
        if len(part) == size:  # the common case
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
            raise OSError(errno.EIO, "no bytes were written")
        done += written


def open_private(path: str, flags: int) -> int:
    """Open or create a file for this user alone, with mode 0600 whatever the umask is."""
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
"""Bytes that `read_pieces` yields at a time."""


def read_pieces(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of an open file in pieces, and close it at the end."""
    with file:
        while piece := file.read(PIECE_SIZE):
            yield piece


def write_private(path: str, data: bytes | Iterable[bytes], *, overwrite: bool = True) -> None:
    """Write a file atomically, for this user alone. Without `overwrite`, the file must not exist.

    `data` may be an iterable of pieces. Raises `StoreError`.
    """
    from tempfile import mkstemp

    try:
        fd, temporary = mkstemp(dir=os.path.dirname(path) or os.curdir, prefix=".sessiontree-")
        try:
            with open(fd, "wb") as file:
                os.fchmod(fd, PRIVATE_MODE)
                file.writelines((data,) if isinstance(data, bytes) else data)
                file.flush()
                os.fsync(fd)
            if overwrite:
                os.replace(temporary, path)
            else:
                _link_new_file(temporary, path)
        except BaseException:
            discard(temporary)
            raise
    except OSError as error:
        raise StoreError(path, format_os_error(error)) from error


def _link_new_file(temporary: str, path: str) -> None:
    try:
        os.link(temporary, path)
        os.unlink(temporary)
    except OSError as error:
        if error.errno not in NO_LINK_ERRNOS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "") from None
        os.replace(temporary, path)


def make_private_directory(path: str) -> None:
    """Create a folder and its missing parents, for this user alone."""
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
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # the file system does not support syncing directories
            raise
    finally:
        os.close(fd)


def sync_data(fd: int) -> None:
    """Wait until the data of a file is on the disk."""
    getattr(os, "fdatasync", os.fsync)(fd)  # not every system has `fdatasync`
