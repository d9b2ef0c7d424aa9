"""Finds what is new or changed in a conversation of another program since it was imported.

A program can change an entry that a session already has: an answer that was imported while it was written gets its
tool calls later. Lines of a session are never rewritten, so a changed entry is added again under a new id, with what
follows it. The new ids depend on the content, so that the same change is added only once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from sessiontree.core.entries import (
    HEAD_RECORD,
    Body,
    Compaction,
    ContextEdit,
    Entry,
    EntryId,
    JsonObject,
    SessionInfo,
    Usage,
)
from sessiontree.core.messages import complete_usage, sum_usage
from sessiontree.core.tree import Tree
from sessiontree.format.codec import COPIED_FROM, read_entry, set_parent, write_entry
from sessiontree.format.json_line import NotJson
from sessiontree.interop.base import ALIAS


class ConversationChanges:
    """The lines to append to a session, so that it has the whole conversation."""

    def __init__(self, tree: Tree, lines: Iterable[bytes], heads: Mapping[str, EntryId | None]) -> None:
        """Compare the lines of a conversation without its header, parents first, with the tree of a session."""
        self._tree = tree
        self._renamed: dict[EntryId, EntryId] = {}
        """The new ids of entries that were added again."""
        self.lines = [line for old in lines if (line := self._compare(old)) is not None]
        self.heads = {name: self._find(leaf) for name, leaf in heads.items()}
        """Where the branches of the program end in the session."""

    def _find(self, id: EntryId | None) -> EntryId | None:
        return None if id is None else self._renamed.get(id, id)

    def _compare(self, raw: bytes) -> bytes | None:
        """Return the line to append for an entry of the conversation; `None` if the session has it."""
        try:
            new = read_entry(raw, 0)
        except NotJson:
            return None
        if new.custom_type == HEAD_RECORD:
            return None  # branches are merged, not copied
        parent = self._find(new.parent)
        if new.id not in self._tree:
            return self._write_added(new, raw, parent)
        stored = self._tree[new.id]
        if (stored.raw == raw and parent == new.parent) or new.type == ALIAS:
            return None
        body = self._rename_targets(new.decode())
        if isinstance(body, Usage):
            return self._write_new_cost(new, body, parent)
        is_same = body == stored.decode()
        if is_same and (parent == stored.parent or isinstance(body, SessionInfo)):
            return None
        id = f"{new.id}-{hashlib.sha256(raw + (parent or '').encode()).hexdigest()[:8]}"
        self._renamed[new.id] = id
        if id in self._tree:
            return None
        return _write(new, body, id, parent, {**new.extra, COPIED_FROM: new.id} if is_same else new.extra)

    def _write_added(self, new: Entry, raw: bytes, parent: EntryId | None) -> bytes:
        """Return the line of an entry that the session does not have."""
        if not self._renamed:
            return raw
        body = new.decode()
        renamed = self._rename_targets(body)
        return set_parent(raw, parent) if renamed == body else _write(new, renamed, new.id, parent, new.extra)

    def _rename_targets(self, body: Body) -> Body:
        match body:
            case Compaction(first_kept=id) if id in self._renamed:
                return replace(body, first_kept=self._renamed[id])
            case ContextEdit(target=id) if id in self._renamed:
                return replace(body, target=self._renamed[id])
            case _:
                return body

    def _write_new_cost(self, new: Entry, body: Usage, parent: EntryId | None) -> bytes | None:
        """Return an entry with what a session has cost since its cost was noted last."""
        noted = [entry for entry in self._tree if entry.id == new.id or entry.id.startswith(f"{new.id}-")]
        added = _get_cost(body) - sum(_get_cost(entry.decode()) for entry in noted)
        if added < 1e-9:
            return None
        body = replace(body, usage=complete_usage({"cost": added}))
        id = f"{new.id}-{len(noted) + 1}"
        return write_entry(body, id=id, parent=parent, timestamp=new.timestamp, branch=None).raw


def _write(entry: Entry, body: Body, id: EntryId, parent: EntryId | None, extra: JsonObject) -> bytes:
    branch = entry.branch if isinstance(entry.branch, str) else None
    return write_entry(
        body, id=id, parent=parent, timestamp=entry.timestamp, branch=branch, extra=extra or None
    ).raw  # fmt: skip


def _get_cost(body: Body) -> float:
    total = sum_usage(body.usage) if isinstance(body, Usage) else None
    return 0.0 if total is None else total.cost
