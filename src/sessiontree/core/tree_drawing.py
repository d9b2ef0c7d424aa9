"""Tree drawing: the rows of a tree with connectors, as a stream.

It draws what `core.outline` lays out, without surveying the tree first. To know the connectors of a row it looks ahead
only to the next sibling, so the first rows are there at once, and a window around any place costs as much as it shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from msgspec import Struct

from sessiontree.core.call_lookup import CallLookup
from sessiontree.core.entries import BOOKKEEPING_TYPES, Entry, EntryId, LinePreview, read_raws
from sessiontree.core.entry_text import format_entry_row, format_message_row
from sessiontree.core.heads import Heads
from sessiontree.core.message_views import MessagePreview
from sessiontree.core.outline import MAX_GUIDE_WIDTH, PAN_STEP
from sessiontree.core.problems import ProblemScan
from sessiontree.core.tree import PathMarks, Span, SpanWalk, Tree
from sessiontree.core.tree_rows import EntryFilter, decode_message

FIRST_READ, MOST_READ = 4, 256
"""How many entries of a span are read together: few at first, because most spans are only looked at."""


class DrawnRow(Struct, frozen=True, kw_only=True):
    """One row of a drawing. `OutlineRow` describes the fields of the same name."""

    id: EntryId
    text: str
    """The row in words, as `format_entry_row` returns it."""
    prefix: str
    on_path: bool
    active: bool
    branches: list[str]
    active_hidden: bool
    branches_hidden: list[str]


class _Segment(Struct):
    """A run of rows without a split."""

    parent: _Segment | None
    column: int
    is_last: bool
    """Whether it is the last of its siblings. Always set for roots, which have no connectors."""
    rows: int = 0

    @property
    def rail(self) -> str:
        """The columns below the connector: a bar while siblings follow."""
        return "   " if self.is_last else "│  "


class _Shown(Struct):
    """A span that has rows, and where the first of them is."""

    span: Span
    offset: int


class _Siblings(Struct):
    """The spans with rows that hang from one row, read one ahead."""

    rest: Iterator[_Shown]
    segment: _Segment | None
    """The segment of the row that they hang from; `None` for roots."""
    column: int
    """The column of new segments."""
    is_split: bool = False
    following: _Shown | None = None


class _Marks(Struct):
    """The notes on a row."""

    branches: list[str]
    branches_hidden: list[str]
    active: bool = False
    active_hidden: bool = False


class TreeDrawing:
    """Draws a tree row by row. Every entry that is read for a row is added to `scan`."""

    def __init__(
        self,
        tree: Tree,
        leaf: EntryId | None,
        filter: str = "default",
        heads: Heads | None = None,
        scan: ProblemScan | None = None,
    ) -> None:
        self.is_deep = False
        """Whether levels of some row were left out so far."""
        self._tree = tree
        self._walk = SpanWalk(tree, leaf)
        self._filter = EntryFilter(tree, leaf, filter)
        self._scan = scan
        self._calls = CallLookup(tree)
        self._has_several_roots = False
        self._marks = self._find_marks(leaf, heads)

    # Rows

    def iter_rows(self, start: EntryId | None = None) -> Iterator[DrawnRow]:
        """Yield the rows from the top, or from the row of `start`, which the filter must show."""
        target = None if start is None else self._tree.get_index(start)
        path = None if start is None else self._walk.mark_path(start)
        roots = _Siblings(self._iter_shown(self._walk.list_below(None), 0), None, 0)
        waiting = [roots] if self._look_ahead(roots) else []
        self._has_several_roots = roots.is_split
        while waiting:
            siblings = waiting[-1]
            shown = self._take(siblings, path)
            if siblings.following is None:
                waiting.pop()  # before its rows: a deep tree must not keep finished siblings
            segment = siblings.segment
            if segment is None or siblings.is_split:
                is_last = segment is None or siblings.following is None
                segment = _Segment(parent=segment, column=siblings.column, is_last=is_last)
            span = shown.span
            if target is None:
                yield from self._draw_span(shown, segment)
            elif target < span.first + len(span) and target >= span.first:
                yield from self._draw_span(shown, segment, target - span.first)
                target = path = None
            else:  # on the way to the first row
                segment.rows += self._count_rows(shown, 2)
            depth = span.depth + len(span)
            below = _Siblings(
                self._iter_shown(self._walk.list_below(span), depth), segment, self._get_column_below(segment)
            )
            if self._look_ahead(below):
                waiting.append(below)

    def _look_ahead(self, siblings: _Siblings) -> bool:
        """Find the first of some siblings, and whether there are several."""
        siblings.following = next(siblings.rest, None)
        second = None if siblings.following is None else next(siblings.rest, None)
        if second is not None:
            siblings.is_split = True
            siblings.rest = chain((second,), siblings.rest)
        return siblings.following is not None

    def _take(self, siblings: _Siblings, path: PathMarks | None) -> _Shown:
        """Return the next sibling. With `path`, skip siblings that are not on it."""
        while True:
            shown = siblings.following
            assert shown is not None
            siblings.following = next(siblings.rest, None)
            if path is None or self._walk.is_on_path(shown.span.first, path):
                return shown

    def _iter_shown(self, below: list[int], depth: int) -> Iterator[_Shown]:
        """Yield the spans with rows that start at some indices, or hang from spans without rows there."""
        waiting = [(iter(below), depth)]
        while waiting:
            indices, depth = waiting[-1]
            index = next(indices, None)
            if index is None:
                waiting.pop()
                continue
            span = self._walk.get_span(index, depth)
            offset = self._find_first_row(span)
            if offset is None:
                waiting.append((iter(self._walk.list_below(span)), depth + len(span)))
            else:
                yield _Shown(span, offset)

    def _find_first_row(self, span: Span) -> int | None:
        if self._filter.shows_all:
            return 0
        for offset, (entry, _, _, message) in enumerate(self._read(span)):
            if self._filter.shows(entry, message):
                return offset
        if self._scan is not None:  # not read again
            for entry, raw, line, _ in self._read(span):
                self._scan.add(entry, raw, line)
        return None

    def _count_rows(self, shown: _Shown, most: int) -> int:
        count = 0
        for entry, _, _, message in self._read(shown.span, shown.offset):
            count += self._filter.shows(entry, message)
            if count == most:
                break
        return count

    def _read(
        self, span: Span, offset: int = 0
    ) -> Iterator[tuple[Entry, bytes, LinePreview | None, MessagePreview | None]]:
        """Yield entries of a span from an offset on, each with its bytes and what `decode_message` returns."""
        size = FIRST_READ
        while offset < len(span):
            stop = min(offset + size, len(span))
            entries = list(span.cut(offset, stop).iter_entries())
            for entry, raw in zip(entries, read_raws(entries), strict=True):
                yield entry, raw, *decode_message(entry, raw)
            offset, size = stop, min(size * 4, MOST_READ)

    def _draw_span(self, shown: _Shown, segment: _Segment, offset: int = 0) -> Iterator[DrawnRow]:
        """Yield the rows of a span from an offset on."""
        span = shown.span
        if offset > shown.offset:
            segment.rows += 1  # rows before the first one that is wanted
        for index, (entry, raw, line, message) in enumerate(self._read(span, offset), span.first + offset):
            if self._scan is not None:
                self._scan.add(entry, raw, line)
            if not self._filter.shows(entry, message):
                continue
            segment.rows += 1
            marks = self._marks.get(entry.id, NO_MARKS)
            yield DrawnRow(
                id=entry.id,
                text=self._format(entry, raw, message),
                prefix=self._draw_guide(segment),
                on_path=self._walk.is_on_path(index),
                active=marks.active,
                branches=marks.branches,
                active_hidden=marks.active_hidden,
                branches_hidden=marks.branches_hidden,
            )

    def _format(self, entry: Entry, raw: bytes, message: MessagePreview | None) -> str:
        if message is None:
            return format_entry_row(entry, None, raw)
        is_result = message.role == "toolResult"
        return format_message_row(message, self._calls.find(entry.id, message.tool_call_id) if is_result else None)

    # Connectors

    def _get_column_below(self, segment: _Segment) -> int:
        """Return the column of the segments that hang from the last row of a segment."""
        if segment.parent is None:
            return 3 if self._has_several_roots and segment.rows > 1 else 0
        return segment.column + (3 if segment.rows == 1 else 6)

    def _draw_guide(self, segment: _Segment) -> str:
        """Return the prefix of the last row of a segment: see `Outline.draw_guide`."""
        is_first = segment.rows == 1
        if segment.parent is None:
            return "   " if self._has_several_roots and not is_first else ""
        width = segment.column + (3 if is_first else 6)
        hidden = -(-(width - MAX_GUIDE_WIDTH) // PAN_STEP) * PAN_STEP if width > MAX_GUIDE_WIDTH else 0
        room = width - hidden
        parts = [("└─ " if segment.is_last else "├─ ") if is_first else segment.rail + "   "]
        drawn = len(parts[0])
        while segment.column and segment.parent is not None and drawn < room:
            above = segment.parent
            parts.append(above.rail + " " * (segment.column - above.column - 3))
            drawn += len(parts[-1])
            segment = above
        guide = "".join(reversed(parts))
        if not hidden:
            return guide
        self.is_deep = True
        return f"{hidden // 3}… {guide[len(guide) - room :]}"

    # Heads

    def _find_marks(self, leaf: EntryId | None, heads: Heads | None) -> dict[EntryId, _Marks]:
        """Return the notes on rows: branches and the active leaf, or that they are hidden below."""
        marks: dict[EntryId, _Marks] = {}
        known: dict[EntryId, tuple[EntryId | None, bool]] = {}

        def note(id: EntryId, branch: str | None) -> None:
            row, is_shown = self._find_row_above(id, known)
            if row is None:
                return
            mark = marks.setdefault(row, _Marks([], []))
            if branch is not None:
                (mark.branches if is_shown else mark.branches_hidden).append(branch)
            elif is_shown:
                mark.active = True
            else:
                mark.active_hidden = True

        if heads is not None:
            for name, head in heads.heads.items():
                if head is not None and head in self._tree and name not in heads.archived:
                    note(head, name)
        if leaf is not None:
            note(leaf, None)
        return marks

    def _find_row_above(
        self, id: EntryId, known: dict[EntryId, tuple[EntryId | None, bool]]
    ) -> tuple[EntryId | None, bool]:
        """Return the row of an entry or of its nearest ancestor with one, and whether only bookkeeping is between.

        `known` caches results, so several heads at the end of one long chain do not each walk up the chain.
        """
        walked: list[tuple[EntryId, bool]] = []
        at: EntryId | None = id
        row, is_shown = None, True
        while at is not None:
            if at in known:
                row, is_shown = known[at]
                break
            entry = self._tree.peek(at)
            if self._filter.shows(entry, decode_message(entry, entry.raw)[1] if self._filter.needs_messages else None):
                row = at
                break
            walked.append((at, entry.type in BOOKKEEPING_TYPES))
            at = self._tree.parent(at)
        for passed, is_bookkeeping in reversed(walked):
            is_shown = is_shown and is_bookkeeping
            known[passed] = row, is_shown
        return row, is_shown


NO_MARKS = _Marks([], [])
