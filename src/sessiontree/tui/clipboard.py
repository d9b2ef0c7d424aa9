"""The clipboard of the terminal: text is sent to it by an escape sequence (OSC 52).

A terminal does not answer whether it took the text, and some take none, so what is said is only that it was sent.
"""

from __future__ import annotations

from typing import Any

from textual.app import App

from sessiontree.core.number_text import pluralize

NOTHING_TO_COPY = "Nothing to copy"


def send_to_clipboard(app: App[Any], text: str) -> str:
    """Send a text to the clipboard of the terminal, unless it is blank. Returns what to tell the person."""
    if not text.strip():
        return NOTHING_TO_COPY
    app.copy_to_clipboard(text.encode("utf-8", "replace").decode())
    return f"Sent {pluralize(len(text), 'character')} to the terminal's clipboard"
