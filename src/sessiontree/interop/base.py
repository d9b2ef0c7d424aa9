"""What every foreign format implements, and what it is given: files, and the builder of session lines.

A format reads a `ForeignFile` and yields a `Conversation` for each conversation in it, built with a
`ConversationBuilder`. Foreign ids stay entry ids. Input is untrusted: a reader accepts any JSON, reports what it does
not understand as a `Problem`, and never raises anything but `FormatError`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

from msgspec import Struct

from sessiontree.core.entries import (
    HEAD_RECORD,
    Body,
    BranchPoint,
    Custom,
    EntryId,
    JsonObject,
    Message,
    Opaque,
    Problem,
    ResetBoundary,
    SessionInfo,
)
from sessiontree.core.heads import MAIN
from sessiontree.core.message_input import check_message
from sessiontree.core.messages import is_object
from sessiontree.core.timestamps import format_timestamp, parse_timestamp
from sessiontree.errors import FormatError, InvalidOperation
from sessiontree.format.codec import STARTING_CALL, read_body, write_entry, write_header
from sessiontree.format.json_line import LINE_LIMIT, NotJson, read_object
from sessiontree.interop.json_array import split_array
from sessiontree.interop.resume import ResumableSession, ResumeRequest

HEAD_SIZE = 1 << 16
"""How many bytes at the start of a file `detect` gets."""
MAX_HEAD_RECORDS = 50
MAX_REPORTED = 1000
"""How many problems of one conversation are listed; of the rest only the number is."""
ALIAS = "alias"
"""The type of an entry that gives its parent another id."""
REFUSED_MESSAGE = "refused_message"
"""The type of an entry that keeps a message which fails the check of new messages."""


class FileHead(Struct, frozen=True, kw_only=True):
    """The start of a file, from which `detect` recognizes a format."""

    name: str
    """The path of the file. A name alone never decides."""
    data: bytes = b""
    """The first bytes, at most `HEAD_SIZE`; the whole file if `is_whole`."""
    is_whole: bool = False
    tables: Mapping[str, Sequence[str]] = {}
    """For a SQLite database, its tables with the names of their columns."""

    def read_records(self) -> list[JsonObject]:
        """Return the JSON objects in the first complete lines. Other lines are skipped."""
        lines = self.data.split(b"\n")
        return [
            record
            for line in lines[: MAX_HEAD_RECORDS if self.is_whole else min(MAX_HEAD_RECORDS, len(lines) - 1)]
            if (record := read_record(line)) is not None
        ]

    def read_document(self) -> Any:
        """Return the whole file as one JSON value; `None` if it is not JSON or longer than the head."""
        return read_json(self.data) if self.is_whole else None


class LineBuffer(Sequence[bytes]):
    """The lines of a session while it is built: the header, which is known last, and the entries."""

    def __init__(self) -> None:
        self.header = b""
        self._entries: list[bytes] = []

    def append(self, line: bytes) -> None:
        """Add the line of an entry."""
        self._entries.append(line)

    def read_entry(self, number: int) -> bytes:
        """Return the line of an entry, counted from 0."""
        return self._entries[number]

    def count_entries(self) -> int:
        return len(self._entries)

    def __len__(self) -> int:
        return 1 + self.count_entries()

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        return self.read_entry(number - 1) if number else self.header


class ForeignFile(Protocol):
    """A file or a database of another program, opened read-only."""

    name: str
    """Its path."""

    def iter_lines(self) -> Iterator[bytes]:
        """Yield the lines without their newlines. Each call starts again at the first line."""
        return (line for _, line in self.iter_placed_lines())

    def iter_placed_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines, each with its position in the file."""
        ...

    def read_line(self, position: int) -> bytes:
        """Return the line at a position that `iter_placed_lines` gave; no bytes if the file was cut since."""
        ...

    def create_line_buffer(self) -> LineBuffer:
        """Return where the lines of its conversation go, which can be as long as the file."""
        ...

    def iter_blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the file, in pieces."""
        ...

    def iter_objects(self) -> Iterator[bytes]:
        """Yield the objects in the array that the file is, or its only object, as JSON. Raises `FormatError`."""
        return split_array(self.name, self.iter_blocks())

    def read_document(self) -> Any:
        """Return the whole file as one JSON value. Raises `FormatError`."""
        data = b"".join(self.iter_blocks())
        value = read_json(data)
        if value is None:
            raise FormatError(self.name, "not valid JSON")
        return value

    def iter_rows(self, table: str, **equal: str | int) -> Iterator[JsonObject]:
        """Yield the rows of a database table whose columns have these values, in the order of `rowid`.

        A table or column that does not exist has no rows. Blobs are `bytes`.
        """
        ...


class MemoryFile(ForeignFile):
    """A foreign file that is in memory: its bytes, or the rows of its tables."""

    def __init__(
        self, name: str, content: bytes = b"", tables: Mapping[str, Sequence[JsonObject]] | None = None
    ) -> None:
        self.name = name
        self._content = content
        self._tables = tables or {}

    def iter_placed_lines(self) -> Iterator[tuple[int, bytes]]:
        position = 0
        while position < len(self._content):
            line = self.read_line(position)
            yield position, line
            position += len(line) + 1

    def read_line(self, position: int) -> bytes:
        end = self._content.find(b"\n", position)
        return self._content[position:] if end < 0 else self._content[position:end]

    def create_line_buffer(self) -> LineBuffer:
        return LineBuffer()

    def iter_blocks(self) -> Iterator[bytes]:
        yield self._content

    def iter_rows(self, table: str, **equal: str | int) -> Iterator[JsonObject]:
        for row in self._tables.get(table, ()):
            if all(column in row and row[column] == value for column, value in equal.items()):
                yield row


class Conversation(Struct, frozen=True, kw_only=True):
    """One conversation of a foreign file as the lines of a session."""

    id: str
    """The id of the conversation in the other program, which is the id of the session."""
    lines: LineBuffer
    """A whole session, the header first."""
    problems: list[Problem]
    heads: dict[str, EntryId | None]
    """The leaves of all branches, by name."""
    part_of: str | None = None
    """The id of the conversation that this one is a branch of, such as that which started a subagent."""
    original: bytes | None = None
    """The conversation as the other program stores it, if a file holds several; otherwise the file is the original."""


class ListedConversation(Struct, frozen=True, kw_only=True):
    """A conversation in a database, as its tables list it, without its content."""

    id: str
    modified: int
    """When it was last written, in milliseconds since the epoch."""
    changes: int = 0
    """How often it was written, as far as the program counts that."""
    archived: bool = False


def find_no_related(file: ForeignFile) -> Iterable[str]:
    """Return nothing: for formats whose files do not belong together."""
    return ()


def select_all(paths: Sequence[str]) -> Sequence[str]:
    """Return all files: for formats that have no parts."""
    return paths


class ForeignFormat(Struct, frozen=True, kw_only=True):
    """One format of another program."""

    name: str
    """The name on the command line and in the header of imported sessions, such as `claude`."""
    title: str
    """The name of the program, such as `Claude Code`."""
    detect: Callable[[FileHead], bool]
    """Return whether a file has this format, by its content."""
    read: Callable[[ForeignFile, Sequence[ForeignFile]], Iterator[Conversation]]
    """Yield the conversations of a file. Gets the files that `find_related` named too. Raises `FormatError`."""
    find_related: Callable[[ForeignFile], Iterable[str]] = find_no_related
    """Return the files that belong to a file, as glob patterns relative to its folder."""
    select_sessions: Callable[[Sequence[str]], Sequence[str]] = select_all
    """Return the files that are complete sessions, and not parts of other files, by their paths."""
    list_conversations: Callable[[ForeignFile], Iterator[ListedConversation]] | None = None
    """Yield the conversations of a database without reading them; `None` if they must be read."""
    read_one: Callable[[ForeignFile, str], Conversation | None] | None = None
    """Return the conversation of a database with this id, without reading the others."""
    write: Callable[[ResumeRequest], ResumableSession] | None = None
    """Return a session that the program resumes; `None` if the format is only read."""
    settings_file: str | None = None
    """A JSON file in the folder of the program that `write` needs to see."""


def read_json(data: bytes | str) -> Any:
    """Return a JSON value; `None` if the data is not JSON or nested too deeply."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    try:
        return read_object(b'{"":' + raw + b"}")[""]
    except (NotJson, KeyError):
        return None


