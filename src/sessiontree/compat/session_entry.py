"""Entries with the field names of pi and Dash, and ids of the length that their documents describe.

`build_nodes` returns the tree as nested nodes, as pi and Dash do. Head records are left out.
"""

from __future__ import annotations

import os
import re
from typing import Any, TypeVar

from msgspec import Struct

from sessiontree.core.entries import Entry, EntryId
from sessiontree.core.message_views import is_object
from sessiontree.core.tree import Tree
from sessiontree.format.json_line import read_object
from sessiontree.session import Session

TOOL_MESSAGE = "dash.tool"
"""The type of the custom message that holds Dash's result of a tool without a call."""

S = TypeVar("S", bound=Struct)


class SessionEntry(Entry, gc=False, eq=False, kw_only=True):
    """An entry that also has the fields of its line in snake_case, such as `from_id` of a branch summary."""

    @property
    def parent_id(self) -> EntryId | None:
        return self.parent

    @property
    def role(self) -> str | None:
        return "tool" if self.custom_type == TOOL_MESSAGE else Entry.role.__get__(self)

    @property
    def uuid(self) -> EntryId:
        return self.id

    @property
    def parent_uuid(self) -> EntryId | None:
        return self.parent

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and (other.id, other.raw) == (self.id, self.raw)

    def __hash__(self) -> int:
        return hash(self.id)

    def __getattr__(self, name: str) -> Any:
        """Return a field of the line, or of its message."""
        key = re.sub(r"_([a-z])", lambda found: found[1].upper(), name)
        wire = read_object(self.raw)
        message = wire.get("message")
        for fields in (wire, message if is_object(message) else {}):
            if key in fields:
                return fields[key]
        raise AttributeError(f"an entry of type {self.type!r} has no field {name!r}")


def translate_entry(entry: Entry) -> SessionEntry:
    return copy_as(SessionEntry, entry)


def copy_as(kind: type[S], value: Struct) -> S:
    """Return a value of a subclass that adds names to the class of `value`."""
    return kind(**{name: getattr(value, name) for name in value.__struct_fields__})


def use_short_ids(session: Session) -> Session:
    """Give new entries ids of 8 hexadecimal characters, as pi and Dash do."""
    given: set[EntryId] = set()

    def generate() -> EntryId:
        session.tree.load()  # else every new id would be looked for in the whole file
        while True:
            id = os.urandom(4).hex()
            if id not in given and id not in session.tree:
                given.add(id)
                return id

    session.use_id_generator(generate)
    return session


class SessionTreeNode(Struct, kw_only=True, eq=False):
    entry: SessionEntry
    children: list[SessionTreeNode]
    """Oldest first."""
    label: str | None = None
    depth: int = 0
    """0 for a root."""

    def __repr__(self) -> str:  # children are left out, since a tree may be deeper than Python can recurse
        label = "" if self.label is None else f" [{self.label}]"
        return f"<SessionTreeNode {self.entry.id}{label} with {len(self.children)} children>"


def build_nodes(tree: Tree) -> list[SessionTreeNode]:
    """Return the roots of a tree, each with its nested children. An entry without its parent is a root."""
    roots: list[SessionTreeNode] = []
    nodes: dict[EntryId | None, SessionTreeNode | None] = {None: None}
    for entry, _ in tree.walk():
        above = nodes[tree.parent(entry.id)]
        if entry.is_head_record:
            nodes[entry.id] = above
            continue
        node = SessionTreeNode(
            entry=translate_entry(entry),
            children=[],
            label=tree.label(entry.id),
            depth=0 if above is None else above.depth + 1,
        )
        nodes[entry.id] = node
        (roots if above is None else above.children).append(node)
    return roots


def list_children(tree: Tree, parent: EntryId | None) -> list[SessionEntry]:
    """Return the entries directly below `parent`, oldest first; below `None` are the roots."""
    found: list[SessionEntry] = []
    for child in tree.children(parent):
        found += list_children(tree, child.id) if child.is_head_record else [translate_entry(child)]
    return found


def list_path(tree: Tree, leaf: EntryId | None) -> list[SessionEntry]:
    """Return the entries from the root to `leaf`."""
    return [translate_entry(entry) for entry in tree.path(leaf) if not entry.is_head_record]


def find_entry(tree: Tree, id: EntryId) -> SessionEntry | None:
    """Return an entry by its id; `None` if there is none."""
    if id not in tree:
        return None
    entry = tree[id]
    return None if entry.is_head_record else translate_entry(entry)
