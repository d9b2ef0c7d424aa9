"""The command that runs a module of this program in another process."""

from __future__ import annotations

import os
import sys


def build_self_command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls `main` of a module. The current folder is not on its import path."""
    paths = [path for path in sys.path if os.path.isabs(path)]
    code = f"import sys; sys.path[:] = {paths!r}; from {module} import main; main()"
    return [sys.executable, "-I", "-c", code, *arguments]
