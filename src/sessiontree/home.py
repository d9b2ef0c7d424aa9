"""Homes: the folder where sessiontree keeps its files, and the user's own. What files say is read elsewhere."""

from __future__ import annotations

import os

CONFIG_NAME = "config.toml"
"""The configuration, in the home."""

PUBLIC_FILES = frozenset({CONFIG_NAME, "AGENTS.md"})
"""Files in the home that anybody who works for the user may look at."""


def get_home() -> str:
    """Where sessiontree keeps its files. A relative `SESSIONTREE_HOME` is taken from the current folder."""
    return os.path.abspath(os.path.expanduser(os.environ.get("SESSIONTREE_HOME") or "~/.sessiontree"))


def is_private(path: str) -> bool:
    """Whether `path` leads to a file in the home that no tool may touch: tokens, trust and whatever else is there.

    Configuration and instructions are not private, nor is what lies in folders, such as extensions.
    """
    real = os.path.realpath(path)
    folder, name = os.path.split(real)
    return name not in PUBLIC_FILES and folder == os.path.realpath(get_home()) and not os.path.isdir(real)


def is_below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies in it. Both are real paths, without links."""
    return path == folder or path.startswith(os.path.join(folder, ""))


def list_user_homes() -> list[str]:
    """The user's own home, to be taken out of exports; none where it is no folder of one's own."""
    folder = os.path.expanduser("~")
    return [folder] if folder.startswith(os.sep) and len(folder) > 1 else []
