"""Outline: the tree as rows, the same in the terminal, the app and the exported page.

Which entries a filter and a search show, in which order, how far in, and what one line says of each.
No colours and no widths here; texts are raw, so whoever shows them makes them safe.

Made for trees of any size: a shape is surveyed once, rows are laid out from it for each filter, both in steps that can
be paused, and what a row looks like is found when somebody looks at that row.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Literal, TypeAlias, TypeVar, get_args

from msgspec import Struct

from sessiontree.core.entries import BOOKKEEPING_TYPES, Chain, Entry, EntryId
from sessiontree.core.entry_text import (
    CALL_SEARCH_LIMIT,
    fold,
    format_call,
    format_entry,
    format_entry_row,
    format_message_row,
    format_message_text,
    get_speaker,
    normalize_case,
)
from sessiontree.core.heads import Heads
from sessiontree.core.messages import MessagePreview
from sessiontree.core.tree import Tree

Filter: TypeAlias = Literal["default", "no-tools", "user-only", "labeled-only", "all"]
FILTERS: tuple[Filter, ...] = get_args(Filter)


T = TypeVar("T")
Steps: TypeAlias = Generator[float, None, T]
"""Work on a whole tree that can be paused: tells how far it is, from 0 to 1, and returns what it made."""

NO_CALLS: dict[str, str] = {}

MAX_GUIDE_WIDTH, PAN_STEP = 48, 24
"""Columns of connectors that a drawing shows of a row at most, and how many it leaves out at a time of wider rows.
Without a limit the drawing of a deep tree grows with the square of its depth."""

DEEP_NOTE = "(N… in front of a row: N levels of indentation are not drawn)"
"""What stands below a drawing that leaves out levels."""

ENTRIES_PER_STEP = 512
"""How many entries are looked at between two pauses."""

# What kind of row an entry makes, in a byte.
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
"""By role; what an assistant said is looked at."""
TURN_KINDS = frozenset({KIND_USER, KIND_ASSISTANT})
ROW_TEXT_KINDS = frozenset({KIND_USER, KIND_ASSISTANT, KIND_TOOL_CALL})
"""Kinds whose rows have the role, and all that a search looks through."""


class OutlineRow(Struct, frozen=True, kw_only=True):
    """One line of the drawing."""

    entry: Entry
    prefix: str
    """Connectors and indentation, three columns a level; of deep rows only the last levels: see `Outline.guide`."""
    on_path: bool
    """On the way from the root to the active leaf."""
    active: bool
    """The active leaf is here, or at bookkeeping right below."""
    branches: Sequence[str]
    """Those whose heads are here, or at bookkeeping right below."""
    active_hidden: bool = False
    """The active leaf is hidden, and this is the nearest row above it."""
    branches_hidden: Sequence[str] = ()
    """Those whose heads are hidden, and this is the nearest row above."""


def build_outline(
    tree: Tree, leaf: EntryId | None, filter: str = "default", heads: Heads | None = None
) -> list[OutlineRow]:
    """The rows that `filter` shows, depth first, the active branch first, indented only where branches part.

    Branches are named at their rows where `heads` are given.
    """
    return list(draw_rows(run_steps(lay_out(run_steps(survey_tree(tree, leaf)), filter)), heads))


def draw_rows(rows: Outline, heads: Heads | None = None) -> Iterator[OutlineRow]:
    """The rows of an outline one after another, so that a drawing of any length takes little memory."""
    tree, active = rows.shape.tree, rows.active
    named = {} if heads is None else rows.find_branches(heads)
    hidden = {} if heads is None else rows.find_hidden_branches(heads)
    active_hidden = rows.active_hidden
    for row in range(len(rows)):
        yield OutlineRow(
            entry=tree.peek(rows.get_id(row)),
            prefix=rows.draw_guide(row),
            on_path=rows.is_on_path(row),
            active=row == active,
            branches=named.get(row, ()),
            active_hidden=row == active_hidden,
            branches_hidden=hidden.get(row, ()),
        )


def run_steps(steps: Steps[T]) -> T:
    """Carry out all steps without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


