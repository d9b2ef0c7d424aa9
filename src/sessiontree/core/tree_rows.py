"""Tree rows: the entries of a tree as a stream of flat records, in drawing order.

Nothing is laid out in advance: the first rows are there at once, and memory does not grow with the number of rows.
`core.tree_drawing` adds connectors. `core.outline` is for front ends that jump between rows; if a tree takes long to
survey as a whole, they lay out the shape of the entries around a place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from msgspec import Struct

from sessiontree.core.entries import BOOKKEEPING_TYPES, Entry, EntryId, LinePreview, read_raws, sort_by_line
from sessiontree.core.entry_text import format_entry, format_message_text
from sessiontree.core.message_views import MessagePreview
from sessiontree.core.outline import (
    FILTER_TABLES,
    KIND_BOOKKEEPING,
    KIND_OTHER,
    KIND_TOOL_CALL,
    TreeShape,
    classify_message,
)
from sessiontree.core.problems import ProblemScan
from sessiontree.core.tree import Span, SpanWalk, Tree

FIRST_BATCH_SIZE = 16
BATCH_SIZE = 1024
"""The number of entries that are read together, in file order."""


class FlatRow(Struct, frozen=True, gc=False):
    """One entry of a tree, as `sessiontree tree --json` prints it."""

    id: EntryId
    parent: EntryId | None
    type: str
    role: str | None
    label: str | None
    timestamp: str
    depth: int
    text: str


class EntryFilter:
    """Decides which entries a filter shows, one at a time."""

    def __init__(self, tree: Tree, leaf: EntryId | None, filter: str) -> None:
        self._tree = tree
        self._table = None if filter == "labeled-only" else FILTER_TABLES[filter]
        self._leaf = leaf if filter in ("default", "no-tools") else None
        self.shows_all = filter == "all"
        self.needs_messages = filter not in ("all", "labeled-only")
        """Whether `shows` looks at messages."""

    def shows(self, entry: Entry, message: MessagePreview | None) -> bool:
        """Return whether an entry has a row. `message` is the preview of its message, if it is one."""
        if self.shows_all:
            return True
        if self._table is None:
            return bool(self._tree.label(entry.id))
        kind = get_kind(entry, message)
        return bool(self._table[kind]) or (kind == KIND_TOOL_CALL and entry.id == self._leaf)

    def list_shown(self, entries: Sequence[Entry]) -> list[bool]:
        """Return for each entry whether it has a row. Entries are read in file order, which is fast."""
        if not self.needs_messages:
            return [self.shows(entry, None) for entry in entries]
        shown = [False] * len(entries)
        order = sort_by_line(entries)
        for at, raw in zip(order, read_raws(map(entries.__getitem__, order)), strict=True):
            entry = entries[at]
            message = entry.source.decode_preview(raw) if entry.type == "message" else None
            shown[at] = self.shows(entry, message)
        return shown


def get_kind(entry: Entry, message: MessagePreview | None) -> int:
    """Return the kind of row that an entry makes."""
    if entry.type == "message":
        return classify_message(message)
    return KIND_BOOKKEEPING if entry.type in BOOKKEEPING_TYPES else KIND_OTHER


def decode_message(entry: Entry, raw: bytes) -> tuple[LinePreview | None, MessagePreview | None]:
    """Return the decoded line of a message and its preview; the line is `None` if only the preview could be read."""
    if entry.type != "message":
        return None, None
    line = entry.source.decode_line(raw)
    return line, entry.source.decode_preview(raw) if line is None else line.message


def find_window(tree: Tree, leaf: EntryId | None, filter: str, around: EntryId | None, rows: int) -> EntryId | None:
    """Return the entry of the first of `rows` rows with `around` in the middle; `None` if the filter shows nothing.

    If `around` has no row, the middle is where its row would be. Rows before the window are not read.
    """
    shown, place = EntryFilter(tree, leaf, filter), find_place(tree, leaf, around)
    before, stop, size = rows // 2, place, rows
    above: list[EntryId] = []
    while stop > 0 and len(above) < before:
        first = max(0, stop - size)
        above = _list_shown(tree, leaf, shown, first, stop) + above
        stop, size = first, size * 4  # few rows are shown here
    if before and above:
        return above[-before:][0]
    start, size = place, FIRST_BATCH_SIZE
    while start < len(tree):
        found = _list_shown(tree, leaf, shown, start, start + size)
        if found:
            return found[0]
        start, size = start + size, size * 4
    return None


def find_place(tree: Tree, leaf: EntryId | None, around: EntryId | None) -> int:
    """Return the position of an entry in drawing order; 0 for `None`."""
    place = 0
    index = -1 if around is None else tree.get_index(around)
    for span in tree.walk_spans(leaf) if around is not None else ():
        if span.first <= index < span.first + len(span):
            return place + index - span.first
        place += len(span)
    return place


def iter_spans(tree: Tree, leaf: EntryId | None, first: int, stop: int) -> Iterator[Span]:
    """Yield the spans between two positions in drawing order."""
    position = 0
    for span in tree.walk_spans(leaf):
        if position >= stop:
            break
        low, high = max(first - position, 0), min(stop - position, len(span))
        position += len(span)
        if low < high:
            yield span.cut(low, high)


def _list_shown(tree: Tree, leaf: EntryId | None, shown: EntryFilter, first: int, stop: int) -> list[EntryId]:
    """Return the entries that are shown between two positions of a walk."""
    found: list[EntryId] = []
    for span in iter_spans(tree, leaf, first, stop):
        entries = list(span.iter_entries())
        found.extend(entry.id for entry, has_row in zip(entries, shown.list_shown(entries), strict=True) if has_row)
    return found


class WindowRow(Struct, frozen=True, gc=False):
    """One row of a window."""

    id: EntryId
    parent: EntryId | None
    """The nearest ancestor that the filter shows. It may be before the window."""
    depth: int
    on_path: bool
    """Whether the row is on the path to the leaf."""


class TreeWindow(Struct, frozen=True):
    """Consecutive rows of a tree in drawing order."""

    rows: list[WindowRow]
    has_earlier: bool
    """Whether the tree has rows before these."""
    has_later: bool


def build_window(tree: Tree, leaf: EntryId | None, filter: str, around: EntryId | None, rows: int) -> TreeWindow:
    """Return `rows` rows with `around` in the middle. Only the entries near the window are decoded."""
    start, top = find_window(tree, leaf, filter, around, rows), find_window(tree, leaf, filter, None, 1)
    if start is None:
        return TreeWindow([], top is not None, False)
    walk, shown = SpanWalk(tree, leaf), EntryFilter(tree, leaf, filter)
    known: dict[EntryId, EntryId | None] = {}
    """The entries that were read, each with itself or its nearest ancestor that has a row."""
    found: list[WindowRow] = []
    for entries, parents, depths in _iter_batches(tree, leaf, start):
        for entry, parent, depth, has_row in zip(entries, parents, depths, shown.list_shown(entries), strict=True):
            id, above = entry.id, _find_shown_ancestor(tree, parent, shown, known)
            known[id] = id if has_row else above
            if has_row:
                if len(found) == rows:
                    return TreeWindow(found, start != top, has_later=True)
                found.append(WindowRow(id, above, depth, walk.is_on_path(tree.get_index(id))))
    return TreeWindow(found, start != top, has_later=False)


def _find_shown_ancestor(
    tree: Tree, id: EntryId | None, shown: EntryFilter, known: dict[EntryId, EntryId | None]
) -> EntryId | None:
    """Return the entry `id` or its nearest ancestor that has a row. `known` caches results."""
    if id in known:  # the common case
        return known[id]
    walked: list[EntryId] = []
    while id is not None and id not in known:
        entry = tree.peek(id)
        walked.append(id)
        if shown.shows(entry, decode_message(entry, entry.raw)[1] if shown.needs_messages else None):
            break
        id = tree.parent(id)
    found = known.get(id, id) if id is not None else None
    known.update(dict.fromkeys(walked, found))
    return found


def stream_rows(
    tree: Tree,
    leaf: EntryId | None,
    filter: str,
    scan: ProblemScan | None = None,
    start: EntryId | None = None,
) -> Iterator[FlatRow]:
    """Yield the rows that `filter` shows, from the top or from `start`. Every entry that is read is added to `scan`."""
    shown, labels = EntryFilter(tree, leaf, filter), tree.labels
    shows_all = shown.shows_all
    for entries, parents, depths in _iter_batches(tree, leaf, start):
        order = sort_by_line(entries)
        if scan is None and not shown.needs_messages:
            order = [at for at in order if shown.shows(entries[at], None)]
        rows: list[FlatRow | None] = [None] * len(entries)
        for at, raw in zip(order, read_raws(map(entries.__getitem__, order)), strict=True):
            entry = entries[at]
            line = message = None
            if entry.type == "message":
                line, message = decode_message(entry, raw)
            if scan is not None:
                scan.add(entry, raw, line)
            if shows_all or shown.shows(entry, message):
                id = entry.id
                rows[at] = FlatRow(
                    id,
                    parents[at],
                    entry.type,
                    None if message is None else message.role,
                    labels.get(id),
                    line.timestamp if line is not None and line.is_sound else entry.source.decode_timestamp(raw),
                    depths[at],
                    format_entry(entry, raw) if message is None else format_message_text(message),
                )
        yield from (row for row in rows if row is not None)


def _iter_batches(
    tree: Tree, leaf: EntryId | None, start: EntryId | None
) -> Iterator[tuple[list[Entry], list[EntryId | None], list[int]]]:
    """Yield the entries in drawing order, their effective parents and their depths, in batches.

    The first batches are small, so the first rows are there at once.
    """
    size = FIRST_BATCH_SIZE
    entries: list[Entry] = []
    parents: list[EntryId | None] = []
    depths: list[int] = []
    for span in _skip_spans(tree, leaf, start):
        for part in span.split(size):
            ids = part.ids
            parents.append(part.parent if tree.is_sound else tree.parent(ids[0]))
            parents.extend(ids[:-1])
            entries.extend(part.iter_entries())
            depths.extend(range(part.depth, part.depth + len(ids)))
            if len(entries) >= size:
                yield entries, parents, depths
                entries, parents, depths = [], [], []
                size = min(size * 4, BATCH_SIZE)
    if entries:
        yield entries, parents, depths


def _skip_spans(tree: Tree, leaf: EntryId | None, start: EntryId | None) -> Iterator[Span]:
    """Yield the spans of a walk from the entry `start` on."""
    spans = tree.walk_spans(leaf)
    if start is not None:
        index = tree.get_index(start)
        span = next(span for span in spans if span.first <= index < span.first + len(span))
        yield span.cut(index - span.first, len(span))
    yield from spans


def survey_window(tree: Tree, leaf: EntryId | None, around: EntryId | None, entries: int) -> TreeShape:
    """Survey about `entries` entries in drawing order, half of them before `around`. Only these are decoded.

    An entry whose parent is before the window is a root of the shape.
    """
    place = find_place(tree, leaf, around)
    first = max(0, place - entries // 2)
    spans = list(iter_spans(tree, leaf, first, first + entries))
    found = list(chain.from_iterable(span.iter_entries() for span in spans))
    walk = SpanWalk(tree, leaf)
    shape = TreeShape(tree, None)
    shape.ids = [entry.id for entry in found]
    shape.positions = {id: position for position, id in enumerate(shape.ids)}
    for id in shape.ids:
        parent = tree.parent(id)
        shape.parent_positions.append(-1 if parent is None else shape.positions.get(parent, -1))
        if walk.is_on_path(tree.get_index(id)):
            shape.path.add(id)
    shape.leaf = leaf if leaf in shape.positions else None
    shape.kinds = bytearray(len(found))
    order = sort_by_line(found)
    for position, raw in zip(order, read_raws(map(found.__getitem__, order)), strict=True):
        entry = found[position]
        shape.kinds[position] = get_kind(entry, decode_message(entry, raw)[1])
    return shape
