"""A store in a file of JSON lines: append-only, safe against crashes, shared by many processes.

Writers take turns by `flock` on `<file>.lock`, a short time each. When `append` returns, the lines
are where the durability says:

    fsync   on the disk: they survive a power cut (the default)
    flush   with the operating system: they survive the death of this process; synced on close
    none    with the operating system, and never synced

A write that fails is rolled back to the last whole line. After a failed sync nobody knows what the
disk holds, so the writer refuses to go on until it is opened anew. An unfinished last line, which a
crash leaves, is moved to a `.torn-…` file beside the session before anything is appended; it is
never deleted and never joined with the next line. A rewrite makes a new file, keeps the old one as a
backup, and puts the new one in its place at once. Files are 0600, directories 0700, whatever the umask.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

from sessiontree.errors import Conflict, NotFound, StoreError
from sessiontree.format.codec import LINE_LIMIT, NotJson, read_object
from sessiontree.store.base import Chunk, Cursor

Durability: TypeAlias = Literal["fsync", "flush", "none"]

READ, WRITE = os.O_RDONLY, os.O_RDWR | os.O_APPEND
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class JsonlStore:
    def __init__(self, path: str, *, durability: Durability = "fsync") -> None:
        self.path = self.where = path
        self.durability: Durability = durability
        self._folder = os.path.dirname(os.path.abspath(path))
        self._fd: int | None = None
        self._read_fd: int | None = None
        self._identity: tuple[int, int] | None = None
        self._poisoned: str | None = None
        self._unsynced = False

    def create(self, lines: Sequence[bytes]) -> Cursor:
        data = self._joined(lines)
        make_private_directory(self._folder)
        with self._locked():
            if os.path.lexists(self.path):
                raise StoreError(self.where, "the file exists already")
            # Written under another name first, so that nobody ever sees a session without a header.
            temporary = self._written_beside(".new", data, sync=self.durability == "fsync")
            try:
                os.link(temporary, self.path)
            except FileExistsError:
                raise StoreError(self.where, "the file exists already") from None
            except OSError as error:
                raise self._failed(error) from error
            finally:
                os.unlink(temporary)
            if self.durability == "fsync":
                sync_directory(self._folder)
            return self._cursor(self._writable())

    def end(self) -> Chunk:
        self._forget()
        fd = self._readable()
        size = os.fstat(fd).st_size
        start, tail = size, b""
        while start > 0 and b"\n" not in tail:
            start = max(0, start - max(1 << 12, len(tail)))
            tail = read_all(fd, start, size - start)
        end = start + whole_lines(tail)
        return Chunk(b"", Cursor((self._identity, end)), tail[end - start :])

    def read(self, after: Cursor | None = None, *, before: Cursor | None = None, limit: int | None = None) -> Chunk:
        if before is None:
            if after is None:
                self._forget()
            else:
                self._check_in_place(after)
        fd = self._readable()
        start = 0 if after is None else after.value[1]
        try:
            stop = os.fstat(fd).st_size if before is None else before.value[1]
            if stop < start:
                raise Conflict(self.where, "the file was truncated by another program")
            size = stop - start
            data = read_all(fd, start, size if limit is None else min(limit, size))
            while len(data) < size and b"\n" not in data:
                data += read_all(fd, start + len(data), min(size - len(data), len(data)))
        except OSError as error:
            raise self._failed(error) from error
        if len(data) < size:
            end, unfinished = data.rfind(b"\n") + 1, b""
        else:
            end = whole_lines(data)
            unfinished = data[end:]
        return Chunk(data[:end], Cursor((self._identity, start + end)), unfinished)

    def fetch(self, start: int, size: int) -> bytes:
        data = read_all(self._readable(), start, size)
        if len(data) < size:
            raise Conflict(self.where, "the file was truncated by another program")
        return data

    def backward(self, before: Cursor) -> Iterator[tuple[bytes, bool]]:
        fd = self._readable()
        end, rest, size = before.value[1], b"", 1 << 16
        if end and os.pread(fd, 1, end - 1) != b"\n":
            rest = b"\n"  # a whole last line that lacks it
        while end > 0:
            start = max(0, end - size)
            data = read_all(fd, start, end - start) + rest
            cut = data.find(b"\n") + 1 if start else 0
            rest, data = data[:cut], data[cut:]
            if data:
                yield data, start == 0
            end, size = start, min(size * 2, 1 << 22)

    def _readable(self) -> int:
        """The file that was first opened, even if another one stands in its place by now."""
        if self._read_fd is None:
            fd = self._open(READ)
            status = os.fstat(fd)
            if self._identity not in (None, (status.st_dev, status.st_ino)):
                os.close(fd)
                raise Conflict(self.where, "the file was replaced by another program")
            self._identity = (status.st_dev, status.st_ino)
            self._read_fd = fd
        return self._read_fd

    def _check_in_place(self, cursor: Cursor) -> None:
        """The file that was read up to `cursor` is still the one at the path."""
        try:
            there = os.stat(self.path)
        except OSError:
            raise Conflict(self.where, "the file was deleted by another program") from None
        if (there.st_dev, there.st_ino) != cursor.value[0]:
            raise Conflict(self.where, "the file was replaced by another program")

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        data = self._joined(lines)
        with self._locked():
            fd = self._at(after)
            start = after.value[1]
            if start and os.pread(fd, 1, start - 1) != b"\n":
                data = b"\n" + data
            self._write(fd, data, start)
            return Cursor((after.value[0], start + len(data)))

    def replace(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        data = self._joined(lines)
        with self._locked():
            self._at(after)
            temporary = self._written_beside(".tmp", data, sync=True)
            try:
                backup = self._linked(".bak")
                sync_directory(self._folder)
                try:
                    os.replace(temporary, self.path)
                except OSError:
                    os.unlink(backup)
                    raise
            except OSError as error:
                os.unlink(temporary)
                raise self._failed(error) from error
            self.close()
            self._forget()
            sync_directory(self._folder)
            cursor = self._cursor(self._writable())
            self._readable()
            return cursor

    def _forget(self) -> None:
        """Read from what stands at the path now."""
        if self._read_fd is not None:
            os.close(self._read_fd)
        self._read_fd = self._identity = None

    def close(self) -> None:
        if self._read_fd is not None:
            os.close(self._read_fd)
            self._read_fd = None
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                if self._unsynced and self.durability == "flush":
                    os.fsync(fd)
            except OSError as error:
                raise self._failed(error) from error
            finally:
                self._unsynced = False
                os.close(fd)

    def __del__(self) -> None:
        for fd in (self._read_fd, self._fd):
            if fd is not None:
                os.close(fd)

    # Opening

    def _open(self, flags: int) -> int:
        try:
            fd = os.open(self.path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound("session file", self.where) from None
        except OSError as error:
            raise self._failed(error) from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise StoreError(self.where, "not a regular file")
        return fd

    def _writable(self) -> int:
        """The open file; noticed if another one stands in its place."""
        if self._poisoned is not None:
            raise StoreError(self.where, f"{self._poisoned}: open it anew before writing")
        if self._fd is None:
            self._fd = self._open(WRITE)
        try:
            there = os.stat(self.path)
        except OSError:
            raise Conflict(self.where, "the file was deleted by another program") from None
        if (there.st_dev, there.st_ino) != self._cursor(self._fd).value[0]:
            self.close()
            raise Conflict(self.where, "the file was replaced by another program")
        return self._fd

    def _at(self, after: Cursor) -> int:
        """The open file, if it ends at `after`."""
        fd = self._writable()
        self._mend_tail(fd, after)
        if self._cursor(fd) != after:
            raise Conflict(self.where, "others wrote first")
        return fd

    @staticmethod
    def _cursor(fd: int) -> Cursor:
        status = os.fstat(fd)
        return Cursor(((status.st_dev, status.st_ino), status.st_size))

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreError(f"{self.path}.lock", os.strerror(error.errno or 0)) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    # Writing

    def _joined(self, lines: Sequence[bytes]) -> bytes:
        for line in lines:
            if b"\n" in line:
                raise StoreError(self.where, "a line cannot hold a newline")
            if len(line) > LINE_LIMIT:
                raise StoreError(self.where, f"a line of {len(line)} bytes is over the limit of {LINE_LIMIT}")
        return b"\n".join([*lines, b""])

    def _write(self, fd: int, data: bytes, start: int) -> None:
        try:
            write_all(fd, data)
        except OSError as error:
            self._roll_back(fd, start)
            raise self._failed(error) from error
        if self.durability != "fsync":
            self._unsynced = True
            return
        try:
            os.fdatasync(fd)
        except OSError as error:
            self._poisoned = f"what is on the disk is not known since a sync failed ({os.strerror(error.errno or 0)})"
            self._roll_back(fd, start)
            raise self._failed(error) from error

    def _roll_back(self, fd: int, start: int) -> None:
        try:
            os.ftruncate(fd, start)
        except OSError as error:
            self._poisoned = f"a failed write could not be taken back ({os.strerror(error.errno or 0)})"

    def _mend_tail(self, fd: int, after: Cursor) -> None:
        """Move an unfinished last line out of the way, to a file of its own."""
        identity, size = self._cursor(fd).value
        start = after.value[1]
        if identity != after.value[0] or size <= start:
            return
        tail = read_all(fd, start, size - start)
        if b"\n" in tail or is_whole_line(tail):
            return
        self._written_beside(f".torn-{start}", tail, sync=True)
        try:
            sync_directory(self._folder)
            os.ftruncate(fd, start)
        except OSError as error:
            raise self._failed(error) from error

    def _written_beside(self, suffix: str, data: bytes, *, sync: bool) -> str:
        """A new file beside the session, whole or not at all; its name."""
        path, fd = self._created(suffix)
        try:
            os.fchmod(fd, 0o600)
            write_all(fd, data)
            if sync:
                os.fsync(fd)
        except OSError as error:
            os.unlink(path)
            raise self._failed(error) from error
        finally:
            os.close(fd)
        return path

    def _created(self, suffix: str) -> tuple[str, int]:
        for path in numbered(f"{self.path}{suffix}"):
            try:
                return path, os.open(path, NEW | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                continue
            except OSError as error:
                raise self._failed(error) from error
        raise AssertionError

    def _linked(self, suffix: str) -> str:
        """Another name for the session file as it is now."""
        for path in numbered(f"{self.path}{suffix}"):
            try:
                os.link(self.path, path)
                os.chmod(path, 0o600)
                return path
            except FileExistsError:
                continue
        raise AssertionError

    def _failed(self, error: OSError) -> StoreError:
        return StoreError(self.where, os.strerror(error.errno or 0))


def numbered(path: str) -> Generator[str]:
    """`path`, and then with a number behind it."""
    yield path
    number = 1
    while True:
        yield f"{path}-{number}"
        number += 1


def whole_lines(data: bytes) -> int:
    """How much of the end of a file is whole lines; the very last may lack its newline."""
    last = data.rfind(b"\n") + 1
    # What is no JSON another writer may be half-way through, or a crash may have cut.
    return len(data) if last < len(data) and is_whole_line(data[last:]) else last


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
        sync_directory(os.path.dirname(directory))


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
