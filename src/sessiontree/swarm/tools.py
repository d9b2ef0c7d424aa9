"""Tools that work was begun with, found again by their names when it goes on. What tools do is not here."""

from __future__ import annotations

from collections.abc import Sequence

from sessiontree.agent.tool import Tool
from sessiontree.errors import InvalidOperation


def select_original_tools(work: str, names: Sequence[str] | None, tools: Sequence[Tool]) -> Sequence[Tool]:
    """Those of `tools` that some work was begun with; all where it does not say. Raises `InvalidOperation`."""
    if names is None:
        return tools
    had = {tool.name: tool for tool in tools}
    lacking = [name for name in names if name not in had]
    if lacking:
        what = f"{'tool' if len(lacking) == 1 else 'tools'} {', '.join(lacking)}"
        raise InvalidOperation(f"{work} was begun with {what}, which cannot be had here")
    return [had[name] for name in names]
