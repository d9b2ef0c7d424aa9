"""The index file: opened, checked, made anew when it is missing, damaged or of another version.

Many processes may use it at once: readers never wait for writers (WAL), and writers take turns,
a short transaction each. Whatever is read from it has a checksum, and a wrong one is damage too: a
flipped byte would hide sessions or hits. When it cannot be used at all (no room, no permission, something odd in
its place), work goes on with an index in memory, which is forgotten afterwards. So it does, with a copy
of what the file says, while another process keeps the lock.
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
from sessiontree.store import lock_wait
from sessiontree.store.files import make_private_directory
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.lock import FileLock, get_lock_path

INDEX_NAME = "index.db"
INDEX_VERSION = 7
"""Of the tables below, what `fulltext` finds, and what is taken for sound. Another in the file: it is made anew."""
BUSY_SECONDS = 5.0
LOCK_SECONDS = 1.0
"""How long the index is waited for: sessions can be listed without it."""
COPY_LIMIT = 1 << 28
"""A larger index is not copied while it is locked, in bytes."""
PAGE_SIZE = 1 << 14
"""Bytes of a page of the file: a listing reads them all, so there had better be few."""

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
    generation INTEGER NOT NULL DEFAULT 0,  -- counts how often the file was read from its beginning
    kind INTEGER NOT NULL,                  -- of `reading.Kind`
    body INTEGER NOT NULL,                  -- where the first line behind the header starts
    read_to INTEGER NOT NULL,               -- where the last whole line ends
    mark INTEGER NOT NULL,                  -- a checksum of the beginning, and of what stands before read_to
    tally BLOB,                             -- to go on counting from read_to; NULL: from the beginning
    text_to INTEGER NOT NULL DEFAULT 0,     -- where the last chunk ends
    checksum INTEGER                        -- of all other columns but `summary`
);
CREATE INDEX files_by_folder ON files (folder);
CREATE TABLE entries (
    file INTEGER NOT NULL,
    first INTEGER NOT NULL,                 -- the number of the first entry
    entries BLOB NOT NULL,                  -- what `digest.Kept` says of them
    checksum INTEGER NOT NULL,
    PRIMARY KEY (file, first)
) WITHOUT ROWID;
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- never used twice: words of chunks that are gone stay behind
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
CREATE TABLE words_check (checksum INTEGER);  -- of all that `words` is stored as; NULL: not counted yet
INSERT INTO words_check VALUES (NULL);
PRAGMA user_version = {INDEX_VERSION};
"""
FILE_CHECKSUM = (
    "checksum_of(id, path, folder, size, mtime, inode, generation, kind, body, read_to, mark, tally, text_to)"
)
"""In SQL, what stands in the column `checksum` of a row of `files`."""

# https://www.sqlite.org/rescode.html: the file is not what it should be, or a table is missing or another one.
DAMAGE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH}

T = TypeVar("T")


class _IndexDamaged(Exception):
    """What is in the index cannot be right."""

    def __init__(self, inode: int) -> None:
        super().__init__(inode)
        self.inode = inode


class _IndexUnusable(Exception):
    """There can be no index file here."""


class _IndexLocked(_IndexUnusable):
    """Another process keeps the lock."""


def compute_checksum(*values: int | bytes | None) -> int:
    return zlib.crc32(_encode(values))


_encode = msgspec.msgpack.Encoder().encode


class IndexDatabase:
    def __init__(self, connection: sqlite3.Connection, *, is_persistent: bool, wait_for_lock: bool = True) -> None:
        self.connection = connection
        self.is_persistent = is_persistent
        """Whether anybody will ever use again what is written here."""
        self.wait_for_lock = wait_for_lock
        """Whether what can be read again waits for its turn to be kept."""
        self.open_store: OpenStore = JsonlStore
        """Opens the store of a session file that has to be read."""
        self.execute = connection.execute
        connection.create_function("checksum_of", -1, compute_checksum, deterministic=True)

    @contextmanager
    def transaction(self, mode: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE") -> Generator[None]:
        """All of it or nothing; others wait for their turn. A deferred one reads all as it is in one moment."""
        self.execute(f"BEGIN {mode}")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:
                self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def save(self, work: Callable[[], None]) -> None:
        """Write what can be read again, all of it or nothing: nothing while others write, unless it `waits`."""
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
    """What `work` makes of the index in the folder `home`. It may be called again, so it must not do things twice."""
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
                break  # whoever has the lock may be making it anew
        except _IndexUnusable:
            break
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(SCHEMA)
        return work(IndexDatabase(connection, is_persistent=False))


def _copy_to_memory(path: str) -> sqlite3.Connection:
    """What the index file says, in memory. Nothing is written to the file, and nothing of it is taken away."""
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
        # Nobody takes the file away while it is being opened: its companions are found by name.
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
    """Things in the index do not go together."""


def _create_file(path: str) -> int:
    """The index file's inode; it is made when it is not there."""
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
    """A flipped byte there may make a table mean something else. It is kept where a file tells whose it is."""
    rows: list[Any] = connection.execute("SELECT * FROM sqlite_schema").fetchall()
    return zlib.crc32(repr(rows).encode("utf-8", "replace")) >> 1  # which has no sign


def _read_application_id(connection: sqlite3.Connection) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    return application


def _remove_index(path: str, inode: int) -> None:
    """Take a damaged index away, unless another process has done so."""
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
    lock = FileLock(get_lock_path(path))
    with ExitStack() as stack:
        stack.callback(lock.close)
        try:
            make_private_directory(os.path.dirname(path))
            with lock_wait.limit_wait(LOCK_SECONDS):
                stack.enter_context(lock)
        except LockTimeout as error:
            lock_wait.report(f"the index is locked: going on without it ({error})")
            raise _IndexLocked from error
        except (OSError, StoreError) as error:
            raise _IndexUnusable from error
        yield