def read_record(line: bytes) -> JsonObject | None:
    """Return the JSON object in a line; `None` if the line holds something else or is too long."""
    if len(line) > LINE_LIMIT or not line.strip():
        return None
    try:
        return read_object(line)
    except NotJson:
        return None


def normalize_time(value: object) -> str | None:
    """Return the timestamp of an entry from an ISO string, or from seconds or milliseconds since the epoch."""
    if isinstance(value, str):
        moment = parse_timestamp(value)
        return None if moment is None else format_timestamp(moment)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e15:
        return format_timestamp(int(value if value > 1e11 else value * 1000))
    return None


class ConversationBuilder:
    """Builds the lines of one conversation, parents before children.

    The builder keeps ids unique and links entries to the nearest parent that exists, so readers can pass on the ids of
    the file.
    """

    def __init__(
        self,
        program: str,
        id: str,
        *,
        cwd: str = "",
        version: str | None = None,
        started: object = None,
        lines: LineBuffer | None = None,
    ) -> None:
        self.program = program
        self.id = id or "unknown"
        self.cwd = cwd
        self.version = version
        self.title: str | None = None
        self.part_of: str | None = None
        self._time = self._started = normalize_time(started)
        self._lines = LineBuffer() if lines is None else lines
        self._aliases: dict[EntryId, EntryId | None] = {}
        self._ids: dict[EntryId, int] = {}
        """The number of each entry in the lines."""
        self._problems: list[Problem] = []
        self._unreported = 0

    def __contains__(self, id: EntryId) -> bool:
        return id in self._ids

    def resolve(self, id: EntryId | None) -> EntryId | None:
        """Return the entry of a foreign id, or `None`."""
        if id is None or id in self._ids:
            return id
        return self._aliases.get(id)

    def add(
        self,
        body: Body,
        *,
        id: EntryId,
        parent: EntryId | None,
        time: object = None,
        branch: str = MAIN,
        extra: JsonObject | None = None,
    ) -> EntryId | None:
        """Add an entry and return its id. Returns the parent if the entry cannot be stored, which is reported.

        `parent` may be any foreign id. `time` may be missing or invalid: then it is the time of the entry before.
        A message gets its timestamp from `time`.
        """
        above = self.resolve(parent)
        if parent is not None and above is None:
            self.report("orphan", f"entry {id!r} names a parent {parent!r} that is not in the file", entry=id)
        if id in self._ids:
            self.report("duplicate_id", f"entry {id!r} is there twice; the first one is used", entry=id)
            return id
        timestamp = self._advance(time)
        if isinstance(body, Message) and "timestamp" not in body.message:
            body = Message({**body.message, "timestamp": parse_timestamp(timestamp)})
        if isinstance(body, Message):
            body = self._check_message(body.message, id)
        try:
            line = write_entry(body, id=id, parent=above, timestamp=timestamp, branch=branch, extra=extra).raw
        except InvalidOperation as error:
            self.report("malformed_line", f"entry {id!r} cannot be stored: {error}", entry=id, severity="fault")
            return above
        if len(line) > LINE_LIMIT:
            self.report("long_line", f"entry {id!r} has {len(line)} bytes and is left out", entry=id, severity="fault")
            return above
        self._lines.append(line)
        self._ids[id] = self._lines.count_entries() - 1
        self._aliases.pop(id, None)
        return id

    def _check_message(self, message: JsonObject, id: EntryId) -> Body:
        """Return the message if it passes the check of new messages; otherwise keep it as it is, unsent."""
        try:
            return Message(check_message(message))
        except InvalidOperation as error:
            self.report("malformed_line", f"message {id!r} is kept but not sent to a model: {error}", entry=id)
            return Opaque(type=REFUSED_MESSAGE, fields={"message": message})

    def start_subagent(
        self,
        branch: str,
        *,
        id: str,
        parent: EntryId | None,
        call: str = "",
        start: EntryId | None = None,
        description: str | None = None,
        time: object = None,
    ) -> EntryId | None:
        """Start the branch of a subagent below the entry with the call that started it, and return where it continues.

        Its model does not see the entries above. `id` is the subagent, and `start` the entry to continue from.
        """
        point = BranchPoint(name=branch, description=description)
        extra = {STARTING_CALL: call} if call else None
        above = self.add(point, id=f"{id}-branch", parent=parent, time=time, branch=branch, extra=extra)
        return self.add(ResetBoundary(), id=start or f"{id}-start", parent=above, time=time, branch=branch)

    def get_body(self, id: EntryId) -> Body:
        """Return the body of an entry that was added before."""
        return read_body(self._lines.read_entry(self._ids[id]))

    def add_alias(self, id: EntryId, target: EntryId | None) -> None:
        """Make `id` another name of an entry, for lines of the file that do not become entries."""
        if id not in self._ids:
            self._aliases.setdefault(id, self.resolve(target))

    def report(
        self,
        kind: str,
        message: str,
        *,
        entry: EntryId | None = None,
        line: int | None = None,
        severity: str = "note",
    ) -> None:
        """Report a problem. `severity` is `note`, or `fault` for damage. `line` is the number in the foreign file."""
        if len(self._problems) >= MAX_REPORTED:
            self._unreported += 1
            return
        self._problems.append(Problem(kind=kind, severity=severity, message=message, entry=entry, line=line))

    def build(
        self, heads: Mapping[str, EntryId | None], current: str = MAIN, *, original: bytes | None = None
    ) -> Conversation:
        """Return the conversation. `heads` are the leaves of all branches, by name; foreign ids are allowed."""
        leaves = {name: self.resolve(leaf) for name, leaf in heads.items()} or {MAIN: None}
        current = current if current in leaves else next(iter(leaves))
        leaf = leaves[current]
        timestamp = self._time or format_timestamp(0)
        self._lines.header = write_header(
            id=self.id,
            timestamp=self._started or timestamp,
            cwd=self.cwd,
            parent_session=self.part_of,
            origin={"program": self.program, **({"version": self.version} if self.version else {})},
        )
        tail: list[tuple[EntryId, EntryId | None, Body]] = [
            (id, target, Opaque(type=ALIAS, fields={})) for id, target in self._aliases.items() if target is not None
        ]
        if self.title:
            tail.append((f"{self.id}-title", leaf, SessionInfo(self.title)))
        record: JsonObject = {"current": current, "heads": leaves, "reset": True}
        tail.append((f"{self.id}-heads", leaf, Custom(custom_type=HEAD_RECORD, data=record)))
        for id, parent, body in tail:
            entry = write_entry(body, id=id, parent=parent, timestamp=timestamp, branch=current)
            self._lines.append(entry.raw)
        if self._unreported:
            self._problems.append(
                Problem(kind="malformed_line", severity="note", message=f"{self._unreported:,} more problems")
            )
        return Conversation(
            id=self.id,
            lines=self._lines,
            problems=self._problems,
            heads=leaves,
            part_of=self.part_of,
            original=original,
        )

    def _advance(self, time: object) -> str:
        timestamp = normalize_time(time) or self._time or format_timestamp(0)
        self._time = timestamp
        self._started = self._started or timestamp
        return timestamp


def get_object(value: Any, key: str) -> JsonObject:
    """Return an object inside another; an empty one if there is none."""
    found = value.get(key) if is_object(value) else None
    return found if is_object(found) else {}


def derive_uuid(*parts: object) -> str:
    """Return a UUID that depends only on these values."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-a{digest[17:20]}-{digest[20:32]}"
