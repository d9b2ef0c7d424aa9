"""The event log of a Gemini CLI chat, replayed: the messages of all branches, and the list that Gemini resumes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, is_list, is_object
from sessiontree.format.json_line import read_object, write_object
from sessiontree.interop.base import LineBuffer, get_object

CONTEXT_START = "<session_context>"
"""How the message begins that Gemini puts before the conversation."""


class ChatMessage(Struct):
    """A message of the log. `ChatReplay.read_record` returns it with its last change."""

    id: str
    kind: str
    """Its `type` in the log."""
    number: int
    """Which of the stored records has its content."""
    parent: str | None
    """The message before it when it was added."""
    anchor: str | None
    """The nearest message above that is part of the conversation."""
    is_context: bool
    is_echo: bool
    """Whether it only repeats results that its calls have too."""
    copy_of: str | None = None

    @property
    def is_conversation(self) -> bool:
        """Whether Gemini always lists it: notices, context and repeated results come and go."""
        return self.kind in ("user", "gemini") and not self.is_context and not self.is_echo


class ChatReplay:
    """The state of a chat after its whole log."""

    def __init__(self, records: Iterable[tuple[int, JsonObject | None]], storage: LineBuffer) -> None:
        """Replay the records of a log. `storage` gets the messages, which can be as long as the log."""
        self.header: JsonObject = {}
        self.messages: dict[str, ChatMessage] = {}
        """All messages, each after the one above it."""
        self.live: list[str] = []
        """The messages that Gemini resumes."""
        self.problems: list[tuple[str, int]] = []
        self._storage = storage
        self._responses: dict[str, int] = {}
        """The stored results in user messages, by the id of their call."""
        self._latest: dict[str, str] = {}
        """The last copy of each message, by the id in the log."""
        self._positions: dict[str, int] = {}
        for line, record in records:
            if record is None:
                self.problems.append((f"line {line} is not a JSON object", line))
            else:
                self._apply(record, line)

    @property
    def id(self) -> str:
        return coerce_string(self.header.get("sessionId"))

    def read_record(self, message: ChatMessage) -> JsonObject:
        """Return the content of a message."""
        return read_object(self._storage.read_entry(message.number))

    def list_responses(self, call: str) -> list[JsonObject]:
        """Return the results of a call in user messages."""
        number = self._responses.get(call)
        return [] if number is None else [read_object(self._storage.read_entry(number))]

    def _store(self, record: JsonObject) -> int:
        self._storage.append(write_object(record))
        return self._storage.count_entries() - 1

    def _update(self, message: ChatMessage, record: JsonObject) -> None:
        message.number, message.kind = self._store(record), coerce_string(record.get("type"))
        self._note_responses(record)

    def _apply(self, record: JsonObject, line: int) -> None:
        changed = record.get("$set")
        if is_object(changed):
            listed = changed.get("messages")
            self.header |= {name: value for name, value in changed.items() if name != "messages"}
            if is_list(listed):
                self._replace([item for item in listed if is_object(item)])
        elif "$rewindTo" in record:
            self._rewind(record["$rewindTo"], line)
        elif isinstance(record.get("id"), str) and "type" in record:
            self._add(record)
        elif "sessionId" in record:
            start = self.header.get("startTime") or record.get("startTime")
            self.header |= {**record, "startTime": start}
        else:
            self.problems.append((f"line {line} is of an unknown kind: {', '.join(sorted(record)[:5])}", line))

    def _rewind(self, target: Any, line: int) -> None:
        copy = self._latest.get(target) if isinstance(target, str) else None
        if copy not in self.live:
            self.problems.append((f"line {line} rewinds to a message that is not in the chat: {target!r}", line))
            return
        del self.live[self.live.index(copy) :]

    def _add(self, record: JsonObject) -> None:
        """Add a message at the end, or replace the one with its id."""
        id = record["id"]
        copy = self._latest.get(id)
        if copy is not None and copy in self._positions and self._is_live(copy):
            message = self.messages[copy]
            before = self.read_record(message)
            self._update(message, {**record, "timestamp": before.get("timestamp", record.get("timestamp"))})
        else:
            self._append(record)

    def _is_live(self, id: str) -> bool:
        position = self._positions[id]
        return position < len(self.live) and self.live[position] == id

    def _replace(self, records: Sequence[JsonObject]) -> None:
        """Replace the list. A message that stays where it was keeps its place in the tree; any other is a copy."""
        self.live = []
        anchor: str | None = None
        for record in records:
            id = record.get("id")
            known = self.messages.get(self._latest.get(id, "")) if isinstance(id, str) else None
            if known is not None and (known.anchor == anchor or not known.is_conversation):
                self._update(known, _merge(self.read_record(known), record))
                self._positions[known.id] = len(self.live)
                self.live.append(known.id)
            else:
                known = self._append(record)
            if known.is_conversation:
                anchor = known.id

    def _append(self, record: JsonObject) -> ChatMessage:
        parent = self.live[-1] if self.live else None
        above = None if parent is None else self.messages[parent]
        original = record.get("id") if isinstance(record.get("id"), str) else f"message-{len(self.messages)}"
        id, number = coerce_string(original), 1
        while id in self.messages:
            number += 1
            id = f"{original}-{number}"
        self._note_responses(record)
        message = ChatMessage(
            id=id,
            kind=coerce_string(record.get("type")),
            number=self._store(record),
            parent=parent,
            anchor=None if above is None else above.id if above.is_conversation else above.anchor,
            is_context=_is_context(record),
            is_echo=self._is_echo(record),
            copy_of=coerce_string(original) if number > 1 else None,
        )
        self.messages[id] = message
        self._latest[coerce_string(original)] = id
        self._positions[id] = len(self.live)
        self.live.append(id)
        return message

    def _note_responses(self, record: JsonObject) -> None:
        for part in _list_responses(record):
            id = coerce_string(part["functionResponse"].get("id"))
            if id not in self._responses:
                self._responses[id] = self._store(part)

    def _is_echo(self, record: JsonObject) -> bool:
        """Return whether a message holds only results of calls that are in the chat."""
        content, responses = record.get("content"), _list_responses(record)
        return bool(responses) and is_list(content) and len(responses) == len(content) and bool(self.messages)


def _list_responses(record: JsonObject) -> list[JsonObject]:
    content = record.get("content")
    if record.get("type") != "user" or not is_list(content):
        return []
    return [part for part in content if get_object(part, "functionResponse")]


def _is_context(record: JsonObject) -> bool:
    content = record.get("content")
    first = content[0] if is_list(content) and content else content
    text = first.get("text") if is_object(first) else first
    return record.get("type") == "user" and isinstance(text, str) and text.startswith(CONTEXT_START)


def _merge(old: JsonObject, new: JsonObject) -> JsonObject:
    """Return a message that was listed again, which may have lost fields and has the time of the listing."""
    said = {name: value for name, value in new.items() if value not in (None, [], "")}
    return {**old, **said, "timestamp": old.get("timestamp", new.get("timestamp"))}
