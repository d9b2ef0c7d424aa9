"""The note in the lock file that describes a batch while it is written, which prevents half-applied batches.

When a crash cuts a batch short, the lines already written look like any others. Only the note shows that they belong to
an unfinished batch and have to be removed. The note has the length, the first and the last bytes of every line. Lines
have ids, so this is enough to recognize them, even in a copy of the file.

The writer clears the note after the batch. A stale note has no effect unless the file ends within its batch. The note
is not synced: it survives the crash of its process, but not a power cut.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from struct import Struct

from sessiontree.format.json_line import LINE_LIMIT
from sessiontree.store.file_operations import close_quietly, read_all

_HEADER = Struct("<8sQQ")
_MAGIC = b"stbatch3"
_PREFIX_SIZE, _SUFFIX_SIZE = 48, 16
_LINE_RECORD = Struct(f"<Q{_PREFIX_SIZE}s{_SUFFIX_SIZE}s")
_RECORDS_PER_READ = 1 << 10
"""Line records read from a note at a time."""


def write_note(lock: int, start: int, lines: Sequence[bytes]) -> None:
    """Note in the lock file that `lines` are about to be appended to a file of `start` bytes."""
    pack = _LINE_RECORD.pack
    head = _HEADER.pack(_MAGIC, start, len(lines))
    raw = head + b"".join([pack(len(line), line[:_PREFIX_SIZE], line[-_SUFFIX_SIZE:]) for line in lines])
    done = os.pwrite(lock, raw, 0)
    while done < len(raw):
        done += os.pwrite(lock, raw[done:], done)


def find_unfinished_batch(lock: int, fd: int, size: int) -> int | None:
    """Return where the unfinished batch at the end of a file of `size` bytes starts, if the lock file notes one."""
    head = os.pread(lock, _HEADER.size, 0)
    if len(head) < _HEADER.size:
        return None
    magic, start, count = _HEADER.unpack(head)
    if magic != _MAGIC or os.fstat(lock).st_size != _HEADER.size + count * _LINE_RECORD.size:
        return None  # not a note, or itself cut short; then no line of its batch was written yet
    if start >= size:
        return None
    at = start
    for length, first, last in _read_note(lock):
        if at >= size:
            return start
        if length > LINE_LIMIT:
            return None
        data = read_all(fd, at, min(length + 1, size - at))
        line = data[:length]
        # A writer that rolls a batch back blanks its lines from the first one on, and may crash half way.
        if line[:1] not in (b" ", b"\n") and (
            b"\n" in line
            or line[:_PREFIX_SIZE] != first[: len(line)]
            or (len(data) > length and (data[length:] != b"\n" or line[-_SUFFIX_SIZE:] != last[:length]))
        ):
            return None  # another program wrote after it
        at += length + 1
    return start if at > size else None


def _read_note(lock: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield length, first bytes and last bytes of every line in a note."""
    at = _HEADER.size
    while piece := os.pread(lock, _LINE_RECORD.size * _RECORDS_PER_READ, at):
        yield from _LINE_RECORD.iter_unpack(piece[: len(piece) - len(piece) % _LINE_RECORD.size])
        at += len(piece)


def find_end(fd: int, lock: str) -> tuple[int, int | None]:
    """Return the size of a file, and where the unfinished batch at its end starts, if there is one.

    Such a batch is being written now, or its writer crashed. `lock` is the path of the lock file.
    """
    size = os.fstat(fd).st_size
    while True:
        start = _find_unfinished_batch_at(lock, fd, size)
        now = os.fstat(fd).st_size
        if start is not None or now == size:
            return size, start
        size = now  # `size` may be within a batch that was finished before its note could be read


def _find_unfinished_batch_at(lock: str, fd: int, size: int) -> int | None:
    opened = None
    try:
        status = os.lstat(lock)
        if not status.st_size or not stat.S_ISREG(status.st_mode):
            return None
        opened = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        return find_unfinished_batch(opened, fd, size)
    except (FileNotFoundError, PermissionError):
        return None  # the session was never written to, or this user may not read the note
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return None  # the session has the longest possible file name, so a lock file cannot exist
    finally:
        close_quietly(opened)
