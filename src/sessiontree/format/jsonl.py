"""JSON Lines: the bytes of a session file to a header, entries and problems, and nothing lost.

A `Reader` takes the bytes as they come and can go on where it stopped. Lines are split at
`\\n` bytes alone. What cannot be read stays as a line and is reported; older dialects are
migrated in memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from sessiontree.core.entries import Chain, Entry, Header, JsonObject, Problem
from sessiontree.core.messages import string
from sessiontree.core.problems import is_utf8
from sessiontree.errors import FormatError
from sessiontree.format.codec import (
    LINE_LIMIT,
    VERSION,
    NotJson,
    Reading,
    read_body,
    read_header,
    read_line,
    read_object,
    scan,
)
from sessiontree.format.migrations import Dialect, current_header, dialect_of

Fetch: TypeAlias = Callable[[int, int], bytes]
"""Whole lines of the file, the last without its newline: from where, how many bytes."""

BOM = b"\xef\xbb\xbf"
"""What some editors put before everything."""

PREAMBLE_LIMIT = 1 << 20
"""Where nothing up to here is a header, nothing behind it is looked for, in bytes."""

REPORTED = 1000
"""So many lines that cannot be read are reported one by one; of the others, how many they are."""

FETCH = 1 << 18
"""How much is fetched at once where many lines are wanted, in bytes."""


class Reader(Reading):
    """A session's lines, and the source that its entries have their bytes from.

    With `fetch` the lines stay where they are, and only their places are kept; a file of an older dialect is
    kept in memory as version 3 has it.
    """

    def __init__(self, where: str = "session", fetch: Fetch | None = None) -> None:
        self.where = where
        self.preamble: list[bytes] = []
        """Lines before the header: a title slot, or what cannot be read."""
        self.unread = 0
        """How many lines could not be read."""
        self.dialect: str | None = None
        """The older dialect that the file is in, if it is."""
        self._problems: list[Problem] = []
        self._last_unread = 0
        self._fetch = fetch
        self._held: list[bytes] = []
        self._header: Header | None = None
        self._title: str | None = None
        self._offsets = array("Q", [0])
        self._choose: Callable[[JsonObject], Dialect] | None = None
        self._migrate: Dialect | None = None

    @property
    def number(self) -> int:
        """How many lines were read."""
        return len(self._offsets) - 1

    @property
    def has_header(self) -> bool:
        return self._header is not None

    @property
    def header(self) -> Header:
        if self._header is None:
            lines = "its only line" if self.number == 1 else f"its {self.number} lines"
            reason = f"no session header in {lines}" if self.number else "the file is empty"
            raise FormatError(self.where, reason)
        return self._header

    @property
    def problems(self) -> list[Problem]:
        """What is wrong with lines, or worth knowing of them, in file order."""
        more = self.unread - REPORTED
        if more <= 0:
            return self._problems
        message = f"{more:,} more that cannot be read, the last of them line {self._last_unread:,}"
        return [*self._problems, Problem(kind="malformed_line", severity="fault", message=message)]

    @property
    def title(self) -> str | None:
        """The name that peers keep in a title slot or in the header."""
        return self._title if self._title is not None else self.header.title

    @property
    def needs_rewrite(self) -> bool:
        """Whether the file must be rewritten before anything can be appended to it."""
        return self.header.version < VERSION

    @property
    def is_newer(self) -> bool:
        return self.header.version > VERSION

    def feed(self, data: bytes) -> list[Entry | Chain]:
        """Take in more bytes, whole lines, and return what is in them, in order."""
        if data and not data.endswith(b"\n"):
            data += b"\n"
        items: list[Entry | Chain] = []
        start = 0
        while start < len(data) and (self._header is None or self._choose is not None):
            end = data.index(b"\n", start)
            self._take(data[start:end], items)
            start = end + 1
        if start < len(data):
            self._scan(data[start:] if start else data, items)
        return items

    def wrote(self, items: Sequence[Entry | Chain], lines: Sequence[bytes]) -> None:
        """Take in what was written behind all others, as these lines of version 3, without reading them."""
        offsets = self._offsets
        line = len(offsets)
        for item in items:
            item.line, item.source = line, self
            line += len(item) if isinstance(item, Chain) else 1
        end = offsets[-1]
        for raw in lines:
            end += len(raw) + 1
            offsets.append(end)
        if self._fetch is None:
            self._held.extend(lines)

    def wrote_one(self, raw: bytes) -> int:
        """`wrote` for one line, whose number is told."""
        offsets = self._offsets
        line = len(offsets)
        offsets.append(offsets[-1] + len(raw) + 1)
        if self._fetch is None:
            self._held.append(raw)
        return line

    def _scan(self, data: bytes, items: list[Entry | Chain]) -> None:
        """Lines of version 3, most of them looked at only where they begin."""
        if self._fetch is None:
            self._held.extend(data.split(b"\n")[:-1])
        for line, start, end in scan(data, self._offsets, self, items):
            self._look_into(data[start:end], line, items)

    def raw(self, line: int) -> bytes:
        if self._fetch is None or self._choose is not None:
            return self._held[line - self._first_line]
        start = self._offsets[line - 1]
        return self._fetch(start, self._offsets[line] - start - 1)

    def raws(self, lines: Iterable[int]) -> Iterator[bytes]:
        if self._fetch is None or self._choose is not None:
            yield from map(self.raw, lines)
            return
        offsets, data, low, high, ahead = self._offsets, b"", 0, 0, 0
        for line in lines:
            start, end = offsets[line - 1], offsets[line] - 1
            if start < low or end > high:
                # More and more while lines come in order; of those that do not, no more than is asked for.
                ahead = min(max(FETCH >> 6, ahead * 4), FETCH) if low <= start <= high + (FETCH >> 6) else 0
                low, high = start, offsets[max(line, bisect_right(offsets, start + ahead) - 1)] - 1
                data = self._fetch(low, high - low)
            yield data[start - low : end - low]

    @property
    def _first_line(self) -> int:
        """Number of the first line behind the header."""
        return len(self.preamble) + 2

    def offset(self, line: int) -> int:
        """Where line number `line` starts, in bytes."""
        return self._offsets[line - 1]

    def lines(self) -> Iterator[bytes]:
        """Every line behind the header as version 3 has it, the unreadable and the blank ones included."""
        return self.raws(range(self._first_line, self.number + 1))

    def all_lines(self) -> list[bytes]:
        """The whole file as version 3 has it."""
        return [*self.preamble, self.header_line(), *self.lines()]

    def header_line(self) -> bytes:
        """The header as version 3 has it."""
        return current_header(self.header.raw) if self.needs_rewrite else self.header.raw

    def _take(self, raw: bytes, items: list[Entry | Chain]) -> None:
        """A line before or in the header, or one of an older dialect."""
        self._offsets.append(self._offsets[-1] + len(raw) + 1)
        if self._header is None:
            self._take_header(raw)
            if self._header is None:
                self.preamble.append(raw)
            return
        try:
            raw = self._migrated(raw) if raw.strip() and len(raw) <= LINE_LIMIT else raw
        except NotJson as error:
            self._report("malformed_line", f"not an entry: {error}", self.number)
            self._held.append(raw)
        else:
            self._held.append(raw)
            self._look_into(raw, self.number, items)

    def _look_into(self, raw: bytes, line: int, items: list[Entry | Chain]) -> None:
        if len(raw) > LINE_LIMIT:
            self._report("long_line", f"{len(raw)} bytes, over the limit of {LINE_LIMIT}: not looked into", line)
        elif raw.strip():
            try:
                entry = read_line(raw, line, self)
            except NotJson as error:
                self._report("malformed_line", f"not an entry: {error}", line)
            else:
                if entry.is_head_record or entry.type in ("label", "session_info"):
                    entry.kept = read_body(raw)  # the heads and the tree ask at once
                items.append(entry)

    def _take_header(self, raw: bytes) -> None:
        if not raw.strip():
            return
        if self.number == 1:
            raw = raw.removeprefix(BOM)
        if self._offsets[-1] > PREAMBLE_LIMIT:
            raise FormatError(self.where, f"no session header in its first {PREAMBLE_LIMIT >> 10} KiB")
        try:
            wire = read_object(raw)
        except NotJson as error:
            self._report("malformed_line", f"unreadable, before the header: {error}", self.number)
            return
        if not is_utf8(raw):
            self._found("not_utf8", "fault", "not UTF-8: bytes that no reader can tell are replaced", self.number)
        if wire.get("type") == "title" and self._title is None:
            self._title = string(wire.get("title")).strip()
            return
        self._header = read_header(raw, wire)
        if self._header is None:
            type = string(wire.get("type"))
            found = "lacks an id" if type == "session" else f"is of type {type!r}" if type else "has no type"
            raise FormatError(self.where, f"line {self.number} is no session header: it {found}")
        if self.is_newer:
            self._found(
                "newer_version", "note", f"written as version {self.header.version}; opened read-only", self.number
            )
        self._choose = dialect_of(wire, self.header.version)

    def _migrated(self, raw: bytes) -> bytes:
        assert self._choose is not None
        wire = read_object(raw)
        if self._migrate is None:
            self._migrate = self._choose(wire)
            self.dialect = self._migrate.name
        return self._migrate.line(raw, wire, self.number)

    def _report(self, kind: str, message: str, line: int) -> None:
        """A line that could not be read."""
        self.unread, self._last_unread = self.unread + 1, line
        if self.unread <= REPORTED:
            self._found(kind, "fault", message, line)

    def _found(self, kind: str, severity: str, message: str, line: int) -> None:
        self._problems.append(
            Problem(kind=kind, severity=severity, message=message, line=line, offset=self.offset(line))
        )


def is_whole_line(raw: bytes) -> bool:
    """Whether a last line without newline is complete all the same."""
    if len(raw) > LINE_LIMIT:
        return False
    try:
        read_object(raw)
    except NotJson:
        return False
    return True
