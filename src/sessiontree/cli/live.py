"""Progress of what takes long: a table that is drawn anew on a terminal, lines otherwise. On standard error, always."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import asyncio

REDRAW_SECONDS = 0.25
"""Seconds between two drawings."""


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
