"""Message views: typed values over messages and content blocks in wire form.

A view reads the stored JSON on access, so fields that it does not name survive in `raw`. Session files are untrusted:
every property returns a harmless value whatever the JSON holds.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Never, TypeAlias, TypeGuard

from msgspec import Struct, field

from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import InvalidOperation


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def coerce_number(value: object) -> float | int:
    """Return `value` if it is a finite number, else 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return value if -1e300 < value < 1e300 else 0


def coerce_string(value: object) -> str:
    return value if isinstance(value, str) else ""


class JsonView:
    """A value over one JSON object. Two views are equal if they have the same type and the same JSON."""

    __slots__ = ("raw",)
    raw: dict[str, Any]
    """The JSON object in wire form, with all its fields. Do not change it."""

    @classmethod
    def wrap(cls, raw: dict[str, Any]) -> Any:
        """Return a view of `raw` without copying or checking it."""
        view = cls.__new__(cls)
        view.raw = raw
        return view

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonView) and type(other) is type(self) and other.raw == self.raw

    def __hash__(self) -> int:
        return hash((type(self), *self.raw))

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__name__}({', '.join(shown)})"

    __match_args__: ClassVar[tuple[str, ...]] = ("raw",)


# Content blocks


class Text(JsonView):
    """A block of text."""

    __slots__ = ()
    __match_args__ = ("text",)

    def __init__(self, text: str) -> None:
        self.raw = {"type": "text", "text": text}

    @property
    def text(self) -> str:
        return coerce_string(self.raw.get("text"))


