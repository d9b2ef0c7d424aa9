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
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from os import write
from threading import get_ident
from typing import Literal, TypeAlias, TypeVar, get_args
from weakref import WeakSet

from sessiontree.errors import Conflict, InvalidOperation, NotFound, StoreError
from sessiontree.format.json_line import LINE_LIMIT
from sessiontree.format.session_reader import is_complete_line
from sessiontree.store.base import NEWLINE, Cursor, SyncGroup, join_in_parts, join_lines
from sessiontree.store.file_operations import (
    NO_LINK_ERRNOS,
    FolderMonitor,
    close_quietly,
    discard,
    format_os_error,
    get_identity,
    iter_numbered_paths,
    make_private_directory,
    read_all,
    sync_data,
    sync_directory,
    write_all,
)
from sessiontree.store.jsonl_file import CURSOR_CONTEXT_SIZE, MAX_LINE_SCAN, READ_FLAGS
from sessiontree.store.lock import LockWait, lock_file
from sessiontree.store.sibling_files import link_in_place, write_sibling_file
from sessiontree.store.torn_tail import RepairableFile

Durability: TypeAlias = Literal["fsync", "flush", "none"]
Result = TypeVar("Result")

WRITE_FLAGS = os.O_RDWR | os.O_APPEND
LOCK_NONBLOCKING = LOCK_EX | LOCK_NB


class JsonlStore(RepairableFile):
    """A session in a file of JSON lines."""

    def __init__(self, path: str, *, durability: Durability = "fsync") -> None:
        super().__init__(path)
        if durability not in get_args(Durability):
            raise InvalidOperation(
                f"durability {durability!r} not found; choose one of {', '.join(get_args(Durability))}"
            )
        self.durability: Durability = durability
        self.syncs_appends = durability == "fsync"
        self._group: SyncGroup | None = None
        """The appends that share the next sync, if a thread does several."""
        self._folder_monitor = FolderMonitor(self._folder)
        _stores.add(self)

    def create(self, lines: Sequence[bytes]) -> Cursor:
        make_private_directory(self._folder)
        return self._run_locked(lambda: self._create(lines))

    def _create(self, lines: Sequence[bytes]) -> Cursor:
        if os.path.lexists(self._real_path):
            raise self._build_exists_error()
        sync = self.durability != "none"
        # Written under another name first: no reader may see a session without a header.
        temporary, cursor = write_sibling_file(self._real_path, ".new", join_in_parts(lines, self.location), sync=sync)
        try:
            if not link_in_place(temporary, self._real_path):
                raise self._build_exists_error()
        finally:
            discard(temporary)
        try:
            if sync:
                sync_directory(self._folder)
        except OSError:
            discard(self._real_path)
            raise
        return cursor

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        identity, start, seen = after.value
        is_batch, is_noted = len(lines) > 1, False
        if is_batch or not lines or NEWLINE in lines[0] or len(lines[0]) > LINE_LIMIT:
            data = join_lines(lines, self.location)
        else:
            data = lines[0] + b"\n"
        if seen and seen[-1] != NEWLINE:
            lines, data = [b"", *lines], b"\n" + data
        at, lock = start, self._lock
        # `_run_locked` and `_unlock`, inlined: half the time of an append is function calls, and most have one line.
        try:
            lock.thread_lock.acquire()
            group = self._group
            if group is not None and group.owner != get_ident():
                group = None
            held = lock.open() if lock.fd is None else lock.fd
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
                or os.pread(fd, len(seen) + 1, start - len(seen)) != seen  # and there is nothing after it
            ):
                fd, at = self._check_names_and_end(after)
                if at > start and self._move_tail(fd, start, at):
                    at = start
                if at > start:  # another program may be writing the unfinished line: end it with a newline
                    lines, data = [b"", *lines], b"\n" + data
            if is_batch:
                is_noted = True
                lock.write_note(at, lines)
            try:
                done = write(fd, data)
                if done < len(data):
                    write_all(fd, data[done:])
                    done = len(data)
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
        if at > start or end != start + done:
            return after
        ending = data[-CURSOR_CONTEXT_SIZE:]
        if done < CURSOR_CONTEXT_SIZE:
            ending = (seen + data)[-CURSOR_CONTEXT_SIZE:]
        return Cursor((identity, end, ending))

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
        """Release the locks after an append that failed. Locks of its group are kept if earlier appends need them."""
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
        temporary, cursor = write_sibling_file(self._real_path, ".tmp", join_in_parts(lines, self.location), sync=True)
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

    def get_lock_wait(self) -> LockWait | None:
        with self._convert_read_errors():
            return self._lock.find_other_holder(self._read_fd if self._fd is None else self._fd, self.location)

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

    def _sync(self, fd: int, data: bytes, start: int) -> None:
        try:
            sync_data(fd)
        except OSError as error:
            if error.errno is None:  # raised by a signal handler
                raise
            self._poison(f"a sync failed ({format_os_error(error)}), and the content of the disk is unknown")
            self._roll_back(fd, data, start)
            raise

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
            return write_sibling_file(self._real_path, ".bak", [read_all(fd, 0, os.fstat(fd).st_size)], sync=True)[0]
        finally:
            os.close(fd)

    def _build_exists_error(self) -> StoreError:
        return StoreError(self.location, "the file exists already")


_stores: WeakSet[JsonlStore] = WeakSet()


def _reset_stores_after_fork() -> None:
    for store in _stores:
        store.reset_after_fork()


os.register_at_fork(after_in_child=_reset_stores_after_fork)
