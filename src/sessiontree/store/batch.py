"""A batch on its way: what is noted of it in the lock file while it is written to the session.

Lines of a batch that a crash cut short are whole lines like any other. Only the note tells that they belong to
something that was never finished, so that they can be set aside and the batch is there as a whole or not at all.
A note is taken away when the batch is written; one that is left says nothing unless the file ends within its batch.
It is not synced: it outlives its process, which is what it is for, but not a power cut.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

_HEAD = struct.Struct("<8sQQQQ")
_MAGIC = b"stbatch1"


class Batch(NamedTuple):
    identity: tuple[int, int]
    """The file that it is written to."""
    start: int
    data: bytes


def note(fd: int, batch: Batch) -> None:
    """Note in the lock file that a batch is about to be written."""
    raw = memoryview(_HEAD.pack(_MAGIC, *batch.identity, batch.start, len(batch.data)) + batch.data)
    done = 0
    while done < len(raw):
        done += os.pwrite(fd, raw[done:], done)


def noted(fd: int) -> Batch | None:
    """The batch that a lock file tells of."""
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        return None
    magic, device, inode, start, size = _HEAD.unpack(head)
    if magic != _MAGIC or os.fstat(fd).st_size != _HEAD.size + size:
        return None  # not ours, or the note itself was cut short: nothing of its batch was written yet
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(fd, size, _HEAD.size + sum(map(len, parts)))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return Batch((device, inode), start, b"".join(parts))