class Image(JsonView):
    """A block with an image."""

    __slots__ = ()
    __match_args__ = ("media_type",)

    def __init__(self, data: bytes, media_type: str) -> None:
        from base64 import b64encode

        if not isinstance(data, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise InvalidOperation(
                f'an image needs its bytes, such as Path("a.png").read_bytes(), not {type(data).__name__}'
            )
        self.raw = {"type": "image", "data": b64encode(data).decode(), "mimeType": media_type}

    @property
    def data(self) -> bytes:
        """The bytes of the image; empty if the stored text is not valid base64."""
        from base64 import b64decode

        try:
            return b64decode(coerce_string(self.raw.get("data")), validate=True)
        except ValueError:
            return b""

    @property
    def media_type(self) -> str:
        return coerce_string(self.raw.get("mimeType"))


class Thinking(JsonView):
    """A block with the model's thinking. The signature lets the same model read it again."""

    __slots__ = ()
    __match_args__ = ("text", "signature")

    def __init__(self, text: str, signature: str | None = None) -> None:
        self.raw = {"type": "thinking", "thinking": text}
        if signature is not None:
            self.raw["thinkingSignature"] = signature

    @property
    def text(self) -> str:
        return coerce_string(self.raw.get("thinking"))

    @property
    def signature(self) -> str | None:
        return coerce_string(self.raw.get("thinkingSignature")) or None


class ToolCall(JsonView):
    """A block in which the model calls a tool."""

    __slots__ = ()
    __match_args__ = ("id", "name", "arguments")

    def __init__(self, id: str, name: str, arguments: Any) -> None:
        self.raw = {"type": "toolCall", "id": id, "name": name, "arguments": arguments}

    @property
    def id(self) -> str:
        return coerce_string(self.raw.get("id"))

    @property
    def name(self) -> str:
        return coerce_string(self.raw.get("name"))

    @property
    def arguments(self) -> Any:
        """A JSON object; the text as the model wrote it if that is not one."""
        return self.raw.get("arguments")


class OtherBlock(JsonView):
    """A block of a type that is not known here. It is kept and not sent to the model."""

    __slots__ = ()
    __match_args__ = ("type",)

    @property
    def type(self) -> str:
        return coerce_string(self.raw.get("type"))


Block: TypeAlias = Text | Image | Thinking | ToolCall | OtherBlock

_BLOCK_VIEWS: dict[str, type[Text] | type[Image] | type[Thinking] | type[ToolCall]] = {
    "text": Text,
    "image": Image,
    "thinking": Thinking,
    "toolCall": ToolCall,
}


def view_blocks(content: object) -> list[Block]:
    """Return the blocks of a message's content. A plain string is one block of text."""
    if isinstance(content, str):
        return [Text(content)]
    blocks = filter(is_object, content) if is_list(content) else ()
    return [_BLOCK_VIEWS.get(coerce_string(block.get("type")), OtherBlock).wrap(block) for block in blocks]


# Usage


class TokenUsage(NamedTuple):
    """What a model call used: tokens by kind, and the cost in US dollars."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total: int = 0
    cost: float = 0.0

    def add(self, other: TokenUsage | None) -> TokenUsage:
        """Return the sum of both; `None` adds nothing."""
        if other is None:
            return self
        return TokenUsage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.total + other.total,
            self.cost + other.cost,
        )


def view_usage(usage: object) -> TokenUsage | None:
    """Return a usage object as typed numbers; `None` if there is none."""
    if not is_object(usage):
        return None
    counts = [int(coerce_number(usage.get(key))) for key in ("input", "output", "cacheRead", "cacheWrite")]
    cost = usage.get("cost")
    return TokenUsage(
        *counts,
        total=int(coerce_number(usage.get("totalTokens"))) or sum(counts),
        cost=float(coerce_number(cost.get("total") if is_object(cost) else cost)),
    )


# Messages


_MAKERS = {
    "UserMessage": "st.user(…)",
    "AssistantMessage": "st.assistant(…)",
    "ToolResult": "st.tool_result(call, name, content)",
    "SystemMessage": "st.system(…)",
}


class MessageView(JsonView):
    """A message of a conversation."""

    __slots__ = ()
    __match_args__ = ("text",)

    def __init__(self, *values: Never, **fields: Never) -> None:
        made_with = _MAKERS.get(type(self).__name__, "st.Message({…})")
        raise InvalidOperation(f"{type(self).__name__} is a view of a stored message; make one with {made_with}")

    @property
    def role(self) -> str:
        return coerce_string(self.raw.get("role"))

    @property
    def blocks(self) -> list[Block]:
        return view_blocks(self.raw.get("content"))

    @property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def images(self) -> list[Image]:
        return [block for block in self.blocks if isinstance(block, Image)]

    @property
    def timestamp(self) -> str | None:
        """When the message was made, as an ISO time like the one of an entry."""
        milliseconds = int(coerce_number(self.raw.get("timestamp")))
        return format_timestamp(milliseconds) if milliseconds else None


class UserMessage(MessageView):
    """A message from the user."""

    __slots__ = ()


class AssistantMessage(MessageView):
    """An answer of a model."""

    __slots__ = ()
    __match_args__ = ("text", "tool_calls")

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [block for block in self.blocks if isinstance(block, ToolCall)]

    @property
    def thinking(self) -> str:
        """The thinking blocks, joined by newlines."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, Thinking))

    @property
    def provider(self) -> str | None:
        return coerce_string(self.raw.get("provider")) or None

    @property
    def model(self) -> str | None:
        return coerce_string(self.raw.get("model")) or None

    @property
    def stop_reason(self) -> str | None:
        """Why the answer ended: `stop`, `toolUse`, `length`, `error` or `aborted`."""
        return coerce_string(self.raw.get("stopReason")) or None

    @property
    def error(self) -> str | None:
        """The error that ended the answer."""
        return coerce_string(self.raw.get("errorMessage")) or None

    @property
    def usage(self) -> TokenUsage | None:
        return view_usage(self.raw.get("usage"))


class ToolResult(MessageView):
    """The result of one tool call."""

    __slots__ = ()
    __match_args__ = ("call_id", "tool_name", "text")

    @property
    def call_id(self) -> str:
        """The id of the tool call that this message answers."""
        return coerce_string(self.raw.get("toolCallId"))

    @property
    def tool_name(self) -> str:
        return coerce_string(self.raw.get("toolName"))

    @property
    def is_error(self) -> bool:
        return self.raw.get("isError") is True

    @property
    def details(self) -> Any:
        """Data for the user interface, which the model does not see."""
        return self.raw.get("details")


class SystemMessage(MessageView):
    """A system prompt that is stored in the conversation."""

    __slots__ = ()


class OtherMessage(MessageView):
    """A message with another role, such as a shell command of the user. `role` and `raw` have the details."""

    __slots__ = ()
    __match_args__ = ("role", "text")


TypedMessage: TypeAlias = UserMessage | AssistantMessage | ToolResult | SystemMessage | OtherMessage

_MESSAGE_VIEWS: dict[str, type[UserMessage] | type[AssistantMessage] | type[ToolResult] | type[SystemMessage]] = {
    "user": UserMessage,
    "assistant": AssistantMessage,
    "toolResult": ToolResult,
    "system": SystemMessage,
}


def view_message(message: dict[str, Any]) -> TypedMessage:
    """Return the typed view of a message in wire form."""
    return _MESSAGE_VIEWS.get(coerce_string(message.get("role")), OtherMessage).wrap(message)


# Previews

ABNORMAL_STOPS = frozenset({"error", "aborted"})


class PreviewBlock(Struct, gc=False):
    type: str = ""
    text: str = ""
    id: str = ""
    name: str = ""
    arguments: Any = None


class MessagePreview(Struct, gc=False, rename="camel"):
    """The parts of a message that a listing needs, which decode faster than the whole message."""

    role: str = ""
    content: str | list[PreviewBlock] = ""
    stop_reason: str = ""
    tool_call_id: str = ""
    tool_name: str = ""
    command: str = ""
    code: str = ""
    tool_calls: Any = field(name="tool_calls", default=None)
    """Calls in the form of another SDK, which no model is sent."""

    @property
    def text(self) -> str:
        """The text of the content, as `extract_text` returns it."""
        content = self.content
        if isinstance(content, str):
            return content
        if len(content) == 1:  # the common case
            return content[0].text if content[0].type == "text" else ""
        return "\n".join([block.text for block in content if block.type == "text"])

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls, as `get_tool_calls` returns them."""
        return [ToolCall(block.id, block.name, block.arguments) for block in self.call_blocks]

    @property
    def call_blocks(self) -> list[PreviewBlock]:
        """The blocks that are tool calls."""
        if self.role != "assistant" or isinstance(self.content, str):
            return []
        return [block for block in self.content if block.type == "toolCall"]

    @property
    def is_failed_turn(self) -> bool:
        return self.role == "assistant" and self.stop_reason in ABNORMAL_STOPS
