"""ZIP archives, as data exports are delivered: the conversations in their JSON files, read without unpacking them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from sessiontree.errors import FormatError, StoreError
from sessiontree.interop.base import HEAD_SIZE, Conversation, FileHead, ForeignFormat, MemoryFile
from sessiontree.interop.formats import detect_format
from sessiontree.regular_file import open_regular_file
from sessiontree.store.file_operations import format_os_error

ZIP_MAGIC = b"PK\x03\x04"
BLOCK_SIZE = 1 << 18
MAX_MEMBERS = 100_000
"""How many files an archive can have. The images of an export are files too."""
_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError, KeyError)
"""What `zipfile` raises for archives that are damaged, encrypted, or packed in an unknown way."""


def detect_archive(path: str) -> ForeignFormat | None:
    """Return the format of the first file in an archive that has one; `None` for other archives and damaged ones."""
    try:
        with _open_archive(path) as archive:
            return next((format for _, format in _iter_members(archive)), None)
    except (FormatError, StoreError):
        return None


def read_archive(path: str, format: ForeignFormat, max_size: int) -> Iterator[Conversation]:
    """Yield the conversations of all files of a format in an archive. Raises `FormatError` and `StoreError`."""
    with _open_archive(path) as archive:
        for name, found in _iter_members(archive):
            if found.name == format.name:
                yield from format.read(_MemberFile(archive, name, path, max_size), [])


class _MemberFile(MemoryFile):
    """A file in an archive, unpacked while it is read."""

    def __init__(self, archive: zipfile.ZipFile, member: str, path: str, max_size: int) -> None:
        super().__init__(f"{path}/{member}")
        self._archive = archive
        self._member = member
        self._path = path
        self._max_size = max_size

    def iter_blocks(self) -> Iterator[bytes]:
        size = 0
        with self._archive.open(self._member) as member:
            while block := member.read(BLOCK_SIZE):
                size += len(block)
                if size > self._max_size:
                    raise FormatError(self._path, f"{self._member} is longer than {self._max_size >> 20} MiB")
                yield block

    def iter_placed_lines(self) -> Iterator[tuple[int, bytes]]:
        return MemoryFile(self.name, b"".join(self.iter_blocks())).iter_placed_lines()


@contextmanager
def _open_archive(path: str) -> Generator[zipfile.ZipFile]:
    try:
        with open_regular_file(path) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except OSError as error:
        raise StoreError(path, format_os_error(error)) from error
    except _ERRORS as error:
        raise FormatError(path, f"the archive cannot be read: {error}") from error


def _iter_members(archive: zipfile.ZipFile) -> Iterator[tuple[str, ForeignFormat]]:
    """Yield the JSON files of an archive that have a foreign format."""
    for info in archive.infolist()[:MAX_MEMBERS]:
        if info.filename.endswith(".json"):
            data = _read_member(archive, info.filename, HEAD_SIZE + 1)
            head = FileHead(name=info.filename, data=data[:HEAD_SIZE], is_whole=len(data) <= HEAD_SIZE)
            format = detect_format(head)
            if format is not None:
                yield info.filename, format


def _read_member(archive: zipfile.ZipFile, name: str, size: int) -> bytes:
    """Return the start of a file in an archive: a small archive must not unpack to any size."""
    with archive.open(name) as member:
        return member.read(size)
