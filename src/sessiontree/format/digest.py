"""Digest: the facts that a listing shows, from one pass over the lines of a session.

Lines are decoded only as far as needed, many at once, and none is kept. A pass can continue where an earlier one
stopped. A `Digest` is valid only for sound files: every line is an entry, every parent and anchor is an earlier line,
every head exists. At the first fault it raises `UnsoundSession`, and the caller must open the session instead.

Three faults are not detected here. Invalid UTF-8 in strings that a listing does not show: the caller checks for it.
Deep nesting that is not obvious, and head keys after a message: `doctor` reports these, because a check of all lines
would take half as long as decoding them. Heads follow `core.head_rules`; `EntryTotals` counts
the same from decoded entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, pairwise, repeat
from operator import lt
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from sessiontree.core.entries import (
    HEAD_RECORD,
    NO_ID,
    Body,
    Entry,
    Header,
    JsonObject,
    Message,
    SessionInfo,
    is_annotation,
    parse_entry_id,
)
from sessiontree.core.foreign_markup import shorten_user_text
from sessiontree.core.head_rules import choose_peer_branch, get_effect, parse_head_record
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import (
    coerce_string,
    extract_text,
    get_model,
    get_role,
    is_object,
    list_usages,
    sum_usage,
)
from sessiontree.core.sanitize import replace_unencodable
from sessiontree.core.tree import NAME_WHITESPACE
from sessiontree.format.codec import ANCHOR, PARENT, VERSION
from sessiontree.format.json_line import DECODE_ERRORS, NotJson, read_object, write_value
from sessiontree.format.nesting import is_too_deep, looks_deep
from sessiontree.format.session_reader import SessionReader

_NO_ENTRY = 1 << 62
_NEAR_STEPS = 64
"""How far up an ancestor is searched step by step."""
_COST_ROLES = frozenset(("assistant", "toolResult"))


class _Cost(Struct, gc=False):
    total: float = 0


class _Usage(Struct, gc=False):
    cost: _Cost | float = 0


class _Message(Struct, gc=False):
    role: str = ""
    usage: _Usage | None = None
    content: Raw = Raw()


class _Line(Struct, gc=False):
    """The fields that a listing needs. The rest of the line is only checked to be valid JSON."""

    type: str
    id: str
    parent: str | None = field(name=PARENT, default=None)
    branch: str | UnsetType | None = UNSET
    current: str | None = None
    custom_type: str | None = field(name="customType", default=None)
    message: _Message | None = None
    usage: _Usage | None = None
    anchor: str | None = field(name=ANCHOR, default=None)
    name: Any = None
    branch_name: str | None = field(name="branchName", default=None)
    data: Raw = Raw()


class _CountedMessage(Struct, gc=False):
    """The fields of a message that `EntryTotals` counts."""

    role: Any = None
    provider: Any = None
    model: Any = None
    usage: Any = None


class _CountedLine(Struct, gc=False):
    message: _CountedMessage


_line_decoder = msgspec.json.Decoder(_Line)
_counted_decoder = msgspec.json.Decoder(_CountedLine)


class UnsoundSession(Exception):
    """The file has a fault, or something else that only opening the session can handle."""


class SessionTotals(Struct, kw_only=True):
    """The facts counted so far, without the ids."""

    id: str
    created: str
    cwd: str
    parent_session: str | None
    title: str | None
    named: bool = False
    name: str | None = None
    first_message: str | None = None
    messages: int = 0
    entries: int = 0
    cost: float = 0
    heads: dict[str, str | None] = field(default_factory=lambda: {MAIN: None})
    current: str = MAIN
    line_branch: str | None = MAIN
    archived: list[str] = []

    @property
    def session_name(self) -> str | None:
        return self.name if self.named else self.title

    @property
    def branch_count(self) -> int:
        """The number of branches that are not archived."""
        return len(self.heads.keys() - self.archived)


class EntryTotals:
    """Counts decoded entries one at a time: messages, tokens, cost, models, and the facts that a listing shows.

    A property test compares it with `Digest`.
    """

    def __init__(self) -> None:
        self.entries = 0
        self.messages = 0
        self.tokens = 0.0
        self.cost = 0.0
        """In US dollars."""
        self.first_message: str | None = None
        """The user's first message with text, on one line."""
        self.is_named = False
        """Whether an entry sets or clears the name of the session."""
        self.name: str | None = None
        self.models: dict[str, None] = {}
        """The models that wrote messages, as `provider:model`, in order of their first message."""

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> Body:
        """Count one entry and return its body, which is not cached."""
        body = entry.decode()
        self._count(body)
        return body

    def add_line(self, entry: Entry, raw: bytes) -> None:
        """Count one entry from its line. The text of a message is decoded only until the first one of the user."""
        if entry.type == "message" and self.first_message is not None and not is_too_deep(raw):
            try:
                message = _counted_decoder.decode(raw).message
            except DECODE_ERRORS:
                pass
            else:
                self._count(Message(msgspec.structs.asdict(message)))
                return
        self._count(entry.source.decode_body(raw) if entry.cached_body is None else entry.cached_body)

    def _count(self, body: Body) -> None:
        self.entries += 1
        for usage in map(sum_usage, list_usages(body)):
            if usage is not None:
                self.tokens += usage.tokens
                self.cost += usage.cost
        match body:
            case Message(message):
                self.messages += 1
                if self.first_message is None and get_role(message) == "user":
                    self.first_message = shorten_user_text(extract_text(message.get("content"))) or None
                model = get_model(message)
                if model is not None and model != ("unknown", "unknown"):
                    self.models[":".join(model)] = None
            case SessionInfo(name):
                self.is_named, self.name = True, (name or "").strip(NAME_WHITESPACE) or None
            case _:
                pass


