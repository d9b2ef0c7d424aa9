"""A simulation for swarms: virtual time, models that answer at random, and processes that crash at any write.

Everything is derived from a seed: there are no threads, and time is a number.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import selectors
from collections.abc import AsyncGenerator, Callable, Sequence
from random import Random
from typing import Any

from sessiontree.core.messages import ToolCall, complete_usage
from sessiontree.model.base import (
    Finished,
    ModelError,
    ModelEvent,
    ModelInfo,
    PartialMessage,
    Request,
    TextDelta,
    ToolCallEnd,
)
from sessiontree.session import Session
from sessiontree.store.base import Cursor
from sessiontree.store.memory import MemoryStore

START = 1_800_000_000_000
"""The start of the simulation, in milliseconds."""


class _InstantSelector(selectors.SelectSelector):
    """Advances the virtual time instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if found:
            return found
        if timeout is None:
            raise AssertionError("everything waits, and nothing will come")
        self.now += max(0.0, timeout)
        return []


class InstantLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time and without threads."""

    def __init__(self, now: float = 0.0) -> None:
        self._world = _InstantSelector()
        self._world.now = now
        super().__init__(self._world)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._world.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the future's consumer gets it
            future.set_exception(error)
        return future


class CrashingStore(MemoryStore):
    """A store that ignores all writes after a certain number, as after a power cut."""

    def __init__(self, data: bytes | None = None) -> None:
        super().__init__()
        self.writes = 0
        self.fatal: int | None = None
        self.image: bytes | None = None
        self.died = asyncio.Event()
        if data is not None:
            self._data = bytearray(data)

    def append(self, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        cursor = super().append(lines, after=after)
        self.writes += 1
        if self.writes == self.fatal:
            self.image = bytes(self._require_data())
            self.died.set()
        return cursor

    @property
    def data(self) -> bytes:
        return bytes(self._require_data())


def build_id_generator(random: Random) -> Callable[[], str]:
    return lambda: f"{random.getrandbits(64):016x}"


def open_session(disk: CrashingStore, loop: InstantLoop, random: Random) -> Session:
    return Session(disk, now=lambda: START + int(loop.time() * 1000), new_id=build_id_generator(random))


def compute_digest(messages: Sequence[Any]) -> str:
    """Return a short digest of the messages of a request."""
    return hashlib.sha256(json.dumps(list(messages), sort_keys=True).encode()).hexdigest()[:16]


COST = 1.0
"""The maximum cost of a call."""
TOKENS = 15
"""The usage of each call."""


class RandomModel:
    """Answers, calls tools, waits and fails at random. Each answer contains a digest of its request."""

    def __init__(self, random: Random, *, faults: float) -> None:
        self.random = random
        self.faults = faults
        self.calls = 0
        self.under_way = 0

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(provider="chance", model="chance", context_window=100_000)

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        random = self.random
        self.calls += 1
        self.under_way += 1
        try:
            await asyncio.sleep(random.choice([0, 0, 0.5, 3]))
            if random.random() < self.faults:
                kind = random.choice(["rate", "server", "timeout", "network", "auth", "bug"])
                if kind == "bug":
                    raise ZeroDivisionError("a fault in a model")
                raise ModelError("chance:chance", kind, "by chance")
            draft = PartialMessage(self.info)
            for event in self._answer(request):
                draft.apply(event)
                yield event
                await asyncio.sleep(random.choice([0, 0, 0.2]))
            called = any(block["type"] == "toolCall" for block in draft.content)
            usage = {"input": TOKENS - 5, "output": 5, "cost": round(random.uniform(0, COST), 3)}
            yield Finished({**draft.build_message("toolUse" if called else "stop"), "usage": complete_usage(usage)})
        finally:
            self.under_way -= 1

    def _answer(self, request: Request) -> list[ModelEvent]:
        random, tools = self.random, {tool.name for tool in request.tools}
        words: list[ModelEvent] = [TextDelta(f"asked {compute_digest(request.messages)}\nand so on")]
        chosen = random.random()
        if "split_task" in tools and chosen < 0.4:
            parts = [f"part {random.getrandbits(16):x}" for _ in range(random.randint(1, 3))]
            words.append(ToolCallEnd(ToolCall(f"c{self.calls}", "split_task", {"parts": parts})))
        elif "note" in tools and chosen < 0.5:
            words.append(ToolCallEnd(ToolCall(f"c{self.calls}", "note", {"words": "x"})))
        return words
