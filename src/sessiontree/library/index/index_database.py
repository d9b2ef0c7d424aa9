"""The index file: opened, checked, and rebuilt when it is missing, damaged or of another version.

Many processes may use it at once. Readers never wait for writers (WAL), and writers use short transactions. Everything
that is read has a checksum, because a flipped byte would hide sessions or hits; a wrong checksum counts as damage. If
the file cannot be used at all (disk full, no permission, not a regular file), a temporary index in memory replaces it.
While another process holds the lock, a copy in memory does.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import zlib
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Literal, TypeVar

import msgspec

from sessiontree.errors import LockTimeout, StoreError
from sessiontree.library.session_files import OpenStore
from sessiontree.store import lock
from sessiontree.store.file_operations import make_private_directory
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.lock import FileLock, get_lock_path

INDEX_NAME = "index.db"
INDEX_VERSION = 8
"""Changes with the tables below, the text that is indexed, and what counts as undamaged. Other versions are rebuilt."""
BUSY_SECONDS = 5.0
LOCK_SECONDS = 1.0
"""Seconds to wait for the index. Sessions can be listed without it."""
COPY_LIMIT = 1 << 28
"""A larger index, in bytes, is not copied while it is locked."""
PAGE_SIZE = 1 << 14
"""Bytes per page of the file. A listing reads all pages."""

SCHEMA = f"""
CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path BLOB NOT NULL UNIQUE,
    folder BLOB NOT NULL,
    size INTEGER NOT NULL,
    mtime INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    summary BLOB NOT NULL,
    summary_check INTEGER NOT NULL,         -- the checksum of `summary`
    generation INTEGER NOT NULL DEFAULT 0,  -- how often the file was read from the start
    kind INTEGER NOT NULL,                  -- a `ReadMode`
    body INTEGER NOT NULL,                  -- offset of the first line after the header
    read_to INTEGER NOT NULL,               -- offset after the last complete line
    mark INTEGER NOT NULL,                  -- checksum of the start and of the bytes before read_to
    tally BLOB,                             -- totals up to read_to; NULL: read again from the start
    text_to INTEGER NOT NULL DEFAULT 0,     -- offset after the last chunk
    checksum INTEGER                        -- of all other columns but `summary`
);
CREATE INDEX files_by_folder ON files (folder);
CREATE TABLE entries (
    file INTEGER NOT NULL,
    first INTEGER NOT NULL,                 -- the number of the first entry
    entries BLOB NOT NULL,                  -- encoded `EntryLinks`
    checksum INTEGER NOT NULL,
    PRIMARY KEY (file, first)
) WITHOUT ROWID;
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- never reused: words of removed chunks stay
    file INTEGER NOT NULL,
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    newest INTEGER NOT NULL,                -- the time of its newest entry
    is_full INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE INDEX chunks_by_file ON chunks (file, start);
