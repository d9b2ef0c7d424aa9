"""The model protocol: requests to a language model and the events that it streams back.

A `Model` answers a `Request` with a stream of events. Messages are in wire form, the form that `Context.to_llm` returns
and that sessions store. Adapters convert them for each provider. This module does not retry, store or run tools.
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
"""The context window to assume for an unknown model, in tokens."""


class ModelInfo(Struct, frozen=True, kw_only=True):
    """Describes a model: its names, its limits and its prices."""

    provider: str
    model: str
    api: str = "unknown"
    """The provider's protocol, by the name that other programs write in messages: `openai-completions`,
    `anthropic-messages`, …"""
    context_window: int = DEFAULT_WINDOW
    output_limit: int | None = None
    images: bool = False
    """Whether the model accepts images. If not, a note replaces each image."""
    thinking: bool = False
    prices: Prices | None = None
    """Prices from the configuration. If `None`, the adapter looks them up."""

    @property
    def name(self) -> str:
        """The full name, `provider:model`."""
        return f"{self.provider}:{self.model}"


class ToolSpec(Struct, frozen=True, kw_only=True):
    """Describes a tool to a model."""

    name: str
    description: str = ""
    parameters: JsonObject = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    """A JSON schema of type `object`."""


class Request(Struct, frozen=True, kw_only=True):
    """A request to a model."""

    messages: Sequence[JsonObject]
    """Read-only: these are the session's own objects, not copies, because there may be thousands of them."""
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    thinking: str = "off"
    max_tokens: int | None = None


# The events of a stream: any number of deltas, then one `Finished`.


class TextDelta(Struct, frozen=True):
    """New text of an answer."""

    text: str


class ThinkingDelta(Struct, frozen=True):
    text: str


class ToolCallStart(Struct, frozen=True):
    id: str
    name: str


class ToolCallDelta(Struct, frozen=True):
    """A piece of the JSON text of a tool call's arguments."""

    id: str
    arguments: str


class ToolCallEnd(Struct, frozen=True):
    """A complete tool call. If the arguments are not a JSON object, `arguments` is the raw text."""

    call: ToolCall


class Finished(Struct, frozen=True):
    """The complete assistant message in wire form, with usage, cost and stop reason."""

    message: JsonObject


ModelEvent: TypeAlias = TextDelta | ThinkingDelta | ToolCallStart | ToolCallDelta | ToolCallEnd | Finished


class Model(Protocol):
    @property
    def info(self) -> ModelInfo: ...

    def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        """Send the request and yield the events. Raises `ModelError`. Closing or cancelling the generator closes the
        connection."""
        ...


FailureKind: TypeAlias = Literal["overflow", "rate", "server", "timeout", "network", "auth", "rejected", "unavailable"]

RETRYABLE: frozenset[str] = frozenset({"rate", "server", "timeout", "network"})


class ModelError(SessionTreeError):
    """A request to a model failed."""

    def __init__(
        self, model: str, kind: FailureKind, reason: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{model}: {reason}")
        self.model = model
        self.kind: FailureKind = kind
        """The category of the failure. `overflow` means that the conversation is too long for the context window."""
        self.reason = reason
        self.status = status
        self.retry_after = retry_after
        """How long the provider asks to wait, in seconds."""

    @property
    def is_retryable(self) -> bool:
        """Whether a retry may succeed."""
        return self.kind in RETRYABLE


INCOMPLETE_CALL = "[The call of {name} was not finished. Its arguments so far:] "
"""Precedes the partial arguments of a tool call that was cut off. They are stored as text because a partial call cannot
run."""


class PartialMessage:
    """An assistant message that is still being received. If the stream is cut off, it holds the part that arrived."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._blocks: list[JsonObject] = []
        self._pieces: list[str] = []
        """Pieces of the last text or thinking block. They are joined on demand because there may be millions of
        them."""
        self._calls: dict[str, tuple[str, list[str]]] = {}
        """Unfinished tool calls: the name and the pieces of the arguments, by id."""
        self._finished: JsonObject | None = None
        self.size = 0
        """Bytes received so far."""

    @property
    def has_started(self) -> bool:
        """Whether any content has arrived."""
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
        """Return the message received so far, in wire form."""
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
    """Return the error for a stream that ended before the message was complete."""
    return ModelError(model, "network", f"the stream was cut off ({detail})" if detail else "the stream was cut off")


async def complete(
    model: Model, request: Request, limit: int = DEFAULT_ANSWER_LIMIT, *, partial: PartialMessage | None = None
) -> JsonObject:
    """Return the complete answer to a request.

    If `partial` is given, it collects the events as they arrive, and a caller can read it after a failure. Raises
    `ModelError`, also if the answer is longer than `limit` bytes.
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