class _Ancestors:
    """Ancestor tests by entry number, in few steps at any distance."""

    def __init__(self, parents: list[int]) -> None:
        self._parents = parents
        self._depths: list[int] = []
        self._jumps: list[int] = []
        """An ancestor of each entry, chosen to make every walk up short. Built on demand."""

    def contains(self, above: int, number: int) -> bool:
        """Return whether `above` is `number` or one of its ancestors."""
        for _ in range(_NEAR_STEPS):  # enough in nearly all cases
            if number <= above:
                return number == above
            number = self._parents[number]
        self._build_jumps()
        while number > above:
            jump = self._jumps[number]
            number = jump if jump >= above else self._parents[number]
        return number == above

    def _build_jumps(self) -> None:
        depths, jumps = self._depths, self._jumps
        for number in range(len(jumps), len(self._parents)):
            parent = self._parents[number]
            if parent < 0:
                depths.append(0)
                jumps.append(-1)
                continue
            # If the next two jumps from the parent have the same length, combine them into one.
            depth, far = depths[parent], jumps[parent]
            farther = jumps[far] if far >= 0 else -1
            over = depths[far] if far >= 0 else -1
            beyond = depths[farther] if farther >= 0 else -1
            depths.append(depth + 1)
            jumps.append(farther if depth - over == over - beyond else parent)


class EntryLinks(NamedTuple):
    """The links between entries that a later digest needs to continue."""

    ids: list[str]
    parents: list[int]
    """The number of each entry's parent; -1 for a root."""
    annotations: list[int]
    """The numbers of annotations."""


