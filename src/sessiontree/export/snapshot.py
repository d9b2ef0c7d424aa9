"""Snapshots: a session at one moment, as the forms of an export look at it. Pure: lines in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from sessiontree.core.entries import Entry, EntryId, Header, Problem
from sessiontree.core.heads import Heads, Passed, leave_unreadable
from sessiontree.core.outline import Calls, CallsOfResults
from sessiontree.core.problems import find_problems
from sessiontree.core.tree import Tree
from sessiontree.format.jsonl import Reader


class Snapshot(Struct, frozen=True, kw_only=True):
    """A whole session in memory."""

    reader: Reader
    header: Header
    header_line: bytes
    name: str | None
    tree: Tree
    heads: Heads
    problems: tuple[Problem, ...]
    calls: CallsOfResults
    """The call that each tool result answers."""

    @property
    def lines(self) -> list[bytes]:
        """As version 3 has them, the header among them."""
        return self.reader.all_lines()

    @property
    def leaf(self) -> EntryId | None:
        """The head of the current branch, unless damage took it away."""
        return self.heads.leaf if self.heads.leaf in self.tree else None

    def path(self) -> list[Entry]:
        """The active path, annotations at its end left out."""
        return self.tree.path(self.leaf)

    def branch_names(self) -> dict[EntryId, list[str]]:
        """The branches whose head an entry is, by the entry; archived ones are left out."""
        names: dict[EntryId, list[str]] = {}
        for name, head in self.heads.heads.items():
            if head in self.tree and name not in self.heads.archived:
                assert head is not None
                names.setdefault(head, []).append(name)
        return names


BATCH = 1 << 20
"""Bytes of lines that are read together."""


def _batches(lines: Iterable[bytes]) -> Iterator[bytes]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line) + 1
        if size >= BATCH:
            yield b"\n".join((*batch, b""))
            batch.clear()
            size = 0
    if batch:
        yield b"\n".join((*batch, b""))


def read_snapshot(lines: Iterable[bytes]) -> Snapshot:
    """The session that `lines` are, of any version. Raises `FormatError`."""
    reader = Reader()
    tree, heads = Tree(), Heads()
    for several in _batches(lines):
        tree.extend(reader.feed(several))
    heads.replay(tree.items, tree)
    heads = leave_unreadable(heads, tree, Passed())
    return Snapshot(
        reader=reader,
        header=reader.header,
        header_line=reader.header_line(),
        name=tree.name if tree.named else (reader.title or None),
        tree=tree,
        heads=heads,
        problems=(*reader.problems, *find_problems(tree, heads)),
        calls=Calls(tree),
    )
