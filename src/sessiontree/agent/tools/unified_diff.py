"""The difference that replacements make in a text, as a unified diff.

Where something was replaced is known, so nothing is looked for in the rest of the text: it takes time in proportion to
the text, whatever repeats in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from sessiontree.core.number_text import pluralize

CONTEXT_LINES = 3
"""How many lines are shown round those that differ."""
MAX_FINE_LINES = 400
"""Of more lines than this, those that stayed the same between two that differ are not looked for."""


MAX_DIFFERENCES = 256
"""Between more lines, so many that differ are looked for; where there are more, all of them are taken as different."""
MAX_STEPS = 2_000_000
"""How many lines are compared at most to find them."""
MAX_DIFF_CHARS = 64 * 1024
"""How many characters of a difference are kept in a session."""


class TextChange(NamedTuple):
    """What stood from `start` to `end`, and stands there no more."""

    start: int
    end: int
    new: str


class _Edit(NamedTuple):
    """Lines from `first` to before `last`, counting from 0, that others took the place of."""

    first: int
    last: int
    new: Sequence[str]


def build_unified_diff(text: str, changes: Sequence[TextChange], path: str) -> str:
    """The difference that `changes` make, which are in order and do not overlap."""
    old = _split_lines(text)
    made = [f"--- a/{path}\n", f"+++ b/{path}\n"]
    grown = 0
    for edits in _group_hunks(_find_edits(text, changes)):
        first, last = max(0, edits[0].first - CONTEXT_LINES), min(len(old), edits[-1].last + CONTEXT_LINES)
        growing = sum(len(edit.new) - (edit.last - edit.first) for edit in edits)
        made.append(f"@@ -{_format_range(first, last)} +{_format_range(first + grown, last + grown + growing)} @@\n")
        grown += growing
        for edit in edits:
            made += _prefix_lines(" ", old[first : edit.first])
            made += _prefix_lines("-", old[edit.first : edit.last])
            made += _prefix_lines("+", edit.new)
            first = edit.last
        made += _prefix_lines(" ", old[first:last])
    return "".join(made).encode("utf-8", "replace").decode()


def truncate_diff(made: str) -> str:
    """A difference as it is kept: of a long one the beginning, with a line that says how much is left out."""
    if len(made) <= MAX_DIFF_CHARS:
        return made
    end = made.rfind("\n", 0, MAX_DIFF_CHARS) + 1 or MAX_DIFF_CHARS
    left = made.count("\n", end)
    kept = made[:end].removesuffix("\n")
    return f"{kept}\n\\ {pluralize(left, 'more line')} left out\n"


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
    """Edits together whose lines round them meet."""
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
    """The changes as such of whole lines, those of the same line as one."""
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
    """How many lines are the same at the beginning, and how many of the others at the end."""
    most = min(len(old), len(new))
    before = next((at for at in range(most) if old[at] != new[at]), most)
    behind = next((at for at in range(most - before) if old[-1 - at] != new[-1 - at]), most - before)
    return before, behind


def _find_small_edits(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """The lines of `old` from i to j whose place those of `new` from k to m take, where few differ; otherwise all.

    That is the greedy search of Myers: the furthest that can be come with one more line taken away or added, again and
    again.
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
    """The single lines that were taken away or added on the way to the end, the last one first."""
    for differing in range(len(passed) - 1, 0, -1):
        reached, diagonal = passed[differing], i - k
        added = diagonal == -differing or (diagonal != differing and reached[diagonal - 1] < reached[diagonal + 1])
        i = reached[diagonal + 1 if added else diagonal - 1]
        k = i - (diagonal + 1 if added else diagonal - 1)
        yield (i, i, k, k + 1) if added else (i, i + 1, k, k)


def _join_edits(single: Iterable[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Edits of single lines, the last one first, as edits of lines that follow one another, the first one first."""
    joined: list[tuple[int, int, int, int]] = []
    for i, j, k, m in single:
        if joined and (j, m) == (joined[-1][0], joined[-1][2]):
            joined[-1] = i, joined[-1][1], k, joined[-1][3]
        else:
            joined.append((i, j, k, m))
    return joined[::-1]
