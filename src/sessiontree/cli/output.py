"""Output of commands: escaped text, JSON, tables and progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any
from unicodedata import combining, east_asian_width

import click
from msgspec import Struct
from msgspec.json import Encoder
from msgspec.structs import asdict

from sessiontree.core.sanitize import escape_json, escape_raw
from sessiontree.core.sanitize import escape_line as escape_line
from sessiontree.core.sanitize import escape_lines as escape_lines

if TYPE_CHECKING:
    import asyncio

SLOW_SECONDS = 0.5
"""Show progress after this time."""
FLUSH_CHARS = 1 << 16
"""Characters to buffer before printing."""
ITEMS_PER_BLOCK = 128
"""Items of a long JSON list that are printed together."""
MAX_LIST_CHARS = 240
"""Longest name or message in a list."""
ENCODE_ERRORS = (UnicodeEncodeError, OverflowError)
"""What msgspec raises for values that the `json` module can still encode."""
REDRAW_SECONDS = 0.25
"""Seconds between two updates of a table."""


_encode = Encoder().encode


def echo_json(value: Any) -> None:
    click.echo(format_json(value))


def format_json(value: Any) -> str:
    """Return a value as one line of compact JSON without control characters. Infinity and NaN become null."""
    try:
        return escape_json(_encode(value).decode())
    except ENCODE_ERRORS:  # lone surrogates, or numbers of more than 64 bits
        return escape_json(_format_with_json(value))


def _format_with_json(value: Any) -> str:
    import json

    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:  # JSON has no infinity; write null, as other libraries do
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), separators=(",", ":"))


def echo_json_parts(
    begin: dict[str, Any], name: str, items: Iterable[Struct], end: Callable[[], dict[str, Any]]
) -> None:
    """Print one JSON object while its long list `name` is generated, between the fields of `begin` and of `end`.

    `end` is called after the last item.
    """
    click.echo(f"{format_json(begin)[:-1]},{format_json(name)}:[", nl=False)
    separator = ""
    rest = iter(items)
    while several := list(islice(rest, ITEMS_PER_BLOCK)):
        click.echo(f"{separator}{format_structs(several)}", nl=False)
        separator = ","
    click.echo(f"],{format_json(end())[1:]}")


def format_structs(values: Sequence[Struct]) -> str:
    """Return values as `format_json` does, without the brackets of the list."""
    try:
        encoded = _encode(values)
    except ENCODE_ERRORS:
        return escape_json(_format_with_json([asdict(value) for value in values]))[1:-1]
    text = encoded.decode()[1:-1]
    return text if encoded.isascii() and b"\x7f" not in encoded else escape_json(text)


def echo_raw(raw: bytes) -> None:
    """Print a line of a session file, with control characters escaped."""
    text = raw.decode("utf-8", "replace").strip().replace("\r", " ")
    click.echo(escape_raw(text))


def shorten(text: str) -> str:
    """Escape a text and shorten it for a list. Names and ids in files can have any length."""
    return escape_line(text if len(text) <= MAX_LIST_CHARS else f"{text[: MAX_LIST_CHARS - 1]}…")


def get_terminal_width() -> int | None:
    """Return the number of columns of the terminal; `None` if standard output is not a terminal."""
    if not sys.stdout.isatty():
        return None
    import shutil  # it imports modules for every kind of archive

    return shutil.get_terminal_size().columns


def count_cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_get_cell_width, text))


def _get_cell_width(character: str) -> int:
    return 0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1


def cut_to_cells(text: str, room: int) -> str:
    """Return a text that takes at most `room` columns of a terminal, with `…` at its end if it was cut."""
    if count_cells(text) <= room:
        return text
    end = taken = 0
    while end < len(text) and taken + _get_cell_width(text[end]) < room:
        taken += _get_cell_width(text[end])
        end += 1
    return f"{text[:end]}…"


def echo(*parts: str) -> None:
    click.echo(join_parts(*parts))


def join_parts(*parts: str) -> str:
    """Join the parts that are not empty."""
    return " ".join(part for part in parts if part)


def echo_lines(lines: Iterable[str]) -> int:
    """Print many lines in large blocks while they are generated. Return their number."""
    buffer: list[str] = []
    size = count = 0
    for line in lines:
        buffer.append(line)
        count += 1
        size += len(line)
        if size > FLUSH_CHARS:
            click.echo("\n".join(buffer))
            buffer, size = [], 0
    if buffer:
        click.echo("\n".join(buffer))
    return count


def warn(text: str) -> None:
    """Print an escaped line on standard error."""
    click.echo(f"sessiontree: {escape_line(text)}", err=True)


def dim(text: str) -> str:
    return click.style(text, dim=True) if text else ""


def bold(text: str) -> str:
    return click.style(text, bold=True)


def colorize(text: str, color: str) -> str:
    return click.style(text, fg=color) if text else ""


def print_table(rows: list[list[str]]) -> None:
    """Print aligned columns. The first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for index, row in enumerate(rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(bold(line) if index == 0 else line)


def create_progress(action: str) -> Callable[[int, int], None] | None:
    """Return a callback that shows a percentage on a terminal, or `None` without a terminal."""
    if not sys.stderr.isatty():
        return None
    start = time.monotonic()
    shown = -1

    def report(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // max(total, 1)
        if percent != shown and time.monotonic() - start > SLOW_SECONDS:
            shown = percent
            click.echo(f"\r\x1b[K{action}: {percent} %" if done < total else "\r\x1b[K", nl=False, err=True)

    return report


class ProgressTable:
    """Shows a table on standard error while the context is entered. Without a terminal, `print_line` prints lines."""

    def __init__(self, rows: Callable[[], Sequence[Sequence[str]]], *, quiet: bool = False) -> None:
        """`rows` returns escaped texts, the heading first."""
        self._rows = rows
        self._quiet = quiet
        self._live: Any = None
        self._redraw_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ProgressTable:
        if not self._quiet and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.live import Live
            except ModuleNotFoundError:  # rich is installed with the terminal app
                return self
            import asyncio

            console = Console(stderr=True)
            self._live = Live(get_renderable=self._build_table, console=console, transient=True, auto_refresh=False)
            self._live.start()
            self._redraw_task = asyncio.create_task(self._redraw())
        return self

    async def __aexit__(self, *_: Any) -> None:
        if self._redraw_task is not None:
            import asyncio

            self._redraw_task.cancel()
            await asyncio.wait([self._redraw_task])
            self._live.stop()

    def print_line(self, line: str) -> None:
        """Print an escaped line if no table is shown."""
        if not self._quiet and self._live is None:
            click.echo(line, err=True)

    async def _redraw(self) -> None:
        import asyncio

        while True:
            self._live.refresh()
            await asyncio.sleep(REDRAW_SECONDS)

    def _build_table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        heading, *rows = self._rows()
        table = Table(*heading, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
        return table
