"""The tree of a session as nested nodes, as pi and Dash return it. Head records are left out."""

from __future__ import annotations

from msgspec import Struct

from sessiontree.compat.session_entry import SessionEntry, translate_entry
from sessiontree.core.entries import EntryId
from sessiontree.core.tree import Tree


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
