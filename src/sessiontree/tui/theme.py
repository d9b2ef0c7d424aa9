"""Themes, detection of the terminal background, and styles of the transcript."""

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

from sessiontree.config import ThemeName

REPLY_SECONDS = 0.15
"""Maximum time to wait for the terminal to report its background."""

NOTIFICATION_CSS = """
ToastRack { dock: top; align: right top; margin: 2 0 0 0; }
Toast { padding: 0 1; margin: 0; width: auto; max-width: 70; background: $panel; }
"""
"""Notifications at the top, because the bottom of every screen shows hints."""


def _build_theme(
    name: ThemeName, *, dark: bool, text: str, grounds: tuple[str, str, str], muted: str, primary: str, secondary: str,
    success: str, warning: str, error: str, selection: tuple[str, str],
) -> Theme:  # fmt: skip
    """Build a theme. `grounds` are the backgrounds of the screen, of panels, and of messages and highlighted rows."""
    return Theme(
        name=f"sessiontree-{name}",
        primary=primary,
        secondary=secondary,
        accent=warning,
        foreground=text,
        background=grounds[0],
        surface=grounds[1],
        panel=grounds[2],
        success=success,
        warning=warning,
        error=error,
        dark=dark,
        variables={
            "muted": muted,
            "screen-selection-foreground": selection[0],
            "screen-selection-background": selection[1],
        },
    )


DARK = _build_theme(
    "dark", dark=True, text="#d5d8de", grounds=("#111317", "#171a1f", "#20242b"), muted="#8b929e",
    primary="#8ab4f8", secondary="#9aa3b2", success="#87bf8c", warning="#d9a962", error="#e5878a",
    selection=("#ffffff", "#2f4f7f"),
)  # fmt: skip
LIGHT = _build_theme(
    "light", dark=False, text="#23262c", grounds=("#fcfbf8", "#f4f2ed", "#e9e6df"), muted="#5f6672",
    primary="#2a5db0", secondary="#5b6270", success="#27682f", warning="#7d5300", error="#b0323a",
    selection=("#101216", "#b9d3f7"),
)  # fmt: skip
NIGHT = _build_theme(
    "night", dark=True, text="#ffffff", grounds=("#000000", "#0a0a0a", "#1c1c1c"), muted="#b4b4b4",
    primary="#9ecbff", secondary="#d0d0d0", success="#7ee787", warning="#ffd166", error="#ff9b9b",
    selection=("#000000", "#ffd166"),
)  # fmt: skip
PAPER = _build_theme(
    "paper", dark=False, text="#000000", grounds=("#ffffff", "#f7f7f7", "#ececec"), muted="#4a4a4a",
    primary="#0a3d91", secondary="#333333", success="#0b5219", warning="#6a4200", error="#97001b",
    selection=("#ffffff", "#0a3d91"),
)  # fmt: skip
DUSK = _build_theme(
    "dusk", dark=True, text="#c9d4e3", grounds=("#14202e", "#1a2838", "#233447"), muted="#8fa3ba",
    primary="#7cc0ea", secondary="#a3b4c8", success="#8ecb9d", warning="#e3b878", error="#f0979c",
    selection=("#ffffff", "#3a5f87"),
)  # fmt: skip
COLORBLIND = _build_theme(
    "colorblind", dark=True, text="#e4e4e4", grounds=("#121212", "#1a1a1a", "#262626"), muted="#9e9e9e",
    primary="#8ab4f8", secondary="#b0b0b0", success="#56b4e9", warning="#f0e442", error="#f59a4a",
    selection=("#ffffff", "#2f4f7f"),
)  # fmt: skip
THEMES: dict[str, Theme] = {theme.name: theme for theme in (DARK, LIGHT, NIGHT, PAPER, DUSK, COLORBLIND)}


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
    return build_styles(THEMES.get(theme, DARK))


def get_theme(terminal_is_light: bool, name: ThemeName = "auto") -> Theme:
    """Return the configured theme, or the dark or the light one."""
    return THEMES[f"sessiontree-{name}"] if name != "auto" else LIGHT if terminal_is_light else DARK


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
