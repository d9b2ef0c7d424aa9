"""JSON Lines: the bytes of a session file to a header, entries and problems, and nothing lost.

A `Reader` takes the bytes as they come and can go on where it stopped. Lines are split at
`\\n` bytes alone. What cannot be read stays as a line and is reported; older dialects are
migrated in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from sessiontree.core.entries import Entry, Header, JsonObject, Problem
from sessiontree.core.messages import string
from sessiontree.errors import FormatError
from sessiontree.format.codec import VERSION, NotJson, read_entry, read_header, read_object
from sessiontree.format.migrations import Dialect, current_header, dialect_of

LINE_LIMIT = 64 << 20
"""The longest line that is written, and that is looked into."""


class Reader:
    def __init__(self, where: str = "session") -> None:
        self.where = where
        self.lines: list[bytes] = []
        """Every line behind the header as version 3 has it, the unreadable and the blank ones included."""
        self.preamble: list[bytes] = []
        """Lines before the header: a title slot, or what cannot be read."""
        self.problems: list[Problem] = []
        self.dialect: str | None = None
        """The older dialect that the file is in, if it is."""
        self.number = 0
        """How many lines were read."""
        self._header: Header | None = None
        self._title: str | None = None
        self._offsets = array("Q", [0])
        self._choose: Callable[[JsonObject], Dialect] | None = None
        self._migrate: Dialect | None = None

    @property
    def header(self) -> Header:
        if self._header is None:
            reason = "no session header in its first line" if self.number else "the file is empty"
            raise FormatError(self.where, reason)
        return self._header

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

    def feed(self, data: bytes) -> list[Entry]:
        """Take in more bytes, whole lines, and return the entries in them."""
        entries: list[Entry] = []
        start = 0
        end = data.find(b"\n")
        while end >= 0:
            self._take(data[start:end], entries)
            start = end + 1
            end = data.find(b"\n", start)
        if start < len(data):
            self._take(data[start:], entries)
        return entries

    def offset(self, line: int) -> int:
        """Where line number `line` starts, in bytes."""
        return self._offsets[line - 1]

    def all_lines(self) -> list[bytes]:
        """The whole file as version 3 has it."""
        return [*self.preamble, self.header_line(), *self.lines]

    def header_line(self) -> bytes:
        """The header as version 3 has it."""
        return current_header(self.header.raw) if self.needs_rewrite else self.header.raw

    def _take(self, raw: bytes, entries: list[Entry]) -> None:
        self.number += 1
        self._offsets.append(self._offsets[-1] + len(raw) + 1)
        if self._header is None:
            self._take_header(raw)
            if self._header is None:
                self.preamble.append(raw)
            return
        if len(raw) > LINE_LIMIT:
            self._report("long_line", f"{len(raw)} bytes, over the limit of {LINE_LIMIT}: not looked into")
        elif raw.strip():
            try:
                raw = self._migrated(raw)
                entries.append(read_entry(raw, self.number))
            except NotJson as error:
                self._report("malformed_line", f"not an entry: {error}")
        self.lines.append(raw)

    def _take_header(self, raw: bytes) -> None:
        if not raw.strip():
            return
        try:
            wire = read_object(raw)
        except NotJson as error:
            self._report("malformed_line", f"unreadable, before the header: {error}")
            return
        if wire.get("type") == "title" and self._title is None:
            self._title = string(wire.get("title")).strip()
            return
        self._header = read_header(raw, wire)
        if self._header is None:
            found = string(wire.get("type")) or "something else"
            raise FormatError(self.where, f"line {self.number} is no session header but {found!r}")
        if self.is_newer:
            self._report("newer_version", f"written as version {self.header.version}; opened read-only", note=True)
        self._choose = dialect_of(wire, self.header.version)

    def _migrated(self, raw: bytes) -> bytes:
        if self._choose is None:
            return raw
        wire = read_object(raw)
        if self._migrate is None:
            self._migrate = self._choose(wire)
            self.dialect = self._migrate.name
        return self._migrate.line(raw, wire, self.number)

    def _report(self, kind: str, message: str, *, note: bool = False) -> None:
        problem = Problem(
            kind=kind,
            severity="note" if note else "fault",
            message=message,
            line=self.number,
            offset=self.offset(self.number),
        )
        self.problems.append(problem)
