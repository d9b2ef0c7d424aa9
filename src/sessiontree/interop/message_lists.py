"""Plain message lists of OpenAI Chat, OpenAI Responses and Anthropic Messages.

A list is a JSON array, a request with `messages` or `input`, or one message per line. A file with one request per line,
as for fine-tuning, holds several conversations. Lists have no ids: the ids of entries follow from the file's name.

`ApiMessages` converts messages one by one with `sessiontree.convert`: one bad message does not affect the others.
It keeps what they need from earlier messages: the names and stored ids of tool calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256

from sessiontree.convert.anthropic_messages import from_anthropic
from sessiontree.convert.base import ApiKind
from sessiontree.convert.openai_chat import from_openai
from sessiontree.convert.openai_responses import from_openai_responses
from sessiontree.core.entries import Custom, EntryId, JsonObject, Message
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import coerce_string, complete_usage, is_list, is_object, iter_blocks
from sessiontree.errors import FormatError, InvalidOperation
from sessiontree.format.json_line import write_value
from sessiontree.interop.base import (
    Conversation,
    ConversationBuilder,
    FileHead,
    ForeignFile,
    ForeignFormat,
    read_record,
)

NAME = "messages"
ROLES = frozenset({"user", "assistant", "system", "developer", "tool", "function"})
ITEM_TYPES = frozenset({"function_call", "function_call_output", "reasoning", "custom_tool_call"})
ITEM_PARTS = frozenset({"input_text", "output_text", "input_image", "input_file"})
ANTHROPIC_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "document"})
PROGRAMS = {
    ApiKind.OPENAI_COMPATIBLE: "openai-chat",
    ApiKind.OPENAI_RESPONSES: "openai-responses",
    ApiKind.ANTHROPIC: "anthropic-messages",
}

_LIST = re.compile(rb'\s*\[\s*\{\s*"(role|content|type|id|name)"')
_REQUEST = re.compile(rb'\s*\{[^{}\[\]]*"(messages|input)"\s*:\s*\[\s*\{\s*"(role|content|type|id|name)"')
_ROLE = re.compile(rb'"role"\s*:\s*"(user|assistant|system|developer|tool)"')


def detect(head: FileHead) -> bool:
    """Return whether a file is a message list. Ask every other format first: their lines may have roles too."""
    if head.tables:
        return False
    document = head.read_document()
    if document is not None:
        return _find_messages(document) is not None
    records = head.read_records()
    if records:
        return all(_is_message(record) or _find_messages(record) is not None for record in records)
    return (_LIST.match(head.data) or _REQUEST.match(head.data)) is not None and _ROLE.search(head.data) is not None


def read(file: ForeignFile, related: Sequence[ForeignFile]) -> Iterator[Conversation]:
    """Yield the conversation of a list, or one for each line with a request."""
    first = next((record for line in file.iter_lines() if (record := read_record(line)) is not None), None)
    if first is not None and _is_message(first):
        records = [(number, read_record(line)) for number, line in enumerate(file.iter_lines(), 1) if line.strip()]
        unread = [number for number, record in records if record is None]
        yield _ListReader(file, 0, {}, [record for _, record in records if record is not None]).build(unread)
        return
    if first is not None and _find_messages(first) is not None:
        for number, line in enumerate(file.iter_lines(), 1):
            request = read_record(line)
            messages = _find_messages(request)
            if request is not None and messages is not None:
                yield _ListReader(file, number, request, messages).build(original=line)
        return
    document = file.read_document()
    messages = _find_messages(document)
    if messages is None:
        raise FormatError(file.name, "not a list of messages")
    yield _ListReader(file, 0, document if is_object(document) else {}, messages).build()


def _is_message(record: JsonObject) -> bool:
    if coerce_string(record.get("type")) in ITEM_TYPES:
        return True
    return coerce_string(record.get("role")) in ROLES and ("content" in record or "tool_calls" in record)


def _find_messages(document: object) -> list[object] | None:
    """Return the messages of a list or of a request; `None` if there are none."""
    listed = document
    if is_object(document):
        listed = document.get("messages", document.get("input"))
    if not is_list(listed) or not any(is_object(item) and _is_message(item) for item in listed):
        return None
    return listed


def find_api(request: JsonObject, messages: Sequence[object]) -> str:
    """Return the API whose form messages have. Plain text has the same form in all of them."""
    kinds: set[str] = set()
    for message in messages:
        if is_object(message):
            kinds.add(coerce_string(message.get("type")))
            content = message.get("content")
            for block in content if is_list(content) else ():
                if is_object(block):
                    kinds.add("source" if "source" in block else coerce_string(block.get("type")))
    if kinds & (ITEM_TYPES | ITEM_PARTS) or "input" in request:
        return ApiKind.OPENAI_RESPONSES
    if kinds & (ANTHROPIC_BLOCKS | {"source"}) or "system" in request:
        return ApiKind.ANTHROPIC
    return ApiKind.OPENAI_COMPATIBLE


class _ListReader:
    """Builds the conversation of one list."""

    def __init__(self, file: ForeignFile, number: int, request: JsonObject, messages: Sequence[object]) -> None:
        self._api = find_api(request, messages)
        self._request = request
        self._messages = messages
        id = sha256(f"{file.name}#{number}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self._builder = ConversationBuilder(PROGRAMS[self._api], f"messages-{id}")
        self._leaf: EntryId | None = None
        self._count = 0

    def build(self, unread: Sequence[int] = (), original: bytes | None = None) -> Conversation:
        for line in unread:
            self._builder.report("malformed_line", f"line {line} is not a JSON object", line=line, severity="fault")
        converter = ApiMessages(self._api)
        model = coerce_string(self._request.get("model")) or None
        system = self._request.get("system", self._request.get("instructions"))
        if system is not None:
            self._add(converter, [{"role": "system", "content": system}], model, "the system prompt")
        known = [message if is_object(message) else {"value": message} for message in self._messages]
        groups = group_items(known) if self._api == ApiKind.OPENAI_RESPONSES else [[n] for n in range(len(known))]
        for group in groups:
            self._add(converter, [known[index] for index in group], model, f"message {group[0]}")
        return self._builder.build({MAIN: self._leaf}, original=original)

    def _add(self, converter: ApiMessages, messages: list[JsonObject], model: str | None, place: str) -> None:
        bodies = converter.convert(messages, model=model)
        if converter.problem:
            self._builder.report("unsent", f"{place} is only kept: {converter.problem}")
            self._append(Custom(custom_type="messages.unread", data=messages))
        for body in bodies:
            self._append(Message(body))

    def _append(self, body: Message | Custom) -> None:
        seed = write_value([self._builder.id, self._count])
        self._count += 1
        self._leaf = self._builder.add(body, id=sha256(seed).hexdigest()[:16], parent=self._leaf)


FORMAT = ForeignFormat(name=NAME, title="Message list", detect=detect, read=read)


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
        """Return stored messages; none if the messages are malformed, with the reason in `problem`."""
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
