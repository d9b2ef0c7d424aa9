"""Folded rows of an outline, and the mapping between rows and visible lines.

The descendants of a row follow it directly, so a fold hides one contiguous range. All lookups are binary searches.
"""

from __future__ import annotations

from bisect import bisect_right

from sessiontree.core.outline import Outline


class TreeFolds:
    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._folded: set[int] = set()
        self._starts: list[int] = []
        """First hidden row of each outermost fold."""
        self._ends: list[int] = []
        self._lines: list[int] = []
        """Visible line after each outermost fold."""

    def __len__(self) -> int:
        """Number of visible lines."""
        return len(self._outline) - self._count_hidden(len(self._starts))

    def __contains__(self, row: int) -> bool:
        return row in self._folded

    def get_row(self, line: int) -> int:
        """Return the row on a visible line."""
        return line + self._count_hidden(bisect_right(self._lines, line))

    def get_line(self, row: int) -> int:
        """Return the visible line of a row, or of the fold that hides it."""
        at = bisect_right(self._starts, row)
        if at and row < self._ends[at - 1]:
            return self._lines[at - 1] - 1
        return row - self._count_hidden(at)

    def fold(self, row: int) -> bool:
        """Hide the descendants of a row. Return whether there was anything to fold."""
        if row in self._folded or not self._outline.get_foldable(row):
            return False
        self._folded.add(row)
        self._rebuild_ranges()
        return True

    def unfold(self, row: int) -> bool:
        """Show the descendants of a row. Nested folds stay folded. Return whether the row was folded."""
        if row not in self._folded:
            return False
        self._folded.remove(row)
        self._rebuild_ranges()
        return True

    def copy_folds(self, older: TreeFolds, outline: Outline) -> None:
        """Copy the folds from an older outline of the same tree."""
        rows = [(outline.get_id(row), self._outline.find_row(outline.get_id(row))) for row in older._folded]
        self._folded = {row for id, row in rows if row is not None and self._outline.get_id(row) == id}
        self._rebuild_ranges()

    def _rebuild_ranges(self) -> None:
        self._starts, self._ends, self._lines = [], [], []
        for row in sorted(self._folded):
            below = self._outline.get_foldable(row)
            if not self._ends or below.start >= self._ends[-1]:
                self._lines.append(below.start - self._count_hidden(len(self._starts)))
                self._starts.append(below.start)
                self._ends.append(below.stop)

    def _count_hidden(self, folds: int) -> int:
        """Return how many rows the first `folds` folds hide."""
        return self._ends[folds - 1] - self._lines[folds - 1] if folds else 0
