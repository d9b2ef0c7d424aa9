"""A session file: opening it, reading its lines forward and backward, and noticing that other programs changed it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import IO, ClassVar, NoReturn

from sessiontree.errors import Conflict, NotFound, StoreError
from sessiontree.format.json_line import LINE_LIMIT
from sessiontree.format.session_reader import is_complete_line
from sessiontree.store.base import Cursor, LineChunk, Store
from sessiontree.store.batch_journal import find_end
from sessiontree.store.file_operations import (
    Identity,
    close_quietly,
    format_os_error,
    get_identity,
    open_nonblocking,
    read_all,
    read_pieces,
)
from sessiontree.store.lock import FileLock, get_lock_path
from sessiontree.store.range_reader import RangeReader

READ_FLAGS = os.O_RDONLY
NO_ACCESS_TIME: int = getattr(os, "O_NOATIME", 0)
"""Do not update the access time, which takes a fifth of the time of a read. Only the owner of a file may do that."""
MAX_LINE_SCAN = 4 * LINE_LIMIT
"""A longer line is an error. A line over `LINE_LIMIT` but below this is read to its end and skipped. In bytes."""
LARGE_READ = 1 << 16
"""From this size on, two more system calls cost less than copying the bytes."""
CURSOR_CONTEXT_SIZE = 64
"""A cursor remembers this many bytes before its position, to notice when they change."""


class JsonlFile(Store):
    """A file of JSON lines that can be read."""

    reader_class: ClassVar[type[RangeReader]] = RangeReader
    """Reads ranges of a session file without a store, for listings and searches."""
    _read_fd: int | None = None

    def __init__(self, path: str) -> None:
        self.path = self.location = path
        self._identity: Identity | None = None
        """The file that is open for reading."""
        try:
            # Processes that reach the file through different links must use the same lock.
            self._real_path = os.path.realpath(path)
        except ValueError:
            raise StoreError(repr(path), "not a valid file name") from None
        except FileNotFoundError:
            raise StoreError(path, "the current folder was deleted") from None
        self._folder = os.path.dirname(self._real_path)
        self._lock = FileLock(get_lock_path(self._real_path))

    def read_end(self) -> LineChunk:
        with self._convert_read_errors():
            self._forget_file()
            return self._read_stable(self._open_for_reading(), self._read_end)

    def _read_end(self, fd: int) -> LineChunk:
        size, cut = find_end(fd, self._lock.path)
        if cut is None:
            start, tail = size, b""
            while start > 0 and b"\n" not in tail:
                self._check_length(len(tail))
                start = max(0, start - max(1 << 12, len(tail)))
                tail = self._read_exactly(fd, start, size - start)
            end = start + measure_whole_lines(tail)
            unfinished = tail[end - start :]
        else:
            end, unfinished = cut, self._read_exactly(fd, cut, size - cut)
        seen = min(CURSOR_CONTEXT_SIZE, end)
        return LineChunk(b"", Cursor((self._identity, end, self._read_exactly(fd, end - seen, seen))), unfinished)

    def read(self, after: Cursor | None = None, *, before: Cursor | None = None, limit: int | None = None) -> LineChunk:
        with self._convert_read_errors():
            if before is None:
                if after is None:
                    self._forget_file()
                else:
                    self._check_not_replaced(after)
            return self._read_stable(self._open_for_reading(), lambda fd: self._read(fd, after, before, limit))

    def _read(self, fd: int, after: Cursor | None, before: Cursor | None, limit: int | None) -> LineChunk:
        start, seen, behind = 0, b"", b""
        if after is not None:
            self._check_unchanged(fd, after)
            _, start, seen = after.value
        if before is None:
            stop, cut = find_end(fd, self._lock.path)
            if cut is not None and cut >= start:
                stop, behind = cut, self._read_exactly(fd, cut, stop - cut)
            if stop > start and seen and not seen.endswith(b"\n"):
                ended = self._read_added_newline(fd, start)
                start, seen = start + len(ended), seen + ended
        else:
            self._check_unchanged(fd, before)
            stop = before.value[1]
        end = stop
        if limit is not None and start + limit < stop:
            # Find the end of the line before reading: slicing afterwards would copy the data.
            end = self._find_line_end(fd, start + limit, stop)
        data, unfinished = self._read_exactly(fd, start, end - start), b""
        if end == stop:
            if before is None and not behind:
                whole = measure_whole_lines(data)
                data, behind = data[:whole], data[whole:]
            unfinished = behind
        return LineChunk(
            data,
            Cursor((self._identity, start + len(data), (seen + data[-CURSOR_CONTEXT_SIZE:])[-CURSOR_CONTEXT_SIZE:])),
            unfinished,
        )

    def _find_line_end(self, fd: int, start: int, stop: int) -> int:
        """Return where the line at `start` ends, at most `stop`."""
        first, size = start, 1 << 12
        while start < stop:
            self._check_length(start - first)
            data = self._read_exactly(fd, start, min(size, stop - start))
            found = data.find(b"\n") + 1
            if found:
                return start + found
            start, size = start + len(data), min(size * 2, 1 << 20)
        return stop

    def _read_stable(self, fd: int, read: Callable[[int], LineChunk]) -> LineChunk:
        """Return what `read` returns, once it is stable.

        Another process may remove the unfinished batch of a crashed writer at the same time.
        """
        for _ in range(100):
            try:
                chunk = read(fd)
            except _FileShrank:
                continue
            _, end, seen = chunk.cursor.value
            if os.pread(fd, len(seen), end - len(seen)) == seen:
                return chunk
        raise self._build_truncated_error()

    def fetch(self, start: int, size: int) -> bytes:
        before = 1 if start else 0
        try:
            fd = self._open_for_reading()
            if size < LARGE_READ:
                data = read_all(fd, start - before, before + size + 1)
                around, data = data[:before] + data[before + size :], data[before : before + size]
            else:  # two more reads cost less than copying the data
                data = read_all(fd, start, size)
                around = os.pread(fd, before, start - before) + os.pread(fd, 1, start + size)
        except OSError as error:
            self._raise_store_error(error)
        if len(data) < size:
            raise self._build_truncated_error()
        if around.strip(b"\n"):  # lines are between newlines; only the last line may lack one
            raise self._build_changed_error()
        return data

    def stream_bytes(self) -> Iterator[bytes]:
        return read_pieces(self.open_file())

    def open_file(self) -> IO[bytes]:
        return self._open_separately()

    def _open_separately(self) -> IO[bytes]:
        """Open the file at the path. Earlier reads stay valid even if the file was replaced."""
        try:
            return open(self._real_path, "rb")
        except FileNotFoundError:
            raise NotFound("session file", self.location) from None
        except OSError as error:
            self._raise_store_error(error)

    def read_backward(self, before: Cursor, end: int | None = None) -> Iterator[tuple[bytes, int]]:
        with self._convert_read_errors():
            fd = self._open_for_reading()
            stop: int = before.value[1] if end is None else end
            rest: list[bytes] = []  # parts of a line that starts before this block, its end first
            if stop and os.pread(fd, 1, stop - 1) != b"\n":
                rest = [b"\n"]  # the last line is whole but lacks its newline
        size = 1 << 16
        while stop > 0:
            start = max(0, stop - size)
            with self._convert_read_errors():
                data = self._read_exactly(fd, start, stop - start)
            cut = data.find(b"\n") + 1 if start else 0
            if start and not cut:
                rest.append(data)
                self._check_length(sum(map(len, rest)))
            else:
                whole = b"".join((data[cut:], *reversed(rest)))
                rest = [data[:cut]]
                if whole:
                    yield whole, start + cut
            stop, size = start, min(size * 2, 1 << 22)

    def stream_lines(self) -> Iterator[bytes]:
        return read_lines(self._open_separately())

    def find_cursor_after_rollback(self, cursor: Cursor) -> Cursor | None:
        # A rolled back write may leave blank lines: see `_erase_written`.
        identity, start, seen = cursor.value
        with self._convert_read_errors():
            fd = self._open_for_reading()
            now = os.pread(fd, len(seen), start - len(seen))
            is_same = get_identity(os.fstat(fd)) == identity
        blank_end = now[len(now.rstrip()) :]
        kept = len(now) - len(blank_end)
        if not is_same or len(now) < len(seen) or not now.endswith(b"\n") or now == seen:
            return None
        # Only whole lines are blanked: the bytes before them end with a newline, unless they are out of range.
        if now[:kept] != seen[:kept] or (kept and not blank_end.startswith(b"\n")):
            return None
        return Cursor((identity, start, now))

    def get_modified_time(self) -> int:
        with self._convert_read_errors():
            return os.stat(self._real_path).st_mtime_ns

    def backdate(self, moment: int) -> None:
        with suppress(OSError):
            status = os.stat(self._real_path)
            if status.st_mtime_ns > moment:
                os.utime(self._real_path, ns=(status.st_atime_ns, moment))

    def _open_for_reading(self) -> int:
        """Return the file that was first opened, even if another file has replaced it."""
        if self._read_fd is None:
            fd = self._open(READ_FLAGS)
            identity = get_identity(os.fstat(fd))
            if self._identity not in (None, identity):
                close_quietly(fd)
                raise self._build_replaced_error()
            self._identity = identity
            self._read_fd = fd
        return self._read_fd

    def _open(self, flags: int) -> int:
        try:
            try:
                fd = open_nonblocking(self._real_path, flags | NO_ACCESS_TIME)
            except PermissionError:
                fd = open_nonblocking(self._real_path, flags)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound("session file", self.location) from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise StoreError(self.location, "not a regular file")
        except (OSError, StoreError):
            close_quietly(fd)
            raise
        return fd

    def _forget_file(self) -> None:
        """Use the file that is at the path now for the next read."""
        self._identity = None
        self._stop_reading()

    def _stop_reading(self) -> None:
        fd, self._read_fd = self._read_fd, None  # first: after an interrupt, the number may belong to another file
        close_quietly(fd)

    def _check_not_replaced(self, cursor: Cursor) -> None:
        """Raise `Conflict` if the file that was read up to `cursor` was replaced at its path."""
        try:
            status = os.stat(self._real_path)
        except FileNotFoundError:
            raise Conflict(self.location, "another program deleted the file") from None
        if get_identity(status) != cursor.value[0]:
            raise self._build_replaced_error()

    def _check_unchanged(self, fd: int, after: Cursor, status: os.stat_result | None = None) -> int:
        """Return the size of the file. Raises `Conflict` if the lines before `after` have changed."""
        identity, start, seen = after.value
        status = status or os.fstat(fd)
        if identity != (status.st_dev, status.st_ino):
            raise self._build_replaced_error()
        if status.st_size < start:
            raise self._build_truncated_error()
        if os.pread(fd, len(seen), start - len(seen)) != seen:
            raise self._build_changed_error()
        return status.st_size

    def _read_added_newline(self, fd: int, start: int) -> bytes:
        """Return the newline of a last line that lacked it when it was read up to `start`; empty if it still does."""
        byte = os.pread(fd, 1, start)
        if byte not in (b"", b"\n"):
            raise Conflict(self.location, "another program changed a line")
        return byte

    def _read_exactly(self, fd: int, start: int, size: int) -> bytes:
        """Read bytes that the file had when its size was checked."""
        data = read_all(fd, start, size)
        if len(data) < size:
            raise _FileShrank(self.location, "another program truncated the file")
        return data

    def _check_length(self, size: int) -> None:
        if size > MAX_LINE_SCAN:
            raise StoreError(self.location, f"a line is longer than {MAX_LINE_SCAN >> 20} MiB")

    @contextmanager
    def _convert_read_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self._raise_store_error(error)
        except MemoryError:
            raise StoreError(self.location, "not enough memory to read the session") from None

    def _raise_store_error(self, error: OSError) -> NoReturn:
        """Raise a system error as a `StoreError`. An error that a signal handler raised is not converted."""
        if error.errno is None:
            raise error
        raise StoreError(self.location, format_os_error(error)) from error

    def _build_replaced_error(self) -> Conflict:
        return Conflict(self.location, "another program replaced the file")

    def _build_changed_error(self) -> Conflict:
        return Conflict(self.location, "another program changed the file")

    def _build_truncated_error(self) -> Conflict:
        return Conflict(self.location, "another program truncated the file")


class _FileShrank(Conflict):
    """The file is shorter than when its size was checked."""


def read_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the whole lines of an open session file up to its present size, and close it."""
    try:
        with file:
            left = os.fstat(file.fileno()).st_size - file.tell()
            while left > 0 and (line := file.readline()):
                left -= len(line)
                if line.endswith(b"\n"):
                    yield line[:-1]
                elif is_complete_line(line):
                    yield line
    except OSError as error:
        raise StoreError(str(file.name), format_os_error(error)) from error


def measure_whole_lines(data: bytes) -> int:
    """Return how many bytes of the end of a file are whole lines. The last one may lack its newline."""
    last = data.rfind(b"\n") + 1
    # A last line that is not valid JSON may still be being written, or was cut off by a crash.
    return len(data) if last < len(data) and is_complete_line(data[last:]) else last