class Digest:
    def __init__(self, totals: SessionTotals, entries: Iterable[EntryLinks] = ()) -> None:
        self.totals = totals
        self._ids: list[str] = []
        self._parents: list[int] = []
        self._ancestors = _Ancestors(self._parents)
        self._annotations: dict[int, int] = {}
        """The number of each annotation, and of the nearest entry above that is not an annotation."""
        for links in entries:
            self._ids += links.ids
            self._parents += links.parents
            for number in links.annotations:
                self._annotate(number)
        self._numbers: dict[str | None, int] = {None: -1, **dict(zip(self._ids, count()))}
        if not len(self._numbers) - 1 == len(self._parents) == totals.entries:
            raise ValueError("ids, parents and totals do not match")

    def get_links_since(self, entry: int) -> EntryLinks:
        """Return the links of the entries from number `entry` on."""
        annotations = sorted(number for number in self._annotations if number >= entry)
        return EntryLinks(self._ids[entry:], self._parents[entry:], annotations)

    def find_branches(self, ids: Iterable[str]) -> dict[str, str | None]:
        """Return a branch that contains each of these entries, preferably the current one. Unknown ids are left out."""
        totals = self.totals
        wanted = {self._numbers[id]: id for id in ids if id in self._numbers}
        found: dict[str, str | None] = dict.fromkeys(wanted.values())
        first, passed, hidden = min(wanted, default=0), set[int](), set(totals.archived)
        for name in sorted(totals.heads, key=lambda name: (name != totals.current, name in hidden)):
            number = self._numbers[totals.heads[name]]
            while number >= first and number not in passed:  # a parent's number is lower than its child's
                passed.add(number)
                if number in wanted:
                    found[wanted[number]] = name
                number = self._parents[number]
        return found

    def feed(self, data: bytes) -> None:
        """Read whole lines. Raises `UnsoundSession`."""
        if looks_deep(data):
            _check_nesting(data)
        try:
            lines = _decode_lines(data)
        except RecursionError:
            _check_nesting(data)
            raise  # the caller used up the stack
        self._link_lines(lines)
        self._count_lines(lines)
        self._replay(lines)

    def _link_lines(self, lines: Sequence[_Line]) -> None:
        """Record ids and parents in bulk: a loop over the lines would take longer than decoding them."""
        first, numbers = len(self._parents), range(len(self._parents), len(self._parents) + len(lines))
        new, parents = [line.id for line in lines], [line.parent for line in lines]
        self._ids += new
        self._numbers.update(zip(new, numbers, strict=True))
        if parents[1:] == new[:-1]:  # one chain, the common case
            above = [self._numbers.get(parent, _NO_ENTRY) for parent in parents[:1]] + list(numbers[:-1])
        else:
            above = list(map(self._numbers.get, parents, repeat(_NO_ENTRY)))
        if len(self._numbers) - 1 != first + len(lines) or not all(map(lt, above, numbers)):
            raise UnsoundSession  # a duplicate id, or a parent that is missing or comes later
        self._parents.extend(above)
        self.totals.entries = len(self._parents)

    def _count_lines(self, lines: Sequence[_Line]) -> None:
        totals = self.totals
        held = [line.message for line in lines if line.type == "message"]
        messages = list(filter(None, held))
        if len(messages) < len(held):
            raise UnsoundSession  # a message line without a message
        totals.messages += len(messages)
        if totals.first_message is None:
            texts = (_get_first_line(message) for message in messages if message.role == "user")
            totals.first_message = next(filter(None, texts), None)
        costs = [
            message.usage.cost for message in messages if message.usage is not None and message.role in _COST_ROLES
        ]
        totals.cost = sum([cost.total if isinstance(cost, _Cost) else cost for cost in costs], totals.cost)

    def _replay(self, lines: Sequence[_Line]) -> None:
        """Apply the lines to the heads, and count the facts that only some lines hold."""
        before, last = len(self._parents) - len(lines), len(lines) - 1
        branches = [line.branch for line in lines]
        if branches.count(UNSET) == len(lines):  # a peer wrote them
            others = [at for at, line in enumerate(lines) if line.type != "message"]
        else:
            others = [
                at
                for at, (line, after) in enumerate(pairwise(lines))
                if line.type != "message" or line.branch != after.branch or line.current != after.current
            ]
        # For consecutive messages on one branch, which nearly all lines are, only the last one matters.
        applied = -1
        for at in (*others, last):
            if at - applied > 1:
                self._move_heads(lines[at - 1], before + at - 1)
            if at > applied:
                self._apply_line(lines[at], before + at)
            applied = at

    def _apply_line(self, line: _Line, number: int) -> None:
        """Apply a line that is not just another message of a peer."""
        if line.type == "compaction":
            self._check_anchor(line.anchor, number)
        if line.type in ("compaction", "branch_summary", "usage", "model_usage") and line.usage is not None:
            self.totals.cost += _get_cost(line.usage)
        elif line.type == "session_info":
            self.totals.named = True
            self.totals.name = replace_unencodable(coerce_string(line.name).strip(NAME_WHITESPACE)) or None
        if is_annotation(line.type, line.custom_type):
            self._annotate(number)
        self._move_heads(line, number)

    def _annotate(self, number: int) -> None:
        parent = self._parents[number]
        self._annotations[number] = self._annotations.get(parent, parent)

    def check_heads(self) -> None:
        """Raise `UnsoundSession` if a head is missing."""
        if any(head not in self._numbers for head in self.totals.heads.values()):
            raise UnsoundSession

    def _check_anchor(self, anchor: str | None, number: int) -> None:
        """Raise `UnsoundSession` if a compaction keeps an entry that is not on its path."""
        if anchor is not None and not self._ancestors.contains(self._numbers.get(anchor, _NO_ENTRY), number):
            raise UnsoundSession

    def _move_heads(self, line: _Line, number: int) -> None:
        totals = self.totals
        if line.type == "custom" and line.custom_type == HEAD_RECORD:
            self._apply_record(line)
            return
        is_annotation = number in self._annotations
        if line.branch is UNSET:
            point = line.branch_name or "" if line.type == "branch_point" else None
            peer_branch = choose_peer_branch(totals.line_branch, totals.heads, totals.current, point)
            effect = get_effect(UNSET, None, is_annotation, peer_branch)
        else:
            effect = get_effect(line.branch, line.current, is_annotation)
        if effect.branch is not None and effect.moves_head:
            head = self._annotations.get(number, number)
            totals.heads[effect.branch] = None if head < 0 else self._ids[head]
        totals.line_branch = effect.branch
        if effect.current is not None and effect.current in totals.heads:
            totals.current = effect.current

    def _apply_record(self, line: _Line) -> None:
        value = _decode_value(line.data) if line.data else None
        record = parse_head_record(value if is_object(value) else {})
        if record.heads is None or record.current is None or not record.is_full:
            raise UnsoundSession
        if not all(
            _is_id(name) and head != NO_ID and (head is None or _is_id(head)) for name, head in record.heads.items()
        ):
            raise UnsoundSession
        hidden = set(record.archived)
        totals = self.totals
        totals.heads = record.heads
        totals.current = totals.line_branch = record.current
        totals.archived = [name for name in totals.heads if name in hidden]


