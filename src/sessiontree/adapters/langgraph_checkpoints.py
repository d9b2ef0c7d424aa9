"""The checkpoints of a LangGraph thread, as entries of a session.

A checkpoint is a custom entry after the messages that are new in it. It has only the values that differ from its
parent. Pending writes are custom entries, too.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from msgspec import Struct, field

from sessiontree.adapters.langgraph_values import (
    MESSAGE_FIELD,
    ListChange,
    ListItem,
    StoredMessage,
    ValueCodec,
    read_stored_message,
)
from sessiontree.core.entries import Custom, Entry, EntryId, JsonObject
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import is_list, is_object
from sessiontree.core.tree import Tree
from sessiontree.errors import FormatError
from sessiontree.interop.base import get_object

CHECKPOINT = "langgraph.checkpoint"
WRITES = "langgraph.writes"
DELETED = "langgraph.deleted"
"""The custom type of an entry that names checkpoints which are deleted."""
THREAD = "langgraph.thread"
"""The custom type of an entry with the id of the thread."""
BOOKKEEPING = frozenset({WRITES, DELETED, THREAD})
"""Entries that may be between a checkpoint and the next one."""
MAX_CACHED_LISTS = 16
MAX_CACHED_BYTES = 1 << 25
"""How much of the messages of a thread is kept in memory."""

CheckpointKey = tuple[str, str]
"""The namespace and the id of a checkpoint."""


class CheckpointNode(Struct, eq=False):
    """A checkpoint, and where its values are."""

    key: CheckpointKey
    entry: Entry
    branch: str
    parent: str | None
    base: CheckpointNode | None
    """The checkpoint that lists are changes of."""
    run: str | None = None
    changes: dict[str, ListChange] = field(default_factory=dict[str, ListChange])
    """The lists that this checkpoint changed, by channel."""
    sources: dict[str, CheckpointNode] = field(default_factory=dict[str, "CheckpointNode"])
    """For each channel with a value, the checkpoint that set it."""


class ChannelWrite(NamedTuple):
    """A write to a channel that belongs to a checkpoint."""

    channel: str
    path: str
    """The path of the task."""
    entry: Entry
    number: int
    """Its number among the writes of the entry."""


class CheckpointIndex:
    """The checkpoints of one thread."""

    def __init__(self, codec: ValueCodec) -> None:
        self._codec = codec
        self.thread: str | None = None
        self.nodes: dict[CheckpointKey, CheckpointNode] = {}
        self.deleted: set[CheckpointKey] = set()
        self.writes: dict[CheckpointKey, dict[tuple[str, int], ChannelWrite]] = {}
        """By checkpoint, then by task and number."""
        self.tools: dict[str, str] = {}
        """The names of tools, by call id."""
        self.last_branch = MAIN
        """The branch of the last checkpoint of the whole graph."""
        self._digests: dict[EntryId, str] = {}
        """The digests of messages."""
        self._messages: dict[EntryId, StoredMessage] = {}
        """Messages in memory: a turn reads all of them."""
        self._cached_size = 0
        self._lists: OrderedDict[tuple[int, str], tuple[CheckpointNode, list[ListItem]]] = OrderedDict()

    def add(self, entry: Entry) -> None:
        if entry.type == "message":
            self._add_message(entry)
        elif entry.type == "custom" and entry.custom_type in (CHECKPOINT, *BOOKKEEPING):
            body = entry.decode()
            data = body.data if isinstance(body, Custom) else None
            if is_object(data):
                self._add_custom(entry, data)

    def _add_message(self, entry: Entry) -> None:
        extra = entry.extra
        digest = get_object(extra, MESSAGE_FIELD).get("digest")
        if not isinstance(digest, str):
            return
        self._digests[entry.id] = digest
        with suppress(FormatError):  # reported when the message is read
            message = read_stored_message(entry, extra)
            calls = message.fields.get("tool_calls")
            for call in calls if is_list(calls) else ():
                if is_object(call) and isinstance(call.get("id"), str):
                    self.tools[call["id"]] = str(call.get("name"))
            size = len(entry.raw)
            if self._cached_size + size <= MAX_CACHED_BYTES:
                self._cached_size += size
                self._messages[entry.id] = message

    def read_message(self, tree: Tree, id: EntryId) -> BaseMessage:
        """Return a message by the id of its entry. Raises `FormatError`."""
        message = self._messages.get(id)
        if message is None:
            if id not in tree:
                raise FormatError("langgraph message", f"entry {id!r} is missing")
            message = read_stored_message(tree[id], tree[id].extra)
        return message.build()

    def _add_custom(self, entry: Entry, data: JsonObject) -> None:
        """Add an entry of this adapter. A damaged one is ignored: its checkpoint does not exist."""
        match entry.custom_type, data:
            case "langgraph.thread", {"thread": str(thread)}:
                self.thread = thread
            case "langgraph.deleted", {"checkpoints": [*keys]}:
                for key in keys:
                    if is_list(key) and len(key) == 2:
                        self.deleted.add((str(key[0]), str(key[1])))
            case "langgraph.writes", {"ns": str(ns), "id": str(id), "task": str(task), "writes": [*writes]}:
                self._add_writes((ns, id), entry, task, str(data.get("path") or ""), writes)
            case "langgraph.checkpoint", {"ns": str(ns), "id": str(id)}:
                self._add_checkpoint((ns, id), entry, data)
            case _:
                pass

    def _add_writes(self, key: CheckpointKey, entry: Entry, task: str, path: str, writes: list[Any]) -> None:
        known = self.writes.setdefault(key, {})
        for number, write in enumerate(writes):
            match write:
                case [int(index), str(channel), dict()] if index < 0 or (task, index) not in known:
                    known[task, index] = ChannelWrite(channel, path, entry, number)
                case _:
                    pass

    def _add_checkpoint(self, key: CheckpointKey, entry: Entry, data: JsonObject) -> None:
        base = data.get("base")
        above = self.nodes.get((str(base[0]), str(base[1]))) if is_list(base) and len(base) == 2 else None
        parent, run, branch = data.get("parent"), data.get("run"), entry.branch
        node = CheckpointNode(
            key,
            entry,
            branch if isinstance(branch, str) else MAIN,
            parent if isinstance(parent, str) else None,
            above,
            run if isinstance(run, str) else None,
        )
        if above is not None and above.key[0] == key[0]:
            absent = data.get("absent")
            node.sources = dict(above.sources)
            for channel in absent if is_list(absent) else ():
                node.sources.pop(channel, None)
        for channel, form in get_object(data, "values").items():
            change = self._codec.parse_change(form, self._digests)
            if change is not None:
                node.changes[channel] = change
            node.sources[channel] = node
        self.nodes[key] = node
        self.deleted.discard(key)
        if not key[0]:
            self.last_branch = node.branch

    # Reading

    def find(self, namespace: str, id: str | None) -> CheckpointNode | None:
        """Return a checkpoint, by default the latest of a namespace; `None` if there is none."""
        if id is None:
            id = max((id for ns, id in self.nodes if ns == namespace and (ns, id) not in self.deleted), default="")
        key = namespace, id
        return None if key in self.deleted else self.nodes.get(key)

    def list_keys(self) -> list[CheckpointKey]:
        """Return all checkpoints that are not deleted: by namespace, then the latest first."""
        kept = [key for key in self.nodes if key not in self.deleted]
        return sorted(sorted(kept, key=lambda key: key[1], reverse=True), key=lambda key: key[0])

    def has_list(self, node: CheckpointNode, channel: str) -> bool:
        source = node.sources.get(channel)
        return source is not None and channel in source.changes

    def read_list(self, node: CheckpointNode, channel: str) -> list[ListItem]:
        """Return the items of a list in a checkpoint. Raises `FormatError`."""
        changes: list[ListChange] = []
        items: list[ListItem] = []
        at = node.sources.get(channel)
        start = at
        while at is not None:
            cached = self._lists.get((id(at), channel))
            if cached is not None:
                items = list(cached[1])
                break
            change = at.changes.get(channel)
            if change is None:
                raise FormatError("langgraph list", f"the channel {channel!r} was not a list before")
            changes.append(change)
            if change.is_whole:
                break
            at = None if at.base is None else at.base.sources.get(channel)
        for change in reversed(changes):
            change.apply(items)
        if start is not None and changes:
            self._lists[id(start), channel] = start, list(items)  # keep the node: its `id()` must stay unique
            if len(self._lists) > MAX_CACHED_LISTS:
                self._lists.popitem(last=False)
        return items


def read_data(entry: Entry) -> JsonObject:
    """Return the data of one of our entries."""
    body = entry.decode()
    return body.data if isinstance(body, Custom) and is_object(body.data) else {}
