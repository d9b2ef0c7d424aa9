"""Snapshots: a session at one moment, as the forms of an export look at it. Pure: lines in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from sessiontree.core.entries import Entry, EntryId, Header, Problem
from sessiontree.core.entry_text import CallFinder, CallLookup
from sessiontree.core.heads import Heads, SkippedEntries, skip_unreadable
from sessiontree.core.problems import find_problems
from sessiontree.core.tree import Tree
from sessiontree.format.session_reader import SessionReader


class Snapshot(Struct, frozen=True, kw_only=True):
    """A whole session in memory."""

    reader: SessionReader
    header: Header
    header_line: bytes
    name: str | None
    tree: Tree
    heads: Heads
    problems: tuple[Problem, ...]
    calls: CallFinder
    """The call that each tool result answers."""

    @property
    def lines(self) -> list[bytes]:
        """As version 3 has them, the header among them."""
        return self.reader.read_all_lines()

    @property
    def leaf(self) -> EntryId | None:
        """The head of the current branch, unless damage took it away."""
        return self.heads.leaf if self.heads.leaf in self.tree else None

    def get_path(self) -> list[Entry]:
        """The active path, annotations at its end left out."""
        return self.tree.path(self.leaf)

    def get_branch_names(self) -> dict[EntryId, list[str]]:
        """The branches whose head an entry is, by the entry; archived ones are left out."""
        names: dict[EntryId, list[str]] = {}
        for name, head in self.heads.heads.items():
            if head in self.tree and name not in self.heads.archived:
                assert head is not None
                names.setdefault(head, []).append(name)
        return names


BATCH_SIZE = 1 << 20
"""Bytes of lines that are read together."""


def _join_batches(lines: Iterable[bytes]) -> Iterator[bytes]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line) + 1
        if size >= BATCH_SIZE:
            yield b"\n".join((*batch, b""))
            batch.clear()
            size = 0
    if batch:
        yield b"\n".join((*batch, b""))


def read_snapshot(lines: Iterable[bytes]) -> Snapshot:
    """The session that `lines` are, of any version. Raises `FormatError`."""
    reader = SessionReader()
    tree, heads = Tree(), Heads()
    for several in _join_batches(lines):
        tree.extend(reader.feed(several))
    heads.replay(tree.items, tree)
    heads = skip_unreadable(heads, tree, SkippedEntries())
    return Snapshot(
        reader=reader,
        header=reader.header,
        header_line=reader.build_header_line(),
        name=tree.name if tree.has_been_named else (reader.title or None),
        tree=tree,
        heads=heads,
        problems=(*reader.problems, *find_problems(tree, heads)),
        calls=CallLookup(tree),
    )
