"""Outline: the tree as rows, for the terminal, the app and exported pages.

An outline decides which entries a filter and a search show, in which order and at which depth. Colors and widths are
left to the caller. Texts are raw, so the caller must escape them.

It works for trees of any size. `survey_tree` reads the tree once, and `lay_out` builds the rows of a filter from that.
Both run in steps that can pause. The look of a row is computed on access.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Literal, TypeAlias, TypeVar, get_args

from msgspec import Struct

from sessiontree.core.call_lookup import CALL_SEARCH_LIMIT, CallLookup
from sessiontree.core.entries import BOOKKEEPING_TYPES, Chain, Entry, EntryId
from sessiontree.core.entry_text import (
    format_call,
    format_entry,
    format_entry_row,
    format_message_row,
    format_message_text,
    get_speaker,
)
from sessiontree.core.heads import Heads
from sessiontree.core.messages import MessagePreview
from sessiontree.core.sanitize import escape_line
from sessiontree.core.search_text import fold, normalize_case
from sessiontree.core.tree import Tree

Filter: TypeAlias = Literal["default", "no-tools", "user-only", "labeled-only", "all"]
FILTERS: tuple[Filter, ...] = get_args(Filter)


T = TypeVar("T")
Steps: TypeAlias = Generator[float, None, T]
"""Work on a whole tree that can pause: yields the progress from 0 to 1 and returns the result."""

NO_CALLS: dict[str, str] = {}

MAX_GUIDE_WIDTH, PAN_STEP = 48, 24
"""The maximum width of the guide before a row, and the step by which wider guides are shortened, in columns. Without a
limit the size of a drawing grows with the square of the depth.
"""

DEEP_NOTE = "(N… in front of a row: N levels of indentation are not drawn)"
"""The note below a drawing that leaves out levels."""

ENTRIES_PER_STEP = 512
"""The number of entries between two pauses."""

# The kind of row that an entry makes, one byte each.
KIND_BOOKKEEPING, KIND_OTHER, KIND_USER, KIND_ASSISTANT, KIND_TOOL_CALL, KIND_TOOL_RESULT = range(6)
HIDDEN_KINDS = {
    "default": frozenset({KIND_BOOKKEEPING, KIND_TOOL_CALL}),
    "no-tools": frozenset({KIND_BOOKKEEPING, KIND_TOOL_CALL, KIND_TOOL_RESULT}),
    "user-only": frozenset({KIND_BOOKKEEPING, KIND_OTHER, KIND_ASSISTANT, KIND_TOOL_CALL, KIND_TOOL_RESULT}),
    "all": frozenset[int](),
}
FILTER_TABLES = {name: bytes(kind not in hidden for kind in range(256)) for name, hidden in HIDDEN_KINDS.items()}
"""For `bytes.translate`: 1 for the kinds that a filter shows."""
KINDS_BY_ROLE = {"user": KIND_USER, "toolResult": KIND_TOOL_RESULT}
"""By role. An assistant message is classified by its content."""
TURN_KINDS = frozenset({KIND_USER, KIND_ASSISTANT})
ROW_TEXT_KINDS = frozenset({KIND_USER, KIND_ASSISTANT, KIND_TOOL_CALL})
"""Kinds whose row text already holds the role and all that a search needs."""


class OutlineRow(Struct, frozen=True, kw_only=True):
    """One row of a drawing."""

    entry: Entry
    prefix: str
    """Connectors and indentation, three columns for each level. Deep rows are shortened: see `Outline.draw_guide`."""
    on_path: bool
    """Whether the row is on the path from the root to the active leaf."""
    active: bool
    """Whether the active leaf is this row, or bookkeeping directly below it."""
    branches: Sequence[str]
    """Branches whose heads are this row, or bookkeeping directly below it."""
    active_hidden: bool = False
    """Whether the active leaf is hidden and this is the nearest row above it."""
    branches_hidden: Sequence[str] = ()
    """Branches whose heads are hidden and have this as the nearest row above."""


def build_outline(
    tree: Tree, leaf: EntryId | None, filter: str = "default", heads: Heads | None = None
) -> list[OutlineRow]:
    """Return the rows that `filter` shows, depth first, active branch first, indented only where branches split.

    With `heads`, each row names the branches that end there.
    """
    return list(draw_rows(run_steps(lay_out(run_steps(survey_tree(tree, leaf)), filter)), heads))


def format_tree(tree: Tree) -> str:
    """Return the drawing of a tree as text, with its labels and the path to its last entry."""
    calls = CallLookup(tree)
    last = next((entry.id for entry in reversed(tree.entries) if not entry.is_annotation), None)
    lines: list[str] = []
    for row in build_outline(tree, last):
        label = tree.label(row.entry.id)
        marks = ("• " if row.on_path else "") + (f"[{label}] " if label else "")
        lines.append(f"{row.prefix}{marks}{format_entry_row(row.entry, calls)}")
    return "\n".join(map(escape_line, lines)) or "(no entries)"


def draw_rows(rows: Outline, heads: Heads | None = None) -> Iterator[OutlineRow]:
    """Yield the rows of an outline one at a time, to draw a large tree in little memory."""
    tree, active = rows.shape.tree, rows.active
    branches = {} if heads is None else rows.find_branches(heads)
    hidden = {} if heads is None else rows.find_hidden_branches(heads)
    active_hidden = rows.active_hidden
    for row in range(len(rows)):
        yield OutlineRow(
            entry=tree.peek(rows.get_id(row)),
            prefix=rows.draw_guide(row),
            on_path=rows.is_on_path(row),
            active=row == active,
            branches=branches.get(row, ()),
            active_hidden=row == active_hidden,
            branches_hidden=hidden.get(row, ()),
        )


def run_steps(steps: Steps[T]) -> T:
    """Run all steps without a pause and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


