"""Rows: what is written of a line beside its bytes, to find it by, and what lines add to a listing. No database here.

Bytes are the truth; whatever is here follows from them. A line that cannot be read has a row with nothing in it.
Text that PostgreSQL cannot hold, or not in an index, is left out: whoever looks for it reads the lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET

from sessiontree.comparison import usages
from sessiontree.core.entries import UNREADABLE, Custom, Entry, Header, Message, SessionInfo, entries_of
from sessiontree.core.fulltext import fold, full_text, speaker
from sessiontree.core.heads import Heads
from sessiontree.core.messages import role, spent, text
from sessiontree.core.outline import one_line
from sessiontree.core.safe import encodable
from sessiontree.core.times import milliseconds
from sessiontree.core.tree import BLANKS, Tree
from sessiontree.errors import FormatError
from sessiontree.format.codec import VERSION
from sessiontree.format.jsonl import Reader
from sessiontree.format.tail import Block

NAME_LIMIT = 500
"""The longest id that is in an index, in characters."""
SAID_LIMIT = 1 << 18
"""The longest text that is in an index, in characters."""
COST_LIMIT = 1e12
"""More than lines can cost in earnest. Sums of more could leave the range of a column."""


class Row(NamedTuple):
    id: str | None = None
    parent: str | None = None
    type: str | None = None
    role: str | None = None
    branch: str | None = None
    moment: int = 0
    """Milliseconds since the epoch."""
    said: str | None = ""
    """What it says, folded; `None` where that is too long: one has to look into the line."""


class Gain(NamedTuple):
    """What lines add to what a listing says of their session."""

    told: bool = True
    """Whether the lines tell it; if not, the session has to be opened for its summary."""
    entries: int = 0
    messages: int = 0
    cost: float = 0
    first_message: str | None = None
    named: bool = False
    name: str | None = None
    branches: tuple[str, ...] = ()
    """Branches that were written on."""
    hidden: tuple[str, ...] | None = None
    """The archived ones, where a head record tells; then `branches` are all there are."""
    current: str | None = None
    """The current branch, if the lines say which."""


def storable(name: str | None) -> str | None:
    """A name that a column can hold as it is; `None` for one that it cannot."""
    if name is None or len(name) > NAME_LIMIT or "\0" in name:
        return None
    return name if name.isascii() or clean(name) == name else None


def clean(text: str) -> str:
    """`text` without what a column cannot hold."""
    return encodable(text.replace("\0", "�"))


def rows_of(lines: Sequence[bytes]) -> tuple[list[Row], Gain]:
    """A row for each of these lines, which are entries, and what they add."""
    rows = [Row()] * len(lines)
    entries = list(entries_of(Block(b"\n".join([*lines, b""])).items))
    for entry in entries:
        rows[entry.line - 1] = _row(entry)
    gain = _gain(entries)
    return rows, gain if len(entries) == len(lines) else gain._replace(told=False)


def _row(entry: Entry) -> Row:
    said = clean(fold(full_text(entry)))
    return Row(
        id=storable(entry.id),
        parent=storable(entry.parent),
        type=storable(entry.type),
        role=storable(speaker(entry)),
        branch=storable(entry.branch) if isinstance(entry.branch, str) else None,
        moment=milliseconds(entry.timestamp) or 0,
        said=said if len(said) <= SAID_LIMIT else None,
    )


def _gain(entries: Sequence[Entry]) -> Gain:
    messages, cost, first, named, name = 0, 0.0, None, False, None
    written: dict[str, None] = {}
    current: str | None = None
    record = -1
    told = True
    for index, entry in enumerate(entries):
        body = entry.decoded()
        told = told and body is not UNREADABLE and entry.branch is not UNSET
        cost += sum(sums.cost for usage in usages(body) if (sums := spent(usage)) is not None)
        if isinstance(body, Message):
            messages += 1
            if first is None and role(body.message) == "user":
                first = clean(one_line(text(body.message.get("content")))) or None
        elif isinstance(body, SessionInfo):
            named, name = True, clean((body.name or "").strip(BLANKS)) or None
        elif isinstance(body, Custom) and entry.is_head_record:
            record = index
        if isinstance(entry.branch, str):
            current = entry.branch if entry.current is None else entry.current
            if not entry.is_annotation:
                written[entry.branch] = None
    hidden: tuple[str, ...] | None = None
    if record >= 0:
        heads = Heads()
        heads.replay(entries, Tree(list(entries)))
        written, current, hidden = dict.fromkeys(heads.heads), heads.current, tuple(sorted(heads.archived))
    names = (*written, *(hidden or ()), *([current] if current is not None else []))
    if not abs(cost) <= COST_LIMIT or any(storable(name) is None for name in names):
        return Gain(told=False, entries=len(entries))
    return Gain(
        told=told,
        entries=len(entries),
        messages=messages,
        cost=cost,
        first_message=first,
        named=named,
        name=name,
        branches=tuple(written),
        hidden=hidden,
        current=current,
    )


class Beginning(NamedTuple):
    """The first lines of a session, with its header among them if it has one."""

    lines: int
    """How many lines are no entries: what stands before the header, and the header."""
    header: Header | None
    title: str | None

    @property
    def is_older(self) -> bool:
        """Whether it is in an older dialect, so that its rows tell little."""
        return self.header is not None and self.header.version < VERSION


def beginning_of(lines: Sequence[bytes]) -> Beginning:
    reader = Reader()
    try:
        for number, raw in enumerate(lines, 1):
            reader.feed(raw + b"\n")
            if reader.has_header:
                return Beginning(number, reader.header, reader.title)
    except FormatError:
        pass
    return Beginning(0, None, None)
