"""A store in a file of JSON lines: append-only, safe against crashes, shared by many processes.

Writers take turns by `flock` on `<file>.lock`. On return of `append` the lines are on disk. A
write that fails is rolled back to the last whole line. An unfinished last line, which a crash
leaves, is moved to a `.torn-…` file beside the session before anything is appended; it is never
deleted and never joined with the next line. Files are 0600, directories 0700, whatever the umask.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from sessiontree.errors import Conflict, NotFound, StoreError
from sessiontree.format.codec import NotJson, read_object
from sessiontree.store.base import Chunk, Cursor


class JsonlStore:
    def __init__(self, path: str, *, fsync: bool = True) -> None:
        self.path = self.where = path
        self._folder = os.path.dirname(os.path.abspath(path))
        self._fsync = fsync
        self._fd: int | None = None

    def create(self, lines: Sequence[bytes]) -> Cursor:
        make_private_directory(self._folder)
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise StoreError(self.where, "the file exists already") from None
        except OSError as error:
            raise StoreError(self.where, os.strerror(error.errno or 0)) from error
        self._fd = fd
        try:
            os.fchmod(fd, 0o600)
            self._write(fd, joined(lines), 0)
            if self._fsync:
                sync_directory(self._folder)
        except BaseException:
            os.unlink(self.path)
            self.close()
            raise
        return self._cursor(fd)

    def read(self, after: Cursor | None = None) -> Chunk:
        fd = self._open(os.O_RDONLY)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise StoreError(self.where, "not a regular file")
            start = 0
            if after is not None:
                identity, start = after.value
                if identity != (status.st_dev, status.st_ino):
                    raise Conflict(self.where, "the file was replaced by another program")
                if status.st_size < start:
                    raise Conflict(self.where, "the file was truncated by another program")
            data = read_all(fd, start, status.st_size - start)
        except OSError as error:
            raise StoreError(self.where, os.strerror(error.errno or 0)) from error
        finally:
            os.close(fd)
        end = len(data)
        if data and not data.endswith(b"\n") and not is_whole_line(data[data.rfind(b"\n") + 1 :]):
            # Another writer may be half-way through this line; a crash may have cut it.
            end = data.rfind(b"\n") + 1
        return Chunk(data[:end], Cursor(((status.st_dev, status.st_ino), start + end)), data[end:])

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        with self._locked():
            fd = self._writable()
            self._mend_tail(fd, after)
            if self._cursor(fd) != after:
                raise Conflict(self.where, "others wrote first")
            start = after.value[1]
            data = joined(lines)
            if start and os.pread(fd, 1, start - 1) != b"\n":
                data = b"\n" + data
            self._write(fd, data, start)
            return self._cursor(fd)

    def replace(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        with self._locked():
            fd = self._writable()
            self._mend_tail(fd, after)
            if self._cursor(fd) != after:
                raise Conflict(self.where, "others wrote first")
            backup = free_name(self.path, ".bak")
            temporary = free_name(self.path, ".tmp")
            new = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                write_all(new, joined(lines))
                os.fsync(new)
                os.link(self.path, backup)
                os.replace(temporary, self.path)
            except OSError as error:
                if os.path.exists(temporary):
                    os.unlink(temporary)
                raise StoreError(self.where, os.strerror(error.errno or 0)) from error
            finally:
                os.close(new)
            sync_directory(self._folder)
            self.close()
            return self._cursor(self._writable())

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, flags: int) -> int:
        try:
            return os.open(self.path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound("session file", self.where) from None
        except OSError as error:
            raise StoreError(self.where, os.strerror(error.errno or 0)) from error

    def _writable(self) -> int:
        """The open file; noticed if another one stands in its place."""
        if self._fd is None:
            self._fd = self._open(os.O_RDWR | os.O_APPEND)
        try:
            there = os.stat(self.path)
        except OSError:
            raise Conflict(self.where, "the file was deleted by another program") from None
        here = os.fstat(self._fd)
        if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
            self.close()
            raise Conflict(self.where, "the file was replaced by another program")
        return self._fd

    @staticmethod
    def _cursor(fd: int) -> Cursor:
        status = os.fstat(fd)
        return Cursor(((status.st_dev, status.st_ino), status.st_size))

    def _mend_tail(self, fd: int, after: Cursor) -> None:
        """Move an unfinished last line out of the way, to a file of its own."""
        identity, size = self._cursor(fd).value
        start = after.value[1]
        if identity != after.value[0] or size <= start:
            return
        tail = read_all(fd, start, size - start)
        if b"\n" in tail or is_whole_line(tail):
            return
        torn = free_name(self.path, f".torn-{start}")
        copy = os.open(torn, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_all(copy, tail)
            os.fsync(copy)
        finally:
            os.close(copy)
        os.ftruncate(fd, start)

    def _write(self, fd: int, data: bytes, start: int) -> None:
        try:
            write_all(fd, data)
            if self._fsync:
                os.fsync(fd)
        except OSError as error:
            os.ftruncate(fd, start)
            raise StoreError(self.where, f"could not write: {os.strerror(error.errno or 0)}") from error

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{self.path}.lock", os.strerror(error.errno or 0)) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def joined(lines: Sequence[bytes]) -> bytes:
    assert not any(b"\n" in line for line in lines)
    return b"".join(line + b"\n" for line in lines)


def is_whole_line(raw: bytes) -> bool:
    """Whether a last line without newline is complete all the same."""
    try:
        read_object(raw)
    except NotJson:
        return False
    return True


def read_all(fd: int, start: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(fd, min(size, 1 << 24), start)
        if not part:
            break
        parts.append(part)
        start += len(part)
        size -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.write(fd, view)
        if written == 0:
            raise OSError(errno.EIO, "nothing was written")
        view = view[written:]


def free_name(path: str, suffix: str) -> str:
    """`path` with `suffix`, and a number where that is taken."""
    number = 0
    while True:
        name = f"{path}{suffix}{f'-{number}' if number else ''}"
        if not os.path.lexists(name):
            return name
        number += 1


def make_private_directory(path: str) -> None:
    """Make `path` and what is missing above it, for this user alone."""
    missing: list[str] = []
    while not os.path.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise StoreError(directory, os.strerror(error.errno or 0)) from error
        os.chmod(directory, 0o700)


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
