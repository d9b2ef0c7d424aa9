"""The external editor: a text written in `$VISUAL` or `$EDITOR` while the app steps aside."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from typing import Any

from textual.app import App, SuspendNotSupported

from sessiontree.errors import InvalidOperation


def edited(app: App[Any], text: str) -> str | None:
    """The text as the editor leaves it; `None` when it failed, which is told."""
    try:
        return _edit(app, text)
    except InvalidOperation as error:
        app.notify(str(error), severity="error", markup=False)
        return None


def _edit(app: App[Any], text: str) -> str:
    command = _command()
    with tempfile.TemporaryDirectory(prefix="sessiontree-") as folder:
        path = os.path.join(folder, "message.md")
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        try:
            with app.suspend():
                code = subprocess.run([*command, path], check=False).returncode
        except (OSError, SuspendNotSupported) as error:
            raise InvalidOperation(f"{command[0]} cannot be run here: {error or 'no terminal'}") from error
        app.refresh(layout=True)
        if code != 0:
            raise InvalidOperation(f"{command[0]} ended with code {code}: the text is as it was")
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().removesuffix("\n")


def _command() -> list[str]:
    for name in ("VISUAL", "EDITOR"):
        said = os.environ.get(name, "")
        if said.strip():
            try:
                return shlex.split(said)
            except ValueError as error:
                raise InvalidOperation(f"${name} is no command: {error}") from error
    return ["vi"]
