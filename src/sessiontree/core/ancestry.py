"""Ancestry: fast ancestor tests for many entries of one tree.

One walk numbers all entries. Every later test takes constant time. Build a new index when the tree grows. For a single
path use `Tree.walk_up`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from sessiontree.core.entries import EntryId
from sessiontree.core.tree import Tree


class AncestryIndex:
    def __init__(self, tree: Tree) -> None:
        self._firsts: dict[EntryId, int] = {}
        """The number of each entry in the walk."""
        self._lasts: dict[EntryId, int] = {}
        """The number of the last entry below each entry, or its own number."""
        waiting: list[tuple[EntryId, int]] = []
        for number, (id, depth) in enumerate(tree.walk_ids()):
            self._firsts[id] = number
            while waiting and waiting[-1][1] >= depth:
                self._lasts[waiting.pop()[0]] = number - 1
            waiting.append((id, depth))
        for id, _ in waiting:
            self._lasts[id] = len(self._firsts) - 1

    def is_on_path(self, id: EntryId, leaf: EntryId | None) -> bool:
        """Return whether `id` is on the path to `leaf`, which must be in the tree."""
        return leaf is not None and id in self._firsts and self._firsts[id] <= self._firsts[leaf] <= self._lasts[id]

    def sort_positions(self, ids: Iterable[EntryId]) -> list[int]:
        """Return sorted positions for `has_any_below`."""
        return sorted(self._firsts[id] for id in ids)

    def has_any_below(self, id: EntryId, others: list[int]) -> bool:
        """Return whether `id` or an entry below it is among the positions `others`."""
        at = bisect_left(others, self._firsts[id])
        return at < len(others) and others[at] <= self._lasts[id]
