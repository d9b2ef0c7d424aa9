"""Claude.ai's data export: `conversations.json`, a list of conversations with their messages.

Newer exports name the parent of each message, so edited prompts are branches. Older ones are lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sessiontree.convert.base import ApiKind
from sessiontree.core.entries import EntryId, JsonObject, Message
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import coerce_string, complete_usage, is_list, is_object
from sessiontree.errors import FormatError
from sessiontree.interop.base import (
    Conversation,
    ConversationBuilder,
    FileHead,
    ForeignFile,
    ForeignFormat,
    read_json,
)
from sessiontree.interop.foreign_branches import divide_branches, order_parents_first

NAME = "claude-ai"

_START = re.compile(rb"\s*\[?\s*\{")
_MESSAGES = re.compile(rb'"chat_messages"\s*:\s*\[')
_OWNER = re.compile(rb'"(uuid|account)"\s*:')


def detect(head: FileHead) -> bool:
    """Return whether a file is a list of Claude.ai conversations, or one of them."""
    return all(pattern.search(head.data) for pattern in (_MESSAGES, _OWNER)) and _START.match(head.data) is not None


def read(file: ForeignFile, related: Sequence[ForeignFile]) -> Iterator[Conversation]:
    """Yield every conversation of an export."""
    is_found, unread = False, 0
    for data in file.iter_objects():
        item = read_json(data)
        unread += item is None
        if is_object(item) and is_list(item.get("chat_messages")):
            is_found = True
            yield _ConversationReader(item, data).build()
    if unread or not is_found:
        raise FormatError(
            file.name, f"{unread} conversations are not valid JSON" if unread else "no conversation of Claude.ai"
        )


class _ConversationReader:
    """Builds the tree of one conversation."""

    def __init__(self, conversation: JsonObject, original: bytes) -> None:
        self._conversation = conversation
        self._original = original
        id = coerce_string(conversation.get("uuid"))
        self._builder = ConversationBuilder(NAME, id, started=conversation.get("created_at"))
        self._builder.title = coerce_string(conversation.get("name")) or None
        self._model = coerce_string(conversation.get("model")) or "unknown"
        self._messages: dict[str, JsonObject] = {}
        for number, message in enumerate(conversation["chat_messages"]):
            if not is_object(message):
                self._builder.report("malformed_line", f"message {number} is not an object and is left out")
                continue
            name = coerce_string(message.get("uuid")) or f"{id}-{number}"
            if name in self._messages:
                self._builder.report("duplicate_id", f"message {name!r} is there twice; the first one is used")
            else:
                self._messages[name] = message
        self._parents = self._find_parents()

    def _find_parents(self) -> dict[str, str | None]:
        parents: dict[str, str | None] = {}
        is_tree = any("parent_message_uuid" in message for message in self._messages.values())
        previous: str | None = None
        for id, message in self._messages.items():
            parent = coerce_string(message.get("parent_message_uuid"))
            # The parent of the first message is a constant that no message has.
            parents[id] = (parent if parent in self._messages else None) if is_tree else previous
            previous = id
        return parents

    def build(self) -> Conversation:
        order = order_parents_first(self._parents)
        current = coerce_string(self._conversation.get("current_leaf_message_uuid"))
        if current not in self._messages:
            current = order[-1] if order else ""
        branches = divide_branches(self._parents, current, main=MAIN, other="alternative")
        ends: dict[str, EntryId | None] = {}
        heads: dict[str, EntryId | None] = {MAIN: None}
        for id in order:
            above = self._parents[id]
            parent = None if above is None else ends.get(above)
            heads[branches[id]] = ends[id] = self._add_message(id, parent, branches[id])
        heads[MAIN] = ends.get(current)
        return self._builder.build(heads, original=self._original)

    def _add_message(self, id: str, parent: EntryId | None, branch: str) -> EntryId | None:
        """Add a message, and return the last entry. An answer with results inside becomes several entries."""
        message = self._messages[id]
        sender = message.get("sender")
        if sender not in ("human", "assistant"):
            self._builder.report("unsent", f"message {id!r} has the unknown sender {sender!r}", entry=id)
        bodies = self._read_answer(id, message) if sender == "assistant" else [self._read_prompt(id, message)]
        kept = {name: value for name, value in message.items() if name not in _KNOWN_KEYS and value not in (None, [])}
        for number, body in enumerate(bodies, 1):
            is_last = number == len(bodies)
            parent = self._builder.add(
                Message(body),
                id=id if is_last else f"{id}-{number}",
                parent=parent,
                time=message.get("created_at"),
                branch=branch,
                extra={NAME: kept} if kept and is_last else None,
            )
        return parent

    def _list_blocks(self, message: JsonObject) -> list[JsonObject]:
        content = message.get("content")
        blocks = [block for block in content if is_object(block)] if is_list(content) else []
        text = coerce_string(message.get("text"))
        return blocks or ([{"type": "text", "text": text}] if text else [])

    def _read_prompt(self, id: str, message: JsonObject) -> JsonObject:
        blocks = [
            {"type": "text", "text": block["text"]}
            for block in self._list_blocks(message)
            if isinstance(block.get("text"), str)
        ]
        attachments = message.get("attachments")
        for attachment in filter(is_object, attachments if is_list(attachments) else ()):
            text = coerce_string(attachment.get("extracted_content"))
            blocks += [{"type": "text", "text": text}] if text else []
        files = message.get("files")
        if is_list(files) and files:
            self._builder.report("unsent", f"message {id!r} has {len(files)} files that the export lacks", entry=id)
        return {"role": "user", "content": blocks[0]["text"] if len(blocks) == 1 else blocks}

    def _read_answer(self, id: str, message: JsonObject) -> list[JsonObject]:
        messages: list[JsonObject] = []
        content: list[JsonObject] = []
        call = ("", "")
        for number, block in enumerate(self._list_blocks(message)):
            kind, text = coerce_string(block.get("type")), block.get("text")
            name = coerce_string(block.get("name"))
            if kind == "text" and isinstance(text, str):
                content.append({"type": "text", "text": text})
            elif kind == "thinking":
                thinking, signature = coerce_string(block.get("thinking")), block.get("signature")
                signed = {"thinkingSignature": signature} if isinstance(signature, str) else {}
                content.append({"type": "thinking", "thinking": thinking, **signed})
            elif kind == "tool_use":
                call = (coerce_string(block.get("id")) or f"{id}-call-{number}", name)
                given = block.get("input")
                arguments = given if is_object(given) else {"input": given}
                content.append({"type": "toolCall", "id": call[0], "name": name, "arguments": arguments})
            elif kind == "tool_result":
                messages += [self._build_answer(content)] if content else []
                content = []
                answered = coerce_string(block.get("tool_use_id")) or call[0]
                messages.append(_build_result(block, answered, name or call[1]))
            else:
                self._builder.report("unsent", f"message {id!r} has a block of type {kind!r}, which is only kept")
        if content or not messages:
            messages.append(self._build_answer(content))
        return messages

    def _build_answer(self, content: list[JsonObject]) -> JsonObject:
        has_calls = any(block["type"] == "toolCall" for block in content)
        return {
            "role": "assistant",
            "content": content,
            "api": ApiKind.ANTHROPIC,
            "provider": "anthropic",
            "model": self._model,
            "usage": complete_usage(None),
            "stopReason": "toolUse" if has_calls else "stop",
        }


_KNOWN_KEYS = frozenset({"uuid", "text", "content", "sender", "created_at", "attachments", "parent_message_uuid"})


def _build_result(block: JsonObject, call: str, name: str) -> JsonObject:
    content = block.get("content")
    parts = content if is_list(content) else [content]
    texts = [part.get("text") if is_object(part) else part for part in parts]
    message: JsonObject = {
        "role": "toolResult",
        "toolCallId": call,
        "toolName": name,
        "content": [{"type": "text", "text": text} for text in texts if isinstance(text, str) and text],
        "isError": block.get("is_error") is True,
    }
    rest = [part for part, text in zip(parts, texts, strict=True) if not isinstance(text, str) and part is not None]
    return {**message, "details": rest} if rest else message


FORMAT = ForeignFormat(name=NAME, title="Claude.ai", detect=detect, read=read)
