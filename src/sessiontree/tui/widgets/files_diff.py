"""How the files of two places differ, as lines: counts, and on request a diff, side by side where there is room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from sessiontree.core.sanitize import escape_line
from sessiontree.ops.compare_files import FilesComparison
from sessiontree.tui.theme import TranscriptStyles

MAX_DIFF_LINES = 2000
"""Maximum number of lines of a diff that are shown. `sessiontree diff` prints all."""
TAB_WIDTH = 4
BAR = " │ "


class FilesDiff(Struct, frozen=True, kw_only=True):
    """The files of two places that are compared."""

    a: str
    b: str
    found: FilesComparison


class DiffRow(NamedTuple):
    """A line of both sides. A line that only one side has is `None` on the other one."""

    old: str | None
    new: str | None
    is_heading: bool = False
    """Whether both are the name of a file, or the position of the lines below."""


def iter_diff_rows(diff: str) -> Iterator[DiffRow]:
    """Yield the lines of a unified diff in pairs: removed lines next to their replacements."""
    removed: list[str] = []
    added: list[str] = []

    def flush() -> Iterator[DiffRow]:
        for number in range(max(len(removed), len(added))):
            old = removed[number] if number < len(removed) else None
            yield DiffRow(old, added[number] if number < len(added) else None)
        removed.clear()
        added.clear()

    is_in_hunk = False
    for line in diff.splitlines():
        if is_in_hunk and line.startswith("-"):
            if added:
                yield from flush()
            removed.append(line[1:])
        elif is_in_hunk and line.startswith("+"):
            added.append(line[1:])
        else:
            yield from flush()
            if line.startswith("diff --git "):
                is_in_hunk = False
                yield DiffRow(line, line, is_heading=True)
            elif line.startswith("@@"):
                is_in_hunk = True
                yield DiffRow(line, line, is_heading=True)
            elif line.startswith("Binary files"):
                yield DiffRow(line, line)
            elif is_in_hunk and line.startswith(" "):
                yield DiffRow(line[1:], line[1:])
    yield from flush()


def render_files(
    files: FilesDiff, styles: TranscriptStyles, width: int, *, unfolded: bool, columns: bool
) -> list[Strip]:
    """Return the lines of a comparison. With `columns`, the diff is side by side."""
    title = escape_line(f"── {files.a} and {files.b} · {files.found.summary} ")
    lines = [_render(title.ljust(width, "─"), styles.user, width)]
    for path, counts in files.found.list_counts():
        lines.append(_render(f"  {escape_line(path)} {counts}", styles.muted, width))
    if unfolded and files.found.diff:
        lines.append(Strip([]))
        lines += _render_columns(files, styles, width) if columns else _render_unified(files, styles, width)
    return [*lines, Strip([])]


def _render_unified(files: FilesDiff, styles: TranscriptStyles, width: int) -> list[Strip]:
    looks = {"+": styles.success, "-": styles.error, "@": styles.muted, "d": styles.strong}
    shown = files.found.diff.splitlines()
    lines = [_render(_clean(line), looks.get(line[:1], Style()), width) for line in shown[:MAX_DIFF_LINES]]
    return _add_note(lines, len(shown), styles, width)


def _render_columns(files: FilesDiff, styles: TranscriptStyles, width: int) -> list[Strip]:
    side = (width - len(BAR)) // 2
    rows = list(iter_diff_rows(files.found.diff))
    lines: list[Strip] = []
    for row in rows[:MAX_DIFF_LINES]:
        if row.is_heading:
            look = styles.muted if (row.old or "").startswith("@@") else styles.strong
            lines.append(_render(_clean(row.old or ""), look, width))
            continue
        is_same = row.old == row.new
        left = _render(_clean(row.old or ""), Style() if is_same else styles.error, side).adjust_cell_length(side)
        right = _render(_clean(row.new or ""), Style() if is_same else styles.success, side)
        lines.append(Strip([*left, Segment(BAR, styles.muted), *right]))
    return _add_note(lines, len(rows), styles, width)


def _add_note(lines: list[Strip], count: int, styles: TranscriptStyles, width: int) -> list[Strip]:
    if count > MAX_DIFF_LINES:
        lines.append(_render(f"… {count - MAX_DIFF_LINES} more lines", styles.muted, width))
    return lines


def _clean(line: str) -> str:
    return escape_line(line.expandtabs(TAB_WIDTH))


def _render(words: str, style: Style, width: int) -> Strip:
    text = Text(words, no_wrap=True)
    text.truncate(width, overflow="ellipsis")
    return Strip([Segment(text.plain, style)])
