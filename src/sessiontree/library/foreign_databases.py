"""SQLite databases of other programs, opened for reading without creating a file next to them.

A read-only connection to a database in WAL mode creates the files of the log if they are missing. So a database whose
log is missing, which no program uses, is opened as immutable. A log without its index, left by a crash, is read from a
copy.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import quote

from sessiontree.errors import StoreError
from sessiontree.regular_file import open_regular_file

SQLITE_MAGIC = b"SQLite format 3\0"
WAL_VERSION = 2
"""The value of the two version bytes in the header of a database in WAL mode."""
BUSY_SECONDS = 5


@contextmanager
def convert_database_errors(path: str) -> Generator[None]:
    """Raise errors of SQLite as `StoreError`."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # names and messages of a damaged database can be any bytes
        raise StoreError(path, f"the database cannot be read: {error}") from error


def open_database(path: str) -> sqlite3.Connection:
    """Open a database for reading, with the log of a program that uses it. Raises `StoreError`."""
    address = f"file:{quote(os.path.abspath(path))}?mode=ro"
    log, index = f"{path}-wal", f"{path}-shm"
    with convert_database_errors(path):
        if not _is_in_wal_mode(path):
            return _connect(address)
        if not os.path.exists(log):
            return _connect(f"{address}&immutable=1")
        if os.path.exists(index):
            return _connect(address)
        return _connect_copy(path, log)


def _is_in_wal_mode(path: str) -> bool:
    try:
        with open_regular_file(path) as file:
            header = file.read(20)
    except OSError as error:
        raise StoreError(path, f"the database cannot be read: {error}") from error
    return header.startswith(SQLITE_MAGIC) and header[18:20] == bytes([WAL_VERSION, WAL_VERSION])


def _connect(address: str) -> sqlite3.Connection:
    database = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)
    database.text_factory = _decode_text
    return database


def _decode_text(data: bytes) -> str:
    """Return a text of the database. One bad byte does not make the rest unreadable."""
    return data.decode("utf-8", "replace")


def _connect_copy(path: str, log: str) -> sqlite3.Connection:
    """Return a database and its log in memory, read from a copy."""
    with tempfile.TemporaryDirectory(prefix="sessiontree-") as folder:
        copy = os.path.join(folder, "database")
        try:
            shutil.copyfile(path, copy)
            shutil.copyfile(log, f"{copy}-wal")
        except OSError as error:
            raise StoreError(path, f"the database cannot be read: {error}") from error
        writer = sqlite3.connect(copy)
        memory = _connect("file::memory:")
        try:
            writer.backup(memory)
        finally:
            writer.close()
        return memory
