"""The external editor: a text written in `$VISUAL` or `$EDITOR` while the app steps aside and works on."""

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

WORKER_GROUP = "outside"


def edit_externally(app: App[Any], text: str, done: Callable[[str], None]) -> None:
    """Have a text edited, and hand it over as the editor leaves it; if that fails, it is told. One has the terminal."""
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
            raise InvalidOperation(f"{command[0]} cannot be run here: {code}")
        if code != 0:
            raise InvalidOperation(f"{command[0]} ended with code {code}: the text is as it was")
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().removesuffix("\n")


async def _run_editor(app: App[Any], command: list[str]) -> int | OSError:
    """Run a program that has the terminal meanwhile: the code that it ends with, or why it did not begin.

    What is raised while the app has stepped aside has it stay there, which is right only where it ends. What is printed
    here goes to the app as ever, where Textual would have it on the terminal.
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
    """While another program has the terminal: the interrupts that one types are for it."""

    def ignore_signal(number: int, frame: FrameType | None) -> None:  # ignored as such, it would be by the program too
        pass

    before = signal.signal(signal.SIGINT, ignore_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _find_editor_command() -> list[str]:
    for name in ("VISUAL", "EDITOR"):
        said = os.environ.get(name, "")
        if said.strip():
            try:
                return shlex.split(said)
            except ValueError as error:
                raise InvalidOperation(f"${name} is no command: {error}") from error
    return ["vi"]
