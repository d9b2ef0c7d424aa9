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
from sessiontree.format.jsonl import is_whole_line
from sessiontree.store.base import NEWLINE, Chunk, Cursor, joined, joined_parts
from sessiontree.store.batch import end_of
from sessiontree.store.files import (
    NO_LINKS,
    Folder,
    Identity,
    blanked,
    cut_if_alone,
    discard,
    identity_of,
    make_private_directory,
    numbered,
    open_at_once,
    read_all,
    reason_of,
    shut,
    sync_data,
    sync_directory,
    write_all,
)
from sessiontree.store.lock import Lock, lock_of
from sessiontree.store.waiting import Wait, take

Durability: TypeAlias = Literal["fsync", "flush", "none"]
Done = TypeVar("Done")

READ, WRITE = os.O_RDONLY, os.O_RDWR | os.O_APPEND
QUIETLY: int = getattr(os, "O_NOATIME", 0)
"""Nobody is told when the end of the file was last looked at, which takes a fifth of looking. For its owner alone."""
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
LONGEST = 4 * LINE_LIMIT
"""A line that goes on for so many bytes is not read to its end. A shorter one is, and passed over if it is too long."""
LOCK_NOW = LOCK_EX | LOCK_NB
MANY = 1 << 16
"""So many bytes are better not copied."""
SEEN = 64
"""How many bytes before its place a cursor remembers, to notice that they were changed."""


