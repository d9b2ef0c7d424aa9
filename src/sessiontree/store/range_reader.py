"""Range reads over one session file, for callers that must not load all of it: listings, searches and repairs.

A `RangeReader` sees the file as it was when it was opened. It never follows a link and never blocks on a pipe. A store
that transforms its bytes has a `reader_class` whose `read` reverses the transformation; everything else here is built
on `read`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from types import TracebackType

from sessiontree.format.json_line import LINE_LIMIT
from sessiontree.store.batch_journal import find_end
from sessiontree.store.file_operations import close_quietly, open_nonblocking
from sessiontree.store.lock import get_lock_path

BLOCK_SIZE = 1 << 17
"""How many bytes are read at a time."""


class RangeReader:
    """An open session file. Raises `OSError` when it cannot be opened or read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = open_nonblocking(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            self.status = os.fstat(self._fd)
            if not stat.S_ISREG(self.status.st_mode):
                raise OSError("not a regular file")
            self.size, unfinished_batch = find_end(self._fd, get_lock_path(path))
            self.stop = self.size if unfinished_batch is None else unfinished_batch
            """Where the lines end that count. A batch that is not complete does not."""
        except BaseException:
            close_quietly(self._fd)
            raise

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        close_quietly(self._fd)

    def read(self, start: int, size: int) -> bytes:
        """Return up to `size` bytes from `start` on; fewer at the end of the file."""
        return os.pread(self._fd, size, start)

    def iter_lines(self, start: int, stop: int, block_size: int = BLOCK_SIZE) -> Generator[tuple[bytes | None, int]]:
        """Yield each line between two offsets, without newline, and the offset after it; `None` if it is too long."""
        for block, end in self.iter_blocks(start, stop, block_size):
            if block is None:
                yield None, end
            else:
                lines = block.split(b"\n")
                rest = lines.pop()
                for line in lines:
                    start += len(line) + 1
                    yield line, start
                if rest:
                    yield rest, end
            start = end

    def iter_blocks(self, start: int, stop: int, block_size: int = BLOCK_SIZE) -> Generator[tuple[bytes | None, int]]:
        """Like `iter_lines`, but yield many lines at a time, with newlines. Only the very last may lack one."""
        size = block_size
        while start < stop and (block := self.read(start, min(size, stop - start))):
            cut = block.rfind(b"\n") + 1
            if cut:
                yield block[:cut], start + cut
                start, size = start + cut, block_size
            elif len(block) < size:
                yield block, start + len(block)
                return
            elif size > LINE_LIMIT:
                start, size = self.find_next_line(start + size, stop), block_size
                yield None, start
            else:
                size = min(4 * size, LINE_LIMIT + 1)  # a long line: read it again with more of it

    def find_next_line(self, start: int, stop: int) -> int:
        """Return the offset after the line that `start` is in, at most `stop`."""
        for at, end in self._iter_data_ranges(start, stop):
            while at < end and (block := self.read(at, min(BLOCK_SIZE, end - at))):
                cut = block.find(b"\n") + 1
                if cut:
                    return at + cut
                at += len(block)
        return stop

    def find_last_newline(self, stop: int) -> int:
        """Return the offset after the last newline before `stop`; 0 if there is none."""
        for first, end in reversed(list(self._iter_data_ranges(0, stop))):
            while end > first:
                start = max(first, end - BLOCK_SIZE)
                cut = self.read(start, end - start).rfind(b"\n")
                if cut >= 0:
                    return start + cut + 1
                end = start
        return 0

    def has_oversized_line(self) -> bool:
        """Return whether a line is several times over the limit, so opening the session would take too much memory."""
        window = 4 * LINE_LIMIT
        return any(not self._has_newline(start, start + window) for start in range(0, self.size - window + 1, window))

    def _has_newline(self, start: int, stop: int) -> bool:
        return self.find_next_line(start, stop) < stop or self.read(stop - 1, 1) == b"\n"

    def _iter_data_ranges(self, start: int, stop: int) -> Generator[tuple[int, int]]:
        """Yield the ranges that are not holes: a sparse file of any length may contain nothing else."""
        while start < stop:
            try:
                start = os.lseek(self._fd, start, os.SEEK_DATA)
                end = min(os.lseek(self._fd, start, os.SEEK_HOLE), stop)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    return
                end = stop  # the file system does not report holes
            yield start, end
            start = end