class TreeShape:
    """All entries of a tree in the order of the drawing, by their position in it. See `survey`."""

    def __init__(self, tree: Tree, leaf: EntryId | None) -> None:
        self.tree = tree
        self.leaf = leaf
        self.items = len(tree.items)
        """How many items the tree had; what was added later may not be here."""
        self.ids: list[EntryId] = []
        self.parent_positions = array("l")
        """The position of the entry above each; -1 above a root."""
        self.kinds = bytearray()
        self.positions: dict[EntryId, int] = {}
        self.path: set[EntryId] = set()
        """The entries from the root to the leaf."""
        self._search_texts = _SearchTexts()
        self._read_steps: Steps[None] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def find_shown(self, filter: str) -> bytearray:
        """For every position, whether `filter` shows it."""
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
        """Read what a search looks through. What was begun is gone on with."""
        if self._read_steps is None:
            self._read_steps = self._read_in_steps()
        # No `yield from`, which would end it together with whoever does not go on.
        while (progress := next(self._read_steps, None)) is not None:
            yield progress

    def _read_in_steps(self) -> Steps[None]:
        for start in range(0, len(self), ENTRIES_PER_STEP):
            places = [
                (position, self.tree[id])
                for position, id in enumerate(self.ids[start : start + ENTRIES_PER_STEP], start)
                if id not in self._search_texts.texts
            ]
            for source, several in groupby(places, key=lambda place: place[1].source):
                known = list(several)
                for (position, entry), raw in zip(known, source.read_raws([e.line for _, e in known]), strict=True):
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
        """What `Calls` gives for a result, as a row says it; those above were read before."""
        for _ in range(CALL_SEARCH_LIMIT - 1):
            position = self.parent_positions[position]
            if position < 0 or self.kinds[position] == KIND_USER:
                return None
            row = self._search_texts.calls.get(self.ids[position], NO_CALLS).get(answered)
            if row is not None:
                return row
        return None

    def get_search_text(self, position: int) -> str:
        """What a search looks through, folded: label, role, and what the row and the entry say. It was read before."""
        id = self.ids[position]
        label = self.tree.label(id)
        return f"{fold(label)} {self._search_texts.texts[id]}" if label else self._search_texts.texts[id]

    def inherit(self, older: TreeShape) -> None:
        """Take over what was read of the same tree before it grew."""
        self._search_texts = older._search_texts
        for id, position in older.positions.items():
            self.kinds[self.positions[id]] = older.kinds[position]


class _SearchTexts:
    """What a search needs of entries, as far as they were read."""

    def __init__(self) -> None:
        self.texts: dict[EntryId, str] = {}
        self.calls: dict[EntryId, dict[str, str]] = {}
        """The calls that a message makes, by their ids, as rows say them."""


