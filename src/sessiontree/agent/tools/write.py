"""The `write` tool: a whole file, new or in place of an old one, with the difference that makes."""

from __future__ import annotations

import os
from typing import Annotated

from msgspec import Meta, Struct

from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput
from sessiontree.agent.tools.file_access import (
    SNIFF_BYTES,
    check_regular,
    is_binary,
    resolve_path,
    run_to_end,
    write_atomically,
)
from sessiontree.agent.tools.sandboxed_call import confinable
from sessiontree.agent.tools.unified_diff import TextChange, build_unified_diff, truncate_diff
from sessiontree.core.entries import JsonObject
from sessiontree.core.number_text import pluralize

MAX_DIFFED_BYTES = 1 << 20
"""Of files with more bytes no difference is made."""


class WriteArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The file, relative to the working folder or absolute.")]
    content: Annotated[str, Meta(description="All that the file is to hold.")]


async def run_write(context: ToolContext) -> ToolOutput:
    return await run_to_end(_write_file, context.arguments, context.cwd)


def _write_file(arguments: WriteArguments, cwd: str) -> ToolOutput:
    path = os.path.realpath(resolve_path(arguments.path, cwd))
    existed = os.path.exists(path)
    if existed:
        check_regular(path, arguments.path)
    try:
        data = arguments.content.encode()
        before = _read_old_text(path) if existed else None
        write_atomically(path, data)
    except UnicodeEncodeError:
        raise ToolError("content has half of a surrogate pair, which no file of text can hold") from None
    except OSError as error:
        raise ToolError(f"{arguments.path}: {error.strerror or error}") from error
    return ToolOutput(
        content=f"{'Wrote over' if existed else 'Wrote'} {arguments.path}: {pluralize(len(data), 'byte')}.",
        details=None if before is None else _build_diff_details(before, arguments),
    )


def _read_old_text(path: str) -> str | None:
    """The text of a file that is to be replaced; `None` where no difference is made: a large or a binary one."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_DIFFED_BYTES + 1)
    except OSError:
        return None
    return None if len(raw) > MAX_DIFFED_BYTES or is_binary(raw[:SNIFF_BYTES]) else raw.decode("utf-8", "replace")


def _build_diff_details(before: str, arguments: WriteArguments) -> JsonObject | None:
    after = arguments.content
    if before == after or len(after) > MAX_DIFFED_BYTES:
        return None
    made = build_unified_diff(before, [TextChange(0, len(before), after)], arguments.path)
    first = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), None)
    at = min(len(before), len(after)) if first is None else first
    return {"diff": truncate_diff(made), "firstChangedLine": before.count("\n", 0, at) + 1}


write = Tool(
    name="write",
    description="Write a file as a whole, its folders included. What the file held before is replaced: "
    "to change a part of it, use edit.",
    run=confinable(run_write),
    arguments=WriteArguments,
    does="edits",
    paths=("path",),
)
