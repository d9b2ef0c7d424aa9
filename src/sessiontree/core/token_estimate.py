"""Token estimate: approximates how many tokens a message takes in the model's window.

Four characters count as one token, an image as 1,200 tokens. The provider's own count is better for messages that were
already sent.
"""

from __future__ import annotations

from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, get_role, is_object, iter_blocks

CHARACTERS_PER_TOKEN = 4
IMAGE_CHARACTERS = 4800


def estimate_tokens(message: JsonObject) -> int:
    """Return the estimated tokens of one message in wire form."""
    return -(-_count_characters(message) // CHARACTERS_PER_TOKEN)


def _count_characters(message: JsonObject) -> int:
    match get_role(message):
        case "bashExecution" | "pythonExecution":
            return sum(len(coerce_string(message.get(key))) for key in ("command", "code", "output"))
        case "compactionSummary" | "branchSummary":
            return len(coerce_string(message.get("summary")))
        case "system":
            parts = [message.get("content")]
            sections = message.get("sections")
            if is_object(sections):
                parts.extend(sections.values())
            tools = message.get("toolsAdded")
            return sum(map(_count_content, parts)) + (_count_json(tools) if tools else 0)
        case _:
            return _count_content(message.get("content"))


def _count_content(content: object) -> int:
    total = 0
    for block in iter_blocks(content):
        match block.get("type"):
            case "text":
                total += len(coerce_string(block.get("text")))
            case "thinking":
                total += len(coerce_string(block.get("thinking")))
            case "image":
                total += IMAGE_CHARACTERS
            case "toolCall":
                total += len(coerce_string(block.get("name"))) + _count_json(block.get("arguments"))
            case _:
                pass
    return total


def _count_json(value: object) -> int:
    import json

    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
