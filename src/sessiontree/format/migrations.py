"""Migrations: lines of older and foreign dialects to lines of version 3.

Each dialect turns one line into one line by splicing, so what it does not know stays. It
happens in memory when a file is read, and on disk only when the file is rewritten. Ids given
to old lines follow from the session's id and the line's number, so every read agrees.

    linear   version 1: no ids, one chain, `firstKeptEntryIndex`, `stack_pop`
    hooks    version 2: role `hookMessage`
    uuid     `uuid`/`parentUuid`, the header inside the tree, `stack_summary`
    dash     version 1 with ids, flat messages, branches by `branch_point`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sessiontree.core.entries import EntryId, JsonObject
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import full_usage, is_list, is_object, number, string, text_blocks
from sessiontree.core.times import milliseconds
from sessiontree.format.codec import ANCHOR, ID, PARENT, VERSION, write_value
from sessiontree.format.splice import drop_key, rename_key, set_value, value_of


class Dialect(Protocol):
    name: str

    def line(self, raw: bytes, wire: JsonObject, number: int) -> bytes:
        """The line in version 3. Lines come in file order."""
        ...


def dialect_of(header: JsonObject, version: int) -> Callable[[JsonObject], Dialect] | None:
    """How to choose the dialect of a file from its first entry; `None` when it is of version 3 or newer."""
    if version <= 1:
        session = string(header.get("id"))
        return lambda first: Dash() if isinstance(first.get(ID), str) else Linear(session)
    if version == 2:
        top = header.get("uuid")
        return lambda first: Uuid(top) if "uuid" in first or top is not None else Hooks()
    return None


def current_header(raw: bytes) -> bytes:
    """The header line with this version in it."""
    return set_value(raw, "version", str(VERSION).encode())


def _custom_role(raw: bytes, wire: JsonObject) -> bytes:
    """Version 2 called the role of custom messages `hookMessage`."""
    message = wire.get("message")
    if is_object(message) and message.get("role") == "hookMessage":
        inner = value_of(raw, "message")
        assert inner is not None
        return set_value(raw, "message", set_value(inner, "role", b'"custom"'))
    return raw


class Hooks:
    """Version 2: only a role has another name."""

    name = "hooks"

    def line(self, raw: bytes, wire: JsonObject, number: int) -> bytes:
        return _custom_role(raw, wire)


class Linear:
    """Version 1: the order of the lines is the conversation."""

    name = "linear"

    def __init__(self, session: str) -> None:
        self._session = session
        self._ids: list[EntryId | None] = [None]
        """By the index that compactions use: the header is 0."""
        self._last: EntryId | None = None

    def line(self, raw: bytes, wire: JsonObject, number: int) -> bytes:
        given = wire.get(ID)
        id = given if isinstance(given, str) else _made_id(self._session, number)
        raw = _custom_role(raw, wire)
        parent = self._last
        match wire.get("type"):
            case "compaction":
                anchor = self._at(wire.get("firstKeptEntryIndex"))
                raw = drop_key(raw, "firstKeptEntryIndex")
                if anchor is not None:
                    raw = set_value(raw, ANCHOR, write_value(anchor))
            case "stack_pop":
                raw = set_value(raw, "type", b'"branch_summary"')
                raw = set_value(raw, "fromId", write_value(self._last or "root"))
                parent = self._at(wire.get("backToIndex"))
            case _:
                pass
        raw = set_value(raw, PARENT, write_value(parent))
        if id is not given:  # one that was given stays as it is spelled
            raw = set_value(raw, ID, write_value(id))
        self._ids.append(id)
        if isinstance(wire.get("type"), str):
            self._last = id  # other lines are no entries, so nothing can hang from them
        return raw

    def _at(self, index: Any) -> EntryId | None:
        valid = isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(self._ids)
        return self._ids[index] if valid else None


class Uuid:
    """Version 2 as first drafted: other names for ids, and the header as root of the tree."""

    name = "uuid"
    KEYS = (("uuid", ID), ("parentUuid", PARENT), ("firstKeptEntryUuid", ANCHOR))

    def __init__(self, header: Any) -> None:
        self._header = header
        self._last: EntryId | None = None

    def line(self, raw: bytes, wire: JsonObject, number: int) -> bytes:
        for old, new in self.KEYS:
            raw = rename_key(raw, old, new)
        if wire.get("parentUuid") == self._header:
            raw = set_value(raw, PARENT, b"null")
        if wire.get("type") == "stack_summary":
            raw = set_value(raw, "type", b'"branch_summary"')
        if wire.get("type") in ("stack_summary", "branch_summary") and "fromId" not in wire:
            # In this dialect the line before is the leaf that was left.
            raw = set_value(raw, "fromId", write_value(self._last or "root"))
        id = wire.get("uuid")
        self._last = id if isinstance(id, str) else self._last
        return _custom_role(raw, wire)


class Dash:
    """Dash's form: flat messages, and branches that are known by their branch points only."""

    name = "dash"

    def __init__(self) -> None:
        self._branches: dict[EntryId, str] = {}
        self._model = ("unknown", "unknown")
        """Provider and model of the last message that names them, for those that do not."""

    def line(self, raw: bytes, wire: JsonObject, number: int) -> bytes:
        if wire.get("type") == "message" and not is_object(wire.get("message")):
            raw = self._message(raw, wire)
        parent, id = wire.get(PARENT), wire.get(ID)
        branch = self._branches.get(parent, MAIN) if isinstance(parent, str) else MAIN
        if wire.get("type") == "branch_point" and isinstance(wire.get("branchName"), str):
            branch = wire["branchName"]
        if isinstance(id, str):
            self._branches[id] = branch
        return raw if "branch" in wire else set_value(raw, "branch", write_value(branch))

    def _message(self, raw: bytes, wire: JsonObject) -> bytes:
        """Role and content move into a message; the metadata stays where it is."""
        given = wire.get("metadata")
        metadata: JsonObject = given if is_object(given) else {}
        message: JsonObject = {"role": string(wire.get("role")), "content": None}
        role, content = value_of(raw, "role"), value_of(raw, "content")
        if message["role"] == "assistant":
            provider, model = string(metadata.get("provider")), string(metadata.get("model"))
            self._model = (provider or self._model[0], model or self._model[1])
            content = _blocks(content, wire.get("content"))
            message.update(
                api="unknown",
                provider=self._model[0],
                model=self._model[1],
                usage=full_usage({"totalTokens": number(metadata.get("tokens")), "cost": number(metadata.get("cost"))}),
                stopReason="stop",
            )
        elif message["role"] == "tool":
            role, content = b'"toolResult"', _blocks(content, wire.get("content"))
            message.update(
                toolCallId=string(metadata.get("toolCallId")),
                toolName=string(metadata.get("toolName")) or string(metadata.get("tool")),
                isError=metadata.get("isError") is True,
            )
        message["timestamp"] = milliseconds(string(wire.get("timestamp"))) or 0
        written = write_value(message)
        # What was said moves as it is spelled: bytes that are not UTF-8 are kept, and reported.
        if role is not None and message["role"]:
            written = set_value(written, "role", role)
        if content is not None:
            written = set_value(written, "content", content)
        raw = set_value(raw, "message", written)
        return drop_key(drop_key(raw, "role"), "content")


def _blocks(spelled: bytes | None, content: Any) -> bytes:
    """The text of a list of blocks that says what `content` says, which is spelled so."""
    if spelled is None or not (isinstance(content, str) or is_list(content)):
        return write_value(text_blocks(""))
    return b'[{"type":"text","text":%b}]' % spelled if isinstance(content, str) else spelled


def _made_id(session: str, number: int) -> EntryId:
    from hashlib import sha256

    return sha256(f"{session}:{number}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
