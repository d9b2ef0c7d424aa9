"""A store in a file of JSON lines: append-only, crash-safe, shared by many processes.

Every writer locks two files with `flock` for a short time: first `<file>.lock`, as all versions do, then the session
file itself, which has one lock whatever its names are. When `append` returns, the durability decides where the lines
are:

    fsync   on the disk: they survive a power cut (the default)
    flush   with the operating system: they survive a crash of this process; synced on close
    none    with the operating system, and never synced

A failed write is rolled back. If no other process has the file open, it is truncated. Otherwise the written bytes are
blanked, since a program that does not lock may be appending after them. After a failed sync the content of the disk is
unknown, and the store refuses to write until it is opened again.

An unfinished last line was left by a crash, or another program is still writing it. If no other process has the
session open, the next append moves it to a `.torn-…` file. Otherwise the append ends it with a newline. A batch that a
crash cut short is copied to a `.torn-…` file and removed before the next append. A rewrite creates a new file, keeps
the old one as a backup, and replaces it atomically. Files have mode 0600 and folders 0700, whatever the umask.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from os import write
from threading import get_ident
from typing import IO, ClassVar, Literal, NoReturn, TypeAlias, TypeVar, get_args
from weakref import WeakSet

from sessiontree.errors import Conflict, InvalidOperation, NotFound, StoreError
from sessiontree.format.codec import LINE_LIMIT
from sessiontree.format.session_reader import is_complete_line
from sessiontree.store.base import NEWLINE, Cursor, LineChunk, Store, SyncGroup, join_in_parts, join_lines
from sessiontree.store.batch_journal import find_end
from sessiontree.store.files import (
    NO_LINK_ERRNOS,
    FolderMonitor,
    Identity,
    blank_lines,
    close_quietly,
    discard,
    format_os_error,
    get_identity,
    iter_numbered_paths,
    make_private_directory,
    open_nonblocking,
    read_all,
    read_pieces,
    sync_data,
    sync_directory,
    truncate_if_unshared,
    write_all,
)
from sessiontree.store.lock import FileLock, LockWait, get_lock_path, lock_file
from sessiontree.store.range_reader import RangeReader

Durability: TypeAlias = Literal["fsync", "flush", "none"]
Result = TypeVar("Result")

READ_FLAGS, WRITE_FLAGS = os.O_RDONLY, os.O_RDWR | os.O_APPEND
NO_ACCESS_TIME: int = getattr(os, "O_NOATIME", 0)
"""Do not update the access time, which takes a fifth of the time of a read. Only the owner of a file may do that."""
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
MAX_LINE_SCAN = 4 * LINE_LIMIT
"""A longer line is an error. A line over `LINE_LIMIT` but below this is read to its end and skipped. In bytes."""
LOCK_NONBLOCKING = LOCK_EX | LOCK_NB
LARGE_READ = 1 << 16
"""From this size on, two more system calls cost less than copying the bytes."""
CURSOR_CONTEXT_SIZE = 64
"""A cursor remembers this many bytes before its position, to notice when they change."""


class JsonlStore(Store):
    """A session in a file of JSON lines."""

    reader_class: ClassVar[type[RangeReader]] = RangeReader
    """Reads ranges of a session file without a store, for listings and searches."""
    _fd: int | None = None
    _read_fd: int | None = None

    def __init__(self, path: str, *, durability: Durability = "fsync") -> None:
        self.path = self.location = path
        if durability not in get_args(Durability):
            raise InvalidOperation(
                f"durability {durability!r} not found; choose one of {', '.join(get_args(Durability))}"
            )
        self.durability: Durability = durability
        self.syncs_appends = durability == "fsync"
        self._fd_identity: Identity | None = None
        self._identity: Identity | None = None
        self._poisoned: str | None = None
        self._group: SyncGroup | None = None
        """The appends that share the next sync, if a thread does several."""
        try:
            # Processes that reach the file through different links must use the same lock.
            self._real_path = os.path.realpath(path)
        except ValueError:
            raise StoreError(repr(path), "not a valid file name") from None
        except FileNotFoundError:
            raise StoreError(path, "the current folder was deleted") from None
        self._folder = os.path.dirname(self._real_path)
        self._folder_monitor = FolderMonitor(self._folder)
        self._lock = FileLock(get_lock_path(self._real_path))
        _stores.add(self)

    def create(self, lines: Sequence[bytes]) -> Cursor:
        make_private_directory(self._folder)
        return self._run_locked(lambda: self._create(lines))

    def _create(self, lines: Sequence[bytes]) -> Cursor:
        if os.path.lexists(self._real_path):
            raise self._build_exists_error()
        sync = self.durability != "none"
        # Written under another name first: no reader may see a session without a header.
        temporary, cursor = self._write_sibling_file(".new", join_in_parts(lines, self.location), sync=sync)
        try:
            self._link_in_place(temporary)
        finally:
            discard(temporary)
        try:
            if sync:
                sync_directory(self._folder)
        except OSError:
            discard(self._real_path)
            raise
        return cursor

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

    @contextmanager
    def _convert_read_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self._raise_store_error(error)
        except MemoryError:
            raise StoreError(self.location, "not enough memory to read the session") from None

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

    def _build_replaced_error(self) -> Conflict:
        return Conflict(self.location, "another program replaced the file")

    def _build_changed_error(self) -> Conflict:
        return Conflict(self.location, "another program changed the file")

    def _build_truncated_error(self) -> Conflict:
        return Conflict(self.location, "another program truncated the file")

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        identity, start, seen = after.value
        is_batch, is_noted = len(lines) > 1, False
        if seen and seen[-1] != NEWLINE:
            lines = [b"", *lines]
        data = join_lines(lines, self.location)
        size, before, at, lock = len(data), len(seen), start, self._lock
        # `_run_locked` and `_unlock`, inlined: half the time of an append is function calls, and most have one line.
        try:
            lock.thread_lock.acquire()
            group = self._group
            if group is not None and group.owner != get_ident():
                group = None
            held = lock.fd
            if held is None:
                held = lock.open()
            try:
                flock(held, LOCK_NONBLOCKING)
            except BlockingIOError:
                lock_file(held, lock.path)
            fd = self._fd
            if fd is not None:
                try:
                    flock(fd, LOCK_NONBLOCKING)
                except BlockingIOError:
                    lock_file(fd, self.location)
            if (
                fd is None
                or is_batch
                or identity != self._fd_identity
                or self._poisoned is not None
                or not self._folder_monitor.is_unchanged()
                or os.pread(fd, before + 1, start - before) != seen  # and there is nothing after it
            ):
                fd, at = self._check_names_and_end(after)
                if at > start and self._move_tail(fd, start, at):
                    at = start
                if at > start:  # another program may be writing the unfinished line: end it with a newline
                    lines, data, size = [b"", *lines], b"\n" + data, size + 1
            if is_batch:
                is_noted = True
                lock.write_note(at, lines)
            try:
                done = write(fd, data)
                if done < size:
                    write_all(fd, data[done:])
            except OSError:
                self._roll_back(fd, data, at)
                raise
            except BaseException:
                self._roll_back_part(fd, data, at)
                raise
            if self.syncs_appends and group is None:
                self._sync(fd, data, at)
            try:
                end = os.lseek(fd, 0, os.SEEK_CUR)
            except OSError as error:
                if error.errno is None:
                    raise
                end = None  # unknown
            if is_noted:
                lock.clear_note()
                is_noted = False
            if group is not None:
                self._add_to_group(group, after, fd, at, data)
            else:
                try:
                    flock(fd, LOCK_UN)
                except OSError as error:
                    if error.errno is None:  # raised by a signal handler
                        raise
                    self._unlock()
                else:
                    lock.release()
        except BaseException as error:
            try:
                if is_noted and self._poisoned is None:
                    lock.clear_note()
            finally:  # a second interrupt may arrive
                self._recover_append()
            if isinstance(error, OSError):
                self._raise_store_error(error)
            raise
        if at > start or end != start + size:
            return after
        return Cursor(
            (
                identity,
                end,
                data[-CURSOR_CONTEXT_SIZE:] if size >= CURSOR_CONTEXT_SIZE else (seen + data)[-CURSOR_CONTEXT_SIZE:],
            )
        )

    @contextmanager
    def share_sync(self) -> Generator[SyncGroup]:
        group = SyncGroup()
        if not self.syncs_appends or self._group is not None:
            yield group
            return
        try:
            self._group = group
            try:
                yield group
            finally:
                self._sync_group(group)
        except OSError as error:
            self._raise_store_error(error)
        finally:
            self._group = None
            if group.is_locked:
                self._recover()

    def _add_to_group(self, group: SyncGroup, after: Cursor, fd: int, offset: int, data: bytes) -> None:
        """Leave the sync of an append, and the release of the locks that it took first, to the end of its group."""
        group.add(after, fd, offset, data)
        if group.is_locked:
            self._lock.thread_lock.release()
        group.is_locked = True

    def _recover_append(self) -> None:
        """Release the locks after an append that failed. Those of its group are kept if earlier appends need them."""
        group = self._group
        if group is not None and group.is_locked and group.owner == get_ident():
            self._lock.thread_lock.release()
        else:
            self._recover()

    def _sync_group(self, group: SyncGroup) -> None:
        data = group.take_unsynced()
        if data:
            self._sync(group.fd, data, group.offset)

    def replace(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        return self._run_locked(lambda: self._replace(lines, after))

    def _replace(self, lines: Sequence[bytes], after: Cursor) -> Cursor:
        old, size = self._check_at_end(after)
        temporary, cursor = self._write_sibling_file(".tmp", join_in_parts(lines, self.location), sync=True)
        try:
            backup = self._create_backup()
            try:
                sync_directory(self._folder)
                if os.fstat(old).st_size != size:
                    raise Conflict(self.location, "another program wrote during the rewrite")
                os.replace(temporary, self._real_path)
            except BaseException:  # also for an interrupt after the file was replaced
                if self._is_current_file(after):
                    discard(backup)
                raise
        finally:
            discard(temporary)
        start = after.value[1]
        rest = read_all(old, start, os.fstat(old).st_size - start)
        if rest:  # an unfinished line, or written between the check and the replacement
            self._save_torn_tail(start, rest)
        try:
            sync_directory(self._folder)
        except OSError as error:
            if error.errno is None:
                raise
            self._poison(f"a sync failed during a rewrite ({format_os_error(error)})")
            raise
        self._close_write_file()
        self._forget_file()
        return cursor

    def write_tail(self, tail: bytes, *, after: Cursor) -> None:
        self._run_locked(lambda: self._write_tail(tail, after))

    def _write_tail(self, tail: bytes, after: Cursor) -> None:
        start = after.value[1]
        fd, status = self._open_current_file()
        if self._check_unchanged(fd, after, status) > start:
            raise Conflict(self.location, "another writer appended first")
        try:
            write_all(fd, tail)
        except BaseException:
            self._roll_back(fd, tail, start)
            raise
        if self.syncs_appends:
            self._sync(fd, tail, start)

    def get_modified_time(self) -> int:
        with self._convert_read_errors():
            return os.stat(self._real_path).st_mtime_ns

    def backdate(self, moment: int) -> None:
        with suppress(OSError):
            status = os.stat(self._real_path)
            if status.st_mtime_ns > moment:
                os.utime(self._real_path, ns=(status.st_atime_ns, moment))

    def _forget_file(self) -> None:
        """Use the file that is at the path now for the next read."""
        self._identity = None
        self._stop_reading()

    def _stop_reading(self) -> None:
        fd, self._read_fd = self._read_fd, None  # first: after an interrupt, the number may belong to another file
        close_quietly(fd)

    def close(self) -> None:
        self._stop_reading()
        try:
            if self._fd is not None and self.durability == "flush":
                sync_data(self._fd)
        except OSError as error:
            self._raise_store_error(error)
        finally:
            self._close_write_file()
            self._lock.close()
            self._folder_monitor.close()

    def __del__(self) -> None:
        close_quietly(self._read_fd)
        close_quietly(self._fd)

    # Opening

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

    def _close_write_file(self, *, unlock: bool = True) -> None:
        fd, self._fd, self._fd_identity = self._fd, None, None
        try:
            if fd is not None and unlock:
                with suppress(OSError):
                    flock(fd, LOCK_UN)  # closing is not enough: we may be reading the same open file, see `_share_file`
        finally:
            close_quietly(fd)

    def _open_current_file(self) -> tuple[int, os.stat_result]:
        """Open the file at the path for writing, and remove an unfinished batch of a crashed writer."""
        if self._poisoned is not None:
            raise StoreError(self.location, f"{self._poisoned}; open the session again before writing")
        try:
            status = os.stat(self._real_path)
            fd = self._fd
            if fd is not None and (status.st_dev, status.st_ino) != self._fd_identity:
                # Another file is in its place, maybe our own after an interrupted rewrite. Its name has to be synced:
                # without the name, the appended lines would be lost too.
                if self._group is not None:
                    self._sync_group(self._group)
                sync_directory(self._folder)
                fd = self._close_write_file()
            if fd is None:
                fd = self._fd = self._open(WRITE_FLAGS)
                lock_file(fd, self.location)
                status = os.fstat(fd)
                self._fd_identity = get_identity(status)
        except (FileNotFoundError, NotFound):
            self._close_write_file()
            raise Conflict(self.location, "another program deleted the file") from None
        return fd, self._discard_unfinished_batch(fd, status) if self._lock.has_note else status

    def _is_current_file(self, cursor: Cursor) -> bool:
        """Return whether the file that `cursor` belongs to is still the one at the path."""
        try:
            return get_identity(os.stat(self._real_path)) == cursor.value[0]
        except OSError:
            return False

    def _check_at_end(self, after: Cursor) -> tuple[int, int]:
        """Return the open file and its size, if no whole line follows `after`. Raises `Conflict` otherwise."""
        fd, status = self._open_current_file()
        _, start, seen = after.value
        size = self._check_unchanged(fd, after, status)
        if size > start:
            tail = read_all(fd, start, min(size - start, MAX_LINE_SCAN + 1))
            if b"\n" in tail or seen[-1:] not in (b"", b"\n"):
                raise Conflict(self.location, "another writer appended first")
            self._check_length(len(tail))
            if is_complete_line(tail):
                raise Conflict(self.location, "another writer appended first")
        return fd, size

    def _check_names_and_end(self, after: Cursor) -> tuple[int, int]:
        """Do the same after checking all file names. They are trusted until their folder changes."""
        self._lock.confirm_file()
        fd, size = self._check_at_end(after)
        self._folder_monitor.trust_names()
        return fd, size

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

    def _share_file(self) -> None:
        """Read and write through one open file: `truncate_if_unshared` fails if the file is open twice."""
        fd, reading = self._fd, self._read_fd
        if fd is not None and reading is not None and self._identity == self._fd_identity:
            os.dup2(fd, reading, inheritable=False)  # atomic: other threads may be reading

    def get_lock_wait(self) -> LockWait | None:
        with self._convert_read_errors():
            return self._lock.find_other_holder()

    def reset_after_fork(self) -> None:
        """In a forked child: drop the parent's open files, which share its locks and would keep them held."""
        reading, self._read_fd = self._read_fd, None
        if reading is not None and self._fd is not None:
            with suppress(OSError):  # without /proc, it is opened again by its path
                self._read_fd = os.open(f"/proc/self/fd/{reading}", READ_FLAGS | os.O_CLOEXEC)
            close_quietly(reading)
        else:
            self._read_fd = reading
        self._group = None
        self._close_write_file(unlock=False)  # unlocking would release the lock of the parent

    @contextmanager
    def hold_lock(self) -> Generator[None]:
        """Hold the lock of the session, after removing an unfinished batch of a crashed writer.

        Raises `StoreError`, and `LockTimeout` if another process keeps the lock.
        """
        reading = None
        try:
            try:
                self._lock.acquire()
                if self._lock.has_note:
                    if self._fd is not None:
                        lock_file(self._fd, self.location)
                    self._open_current_file()
                else:
                    reading = self._open(READ_FLAGS)  # the file may be read-only
                    lock_file(reading, self.location)
            except OSError as error:
                self._raise_store_error(error)
            yield
            self._unlock()
        except BaseException:
            self._recover()
            raise
        finally:
            if reading is not None:
                with suppress(OSError):
                    flock(reading, LOCK_UN)  # a process forked in the meantime shares the open file
                close_quietly(reading)

    def _run_locked(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, called with both locks held. The locks are released even after an interrupt."""
        try:
            self._lock.acquire()
            if self._fd is not None:
                lock_file(self._fd, self.location)
            done = work()
            self._unlock()
            return done
        except BaseException as error:
            self._recover()
            if isinstance(error, OSError):
                self._raise_store_error(error)
            raise

    def _unlock(self) -> None:
        """Release the lock on the session file, then the lock on the lock file."""
        fd = self._fd
        if fd is not None:
            try:
                flock(fd, LOCK_UN)
            except OSError as error:
                self._close_write_file()
                if error.errno is None:
                    raise
        self._lock.release()

    def _recover(self) -> None:
        """Release both locks after an error or an interrupt."""
        try:
            if self._lock.is_owned:
                self._unlock()
        finally:  # a second interrupt may arrive
            if self._lock.is_owned:
                try:
                    self._close_write_file()
                finally:
                    self._lock.abandon()

    # Writing

    def _sync(self, fd: int, data: bytes, start: int) -> None:
        try:
            sync_data(fd)
        except OSError as error:
            if error.errno is None:  # raised by a signal handler
                raise
            self._poison(f"a sync failed ({format_os_error(error)}), and the content of the disk is unknown")
            self._roll_back(fd, data, start)
            raise

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
        path, _ = self._write_sibling_file(f".torn-{start}", [tail], sync=True)
        sync_directory(self._folder)
        self.torn_files = [*self.torn_files, path]

    def _write_sibling_file(self, suffix: str, parts: Iterable[bytes], *, sync: bool) -> tuple[str, Cursor]:
        """Write a new file next to the session, complete or not at all. Return its path and its end."""
        path, fd = self._create_sibling_file(suffix)
        size, seen = 0, b""
        try:
            try:
                os.fchmod(fd, 0o600)
                for part in parts:
                    write_all(fd, part)
                    size, seen = size + len(part), (seen + part[-CURSOR_CONTEXT_SIZE:])[-CURSOR_CONTEXT_SIZE:]
                if sync:
                    os.fsync(fd)
                return path, Cursor((get_identity(os.fstat(fd)), size, seen))
            finally:
                os.close(fd)
        except BaseException:
            discard(path)
            raise

    def _create_sibling_file(self, suffix: str) -> tuple[str, int]:
        for path in iter_numbered_paths(f"{self._real_path}{suffix}"):
            try:
                return path, os.open(path, CREATE_FLAGS | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                continue
            except BaseException:
                with suppress(OSError):
                    if not os.lstat(path).st_size:  # created, but interrupted
                        os.unlink(path)
                raise
        raise AssertionError

    def _link_in_place(self, temporary: str) -> None:
        """Link a new session to its final name. Raises `StoreError` if the name is taken."""
        try:
            os.link(temporary, self._real_path)
        except FileExistsError:
            raise self._build_exists_error() from None
        except OSError as error:
            if error.errno not in NO_LINK_ERRNOS:
                raise
            # We hold the lock, so only a program that does not lock can create the file now.
            if os.path.lexists(self._real_path):
                raise self._build_exists_error() from None
            os.rename(temporary, self._real_path)

    def _create_backup(self) -> str:
        """Link the session file to a backup name; without hard links, copy it. Return the path."""
        for path in iter_numbered_paths(f"{self._real_path}.bak"):
            try:
                os.link(self._real_path, path)
            except FileExistsError:
                continue
            except OSError as error:
                if error.errno not in NO_LINK_ERRNOS:
                    raise
                break
            try:
                os.chmod(path, 0o600)
            except BaseException:
                discard(path)
                raise
            return path
        fd = self._open(READ_FLAGS)
        try:
            return self._write_sibling_file(".bak", [read_all(fd, 0, os.fstat(fd).st_size)], sync=True)[0]
        finally:
            os.close(fd)

    def _build_exists_error(self) -> StoreError:
        return StoreError(self.location, "the file exists already")

    def _raise_store_error(self, error: OSError) -> NoReturn:
        """Raise a system error as a `StoreError`. An error that a signal handler raised is not converted."""
        if error.errno is None:
            raise error
        raise StoreError(self.location, format_os_error(error)) from error


_stores: WeakSet[JsonlStore] = WeakSet()


def _reset_stores_after_fork() -> None:
    for store in _stores:
        store.reset_after_fork()


os.register_at_fork(after_in_child=_reset_stores_after_fork)


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
