"""Homes: the folder where sessiontree keeps its files, and the user's own. What files say is read elsewhere."""

from __future__ import annotations

import os

CONFIG = "config.toml"
"""The configuration, in the home."""


def home() -> str:
    """Where sessiontree keeps its files. A relative `SESSIONTREE_HOME` is taken from the current folder."""
    return os.path.abspath(os.path.expanduser(os.environ.get("SESSIONTREE_HOME") or "~/.sessiontree"))


def user_homes() -> list[str]:
    """The user's own home, to be taken out of exports; none where it is no folder of one's own."""
    folder = os.path.expanduser("~")
    return [folder] if folder.startswith(os.sep) and len(folder) > 1 else []
