"""A batch on its way: what is noted of it in the lock file while it is written to the session.

Lines of a batch that a crash cut short are whole lines like any other. Only the note tells that they belong to
something that was never finished, so that they can be set aside and the batch is there as a whole or not at all.
A note is taken away when the batch is written; one that is left says nothing unless the file ends within its batch.
It is not synced: it outlives its process, which is what it is for, but not a power cut.
"""

from __future__ import annotations

import os
import struct

from sessiontree.store.files import Identity, identity_of, shut

_HEAD = struct.Struct("<8sQQQQ")
_MAGIC = b"stbatch1"
_PIECE = 1 << 20


def note(lock: int, identity: Identity, start: int, data: bytes) -> None:
    """Note in the lock file that `data` is about to be written at the end, `start`, of a file."""
    raw = memoryview(_HEAD.pack(_MAGIC, *identity, start, len(data)) + data)
    done = 0
    while done < len(raw):
        done += os.pwrite(lock, raw[done:], done)


def begun(lock: int, fd: int, size: int) -> int | None:
    """Where in a file of this size the batch starts that ends it and is not all there, if `lock` tells of one."""
    head = os.pread(lock, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        return None
    magic, device, inode, start, length = _HEAD.unpack(head)
    if magic != _MAGIC or os.fstat(lock).st_size != _HEAD.size + length:
        return None  # not ours, or the note itself was cut short: nothing of its batch was written yet
    if (device, inode) != identity_of(os.fstat(fd)) or not 0 < size - start < length:
        return None
    for at in range(start, size, _PIECE):
        there = os.pread(fd, min(_PIECE, size - at), at)
        if not there or there != os.pread(lock, len(there), _HEAD.size + at - start):
            return None  # another program wrote behind it
    return start


def end_of(fd: int, lock: str) -> tuple[int, int | None]:
    """The size of a file, and where the batch starts that ends it and is not all there, if there is one.

    It is being written, or its writer died. `lock` is the path of the lock file.
    """
    size = os.fstat(fd).st_size
    while True:
        start = _begun_by(lock, fd, size)
        now = os.fstat(fd).st_size
        if start is not None or now == size:
            return size, start
        size = now  # that may have been within a batch which was done before its note could be read


def _begun_by(lock: str, fd: int, size: int) -> int | None:
    opened = None
    try:
        if not os.stat(lock).st_size:
            return None
        opened = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        return begun(opened, fd, size)
    except OSError:
        return None  # nobody ever wrote here, or it is not for us to read
    finally:
        shut(opened)
