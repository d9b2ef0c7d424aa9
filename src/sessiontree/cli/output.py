"""Output: what commands print, made safe. Session files are untrusted input to the terminal too.

Text from files cannot emit control sequences: such characters are shown as escapes. JSON is one
compact line with control characters escaped.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any

import click

SLOW_SECONDS = 0.5
"""Progress is shown of what takes longer."""

# C0 and C1 controls, DEL, marks that turn the direction of writing, line and paragraph separators, lone surrogates.
_UNSAFE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_UNSAFE_IN_LINES = _UNSAFE.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f")
_UNSAFE_IN_JSON = _UNSAFE.replace("\x00-\x1f", "")


def _escape(text: str, unsafe: str, *, json: bool = False) -> str:
    """`text` with the characters of a class as escapes; nearly all text has none."""
    if text.isprintable():
        return text

    def escaped(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\u{code:04x}" if json or code > 0xFF else f"\\x{code:02x}"

    return re.sub(f"[{unsafe}]", escaped, text)


def safe(text: str) -> str:
    """`text` on one line, unable to control a terminal."""
    return _escape(text, _UNSAFE)


def safe_lines(text: str) -> str:
    """`text` with its lines and tabs, unable to control a terminal."""
    return _escape(text, _UNSAFE_IN_LINES)


def echo_json(value: Any) -> None:
    import json

    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a number too large for a float, which JSON cannot name: as null, like everybody else
        text = json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), separators=(",", ":"))
    click.echo(_escape(text, _UNSAFE_IN_JSON, json=True))


def echo_raw(raw: bytes) -> None:
    """A line of a session as it is, but for characters that a terminal would obey."""
    text = raw.decode("utf-8", "replace").strip().replace("\r", " ")
    click.echo(_escape(text, _UNSAFE_IN_LINES, json=True))


def echo(*parts: str) -> None:
    click.echo(" ".join(part for part in parts if part))


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
