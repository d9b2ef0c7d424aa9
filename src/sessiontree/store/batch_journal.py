"""A batch on its way: what is noted of it in the lock file while it is written to the session.

Lines of a batch that a crash cut short are whole lines like any other. Only the note tells that they belong to
something that was never finished, so that they can be set aside and the batch is there as a whole or not at all.
A note says of every line how long it is, how it begins and how it ends: enough to know it again, since lines have ids,
in a copy of the file too, and little enough to cost nothing beside the lines. It is taken away when the batch
is written; one that is left says nothing unless the file ends within its batch. It is not synced: it outlives its
process, which is what it is for, but not a power cut.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from struct import Struct

from sessiontree.format.codec import LINE_LIMIT
from sessiontree.store.files import close_quietly, read_all

_HEADER = Struct("<8sQQ")
_MAGIC = b"stbatch3"
_PREFIX_SIZE, _SUFFIX_SIZE = 48, 16
_LINE_RECORD = Struct(f"<Q{_PREFIX_SIZE}s{_SUFFIX_SIZE}s")
_RECORDS_PER_READ = 1 << 10
"""So many lines of a note are looked at at once."""


def write_note(lock: int, start: int, lines: Sequence[bytes]) -> None:
    """Note in the lock file that `lines` are about to be written at the end, `start`, of a file."""
    pack = _LINE_RECORD.pack
    head = _HEADER.pack(_MAGIC, start, len(lines))
    raw = head + b"".join([pack(len(line), line[:_PREFIX_SIZE], line[-_SUFFIX_SIZE:]) for line in lines])
    done = os.pwrite(lock, raw, 0)
    while done < len(raw):
        done += os.pwrite(lock, raw[done:], done)


def find_unfinished_batch(lock: int, fd: int, size: int) -> int | None:
    """Where in a file of this size the batch starts that ends it and is not all there, if `lock` tells of one."""
    head = os.pread(lock, _HEADER.size, 0)
    if len(head) < _HEADER.size:
        return None
    magic, start, count = _HEADER.unpack(head)
    if magic != _MAGIC or os.fstat(lock).st_size != _HEADER.size + count * _LINE_RECORD.size:
        return None  # not ours, or the note itself was cut short: nothing of its batch was written yet
    if start >= size:
        return None
    at = start
    for length, first, last in _read_note(lock):
        if at >= size:
            return start
        if length > LINE_LIMIT:
            return None
        there = read_all(fd, at, min(length + 1, size - at))
        line = there[:length]
        # Whoever takes a batch back blanks its lines from the first one on, and may die over it.
        if line[:1] not in (b" ", b"\n") and (
            b"\n" in line
            or line[:_PREFIX_SIZE] != first[: len(line)]
            or (len(there) > length and (there[length:] != b"\n" or line[-_SUFFIX_SIZE:] != last[:length]))
        ):
            return None  # another program wrote behind it
        at += length + 1
    return start if at > size else None


def _read_note(lock: int) -> Iterator[tuple[int, bytes, bytes]]:
    """What a note says of each line."""
    at = _HEADER.size
    while piece := os.pread(lock, _LINE_RECORD.size * _RECORDS_PER_READ, at):
        yield from _LINE_RECORD.iter_unpack(piece[: len(piece) - len(piece) % _LINE_RECORD.size])
        at += len(piece)


def find_end(fd: int, lock: str) -> tuple[int, int | None]:
    """The size of a file, and where the batch starts that ends it and is not all there, if there is one.

    It is being written, or its writer died. `lock` is the path of the lock file.
    """
    size = os.fstat(fd).st_size
    while True:
        start = _find_unfinished_batch_at(lock, fd, size)
        now = os.fstat(fd).st_size
        if start is not None or now == size:
            return size, start
        size = now  # that may have been within a batch which was done before its note could be read


def _find_unfinished_batch_at(lock: str, fd: int, size: int) -> int | None:
    opened = None
    try:
        status = os.lstat(lock)
        if not status.st_size or not stat.S_ISREG(status.st_mode):
            return None
        opened = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        return find_unfinished_batch(opened, fd, size)
    except (FileNotFoundError, PermissionError):
        return None  # nobody ever wrote here, or it is not for us to read
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return None  # nobody can: the name of the session is as long as names can be
    finally:
        close_quietly(opened)
