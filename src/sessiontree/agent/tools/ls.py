"""The `ls` tool: what is in a folder."""

from __future__ import annotations

import os
from typing import Annotated

from msgspec import Meta, Struct

from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput
from sessiontree.agent.tools.confined import confinable
from sessiontree.agent.tools.files import as_text, resolve_mention
from sessiontree.agent.tools.output import head
from sessiontree.hooks.calling import in_thread

LIMIT = 500


class Arguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The folder; the working folder unless given.")] = "."
    limit: Annotated[int, Meta(ge=1, description=f"How many names at most; {LIMIT} unless given.")] = LIMIT


async def run(context: ToolContext) -> ToolOutput:
    return await in_thread(_list, context.arguments, context.cwd)


def _list(arguments: Arguments, cwd: str) -> ToolOutput:
    path = resolve_mention(arguments.path, cwd)
    try:
        with os.scandir(path) as found:
            names = sorted(as_text(entry.name) + "/" * entry.is_dir() for entry in found)
    except FileNotFoundError:
        raise ToolError(f"there is no folder {arguments.path}") from None
    except OSError as error:
        raise ToolError(f"{arguments.path}: {error.strerror or error}") from error
    if not names:
        return ToolOutput(content=f"{arguments.path} is empty.")
    shown = head(names, limit=arguments.limit)
    note = "" if shown.whole else f"\n\n[{shown.lines} of {len(names)} names]"
    return ToolOutput(content=shown.text + note)


ls = Tool(
    name="ls",
    description="List a folder: all names in it, in order, folders with a slash behind them.",
    run=confinable(run),
    arguments=Arguments,
    concurrent=True,
    does="reads",
    paths=("path",),
)