def survey_tree(tree: Tree, leaf: EntryId | None, older: TreeShape | None = None) -> Steps[TreeShape]:
    """The shape of a tree whose active leaf is `leaf`.

    Bodies are read once, and not again if `older`, a shape of the same tree, knows them.
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
    # In file order, which is quick to read; another entry may be added meanwhile, and of one id the last counts.
    for done, (id, kind) in enumerate(_iter_kinds(tree.items[known:])):
        if id in positions:
            kinds[positions[id]] = kind
        if not done % ENTRIES_PER_STEP:
            yield 0.1 + min(done / total, 1) * 0.9
    return shape


def _iter_kinds(items: Iterable[Entry | Chain]) -> Iterator[tuple[EntryId, int]]:
    """What kind of row each entry makes, without making an entry of any in a chain."""
    for (is_message, source), several in groupby(items, key=lambda item: (_is_message(item), item.source)):
        run = list(several)
        if is_message:
            ids = chain.from_iterable(item.ids if isinstance(item, Chain) else (item.id,) for item in run)
            lines = chain.from_iterable(
                range(item.line, item.line + (len(item) if isinstance(item, Chain) else 1)) for item in run
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
    """What kind of row a message makes."""
    if message is None:
        return KIND_OTHER
    if message.role == "assistant":
        return KIND_ASSISTANT if message.is_failed_turn or message.text.strip() else KIND_TOOL_CALL
    return KINDS_BY_ROLE.get(message.role, KIND_OTHER)


class Outline(Struct, frozen=True, kw_only=True, eq=False):
    """The rows that a filter and a search leave of a shape, by number from the top. See `lay_out`.

    Rows that follow one another without a parting are a segment. Every row is in one, and they stand one behind the
    other, each with all that is below it.
    """

    shape: TreeShape
    filter: str
    words: tuple[str, ...]
    rows: array[int]
    """The position of each row in the shape."""
    nearest_rows: array[int]
    """For every position, its row or that of the nearest shown entry above; -1 where there is none."""
    segments: array[int]
    """The segment of each row."""
    firsts: array[int]
    """The first row of each segment."""
    parents: array[int]
    """The segment above each; -1 above a root."""
    lasts: bytearray
    """Whether no sibling follows the segment; of roots, which have no connectors, always."""
    columns: array[int]
    """How far in each segment begins."""
    ends: array[int]
    """The row behind everything below each segment's first."""
    turns: array[int]
    """The rows where the user or the assistant speaks."""
    has_several_roots: bool
    """Whether there are several roots: then what follows a root stands further in, so that each is seen to begin."""

    def __len__(self) -> int:
        return len(self.rows)

    def get_id(self, row: int) -> EntryId:
        return self.shape.ids[self.rows[row]]

    def find_row(self, id: EntryId | None) -> int | None:
        """The row of an entry, or of the nearest one above it that is shown."""
        position = None if id is None else self.shape.positions.get(id)
        row = -1 if position is None else self.nearest_rows[position]
        return None if row < 0 else row

    @property
    def active(self) -> int | None:
        """The row of the active leaf, if it is shown."""
        return self.find_row(self.shape.leaf) if self._is_shown(self.shape.leaf, {}) else None

    @property
    def active_hidden(self) -> int | None:
        """The nearest row above the active leaf, if that is hidden."""
        return None if self._is_shown(self.shape.leaf, {}) else self.find_row(self.shape.leaf)

    def find_branches(self, heads: Heads) -> dict[int, list[str]]:
        """The branches whose heads are shown, by their rows. Archived ones are left out."""
        return self._map_branches(heads, shown=True)

    def find_hidden_branches(self, heads: Heads) -> dict[int, list[str]]:
        """The branches whose heads are hidden, by the nearest row above. Archived ones are left out."""
        return self._map_branches(heads, shown=False)

    def _map_branches(self, heads: Heads, *, shown: bool) -> dict[int, list[str]]:
        named: dict[int, list[str]] = {}
        known: dict[int, bool] = {}
        for name, head in heads.heads.items():
            row = None if name in heads.archived else self.find_row(head)
            if row is not None and self._is_shown(head, known) == shown:
                named.setdefault(row, []).append(name)
        return named

    def _is_shown(self, id: EntryId | None, known: dict[int, bool]) -> bool:
        """Whether an entry has a row, or is bookkeeping below one: that stands for the place behind the row.

        `known` keeps what was found out, so that many entries at the end of one long chain are not each followed up.
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
        """How wide the row's prefix is."""
        segment = self.segments[row]
        if self.parents[segment] < 0:
            return 3 if self.has_several_roots and row != self.firsts[segment] else 0
        return self.columns[segment] + (3 if row == self.firsts[segment] else 6)

    def draw_prefix(self, row: int, room: int | None = None) -> str:
        """Connectors and indentation, three columns a level; of a wide one only the last `room` columns."""
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
        """What a drawing without a cursor shows left of a row: connectors and indentation, no wider than `WIDEST`.

        Of a wider row the first levels are left out, so many that rows near each other still line up, and their number
        stands in front: `24… │  └─ `.
        """
        width = self.get_width(row)
        if width <= MAX_GUIDE_WIDTH:
            return self.draw_prefix(row)
        hidden = -(-(width - MAX_GUIDE_WIDTH) // PAN_STEP) * PAN_STEP
        return f"{hidden // 3}… {self.draw_prefix(row, width - hidden)}"

    @property
    def is_deep(self) -> bool:
        """Whether levels of some row are left out by `guide`."""
        return max(self.columns, default=0) + 6 > MAX_GUIDE_WIDTH and any(
            self.get_width(row) > MAX_GUIDE_WIDTH for row in range(len(self))
        )

    def _draw_rail(self, segment: int) -> str:
        """What stands under a segment's connector: a bar while siblings follow."""
        return "   " if self.lasts[segment] else "│  "

    def get_segment(self, row: int) -> range:
        """The rows of the segment that `row` is in."""
        segment = self.segments[row]
        is_last = segment + 1 == len(self.firsts)
        return range(self.firsts[segment], len(self) if is_last else self.firsts[segment + 1])

    def find_segment_above(self, row: int) -> int | None:
        """The first row of the segment above that of `row`."""
        parent = self.parents[self.segments[row]]
        return None if parent < 0 else self.firsts[parent]

    def get_foldable(self, row: int) -> range:
        """What can be folded away under `row`: all that is below it, if it is the first of its segment."""
        segment = self.segments[row]
        return range(row + 1, self.ends[segment] if row == self.firsts[segment] else row + 1)


def format_hidden(branches: Sequence[str], active: bool) -> str:
    """What a row says of heads that are hidden below it."""
    told = [f"({', '.join(branches)}: hidden below)"] if branches else []
    if active:
        told.append("↓ active" if branches else "↓ active: hidden below")
    return " ".join(told)


def lay_out(shape: TreeShape, filter: str = "default", words: tuple[str, ...] = ()) -> Steps[Outline]:
    """The rows that `filter` shows of a shape, and of these the ones that say all of `words`, which are folded.

    What hangs from a hidden entry hangs from the nearest shown one above.
    """
    shown = shape.find_shown(filter)
    if words:
        yield from _filter_by_words(shape, shown, words)
    rows, turns, hanging = array("l"), array("l"), array("l")
    shown_above = array("l", [-1]) * len(shape)
    below = [0] * (len(shape) + 1)  # how many rows hang from each; the last is for roots, which hang from -1
    last_below = [-1] * (len(shape) + 1)
    for position, above in enumerate(shape.parent_positions):
        row = shown_above[above] if above >= 0 else -1
        if shown[position]:
            below[row] += 1
            last_below[row] = len(rows)
            hanging.append(row)
            row = len(rows)
            rows.append(position)
            if shape.kinds[position] in TURN_KINDS:
                turns.append(row)
        shown_above[position] = row
        if not position % ENTRIES_PER_STEP:
            yield 0.5 + position / len(shape) * 0.3
    several = below[-1] > 1
    segments, firsts, parents, columns, lasts = array("l"), array("l"), array("l"), array("l"), bytearray()
    for row, above in enumerate(hanging):
        if above < 0 or below[above] > 1:
            parent = segments[above] if above >= 0 else -1
            if parent < 0:
                column = 0
            elif parents[parent] < 0:
                column = 3 if several and above != firsts[parent] else 0
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
        shape=shape, filter=filter, words=words, rows=rows, nearest_rows=shown_above, segments=segments, firsts=firsts,
        parents=parents, lasts=lasts, columns=columns, ends=ends, turns=turns,
        has_several_roots=several,
    )  # fmt: skip


def _filter_by_words(shape: TreeShape, shown: bytearray, words: tuple[str, ...]) -> Steps[None]:
    """Leave of the shown entries those that say all of `words`."""
    for progress in shape.read_texts():
        yield progress * 0.4
    for position in range(len(shape)):
        if shown[position]:
            said = shape.get_search_text(position)
            shown[position] = all(word in said for word in words)
        if not position % ENTRIES_PER_STEP:
            yield 0.4 + position / len(shape) * 0.1
