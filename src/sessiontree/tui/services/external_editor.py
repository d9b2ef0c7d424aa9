"""Edit a text in `$VISUAL` or `$EDITOR` while the app is suspended."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import FrameType
from typing import Any

from textual.app import App, SuspendNotSupported

from sessiontree.errors import InvalidOperation

WORKER_GROUP = "external-editor"


def edit_externally(app: App[Any], text: str, done: Callable[[str], None]) -> None:
    """Open a text in the external editor and pass the result to `done`. Only one editor runs at a time."""
    if not any(worker.group == WORKER_GROUP for worker in app.workers):
        app.run_worker(_edit_and_report(app, text, done), group=WORKER_GROUP, exit_on_error=False)


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
