"""Progress of what takes long: a table that is drawn anew on a terminal, lines otherwise. On standard error, always."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

Rows = Sequence[Sequence[str]]
"""Safe texts; the first row is the heading."""


class Progress:
    """Shows `rows` as they are now, whenever `changed` is called. Where no table can be drawn, lines are printed."""

    def __init__(self, rows: Callable[[], Rows], *, quiet: bool = False) -> None:
        self._rows = rows
        self._quiet = quiet
        self._live: Any = None

    def __enter__(self) -> Progress:
        if not self._quiet and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.live import Live
            except ModuleNotFoundError:  # it comes with the terminal app
                return self
            self._live = Live(
                get_renderable=self._table, console=Console(stderr=True), transient=True, refresh_per_second=4
            )
            self._live.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*raised)

    def tell(self, line: str) -> None:
        """Say that something happened: a line, where the table does not show it."""
        if not self._quiet and self._live is None:
            click.echo(line, err=True)

    def _table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        heading, *rows = self._rows()
        table = Table(*heading, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
        return table
