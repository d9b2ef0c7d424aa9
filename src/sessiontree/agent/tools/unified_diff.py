"""Unified diffs of known replacements in a text.

The changed places are known, so the rest of the text is not compared. The time is linear in the size of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from sessiontree.core.number_text import pluralize

CONTEXT_LINES = 3
"""The number of context lines around a change."""
MAX_FINE_LINES = 400
"""Up to this many lines, unchanged lines within a change are found with `difflib`."""
MAX_DIFFERENCES = 256
"""In longer changes, up to this many different lines are found; beyond that, all lines count as different."""
MAX_STEPS = 2_000_000
"""The maximum number of line comparisons."""
MAX_DIFF_CHARS = 64 * 1024
"""The maximum size of a diff in a session, in characters."""


class TextChange(NamedTuple):
    """The text from `start` to `end` is replaced by `new`."""

    start: int
    end: int
    new: str


class _Edit(NamedTuple):
    """The lines from `first` up to `last`, counted from 0, are replaced by `new`."""

    first: int
    last: int
    new: Sequence[str]


def build_unified_diff(text: str, changes: Sequence[TextChange], path: str) -> str:
    """Return the diff of `changes`, which are sorted and do not overlap."""
    old = _split_lines(text)
    diff = [f"--- a/{path}\n", f"+++ b/{path}\n"]
    grown = 0
    for edits in _group_hunks(_find_edits(text, changes)):
        first, last = max(0, edits[0].first - CONTEXT_LINES), min(len(old), edits[-1].last + CONTEXT_LINES)
        growing = sum(len(edit.new) - (edit.last - edit.first) for edit in edits)
        diff.append(f"@@ -{_format_range(first, last)} +{_format_range(first + grown, last + grown + growing)} @@\n")
        grown += growing
        for edit in edits:
            diff += _prefix_lines(" ", old[first : edit.first])
            diff += _prefix_lines("-", old[edit.first : edit.last])
            diff += _prefix_lines("+", edit.new)
            first = edit.last
        diff += _prefix_lines(" ", old[first:last])
    return "".join(diff).encode("utf-8", "replace").decode()


def truncate_diff(diff: str) -> str:
    """Cut a long diff off, and add a line with the number of omitted lines."""
    if len(diff) <= MAX_DIFF_CHARS:
        return diff
    end = diff.rfind("\n", 0, MAX_DIFF_CHARS) + 1 or MAX_DIFF_CHARS
    left = diff.count("\n", end)
    kept = diff[:end].removesuffix("\n")
    return f"{kept}\n\\ {pluralize(left, 'more line')} omitted\n"


def _split_lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _format_range(first: int, last: int) -> str:
    if last - first == 1:
        return str(last)
    return f"{first + 1 if last > first else first},{last - first}"


def _prefix_lines(mark: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def _group_hunks(edits: Iterable[_Edit]) -> Iterator[list[_Edit]]:
    """Group edits whose context lines overlap."""
    hunk: list[_Edit] = []
    for edit in edits:
        if hunk and edit.first - hunk[-1].last > 2 * CONTEXT_LINES:
            yield hunk
            hunk = []
        hunk.append(edit)
    if hunk:
        yield hunk


def _find_edits(text: str, changes: Sequence[TextChange]) -> Iterator[_Edit]:
    regions = [
        (start, _split_lines(text[start:end]), _split_lines(new)) for start, end, new in _expand_to_lines(text, changes)
    ]
    fine = sum(len(old) + len(new) for _, old, new in regions) <= MAX_FINE_LINES
    line = counted = 0
    for start, old, new in regions:
        line += text.count("\n", counted, start)
        counted = start
        if fine:
            for what, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
                if what != "equal":
                    yield _Edit(line + i, line + j, new[k:m])
        elif old != new:
            before, behind = _count_common_lines(old, new)
            rest = new[before : len(new) - behind]
            for i, j, k, m in _find_small_edits(old[before : len(old) - behind], rest):
                yield _Edit(line + before + i, line + before + j, rest[k:m])


def _expand_to_lines(text: str, changes: Sequence[TextChange]) -> Iterator[TextChange]:
    """Expand changes to whole lines, and join those in the same line."""
    start = end = copied = 0
    pieces: list[str] = []
    for change in changes:
        if pieces and change.start >= end:
            yield TextChange(start, end, "".join((*pieces, text[copied:end])))
            pieces = []
        if not pieces:
            start = copied = text.rfind("\n", end, change.start) + 1 or end
        pieces += text[copied : change.start], change.new
        copied = change.end
        if change.end >= end:
            end = text.find("\n", change.end) + 1 or len(text)
    yield TextChange(start, end, "".join((*pieces, text[copied:end])))


def _count_common_lines(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """Return the number of equal lines at the start, and of further equal lines at the end."""
    most = min(len(old), len(new))
    before = next((at for at in range(most) if old[at] != new[at]), most)
    behind = next((at for at in range(most - before) if old[-1 - at] != new[-1 - at]), most - before)
    return before, behind


def _find_small_edits(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Return edits (i, j, k, m): `old[i:j]` is replaced by `new[k:m]`. If too many lines differ, return one edit.

    This is the greedy algorithm of Myers: with each step, find the furthest point that one more deletion or insertion
    reaches.
    """
    everything = [(0, len(old), 0, len(new))]
    reached, passed, steps = {1: 0}, list[dict[int, int]](), 0
    for differing in range(MAX_DIFFERENCES + 1):
        passed.append(dict(reached))
        for diagonal in range(-differing, differing + 1, 2):
            added = diagonal == -differing or (diagonal != differing and reached[diagonal - 1] < reached[diagonal + 1])
            i = reached[diagonal + 1] if added else reached[diagonal - 1] + 1
            start = i
            while i < len(old) and i - diagonal < len(new) and old[i] == new[i - diagonal]:
                i += 1
            reached[diagonal] = i
            steps += i - start + 1
            if i >= len(old) and i - diagonal >= len(new):
                return _join_edits(_trace_back(passed, len(old), len(new)))
        if steps > MAX_STEPS:
            break
    return everything


def _trace_back(passed: Sequence[dict[int, int]], i: int, k: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the deleted and inserted lines on the way to the end, last one first."""
    for differing in range(len(passed) - 1, 0, -1):
        reached, diagonal = passed[differing], i - k
        added = diagonal == -differing or (diagonal != differing and reached[diagonal - 1] < reached[diagonal + 1])
        i = reached[diagonal + 1 if added else diagonal - 1]
        k = i - (diagonal + 1 if added else diagonal - 1)
        yield (i, i, k, k + 1) if added else (i, i + 1, k, k)


def _join_edits(single: Iterable[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Join single-line edits, given in reverse order, to edits of consecutive lines."""
    joined: list[tuple[int, int, int, int]] = []
    for i, j, k, m in single:
        if joined and (j, m) == (joined[-1][0], joined[-1][2]):
            joined[-1] = i, joined[-1][1], k, joined[-1][3]
        else:
            joined.append((i, j, k, m))
    return joined[::-1]
