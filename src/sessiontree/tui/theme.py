"""Light and dark theme, detection of the terminal background, and styles of the transcript."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from typing import NamedTuple

from rich.style import Style
from rich.theme import Theme as RichTheme
from textual.theme import Theme

REPLY_SECONDS = 0.15
"""Maximum time to wait for the terminal to report its background."""

NOTIFICATION_CSS = """
ToastRack { dock: top; align: right top; margin: 2 0 0 0; }
Toast { padding: 0 1; margin: 0; width: auto; max-width: 70; background: $panel; }
"""
"""Notifications at the top, because the bottom of every screen shows hints."""

DARK = Theme(
    name="sessiontree-dark",
    primary="#8ab4f8",
    secondary="#9aa3b2",
    accent="#d9a962",
    foreground="#d5d8de",
    background="#111317",
    surface="#171a1f",
    panel="#20242b",
    success="#87bf8c",
    warning="#d9a962",
    error="#e5878a",
    dark=True,
    variables={
        "muted": "#858c98",
        "screen-selection-background": "#2f4f7f",
        "screen-selection-foreground": "#ffffff",
    },
)
LIGHT = Theme(
    name="sessiontree-light",
    primary="#2a5db0",
    secondary="#5b6270",
    accent="#8f5f00",
    foreground="#23262c",
    background="#fcfbf8",
    surface="#f4f2ed",
    panel="#e9e6df",
    success="#2e7a3a",
    warning="#8f5f00",
    error="#b0323a",
    dark=False,
    variables={
        "muted": "#6b7280",
        "screen-selection-background": "#b9d3f7",
        "screen-selection-foreground": "#101216",
    },
)


class TranscriptStyles(NamedTuple):
    """Styles of blocks in the transcript."""

    code: str
    """Name of a Pygments style."""
    panel: Style
    """Background of user messages."""
    muted: Style
    strong: Style
    user: Style
    success: Style
    warning: Style
    error: Style
    markdown: RichTheme


def build_styles(theme: Theme) -> TranscriptStyles:
    muted = Style(color=theme.variables["muted"])
    accent, primary = Style(color=theme.accent), Style(color=theme.primary)
    return TranscriptStyles(
        code="github-dark" if theme.dark else "default",
        panel=Style(bgcolor=theme.panel),
        muted=muted,
        strong=Style(bold=True),
        user=primary,
        success=Style(color=theme.success),
        warning=Style(color=theme.warning),
        error=Style(color=theme.error),
        markdown=RichTheme(
            {
                "markdown.h1": primary + Style(bold=True, underline=True),
                "markdown.h2": primary + Style(bold=True),
                **{f"markdown.h{level}": Style(bold=True) for level in (3, 4, 5, 6)},
                "markdown.code": accent,
                "markdown.block_quote": muted + Style(italic=True),
                "markdown.hr": muted,
                "markdown.item.bullet": muted,
                "markdown.item.number": muted,
                "markdown.link": primary + Style(underline=True),
                "markdown.link_url": muted,
                "markdown.table.border": muted,
                "markdown.table.header": Style(bold=True),
            }
        ),
    )


def get_styles(theme: str) -> TranscriptStyles:
    """Return the transcript styles for a theme name."""
    return build_styles(LIGHT if theme == LIGHT.name else DARK)


def get_theme(terminal_is_light: bool) -> Theme:
    return LIGHT if terminal_is_light else DARK


# Detection


def has_light_background() -> bool:
    """Return whether the terminal has a light background.

    Query the terminal, then `COLORFGBG`. Without an answer, assume a dark background.
    """
    reply = _query_background()
    found = re.search(r"\]11;rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)", reply)
    if found is not None:
        red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
        return 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")


def _query_background() -> str:
    """Query the terminal for its background color and return its reply.

    The query ends with a request for device attributes, which every terminal answers. This avoids the timeout on
    terminals that do not report their background.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    reply = b""
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        os.write(sys.stdout.fileno(), b"\x1b]11;?\x07\x1b[c")
        deadline = time.monotonic() + REPLY_SECONDS
        while not re.search(rb"\x1b\[\?[\d;]*c", reply):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                break
            reply += os.read(fd, 1024)
    except (OSError, termios.error):
        pass
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
    return reply.decode("latin-1")