class TreeShape:
    """All entries of a tree by their position in the drawing. See `survey_tree`."""

    def __init__(self, tree: Tree, leaf: EntryId | None) -> None:
        self.tree = tree
        self.leaf = leaf
        self.items = len(tree.items)
        """The number of items in the tree at the time of the survey. Later items may be missing."""
        self.ids: list[EntryId] = []
        self.parent_positions = array("l")
        """The position of each entry's parent; -1 for a root."""
        self.kinds = bytearray()
        self.positions: dict[EntryId, int] = {}
        self.path: set[EntryId] = set()
        """The entries from the root to the leaf."""
        self._search_texts = _SearchTexts()
        self._read_steps: Steps[None] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def find_shown(self, filter: str) -> bytearray:
        """Return for every position whether `filter` shows it."""
        if filter == "labeled-only":
            shown = bytearray(len(self))
            for id in self.tree.labels:
                if id in self.positions:
                    shown[self.positions[id]] = 1
            return shown
        shown = bytearray(self.kinds.translate(FILTER_TABLES[filter]))
        if self.leaf is not None and filter in ("default", "no-tools"):
            at = self.positions[self.leaf]
            shown[at] |= self.kinds[at] == KIND_TOOL_CALL
        return shown

    def read_texts(self) -> Steps[None]:
        """Read the texts that a search needs. Continues where an earlier call stopped."""
        if self._read_steps is None:
            self._read_steps = self._read_in_steps()
        # No `yield from`: closing this generator must not close the shared one.
        while (progress := next(self._read_steps, None)) is not None:
            yield progress

    def _read_in_steps(self) -> Steps[None]:
        for start in range(0, len(self), ENTRIES_PER_STEP):
            places = [
                (position, self.tree[id])
                for position, id in enumerate(self.ids[start : start + ENTRIES_PER_STEP], start)
                if id not in self._search_texts.texts
            ]
            for source, group in groupby(places, key=lambda place: place[1].source):
                run = list(group)
                for (position, entry), raw in zip(run, source.read_raws([e.number for _, e in run]), strict=True):
                    self._search_texts.texts[entry.id] = normalize_case(self._build_search_text(position, entry, raw))
            yield start / len(self)

    def _build_search_text(self, position: int, entry: Entry, raw: bytes) -> str:
        message = entry.source.decode_preview(raw) if entry.type == "message" else None
        if message is None:
            return f"{get_speaker(entry)} {format_entry_row(entry)} {format_entry(entry)}"
        if calls := message.calls:
            self._search_texts.calls[entry.id] = {call.id: format_call(call) for call in reversed(calls)}
        kind = self.kinds[position]
        row = (
            self._find_call_row(position, message.tool_call_id) if kind == KIND_TOOL_RESULT else None
        ) or format_message_row(message)
        return row if kind in ROW_TEXT_KINDS else f"{message.role or entry.type} {row} {format_message_text(message)}"

    def _find_call_row(self, position: int, answered: str) -> str | None:
        """Return the row text of the call that a result answers. Entries above were read before."""
        for _ in range(CALL_SEARCH_LIMIT - 1):
            position = self.parent_positions[position]
            if position < 0 or self.kinds[position] == KIND_USER:
                return None
            row = self._search_texts.calls.get(self.ids[position], NO_CALLS).get(answered)
            if row is not None:
                return row
        return None

    def get_search_text(self, position: int) -> str:
        """Return the folded text that a search looks through: label, role and the text of the entry. Needs
        `read_texts`.
        """
        id = self.ids[position]
        label = self.tree.label(id)
        return f"{fold(label)} {self._search_texts.texts[id]}" if label else self._search_texts.texts[id]

    def inherit(self, older: TreeShape) -> None:
        """Reuse the texts and kinds that were read before the tree grew."""
        self._search_texts = older._search_texts
        for id, position in older.positions.items():
            self.kinds[self.positions[id]] = older.kinds[position]


