"""ChatGPT's data export: `conversations.json`, a list of conversations, each a tree of nodes.

A node has a message or none, a parent and children. Edited prompts and regenerated answers are siblings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sessiontree.convert.base import read_arguments
from sessiontree.core.entries import Body, Custom, EntryId, JsonObject, Message
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import coerce_string, complete_usage, is_list, is_object
from sessiontree.errors import FormatError
from sessiontree.interop.base import (
    Conversation,
    ConversationBuilder,
    FileHead,
    ForeignFile,
    ForeignFormat,
    get_object,
    read_json,
)
from sessiontree.interop.foreign_branches import divide_branches, order_parents_first

NAME = "chatgpt"
CUT_OFF = frozenset({"max_tokens", "interrupted", "client_disconnected"})

_START = re.compile(rb"\s*\[?\s*\{")
_MAPPING = re.compile(rb'"mapping"\s*:\s*\{')
_NODE = re.compile(rb'"(children|current_node|conversation_id)"\s*:')


def detect(head: FileHead) -> bool:
    """Return whether a file is a list of ChatGPT conversations, or one of them."""
    return all(pattern.search(head.data) for pattern in (_MAPPING, _NODE)) and _START.match(head.data) is not None


def read(file: ForeignFile, related: Sequence[ForeignFile]) -> Iterator[Conversation]:
    """Yield every conversation of an export."""
    is_found, unread = False, 0
    for data in file.iter_objects():
        item = read_json(data)
        unread += item is None
        if is_object(item) and is_object(item.get("mapping")):
            is_found = True
            yield _TreeReader(item, data).build()
    if unread or not is_found:
        raise FormatError(
            file.name, f"{unread} conversations are not valid JSON" if unread else "no conversation of ChatGPT"
        )


class _TreeReader:
    """Builds the tree of one conversation."""

    def __init__(self, conversation: JsonObject, original: bytes) -> None:
        self._conversation = conversation
        self._original = original
        id = conversation.get("conversation_id", conversation.get("id"))
        self._builder = ConversationBuilder(NAME, coerce_string(id), started=conversation.get("create_time"))
        self._builder.title = coerce_string(conversation.get("title")) or None
        mapping = conversation["mapping"]
        self._nodes: dict[str, JsonObject] = {id: node for id, node in mapping.items() if is_object(node)}
        if len(self._nodes) < len(mapping):
            count = len(mapping) - len(self._nodes)
            self._builder.report("malformed_line", f"{count} nodes are not objects and are left out")
        self._parents = {id: self._get_parent(id, node) for id, node in self._nodes.items()}
        self._ends: dict[str, EntryId | None] = {}
        """The last entry of each node."""
        self._open_calls: dict[str, tuple[str, str]] = {}
        """The call that waits for a result at each node: its id and its tool."""
        self._thoughts: dict[str, tuple[list[JsonObject], list[str]]] = {}
        """Thinking up to a node that belongs to the answer below it, and the nodes that it came from."""

    def _get_parent(self, id: str, node: JsonObject) -> str | None:
        parent = node.get("parent")
        if isinstance(parent, str) and parent not in self._nodes:
            self._builder.report("orphan", f"node {id!r} names a parent {parent!r} that is not there", entry=id)
        return parent if isinstance(parent, str) and parent in self._nodes else None

    def build(self) -> Conversation:
        current = coerce_string(self._conversation.get("current_node"))
        order = order_parents_first(self._parents)
        if current not in self._nodes:
            current = order[-1] if order else ""
        children: dict[str | None, list[str]] = {}
        for id, parent in self._parents.items():
            children.setdefault(parent, []).append(id)
        branches = divide_branches(
            self._parents,
            current,
            main=MAIN,
            other="alternative",
            silent={id for id in order if self._get_role(id) is None},
        )
        for id in order:
            below = children.get(id, [])
            self._ends[id] = self._add_node(id, branches[id], below[0] if len(below) == 1 else None)
        heads: dict[str, EntryId | None] = {MAIN: None}
        for id in order:
            heads[branches[id]] = self._ends[id]
        heads[MAIN] = self._ends.get(current)
        return self._builder.build(heads, original=self._original)

    def _get_role(self, id: str | None) -> str | None:
        message = get_object(self._nodes.get(id or ""), "message")
        return coerce_string(get_object(message, "author").get("role")) if message else None

    def _add_node(self, id: str, branch: str, only_child: str | None) -> EntryId | None:
        """Add the message of a node, and return the last entry. A node without a message is its parent."""
        above = self._parents[id]
        parent = None if above is None else self._ends.get(above)
        if above in self._open_calls:
            self._open_calls[id] = self._open_calls[above]
        message = get_object(self._nodes[id], "message")
        body = self._build_body(id, message) if message else None
        thoughts, thinkers = self._thoughts.pop(above or "", ([], []))
        goes_on = self._get_role(only_child) == "assistant"
        if body is None and thoughts and not goes_on:
            body = Message(_build_answer(message, []))
        if isinstance(body, Message) and body.message["role"] == "assistant":
            content: list[JsonObject] = [*thoughts, *body.message["content"]]
            body.message["content"] = content
            if goes_on and all(block["type"] == "thinking" for block in content):
                self._thoughts[id] = (content, [*thinkers, id])
                return parent
        elif thoughts:
            self._thoughts[id] = (thoughts, [*thinkers, id])
        if body is None:
            self._builder.add_alias(id, parent)
            return parent
        kept = {name: value for name, value in message.items() if name not in _KNOWN_KEYS and value is not None}
        extra = {NAME: kept} if kept else None
        end = self._builder.add(body, id=id, parent=parent, time=message.get("create_time"), branch=branch, extra=extra)
        for thinker in thinkers:
            self._builder.add_alias(thinker, end)
        return end

    def _build_body(self, id: str, message: JsonObject) -> Body | None:
        """Return the body of a message; `None` if the message is empty."""
        content = get_object(message, "content")
        role = coerce_string(get_object(message, "author").get("role"))
        blocks = self._read_blocks(id, content)
        match role:
            case "user" | "system" if content.get("content_type") == "user_editable_context":
                return Custom(custom_type="chatgpt.instructions", data=content)
            case "user":
                return Message({"role": "user", "content": blocks}) if blocks else None
            case "system":
                text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
                return Message({"role": "system", "content": text}) if text else None
            case "assistant":
                return self._read_answer(id, message, blocks)
            case "tool":
                return self._build_result(id, message, blocks)
            case _:
                self._builder.report("unsent", f"message {id!r} has the unknown role {role!r}", entry=id)
                return Custom(custom_type="chatgpt.message", data=message)

    def _read_blocks(self, id: str, content: JsonObject) -> list[JsonObject]:
        """Return the content of a message as blocks, thinking included."""
        kind = coerce_string(content.get("content_type"))
        match kind:
            case "text" | "multimodal_text":
                parts = content.get("parts")
                blocks: list[JsonObject] = []
                for part in parts if is_list(parts) else ():
                    text = part.get("text") if is_object(part) else part
                    if isinstance(text, str):
                        blocks += [{"type": "text", "text": text}] if text else []
                    else:
                        self._report_kept(id, coerce_string(part.get("content_type")) if is_object(part) else "part")
                return blocks
            case "thoughts":
                thoughts = content.get("thoughts")
                texts = [
                    "\n\n".join(filter(None, (coerce_string(item.get("summary")), coerce_string(item.get("content")))))
                    for item in filter(is_object, thoughts if is_list(thoughts) else ())
                ]
                return [{"type": "thinking", "thinking": text} for text in texts if text]
            case "reasoning_recap" | "user_editable_context" | "model_editable_context":
                return []
            case _:
                found = [content.get(name) for name in ("title", "url", "text", "result", "summary")]
                texts = [text for text in found if isinstance(text, str) and text]
                if not texts:
                    self._report_kept(id, kind)
                return [{"type": "text", "text": "\n".join(texts)}] if texts else []

    def _report_kept(self, id: str, kind: str) -> None:
        self._builder.report("unsent", f"message {id!r} has content of type {kind!r}, which is only kept", entry=id)

    def _read_answer(self, id: str, message: JsonObject, blocks: list[JsonObject]) -> Body | None:
        recipient = coerce_string(message.get("recipient")) or "all"
        if recipient != "all":
            text = "".join(block["text"] for block in blocks if block["type"] == "text")
            self._open_calls[id] = (id, recipient)
            arguments = read_arguments(text)
            blocks = [block for block in blocks if block["type"] != "text"]
            blocks.append({"type": "toolCall", "id": id, "name": recipient, "arguments": arguments})
        elif not blocks:
            return None
        return Message(_build_answer(message, blocks))

    def _build_result(self, id: str, message: JsonObject, blocks: list[JsonObject]) -> Body | None:
        """Return the result of the call above. A tool that speaks again, or unasked, is only kept."""
        call = self._open_calls.pop(id, None)
        if call is None:
            return Custom(custom_type="chatgpt.tool", data=message) if blocks else None
        stored, name = call
        status = get_object(message, "content").get("content_type")
        return Message(
            {
                "role": "toolResult",
                "toolCallId": stored,
                "toolName": coerce_string(get_object(message, "author").get("name")) or name,
                "content": blocks,
                "isError": status == "system_error",
            }
        )


_KNOWN_KEYS = frozenset({"id", "create_time"})


def _build_answer(message: JsonObject, blocks: list[JsonObject]) -> JsonObject:
    metadata = get_object(message, "metadata")
    has_calls = any(block["type"] == "toolCall" for block in blocks)
    is_cut_off = coerce_string(get_object(metadata, "finish_details").get("type")) in CUT_OFF
    return {
        "role": "assistant",
        "content": blocks,
        "api": "unknown",
        "provider": "openai",
        "model": coerce_string(metadata.get("model_slug")) or "unknown",
        "usage": complete_usage(None),
        "stopReason": "toolUse" if has_calls else "length" if is_cut_off else "stop",
    }


FORMAT = ForeignFormat(name=NAME, title="ChatGPT", detect=detect, read=read)
