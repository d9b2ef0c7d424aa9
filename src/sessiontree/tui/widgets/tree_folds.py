"""Folds: which rows of an outline are folded away, and on which line of the screen each of the others stands.

Pure, and quick for any size: what is below a row stands right behind it, so a fold hides one range of rows.
"""

from __future__ import annotations

from bisect import bisect_right

from sessiontree.core.outline import Outline


class TreeFolds:
    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._folded: set[int] = set()
        self._starts: list[int] = []
        """The first hidden row of each outermost fold."""
        self._ends: list[int] = []
        self._lines: list[int] = []
        """The line before which each of them is hidden."""

    def __len__(self) -> int:
        """How many lines there are."""
        return len(self._outline) - self._count_hidden(len(self._starts))

    def __contains__(self, row: int) -> bool:
        return row in self._folded

    def get_row(self, line: int) -> int:
        """The row that stands on a line."""
        return line + self._count_hidden(bisect_right(self._lines, line))

    def get_line(self, row: int) -> int:
        """The line of a row, or of the row that it is folded under."""
        at = bisect_right(self._starts, row)
        if at and row < self._ends[at - 1]:
            return self._lines[at - 1] - 1
        return row - self._count_hidden(at)

    def fold(self, row: int) -> bool:
        """Fold away what is below a row; says whether there was anything to fold."""
        if row in self._folded or not self._outline.get_foldable(row):
            return False
        self._folded.add(row)
        self._rebuild_ranges()
        return True

    def unfold(self, row: int) -> bool:
        """Show again what is below a row; folds further down stay."""
        if row not in self._folded:
            return False
        self._folded.remove(row)
        self._rebuild_ranges()
        return True

    def copy_folds(self, older: TreeFolds, outline: Outline) -> None:
        """Fold what was folded in the outline of the same tree before it grew."""
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
        """How many rows the first so many folds hide: a row behind them stands that many lines further up."""
        return self._ends[folds - 1] - self._lines[folds - 1] if folds else 0