class _SearchTexts:
    """The texts that a search needs, for the entries read so far."""

    def __init__(self) -> None:
        self.texts: dict[EntryId, str] = {}
        self.calls: dict[EntryId, dict[str, str]] = {}
        """The row texts of the tool calls in each message, by call id."""


def survey_tree(tree: Tree, leaf: EntryId | None, older: TreeShape | None = None) -> Steps[TreeShape]:
    """Survey a tree whose active leaf is `leaf`.

    Each body is read once. Bodies known to `older`, a shape of the same tree, are not read again.
    """
    shape = TreeShape(tree, leaf)
    ids, above, positions = shape.ids, shape.parent_positions, shape.positions
    total = max(len(tree), 1)
    for steps, id in enumerate(tree.walk_up_ids(leaf)):
        shape.path.add(id)
        if not steps % ENTRIES_PER_STEP:
            yield 0
    depths: list[int] = []
    for position, (id, depth) in enumerate(tree.walk_ids(leaf)):
        del depths[depth:]
        above.append(depths[-1] if depths else -1)
        depths.append(position)
        positions[id] = position
        ids.append(id)
        if not position % ENTRIES_PER_STEP:
            yield position / total * 0.1
    kinds = shape.kinds = bytearray(len(ids))
    known = 0
    if older is not None:
        shape.inherit(older)
        known = older.items
    # File order is fast to read. Entries may be added during a pause, and the last entry with an id counts.
    for done, (id, kind) in enumerate(_iter_kinds(tree.items[known:])):
        if id in positions:
            kinds[positions[id]] = kind
        if not done % ENTRIES_PER_STEP:
            yield 0.1 + min(done / total, 1) * 0.9
    return shape


def _iter_kinds(items: Iterable[Entry | Chain]) -> Iterator[tuple[EntryId, int]]:
    """Yield the kind of each entry without building entries of chains."""
    for (is_message, source), group in groupby(items, key=lambda item: (_is_message(item), item.source)):
        run = list(group)
        if is_message:
            ids = chain.from_iterable(item.ids if isinstance(item, Chain) else (item.id,) for item in run)
            lines = chain.from_iterable(
                range(item.number, item.number + (len(item) if isinstance(item, Chain) else 1)) for item in run
            )
            yield from zip(ids, map(classify_message, map(source.decode_preview, source.read_raws(lines))), strict=True)
        else:
            yield from (
                (item.id, KIND_BOOKKEEPING if item.type in BOOKKEEPING_TYPES else KIND_OTHER)
                for item in run
                if isinstance(item, Entry)
            )


def _is_message(item: Entry | Chain) -> bool:
    return isinstance(item, Chain) or item.type == "message"


def classify_message(message: MessagePreview | None) -> int:
    """Return the kind of row that a message makes."""
    if message is None:
        return KIND_OTHER
    if message.role == "assistant":
        return KIND_ASSISTANT if message.is_failed_turn or message.text.strip() else KIND_TOOL_CALL
    return KINDS_BY_ROLE.get(message.role, KIND_OTHER)


