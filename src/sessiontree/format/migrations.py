"""Migrations: converts lines of older and foreign dialects to version 3.

Each dialect converts one line to one line by splicing, so unknown fields are preserved. This happens in memory when a
file is read, and on disk only when the file is rewritten. New ids are derived from the session id and the line number,
so every read gives the same ids.

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
from sessiontree.core.messages import (
    build_text_blocks,
    coerce_number,
    coerce_string,
    complete_usage,
    is_list,
    is_object,
)
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.format.codec import ANCHOR, ID, PARENT, VERSION
from sessiontree.format.json_line import write_value
from sessiontree.format.splice import drop_key, get_value, rename_key, set_value


class Dialect(Protocol):
    name: str

    def migrate_line(self, raw: bytes, wire: JsonObject, number: int) -> bytes:
        """Convert a line to version 3. Lines must come in file order."""
        ...


def choose_dialect(header: JsonObject, version: int) -> Callable[[JsonObject], Dialect] | None:
    """Return a function that chooses the dialect from the first entry; `None` for version 3 or newer."""
    if version <= 1:
        session = coerce_string(header.get("id"))
        return lambda first: DashDialect() if isinstance(first.get(ID), str) else LinearDialect(session)
    if version == 2:
        top = header.get("uuid")
        return lambda first: UuidDialect(top) if "uuid" in first or top is not None else HookRoleDialect()
    return None


def update_header_version(raw: bytes) -> bytes:
    """Return the header line with the current version."""
    return set_value(raw, "version", str(VERSION).encode())


def _rename_hook_role(raw: bytes, wire: JsonObject) -> bytes:
    """Rename the role `hookMessage` of version 2 to `custom`."""
    message = wire.get("message")
    if is_object(message) and message.get("role") == "hookMessage":
        inner = get_value(raw, "message")
        assert inner is not None
        return set_value(raw, "message", set_value(inner, "role", b'"custom"'))
    return raw


class HookRoleDialect:
    """Version 2: one role has another name."""

    name = "hooks"

    def migrate_line(self, raw: bytes, wire: JsonObject, number: int) -> bytes:
        return _rename_hook_role(raw, wire)


class LinearDialect:
    """Version 1: each line is the child of the line before."""

    name = "linear"

    def __init__(self, session: str) -> None:
        self._session = session
        self._ids: list[EntryId | None] = [None]
        """Ids by the index that compactions use; 0 is the header."""
        self._last: EntryId | None = None

    def migrate_line(self, raw: bytes, wire: JsonObject, number: int) -> bytes:
        existing = wire.get(ID)
        id = existing if isinstance(existing, str) else _derive_id(self._session, number)
        raw = _rename_hook_role(raw, wire)
        parent = self._last
        match wire.get("type"):
            case "compaction":
                anchor = self._get_id_at(wire.get("firstKeptEntryIndex"))
                raw = drop_key(raw, "firstKeptEntryIndex")
                if anchor is not None:
                    raw = set_value(raw, ANCHOR, write_value(anchor))
            case "stack_pop":
                raw = set_value(raw, "type", b'"branch_summary"')
                raw = set_value(raw, "fromId", write_value(self._last or "root"))
                parent = self._get_id_at(wire.get("backToIndex"))
            case _:
                pass
        raw = set_value(raw, PARENT, write_value(parent))
        if id is not existing:  # an existing id keeps its spelling
            raw = set_value(raw, ID, write_value(id))
        self._ids.append(id)
        if isinstance(wire.get("type"), str):
            self._last = id  # lines without a type are not entries and cannot be parents
        return raw

    def _get_id_at(self, index: Any) -> EntryId | None:
        valid = isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(self._ids)
        return self._ids[index] if valid else None


class UuidDialect:
    """An early draft of version 2: other names for ids, and the header as the root of the tree."""

    name = "uuid"
    KEYS = (("uuid", ID), ("parentUuid", PARENT), ("firstKeptEntryUuid", ANCHOR))

    def __init__(self, header: Any) -> None:
        self._header = header
        self._last: EntryId | None = None

    def migrate_line(self, raw: bytes, wire: JsonObject, number: int) -> bytes:
        for old, new in self.KEYS:
            raw = rename_key(raw, old, new)
        if wire.get("parentUuid") == self._header:
            raw = set_value(raw, PARENT, b"null")
        if wire.get("type") == "stack_summary":
            raw = set_value(raw, "type", b'"branch_summary"')
        if wire.get("type") in ("stack_summary", "branch_summary") and "fromId" not in wire:
            # In this dialect the line before is the abandoned leaf.
            raw = set_value(raw, "fromId", write_value(self._last or "root"))
        id = wire.get("uuid")
        self._last = id if isinstance(id, str) else self._last
        return _rename_hook_role(raw, wire)


class DashDialect:
    """The dialect of Dash: flat messages, and branches marked only by branch points."""

    name = "dash"

    def __init__(self) -> None:
        self._branches: dict[EntryId, bytes] = {}
        """The branch of each entry, as JSON text."""
        self._model = (b'"unknown"', b'"unknown"')
        """Provider and model of the last message that names them, used for messages that do not. As JSON text."""

    def migrate_line(self, raw: bytes, wire: JsonObject, number: int) -> bytes:
        if wire.get("type") == "message" and not is_object(wire.get("message")):
            raw = self._nest_message(raw, wire)
        parent, id = wire.get(PARENT), wire.get(ID)
        branch = self._branches.get(parent) if isinstance(parent, str) else None
        if wire.get("type") == "branch_point" and isinstance(wire.get("branchName"), str):
            branch = get_value(raw, "branchName")
        branch = branch or write_value(MAIN)
        if isinstance(id, str):
            self._branches[id] = branch
        return raw if "branch" in wire else set_value(raw, "branch", branch)

    def _nest_message(self, raw: bytes, wire: JsonObject) -> bytes:
        """Move role and content into a message. The metadata stays in place."""
        value = wire.get("metadata")
        metadata: JsonObject = value if is_object(value) else {}
        message: JsonObject = {"role": coerce_string(wire.get("role")), "content": None}
        role, content = get_value(raw, "role"), get_value(raw, "content")
        # Moved verbatim: invalid UTF-8 is preserved and reported.
        verbatim: dict[str, bytes | None] = {"role": role if message["role"] else None, "content": content}

        def find_text(*keys: str) -> bytes | None:
            key = next((key for key in keys if coerce_string(metadata.get(key))), None)
            return None if key is None else get_value(get_value(raw, "metadata") or b"{}", key)

        if message["role"] == "assistant":
            self._model = (find_text("provider") or self._model[0], find_text("model") or self._model[1])
            verbatim["content"] = _build_blocks(content, wire.get("content"))
            verbatim["provider"], verbatim["model"] = self._model
            message.update(
                api="unknown",
                provider="",
                model="",
                usage=complete_usage(
                    {"totalTokens": coerce_number(metadata.get("tokens")), "cost": coerce_number(metadata.get("cost"))}
                ),
                stopReason="stop",
            )
        elif message["role"] == "tool":
            verbatim["role"] = b'"toolResult"'
            verbatim["content"] = _build_blocks(content, wire.get("content"))
            verbatim["toolCallId"], verbatim["toolName"] = find_text("toolCallId"), find_text("toolName", "tool")
            message.update(toolCallId="", toolName="", isError=metadata.get("isError") is True)
        message["timestamp"] = parse_timestamp(coerce_string(wire.get("timestamp"))) or 0
        written = write_value(message)
        for key, text in verbatim.items():
            if text is not None:
                written = set_value(written, key, text)
        raw = set_value(raw, "message", written)
        return drop_key(drop_key(raw, "role"), "content")


def _build_blocks(spelled: bytes | None, content: Any) -> bytes:
    """Return the JSON text of content blocks for `content`, whose source text is `spelled`."""
    if spelled is None or not (isinstance(content, str) or is_list(content)):
        return write_value(build_text_blocks(""))
    return b'[{"type":"text","text":%b}]' % spelled if isinstance(content, str) else spelled


def _derive_id(session: str, number: int) -> EntryId:
    from hashlib import sha256

    return sha256(f"{session}:{number}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
