"""Where this program lives: its home folder, the home folder of the user, and the command that starts it again."""

from __future__ import annotations

import os
import sys

CONFIG_NAME = "config.toml"
"""The configuration file in the home folder."""

PUBLIC_FILES = frozenset({CONFIG_NAME, "AGENTS.md", "CLAUDE.md"})
"""Files in the home folder that tools may read."""


def get_home() -> str:
    """Return the home folder of sessiontree. A relative `SESSIONTREE_HOME` is resolved in the current folder."""
    return os.path.abspath(os.path.expanduser(os.environ.get("SESSIONTREE_HOME") or "~/.sessiontree"))


def is_private(path: str) -> bool:
    """Return whether `path` leads to a file in the home folder that tools must not touch, such as tokens.

    Configuration and instructions are not private, and neither are files in subfolders, such as extensions.
    """
    real = os.path.realpath(path)
    folder, name = os.path.split(real)
    return name not in PUBLIC_FILES and folder == os.path.realpath(get_home()) and not os.path.isdir(real)


def is_below(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or inside it. Both must be real paths, without links."""
    return path == folder or path.startswith(os.path.join(folder, ""))


def list_user_homes() -> list[str]:
    """Return the home folder of the user, for redaction; nothing if it is `/` or not absolute."""
    folder = os.path.expanduser("~")
    return [folder] if folder.startswith(os.sep) and len(folder) > 1 else []


def build_self_command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls `main` of a module in a new process of this program.

    The current folder is not on its import path.
    """
    paths = [path for path in sys.path if os.path.isabs(path)]
    code = f"import sys; sys.path[:] = {paths!r}; from {module} import main; main()"
    return [sys.executable, "-I", "-c", code, *arguments]
