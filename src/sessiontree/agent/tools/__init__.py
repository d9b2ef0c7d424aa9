"""The built-in tools: reading, writing and editing files, finding them, and running commands."""

from __future__ import annotations

from sessiontree.agent.tool import Tool
from sessiontree.agent.tools.bash_tool import bash
from sessiontree.agent.tools.file_tools import edit, ls, read, write
from sessiontree.agent.tools.search_tools import find, grep
from sessiontree.errors import NotFound

BUILTIN_TOOLS: dict[str, Tool] = {tool.name: tool for tool in (read, write, edit, bash, grep, find, ls)}
"""By name."""


def builtin_tools(*names: str) -> tuple[Tool, ...]:
    """The built-in tools of these names, all of them when none is given. Raises `NotFound`."""
    for name in names:
        if name not in BUILTIN_TOOLS:
            raise NotFound("tool", name, f"there are {', '.join(BUILTIN_TOOLS)}")
    return tuple(BUILTIN_TOOLS[name] for name in names or BUILTIN_TOOLS)
