"""A disk that logs every block written to it and every flush, as one file of a FUSE file system.

`python -m tests.reliability.logged_disk IMAGE FOLDER LOG` serves the image as FOLDER/disk until it is unmounted. A
record of the log is a kind, an offset and a length, and the bytes; `records` reads them back. With the log, the disk
can be restored as of any moment, with unflushed writes lost or kept, as after a power cut.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

HEAD = struct.Struct("<cQI")
WRITE, FLUSH = b"w", b"f"


class Record(NamedTuple):
    is_flush: bool
    offset: int
    data: bytes
    end: int
    """Where the record ends in the log."""


def records(log: bytes) -> Iterator[Record]:
    place = 0
    while place + HEAD.size <= len(log):
        kind, offset, length = HEAD.unpack_from(log, place)
        place += HEAD.size + length
        yield Record(kind == FLUSH, offset, log[place - length : place], place)


def serve(image: str, folder: str, log: str) -> None:
    import mfusepy

    class Disk(mfusepy.Operations):
        use_ns = True

        def __init__(self) -> None:
            self._image = os.open(image, os.O_RDWR)
            self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
            if path == "/disk":
                size = os.fstat(self._image).st_size
                return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size}
            raise mfusepy.FuseOSError(errno.ENOENT)

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", "disk"]

        def open(self, path: str, flags: int) -> int:
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(self._image, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            os.write(self._log, HEAD.pack(WRITE, offset, len(data)) + data)
            return os.pwrite(self._image, data, offset)

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            os.write(self._log, HEAD.pack(FLUSH, 0, 0))
            return 0

        def flush(self, path: str, fh: int) -> int:
            return 0

        def fallocate(self, path: str, mode: int, offset: int, length: int, fh: int) -> int:
            raise mfusepy.FuseOSError(errno.EOPNOTSUPP)

    mfusepy.FUSE(Disk(), folder, foreground=True, nothreads=True, direct_io=True)


if __name__ == "__main__":
    serve(*sys.argv[1:4])
