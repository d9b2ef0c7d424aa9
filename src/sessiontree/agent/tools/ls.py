"""The `ls` tool: what is in a folder."""

from __future__ import annotations

import os
from typing import Annotated

from msgspec import Meta, Struct

from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput
from sessiontree.agent.tools.file_access import format_path, resolve_mention
from sessiontree.agent.tools.output_limits import fit_lines
from sessiontree.agent.tools.sandboxed_call import confinable
from sessiontree.hooks.invoke import run_in_thread

DEFAULT_LS_LIMIT = 500


class LsArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The folder; the working folder unless given.")] = "."
    limit: Annotated[int, Meta(ge=1, description=f"How many names at most; {DEFAULT_LS_LIMIT} unless given.")] = (
        DEFAULT_LS_LIMIT
    )


async def run_ls(context: ToolContext) -> ToolOutput:
    return await run_in_thread(_list_folder, context.arguments, context.cwd)


def _list_folder(arguments: LsArguments, cwd: str) -> ToolOutput:
    path = resolve_mention(arguments.path, cwd)
    try:
        with os.scandir(path) as found:
            names = sorted(format_path(entry.name) + "/" * entry.is_dir() for entry in found)
    except FileNotFoundError:
        raise ToolError(f"there is no folder {arguments.path}") from None
    except OSError as error:
        raise ToolError(f"{arguments.path}: {error.strerror or error}") from error
    if not names:
        return ToolOutput(content=f"{arguments.path} is empty.")
    shown = fit_lines(names, limit=arguments.limit)
    note = "" if shown.whole else f"\n\n[{shown.lines} of {len(names)} names]"
    return ToolOutput(content=shown.text + note)


ls = Tool(
    name="ls",
    description="List a folder: all names in it, in order, folders with a slash behind them.",
    run=confinable(run_ls),
    arguments=LsArguments,
    concurrent=True,
    does="reads",
    paths=("path",),
)
