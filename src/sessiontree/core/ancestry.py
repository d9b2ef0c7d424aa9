"""Ancestry: fast tests of which entries are above others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable

from sessiontree.core.entries import EntryId
from sessiontree.core.tree import Tree


class AncestryIndex:
    """Fast ancestor tests for many entries of one tree; for a single path use `Tree.walk_up`.

    One walk numbers the entries. Every later test takes constant time. Build a new index when the tree grows.
    """

    def __init__(self, tree: Tree, ids: Collection[EntryId] | None = None) -> None:
        """With `ids`, only these entries can be tested, and the index is as small as they are few."""
        self._firsts: dict[EntryId, int] = {}
        """The number of each entry in the walk."""
        self._lasts: dict[EntryId, int] = {}
        """The number of the last entry below each entry, or its own number."""
        wanted = None if ids is None else frozenset(ids)
        waiting: list[tuple[EntryId, int]] = []
        number = 0
        for span in tree.walk_spans() if wanted is None or wanted else ():
            while waiting and waiting[-1][1] >= span.depth:
                self._lasts[waiting.pop()[0]] = number - 1
            span_ids = span.ids
            if wanted is None or not wanted.isdisjoint(span_ids):
                for offset, id in enumerate(span_ids):
                    if wanted is None or id in wanted:
                        self._firsts[id] = number + offset
                        waiting.append((id, span.depth + offset))
            number += len(span_ids)
        for id, _ in waiting:
            self._lasts[id] = number - 1

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
