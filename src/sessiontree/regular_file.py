"""Reading a file of unknown type: only regular files are read, and nothing blocks."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

MAX_FILE_SIZE = 32 << 20
"""The default size limit of a file, in bytes."""


def open_regular_file(path: str) -> BinaryIO:
    """Open a regular file for reading; links are followed.

    Raises `OSError`, also for a FIFO, a device or a socket, which could block.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error)) from None
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return open(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "not a regular file")


def resolve_open_file(file: BinaryIO, path: str) -> str:
    """Return the real path of an open file. Its path may lead elsewhere in the meantime."""
    try:
        return os.readlink(f"/proc/self/fd/{file.fileno()}")
    except OSError:  # no /proc on this system
        return os.path.realpath(path)


def read_regular_file(path: str, max_size: int = MAX_FILE_SIZE) -> bytes:
    """Return the bytes of a regular file. Raises `OSError` as `open_regular` does, and if it is larger."""
    with open_regular_file(path) as file:
        data = file.read(max_size + 1)
    if len(data) > max_size:
        raise OSError(errno.EFBIG, f"larger than {max_size >> 20} MiB")
    return data
