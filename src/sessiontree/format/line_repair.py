"""Line repair: turns the lines of a damaged session into sound ones and reports each change.

Nothing is invented and nothing moves. Effective parents are written down, duplicates get a new id, and unreadable lines
stay in the tree as custom entries. The source is not changed.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from sessiontree.core.ancestry import AncestryIndex
from sessiontree.core.entries import Compaction, Custom, Entry, EntryId, JsonObject
from sessiontree.core.heads import Heads, read_rename
from sessiontree.core.problems import describe_defect, is_utf8
from sessiontree.core.tree import Tree
from sessiontree.errors import format_names
from sessiontree.format.codec import ANCHOR, ID, MESSAGE, PARENT, find_hidden_keys, read_body, write_entry
from sessiontree.format.json_line import LINE_LIMIT, write_value
from sessiontree.format.splice import drop_after, set_value

UNREADABLE_LINE = "sessiontree.unreadable"
"""The `custom_type` of entries that replace an unreadable line and hold its text."""


TOO_LONG = "replaced by a custom entry without its text, which would be too long"


class Repair(Struct, frozen=True, kw_only=True):
    """One change made by a repair."""

    kind: str
    """The kind of the problem that the change fixes."""
    message: str
    entry: EntryId | None = None
    line: int | None = None


def encode_repair(repair: Repair) -> JsonObject:
    """Return a repair in the form that commands and the REST API use."""
    return {"kind": repair.kind, "message": repair.message, "entry": repair.entry, "line": repair.line}


def repair_lines(tree: Tree, new_id: Callable[[], EntryId]) -> tuple[list[bytes], list[Repair]]:
    """Return sound lines for all entries after the header, and the changes made."""
    lines: list[bytes] = []
    done: list[Repair] = []
    ancestry: AncestryIndex | None = None

    def add_repair(kind: str, entry: Entry, message: str) -> None:
        done.append(Repair(kind=kind, message=message, entry=entry.id, line=entry.line))

    for entry in tree.entries:
        raw, body = entry.raw, entry.decode()
        if keys := find_hidden_keys(raw):
            raw = drop_after(raw, MESSAGE, keys)
            body = read_body(raw)
            add_repair("hidden_key", entry, f"{format_names(keys)} after the message was removed")
        shadowed = tree[entry.id] is not entry
        if describe_defect(entry, body) is not None:
            text = raw.decode("utf-8", "replace")
            raw, message = _build_placeholder(entry, text=text), "replaced by a custom entry that holds its text"
            if len(raw) > LINE_LIMIT:  # one byte can become six
                raw, message = _build_placeholder(entry), TOO_LONG
            add_repair("malformed_line", entry, message)
        elif not is_utf8(raw):
            raw, message = raw.decode("utf-8", "replace").encode(), "invalid UTF-8 was replaced"
            if len(raw) > LINE_LIMIT:
                raw, message = _build_placeholder(entry), TOO_LONG
            add_repair("not_utf8", entry, message)
        id = new_id() if shadowed else entry.id
        if shadowed:
            raw = set_value(raw, ID, write_value(id))
            add_repair("duplicate_id", entry, "assigned a new id")
        parent = (entry.parent if entry.parent in tree else None) if shadowed else tree.parent(entry.id)
        if parent != entry.parent:
            raw = set_value(raw, PARENT, write_value(parent))
            add_repair(_classify_parent_fault(tree, entry), entry, "now a root, as displayed before")
        anchor = body.first_kept if isinstance(body, Compaction) else None
        if anchor is not None and anchor != id:
            ancestry = AncestryIndex(tree) if ancestry is None else ancestry
            if not ancestry.is_on_path(anchor, parent):
                raw = set_value(raw, ANCHOR, write_value(id))
                add_repair("missing_anchor", entry, "now keeps no entries, as before")
        lines.append(raw)
    return lines, done


def repair_heads(tree: Tree, heads: Heads) -> tuple[dict[str, EntryId | None], list[Repair]]:
    """Return all heads. A missing head is replaced by the last entry written on its branch."""
    found: dict[str, EntryId | None] = {}
    done: list[Repair] = []
    written: dict[str, EntryId] | None = None
    for name, head in heads.heads.items():
        if head is not None and head not in tree:
            written = _find_last_written(tree) if written is None else written
            head = written.get(name)
            done.append(Repair(kind="missing_head", message=f"branch {name!r} moved to {head or 'root'}", entry=head))
        found[name] = head
    return found, done


def _find_last_written(tree: Tree) -> dict[str, EntryId]:
    """Return the last entry written on each branch, following renames."""
    written: dict[str, EntryId] = {}
    heads = Heads()
    for entry in tree.entries:
        heads.apply(entry, tree)
        branch = entry.branch if isinstance(entry.branch, str) else heads.current
        if heads.heads.get(branch) == entry.id:
            written[branch] = entry.id
        elif (names := read_rename(entry)) is not None and names[0] in written:
            written[names[1]] = written.pop(names[0])
    return written


def _build_placeholder(entry: Entry, **text: str) -> bytes:
    """Return a custom entry that replaces an unreadable line. It moves a head only if the original did."""
    branch = entry.branch if isinstance(entry.branch, str) and not entry.is_annotation else None
    placeholder = write_entry(
        Custom(custom_type=UNREADABLE_LINE, data={"line": entry.line, **text}),
        id=entry.id,
        parent=entry.parent,
        timestamp=entry.timestamp,
        branch=branch,
        current=entry.current,
    )
    return placeholder.raw


def _classify_parent_fault(tree: Tree, entry: Entry) -> str:
    if entry.parent == entry.id:
        return "self_parent"
    return "cycle" if entry.parent in tree else "orphan"
