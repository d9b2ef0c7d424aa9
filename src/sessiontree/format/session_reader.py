"""Session reader: turns the bytes of a session file into a header, entries and problems.

A `SessionReader` accepts bytes in pieces and can continue where it stopped. Lines are split only at `\\n`. An
unreadable line is preserved and reported. Older dialects are migrated in memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from sessiontree.core.entries import Chain, Entry, Header, JsonObject, Problem
from sessiontree.core.messages import coerce_string
from sessiontree.core.problems import is_utf8
from sessiontree.errors import FormatError
from sessiontree.format.codec import VERSION, LineSource, read_body, read_header, read_line, scan_lines
from sessiontree.format.json_line import LINE_LIMIT, NotJson, read_object
from sessiontree.format.migrations import Dialect, choose_dialect, update_header_version

Fetch: TypeAlias = Callable[[int, int], bytes]
"""Returns whole lines of the file, the last without its newline, given an offset and a size in bytes."""

BOM = b"\xef\xbb\xbf"
"""The byte order mark that some editors write at the start."""

PREAMBLE_LIMIT = 1 << 20
"""A header must be within this many bytes of the start."""

MAX_REPORTED = 1000
"""How many unreadable lines are reported one by one; of the rest only the number is reported."""

FETCH_SIZE = 1 << 18
"""How much is fetched at once to read many lines, in bytes."""


class SessionReader(LineSource):
    """The lines of a session, and the source of its entries' bytes.

    With `fetch`, lines stay in the file and only their offsets are kept. A file of an older dialect is kept in memory,
    migrated to version 3.
    """

    def __init__(self, where: str = "session", fetch: Fetch | None = None) -> None:
        self.where = where
        self.preamble: list[bytes] = []
        """Lines before the header: a title slot, or unreadable lines."""
        self.unreadable_count = 0
        """The number of lines that could not be read."""
        self.dialect: str | None = None
        """The name of the file's older dialect, if any."""
        self._problems: list[Problem] = []
        self._last_unreadable = 0
        self._fetch = fetch
        self._memory_lines: list[bytes] = []
        self._header: Header | None = None
        self._title: str | None = None
        self._offsets = array("Q", [0])
        self._choose_dialect: Callable[[JsonObject], Dialect] | None = None
        self._migration: Dialect | None = None
        self._load_earlier: Callable[[], None] | None = None
        self._earlier: tuple[SessionReader, int] | None = None
        """The reader that took over these lines, and the number of its lines before them."""

    @classmethod
    def start_at(
        cls, offset: int, header: Header, where: str, fetch: Fetch, load_earlier: Callable[[], None]
    ) -> SessionReader:
        """Return a reader of the lines from `offset` on, all of them after the header.

        `load_earlier` gives the lines before them to another reader, which takes over these lines with `take_over`.
        """
        reader = cls(where, fetch)
        reader._header, reader._offsets, reader._load_earlier = header, array("Q", [offset]), load_earlier
        return reader

    def take_over(self, later: SessionReader) -> None:
        """Continue with the lines of a reader that starts where this one ends."""
        before = self.line_count
        self._offsets.extend(later._offsets[1:])
        room = max(0, MAX_REPORTED - self.unreadable_count)
        self._problems += [
            msgspec.structs.replace(problem, line=(problem.line or 0) + before) for problem in later._problems[:room]
        ]
        if later.unreadable_count:
            self.unreadable_count += later.unreadable_count
            self._last_unreadable = later._last_unreadable + before
        later._earlier, later._load_earlier = (self, before), None

    @property
    def line_count(self) -> int:
        """The number of lines read."""
        return len(self._offsets) - 1

    @property
    def has_header(self) -> bool:
        return self._header is not None

    @property
    def header(self) -> Header:
        if self._header is None:
            lines = "its only line" if self.line_count == 1 else f"its {self.line_count} lines"
            reason = f"no session header in {lines}" if self.line_count else "the file is empty"
            raise FormatError(self.where, reason)
        return self._header

    @property
    def problems(self) -> list[Problem]:
        """Problems of lines, in file order."""
        more = self.unreadable_count - MAX_REPORTED
        if more <= 0:
            return self._problems
        message = f"{more:,} more unreadable lines, the last of them line {self._last_unreadable:,}"
        return [*self._problems, Problem(kind="malformed_line", severity="fault", message=message)]

    @property
    def title(self) -> str | None:
        """The name that peers store in a title slot or in the header."""
        return self._title if self._title is not None else self.header.title

    @property
    def needs_rewrite(self) -> bool:
        """Whether the file must be rewritten before an append."""
        return self.header.version < VERSION

    @property
    def is_newer(self) -> bool:
        return self.header.version > VERSION

    def feed(self, data: bytes) -> list[Entry | Chain]:
        """Read more whole lines and return their entries, in order."""
        if data and not data.endswith(b"\n"):
            data += b"\n"
        items: list[Entry | Chain] = []
        start = 0
        while start < len(data) and (self._header is None or self._choose_dialect is not None):
            end = data.index(b"\n", start)
            self._read_old_line(data[start:end], items)
            start = end + 1
        if start < len(data):
            self._scan(data[start:] if start else data, items)
        return items

    def add_written(self, items: Sequence[Entry | Chain], lines: Sequence[bytes]) -> None:
        """Add lines of version 3 that were just appended to the file, without parsing them."""
        offsets = self._offsets
        line = len(offsets)
        for item in items:
            item.number, item.source = line, self
            line += len(item) if isinstance(item, Chain) else 1
        end = offsets[-1]
        for raw in lines:
            end += len(raw) + 1
            offsets.append(end)
        if self._fetch is None:
            self._memory_lines.extend(lines)

    def add_written_line(self, raw: bytes) -> int:
        """Add one line that was just appended, and return its number."""
        offsets = self._offsets
        line = len(offsets)
        offsets.append(offsets[-1] + len(raw) + 1)
        if self._fetch is None:
            self._memory_lines.append(raw)
        return line

    def _scan(self, data: bytes, items: list[Entry | Chain]) -> None:
        """Scan lines of version 3. Most are read only at the start."""
        if self._fetch is None:
            self._memory_lines.extend(data.split(b"\n")[:-1])
        for line, start, end in scan_lines(data, self._offsets, self, items):
            self._parse_line(data[start:end], line, items)

    def get_line(self, number: int) -> int:
        if self._load_earlier is not None:
            self._load_earlier()
        if self._earlier is None:
            return number
        reader, before = self._earlier
        return reader.get_line(number + before)

    def read_raw(self, line: int) -> bytes:
        if self._fetch is None or self._choose_dialect is not None:
            return self._memory_lines[line - self._first_line]
        start = self._offsets[line - 1]
        return self._fetch(start, self._offsets[line] - start - 1)

    def read_raws(self, lines: Iterable[int]) -> Iterator[bytes]:
        if self._fetch is None or self._choose_dialect is not None:
            yield from map(self.read_raw, lines)
            return
        offsets, data, low, high, ahead = self._offsets, b"", 0, 0, 0
        for line in lines:
            start, end = offsets[line - 1], offsets[line] - 1
            if start < low or end > high:
                # Fetch more and more while lines come in order; otherwise only the requested line.
                ahead = (
                    min(max(FETCH_SIZE >> 6, ahead * 4), FETCH_SIZE) if low <= start <= high + (FETCH_SIZE >> 6) else 0
                )
                low, high = start, offsets[max(line, bisect_right(offsets, start + ahead) - 1)] - 1
                data = self._fetch(low, high - low)
            yield data[start - low : end - low]

    @property
    def _first_line(self) -> int:
        """The number of the first line after the header."""
        return len(self.preamble) + 2

    def get_offset(self, line: int) -> int:
        """Return the byte offset of a line."""
        return self._offsets[line - 1]

    def iter_lines(self) -> Iterator[bytes]:
        """Yield every line after the header as version 3, including unreadable and blank lines."""
        return self.read_raws(range(self._first_line, self.line_count + 1))

    def read_all_lines(self) -> list[bytes]:
        """Return the whole file as version 3."""
        return [*self.preamble, self.build_header_line(), *self.iter_lines()]

    def build_header_line(self) -> bytes:
        """Return the header as version 3."""
        return update_header_version(self.header.raw) if self.needs_rewrite else self.header.raw

    def _read_old_line(self, raw: bytes, items: list[Entry | Chain]) -> None:
        """Read a line up to the header, or a line of an older dialect."""
        self._offsets.append(self._offsets[-1] + len(raw) + 1)
        if self._header is None:
            self._read_header_line(raw)
            if self._header is None:
                self.preamble.append(raw)
            return
        try:
            raw = self._migrate_line(raw) if raw.strip() and len(raw) <= LINE_LIMIT else raw
        except NotJson as error:
            self._report_unreadable("malformed_line", f"not an entry: {error}", self.line_count)
            self._memory_lines.append(raw)
        else:
            self._memory_lines.append(raw)
            self._parse_line(raw, self.line_count, items)

    def _parse_line(self, raw: bytes, line: int, items: list[Entry | Chain]) -> None:
        if len(raw) > LINE_LIMIT:
            self._report_unreadable(
                "long_line", f"{len(raw)} bytes, over the limit of {LINE_LIMIT} bytes; not decoded", line
            )
        elif raw.strip():
            try:
                entry = read_line(raw, line, self)
            except NotJson as error:
                self._report_unreadable("malformed_line", f"not an entry: {error}", line)
            else:
                if entry.is_head_record or entry.type in ("label", "session_info"):
                    entry.cached_body = read_body(raw)  # the heads and the tree need it at once
                items.append(entry)

    def _read_header_line(self, raw: bytes) -> None:
        if not raw.strip():
            return
        if self.line_count == 1:
            raw = raw.removeprefix(BOM)
        if self._offsets[-1] > PREAMBLE_LIMIT:
            raise FormatError(self.where, f"no session header in its first {PREAMBLE_LIMIT >> 10} KiB")
        try:
            wire = read_object(raw)
        except NotJson as error:
            self._report_unreadable("malformed_line", f"unreadable line before the header: {error}", self.line_count)
            return
        if not is_utf8(raw):
            self._add_problem("not_utf8", "fault", "not UTF-8: invalid bytes are replaced", self.line_count)
        if wire.get("type") == "title" and self._title is None:
            self._title = coerce_string(wire.get("title")).strip()
            return
        self._header = read_header(raw, wire)
        if self._header is None:
            type = coerce_string(wire.get("type"))
            found = "lacks an id" if type == "session" else f"is of type {type!r}" if type else "has no type"
            raise FormatError(self.where, f"line {self.line_count} is not a session header: it {found}")
        if self.is_newer:
            self._add_problem(
                "newer_version", "note", f"written as version {self.header.version}; opened read-only", self.line_count
            )
        self._choose_dialect = choose_dialect(wire, self.header.version)

    def _migrate_line(self, raw: bytes) -> bytes:
        assert self._choose_dialect is not None
        wire = read_object(raw)
        if self._migration is None:
            self._migration = self._choose_dialect(wire)
            self.dialect = self._migration.name
        return self._migration.migrate_line(raw, wire, self.line_count)

    def _report_unreadable(self, kind: str, message: str, line: int) -> None:
        """Report a line that could not be read."""
        self.unreadable_count, self._last_unreadable = self.unreadable_count + 1, line
        if self.unreadable_count <= MAX_REPORTED:
            self._add_problem(kind, "fault", message, line)

    def _add_problem(self, kind: str, severity: str, message: str, line: int) -> None:
        self._problems.append(
            Problem(kind=kind, severity=severity, message=message, line=line, offset=self.get_offset(line))
        )


def is_complete_line(raw: bytes) -> bool:
    """Return whether a last line without a newline is complete."""
    if len(raw) > LINE_LIMIT:
        return False
    try:
        read_object(raw)
    except NotJson:
        return False
    return True
