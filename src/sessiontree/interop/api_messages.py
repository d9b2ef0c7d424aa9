"""Messages in the form of a provider's API, converted one by one, so that one bad message does not cost the others.

The converters in `sessiontree.convert` do the work. What they need from earlier messages is kept here: the names and
stored ids of tool calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessiontree.convert.anthropic_messages import from_anthropic
from sessiontree.convert.base import ApiKind
from sessiontree.convert.openai_chat import from_openai
from sessiontree.convert.openai_responses import from_openai_responses
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, complete_usage, is_object, iter_blocks
from sessiontree.errors import InvalidOperation

CONVERTERS = {
    ApiKind.OPENAI_COMPATIBLE: from_openai,
    ApiKind.OPENAI_RESPONSES: from_openai_responses,
    ApiKind.ANTHROPIC: from_anthropic,
}
PROVIDERS = {
    ApiKind.OPENAI_COMPATIBLE: "openai",
    ApiKind.OPENAI_RESPONSES: "openai",
    ApiKind.ANTHROPIC: "anthropic",
}
INPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})


class ApiMessages:
    """Converts the messages of one conversation in order."""

    def __init__(self, api: str) -> None:
        self.api = api
        self.problem = ""
        """Why the last messages could not be converted."""
        self._calls: dict[str, tuple[str, str]] = {}
        """The stored id and the tool of each call, by its id."""

    def convert(self, messages: Sequence[object], *, model: str | None = None) -> list[JsonObject]:
        """Return stored messages; none if the messages are malformed, and then `problem` says why."""
        self.problem = ""
        try:
            bodies = CONVERTERS[self.api](messages)
        except InvalidOperation as error:
            self.problem = str(error)
            return []
        return [self._complete(body.message, model) for body in bodies]

    def _complete(self, message: JsonObject, model: str | None) -> JsonObject:
        if message["role"] == "assistant":
            for block in iter_blocks(message["content"]):
                if block.get("type") == "toolCall":
                    self._calls[block["id"].partition("|")[0]] = (block["id"], block["name"])
            has_calls = any(block.get("type") == "toolCall" for block in iter_blocks(message["content"]))
            defaults: JsonObject = {
                "provider": PROVIDERS[self.api],
                "model": model or "unknown",
                "stopReason": "toolUse" if has_calls else "stop",
            }
            usage = message.get("usage")
            return {**defaults, **message, "usage": usage if is_object(usage) else complete_usage(None)}
        if message["role"] == "toolResult":
            stored, name = self._calls.get(
                message["toolCallId"].partition("|")[0], (message["toolCallId"], message["toolName"])
            )
            return {**message, "toolCallId": stored, "toolName": name}
        return message


def group_items(items: Sequence[JsonObject]) -> list[list[int]]:
    """Return the indexes of OpenAI Responses items that make one message: all items of an answer are one group."""
    groups: list[list[int]] = []
    in_answer = False
    for index, item in enumerate(items):
        kind, role = coerce_string(item.get("type")), item.get("role")
        is_answer = role == "assistant" or kind not in ("", "message", *INPUT_TYPES)
        if is_answer and in_answer:
            groups[-1].append(index)
        else:
            groups.append([index])
        in_answer = is_answer
    return groups
