"""The model protocol: what is asked of a language model, and what comes back.

A `Model` answers a `Request` with a stream of events. Messages are in wire form, as
`Context.to_llm` gives them and as sessions store them; what a provider wants instead is the
business of its adapter. Nothing here retries, stores or runs tools.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from sessiontree.config import DEFAULT_ANSWER_LIMIT
from sessiontree.config import Prices as Prices
from sessiontree.config import ThinkingLevel as ThinkingLevel
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import ToolCall, complete_usage
from sessiontree.errors import SessionTreeError

DEFAULT_WINDOW = 128_000
"""The context window of a model that nobody has told us of, in tokens."""


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What is known of a model."""

    provider: str
    model: str
    api: str = "unknown"
    """The provider's protocol, as peers name it in messages: `openai-completions`, `anthropic-messages`, …"""
    context_window: int = DEFAULT_WINDOW
    output_limit: int | None = None
    images: bool = False
    """Whether it takes images; otherwise it is told that there was one."""
    thinking: bool = False
    prices: Prices | None = None
    """Where they are set by hand; otherwise the adapter looks them up."""

    @property
    def name(self) -> str:
        """`provider:model`, as people write it."""
        return f"{self.provider}:{self.model}"


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as a model is told of it."""

    name: str
    description: str = ""
    parameters: JsonObject = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    """A JSON schema of an object."""


class Request(Struct, frozen=True, kw_only=True):
    """One question to a model."""

    messages: Sequence[JsonObject]
    """Not to be changed: they are those of the session, which there may be thousands of."""
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    thinking: str = "off"
    max_tokens: int | None = None


# What comes back, in this order: any of the deltas, then one `Finished`.


class TextDelta(Struct, frozen=True):
    text: str


class ThinkingDelta(Struct, frozen=True):
    text: str


class ToolCallStart(Struct, frozen=True):
    id: str
    name: str


class ToolCallDelta(Struct, frozen=True):
    """More of the JSON text of a call's arguments."""

    id: str
    arguments: str


class ToolCallEnd(Struct, frozen=True):
    """A whole call. Arguments that are no JSON object are there as the text that came."""

    call: ToolCall


class Finished(Struct, frozen=True):
    """The whole assistant message in wire form, with usage, cost and stop reason."""

    message: JsonObject


ModelEvent: TypeAlias = TextDelta | ThinkingDelta | ToolCallStart | ToolCallDelta | ToolCallEnd | Finished


class Model(Protocol):
    @property
    def info(self) -> ModelInfo: ...

    def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        """Ask, and yield what comes back. Raises `ModelError`; closing or cancelling it closes the connection."""
        ...


FailureKind: TypeAlias = Literal["overflow", "rate", "server", "timeout", "network", "auth", "rejected", "unavailable"]

RETRYABLE: frozenset[str] = frozenset({"rate", "server", "timeout", "network"})


class ModelError(SessionTreeError):
    """A model did not answer."""

    def __init__(
        self, model: str, kind: FailureKind, reason: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{model}: {reason}")
        self.model = model
        self.kind: FailureKind = kind
        """`overflow` is a conversation too long for the window; the rest say what they say."""
        self.reason = reason
        self.status = status
        self.retry_after = retry_after
        """How long the provider asks to wait, in seconds."""

    @property
    def is_retryable(self) -> bool:
        """Whether trying again may help."""
        return self.kind in RETRYABLE


INCOMPLETE_CALL = "[The call of {name} was not finished. Its arguments so far:] "
"""Stands before what has arrived of a call that was cut off. It is text: half a call cannot be made."""


class PartialMessage:
    """An assistant message while it arrives: what a turn that is cut short leaves."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._blocks: list[JsonObject] = []
        self._pieces: list[str] = []
        """Of the last block, if that is a text or a thought: joined when asked for, since there may be millions."""
        self._calls: dict[str, tuple[str, list[str]]] = {}
        """The calls that have begun, with the pieces of their arguments."""
        self._finished: JsonObject | None = None
        self.size = 0
        """How many bytes have arrived."""

    @property
    def has_started(self) -> bool:
        """Whether anything has arrived."""
        return bool(self._blocks or self._calls or self._finished)

    def apply(self, event: ModelEvent) -> None:
        match event:
            case TextDelta(text):
                self._append_text("text", text)
            case ThinkingDelta(text):
                self._append_text("thinking", text)
            case ToolCallStart(id, name):
                self._calls[id] = name, []
            case ToolCallDelta(id, arguments):
                self._calls.setdefault(id, ("a tool", []))[1].append(arguments)
                self.size += _count_bytes(arguments)
            case ToolCallEnd(call):
                self._join_pieces()
                self._calls.pop(call.id, None)
                arguments: Any = call.arguments
                self._blocks.append({"type": "toolCall", "id": call.id, "name": call.name, "arguments": arguments})
            case Finished(message):
                self._finished = message

    def _append_text(self, kind: str, text: str) -> None:
        if not self._blocks or self._blocks[-1]["type"] != kind:
            self._join_pieces()
            self._blocks.append({"type": kind, kind: ""})
        self._pieces.append(text)
        self.size += _count_bytes(text)

    def _join_pieces(self) -> None:
        """Join the pieces of the last block."""
        if self._pieces:
            last = self._blocks[-1]
            last[last["type"]] += "".join(self._pieces)
            self._pieces.clear()

    @property
    def content(self) -> list[JsonObject]:
        if self._finished is not None:
            return self._finished["content"]
        self._join_pieces()
        incomplete = [
            {"type": "text", "text": INCOMPLETE_CALL.format(name=name) + "".join(pieces)}
            for name, pieces in self._calls.values()
            if any(pieces)
        ]
        return [*self._blocks, *incomplete]

    def build_message(self, stop_reason: str = "stop", error: str | None = None) -> JsonObject:
        """The message as far as it has arrived, in wire form."""
        if self._finished is not None:
            return self._finished
        message: JsonObject = {
            "role": "assistant",
            "content": self.content,
            "api": self._info.api,
            "provider": self._info.provider,
            "model": self._info.model,
            "usage": complete_usage(None),
            "stopReason": stop_reason,
        }
        if error is not None:
            message["errorMessage"] = error
        return message


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def build_cut_off_error(model: str, detail: str = "") -> ModelError:
    """The failure that an answer without an end is."""
    return ModelError(model, "network", f"the stream was cut off ({detail})" if detail else "the stream was cut off")


async def complete(
    model: Model, request: Request, limit: int = DEFAULT_ANSWER_LIMIT, *, partial: PartialMessage | None = None
) -> JsonObject:
    """The whole answer to a request. Raises `ModelError`, also for an answer of more bytes than `limit`.

    A `draft` that is given has what had arrived by then.
    """
    partial = PartialMessage(model.info) if partial is None else partial
    async with aclosing(model.stream(request)) as events:
        async for event in events:
            if isinstance(event, Finished):
                return event.message
            partial.apply(event)
            if partial.size > limit:
                raise ModelError(model.info.name, "rejected", f"the answer is longer than {limit} bytes")
    raise build_cut_off_error(model.info.name)
