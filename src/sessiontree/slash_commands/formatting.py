"""Formats the output of commands. The text is not sanitized: the front end escapes it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from unicodedata import combining, east_asian_width

from sessiontree.core.call_lookup import CallLookup
from sessiontree.core.entries import EntryId
from sessiontree.core.entry_text import format_entry_row
from sessiontree.core.place_names import shorten_id
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.session import Session

if TYPE_CHECKING:
    from sessiontree.agent.mcp_client.server_pool import McpServerStatus

MAX_RESOURCES = 20
"""Resources of one MCP server that are listed."""
WIDTH = 72
"""The maximum width of an excerpt."""


def format_id(id: EntryId | None) -> str:
    """Return the short form of an entry id."""
    return "root" if id is None else shorten_id(id)


def format_local_time(timestamp: str, *, seconds: bool = False) -> str:
    """Format a stored timestamp in local time. Return an invalid timestamp unchanged."""
    moment = parse_timestamp(timestamp)
    try:
        shown = timestamp if moment is None else datetime.fromtimestamp(moment // 1000).isoformat()
    except (ValueError, OverflowError, OSError):  # outside the range of the calendar
        shown = timestamp
    return shown[: 19 if seconds else 16].replace("T", " ")


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as aligned columns."""
    widths = [max(map(measure_width, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(_pad, row, widths)).rstrip() for row in rows)


def measure_width(text: str) -> int:
    """Return how many columns a text fills in a terminal. Wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def _pad(text: str, width: int) -> str:
    return text + " " * (width - measure_width(text))


def make_excerpt(words: str, width: int = WIDTH) -> str:
    """Return the first `width` characters of a text on one line."""
    line = " ".join(words[: width * 4].split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def format_mcp_status(status: McpServerStatus) -> str:
    """Return what an MCP server offers, or why it cannot be used."""
    from sessiontree.agent.mcp_client.server_specs import describe_server

    lines = [f"{status.server.name}: {describe_server(status.server)} ({status.server.origin})"]
    if status.error is not None:
        return "\n".join([*lines, f"  error: {status.error}"])
    lines.append(f"  {status.title or 'connected'}, protocol {status.protocol}")
    lines += [f"  tool {name}  {make_excerpt(description)}".rstrip() for name, description in status.tools]
    lines += [f"  resource {uri}" for uri in status.resources[:MAX_RESOURCES]]
    if len(status.resources) > MAX_RESOURCES:
        lines.append(f"  {len(status.resources) - MAX_RESOURCES} more resources")
    return "\n".join([*lines, *(f"  prompt {prompt}" for prompt in status.prompts)])


def draw_tree(session: Session, leaf: EntryId | None) -> str:
    """Draw the tree of a session with the path to `leaf`."""
    from sessiontree.core.outline import build_outline, format_hidden

    tree, calls = session.tree, CallLookup(session.tree)
    lines: list[str] = []
    for row in build_outline(tree, leaf, heads=session.heads):
        label = tree.label(row.entry.id)
        parts = [
            f"[{label}]" if label else "",
            make_excerpt(format_entry_row(row.entry, calls)),
            *(f"({name})" for name in row.branches),
            "← active" if row.active else "",
            format_hidden(row.branches_hidden, row.active_hidden),
        ]
        lines.append(f"{format_id(row.entry.id)}  {row.prefix}{' '.join(part for part in parts if part)}")
    return "\n".join(lines) or "The session is empty."
