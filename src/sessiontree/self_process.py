"""Twins: how work is given to another process that is this same program. Starting it is for whoever asks."""

from __future__ import annotations

import os
import sys


def build_self_command(module: str, *arguments: str) -> list[str]:
    """The command that calls `main` of a module: with the modules of here, and no others of the current folder."""
    paths = [path for path in sys.path if os.path.isabs(path)]
    code = f"import sys; sys.path[:] = {paths!r}; from {module} import main; main()"
    return [sys.executable, "-I", "-c", code, *arguments]
