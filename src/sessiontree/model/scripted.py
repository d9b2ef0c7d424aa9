"""A model that answers from a script, for tests and experiments without a provider.

    model = ScriptedModel(["Hello.", [Thinking("a file"), ToolCall("c1", "read", {"path": "a"})], "Done."])

Each request consumes the next answer. An answer is a part, a list of parts, or a function that takes the request and
returns either. The model streams the answer in small pieces, like a provider.
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
from sessiontree.core.message_views import Text, Thinking, ToolCall
from sessiontree.core.messages import CHARACTERS_PER_TOKEN, complete_usage, estimate_tokens
from sessiontree.errors import InvalidOperation
from sessiontree.model.base import (
    Finished,
    ModelError,
    ModelEvent,
    ModelInfo,
    PartialMessage,
    Request,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)


class Delay(Struct, frozen=True):
    """A pause within the answer."""

    seconds: float


class ScriptedStop(Struct, frozen=True):
    """The stop reason of the answer, such as `length`. The default is `toolUse` after tool calls and `stop`
    otherwise."""

    reason: str


class ScriptedUsage(Struct, frozen=True):
    """The usage that the answer reports, in wire form. The default is an estimate of its tokens."""

    usage: JsonObject


ScriptPart: TypeAlias = str | Text | Thinking | ToolCall | Delay | ScriptedStop | ScriptedUsage | ModelError
"""A string is text, like `Text`. An error is raised at its position."""
ScriptedAnswer: TypeAlias = ScriptPart | Sequence[ScriptPart]
Script: TypeAlias = ScriptedAnswer | Callable[[Request], ScriptedAnswer | Awaitable[ScriptedAnswer]]

INFO = ModelInfo(provider="scripted", model="scripted", api="scripted", images=True, thinking=True)


class ScriptedModel:
    def __init__(self, answers: Iterable[Script] = (), *, info: ModelInfo = INFO) -> None:
        """Create a model with these answers; a string is one answer. Raises `InvalidOperation` for other values."""
        self.requests: list[Request] = []
        """All requests, oldest first."""
        self._answers: list[Script] = []
        self._info = info
        self.add(*([answers] if isinstance(answers, str) else answers))

    @property
    def info(self) -> ModelInfo:
        return self._info

    def add(self, *answers: Script) -> None:
        """Append answers to the script."""
        for answer in answers:
            _check_answer(answer)
        self._answers.extend(answers)

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        self.requests.append(request)
        draft = PartialMessage(self._info)
        usage: JsonObject | None = None
        reason: str | None = None
        for part in _list_parts(await self._next_answer(request)):
            await asyncio.sleep(part.seconds if isinstance(part, Delay) else 0)
            match part:
                case ModelError():
                    raise part
                case ScriptedUsage():
                    usage = part.usage
                case ScriptedStop():
                    reason = part.reason
                case _:
                    for event in _build_events(part):
                        draft.apply(event)
                        yield event
                        await asyncio.sleep(0)
        called = any(block["type"] == "toolCall" for block in draft.content)
        message = draft.build_message(reason or ("toolUse" if called else "stop"))
        yield Finished({**message, "usage": complete_usage(usage or _estimate_usage(request, message))})

    async def _next_answer(self, request: Request) -> ScriptedAnswer:
        if not self._answers:
            raise ModelError(self._info.name, "unavailable", "the script has no answers left")
        answer = self._answers.pop(0)
        if not callable(answer):
            return answer
        result = answer(request)
        return await result if inspect.isawaitable(result) else result


def _check_answer(answer: Script) -> None:
    """Refuse an answer that no request could be given. Callers may not check types."""
    if callable(answer) or isinstance(answer, ScriptPart):
        return
    parts: Sequence[object] = answer if isinstance(answer, list | tuple) else (answer,)
    for part in parts:
        if not isinstance(part, ScriptPart):
            raise InvalidOperation(
                f"an answer of a script is a text, an st.ToolCall, a list of these or a function, not {part!r:.80}"
            )


def _list_parts(answer: ScriptedAnswer) -> Sequence[ScriptPart]:
    return (answer,) if isinstance(answer, ScriptPart) else answer


def _build_events(part: str | Text | Thinking | ToolCall | Delay) -> Iterator[ModelEvent]:
    match part:
        case ToolCall(id, name, arguments):
            yield ToolCallStart(id, name)
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            yield from (ToolCallDelta(id, piece) for piece in _split_words(written))
            yield ToolCallEnd(part)
        case Thinking(text):
            yield from map(ThinkingDelta, _split_words(text))
        case str() | Text():
            yield from map(TextDelta, _split_words(part if isinstance(part, str) else part.text))
        case Delay():
            pass


def _split_words(text: str) -> list[str]:
    """Split a text into words, each with its surrounding white space."""
    return re.findall(r"\s*\S+\s*|\s+", text)


def _estimate_usage(request: Request, message: JsonObject) -> JsonObject:
    input_tokens = sum(map(estimate_tokens, request.messages)) + len(request.system) // CHARACTERS_PER_TOKEN
    return {"input": input_tokens, "output": estimate_tokens(message)}
