"""Output: what commands print, made safe. JSON is one compact line with control characters escaped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import click

from sessiontree.core.safe import safe as safe
from sessiontree.core.safe import safe_json, safe_raw
from sessiontree.core.safe import safe_lines as safe_lines

SLOW_SECONDS = 0.5
"""Progress is shown of what takes longer."""
PRINTED = 1 << 16
"""Characters of JSON that are printed at once."""
LONGEST = 240
"""Characters of a name or a sentence that a list shows."""


def echo_json(value: Any) -> None:
    click.echo(json_text(value))


def json_text(value: Any) -> str:
    """A value as compact JSON that a terminal can be sent."""
    import json

    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a number too large for a float, which JSON cannot name: as null, like everybody else
        text = json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), separators=(",", ":"))
    return safe_json(text)


def echo_json_parts(begin: dict[str, Any], name: str, items: Iterable[Any], end: dict[str, Any]) -> None:
    """One JSON object with a long list in it, printed as the list is made: `begin`, the list as `name`, and `end`."""
    buffer = [f"{json_text(begin)[:-1]},{json_text(name)}:["]
    size = 0
    for index, item in enumerate(items):
        buffer.append(f",{json_text(item)}" if index else json_text(item))
        size += len(buffer[-1])
        if size > PRINTED:
            click.echo("".join(buffer), nl=False)
            buffer, size = [], 0
    click.echo(f"{''.join(buffer)}],{json_text(end)[1:]}")


def echo_raw(raw: bytes) -> None:
    """A line of a session as it is, but for characters that a terminal would obey."""
    text = raw.decode("utf-8", "replace").strip().replace("\r", " ")
    click.echo(safe_raw(text))


def brief(text: str) -> str:
    """`text`, safe and short enough for a list: names and ids in files may be of any length."""
    return safe(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


def echo(*parts: str) -> None:
    click.echo(line_of(*parts))


def line_of(*parts: str) -> str:
    """Those of `parts` that say something, on one line."""
    return " ".join(part for part in parts if part)


def echo_lines(lines: Iterable[str]) -> None:
    """Many lines, printed as they are made, but not each alone."""
    buffer: list[str] = []
    size = 0
    for line in lines:
        buffer.append(line)
        size += len(line)
        if size > PRINTED:
            click.echo("\n".join(buffer))
            buffer, size = [], 0
    if buffer:
        click.echo("\n".join(buffer))


def warn(text: str) -> None:
    """A line beside the output, on standard error; it is made safe here."""
    click.echo(f"sessiontree: {safe(text)}", err=True)


def dim(text: str) -> str:
    return click.style(text, dim=True)


def strong(text: str) -> str:
    return click.style(text, bold=True)


def colored(text: str, color: str) -> str:
    return click.style(text, fg=color)


def table(rows: list[list[str]]) -> None:
    """Columns that line up; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for index, row in enumerate(rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(strong(line) if index == 0 else line)


def progress(what: str) -> Callable[[int, int], None] | None:
    """Tells how far it is, on a terminal, once it takes long."""
    if not sys.stderr.isatty():
        return None
    start = time.monotonic()
    shown = -1

    def tell(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // max(total, 1)
        if percent != shown and time.monotonic() - start > SLOW_SECONDS:
            shown = percent
            click.echo(f"\r\x1b[K{what}: {percent} %" if done < total else "\r\x1b[K", nl=False, err=True)

    return tell
