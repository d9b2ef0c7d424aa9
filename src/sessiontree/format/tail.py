"""Tail: the context of a leaf, read from the end of a file.

The last lines give the current leaf. From there the path is walked up, backward through the file, to the last
compaction and the entries that it keeps. The result equals that of reading the whole file. If the end of the file is
not enough to know, the result is `None` and the caller must read the whole file.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias

from msgspec import Struct

from sessiontree.core.context import Context, ContextNeeds, build_path_context
from sessiontree.core.entries import HEAD_RECORD, UNREADABLE, Chain, Entry, EntryId, iter_entries
from sessiontree.core.head_rules import get_effect
from sessiontree.core.heads import Heads, find_unreadable, is_activity, is_full_record
from sessiontree.core.tree import Tree
from sessiontree.format.codec import LineSource, MemoryLine, read_entry, read_line, scan_lines
from sessiontree.format.json_line import LINE_LIMIT, NotJson, write_value
from sessiontree.format.session_reader import SessionReader

REPLAY_LIMIT = 4096
"""How many lines are searched for a head record before the whole file is read instead."""


WHOLE_SIZE = 1 << 18
"""A session of up to this many bytes is read as a whole."""

MAX_TAIL_SIZE = 1 << 22
"""How far back a head record is searched for, in bytes. A session without one is read as a whole."""


_ESCAPED_CHARACTER = rb"\\u(?!00[01])"
"""The escaped form of a character that needs none. Nearly all programs escape only control characters."""

MAX_MOVE_SIZE = 1 << 20
"""How far back the head record before the last one is searched for, in bytes."""


class Tail(Struct, frozen=True):
    """The lines at the end of a session that determine its heads, and usually its last move.

    The last full head record is among them, and the one before it if it is near.
    """

    data: bytes
    start: int
    """The offset of the first line."""


def find_tail(blocks: Iterable[tuple[bytes, int]], header_end: int) -> Tail | None:
    """Find the lines that determine the heads of a session of version 3; `None` if all lines are needed.

    `blocks` are whole lines, the last ones first, each with its offset.
    """
    kept: list[bytes] = []
    size = records = 0
    found: Tail | None = None
    for data, start in blocks:
        size += len(data)
        if start < header_end or start + size <= WHOLE_SIZE or size > MAX_TAIL_SIZE:
            break
        kept.append(data)
        new = _count_full_records(data)
        records += new
        if new:
            found = Tail(b"".join(reversed(kept)), start)
        if records > 1 or (records and size > MAX_MOVE_SIZE):
            break
    return found


def _count_full_records(data: bytes) -> int:
    return sum(is_full_record(entry) for entry in _find_lines(data, HEAD_RECORD.encode()))


def find_entry(blocks: Iterable[tuple[bytes, int]], id: EntryId) -> Entry | None:
    """Return the last line with an id; `None` if all lines must be read to know."""
    text = write_value(id)
    for data, _ in blocks:
        for entry in _find_lines(data, text):
            if entry.id == id:
                return None if entry.type in ("session", "title") else entry
    return None


def has_id(blocks: Iterable[tuple[bytes, int]], id: EntryId) -> bool | None:
    """Return whether an entry has an id; `None` if all lines must be read to know.

    Only lines that contain the id are decoded. Other lines could only have it in an escaped form.
    """
    text = write_value(id)
    if not id.isprintable():
        return None
    for data, _ in blocks:
        if re.search(_ESCAPED_CHARACTER, data) or ("/" in id and b"\\/" in data):
            return None
        for raw in _find_raw_lines(data, text):
            try:
                entry = read_line(raw, 1, MemoryLine(raw))
            except NotJson:
                return None
            if entry.id == id:
                return None if entry.type in ("session", "title") or len(raw) > LINE_LIMIT else True
    return False


def _find_lines(data: bytes, text: bytes) -> Iterator[Entry]:
    """Yield the lines that contain `text` and are entries, the last one first."""
    for raw in _find_raw_lines(data, text):
        if len(raw) <= LINE_LIMIT:
            with suppress(NotJson):
                yield read_line(raw, 1, MemoryLine(raw))


def _find_raw_lines(data: bytes, text: bytes) -> Iterator[bytes]:
    """Yield the lines that contain `text`, the last one first."""
    end = len(data)
    while (at := data.rfind(text, 0, end)) >= 0:
        end = data.rfind(b"\n", 0, at) + 1
        yield data[end : data.index(b"\n", at)]


class InsufficientTail(Exception):
    """The end of the file is not enough; the whole file must be read."""


class TailBlock(LineSource):
    """Some lines of a file, and the source of their entries."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offsets = array("Q", [0])
        self.items: list[Entry | Chain] = []
        for line, start, end in scan_lines(data, self._offsets, self, self.items):
            if start == end or end - start > LINE_LIMIT:
                continue
            try:
                self.items.append(read_entry(data[start:end], line, self))
            except NotJson:
                continue  # reported when the whole file is read

    def read_raw(self, line: int) -> bytes:
        return self._data[self._offsets[line - 1] : self._offsets[line] - 1]


