"""The events of a swarm and the log that stores them.

The log is an append-only file of numbered JSON lines. Readers keep track of the last number they have read, so a slow
reader blocks no one. Other processes can read, follow and append as well. Events are for watching only: results are in
the session, and the log can be deleted.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sessiontree.core.entries import EntryId
from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import InvalidOperation, StoreError
from sessiontree.home import get_home
from sessiontree.store.file_operations import (
    PRIVATE_MODE,
    close_quietly,
    discard,
    format_os_error,
    make_private_directory,
    open_private,
    read_all,
)
from sessiontree.store.lock import lock_file
from sessiontree.swarm.budget import BudgetKind, BudgetLevel

SUFFIX = ".events.jsonl"
INDEX_STEP = 256
"""The log remembers the offset of every n-th event. Reading from a number starts there, not at the beginning."""
POLL_INTERVAL = 0.05
"""Seconds between two reads of `follow`."""
READ_SIZE = 1 << 18
"""Bytes per read."""


class BaseSwarmEvent(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    seq: int = 0
    """The event's number in the log, from 1."""
    time: str = ""
    swarm: str = ""
    agent: str | None = None
    """The agent's id; `None` for an event of the whole swarm."""
    branch: str | None = None

    @property
    def type(self) -> str:
        return str(self.__struct_config__.tag)


class AgentStart(BaseSwarmEvent, frozen=True, kw_only=True, tag="agent_start"):
    task: str
    role: str
    model: str | None = None


class AgentComplete(BaseSwarmEvent, frozen=True, kw_only=True, tag="agent_complete"):
    text: str
    cost: float
    tokens: float
    seconds: float


class AgentFail(BaseSwarmEvent, frozen=True, kw_only=True, tag="agent_fail"):
    error: str
    attempts: int


class SwarmTurnStart(BaseSwarmEvent, frozen=True, kw_only=True, tag="turn_start"):
    number: int


class SwarmTurnEnd(BaseSwarmEvent, frozen=True, kw_only=True, tag="turn_end"):
    number: int
    entry: EntryId | None = None
    cost: float = 0.0
    tokens: float = 0


class SwarmThinking(BaseSwarmEvent, frozen=True, kw_only=True, tag="thinking"):
    delta: str


class SwarmToolCallStart(BaseSwarmEvent, frozen=True, kw_only=True, tag="tool_call_start"):
    call: str
    tool: str
    arguments: Any = None


class SwarmToolCallEnd(BaseSwarmEvent, frozen=True, kw_only=True, tag="tool_call_end"):
    call: str
    tool: str
    ok: bool
    text: str
    """The beginning of the tool's result."""


class SwarmTextDelta(BaseSwarmEvent, frozen=True, kw_only=True, tag="text_delta"):
    delta: str


class BudgetEvent(BaseSwarmEvent, frozen=True, kw_only=True, tag="budget"):
    level: BudgetLevel
    used: float
    limit: float
    kind: BudgetKind
    scope: str
    """`swarm`, or an agent's id."""


class BranchEvent(BaseSwarmEvent, frozen=True, kw_only=True, tag="branch"):
    """A branch was created."""

    name: str
    entry: EntryId | None = None


class SwarmEvent(BaseSwarmEvent, frozen=True, kw_only=True, tag="swarm"):
    """The state of the swarm changed."""

    status: str
    reason: str | None = None


class ErrorEvent(BaseSwarmEvent, frozen=True, kw_only=True, tag="error"):
    message: str


AnySwarmEvent: TypeAlias = (
    AgentStart
    | AgentComplete
    | AgentFail
    | SwarmTurnStart
    | SwarmTurnEnd
    | SwarmThinking
    | SwarmToolCallStart
    | SwarmToolCallEnd
    | SwarmTextDelta
    | BudgetEvent
    | BranchEvent
    | SwarmEvent
    | ErrorEvent
)
EVENT_TYPES: tuple[str, ...] = tuple(kind.__struct_config__.tag for kind in AnySwarmEvent.__args__)

_encoder = msgspec.json.Encoder(enc_hook=str)
_decoder = msgspec.json.Decoder[Any](AnySwarmEvent)


def build_spool_path(swarm: str) -> str:
    """Return the path of a swarm's event log."""
    name = "".join(letter for letter in swarm if letter.isalnum() or letter in "-_")[:100]
    return os.path.join(get_home(), "swarms", f"{name or 'unnamed'}{SUFFIX}")


