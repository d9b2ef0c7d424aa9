"""Values of LangGraph checkpoints as JSON data.

JSON values are stored unchanged, and can be read and searched. All others are stored as the bytes of
LangGraph's serializer. A list is stored as a change of the list in an earlier checkpoint. Messages in a list become
messages of the session, to which the list refers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from langchain_core import messages as langchain
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from msgspec import Struct

from sessiontree.adapters.shared_strings import restore_strings, share_strings
from sessiontree.convert.langchain_messages import read_langchain_message
from sessiontree.core.entries import Entry, EntryId, JsonObject, Message
from sessiontree.core.messages import coerce_string, get_role, is_list, is_object, iter_blocks
from sessiontree.errors import FormatError, InvalidOperation
from sessiontree.session.writer import Item, generate_id

MESSAGE_FIELD = "langgraph"
"""The field of a message entry with the LangChain message that it was made from."""

MESSAGE_CLASSES: dict[str, type[BaseMessage]] = {
    name: getattr(langchain, name)
    for name in (
        "HumanMessage", "HumanMessageChunk", "AIMessage", "AIMessageChunk", "SystemMessage", "SystemMessageChunk",
        "ToolMessage", "ToolMessageChunk",
    )
}  # fmt: skip
"""The only classes that are built from what a message entry names."""

MAX_VALUE_BYTES = 1 << 28
"""The most bytes of one value, after decompression."""
MIN_COMPRESSED = 200
"""Serialized values are compressed from this many bytes on."""
MAX_DEPTH = 100
MAX_INTEGER = 1 << 53


class ListItem(Struct, frozen=True):
    """An item of a stored list."""

    digest: str
    form: JsonObject
    """How the item is stored."""

    @property
    def entry(self) -> EntryId | None:
        return self.form.get("entry")


class ListChange(NamedTuple):
    """A list as a change of another: how much of its start and end is kept, and the items between."""

    keep: int
    end: int
    items: list[ListItem]

    @property
    def is_whole(self) -> bool:
        return self.keep == 0 and self.end == 0

    def apply(self, items: list[ListItem]) -> None:
        """Change a list in place. Raises `FormatError` if the change does not fit."""
        if self.keep < 0 or self.end < 0 or self.keep + self.end > len(items):
            raise FormatError("langgraph list", f"a change needs {self.keep + self.end} items of {len(items)}")
        items[self.keep : len(items) - self.end] = self.items


class ValueCodec:
    """Encodes and decodes values. Only types that the serializer allows are built from stored bytes."""

    def __init__(self, serializer: JsonPlusSerializer) -> None:
        self._serializer = serializer

    def encode(self, value: Any) -> JsonObject:
        """Return a value as JSON data."""
        return {"json": value} if is_plain(value) else self.encode_bytes(*self._serializer.dumps_typed(value))

    def encode_write(self, value: Any) -> JsonObject:
        """Return a pending write as JSON data. Long ones are compressed, since the next checkpoint has them again."""
        kind, data = self._serializer.dumps_typed(value)
        if len(data) < MIN_COMPRESSED and is_plain(value):
            return {"json": value}
        return self.encode_bytes(kind, data)

    def encode_bytes(self, kind: str, data: bytes) -> JsonObject:
        if len(data) > MAX_VALUE_BYTES:
            raise InvalidOperation(f"a value has {len(data):,} bytes; the limit is {MAX_VALUE_BYTES:,}")
        if len(data) < MIN_COMPRESSED:
            return {"type": kind, "data": base64.b64encode(data).decode()}
        return {"type": kind, "zlib": base64.b64encode(zlib.compress(data, 1)).decode()}

    def decode(self, form: Any) -> Any:
        """Return the value of what `encode` returned. Raises `FormatError` for anything else."""
        if is_object(form) and "json" in form:
            return form["json"]
        try:
            return self._serializer.loads_typed(self._read_bytes(form))
        except (KeyError, TypeError, ValueError, binascii.Error, zlib.error, NotImplementedError) as error:
            raise FormatError("langgraph value", f"cannot be read: {error}") from error

    def _read_bytes(self, form: JsonObject) -> tuple[str, bytes]:
        kind = form["type"]
        if kind not in ("null", "bytes", "bytearray", "msgpack"):  # others can call constructors, or unpickle
            raise ValueError(f"the type {kind!r} is not allowed")
        if "zlib" in form:
            stream = zlib.decompressobj()
            data = stream.decompress(base64.b64decode(form["zlib"], validate=True), MAX_VALUE_BYTES)
            if stream.unconsumed_tail:
                raise ValueError(f"it has more than {MAX_VALUE_BYTES:,} bytes")
            return kind, data
        return kind, base64.b64decode(form["data"], validate=True)

    def compute_digest(self, value: Any) -> str:
        """Return a digest that is equal for equal values."""
        kind, data = self._serializer.dumps_typed(value)
        return hashlib.blake2b(kind.encode() + b"\0" + data, digest_size=16).hexdigest()

    def parse_change(self, form: Any, digests: dict[EntryId, str]) -> ListChange | None:
        """Return the stored form of a list; `None` for another value. `digests` are the digests of message entries."""
        bounds = form.get("list") if is_object(form) else None
        items = form.get("items") if is_object(form) else None
        if not is_list(bounds) or len(bounds) != 2 or not is_list(items):
            return None
        if not all(type(bound) is int for bound in bounds):
            return None
        return ListChange(bounds[0], bounds[1], [self._parse_item(item, digests) for item in items])

    def _parse_item(self, form: Any, digests: dict[EntryId, str]) -> ListItem:
        if is_object(form) and isinstance(form.get("entry"), str):
            return ListItem(digests.get(form["entry"], ""), form)
        try:
            return ListItem(self.compute_digest(self.decode(form)), form)
        except (FormatError, TypeError, ValueError):  # reported when the value is read
            return ListItem("", {"damaged": form})

    # Messages

    def build_message(self, message: BaseMessage, digest: str, tools: dict[str, str]) -> Item | None:
        """Return the entry for a message; `None` if it is not part of a conversation."""
        fields: JsonObject = message.model_dump(exclude_defaults=True)
        name = type(message).__name__
        is_readable = is_plain(fields) and MESSAGE_CLASSES.get(name) is type(message)
        if is_readable:
            restored = MESSAGE_CLASSES[name](**fields)
            is_readable = restored == message and self.compute_digest(restored) == digest
        stored = read_langchain_message(fields | {"type": message.type}, tools) if is_readable else None
        if stored is None:
            return None
        for block in iter_blocks(stored["content"]):
            if block.get("type") == "toolCall":
                tools[block["id"]] = block["name"]
        extra = {"class": name, "digest": digest, "fields": share_strings(fields, [stored])}
        return Item(Message(stored), {MESSAGE_FIELD: extra}, generate_id())


class StoredMessage(NamedTuple):
    """A LangChain message as it is stored."""

    kind: type[BaseMessage]
    fields: JsonObject

    def build(self) -> BaseMessage:
        """Return a new message, which shares nothing that can change. Raises `FormatError`."""
        try:
            return self.kind(**_copy_json(self.fields))
        except ValueError as error:
            raise FormatError("langgraph message", f"cannot be built: {error}") from error


def read_stored_message(entry: Entry, extra: JsonObject) -> StoredMessage:
    """Return the LangChain message of an entry, given the further fields of its line. Raises `FormatError`."""
    body, facts = entry.decode(), extra.get(MESSAGE_FIELD)
    kind = MESSAGE_CLASSES.get(coerce_string(facts.get("class"))) if is_object(facts) else None
    if isinstance(body, Message) and is_object(facts) and kind is not None:
        fields = restore_strings(facts.get("fields"), [body.message])
        if is_object(fields):
            return StoredMessage(kind, fields)
    raise FormatError("langgraph message", f"entry {entry.id!r} is not a LangChain message")


def _copy_json(value: Any) -> Any:
    if is_object(value):
        return {key: _copy_json(item) for key, item in value.items()}
    return [_copy_json(item) for item in value] if is_list(value) else value


class ValueWriter:
    """Encodes the values of one checkpoint. `items` has the messages that must be written before it."""

    def __init__(self, codec: ValueCodec, known: Iterable[ListItem], tools: dict[str, str]) -> None:
        self._codec = codec
        self._known = {item.digest: item for item in known if item.entry is not None}
        """Items of the earlier checkpoint that may be in another list now."""
        self._tools = tools
        self.items: list[Item] = []
        self.dropped: dict[EntryId, None] = {}
        """Messages that a list no longer has."""
        self._used: set[EntryId] = set()

    def encode(self, value: Any, base: Sequence[ListItem] | None) -> JsonObject | None:
        """Return a value as JSON data. `base` is the list that it may be a change of.

        Returns `None` for a list that is equal to `base`.
        """
        if type(value) is not list:  # a subclass would be read as a list
            return self._codec.encode(value)
        values = cast("list[Any]", value)
        digests = [self._codec.compute_digest(item) for item in values]
        keep, end = _measure_common(digests, base or ())
        if base is not None and keep == len(base) == len(values):
            return None
        removed: Sequence[ListItem] = () if base is None else base[keep : len(base) - end]
        self._known |= {item.digest: item for item in removed if item.entry is not None}
        self.dropped |= dict.fromkeys(item.entry for item in removed if item.entry is not None)
        fresh = range(keep, len(values) - end)
        return {"list": [keep, end], "items": [self._encode_item(values[at], digests[at]) for at in fresh]}

    def _encode_item(self, value: Any, digest: str) -> JsonObject:
        if not isinstance(value, BaseMessage):
            return self._codec.encode(value)
        known = self._known.get(digest)
        if known is None:
            item = self._codec.build_message(value, digest, self._tools)
            if item is None:
                return self._codec.encode(value)
            assert item.id is not None
            self.items.append(item)
            known = self._known[digest] = ListItem(digest, {"entry": item.id})
        assert known.entry is not None
        self._used.add(known.entry)
        return known.form

    def list_dropped(self) -> list[EntryId]:
        """Return the messages that no list has any more."""
        return [id for id in self.dropped if id not in self._used]


def _measure_common(digests: Sequence[str], base: Sequence[ListItem]) -> tuple[int, int]:
    """Return how many items two lists have in common at their start, and at their end."""
    size = min(len(digests), len(base))
    keep = next((at for at in range(size) if digests[at] != base[at].digest), size)
    limit = size - keep
    end = next((at for at in range(limit) if digests[-1 - at] != base[-1 - at].digest), limit)
    return keep, end


def is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether a value that is written as JSON and read back is equal."""
    kind = cast("type[object]", type(value))
    if value is None or kind is bool or kind is str:
        return True
    if kind is int:
        return -MAX_INTEGER < value < MAX_INTEGER
    if kind is float:
        return math.isfinite(value)
    if depth > MAX_DEPTH:
        return False
    if kind is list:
        return all(is_plain(item, depth + 1) for item in value)
    if kind is dict:
        return all(type(key) is str and is_plain(item, depth + 1) for key, item in value.items())
    return False


def is_editable(entry: Entry) -> bool:
    """Return whether the context may leave out this message."""
    body = entry.decode()
    return isinstance(body, Message) and get_role(body.message) in ("user", "assistant", "toolResult")
