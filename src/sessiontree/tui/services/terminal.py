"""The terminal that the app draws on, which may be closed under it, or lent to another program: what is written then
goes nowhere.

Textual writes in a thread that ends with the first write that fails, or when the app steps aside, and waits for it for
ever when it has more to write than the thread's queue holds: a process that nobody sees would keep its session open.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TextIO

from textual.drivers.linux_driver import LinuxDriver


class TolerantFile:
    """A file to write to, whatever becomes of it."""

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
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)  # pyright: ignore[reportUnknownMemberType]
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