class FileTail:
    """Entries from the end of a file backward, read on demand."""

    def __init__(self, blocks: Iterable[tuple[bytes, int]]) -> None:
        self._blocks = iter(blocks)
        self._positions: dict[EntryId, int] = {}
        """The position of each id in `entries`. The last line with an id counts."""
        self.entries: list[Entry] = []
        """The entries read so far, the last line first."""

    def read_more(self) -> bool:
        """Read another block. Return whether there was one. Raises `InsufficientTail`."""
        block = next(self._blocks, None)
        if block is None:
            return False
        data, start = block
        entries = _read_entries(data) if start else list(iter_entries(SessionReader().feed(data)))
        for entry in reversed(entries):
            self._positions.setdefault(entry.id, len(self.entries))
            self.entries.append(entry)
        return True

    def find(self, id: EntryId) -> int | None:
        """Return the position of an id in `entries`; `None` if it is nowhere in the file."""
        while id not in self._positions:
            if not self.read_more():
                return None
        return self._positions[id]

    def iter_backward(self) -> Iterator[Entry]:
        index = 0
        while index < len(self.entries) or self.read_more():
            if index < len(self.entries):
                yield self.entries[index]
                index += 1


def _read_entries(data: bytes) -> list[Entry]:
    """Read the entries of lines that are not the start of the file."""
    items = TailBlock(data).items
    if any(item.type in ("session", "title") for item in items if isinstance(item, Entry)):
        raise InsufficientTail  # a header or a title slot after many unreadable lines: not an entry
    return list(iter_entries(items))


FindAncestors: TypeAlias = Callable[[EntryId, int], list[tuple[int, bytes]] | None]
"""Returns the line with an id and the lines above it, with their offsets, up to a number. See `store.base`."""

PATH_BATCH_SIZES = (64, 4096)
"""How many entries of a path are fetched from an index at first, and at most."""


def read_tail_context(
    blocks: Iterable[tuple[bytes, int]], branch: str | None = None, above: FindAncestors | None = None
) -> Context | None:
    """Return the context of a branch's leaf, by default of the current branch, in a file of version 3.

    `blocks` are whole lines, the last ones first, each with its offset. With `above`, only the
    lines that determine the leaf are read from them, and the path is fetched from an index.
    """
    try:
        tail = FileTail(blocks)
        leaf = _find_leaf(tail, branch)
        return build_path_context(_walk_path(tail, leaf) if above is None else _fetch_path(above, leaf))
    except InsufficientTail:
        return None


def read_tail_heads(blocks: Iterable[tuple[bytes, int]]) -> Heads | None:
    """Return all heads of a file of version 3, from its end; `None` if the whole file is needed.

    A head before the last head record is taken from the record, even if its line cannot be read.
    """
    try:
        return _replay_heads(FileTail(blocks))
    except InsufficientTail:
        return None


def find_last_activity(blocks: Iterable[tuple[bytes, int]]) -> tuple[int, str] | None:
    """Return the number of lines after the last activity, and the time of that activity.

    Return `None` if the end of the file is not enough to know.
    """
    with suppress(InsufficientTail):
        for behind, entry in enumerate(FileTail(blocks).iter_backward()):
            if is_activity(entry):
                return behind, entry.timestamp
            if behind >= REPLAY_LIMIT:
                break
    return None


def _find_leaf(tail: FileTail, branch: str | None) -> EntryId:
    if branch is None:
        last = next(tail.iter_backward(), None)
        if last is not None and not last.is_annotation:
            effect = get_effect(last.branch, last.current, False)
            if effect.moves_head and effect.current == effect.branch:
                return last.id
    heads = _replay_heads(tail)
    leaf = heads.leaf if branch is None else heads.heads.get(branch)
    if leaf is None:
        raise InsufficientTail
    return leaf


def _replay_heads(tail: FileTail) -> Heads:
    """Replay the lines from the last full head record on."""
    since: list[Entry] = []
    for entry in tail.iter_backward():
        since.append(entry)
        if is_full_record(entry):
            break
        if len(since) > REPLAY_LIMIT:
            raise InsufficientTail
    since.reverse()
    if any(not isinstance(entry.branch, str | None) for entry in since):
        raise InsufficientTail  # the branch of a peer's line depends on earlier lines
    tree, heads = Tree(since), Heads()
    heads.replay(since, tree)
    if find_unreadable(heads.heads.values(), tree):
        raise InsufficientTail  # an unreadable line moves no head, so an earlier line counts
    return heads


def _walk_path(tail: FileTail, leaf: EntryId) -> list[Entry]:
    """Return the end of the path to `leaf` that the context needs, oldest first."""
    path: list[Entry] = []
    need = ContextNeeds()
    id: EntryId | None = leaf
    below = -1
    while id is not None and not need.is_met:
        at = tail.find(id)
        if at is None:
            break
        if at <= below:
            raise InsufficientTail  # a parent after its child, as in every cycle
        path.append(tail.entries[at])
        need.visit(tail.entries[at])
        id, below = tail.entries[at].parent, at
    return _finish_path(path)


def _fetch_path(above: FindAncestors, leaf: EntryId) -> list[Entry]:
    """Fetch the same path from an index, in batches that double in size."""
    path: list[Entry] = []
    need = ContextNeeds()
    id: EntryId | None = leaf
    below, count = 1 << 62, PATH_BATCH_SIZES[0]
    while id is not None and not need.is_met:
        found = above(id, count)
        if found is None:
            raise InsufficientTail
        if not found:
            break
        entries = _read_entries(b"".join([raw + b"\n" for _, raw in reversed(found)]))
        if len(entries) != len(found):
            raise InsufficientTail
        for (at, _), entry in zip(found, reversed(entries), strict=True):
            if at >= below:
                raise InsufficientTail
            path.append(entry)
            need.visit(entry)
            id, below = entry.parent, at
            if need.is_met:
                break
        count = min(2 * count, PATH_BATCH_SIZES[1])
    return _finish_path(path)


def _finish_path(path: list[Entry]) -> list[Entry]:
    """Return a path that was walked up in order from its start. Raises `InsufficientTail` if the leaf is unreadable."""
    if not path or path[0].body is UNREADABLE:
        raise InsufficientTail
    path.reverse()
    return path
