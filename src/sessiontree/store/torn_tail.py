"""Repair of the end of a session file: unfinished lines and batches of crashed writers, and failed writes.

An unfinished last line was left by a crash, or another program is still writing it. If no other process has the
session open, it is moved to a `.torn-…` file. A batch that a crash cut short is copied to a `.torn-…` file and removed.
A failed write is rolled back. If no other process has the file open, it is truncated. Otherwise the written bytes are
blanked, since a program that does not lock may be appending after them.
"""

from __future__ import annotations

import os

from sessiontree.store.file_operations import (
    Identity,
    blank_lines,
    close_quietly,
    discard,
    format_os_error,
    get_identity,
    read_all,
    sync_directory,
    truncate_if_unshared,
)
from sessiontree.store.jsonl_file import JsonlFile
from sessiontree.store.sibling_files import write_sibling_file


class RepairableFile(JsonlFile):
    """A file of JSON lines whose end can be repaired by the holder of its lock."""

    _fd: int | None = None

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._fd_identity: Identity | None = None
        """The file that is open for writing."""
        self._poisoned: str | None = None
        """Why nothing can be written until the session is opened again; `None` if it can."""

    def _move_tail(self, fd: int, start: int, size: int) -> bool:
        """Move an unfinished last line to a `.torn-…` file. Return `False` if another process may be writing it."""
        self._save_torn_tail(start, self._read_exactly(fd, start, size - start))
        self._share_file()
        if truncate_if_unshared(fd, size, start):
            return True
        *self.torn_files, saved = self.torn_files
        discard(saved)
        return False

    def _save_torn_tail(self, start: int, tail: bytes) -> None:
        path, _ = write_sibling_file(self._real_path, f".torn-{start}", [tail], sync=True)
        sync_directory(self._folder)
        self.torn_files = [*self.torn_files, path]

    def _discard_unfinished_batch(self, fd: int, status: os.stat_result) -> os.stat_result:
        """Move an unfinished batch of a crashed writer to a file, and return the new status of the session file."""
        start = self._lock.find_unfinished_batch(fd, status.st_size)
        if start is not None:
            left = self._read_exactly(fd, start, status.st_size - start)
            self._save_torn_tail(start, left)
            self._erase_written(fd, start, left)
        self._lock.clear_note()
        return os.fstat(fd)

    def _erase_written(self, fd: int, start: int, written: bytes) -> None:
        """Remove bytes that a lock holder wrote at the end of the file, and nothing after them."""
        if not written:
            return
        self._share_file()
        if truncate_if_unshared(fd, start + len(written), start):
            return
        over = self._open(os.O_RDWR)  # without O_APPEND: the system would write at the end
        try:
            if get_identity(os.fstat(over)) != get_identity(os.fstat(fd)):
                raise self._build_replaced_error()
            blank, done = blank_lines(written), 0
            while done < len(blank):
                done += os.pwrite(over, memoryview(blank)[done:], start + done)
        finally:
            close_quietly(over)

    def _roll_back(self, fd: int, data: bytes, start: int) -> None:
        """Remove the part of `data` that was written, but nothing that another program wrote after it."""
        before = self._poisoned
        self._poison("a failed write was not rolled back")  # in case of an interrupt
        try:
            written = os.fstat(fd).st_size - start
            if read_all(fd, start, written) != data[:written]:
                self._poison("another program wrote after a write that failed")
                return
            self._erase_written(fd, start, data[:written])
            self._poisoned = before
        except OSError as error:
            if error.errno is None:
                raise
            self._poison(f"a failed write could not be rolled back ({format_os_error(error)})")

    def _roll_back_part(self, fd: int, data: bytes, start: int) -> None:
        """Roll back an interrupted write, unless all of it was written: then other processes may have read it."""
        if read_all(fd, start, len(data)) != data:
            self._roll_back(fd, data, start)

    def _poison(self, reason: str) -> None:
        self._poisoned = reason

    def _share_file(self) -> None:
        """Read and write through one open file: `truncate_if_unshared` fails if the file is open twice."""
        fd, reading = self._fd, self._read_fd
        if fd is not None and reading is not None and self._identity == self._fd_identity:
            os.dup2(fd, reading, inheritable=False)  # atomic: other threads may be reading
