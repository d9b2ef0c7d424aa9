"""The columns stored with every line, and what new lines add to the summary of their session.

The columns are derived from the bytes of the line. A line that cannot be read has empty columns. Text that PostgreSQL
cannot store or index is left out; a search reads the line instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET

from sessiontree.core.entries import (
    UNREADABLE,
    Custom,
    Entry,
    Header,
    iter_entries,
)
from sessiontree.core.entry_text import get_speaker
from sessiontree.core.head_rules import get_effect
from sessiontree.core.heads import Heads
from sessiontree.core.sanitize import replace_unencodable
from sessiontree.core.search_text import build_full_text, fold
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.core.tree import Tree
from sessiontree.errors import FormatError
from sessiontree.format.codec import VERSION
from sessiontree.format.digest import EntryTotals
from sessiontree.format.session_reader import SessionReader
from sessiontree.format.tail import TailBlock

STORED_NAME_LIMIT = 500
"""The longest id in an index, in characters."""
STORED_TEXT_LIMIT = 1 << 18
"""The longest text in an index, in characters."""
COST_LIMIT = 1e12
"""The highest plausible cost in dollars. A sum of larger numbers could overflow the column."""


class LineRow(NamedTuple):
    """The columns of one line."""

    id: str | None = None
    parent: str | None = None
    type: str | None = None
    role: str | None = None
    branch: str | None = None
    moment: int = 0
    """Milliseconds since the epoch."""
    text: str | None = ""
    """The folded text; `None` if it is too long, and a search has to read the line."""


class SummaryDelta(NamedTuple):
    """What lines add to the summary of their session. The field names are keys in the SQL function `append`."""

    told: bool = True
    """Whether the lines are enough for a summary; if not, the session has to be opened."""
    entries: int = 0
    messages: int = 0
    cost: float = 0
    first_message: str | None = None
    named: bool = False
    name: str | None = None
    branches: tuple[str, ...] = ()
    """Branches with new entries; all branches if `hidden` is set."""
    hidden: tuple[str, ...] | None = None
    """The archived branches, if the lines have a head record."""
    current: str | None = None
    """The current branch, if the lines name it."""
    leaves: str | None = None
    """The branch that is current after each line, if every line names it and moves no branch but its own.

    Such lines can be appended after lines of other branches that leave the same branch current.
    """


def filter_storable(name: str | None) -> str | None:
    """Return a name if a column can store it unchanged, else `None`."""
    if name is None or len(name) > STORED_NAME_LIMIT or "\0" in name:
        return None
    return name if name.isascii() or clean_text(name) == name else None


def clean_text(text: str) -> str:
    """Replace the characters that a column cannot store."""
    return replace_unencodable(text.replace("\0", "�"))


def build_rows(lines: Sequence[bytes]) -> tuple[list[LineRow], SummaryDelta]:
    """Return the columns of each of these lines, which are entries, and what the lines add to the summary."""
    rows = [LineRow()] * len(lines)
    entries = list(iter_entries(TailBlock(b"\n".join([*lines, b""])).items))
    for entry in entries:
        rows[entry.number - 1] = _build_row(entry)
    delta = _build_delta(entries)
    return rows, delta if len(entries) == len(lines) else delta._replace(told=False, leaves=None)


def _build_row(entry: Entry) -> LineRow:
    text = clean_text(fold(build_full_text(entry)))
    return LineRow(
        id=filter_storable(entry.id),
        parent=filter_storable(entry.parent),
        type=filter_storable(entry.type),
        role=filter_storable(get_speaker(entry)),
        branch=filter_storable(entry.branch) if isinstance(entry.branch, str) else None,
        moment=parse_timestamp(entry.timestamp) or 0,
        text=text if len(text) <= STORED_TEXT_LIMIT else None,
    )


def _build_delta(entries: Sequence[Entry]) -> SummaryDelta:
    totals = EntryTotals()
    written: dict[str, None] = {}
    current: str | None = None
    record = -1
    is_enough = True
    for index, entry in enumerate(entries):
        body = totals.add(entry)
        is_enough = is_enough and body is not UNREADABLE and entry.branch is not UNSET
        if isinstance(body, Custom) and entry.is_head_record:
            record = index
        if entry.branch is not UNSET:
            effect = get_effect(entry.branch, entry.current, entry.is_annotation)
            current = current if effect.current is None else effect.current
            if effect.branch is not None and effect.moves_head:
                written[effect.branch] = None
    hidden: tuple[str, ...] | None = None
    if record >= 0:
        heads = Heads()
        heads.replay(entries, Tree(list(entries)))
        written, current, hidden = dict.fromkeys(heads.heads), heads.current, tuple(sorted(heads.archived))
    names = (*written, *(hidden or ()), *([current] if current is not None else []))
    if not abs(totals.cost) <= COST_LIMIT or any(filter_storable(name) is None for name in names):
        return SummaryDelta(told=False, entries=len(entries))
    return SummaryDelta(
        told=is_enough,
        entries=len(entries),
        messages=totals.messages,
        cost=totals.cost,
        first_message=clean_text(totals.first_message or "") or None,
        named=totals.is_named,
        name=clean_text(totals.name or "") or None,
        branches=tuple(written),
        hidden=hidden,
        current=current,
        leaves=_find_left_branch(entries),
    )


def _find_left_branch(entries: Sequence[Entry]) -> str | None:
    """Return `SummaryDelta.leaves` of these lines."""
    left: set[str | None] = set()
    for entry in entries:
        if entry.is_head_record or not isinstance(entry.branch, str) or filter_storable(entry.parent) is None:
            return None
        left.add(get_effect(entry.branch, entry.current, entry.is_annotation).current)
    return left.pop() if len(left) == 1 else None


class Preamble(NamedTuple):
    """The lines up to the header of a session, if it has one."""

    line_count: int
    """The number of lines up to and including the header."""
    header: Header | None
    title: str | None

    @property
    def is_older(self) -> bool:
        """Whether the session is in an older dialect. Most columns of its lines are empty."""
        return self.header is not None and self.header.version < VERSION


def read_preamble(lines: Sequence[bytes]) -> Preamble:
    reader = SessionReader()
    try:
        for number, raw in enumerate(lines, 1):
            reader.feed(raw + b"\n")
            if reader.has_header:
                return Preamble(number, reader.header, reader.title)
    except FormatError:
        pass
    return Preamble(0, None, None)