CREATE VIRTUAL TABLE words USING fts5 (
    text, content='', columnsize=0, detail=none, tokenize='trigram case_sensitive 1'
);
CREATE TABLE words_check (checksum INTEGER);  -- of the tables behind `words`; NULL: unknown
INSERT INTO words_check VALUES (NULL);
PRAGMA user_version = {INDEX_VERSION};
"""
FILE_CHECKSUM = (
    "checksum_of(id, path, folder, size, mtime, inode, generation, kind, body, read_to, mark, tally, text_to)"
)
"""The SQL expression for the column `checksum` of `files`."""

# https://www.sqlite.org/rescode.html: the file is not a valid index, or a table is missing or different.
DAMAGE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH}

T = TypeVar("T")


class _IndexDamaged(Exception):
    """The index is damaged."""

    def __init__(self, inode: int) -> None:
        super().__init__(inode)
        self.inode = inode


class _IndexUnusable(Exception):
    """An index file cannot be used here."""


class _IndexLocked(_IndexUnusable):
    """Another process holds the lock."""


def compute_checksum(*values: int | bytes | None) -> int:
    return zlib.crc32(_encode(values))


_encode = msgspec.msgpack.Encoder().encode


class IndexDatabase:
    def __init__(self, connection: sqlite3.Connection, *, is_persistent: bool, wait_for_lock: bool = True) -> None:
        self.connection = connection
        self.is_persistent = is_persistent
        """Whether the index outlives this process."""
        self.wait_for_lock = wait_for_lock
        """Whether `save` waits for other writers. What it writes can be read from the session files again."""
        self.open_store: OpenStore = JsonlStore
        """Opens the store of a session file that has to be read."""
        self.execute = connection.execute
        connection.create_function("checksum_of", -1, compute_checksum, deterministic=True)

    @contextmanager
    def transaction(self, mode: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE") -> Generator[None]:
        """Run a transaction. A deferred one reads everything from one point in time."""
        self.execute(f"BEGIN {mode}")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:
                self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def save(self, work: Callable[[], None]) -> None:
        """Write in one transaction. Skip it while others write, unless `wait_for_lock` is set."""
        if not self.wait_for_lock:
            self.execute("PRAGMA busy_timeout = 0")
        try:
            with self.transaction():
                work()
        except sqlite3.OperationalError as error:
            if self.wait_for_lock or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
        finally:
            self.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")


def run_with_index(home: str, work: Callable[[IndexDatabase], T], *, wait_for_lock: bool = True) -> T:
    """Return what `work` returns for the index in the folder `home`. `work` may be called twice and must allow that."""
    path = os.path.join(home, INDEX_NAME)
    for _ in range(3):
        try:
            return _run_on_file(path, work, wait_for_lock)
        except _IndexDamaged as damaged:
            _remove_index(path, damaged.inode)
        except _IndexLocked:
            try:
                with closing(_copy_to_memory(path)) as connection:
                    return work(IndexDatabase(connection, is_persistent=False))
            except (sqlite3.Error, OSError, msgspec.MsgspecError, UnicodeDecodeError, IndexMismatch):
                break  # the process with the lock may be rebuilding it
        except _IndexUnusable:
            break
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(SCHEMA)
        return work(IndexDatabase(connection, is_persistent=False))


def _copy_to_memory(path: str) -> sqlite3.Connection:
    """Copy the index file to memory. The file is not changed."""
    from urllib.parse import quote

    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_size > COPY_LIMIT:
        raise OSError("not an index that can be copied")
    memory = sqlite3.connect(":memory:", isolation_level=None)
    try:
        address = f"file:{quote(path)}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=LOCK_SECONDS)) as source:
            source.backup(memory)
        if memory.execute("PRAGMA user_version").fetchone() != (INDEX_VERSION,):
            raise sqlite3.DatabaseError("an index of another version")
    except BaseException:
        memory.close()
        raise
    return memory


def _run_on_file(path: str, work: Callable[[IndexDatabase], T], wait_for_lock: bool) -> T:
    inode = 0
    try:
        # Keep others from removing the file while it is opened: SQLite finds its companion files by name.
        with _lock_index(path):
            inode = _create_file(path)
            connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                _prepare_connection(connection, inode)
            except BaseException:
                connection.close()
                raise
        with closing(connection):
            return work(IndexDatabase(connection, is_persistent=True, wait_for_lock=wait_for_lock))
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in DAMAGE_CODES:
            raise _IndexDamaged(inode) from error
        raise _IndexUnusable from error
    except (msgspec.MsgspecError, UnicodeDecodeError, IndexMismatch) as error:
        raise _IndexDamaged(inode) from error


class IndexMismatch(Exception):
    """Parts of the index contradict each other."""


def _create_file(path: str) -> int:
    """Return the inode of the index file. Create the file if it is missing."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.chmod(path, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise _IndexUnusable from error
    try:
        status = os.lstat(path)
    except OSError as error:
        raise _IndexUnusable from error
    if not stat.S_ISREG(status.st_mode):
        raise _IndexUnusable
    return status.st_ino


def _prepare_connection(connection: sqlite3.Connection, inode: int) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0 and not connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA}")
        connection.execute(f"PRAGMA application_id = {_compute_schema_checksum(connection)}")
        connection.execute("COMMIT")
    elif version != INDEX_VERSION or _read_application_id(connection) != _compute_schema_checksum(connection):
        raise _IndexDamaged(inode)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA cache_size = -32000")
    connection.execute("SELECT 1 FROM files").fetchone()


def _compute_schema_checksum(connection: sqlite3.Connection) -> int:
    """Compute a checksum of the schema: a flipped byte may change a table. It is stored as the application id."""
    rows: list[Any] = connection.execute("SELECT * FROM sqlite_schema").fetchall()
    return zlib.crc32(repr(rows).encode("utf-8", "replace")) >> 1  # unsigned


def _read_application_id(connection: sqlite3.Connection) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    return application


def _remove_index(path: str, inode: int) -> None:
    """Remove a damaged index, unless another process has done so."""
    try:
        with _lock_index(path):
            if os.lstat(path).st_ino == inode:
                for suffix in ("", "-wal", "-shm", "-journal"):
                    if os.path.lexists(path + suffix):
                        os.unlink(path + suffix)
    except (OSError, _IndexUnusable):
        return


@contextmanager
def _lock_index(path: str) -> Generator[None]:
    file_lock = FileLock(get_lock_path(path))
    with ExitStack() as stack:
        stack.callback(file_lock.close)
        try:
            make_private_directory(os.path.dirname(path))
            with lock.limit_wait(LOCK_SECONDS):
                stack.enter_context(file_lock)
        except LockTimeout as error:
            lock.report(f"the index is locked; continuing without it ({error})")
            raise _IndexLocked from error
        except (OSError, StoreError) as error:
            raise _IndexUnusable from error
        yield
