"""Selects a path or a subtree of a session as a session of its own. Pure.

Lines keep their bytes, except for values that must change. New ids are derived from the exported content, so that the
same export always gives the same file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from hashlib import sha256

from sessiontree.core.entries import Compaction, Custom, Entry, EntryId, Label, SessionInfo, read_raws
from sessiontree.core.heads import MAIN, build_first_record
from sessiontree.core.plan import plan_fork
from sessiontree.core.tree import Tree
from sessiontree.export.snapshot import Snapshot
from sessiontree.format.codec import write_entry, write_value
from sessiontree.format.fork_lines import build_fork_lines, reparent_line
from sessiontree.format.splice import drop_key, set_value

NOT_COPIED = frozenset({"label", "session_info"})


def select_path(whole: Snapshot, leaf: EntryId | None) -> list[bytes]:
    """Return the lines of a session that consists of the path to `leaf`."""
    new_id = _create_id_source(whole, f"path {leaf}")
    header = _build_header(whole, leaf, new_id())
    last = whole.tree[leaf].timestamp if leaf is not None else whole.header.timestamp
    return [header, *build_fork_lines(plan_fork(whole.tree, leaf), name=whole.name, now=last, new_id=new_id)]


def select_subtree(whole: Snapshot, root: EntryId) -> list[bytes]:
    """Return the lines of a session with `root` as its root, everything below it, and the branches that end there.

    Labels of copied entries are set again. A compaction that keeps entries from above `root` keeps them from `root` on.
    """
    tree = whole.tree
    new_id = _create_id_source(whole, f"subtree {root}")
    lines = [_build_header(whole, root, new_id())]
    hang: dict[EntryId | None, EntryId | None] = {tree.parent(root): None}
    """The new parent of the children of each entry: the entry itself, or its nearest ancestor that is copied."""
    below = {root}
    for entry, _ in tree.walk():
        if tree.parent(entry.id) in below:
            below.add(entry.id)
    walked = [entry for entry, _ in tree.walk() if entry.id in below]
    for entry in walked:
        left = entry.id != root and (entry.type in NOT_COPIED or entry.is_head_record)
        hang[entry.id] = hang[tree.parent(entry.id)] if left else entry.id
    kept = _find_kept_anchors(tree, root, walked, hang)
    copied = sorted((entry for entry in walked if hang[entry.id] == entry.id), key=lambda entry: entry.line)
    for entry, raw in zip(copied, read_raws(copied), strict=True):
        parent, anchor = hang[tree.parent(entry.id)], kept.get(entry.id)
        same = parent == entry.parent and anchor is None
        lines.append(raw if same else reparent_line(entry, raw, parent, anchor))
    heads = {name: hang[head] for name, head in whole.heads.heads.items() if head in below}
    newest = copied[-1]
    if not heads:
        heads = {MAIN: tree.skip_annotations(newest.id) if tree.skip_annotations(newest.id) in below else root}
    current = whole.heads.current if whole.heads.current in heads else next(iter(heads))
    place = heads[current]

    def annotate(body: Label | SessionInfo | Custom, timestamp: str) -> None:
        lines.append(write_entry(body, id=new_id(), parent=place, timestamp=timestamp, branch=current).raw)

    for target in tree.labels:
        setter = tree.get_label_entry(target)
        if hang.get(target) == target and setter is not None and isinstance(setter.body, Label):
            annotate(setter.body, setter.timestamp)
    if whole.name is not None:
        annotate(SessionInfo(whole.name), newest.timestamp)
    annotate(build_first_record(current, heads, whole.heads.archived & heads.keys()), newest.timestamp)
    return lines


def _find_kept_anchors(
    tree: Tree, root: EntryId, walked: list[Entry], hang: dict[EntryId | None, EntryId | None]
) -> dict[EntryId, EntryId]:
    """Return new anchors for compactions whose first kept entry is not copied.

    The anchor is the next copied entry on the path, or the compaction itself. `walked` is in depth-first order.
    """
    above = set(tree.walk_up_ids(root))
    path: list[EntryId] = []
    depths: dict[EntryId, int] = {}
    copied: list[int] = []
    """The depths of the copied entries on the current path."""
    kept: dict[EntryId, EntryId] = {}
    for entry in walked:
        depth = 0 if entry.id == root else depths[tree.parent(entry.id) or root] + 1
        del path[depth:]
        del copied[bisect_left(copied, depth) :]
        body = entry.decode() if entry.type == "compaction" else None
        anchor = body.first_kept if isinstance(body, Compaction) else None
        if isinstance(body, Compaction) and hang.get(anchor) != anchor:
            at = depths.get(anchor or "", depth)
            if anchor in above:
                kept[entry.id] = root
            elif at < depth and path[at] == anchor and (following := bisect_left(copied, at)) < len(copied):
                kept[entry.id] = path[copied[following]]
            else:
                kept[entry.id] = entry.id
        path.append(entry.id)
        depths[entry.id] = depth
        if hang[entry.id] == entry.id:
            copied.append(depth)
    return kept


def _build_header(whole: Snapshot, place: EntryId | None, id: str) -> bytes:
    """Return the header with a new id. Other values stay."""
    session = f"{id[:8]}-{id[8:12]}-8{id[13:16]}-8{id[9:12]}-{id[:12]}"
    raw = set_value(drop_key(whole.header_line, "parentSession"), "id", write_value(session))
    return raw if place is None else set_value(raw, "forkedFrom", write_value(place))


def _create_id_source(whole: Snapshot, what: str) -> Callable[[], EntryId]:
    count = 0

    def new_id() -> EntryId:
        nonlocal count
        count += 1
        return sha256(f"{whole.header.id} {what} {count}".encode("utf-8", "replace")).hexdigest()[:16]

    return new_id
