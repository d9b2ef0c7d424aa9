"""Events of a swarm: what happens while agents work, in a numbered spool that anybody can read at their own pace.

The spool is a file of JSON lines, only ever appended to. Readers go by the numbers: one that is slow holds nobody back,
and nothing is kept for it. Other processes can read, follow and append too. It is for watching: what was done is in the
session, and a spool can be deleted.
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
from sessiontree.store.files import (
    PRIVATE_MODE,
    close_quietly,
    discard,
    format_os_error,
    make_private_directory,
    open_private,
    read_all,
)
from sessiontree.store.lock_wait import lock_file
from sessiontree.swarm.budget import BudgetKind, BudgetLevel

SUFFIX = ".events.jsonl"
INDEX_STEP = 256
"""The place of every so manieth event is remembered, so that reading from a number need not begin at the start."""
POLL_INTERVAL = 0.05
"""Seconds between two looks of one who follows."""
READ_SIZE = 1 << 18
"""How much is read at once, in bytes."""


class BaseSwarmEvent(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    seq: int = 0
    """Its number in the spool, from 1."""
    time: str = ""
    swarm: str = ""
    agent: str | None = None
    """The agent that it is of; `None` for one of the whole swarm."""
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
    """The beginning of what the tool answered."""


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
    """A branch was made."""

    name: str
    entry: EntryId | None = None


class SwarmEvent(BaseSwarmEvent, frozen=True, kw_only=True, tag="swarm"):
    """The swarm is in another state."""

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
    """Where the spool of a swarm is kept."""
    name = "".join(letter for letter in swarm if letter.isalnum() or letter in "-_")[:100]
    return os.path.join(get_home(), "swarms", f"{name or 'unnamed'}{SUFFIX}")


class EventLog:
    """A spool of events. Without a path it is a temporary file, gone with the log."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._size = 0
        """How far the spool was read or written here."""
        self._last = 0
        self._offsets = [(0, 0)]
        """Some numbers, each with where the event behind it begins."""
        self.is_temporary = path is None
        if path is None:
            self._fd, self.path = tempfile.mkstemp(prefix="sessiontree-", suffix=SUFFIX)
            os.fchmod(self._fd, PRIVATE_MODE)
        else:
            self.path = os.fspath(path)

    @property
    def last(self) -> int:
        """The number of the last event; 0 where there is none."""
        with self._lock:
            if self._open(write=False) is not None:
                self._catch_up()
            return self._last

    # Writing

    def append(self, event: BaseSwarmEvent) -> BaseSwarmEvent:
        """Write an event behind all others, and return it with its number. Raises `StoreError`."""
        with self._lock:
            fd = self._open(write=True)
            assert fd is not None
            try:
                lock_file(fd, self.path)
                try:
                    torn = self._catch_up()
                    numbered = replace(
                        event, seq=self._last + 1, time=event.time or format_timestamp(time.time_ns() // 1_000_000)
                    )
                    line = _encoder.encode(numbered) + b"\n"
                    self._write(fd, b"\n" + line if torn else line, numbered.seq)
                finally:
                    fcntl.flock(fd, fcntl.LOCK_UN)
            except OSError as error:
                raise StoreError(self.path, format_os_error(error)) from error
            return numbered

    def _write(self, fd: int, data: bytes, seq: int) -> None:
        # A write that is cut, by a full disk say, leaves a torn line: the next one begins behind it.
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
        """Take in what was appended, by whomever; says whether the last line is torn."""
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
        """Events behind a number, oldest first and no more than `limit`; of some types or one agent alone."""
        cursor = self._open_reader(after)
        found: list[BaseSwarmEvent] = []
        while len(found) < limit:
            some = cursor.read_next()
            if not some:
                break
            found += [event for event in some if _matches(event, after, types, agent)]
        return found[:limit]

    async def follow(
        self, after: int = 0, types: Collection[str] | None = None, agent: str | None = None
    ) -> AsyncGenerator[BaseSwarmEvent]:
        """Events behind a number, and then those that come, for as long as one listens."""
        cursor = self._open_reader(after)
        while True:
            some = cursor.read_next()
            for event in some:
                if _matches(event, after, types, agent):
                    yield event
            if not some:
                await asyncio.sleep(POLL_INTERVAL)

    def _open_reader(self, after: int) -> _LogReader:
        if after < 0:
            raise InvalidOperation("events are numbered from 1: there is none before 0")
        with self._lock:
            if self._open(write=False) is not None:
                self._catch_up()
            place = next(place for seq, place in reversed(self._offsets) if seq <= after)
        return _LogReader(self, place)

    def read_lines_at(self, offset: int) -> bytes:
        """Whole lines from a place on, as many as are read at once."""
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
        """Take the spool away."""
        self.close()
        discard(self.path)

    def __del__(self) -> None:
        close_quietly(self._fd)
        if self.is_temporary:
            discard(self.path)


class _LogReader:
    """Where one reader is."""

    def __init__(self, log: EventLog, place: int) -> None:
        self._log = log
        self._offset = place

    def read_next(self) -> list[BaseSwarmEvent]:
        data = self._log.read_lines_at(self._offset)
        self._offset += len(data)
        return [event for line in data.splitlines() if (event := _decode(line)) is not None]


def _decode(line: bytes) -> BaseSwarmEvent | None:
    """The event of a line; `None` for one that is torn, or of a type that is not known here."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _matches(event: BaseSwarmEvent, after: int, types: Collection[str] | None, agent: str | None) -> bool:
    return event.seq > after and (types is None or event.type in types) and (agent is None or event.agent == agent)


DeltaKind: TypeAlias = Literal["text", "thinking"]

FLUSH_DELAY = 0.05
"""Seconds for which what an agent's model says is gathered before it is written."""


class DeltaBuffer:
    """What an agent's model says, joined before it is written: a provider sends a word at a time."""

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
        """Write what was gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pieces:
            joined = "".join(self._pieces)
            self._pieces = []
            self._emit(SwarmTextDelta(delta=joined) if self._kind == "text" else SwarmThinking(delta=joined))
