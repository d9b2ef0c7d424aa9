"""The `write` tool: a whole file, new or in place of an old one."""

from __future__ import annotations

import os
from typing import Annotated

from msgspec import Meta, Struct

from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput
from sessiontree.agent.tools.files import check_regular, resolve, to_its_end, write_whole


class Arguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The file, relative to the working folder or absolute.")]
    content: Annotated[str, Meta(description="All that the file is to hold.")]


async def run(context: ToolContext) -> ToolOutput:
    return await to_its_end(_write, context.arguments, context.cwd)


def _write(arguments: Arguments, cwd: str) -> ToolOutput:
    path = os.path.realpath(resolve(arguments.path, cwd))
    existed = os.path.exists(path)
    if existed:
        check_regular(path, arguments.path)
    try:
        data = arguments.content.encode()
        write_whole(path, data)
    except UnicodeEncodeError:
        raise ToolError("content has half of a surrogate pair, which no file of text can hold") from None
    except OSError as error:
        raise ToolError(f"{arguments.path}: {error.strerror or error}") from error
    return ToolOutput(content=f"{'Wrote over' if existed else 'Wrote'} {arguments.path}: {len(data)} bytes.")


write = Tool(
    name="write",
    description="Write a file as a whole, its folders included. What the file held before is replaced: "
    "to change a part of it, use edit.",
    run=run,
    arguments=Arguments,
    does="edits",
    paths=("path",),
)
