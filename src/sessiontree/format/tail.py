"""The tail: the context of the current leaf, read from the end of a file and no further than it takes.

The last lines say where the current leaf is; from there the path is walked up, backward through
the file, to the last compaction and what it keeps. What comes out is what the whole file would
give; where that cannot be told from the end, the answer is `None` and the whole file must be read. What the lines mean
for the heads is not here: see `core.heads`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias

from sessiontree.core.context import Context, Need, context_of
from sessiontree.core.entries import UNREADABLE, Chain, Entry, EntryId, entries_of
from sessiontree.core.heads import Heads, is_activity, tells_all, unreadable_among
from sessiontree.core.tree import Tree
from sessiontree.format.codec import LINE_LIMIT, NotJson, Reading, read_entry, scan
from sessiontree.format.jsonl import Reader

REPLAY_LIMIT = 4096
"""So many lines are looked at for a head record before the whole file is read instead."""


class Unclear(Exception):
    """Only the whole file can tell."""


class Block(Reading):
    """Some lines of a file, and the source of their entries."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offsets = array("Q", [0])
        self.items: list[Entry | Chain] = []
        for line, start, end in scan(data, self._offsets, self, self.items):
            if start == end or end - start > LINE_LIMIT:
                continue
            try:
                self.items.append(read_entry(data[start:end], line, self))
            except NotJson:
                continue  # reported when the whole file is read

    def raw(self, line: int) -> bytes:
        return self._data[self._offsets[line - 1] : self._offsets[line] - 1]


class Tail:
    """Entries from the end of a file backward, taken in as they are needed."""

    def __init__(self, blocks: Iterable[tuple[bytes, bool]]) -> None:
        self._blocks = iter(blocks)
        self._found: dict[EntryId, int] = {}
        """Where in `read` an id stands; of several lines with one id the last in the file counts."""
        self.read: list[Entry] = []
        """What was taken in so far, the last line first."""

    def more(self) -> bool:
        """Take in another block; says whether there was one. Raises `Unclear`."""
        block = next(self._blocks, None)
        if block is None:
            return False
        data, is_first = block
        entries = list(entries_of(Reader().feed(data))) if is_first else _entries(data)
        for entry in reversed(entries):
            self._found.setdefault(entry.id, len(self.read))
            self.read.append(entry)
        return True

    def find(self, id: EntryId) -> int | None:
        """Where in `read` the entry with this id stands; `None` when the whole file has none."""
        while id not in self._found:
            if not self.more():
                return None
        return self._found[id]

    def backward(self) -> Iterator[Entry]:
        index = 0
        while index < len(self.read) or self.more():
            if index < len(self.read):
                yield self.read[index]
                index += 1


def _entries(data: bytes) -> list[Entry]:
    """The entries of some lines that are not the beginning of the file."""
    items = Block(data).items
    if any(item.type in ("session", "title") for item in items if isinstance(item, Entry)):
        raise Unclear  # a header, or a title before it, where much else stands first: those are no entries
    return list(entries_of(items))


Above: TypeAlias = Callable[[EntryId, int], list[tuple[int, bytes]] | None]
"""The line with an id and those above it, so many at most, each with where it stands: see `store.base.Indexed`."""

STEPS = (64, 4096)
"""So many entries of a path are asked for at first, and at most, where they are found by an index."""


def tail_context(
    blocks: Iterable[tuple[bytes, bool]], branch: str | None = None, above: Above | None = None
) -> Context | None:
    """The context of a branch's leaf, by default the current one, of a file of version 3.

    `blocks` are whole lines, the last ones first, each with whether it is the beginning of the file. With `above` only
    the lines that say where the leaf is are taken from them, and the path is found by an index.
    """
    try:
        tail = Tail(blocks)
        leaf = _leaf(tail, branch)
        return context_of(_path(tail, leaf) if above is None else _found_path(above, leaf))
    except Unclear:
        return None


def tail_heads(blocks: Iterable[tuple[bytes, bool]]) -> Heads | None:
    """All heads of a file of version 3, by its end; `None` where only the whole file can tell.

    A head that stands before the last head record is where the record says, whether or not that line can be read.
    """
    try:
        return _heads(Tail(blocks))
    except Unclear:
        return None


def last_activity(blocks: Iterable[tuple[bytes, bool]]) -> tuple[int, str] | None:
    """How many lines stand behind the last one in which somebody went on, and the time of that one.

    `None` where the end of the file does not tell.
    """
    with suppress(Unclear):
        for behind, entry in enumerate(Tail(blocks).backward()):
            if is_activity(entry):
                return behind, entry.timestamp
            if behind >= REPLAY_LIMIT:
                break
    return None


def _leaf(tail: Tail, branch: str | None) -> EntryId:
    if branch is None:
        last = next(tail.backward(), None)
        # A peer's line is where the peer was, and one of ours without `current` is on the current branch.
        if last is not None and not last.is_annotation and last.branch is not None and last.current is None:
            return last.id
    heads = _heads(tail)
    leaf = heads.leaf if branch is None else heads.heads.get(branch)
    if leaf is None:
        raise Unclear
    return leaf


def _heads(tail: Tail) -> Heads:
    """All heads, by the last head record that tells them all, and the lines behind it."""
    since: list[Entry] = []
    for entry in tail.backward():
        since.append(entry)
        if tells_all(entry):
            break
        if len(since) > REPLAY_LIMIT:
            raise Unclear
    since.reverse()
    if any(not isinstance(entry.branch, str | None) for entry in since):
        raise Unclear  # peers' lines hang from places that only the whole file can tell
    tree, heads = Tree(since), Heads()
    heads.replay(since, tree)
    if unreadable_among(heads.heads.values(), tree):
        raise Unclear  # such a line moves nobody, so one before it counts
    return heads


def _path(tail: Tail, leaf: EntryId) -> list[Entry]:
    """The end of the path to `leaf`, as much of it as the context needs, oldest first."""
    path: list[Entry] = []
    need = Need()
    id: EntryId | None = leaf
    below = -1
    while id is not None and not need.nothing:
        at = tail.find(id)
        if at is None:
            break
        if at <= below:
            raise Unclear  # a parent that stands behind its child, as in every cycle
        path.append(tail.read[at])
        need.seen(tail.read[at])
        id, below = tail.read[at].parent, at
    return _from_readable(path)


def _found_path(above: Above, leaf: EntryId) -> list[Entry]:
    """The same by an index: some entries at a time, twice as many each time, so a long path is not asked for often."""
    path: list[Entry] = []
    need = Need()
    id: EntryId | None = leaf
    below, count = 1 << 62, STEPS[0]
    while id is not None and not need.nothing:
        found = above(id, count)
        if found is None:
            raise Unclear
        if not found:
            break
        entries = _entries(b"".join([raw + b"\n" for _, raw in reversed(found)]))
        if len(entries) != len(found):
            raise Unclear
        for (at, _), entry in zip(found, reversed(entries), strict=True):
            if at >= below:
                raise Unclear
            path.append(entry)
            need.seen(entry)
            id, below = entry.parent, at
            if need.nothing:
                break
        count = min(2 * count, STEPS[1])
    return _from_readable(path)


def _from_readable(path: list[Entry]) -> list[Entry]:
    """A path that was walked up, from its beginning to its leaf, if there is a leaf that can be read."""
    if not path or path[0].body is UNREADABLE:
        raise Unclear
    path.reverse()
    return path
