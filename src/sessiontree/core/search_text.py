"""Search text: all text of an entry, and the form of texts that searches compare.

It includes thinking, tool arguments and results, summaries, names, labels, system messages and the strings in all other
data. Images have no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sessiontree.core.context import Context
from sessiontree.core.entries import (
    Body,
    BranchSummary,
    Compaction,
    ContextEdit,
    CustomMessage,
    Entry,
    EntryId,
    JsonObject,
    Message,
)
from sessiontree.core.messages import coerce_string, get_tool_calls, is_list, is_object


def build_full_text(entry: Entry) -> str:
    """Return all text of `entry`, one part on each line."""
    return "\n".join(get_text_parts(entry))


def get_text_parts(entry: Entry) -> list[str]:
    """Return all text of `entry`, part by part. Head records have no text."""
    if entry.is_head_record:
        return []
    return [part for part in _list_body_texts(entry.decode()) if part]


class VisibleEntries:
    """The entries whose text the model sees in a context."""

    def __init__(self, context: Context) -> None:
        sent = {id for id, _ in context.build_request()}
        messages = zip(context.sources, context.messages, strict=True)
        self._sent: dict[EntryId, JsonObject] = {id: message for id, message in messages if id in sent}

    def contains(self, entry: Entry) -> bool:
        """Return whether the model sees the entry unchanged. A context edit counts instead of the entry that it
        changes.
        """
        match entry.decode():
            case ContextEdit(target=target, replacement=replacement):
                sent = self._sent.get(target)
                return None not in (sent, replacement) and _get_content_texts(sent) == _get_content_texts(replacement)
            case Message(message):
                return entry.id in self._sent and _get_message_texts(self._sent[entry.id]) == _get_message_texts(
                    message
                )
            case CustomMessage(content=content):
                return entry.id in self._sent and _get_content_texts(self._sent[entry.id]) == _get_block_texts(content)
            case _:
                return entry.id in self._sent


def _get_content_texts(message: JsonObject | None) -> list[str]:
    return _get_block_texts((message or {}).get("content"))


def normalize_accents(text: str) -> str:
    """Return `text` with composed accents."""
    if text.isascii():
        return text
    import unicodedata

    return unicodedata.normalize("NFC", text)


def normalize_case(text: str) -> str:
    """Return `text` with composed accents and folded case."""
    return normalize_accents(text).casefold()


def fold(text: str) -> str:
    """Return `text` in the form that searches compare: folded, on one line, with single spaces."""
    return " ".join(normalize_case(text).split())


def fold_parts(parts: Iterable[str]) -> str:
    """Fold each part on its own line, so a match cannot span two parts."""
    return "\n".join(map(fold, parts))


def _list_body_texts(body: Body) -> Iterable[str]:
    match body:
        case Message(message):
            return _get_message_texts(message)
        case CustomMessage(content=content):
            return _get_block_texts(content)
        case BranchSummary(summary=summary):
            return (summary,)
        case Compaction(summary=summary, system_message=system):
            return (summary, *_get_message_texts(system or {}))
        case ContextEdit(replacement=replacement):
            return _get_content_texts(replacement)
        case _:
            description = body.describe()
            return (*description.texts, *_iter_strings(description.data))


MESSAGE_TEXT_KEYS = ("command", "code", "output", "summary", "text", "errorMessage", "toolName")


MESSAGE_TREE_KEYS = ("files", "sections")


def _get_message_texts(message: JsonObject) -> list[str]:
    parts = _get_block_texts(message.get("content"))
    for call in get_tool_calls(message):
        parts.append(call.name)
        parts += _iter_strings(call.arguments, numbers=True)
    parts += [coerce_string(message[key]) for key in MESSAGE_TEXT_KEYS if key in message]
    for key in MESSAGE_TREE_KEYS:
        if key in message:
            parts += _iter_strings(message[key])
    return parts


def _get_block_texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [
        coerce_string(block[key])
        for block in (content if is_list(content) else ())
        if is_object(block)
        for key in ("text", "thinking")
        if key in block
    ]


def _iter_strings(value: Any, *, numbers: bool = False) -> Iterator[str]:
    """Yield every string inside a JSON value, in order and at any depth; with `numbers` also integers.

    Other numbers have several spellings, and a search must not depend on the spelling.
    """
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif numbers and isinstance(item, int) and not isinstance(item, bool):
            yield str(item)
        elif is_object(item):
            waiting.extend(reversed(item.values()))
        elif is_list(item):
            waiting.extend(reversed(item))
