"""Reads a session into a snapshot, the input of all export formats, and selects a path or a subtree of it. Pure.

A selected part is a complete session. Lines keep their bytes, except for values that must change. New ids are derived
from the exported content, so that the same export always gives the same file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256

from msgspec import Struct

from sessiontree.core.call_lookup import CallLookup
from sessiontree.core.entries import (
    Compaction,
    Custom,
    Entry,
    EntryId,
    Header,
    Label,
    Problem,
    SessionInfo,
    read_raws,
)
from sessiontree.core.heads import MAIN, Heads, SkippedEntries, build_first_record, skip_unreadable
from sessiontree.core.operation_plans import plan_fork
from sessiontree.core.problems import find_problems
from sessiontree.core.tree import Tree
from sessiontree.format.codec import write_entry
from sessiontree.format.fork_lines import build_fork_lines, reparent_line
from sessiontree.format.json_line import write_value
from sessiontree.format.session_reader import SessionReader
from sessiontree.format.splice import drop_key, set_value


class Snapshot(Struct, frozen=True, kw_only=True):
    """A whole session in memory."""

    reader: SessionReader
    header: Header
    header_line: bytes
    name: str | None
    tree: Tree
    heads: Heads
    problems: tuple[Problem, ...]
    calls: CallLookup
    """The tool call that each tool result answers."""

    @property
    def lines(self) -> list[bytes]:
        """All lines in format version 3, including the header."""
        return self.reader.read_all_lines()

    @property
    def leaf(self) -> EntryId | None:
        """The head of the current branch, or `None` if it is missing from a damaged file."""
        return self.heads.leaf if self.heads.leaf in self.tree else None

    def get_path(self) -> list[Entry]:
        """Return the active path without trailing annotations."""
        return self.tree.path(self.leaf)

    def get_branch_names(self) -> dict[EntryId, list[str]]:
        """Return the names of the branches by head. Archived branches are omitted."""
        names: dict[EntryId, list[str]] = {}
        for name, head in self.heads.heads.items():
            if head in self.tree and name not in self.heads.archived:
                assert head is not None
                names.setdefault(head, []).append(name)
        return names


BATCH_SIZE = 1 << 20
"""Bytes of lines that are parsed together."""


def _join_batches(lines: Iterable[bytes]) -> Iterator[bytes]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line) + 1
        if size >= BATCH_SIZE:
            yield b"\n".join((*batch, b""))
            batch.clear()
            size = 0
    if batch:
        yield b"\n".join((*batch, b""))


def read_snapshot(lines: Iterable[bytes]) -> Snapshot:
    """Read a session of any version from its lines. Raises `FormatError`."""
    reader = SessionReader()
    tree, heads = Tree(), Heads()
    for several in _join_batches(lines):
        tree.extend(reader.feed(several))
    heads.replay(tree.items, tree)
    heads = skip_unreadable(heads, tree, SkippedEntries())
    return Snapshot(
        reader=reader,
        header=reader.header,
        header_line=reader.build_header_line(),
        name=tree.name if tree.has_been_named else (reader.title or None),
        tree=tree,
        heads=heads,
        problems=(*reader.problems, *find_problems(tree, heads)),
        calls=CallLookup(tree),
    )


# Parts of a session

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
