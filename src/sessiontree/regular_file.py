"""Reading a whole file that may be anything: only regular files are read, and nothing is waited for."""

from __future__ import annotations

import errno
import os
import stat

LARGEST = 32 << 20
"""Bytes. Larger files are refused."""


def read_regular(path: str, largest: int = LARGEST) -> bytes:
    """Return the bytes of a regular file; links are followed.

    Raises `OSError`, also for a FIFO, a device or a socket, which could make the program wait, and for a file of more
    than `largest` bytes.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error)) from None
    with open(fd, "rb") as file:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = file.read(largest + 1)
    if len(data) > largest:
        raise OSError(errno.EFBIG, f"larger than {largest >> 20} MiB")
    return data
