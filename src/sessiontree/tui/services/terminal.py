"""The terminal: output that survives a closed or suspended terminal, the clipboard, and the external editor.

Textual writes in a thread that stops at the first failed write or when the app is suspended. Once the queue of that
thread is full, the app would block forever and keep its session open.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from types import FrameType
from typing import Any, TextIO

from textual.app import App, SuspendNotSupported
from textual.drivers.linux_driver import LinuxDriver

from sessiontree.core.number_text import pluralize
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import InvalidOperation


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
        self._title = ""

    def start_application_mode(self) -> None:
        super().start_application_mode()
        self.write(SAVE_TITLE)

    def stop_application_mode(self) -> None:
        self.write(RESTORE_TITLE)
        super().stop_application_mode()

    def set_title(self, title: str) -> None:
        """Set the title of the terminal. The old one returns when the app ends."""
        if title != self._title:
            self._title = title
            self.write(f"\x1b]0;{title}\x07")

    def suspend_application_mode(self) -> None:
        super().suspend_application_mode()
        self._is_suspended = True

    def resume_application_mode(self) -> None:
        self._is_suspended = False
        super().resume_application_mode()

    def write(self, data: str) -> None:
        if not self._is_suspended:
            super().write(data)


SAVE_TITLE, RESTORE_TITLE = "\x1b[22;0t", "\x1b[23;0t"


def set_terminal_title(app: App[Any], title: str) -> None:
    driver = app._driver  # pyright: ignore[reportPrivateUsage]
    if isinstance(driver, TerminalDriver):
        driver.set_title(escape_line(title))


def notify_desktop(app: App[Any], text: str) -> None:
    """Ring the bell, and send a notification (OSC 9) to terminals that show them."""
    driver = app._driver  # pyright: ignore[reportPrivateUsage]
    if isinstance(driver, TerminalDriver):
        driver.write(f"\x1b]9;{escape_line(text)}\x1b\\\a")


NOTHING_TO_COPY = "Nothing to copy"


def send_to_clipboard(app: App[Any], text: str) -> str:
    """Copy a text with an escape sequence (OSC 52), unless it is blank. Return a message for the user.

    Terminals do not confirm OSC 52, so the message only claims that the text was sent.
    """
    if not text.strip():
        return NOTHING_TO_COPY
    app.copy_to_clipboard(text.encode("utf-8", "replace").decode())
    sent = f"Sent {pluralize(len(text), 'character')} to the terminal's clipboard"
    if os.environ.get("TMUX"):
        return f"{sent}; tmux passes it on with `set -g set-clipboard on`"
    return f"{sent}; it must allow this over ssh" if is_over_ssh() else sent


def is_over_ssh() -> bool:
    return bool(os.environ.get("SSH_TTY") or os.environ.get("SSH_CONNECTION"))


EDITOR_WORKERS = "external-editor"


def edit_externally(app: App[Any], text: str, done: Callable[[str], None]) -> None:
    """Open a text in `$VISUAL` or `$EDITOR` and pass the result to `done`. Only one editor runs at a time."""
    if not any(worker.group == EDITOR_WORKERS for worker in app.workers):
        app.run_worker(_edit_and_report(app, text, done), group=EDITOR_WORKERS, exit_on_error=False)


async def _edit_and_report(app: App[Any], text: str, done: Callable[[str], None]) -> None:
    try:
        written = await _edit_in_file(app, text)
    except InvalidOperation as error:
        app.notify(str(error), severity="error", markup=False)
    else:
        done(written)


async def _edit_in_file(app: App[Any], text: str) -> str:
    command = _find_editor_command()
    with tempfile.TemporaryDirectory(prefix="sessiontree-") as folder:
        path = os.path.join(folder, "message.md")
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        code = await _run_editor(app, [*command, path])
        app.refresh(layout=True)
        if isinstance(code, OSError):
            raise InvalidOperation(f"cannot run {command[0]}: {code}")
        if code != 0:
            raise InvalidOperation(f"{command[0]} exited with code {code}; the text is unchanged")
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().removesuffix("\n")


async def _run_editor(app: App[Any], command: list[str]) -> int | OSError:
    """Run a program in the terminal. Return its exit code, or the error that prevented its start.

    Errors are returned because Textual does not resume the app if `suspend` exits with an exception. Output of this
    process stays redirected to the app, so it does not disturb the program.
    """
    out, err = sys.stdout, sys.stderr
    try:
        with app.suspend(), redirect_stdout(out), redirect_stderr(err), _ignore_interrupts():
            try:
                process = await asyncio.create_subprocess_exec(*command)
            except OSError as error:
                return error
            try:
                return await process.wait()
            except asyncio.CancelledError:
                process.terminate()
                raise
    except SuspendNotSupported as error:
        return OSError(str(error) or "no terminal")


@contextmanager
def _ignore_interrupts() -> Generator[None]:
    """Ignore Ctrl+C while another program uses the terminal."""

    def ignore_signal(number: int, frame: FrameType | None) -> None:  # SIG_IGN would be inherited by the program
        pass

    before = signal.signal(signal.SIGINT, ignore_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _find_editor_command() -> list[str]:
    for name in ("VISUAL", "EDITOR"):
        value = os.environ.get(name, "")
        if value.strip():
            try:
                return shlex.split(value)
            except ValueError as error:
                raise InvalidOperation(f"cannot parse ${name}: {error}") from error
    return ["vi"]