class JsonlStore:
    _fd: int | None = None
    _read_fd: int | None = None

    def __init__(self, path: str, *, durability: Durability = "fsync") -> None:
        self.path = self.where = path
        if durability not in get_args(Durability):
            raise InvalidOperation(f"there is no durability {durability!r}: only {', '.join(get_args(Durability))}")
        self.durability: Durability = durability
        self._syncs = durability == "fsync"
        self._fd_identity: Identity | None = None
        self._identity: Identity | None = None
        self._poisoned: str | None = None
        self.set_aside: list[str] = []
        """Files that unfinished last lines and batches were moved to."""
        try:
            # The file itself: all who reach it, through links too, must share its lock.
            self._file = os.path.realpath(path)
        except ValueError:
            raise StoreError(repr(path), "not the name of a file") from None
        except FileNotFoundError:
            raise StoreError(path, "the current folder was deleted") from None
        self._folder = os.path.dirname(self._file)
        self._names = Folder(self._folder)
        self._lock = Lock(lock_of(self._file))
        _stores.add(self)

    def create(self, lines: Sequence[bytes]) -> Cursor:
        make_private_directory(self._folder)
        return self._alone(lambda: self._create(lines))

    def _create(self, lines: Sequence[bytes]) -> Cursor:
        if os.path.lexists(self._file):
            raise self._exists()
        sync = self.durability != "none"
        # Written under another name first, so that nobody ever sees a session without a header.
        temporary, cursor = self._written_beside(".new", joined_parts(lines, self.where), sync=sync)
        try:
            self._put_in_place(temporary)
        finally:
            discard(temporary)
        try:
            if sync:
                sync_directory(self._folder)
        except OSError:
            discard(self._file)
            raise
        return cursor

    def end(self) -> Chunk:
        with self._reading():
            self._forget()
            return self._in_place(self._readable(), self._end)

    def _end(self, fd: int) -> Chunk:
        size, cut = end_of(fd, self._lock.path)
        if cut is None:
            start, tail = size, b""
            while start > 0 and b"\n" not in tail:
                self._check_length(len(tail))
                start = max(0, start - max(1 << 12, len(tail)))
                tail = self._all(fd, start, size - start)
            end = start + whole_lines(tail)
            unfinished = tail[end - start :]
        else:
            end, unfinished = cut, self._all(fd, cut, size - cut)
        seen = min(SEEN, end)
        return Chunk(b"", Cursor((self._identity, end, self._all(fd, end - seen, seen))), unfinished)

    def read(self, after: Cursor | None = None, *, before: Cursor | None = None, limit: int | None = None) -> Chunk:
        with self._reading():
            if before is None:
                if after is None:
                    self._forget()
                else:
                    self._check_in_place(after)
            return self._in_place(self._readable(), lambda fd: self._read(fd, after, before, limit))

    def _read(self, fd: int, after: Cursor | None, before: Cursor | None, limit: int | None) -> Chunk:
        start, seen, behind = 0, b"", b""
        if after is not None:
            self._check_seen(fd, after)
            _, start, seen = after.value
        if before is None:
            stop, cut = end_of(fd, self._lock.path)
            if cut is not None and cut >= start:
                stop, behind = cut, self._all(fd, cut, stop - cut)
            if stop > start and seen and not seen.endswith(b"\n"):
                ended = self._ended_since(fd, start)
                start, seen = start + len(ended), seen + ended
        else:
            self._check_seen(fd, before)
            stop = before.value[1]
        end = stop
        if limit is not None and start + limit < stop:
            # Found first: cutting it off what was read would copy all the rest.
            end = self._line_end(fd, start + limit, stop)
        data, unfinished = self._all(fd, start, end - start), b""
        if end == stop:
            if before is None and not behind:
                whole = whole_lines(data)
                data, behind = data[:whole], data[whole:]
            unfinished = behind
        return Chunk(data, Cursor((self._identity, start + len(data), (seen + data[-SEEN:])[-SEEN:])), unfinished)

    def _line_end(self, fd: int, start: int, stop: int) -> int:
        """Where the line ends that `start` is in, or `stop`."""
        begun, size = start, 1 << 12
        while start < stop:
            self._check_length(start - begun)
            data = self._all(fd, start, min(size, stop - start))
            found = data.find(b"\n") + 1
            if found:
                return start + found
            start, size = start + len(data), min(size * 2, 1 << 20)
        return stop

    def _in_place(self, fd: int, read: Callable[[int], Chunk]) -> Chunk:
        """What `read` gives, if it is there: a batch that a dead writer left half done may be set aside meanwhile."""
        for _ in range(100):
            try:
                chunk = read(fd)
            except _Shorter:
                continue
            _, end, seen = chunk.cursor.value
            if os.pread(fd, len(seen), end - len(seen)) == seen:
                return chunk
        raise self._truncated()

    def fetch(self, start: int, size: int) -> bytes:
        before = 1 if start else 0
        try:
            fd = self._readable()
            if size < MANY:
                data = read_all(fd, start - before, before + size + 1)
                around, data = data[:before] + data[before + size :], data[before : before + size]
            else:  # asking twice more takes less time than copying it
                data = read_all(fd, start, size)
                around = os.pread(fd, before, start - before) + os.pread(fd, 1, start + size)
        except OSError as error:
            self._fail(error)
        if len(data) < size:
            raise self._truncated()
        if around.strip(b"\n"):  # lines stand between newlines; the very last may lack one
            raise self._changed()
        return data

    def backward(self, before: Cursor) -> Iterator[tuple[bytes, bool]]:
        with self._reading():
            fd = self._readable()
            end, size = before.value[1], 1 << 16
            rest: list[bytes] = []  # of a line that begins further up, its end first
            if end and os.pread(fd, 1, end - 1) != b"\n":
                rest = [b"\n"]  # a whole last line that lacks it
        while end > 0:
            start = max(0, end - size)
            with self._reading():
                data = self._all(fd, start, end - start)
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

    @contextmanager
    def _reading(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self._fail(error)
        except MemoryError:
            raise StoreError(self.where, "there is not enough memory to read it") from None

    def _readable(self) -> int:
        """The file that was first opened, even if another one stands in its place by now."""
        if self._read_fd is None:
            fd = self._open(READ)
            identity = identity_of(os.fstat(fd))
            if self._identity not in (None, identity):
                shut(fd)
                raise self._replaced()
            self._identity = identity
            self._read_fd = fd
        return self._read_fd

    def _check_in_place(self, cursor: Cursor) -> None:
        """The file that was read up to `cursor` is still the one at the path."""
        try:
            there = os.stat(self._file)
        except FileNotFoundError:
            raise Conflict(self.where, "the file was deleted by another program") from None
        if identity_of(there) != cursor.value[0]:
            raise self._replaced()

    def _check_seen(self, fd: int, after: Cursor, status: os.stat_result | None = None) -> int:
        """Refuse to go on from `after` in a file that is not the one that was read up to there; its size."""
        identity, start, seen = after.value
        status = status or os.fstat(fd)
        if identity != (status.st_dev, status.st_ino):
            raise self._replaced()
        if status.st_size < start:
            raise self._truncated()
        if os.pread(fd, len(seen), start - len(seen)) != seen:
            raise self._changed()
        return status.st_size

    def after_take_back(self, cursor: Cursor) -> Cursor | None:
        """The same place, if all that happened to what was read before it is that a writer took its last lines back.

        Those are blank then; see `_take_back`. `None` if something else happened.
        """
        identity, start, seen = cursor.value
        with self._reading():
            fd = self._readable()
            now = os.pread(fd, len(seen), start - len(seen))
            is_same = identity_of(os.fstat(fd)) == identity
        blank_end = now[len(now.rstrip()) :]
        kept = len(now) - len(blank_end)
        if not is_same or len(now) < len(seen) or not now.endswith(b"\n") or now == seen:
            return None
        # Lines are blanked as a whole: what is left before them ends with its newline, unless it is out of sight.
        if now[:kept] != seen[:kept] or (kept and not blank_end.startswith(b"\n")):
            return None
        return Cursor((identity, start, now))

    def _ended_since(self, fd: int, start: int) -> bytes:
        """The newline of a line that was whole but for it when it was read up to `start`."""
        byte = os.pread(fd, 1, start)
        if byte not in (b"", b"\n"):
            raise Conflict(self.where, "a line was changed by another program")
        return byte

    def _all(self, fd: int, start: int, size: int) -> bytes:
        """Bytes that the file had when it was looked at."""
        data = read_all(fd, start, size)
        if len(data) < size:
            raise _Shorter(self.where, "the file was truncated by another program")
        return data

    def _check_length(self, size: int) -> None:
        if size > LONGEST:
            raise StoreError(self.where, f"a line goes on for more than {LONGEST >> 20} MiB")

    def _replaced(self) -> Conflict:
        return Conflict(self.where, "the file was replaced by another program")

    def _changed(self) -> Conflict:
        return Conflict(self.where, "the file was changed by another program")

    def _truncated(self) -> Conflict:
        return Conflict(self.where, "the file was truncated by another program")

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        identity, start, seen = after.value
        is_batch, is_noted = len(lines) > 1, False
        if seen and seen[-1] != NEWLINE:
            lines = [b"", *lines]
        data = joined(lines, self.where)
        size, before, at, lock = len(data), len(seen), start, self._lock
        # As `_alone` would do it, in one run: half of an append's time is calls, and most are of one line.
        try:
            lock.turn.acquire()
            held = lock.fd
            if held is None:
                held = lock.open()
            try:
                flock(held, LOCK_NOW)
            except BlockingIOError:
                take(held, lock.path)
            fd = self._fd
            if fd is not None:
                try:
                    flock(fd, LOCK_NOW)
                except BlockingIOError:
                    take(fd, self.where)
            if (
                fd is None
                or is_batch
                or identity != self._fd_identity
                or self._poisoned is not None
                or not self._names.is_still()
                or os.pread(fd, before + 1, start - before) != seen  # and nothing behind it
            ):
                fd, at = self._looked_at(after)
                if at > start and self._move_tail(fd, start, at):
                    at = start
                if at > start:  # the unfinished line may be another program's: it stays, and is ended
                    lines, data, size = [b"", *lines], b"\n" + data, size + 1
            if is_batch:
                is_noted = True
                lock.note(at, lines)
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
            if self._syncs:
                self._sync(fd, data, at)
            try:
                end = os.lseek(fd, 0, os.SEEK_CUR)
            except OSError as error:
                if error.errno is None:
                    raise
                end = None  # the system cannot tell
            if is_noted:
                lock.clear()
                is_noted = False
            self._unlock()
        except BaseException as error:
            try:
                if is_noted and self._poisoned is None:
                    lock.clear()
            finally:  # something may break in on that, too
                self._recover()
            if isinstance(error, OSError):
                self._fail(error)
            raise
        if at > start or end != start + size:
            return after
        return Cursor((identity, end, data[-SEEN:] if size >= SEEN else (seen + data)[-SEEN:]))

    def replace(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        return self._alone(lambda: self._replace(lines, after))

    def _replace(self, lines: Sequence[bytes], after: Cursor) -> Cursor:
        old, size = self._at(after)
        temporary, cursor = self._written_beside(".tmp", joined_parts(lines, self.where), sync=True)
        try:
            backup = self._backed_up()
            try:
                sync_directory(self._folder)
                if os.fstat(old).st_size != size:
                    raise Conflict(self.where, "another program wrote while it was being rewritten")
                os.replace(temporary, self._file)
            except BaseException:  # also when it was done and something broke in
                if self._stands(after):
                    discard(backup)
                raise
        finally:
            discard(temporary)
        start = after.value[1]
        rest = read_all(old, start, os.fstat(old).st_size - start)
        if rest:  # unfinished, or it came in the moment between the look and the change of names
            self._set_aside(start, rest)
        try:
            sync_directory(self._folder)
        except OSError as error:
            if error.errno is None:
                raise
            self._poison(f"whether it was rewritten is not known since a sync failed ({reason_of(error)})")
            raise
        self._let_go()
        self._forget()
        return cursor

    def leave(self, tail: bytes, *, after: Cursor) -> None:
        """Keep what a session has behind its last newline, as it is: for copies. Raises `Conflict`."""
        self._alone(lambda: self._leave(tail, after))

    def _leave(self, tail: bytes, after: Cursor) -> None:
        start = after.value[1]
        fd, there = self._standing()
        if self._check_seen(fd, after, there) > start:
            raise Conflict(self.where, "others wrote first")
        try:
            write_all(fd, tail)
        except BaseException:
            self._roll_back(fd, tail, start)
            raise
        if self._syncs:
            self._sync(fd, tail, start)

    def modified(self) -> int:
        """When it was last written to, in nanoseconds since the epoch."""
        with self._reading():
            return os.stat(self._file).st_mtime_ns

    def predate(self, moment: int) -> None:
        """Have it say that it was written to no later than then, where the file system lets us: for copies."""
        with suppress(OSError):
            there = os.stat(self._file)
            if there.st_mtime_ns > moment:
                os.utime(self._file, ns=(there.st_atime_ns, moment))

    def _forget(self) -> None:
        """Read from what stands at the path now."""
        self._identity = None
        self._stop_reading()

    def _stop_reading(self) -> None:
        fd, self._read_fd = self._read_fd, None  # first: what breaks in must not leave a number that is another file's
        shut(fd)

    def close(self) -> None:
        self._stop_reading()
        try:
            if self._fd is not None and self.durability == "flush":
                sync_data(self._fd)
        except OSError as error:
            self._fail(error)
        finally:
            self._let_go()
            self._lock.close()
            self._names.close()

    def __del__(self) -> None:
        shut(self._read_fd)
        shut(self._fd)

    # Opening

    def _open(self, flags: int) -> int:
        try:
            try:
                fd = open_at_once(self._file, flags | QUIETLY)
            except PermissionError:
                fd = open_at_once(self._file, flags)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound("session file", self.where) from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise StoreError(self.where, "not a regular file")
        except (OSError, StoreError):
            shut(fd)
            raise
        return fd

    def _let_go(self, *, unlocks: bool = True) -> None:
        fd, self._fd, self._fd_identity = self._fd, None, None
        try:
            if fd is not None and unlocks:
                with suppress(OSError):
                    flock(fd, LOCK_UN)  # not by closing alone: we may read by the same open file, see `_share_file`
        finally:
            shut(fd)

    def _standing(self) -> tuple[int, os.stat_result]:
        """The file at the path, open, and nothing left in it of a batch whose writer died."""
        if self._poisoned is not None:
            raise StoreError(self.where, f"{self._poisoned}: open it anew before writing")
        try:
            there = os.stat(self._file)
            fd = self._fd
            if fd is not None and (there.st_dev, there.st_ino) != self._fd_identity:
                # Another stands in its place, of ours too if something broke in on a rewrite. What is written to it
                # lasts no longer than its name.
                sync_directory(self._folder)
                fd = self._let_go()
            if fd is None:
                fd = self._fd = self._open(WRITE)
                take(fd, self.where)
                there = os.fstat(fd)
                self._fd_identity = identity_of(there)
        except (FileNotFoundError, NotFound):
            self._let_go()
            raise Conflict(self.where, "the file was deleted by another program") from None
        return fd, self._settled(fd, there) if self._lock.has_note else there

    def _stands(self, cursor: Cursor) -> bool:
        """Whether the file that `cursor` is a place of is still the one at the path."""
        try:
            return identity_of(os.stat(self._file)) == cursor.value[0]
        except OSError:
            return False

    def _at(self, after: Cursor) -> tuple[int, int]:
        """The open file, if no line stands behind `after`, and where it ends: an unfinished line may stand there."""
        fd, there = self._standing()
        _, start, seen = after.value
        size = self._check_seen(fd, after, there)
        if size > start:
            tail = read_all(fd, start, min(size - start, LONGEST + 1))
            if b"\n" in tail or seen[-1:] not in (b"", b"\n"):
                raise Conflict(self.where, "others wrote first")
            self._check_length(len(tail))
            if is_whole_line(tail):
                raise Conflict(self.where, "others wrote first")
        return fd, size

    def _looked_at(self, after: Cursor) -> tuple[int, int]:
        """The same, after a close look at all names: they are believed to stay until their folder changes."""
        self._lock.confirm()
        fd, size = self._at(after)
        self._names.believe()
        return fd, size

    def _settled(self, fd: int, there: os.stat_result) -> os.stat_result:
        """The same, without what a dead writer left of a batch: that is copied to a file of its own."""
        start = self._lock.begun(fd, there.st_size)
        if start is not None:
            left = self._all(fd, start, there.st_size - start)
            self._set_aside(start, left)
            self._take_back(fd, start, left)
        self._lock.clear()
        return os.fstat(fd)

    def _take_back(self, fd: int, start: int, written: bytes) -> None:
        """Remove bytes that a holder of the lock wrote to the end of the file, and nothing that stands behind them."""
        if not written:
            return
        self._share_file()
        if cut_if_alone(fd, start + len(written), start):
            return
        over = self._open(os.O_RDWR)  # not for appending: the system would put it at the end
        try:
            if identity_of(os.fstat(over)) != identity_of(os.fstat(fd)):
                raise Conflict(self.where, "the file was replaced by another program")
            blank, done = blanked(written), 0
            while done < len(blank):
                done += os.pwrite(over, memoryview(blank)[done:], start + done)
        finally:
            shut(over)

    def _share_file(self) -> None:
        """Read by the same open file as we write: `cut_if_alone` takes another one for somebody else's."""
        fd, reading = self._fd, self._read_fd
        if fd is not None and reading is not None and self._identity == self._fd_identity:
            os.dup2(fd, reading, inheritable=False)  # at once: other threads may be reading

    def wait_for_lock(self) -> Wait | None:
        """A wait for the process that is writing to the session, if there is one; see `waiting`."""
        with self._reading():
            return self._lock.other_holder()

    def after_fork(self) -> None:
        """In a process that was forked: its parent's open files have the parent's locks, and would outlive it."""
        reading, self._read_fd = self._read_fd, None
        if reading is not None and self._fd is not None:
            with suppress(OSError):  # where the system has no such names, it is opened again by its own
                self._read_fd = os.open(f"/proc/self/fd/{reading}", READ | os.O_CLOEXEC)
            shut(reading)
        else:
            self._read_fd = reading
        self._let_go(unlocks=False)  # that would unlock the parent's

    @contextmanager
    def held(self) -> Generator[None]:
        """While it is entered nobody else writes, and there is nothing left of a batch whose writer died.

        Raises `StoreError`, and `LockTimeout` if another process keeps the lock.
        """
        reading = None
        try:
            try:
                self._lock.acquire()
                if self._lock.has_note:
                    if self._fd is not None:
                        take(self._fd, self.where)
                    self._standing()
                else:
                    reading = self._open(READ)  # it may be a file that nobody can write to
                    take(reading, self.where)
            except OSError as error:
                self._fail(error)
            yield
            self._unlock()
        except BaseException:
            self._recover()
            raise
        finally:
            if reading is not None:
                with suppress(OSError):
                    flock(reading, LOCK_UN)  # a process forked meanwhile has it open, too
                shut(reading)

    def _alone(self, work: Callable[[], Done]) -> Done:
        """What `work` gives, while nobody else writes. The lock is nobody's afterwards, whatever breaks in."""
        try:
            self._lock.acquire()
            if self._fd is not None:
                take(self._fd, self.where)
            done = work()
            self._unlock()
            return done
        except BaseException as error:
            self._recover()
            if isinstance(error, OSError):
                self._fail(error)
            raise

    def _unlock(self) -> None:
        """Let go of the lock on the file, then of the one on the lock file."""
        fd = self._fd
        if fd is not None:
            try:
                flock(fd, LOCK_UN)
            except OSError as error:
                self._let_go()
                if error.errno is None:
                    raise
        self._lock.release()

    def _recover(self) -> None:
        """Let go of both locks after something failed or broke in."""
        try:
            if self._lock.is_ours:
                self._unlock()
        finally:  # something may break in on that, too
            if self._lock.is_ours:
                try:
                    self._let_go()
                finally:
                    self._lock.give_up()

    # Writing

    def _sync(self, fd: int, data: bytes, start: int) -> None:
        try:
            sync_data(fd)
        except OSError as error:
            if error.errno is None:  # a signal handler's
                raise
            self._poison(f"what is on the disk is not known since a sync failed ({reason_of(error)})")
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
            self._take_back(fd, start, data[:written])
            self._poisoned = before
        except OSError as error:
            if error.errno is None:
                raise
            self._poison(f"a failed write could not be taken back ({reason_of(error)})")

    def _roll_back_part(self, fd: int, data: bytes, start: int) -> None:
        """The same when something broke in. If all was written, others may have read it, so it stays."""
        if read_all(fd, start, len(data)) != data:
            self._roll_back(fd, data, start)

    def _poison(self, reason: str) -> None:
        self._poisoned = reason

    def _move_tail(self, fd: int, start: int, size: int) -> bool:
        """Move an unfinished last line to a file of its own, if nobody can be writing it. Says whether it was moved."""
        self._set_aside(start, self._all(fd, start, size - start))
        self._share_file()
        if cut_if_alone(fd, size, start):
            return True
        discard(self.set_aside.pop())
        return False

    def _set_aside(self, start: int, tail: bytes) -> None:
        path, _ = self._written_beside(f".torn-{start}", [tail], sync=True)
        sync_directory(self._folder)
        self.set_aside.append(path)

    def _written_beside(self, suffix: str, parts: Iterable[bytes], *, sync: bool) -> tuple[str, Cursor]:
        """A new file beside the session, whole or not at all; its name, and where it ends."""
        path, fd = self._created(suffix)
        size, seen = 0, b""
        try:
            try:
                os.fchmod(fd, 0o600)
                for part in parts:
                    write_all(fd, part)
                    size, seen = size + len(part), (seen + part[-SEEN:])[-SEEN:]
                if sync:
                    os.fsync(fd)
                return path, Cursor((identity_of(os.fstat(fd)), size, seen))
            finally:
                os.close(fd)
        except BaseException:
            discard(path)
            raise

    def _created(self, suffix: str) -> tuple[str, int]:
        for path in numbered(f"{self._file}{suffix}"):
            try:
                return path, os.open(path, NEW | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                continue
            except BaseException:
                with suppress(OSError):
                    if not os.lstat(path).st_size:  # it was made all the same, and something broke in
                        os.unlink(path)
                raise
        raise AssertionError

    def _put_in_place(self, temporary: str) -> None:
        """Give a new session its name, unless something has that name."""
        try:
            os.link(temporary, self._file)
        except FileExistsError:
            raise self._exists() from None
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # We hold the lock, so at worst a program that takes none is in between.
            if os.path.lexists(self._file):
                raise self._exists() from None
            os.rename(temporary, self._file)

    def _backed_up(self) -> str:
        """The session file as it is now under another name, or a copy where a file can have only one."""
        for path in numbered(f"{self._file}.bak"):
            try:
                os.link(self._file, path)
            except FileExistsError:
                continue
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                break
            try:
                os.chmod(path, 0o600)
            except BaseException:
                discard(path)
                raise
            return path
        fd = self._open(READ)
        try:
            return self._written_beside(".bak", [read_all(fd, 0, os.fstat(fd).st_size)], sync=True)[0]
        finally:
            os.close(fd)

    def _exists(self) -> StoreError:
        return StoreError(self.where, "the file exists already")

    def _fail(self, error: OSError) -> NoReturn:
        """Tell what the system said. What somebody else did is theirs to tell, as a signal handler's `TimeoutError`."""
        if error.errno is None:
            raise error
        raise StoreError(self.where, reason_of(error)) from error


_stores: WeakSet[JsonlStore] = WeakSet()


def _forked() -> None:
    for store in _stores:
        store.after_fork()


os.register_at_fork(after_in_child=_forked)


class _Shorter(Conflict):
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
                elif is_whole_line(line):
                    yield line
    except OSError as error:
        raise StoreError(str(file.name), reason_of(error)) from error


def whole_lines(data: bytes) -> int:
    """How much of the end of a file is whole lines; the very last may lack its newline."""
    last = data.rfind(b"\n") + 1
    # What is no JSON another writer may be half-way through, or a crash may have cut.
    return len(data) if last < len(data) and is_whole_line(data[last:]) else last
