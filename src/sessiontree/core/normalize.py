"""Normalization: completes the body of a new entry before it is written, and rejects invalid bodies.

Peers expect fields that callers may omit: the model and timestamp of a message, the first kept entry and the state of a
compaction. All ways to write an entry use the same checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from sessiontree.core.context import build_path_context, find_model_above, fold_system
from sessiontree.core.entries import (
    HEAD_RECORD,
    Body,
    BranchPoint,
    BranchSummary,
    Compaction,
    ContextEdit,
    Custom,
    CustomMessage,
    Entry,
    EntryId,
    JsonObject,
    Label,
    Message,
    Opaque,
)
from sessiontree.core.message_input import check_content, check_message
from sessiontree.core.messages import complete_message, get_role
from sessiontree.core.tree import Tree
from sessiontree.errors import InvalidOperation, NotFound


def check_body(body: Body) -> Body:
    """Return `body` if a model can be sent all of it, or its certain conversion. Raises `InvalidOperation`."""
    match body:
        case Message(message):
            checked = check_message(message)
            return body if checked is message else Message(checked)
        case CustomMessage(content=content):
            parts = check_content(content)
            return body if parts is content else msgspec.structs.replace(body, content=parts)
        case Compaction(system_message=dict(message)):
            return msgspec.structs.replace(body, system_message=check_message(message))
        case _:
            return body


def normalize_body(body: Body, *, id: EntryId, up: Callable[[], Iterator[Entry]], tree: Tree, now: int) -> Body:
    """Return `body` with the fields that peers expect.

    `up` yields the entries above the new one, including entries of the same batch. Raises `InvalidOperation` and
    `NotFound`.
    """
    match body:
        case Message(message):
            return Message(normalize_message(message, up, now))
        case Label(target=target):
            _find_entry(target, tree, up())
            return body
        case ContextEdit():
            _check_edit(body, tree, up())
            return body
        case BranchPoint():
            raise InvalidOperation("cannot append a branch point; use create_branch")
        case Opaque(type="session" | "title" | ""):
            raise InvalidOperation(f"entry type {body.type!r} is reserved: readers would take the line for a header")
        case Custom(custom_type=kind) if kind == HEAD_RECORD:
            raise InvalidOperation("cannot append a head record; moving, switching and closing write it")
        case Compaction(first_kept=anchor):
            path = list(up())[::-1]
            context = build_path_context(path)
            if anchor is not None and all(entry.id != anchor for entry in path):
                raise InvalidOperation(f"a compaction cannot keep entries from {anchor!r}, which is not on its path")
            system = body.system_message or fold_system(context.messages)
            if system is not None:
                system = {**system, "timestamp": system.get("timestamp", now)}
            state = body.state if body.state is not None else context.state.to_wire()
            return msgspec.structs.replace(body, first_kept=body.first_kept or id, system_message=system, state=state)
        case BranchSummary(abandoned_leaf=None):
            return msgspec.structs.replace(body, abandoned_leaf="root")
        case _:
            return body


def normalize_message(message: JsonObject, up: Callable[[], Iterator[Entry]], now: int) -> JsonObject:
    """Complete the message of a body: a shortcut for the most common type."""
    provider = model = None
    if message.get("role") == "assistant" and not ("provider" in message and "model" in message):
        provider, model = find_model_above(up())
    return complete_message(message, now=now, provider=provider or "unknown", model=model or "unknown")


def _check_edit(edit: ContextEdit, tree: Tree, above: Iterator[Entry]) -> None:
    path = list(above)
    target = _find_entry(edit.target, tree, path).body
    editable = isinstance(target, CustomMessage) or (
        isinstance(target, Message) and get_role(target.message) in ("user", "assistant", "toolResult")
    )
    if not editable or all(entry.id != edit.target for entry in path):
        raise InvalidOperation(f"cannot edit the context of {edit.target!r}: it is not a message on this path")
    if edit.replacement is not None and not isinstance(edit.replacement.get("content"), str | list):
        raise InvalidOperation("the replacement of a context edit must be text, a list of blocks, or none")


def _find_entry(id: EntryId, tree: Tree, above: Iterable[Entry]) -> Entry:
    """Return an entry of the session, or an entry of the same batch."""
    if id in tree:
        return tree[id]
    for entry in above:
        if entry.id == id:
            return entry
    raise NotFound("entry", id)
