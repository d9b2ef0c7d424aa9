"""Output: what commands print, made safe. JSON is one compact line with control characters escaped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from sessiontree.core.sanitize import escape_json, escape_raw
from sessiontree.core.sanitize import escape_line as escape_line
from sessiontree.core.sanitize import escape_lines as escape_lines

if TYPE_CHECKING:
    import asyncio

SLOW_SECONDS = 0.5
"""Progress is shown of what takes longer."""
FLUSH_CHARS = 1 << 16
"""Characters of JSON that are printed at once."""
MAX_LIST_CHARS = 240
"""Characters of a name or a sentence that a list shows."""
REDRAW_SECONDS = 0.25
"""Seconds between two drawings."""


def echo_json(value: Any) -> None:
    click.echo(format_json(value))


def format_json(value: Any) -> str:
    """A value as compact JSON that a terminal can be sent."""
    import json

    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a number too large for a float, which JSON cannot name: as null, like everybody else
        text = json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), separators=(",", ":"))
    return escape_json(text)


def echo_json_parts(begin: dict[str, Any], name: str, items: Iterable[Any], end: dict[str, Any]) -> None:
    """One JSON object with a long list in it, printed as the list is made: `begin`, the list as `name`, and `end`."""
    buffer = [f"{format_json(begin)[:-1]},{format_json(name)}:["]
    size = 0
    for index, item in enumerate(items):
        buffer.append(f",{format_json(item)}" if index else format_json(item))
        size += len(buffer[-1])
        if size > FLUSH_CHARS:
            click.echo("".join(buffer), nl=False)
            buffer, size = [], 0
    click.echo(f"{''.join(buffer)}],{format_json(end)[1:]}")


def echo_raw(raw: bytes) -> None:
    """A line of a session as it is, but for characters that a terminal would obey."""
    text = raw.decode("utf-8", "replace").strip().replace("\r", " ")
    click.echo(escape_raw(text))


def shorten(text: str) -> str:
    """`text`, safe and short enough for a list: names and ids in files may be of any length."""
    return escape_line(text if len(text) <= MAX_LIST_CHARS else f"{text[: MAX_LIST_CHARS - 1]}…")


def echo(*parts: str) -> None:
    click.echo(join_parts(*parts))


def join_parts(*parts: str) -> str:
    """Those of `parts` that say something, on one line."""
    return " ".join(part for part in parts if part)


def echo_lines(lines: Iterable[str]) -> None:
    """Many lines, printed as they are made, but not each alone."""
    buffer: list[str] = []
    size = 0
    for line in lines:
        buffer.append(line)
        size += len(line)
        if size > FLUSH_CHARS:
            click.echo("\n".join(buffer))
            buffer, size = [], 0
    if buffer:
        click.echo("\n".join(buffer))


def warn(text: str) -> None:
    """A line beside the output, on standard error; it is made safe here."""
    click.echo(f"sessiontree: {escape_line(text)}", err=True)


def dim(text: str) -> str:
    return click.style(text, dim=True)


def bold(text: str) -> str:
    return click.style(text, bold=True)


def colorize(text: str, color: str) -> str:
    return click.style(text, fg=color)


def print_table(rows: list[list[str]]) -> None:
    """Columns that line up; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for index, row in enumerate(rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(bold(line) if index == 0 else line)


def create_progress(what: str) -> Callable[[int, int], None] | None:
    """Tells how far it is, on a terminal, once it takes long."""
    if not sys.stderr.isatty():
        return None
    start = time.monotonic()
    shown = -1

    def report(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // max(total, 1)
        if percent != shown and time.monotonic() - start > SLOW_SECONDS:
            shown = percent
            click.echo(f"\r\x1b[K{what}: {percent} %" if done < total else "\r\x1b[K", nl=False, err=True)

    return report


class ProgressTable:
    """Shows rows as they are now, for as long as it is entered. Where no table can be drawn, `tell` prints lines."""

    def __init__(self, rows: Callable[[], Sequence[Sequence[str]]], *, quiet: bool = False) -> None:
        """`rows` gives safe texts, the heading first."""
        self._rows = rows
        self._quiet = quiet
        self._live: Any = None
        self._redraw_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ProgressTable:
        if not self._quiet and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.live import Live
            except ModuleNotFoundError:  # it comes with the terminal app
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
        """Say that something happened: a safe line, where no table shows it."""
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
