"""Reads a session into a snapshot, the input of all export formats. Pure."""

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
    """The tool call that each tool result answers."""

    @property
    def lines(self) -> list[bytes]:
        """All lines in format version 3, including the header."""
        return self.reader.read_all_lines()

    @property
    def leaf(self) -> EntryId | None:
        """The head of the current branch, or `None` if it is missing from a damaged file."""
        return self.heads.leaf if self.heads.leaf in self.tree else None

    def get_path(self) -> list[Entry]:
        """Return the active path without trailing annotations."""
        return self.tree.path(self.leaf)

    def get_branch_names(self) -> dict[EntryId, list[str]]:
        """Return the names of the branches by head. Archived branches are omitted."""
        names: dict[EntryId, list[str]] = {}
        for name, head in self.heads.heads.items():
            if head in self.tree and name not in self.heads.archived:
                assert head is not None
                names.setdefault(head, []).append(name)
        return names


BATCH_SIZE = 1 << 20
"""Bytes of lines that are parsed together."""


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
    """Read a session of any version from its lines. Raises `FormatError`."""
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
