"""A store in a file of JSON lines: append-only, safe against crashes, shared by many processes.

Writers take turns by `flock`, a short time each: first on `<file>.lock`, as all versions do, then on the
session file itself, which has one lock whatever its names are. When `append` returns, the lines are where
the durability says:

    fsync   on the disk: they survive a power cut (the default)
    flush   with the operating system: they survive the death of this process; synced on close
    none    with the operating system, and never synced

A write that fails is taken back: cut off if nobody else has the file open, and blanked otherwise, since
a program that takes no lock may be writing behind it. After a failed sync nobody knows what the disk
holds, so the writer refuses to go on until it is opened anew. An unfinished last line was left by a crash,
or another program is still writing it. The next append moves it to a `.torn-…` file if nobody else has the
session open; otherwise it ends the line with a newline and goes to a line of its own. A batch cut short by
a crash is copied to a `.torn-…` file and taken back before anything is appended. A rewrite makes a new
file, keeps the old one as a backup, and puts the new one in its place at once. Files are 0600, directories
0700, whatever the umask.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from os import write
from typing import BinaryIO, Literal, NoReturn, TypeAlias, TypeVar, get_args
from weakref import WeakSet

from sessiontree.errors import Conflict, InvalidOperation, NotFound, StoreError
from sessiontree.format.codec import LINE_LIMIT
from sessiontree.format.session_reader import is_complete_line
from sessiontree.store.base import NEWLINE, Cursor, LineChunk, Store, join_in_parts, join_lines
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
    sync_data,
    sync_directory,
    truncate_if_unshared,
    write_all,
)
from sessiontree.store.lock import FileLock, get_lock_path
from sessiontree.store.lock_wait import LockWait, lock_file
from sessiontree.store.range_reader import RangeReader

Durability: TypeAlias = Literal["fsync", "flush", "none"]
Result = TypeVar("Result")

READ_FLAGS, WRITE_FLAGS = os.O_RDONLY, os.O_RDWR | os.O_APPEND
NO_ACCESS_TIME: int = getattr(os, "O_NOATIME", 0)
"""Nobody is told when the end of the file was last looked at, which takes a fifth of looking. For its owner alone."""
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
MAX_LINE_SCAN = 4 * LINE_LIMIT
"""A line that goes on for so many bytes is not read to its end. A shorter one is, and passed over if it is too long."""
LOCK_NONBLOCKING = LOCK_EX | LOCK_NB
LARGE_READ = 1 << 16
"""So many bytes are better not copied."""
CURSOR_CONTEXT_SIZE = 64
"""How many bytes before its place a cursor remembers, to notice that they were changed."""


class JsonlStore(Store):
    path: str
    torn_files: list[str]
    _fd: int | None = None
    _read_fd: int | None = None

    def __init__(self, path: str, *, durability: Durability = "fsync") -> None:
        self.path = self.location = path
        if durability not in get_args(Durability):
            raise InvalidOperation(f"there is no durability {durability!r}: only {', '.join(get_args(Durability))}")
        self.durability: Durability = durability
        self._sync_on_append = durability == "fsync"
        self._fd_identity: Identity | None = None
        self._identity: Identity | None = None
        self._poisoned: str | None = None
        self.torn_files = []
        """Files that unfinished last lines and batches were moved to."""
        try:
            # The file itself: all who reach it, through links too, must share its lock.
            self._real_path = os.path.realpath(path)
        except ValueError:
            raise StoreError(repr(path), "not the name of a file") from None
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
        # Written under another name first, so that nobody ever sees a session without a header.
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
            # Found first: cutting it off what was read would copy all the rest.
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
        """Where the line ends that `start` is in, or `stop`."""
        begun, size = start, 1 << 12
        while start < stop:
            self._check_length(start - begun)
            data = self._read_exactly(fd, start, min(size, stop - start))
            found = data.find(b"\n") + 1
            if found:
                return start + found
            start, size = start + len(data), min(size * 2, 1 << 20)
        return stop

    def _read_stable(self, fd: int, read: Callable[[int], LineChunk]) -> LineChunk:
        """What `read` gives, if it is there: a batch that a dead writer left half done may be set aside meanwhile."""
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
            else:  # asking twice more takes less time than copying it
                data = read_all(fd, start, size)
                around = os.pread(fd, before, start - before) + os.pread(fd, 1, start + size)
        except OSError as error:
            self._raise_store_error(error)
        if len(data) < size:
            raise self._build_truncated_error()
        if around.strip(b"\n"):  # lines stand between newlines; the very last may lack one
            raise self._build_changed_error()
        return data

    def open_reader(self) -> RangeReader:
        """Open the file for range reads, without loading it. Raises `OSError`."""
        return RangeReader(self.path)

    def read_backward(self, before: Cursor) -> Iterator[tuple[bytes, bool]]:
        with self._convert_read_errors():
            fd = self._open_for_reading()
            end, size = before.value[1], 1 << 16
            rest: list[bytes] = []  # of a line that begins further up, its end first
            if end and os.pread(fd, 1, end - 1) != b"\n":
                rest = [b"\n"]  # a whole last line that lacks it
        while end > 0:
            start = max(0, end - size)
            with self._convert_read_errors():
                data = self._read_exactly(fd, start, end - start)
            cut = data.find(b"\n") + 1 if start else 0
            if start and not cut:
                rest.append(data)
                self._check_length(sum(map(len, rest)))
            else:
                whole = b"".join((data[cut:], *reversed(rest)))
                rest = [data[:cut]]
                if whole:
                    yield whole, start == 0
            end, size = start, min(size * 2, 1 << 22)

    def stream_lines(self) -> Iterator[bytes]:
        # Opened again: what this store has read so far must stay readable even if the file was replaced.
        try:
            return read_lines(open(self._real_path, "rb"))
        except FileNotFoundError:
            raise NotFound("session file", self.location) from None
        except OSError as error:
            self._raise_store_error(error)

    @contextmanager
    def _convert_read_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self._raise_store_error(error)
        except MemoryError:
            raise StoreError(self.location, "there is not enough memory to read it") from None

    def _open_for_reading(self) -> int:
        """The file that was first opened, even if another one stands in its place by now."""
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
        """The file that was read up to `cursor` is still the one at the path."""
        try:
            there = os.stat(self._real_path)
        except FileNotFoundError:
            raise Conflict(self.location, "the file was deleted by another program") from None
        if get_identity(there) != cursor.value[0]:
            raise self._build_replaced_error()

    def _check_unchanged(self, fd: int, after: Cursor, status: os.stat_result | None = None) -> int:
        """Refuse to go on from `after` in a file that is not the one that was read up to there; its size."""
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
        """The same place, if all that happened to what was read before it is that a writer took its last lines back.

        Those are blank then; see `_take_back`. `None` if something else happened.
        """
        identity, start, seen = cursor.value
        with self._convert_read_errors():
            fd = self._open_for_reading()
            now = os.pread(fd, len(seen), start - len(seen))
            is_same = get_identity(os.fstat(fd)) == identity
        blank_end = now[len(now.rstrip()) :]
        kept = len(now) - len(blank_end)
        if not is_same or len(now) < len(seen) or not now.endswith(b"\n") or now == seen:
            return None
        # Lines are blanked as a whole: what is left before them ends with its newline, unless it is out of sight.
        if now[:kept] != seen[:kept] or (kept and not blank_end.startswith(b"\n")):
            return None
        return Cursor((identity, start, now))

    def _read_added_newline(self, fd: int, start: int) -> bytes:
        """The newline of a line that was whole but for it when it was read up to `start`."""
        byte = os.pread(fd, 1, start)
        if byte not in (b"", b"\n"):
            raise Conflict(self.location, "a line was changed by another program")
        return byte

    def _read_exactly(self, fd: int, start: int, size: int) -> bytes:
        """Bytes that the file had when it was looked at."""
        data = read_all(fd, start, size)
        if len(data) < size:
            raise _FileShrank(self.location, "the file was truncated by another program")
        return data

    def _check_length(self, size: int) -> None:
        if size > MAX_LINE_SCAN:
            raise StoreError(self.location, f"a line goes on for more than {MAX_LINE_SCAN >> 20} MiB")

    def _build_replaced_error(self) -> Conflict:
        return Conflict(self.location, "the file was replaced by another program")

    def _build_changed_error(self) -> Conflict:
        return Conflict(self.location, "the file was changed by another program")

    def _build_truncated_error(self) -> Conflict:
        return Conflict(self.location, "the file was truncated by another program")

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        identity, start, seen = after.value
        is_batch, is_noted = len(lines) > 1, False
        if seen and seen[-1] != NEWLINE:
            lines = [b"", *lines]
        data = join_lines(lines, self.location)
        size, before, at, lock = len(data), len(seen), start, self._lock
        # As `_alone` would do it, in one run: half of an append's time is calls, and most are of one line.
        try:
            lock.thread_lock.acquire()
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
                or os.pread(fd, before + 1, start - before) != seen  # and nothing behind it
            ):
                fd, at = self._check_names_and_end(after)
                if at > start and self._move_tail(fd, start, at):
                    at = start
                if at > start:  # the unfinished line may be another program's: it stays, and is ended
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
            if self._sync_on_append:
                self._sync(fd, data, at)
            try:
                end = os.lseek(fd, 0, os.SEEK_CUR)
            except OSError as error:
                if error.errno is None:
                    raise
                end = None  # the system cannot tell
            if is_noted:
                lock.clear_note()
                is_noted = False
            self._unlock()
        except BaseException as error:
            try:
                if is_noted and self._poisoned is None:
                    lock.clear_note()
            finally:  # something may break in on that, too
                self._recover()
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
                    raise Conflict(self.location, "another program wrote while it was being rewritten")
                os.replace(temporary, self._real_path)
            except BaseException:  # also when it was done and something broke in
                if self._is_current_file(after):
                    discard(backup)
                raise
        finally:
            discard(temporary)
        start = after.value[1]
        rest = read_all(old, start, os.fstat(old).st_size - start)
        if rest:  # unfinished, or it came in the moment between the look and the change of names
            self._save_torn_tail(start, rest)
        try:
            sync_directory(self._folder)
        except OSError as error:
            if error.errno is None:
                raise
            self._poison(f"whether it was rewritten is not known since a sync failed ({format_os_error(error)})")
            raise
        self._close_write_file()
        self._forget_file()
        return cursor

    def write_tail(self, tail: bytes, *, after: Cursor) -> None:
        """Keep what a session has behind its last newline, as it is: for copies. Raises `Conflict`."""
        self._run_locked(lambda: self._write_tail(tail, after))

    def _write_tail(self, tail: bytes, after: Cursor) -> None:
        start = after.value[1]
        fd, there = self._open_current_file()
        if self._check_unchanged(fd, after, there) > start:
            raise Conflict(self.location, "others wrote first")
        try:
            write_all(fd, tail)
        except BaseException:
            self._roll_back(fd, tail, start)
            raise
        if self._sync_on_append:
            self._sync(fd, tail, start)

    def get_modified_time(self) -> int:
        """When it was last written to, in nanoseconds since the epoch."""
        with self._convert_read_errors():
            return os.stat(self._real_path).st_mtime_ns

    def backdate(self, moment: int) -> None:
        """Have it say that it was written to no later than then, where the file system lets us: for copies."""
        with suppress(OSError):
            there = os.stat(self._real_path)
            if there.st_mtime_ns > moment:
                os.utime(self._real_path, ns=(there.st_atime_ns, moment))

    def _forget_file(self) -> None:
        """Read from what stands at the path now."""
        self._identity = None
        self._stop_reading()

    def _stop_reading(self) -> None:
        fd, self._read_fd = self._read_fd, None  # first: what breaks in must not leave a number that is another file's
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
                    flock(fd, LOCK_UN)  # not by closing alone: we may read by the same open file, see `_share_file`
        finally:
            close_quietly(fd)

    def _open_current_file(self) -> tuple[int, os.stat_result]:
        """The file at the path, open, and nothing left in it of a batch whose writer died."""
        if self._poisoned is not None:
            raise StoreError(self.location, f"{self._poisoned}: open it anew before writing")
        try:
            there = os.stat(self._real_path)
            fd = self._fd
            if fd is not None and (there.st_dev, there.st_ino) != self._fd_identity:
                # Another stands in its place, of ours too if something broke in on a rewrite. What is written to it
                # lasts no longer than its name.
                sync_directory(self._folder)
                fd = self._close_write_file()
            if fd is None:
                fd = self._fd = self._open(WRITE_FLAGS)
                lock_file(fd, self.location)
                there = os.fstat(fd)
                self._fd_identity = get_identity(there)
        except (FileNotFoundError, NotFound):
            self._close_write_file()
            raise Conflict(self.location, "the file was deleted by another program") from None
        return fd, self._discard_unfinished_batch(fd, there) if self._lock.has_note else there

    def _is_current_file(self, cursor: Cursor) -> bool:
        """Whether the file that `cursor` is a place of is still the one at the path."""
        try:
            return get_identity(os.stat(self._real_path)) == cursor.value[0]
        except OSError:
            return False

    def _check_at_end(self, after: Cursor) -> tuple[int, int]:
        """The open file, if no line stands behind `after`, and where it ends: an unfinished line may stand there."""
        fd, there = self._open_current_file()
        _, start, seen = after.value
        size = self._check_unchanged(fd, after, there)
        if size > start:
            tail = read_all(fd, start, min(size - start, MAX_LINE_SCAN + 1))
            if b"\n" in tail or seen[-1:] not in (b"", b"\n"):
                raise Conflict(self.location, "others wrote first")
            self._check_length(len(tail))
            if is_complete_line(tail):
                raise Conflict(self.location, "others wrote first")
        return fd, size

    def _check_names_and_end(self, after: Cursor) -> tuple[int, int]:
        """The same, after a close look at all names: they are believed to stay until their folder changes."""
        self._lock.confirm_file()
        fd, size = self._check_at_end(after)
        self._folder_monitor.trust_names()
        return fd, size

    def _discard_unfinished_batch(self, fd: int, there: os.stat_result) -> os.stat_result:
        """The same, without what a dead writer left of a batch: that is copied to a file of its own."""
        start = self._lock.find_unfinished_batch(fd, there.st_size)
        if start is not None:
            left = self._read_exactly(fd, start, there.st_size - start)
            self._save_torn_tail(start, left)
            self._erase_written(fd, start, left)
        self._lock.clear_note()
        return os.fstat(fd)

    def _erase_written(self, fd: int, start: int, written: bytes) -> None:
        """Remove bytes that a holder of the lock wrote to the end of the file, and nothing that stands behind them."""
        if not written:
            return
        self._share_file()
        if truncate_if_unshared(fd, start + len(written), start):
            return
        over = self._open(os.O_RDWR)  # not for appending: the system would put it at the end
        try:
            if get_identity(os.fstat(over)) != get_identity(os.fstat(fd)):
                raise Conflict(self.location, "the file was replaced by another program")
            blank, done = blank_lines(written), 0
            while done < len(blank):
                done += os.pwrite(over, memoryview(blank)[done:], start + done)
        finally:
            close_quietly(over)

    def _share_file(self) -> None:
        """Read by the same open file as we write: `cut_if_alone` takes another one for somebody else's."""
        fd, reading = self._fd, self._read_fd
        if fd is not None and reading is not None and self._identity == self._fd_identity:
            os.dup2(fd, reading, inheritable=False)  # at once: other threads may be reading

    def get_lock_wait(self) -> LockWait | None:
        """A wait for the process that is writing to the session, if there is one; see `waiting`."""
        with self._convert_read_errors():
            return self._lock.find_other_holder()

    def reset_after_fork(self) -> None:
        """In a process that was forked: its parent's open files have the parent's locks, and would outlive it."""
        reading, self._read_fd = self._read_fd, None
        if reading is not None and self._fd is not None:
            with suppress(OSError):  # where the system has no such names, it is opened again by its own
                self._read_fd = os.open(f"/proc/self/fd/{reading}", READ_FLAGS | os.O_CLOEXEC)
            close_quietly(reading)
        else:
            self._read_fd = reading
        self._close_write_file(unlock=False)  # that would unlock the parent's

    @contextmanager
    def hold_lock(self) -> Generator[None]:
        """While it is entered nobody else writes, and there is nothing left of a batch whose writer died.

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
                    reading = self._open(READ_FLAGS)  # it may be a file that nobody can write to
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
                    flock(reading, LOCK_UN)  # a process forked meanwhile has it open, too
                close_quietly(reading)

    def _run_locked(self, work: Callable[[], Result]) -> Result:
        """What `work` gives, while nobody else writes. The lock is nobody's afterwards, whatever breaks in."""
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
        """Let go of the lock on the file, then of the one on the lock file."""
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
        """Let go of both locks after something failed or broke in."""
        try:
            if self._lock.is_owned:
                self._unlock()
        finally:  # something may break in on that, too
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
            if error.errno is None:  # a signal handler's
                raise
            self._poison(f"what is on the disk is not known since a sync failed ({format_os_error(error)})")
            self._roll_back(fd, data, start)
            raise

    def _roll_back(self, fd: int, data: bytes, start: int) -> None:
        """Take back what of `data` was written, and nothing that another program put behind it."""
        before = self._poisoned
        self._poison("a failed write was not taken back")  # if something breaks in on it
        try:
            written = os.fstat(fd).st_size - start
            if read_all(fd, start, written) != data[:written]:
                self._poison("another program wrote behind a write that failed")
                return
            self._erase_written(fd, start, data[:written])
            self._poisoned = before
        except OSError as error:
            if error.errno is None:
                raise
            self._poison(f"a failed write could not be taken back ({format_os_error(error)})")

    def _roll_back_part(self, fd: int, data: bytes, start: int) -> None:
        """The same when something broke in. If all was written, others may have read it, so it stays."""
        if read_all(fd, start, len(data)) != data:
            self._roll_back(fd, data, start)

    def _poison(self, reason: str) -> None:
        self._poisoned = reason

    def _move_tail(self, fd: int, start: int, size: int) -> bool:
        """Move an unfinished last line to a file of its own, if nobody can be writing it. Says whether it was moved."""
        self._save_torn_tail(start, self._read_exactly(fd, start, size - start))
        self._share_file()
        if truncate_if_unshared(fd, size, start):
            return True
        discard(self.torn_files.pop())
        return False

    def _save_torn_tail(self, start: int, tail: bytes) -> None:
        path, _ = self._write_sibling_file(f".torn-{start}", [tail], sync=True)
        sync_directory(self._folder)
        self.torn_files.append(path)

    def _write_sibling_file(self, suffix: str, parts: Iterable[bytes], *, sync: bool) -> tuple[str, Cursor]:
        """A new file beside the session, whole or not at all; its name, and where it ends."""
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
                    if not os.lstat(path).st_size:  # it was made all the same, and something broke in
                        os.unlink(path)
                raise
        raise AssertionError

    def _link_in_place(self, temporary: str) -> None:
        """Give a new session its name, unless something has that name."""
        try:
            os.link(temporary, self._real_path)
        except FileExistsError:
            raise self._build_exists_error() from None
        except OSError as error:
            if error.errno not in NO_LINK_ERRNOS:
                raise
            # We hold the lock, so at worst a program that takes none is in between.
            if os.path.lexists(self._real_path):
                raise self._build_exists_error() from None
            os.rename(temporary, self._real_path)

    def _create_backup(self) -> str:
        """The session file as it is now under another name, or a copy where a file can have only one."""
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
        """Tell what the system said. What somebody else did is theirs to tell, as a signal handler's `TimeoutError`."""
        if error.errno is None:
            raise error
        raise StoreError(self.location, format_os_error(error)) from error


_stores: WeakSet[JsonlStore] = WeakSet()


def _reset_stores_after_fork() -> None:
    for store in _stores:
        store.reset_after_fork()


os.register_at_fork(after_in_child=_reset_stores_after_fork)


class _FileShrank(Conflict):
    """The file ended earlier than when its size was asked."""


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """The whole lines of a session's file from where it is read, one after another, and no more than it has now."""
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
    """How much of the end of a file is whole lines; the very last may lack its newline."""
    last = data.rfind(b"\n") + 1
    # What is no JSON another writer may be half-way through, or a crash may have cut.
    return len(data) if last < len(data) and is_complete_line(data[last:]) else last
