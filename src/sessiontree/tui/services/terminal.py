"""Terminal output that survives a closed or suspended terminal, and the terminal's clipboard.

Textual writes in a thread that stops at the first failed write or when the app is suspended. Once the queue of that
thread is full, the app would block forever and keep its session open.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TextIO

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from sessiontree.core.number_text import pluralize


class TolerantFile:
    """A file that ignores write errors."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()


class TerminalDriver(LinuxDriver):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]
        self._file: Any = TolerantFile(self._file)
        self._is_suspended = False

    def suspend_application_mode(self) -> None:
        super().suspend_application_mode()
        self._is_suspended = True

    def resume_application_mode(self) -> None:
        self._is_suspended = False
        super().resume_application_mode()

    def write(self, data: str) -> None:
        if not self._is_suspended:
            super().write(data)


NOTHING_TO_COPY = "Nothing to copy"


def send_to_clipboard(app: App[Any], text: str) -> str:
    """Copy a text with an escape sequence (OSC 52), unless it is blank. Return a message for the user.

    Terminals do not confirm OSC 52, so the message only claims that the text was sent.
    """
    if not text.strip():
        return NOTHING_TO_COPY
    app.copy_to_clipboard(text.encode("utf-8", "replace").decode())
    return f"Sent {pluralize(len(text), 'character')} to the terminal's clipboard"
