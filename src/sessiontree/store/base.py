"""The store protocol: the only door to disk or database.

A store keeps the lines of one session: bytes without newlines, the header first. It knows
no tree. Whoever appends says after which place; if the store has moved on since, nothing is
written and `Conflict` is raised. Methods are synchronous; async callers use a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from sessiontree.core.entries import EntryId
from sessiontree.errors import StoreError
from sessiontree.format.codec import LINE_LIMIT


class Cursor(Struct, frozen=True):
    """A place in a store up to which a reader has read. Opaque to everyone but its store."""

    value: Any


class LineChunk(NamedTuple):
    """What a store had to tell."""

    data: bytes
    """Whole lines, each with its newline; only the very last may lack one."""
    cursor: Cursor
    unfinished: bytes = b""
    """A last line that is not whole: cut by a crash, or still being written."""


class Store(Protocol):
    location: str
    """How messages name this session's place: a path or an address."""

    def create(self, lines: Sequence[bytes]) -> Cursor:
        """Make the session with these lines, all or none. Raises `StoreError` if it exists."""
        ...

    def read_end(self) -> LineChunk:
        """Where the lines end now, with no lines. Raises `NotFound`."""
        ...

    def read(self, after: Cursor | None = None, *, before: Cursor | None = None, limit: int | None = None) -> LineChunk:
        """The lines between two places, by default all; with `limit` about so many bytes of them, one line at least.

        Raises `NotFound`, and `Conflict` if what was read is gone.
        """
        ...

    def fetch(self, start: int, size: int) -> bytes:
        """Whole lines that were read before, again, without the last newline. Raises `Conflict` if they are gone."""
        ...

    def read_backward(self, before: Cursor) -> Iterator[tuple[bytes, bool]]:
        """Blocks of whole lines, the last ones first, each with whether it is the beginning of the session."""
        ...

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        """Add `lines`, all or none. Raises `Conflict`, with nothing written, if others wrote since `after`.

        Returns where they end; `after` itself if a program that takes no lock wrote in between, so that all of it has
        to be read.
        """
        ...

    def replace(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        """Put `lines` in the place of all lines, at once, and keep the old ones as a backup. Raises `Conflict`."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class IndexedStore(Protocol):
    """A store that finds lines by the ids in them, as one in a database does."""

    def find_ancestors(self, before: Cursor, id: EntryId, count: int) -> list[tuple[int, bytes]] | None:
        """The line with this id and those above it, by their parents, so many at most, each with where it stands.

        Nothing when there is no such line before that place; `None` where the index cannot tell.
        """
        ...


NEWLINE = 0x0A
"""As a number: Python looks for a byte in a third of the time that it takes to look for bytes."""

PART_SIZE = 1 << 20
"""How much of many lines is joined at once, in bytes: all of a long session would be twice in memory."""


def join_lines(lines: Sequence[bytes], where: str) -> bytes:
    """Lines as they are kept, each with its newline. Raises `StoreError` for one that cannot be."""
    if len(lines) == 1:
        line = lines[0]
        if NEWLINE in line or len(line) > LINE_LIMIT:
            raise _build_line_error(line, where)
        return line + b"\n"
    for line in lines:
        if NEWLINE in line or len(line) > LINE_LIMIT:
            raise _build_line_error(line, where)
    return b"\n".join([*lines, b""])


def join_in_parts(lines: Sequence[bytes], where: str) -> Iterator[bytes]:
    """`joined`, some lines at a time."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line)
        if size > PART_SIZE:
            yield join_lines(part, where)
            part, size = [], 0
    if part:
        yield join_lines(part, where)


def _build_line_error(line: bytes, where: str) -> StoreError:
    if NEWLINE in line:
        return StoreError(where, "a line cannot hold a newline")
    return StoreError(where, f"a line of {len(line)} bytes is over the limit of {LINE_LIMIT}")
