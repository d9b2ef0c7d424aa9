"""A model that answers from a script, for tests and for trying things without a provider.

    model = ScriptedModel(["Hello.", [Thinking("a file"), ToolCall("c1", "read", {"path": "a"})], "Done."])

Each request takes the next answer. An answer is a part or a list of parts, or a function of the request that gives
one; it is streamed in small pieces, as a provider would.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import ToolCall, full_usage
from sessiontree.core.tokens import CHARACTERS_PER_TOKEN, estimate
from sessiontree.model.base import (
    Draft,
    Finished,
    ModelError,
    ModelEvent,
    ModelInfo,
    Request,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)


class Thinking(Struct, frozen=True):
    text: str


class Delay(Struct, frozen=True):
    """A pause at this place of the answer."""

    seconds: float


class Stop(Struct, frozen=True):
    """Why the answer ends, such as `length`; by default `toolUse` after calls, else `stop`."""

    reason: str


class Used(Struct, frozen=True):
    """What the answer is said to have cost, in wire form; by default an estimate of its tokens."""

    usage: JsonObject


Part: TypeAlias = str | Thinking | ToolCall | Delay | Stop | Used | ModelError
"""A string is text. An error is raised where it stands."""
Answer: TypeAlias = Part | Sequence[Part]
Script: TypeAlias = Answer | Callable[[Request], Answer | Awaitable[Answer]]

INFO = ModelInfo(provider="scripted", model="scripted", api="scripted", images=True, thinking=True)


class ScriptedModel:
    def __init__(self, answers: Iterable[Script] = (), *, info: ModelInfo = INFO) -> None:
        self.requests: list[Request] = []
        """Every request, oldest first."""
        self._answers = list(answers)
        self._info = info

    @property
    def info(self) -> ModelInfo:
        return self._info

    def add(self, *answers: Script) -> None:
        """Put more answers at the end of the script."""
        self._answers.extend(answers)

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        self.requests.append(request)
        draft = Draft(self._info)
        usage: JsonObject | None = None
        reason: str | None = None
        for part in _parts(await self._next(request)):
            await asyncio.sleep(part.seconds if isinstance(part, Delay) else 0)
            match part:
                case ModelError():
                    raise part
                case Used():
                    usage = part.usage
                case Stop():
                    reason = part.reason
                case _:
                    for event in _events(part):
                        draft.take(event)
                        yield event
                        await asyncio.sleep(0)
        called = any(block["type"] == "toolCall" for block in draft.content)
        message = draft.message(reason or ("toolUse" if called else "stop"))
        yield Finished({**message, "usage": full_usage(usage or _estimated(request, message))})

    async def _next(self, request: Request) -> Answer:
        if not self._answers:
            raise ModelError(self._info.name, "unavailable", "the script has no answer left")
        answer = self._answers.pop(0)
        if not callable(answer):
            return answer
        given = answer(request)
        return await given if inspect.isawaitable(given) else given


def _parts(answer: Answer) -> Sequence[Part]:
    return (answer,) if isinstance(answer, Part) else answer


def _events(part: str | Thinking | ToolCall | Delay) -> Iterator[ModelEvent]:
    match part:
        case ToolCall(id, name, arguments):
            yield ToolCallStart(id, name)
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            yield from (ToolCallDelta(id, piece) for piece in _pieces(written))
            yield ToolCallEnd(part)
        case Thinking(text):
            yield from map(ThinkingDelta, _pieces(text))
        case str():
            yield from map(TextDelta, _pieces(part))
        case Delay():
            pass


def _pieces(text: str) -> list[str]:
    """Words, each with the white space behind it."""
    return re.findall(r"\s*\S+\s*|\s+", text)


def _estimated(request: Request, message: JsonObject) -> JsonObject:
    asked = sum(map(estimate, request.messages)) + len(request.system) // CHARACTERS_PER_TOKEN
    return {"input": asked, "output": estimate(message)}