class EventLog:
    """A log of events in a file. Without a path, the file is temporary and deleted with the log."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._size = 0
        """The offset up to which this object has read or written the file."""
        self._last = 0
        self._offsets = [(0, 0)]
        """Pairs of an event number and the offset where the next event begins."""
        self.is_temporary = path is None
        if path is None:
            self._fd, self.path = tempfile.mkstemp(prefix="sessiontree-", suffix=SUFFIX)
            os.fchmod(self._fd, PRIVATE_MODE)
        else:
            self.path = os.fspath(path)

    @property
    def last(self) -> int:
        """The number of the last event; 0 if the log is empty."""
        with self._lock:
            if self._open(write=False) is not None:
                self._catch_up()
            return self._last

    # Writing

    def append(self, event: BaseSwarmEvent) -> BaseSwarmEvent:
        """Append an event and return it with its number. Raises `StoreError`."""
        with self._lock:
            fd = self._open(write=True)
            assert fd is not None
            try:
                lock_file(fd, self.path)
                try:
                    is_torn = self._catch_up()
                    numbered = replace(
                        event, seq=self._last + 1, time=event.time or format_timestamp(time.time_ns() // 1_000_000)
                    )
                    line = _encoder.encode(numbered) + b"\n"
                    self._write(fd, b"\n" + line if is_torn else line, numbered.seq)
                finally:
                    fcntl.flock(fd, fcntl.LOCK_UN)
            except OSError as error:
                raise StoreError(self.path, format_os_error(error)) from error
            return numbered

    def _write(self, fd: int, data: bytes, seq: int) -> None:
        # A write that fails halfway, on a full disk for example, leaves a torn line. The next write starts a new line.
        while data:
            data = data[os.write(fd, data) :]
        self._advance(seq, os.fstat(fd).st_size)

    def _advance(self, seq: int, end: int) -> None:
        self._last, self._size = seq, end
        if seq >= self._offsets[-1][0] + INDEX_STEP:
            self._offsets.append((seq, end))

    def _open(self, *, write: bool) -> int | None:
        if self._fd is None:
            try:
                if write:
                    make_private_directory(os.path.dirname(self.path))
                flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | (os.O_CREAT if write else 0)
                self._fd = open_private(self.path, flags)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise StoreError(self.path, format_os_error(error)) from error
        return self._fd

    def _catch_up(self) -> bool:
        """Read what any process has appended. Return whether the last line is torn."""
        assert self._fd is not None
        end = os.fstat(self._fd).st_size
        while self._size < end:
            block = read_all(self._fd, self._size, min(READ_SIZE, end - self._size))
            whole = block.rfind(b"\n") + 1
            if not whole:
                if self._size + len(block) >= end:
                    return True
                block += read_all(self._fd, self._size + len(block), end - self._size - len(block))
                whole = block.rfind(b"\n") + 1
                if not whole:
                    return True
            for line in block[:whole].splitlines(keepends=True):
                self._size += len(line)
                event = _decode(line)
                if event is not None:
                    self._advance(event.seq, self._size)
        return False

    # Reading

    def read(
        self, after: int = 0, types: Collection[str] | None = None, agent: str | None = None, limit: int = 1000
    ) -> list[BaseSwarmEvent]:
        """Return at most `limit` events after a number, oldest first, optionally of some types or one agent."""
        reader = self._open_reader(after)
        found: list[BaseSwarmEvent] = []
        while len(found) < limit:
            batch = reader.read_next()
            if not batch:
                break
            found += [event for event in batch if _matches(event, after, types, agent)]
        return found[:limit]

    async def follow(
        self, after: int = 0, types: Collection[str] | None = None, agent: str | None = None
    ) -> AsyncGenerator[BaseSwarmEvent]:
        """Yield events after a number, then wait for new ones until the caller stops."""
        reader = self._open_reader(after)
        while True:
            batch = reader.read_next()
            for event in batch:
                if _matches(event, after, types, agent):
                    yield event
            if not batch:
                await asyncio.sleep(POLL_INTERVAL)

    def _open_reader(self, after: int) -> _LogReader:
        if after < 0:
            raise InvalidOperation("event numbers start at 1; `after` must be 0 or more")
        with self._lock:
            if self._open(write=False) is not None:
                self._catch_up()
            offset = next(offset for seq, offset in reversed(self._offsets) if seq <= after)
        return _LogReader(self, offset)

    def read_lines_at(self, offset: int) -> bytes:
        """Return the complete lines of one read from an offset."""
        with self._lock:
            fd = self._open(write=False)
            if fd is None:
                return b""
            size = READ_SIZE
            while True:
                block = read_all(fd, offset, size)
                whole = block.rfind(b"\n") + 1
                if whole or len(block) < size:
                    return block[:whole]
                size *= 2

    def close(self) -> None:
        with self._lock:
            close_quietly(self._fd)
            self._fd = None
            if self.is_temporary:
                discard(self.path)

    def delete(self) -> None:
        """Close the log and delete its file."""
        self.close()
        discard(self.path)

    def __del__(self) -> None:
        close_quietly(self._fd)
        if self.is_temporary:
            discard(self.path)


class _LogReader:
    """The position of one reader."""

    def __init__(self, log: EventLog, offset: int) -> None:
        self._log = log
        self._offset = offset

    def read_next(self) -> list[BaseSwarmEvent]:
        data = self._log.read_lines_at(self._offset)
        self._offset += len(data)
        return [event for line in data.splitlines() if (event := _decode(line)) is not None]


def _decode(line: bytes) -> BaseSwarmEvent | None:
    """Decode a line. Return `None` if it is torn or its type is unknown."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _matches(event: BaseSwarmEvent, after: int, types: Collection[str] | None, agent: str | None) -> bool:
    return event.seq > after and (types is None or event.type in types) and (agent is None or event.agent == agent)


DeltaKind: TypeAlias = Literal["text", "thinking"]

FLUSH_DELAY = 0.05
"""Seconds for which deltas are collected before they are written."""


class DeltaBuffer:
    """Joins the deltas of an agent's model before they are written, because providers send single words."""

    def __init__(self, emit: Callable[[BaseSwarmEvent], None]) -> None:
        self._emit = emit
        self._kind: DeltaKind = "text"
        self._pieces: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def append(self, kind: DeltaKind, text: str) -> None:
        if kind != self._kind:
            self.flush()
        self._kind = kind
        self._pieces.append(text)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_DELAY, self.flush)

    def flush(self) -> None:
        """Emit the collected deltas."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pieces:
            joined = "".join(self._pieces)
            self._pieces = []
            self._emit(SwarmTextDelta(delta=joined) if self._kind == "text" else SwarmThinking(delta=joined))
