"""The built-in tools: read, write, edit, find and list files, and run commands."""

from __future__ import annotations

from sessiontree.agent.tool import Tool
from sessiontree.agent.tools.bash_tool import bash
from sessiontree.agent.tools.file_tools import edit, ls, read, write
from sessiontree.agent.tools.search_tools import find, grep
from sessiontree.errors import NotFound

BUILTIN_TOOLS: dict[str, Tool] = {tool.name: tool for tool in (read, write, edit, bash, grep, find, ls)}
"""The built-in tools by name."""


def builtin_tools(*names: str) -> tuple[Tool, ...]:
    """Return the built-in tools with these names, or all of them. Raises `NotFound`."""
    for name in names:
        if name not in BUILTIN_TOOLS:
            raise NotFound("tool", name, f"tools: {', '.join(BUILTIN_TOOLS)}")
    return tuple(BUILTIN_TOOLS[name] for name in names or BUILTIN_TOOLS)