def start_digest(reader: SessionReader) -> Digest:
    """Start a digest of the session whose header `reader` has read. Raises `UnsoundSession` and `FormatError`."""
    header: Header = reader.header
    if header.version < VERSION or any(problem.severity == "fault" for problem in reader.problems):
        raise UnsoundSession
    return Digest(
        SessionTotals(
            id=replace_unencodable(header.id),
            created=replace_unencodable(header.timestamp),
            cwd=replace_unencodable(header.cwd),
            parent_session=replace_unencodable(header.parent_session),
            title=replace_unencodable(reader.title or "") or None,
        )
    )


def _get_first_line(message: _Message) -> str | None:
    """Return the text of a message on one line."""
    if not message.content:
        return None
    return replace_unencodable(shorten_user_text(extract_text(_decode_value(message.content)))) or None


def _decode_value(raw: Raw) -> Any:
    return _decode_object(b'{"":%b}' % bytes(raw))[""]


def _check_nesting(data: bytes) -> None:
    if any(map(is_too_deep, data.split(b"\n"))):
        raise UnsoundSession


def _decode_object(raw: bytes) -> JsonObject:
    try:
        return read_object(raw)
    except NotJson:
        raise UnsoundSession from None


def _get_cost(usage: _Usage) -> float:
    return usage.cost.total if isinstance(usage.cost, _Cost) else usage.cost


def _decode_lines(data: bytes) -> Sequence[_Line]:
    try:
        lines = _line_decoder.decode_lines(data)
        if _is_one_value_per_line(data, len(lines)):
            return lines
    except DECODE_ERRORS:
        pass
    return [_decode_line(raw) for raw in data.split(b"\n") if raw.strip()]


def _is_one_value_per_line(data: bytes, values: int) -> bool:
    """Return whether each line holds exactly one value. The decoder treats a newline like any other white space.

    A newline between `}` and `{` is never inside a value, where a comma would be. This is much faster than
    `bytes.count`.
    """
    find, last, newlines = data.find, len(data) - 1, 0
    at = find(b"\n")
    while 0 <= at < last:
        if data[at - 1 : at + 2] != b"}\n{":
            return False
        newlines += 1
        at = find(b"\n", at + 1)
    return newlines + 1 == values


def _decode_line(raw: bytes) -> _Line:
    """Decode a line with unexpected values. Values of a wrong type count as missing."""
    try:
        return _line_decoder.decode(raw)
    except DECODE_ERRORS:
        pass
    wire = _decode_object(raw)
    message, usage = wire.get("message"), _parse_usage(wire.get("usage"))
    if not isinstance(wire.get("type"), str) or not _is_id(wire.get("id")):
        raise UnsoundSession
    branch = wire.get("branch", UNSET)
    line = _Line(
        type=wire["type"],
        id=wire["id"],
        parent=parse_entry_id(wire.get(PARENT)),
        branch=branch if branch is None or isinstance(branch, str) else UNSET,
        current=_parse_optional_text(wire.get("current")),
        custom_type=_parse_optional_text(wire.get("customType")),
        usage=usage,
        anchor=parse_entry_id(wire.get(ANCHOR)),
        name=wire.get("name"),
        branch_name=_parse_optional_text(wire.get("branchName")),
        data=Raw(write_value(wire["data"])) if "data" in wire else Raw(),
    )
    if is_object(message):
        content = Raw(write_value(message["content"])) if "content" in message else Raw()
        line.message = _Message(coerce_string(message.get("role")), _parse_usage(message.get("usage")), content)
    names = (line.branch, line.current, line.branch_name, line.anchor, line.parent)
    if not all(_is_id(name) for name in names if isinstance(name, str)):
        raise UnsoundSession
    return line


def _is_id(value: object) -> bool:
    """Return whether `value` is a string that can be stored."""
    return isinstance(value, str) and (value.isascii() or value == replace_unencodable(value))


def _parse_optional_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _parse_usage(value: object) -> _Usage | None:
    sums = sum_usage(value)
    return None if sums is None else _Usage(float(sums.cost))
