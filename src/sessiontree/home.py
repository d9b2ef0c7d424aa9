"""The home: the folder where sessiontree keeps its files. What they say is read elsewhere."""

from __future__ import annotations

import os

CONFIG = "config.toml"
"""The configuration, in the home."""


def home() -> str:
    """Where sessiontree keeps its files. A relative `SESSIONTREE_HOME` is taken from the current folder."""
    return os.path.abspath(os.path.expanduser(os.environ.get("SESSIONTREE_HOME") or "~/.sessiontree"))
