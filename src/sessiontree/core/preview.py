"""Preview: the parts of a message that a listing needs."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct

ABNORMAL_STOPS = frozenset({"error", "aborted"})


class ToolCall(NamedTuple):
    id: str
    name: str
    arguments: Any


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

    @property
    def text(self) -> str:
        """The text of the content, as `extract_text` returns it."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join([block.text for block in self.content if block.type == "text"])

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls, as `get_tool_calls` returns them."""
        if self.role != "assistant" or isinstance(self.content, str):
            return []
        return [ToolCall(block.id, block.name, block.arguments) for block in self.content if block.type == "toolCall"]

    @property
    def is_failed_turn(self) -> bool:
        return self.role == "assistant" and self.stop_reason in ABNORMAL_STOPS
