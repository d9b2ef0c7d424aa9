"""The home folder of sessiontree, and the home folder of the user."""

from __future__ import annotations

import os

CONFIG_NAME = "config.toml"
"""The configuration file in the home folder."""

PUBLIC_FILES = frozenset({CONFIG_NAME, "AGENTS.md"})
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