class Outline(Struct, frozen=True, kw_only=True, eq=False):
    """The rows of a shape that a filter and a search show, numbered from the top. See `lay_out`.

    A segment is a run of rows without a split. Every row is in exactly one segment. A segment is followed by the
    segments below it.
    """

    shape: TreeShape
    filter: str
    words: tuple[str, ...]
    rows: array[int]
    """The position of each row in the shape."""
    nearest_rows: array[int]
    """For every position, its row or the row of the nearest shown ancestor; -1 if there is none."""
    segments: array[int]
    """The segment of each row."""
    firsts: array[int]
    """The first row of each segment."""
    parents: array[int]
    """The segment above each segment; -1 above a root."""
    lasts: bytearray
    """Whether a segment is the last of its siblings. Always set for roots, which have no connectors."""
    columns: array[int]
    """The column where each segment starts."""
    ends: array[int]
    """The row after the last one below the first row of each segment."""
    turns: array[int]
    """The rows of user and assistant messages."""
    has_several_roots: bool
    """Whether there are several roots. Rows below a root are then indented."""

    def __len__(self) -> int:
        return len(self.rows)

    def get_id(self, row: int) -> EntryId:
        return self.shape.ids[self.rows[row]]

    def find_row(self, id: EntryId | None) -> int | None:
        """Return the row of an entry, or of its nearest shown ancestor."""
        position = None if id is None else self.shape.positions.get(id)
        row = -1 if position is None else self.nearest_rows[position]
        return None if row < 0 else row

    @property
    def active(self) -> int | None:
        """The row of the active leaf, if it is shown."""
        return self.find_row(self.shape.leaf) if self._is_shown(self.shape.leaf, {}) else None

    @property
    def active_hidden(self) -> int | None:
        """The nearest row above the active leaf, if the leaf is hidden."""
        return None if self._is_shown(self.shape.leaf, {}) else self.find_row(self.shape.leaf)

    def find_branches(self, heads: Heads) -> dict[int, list[str]]:
        """Return the branches whose heads are shown, by row. Archived branches are left out."""
        return self._map_branches(heads, shown=True)

    def find_hidden_branches(self, heads: Heads) -> dict[int, list[str]]:
        """Return the branches whose heads are hidden, by the nearest row above. Archived branches are left out."""
        return self._map_branches(heads, shown=False)

    def _map_branches(self, heads: Heads, *, shown: bool) -> dict[int, list[str]]:
        by_row: dict[int, list[str]] = {}
        known: dict[int, bool] = {}
        for name, head in heads.heads.items():
            row = None if name in heads.archived else self.find_row(head)
            if row is not None and self._is_shown(head, known) == shown:
                by_row.setdefault(row, []).append(name)
        return by_row

    def _is_shown(self, id: EntryId | None, known: dict[int, bool]) -> bool:
        """Return whether an entry has a row, or is bookkeeping directly below one.

        `known` caches results, so several entries at the end of one long chain do not each walk up the chain.
        """
        row = self.find_row(id)
        if id is None or row is None:
            return False
        position, passed = self.shape.positions[id], list[int]()
        while position not in known and position != self.rows[row] and self.shape.kinds[position] == KIND_BOOKKEEPING:
            passed.append(position)
            position = self.shape.parent_positions[position]
        shown = known.get(position, position == self.rows[row])
        known.update(dict.fromkeys(passed, shown))
        return shown

    def is_on_path(self, row: int) -> bool:
        return self.get_id(row) in self.shape.path

    def get_width(self, row: int) -> int:
        """Return the width of the row's prefix in columns."""
        segment = self.segments[row]
        if self.parents[segment] < 0:
            return 3 if self.has_several_roots and row != self.firsts[segment] else 0
        return self.columns[segment] + (3 if row == self.firsts[segment] else 6)

    def draw_prefix(self, row: int, room: int | None = None) -> str:
        """Return connectors and indentation, three columns for each level, cut to the last `room` columns."""
        segment = self.segments[row]
        if self.parents[segment] < 0:
            return " " * (self.get_width(row) if room is None else min(room, self.get_width(row)))
        if row == self.firsts[segment]:
            parts = ["└─ " if self.lasts[segment] else "├─ "]
        else:
            parts = [self._draw_rail(segment) + "   "]
        width = len(parts[0])
        while (column := self.columns[segment]) and (room is None or width < room):
            segment = self.parents[segment]
            parts.append(self._draw_rail(segment) + " " * (column - self.columns[segment] - 3))
            width += len(parts[-1])
        drawn = "".join(reversed(parts))
        return drawn if room is None else drawn[max(0, len(drawn) - room) :]

    def draw_guide(self, row: int) -> str:
        """Return the prefix of a row, at most `MAX_GUIDE_WIDTH` columns wide.

        If the row is deeper, the first levels are replaced by their number: `24… │  └─ `. The cut moves in steps, so
        neighboring rows line up.
        """
        width = self.get_width(row)
        if width <= MAX_GUIDE_WIDTH:
            return self.draw_prefix(row)
        hidden = -(-(width - MAX_GUIDE_WIDTH) // PAN_STEP) * PAN_STEP
        return f"{hidden // 3}… {self.draw_prefix(row, width - hidden)}"

    @property
    def is_deep(self) -> bool:
        """Whether `draw_guide` leaves out levels of some row."""
        return max(self.columns, default=0) + 6 > MAX_GUIDE_WIDTH and any(
            self.get_width(row) > MAX_GUIDE_WIDTH for row in range(len(self))
        )

    def _draw_rail(self, segment: int) -> str:
        """Return the columns below a segment's connector: a bar while siblings follow."""
        return "   " if self.lasts[segment] else "│  "

    def get_segment(self, row: int) -> range:
        """Return the rows of the segment that `row` is in."""
        segment = self.segments[row]
        is_last = segment + 1 == len(self.firsts)
        return range(self.firsts[segment], len(self) if is_last else self.firsts[segment + 1])

    def find_segment_above(self, row: int) -> int | None:
        """Return the first row of the parent segment."""
        parent = self.parents[self.segments[row]]
        return None if parent < 0 else self.firsts[parent]

    def get_foldable(self, row: int) -> range:
        """Return the rows that folding `row` hides: everything below it, if it is the first row of its segment."""
        segment = self.segments[row]
        return range(row + 1, self.ends[segment] if row == self.firsts[segment] else row + 1)


def format_hidden(branches: Sequence[str], active: bool) -> str:
    """Return the note on a row about heads that are hidden below it."""
    notes = [f"({', '.join(branches)}: hidden below)"] if branches else []
    if active:
        notes.append("↓ active" if branches else "↓ active: hidden below")
    return " ".join(notes)


def lay_out(shape: TreeShape, filter: str = "default", words: tuple[str, ...] = ()) -> Steps[Outline]:
    """Lay out the rows that `filter` shows and that contain all of `words`, which must be folded.

    The children of a hidden entry move to its nearest shown ancestor.
    """
    shown = shape.find_shown(filter)
    if words:
        yield from _filter_by_words(shape, shown, words)
    rows, turns, hanging = array("l"), array("l"), array("l")
    nearest_rows = array("l", [-1]) * len(shape)
    below = [0] * (len(shape) + 1)  # rows below each row; the last item counts roots, whose parent is -1
    last_below = [-1] * (len(shape) + 1)
    for position, above in enumerate(shape.parent_positions):
        row = nearest_rows[above] if above >= 0 else -1
        if shown[position]:
            below[row] += 1
            last_below[row] = len(rows)
            hanging.append(row)
            row = len(rows)
            rows.append(position)
            if shape.kinds[position] in TURN_KINDS:
                turns.append(row)
        nearest_rows[position] = row
        if not position % ENTRIES_PER_STEP:
            yield 0.5 + position / len(shape) * 0.3
    has_several_roots = below[-1] > 1
    segments, firsts, parents, columns, lasts = array("l"), array("l"), array("l"), array("l"), bytearray()
    for row, above in enumerate(hanging):
        if above < 0 or below[above] > 1:
            parent = segments[above] if above >= 0 else -1
            if parent < 0:
                column = 0
            elif parents[parent] < 0:
                column = 3 if has_several_roots and above != firsts[parent] else 0
            else:
                column = columns[parent] + (3 if above == firsts[parent] else 6)
            firsts.append(row)
            parents.append(parent)
            lasts.append(above < 0 or last_below[above] == row)
            columns.append(column)
        segments.append(len(firsts) - 1)
        if not row % ENTRIES_PER_STEP:
            yield 0.8 + row / len(shape) * 0.2
    ends = array("l", [*firsts[1:], len(rows)])
    for segment in range(len(firsts) - 1, -1, -1):
        if parents[segment] >= 0:
            ends[parents[segment]] = max(ends[parents[segment]], ends[segment])
    return Outline(
        shape=shape, filter=filter, words=words, rows=rows, nearest_rows=nearest_rows, segments=segments, firsts=firsts,
        parents=parents, lasts=lasts, columns=columns, ends=ends, turns=turns,
        has_several_roots=has_several_roots,
    )  # fmt: skip


def _filter_by_words(shape: TreeShape, shown: bytearray, words: tuple[str, ...]) -> Steps[None]:
    """Hide the entries that do not contain all of `words`."""
    for progress in shape.read_texts():
        yield progress * 0.4
    for position in range(len(shape)):
        if shown[position]:
            text = shape.get_search_text(position)
            shown[position] = all(word in text for word in words)
        if not position % ENTRIES_PER_STEP:
            yield 0.4 + position / len(shape) * 0.1
