"""The `read` tool: text files by lines, and images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, BinaryIO

from msgspec import Meta, Struct

from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput
from sessiontree.agent.tools.file_access import SNIFF_BYTES, check_regular, is_binary, read_image, resolve_mention
from sessiontree.agent.tools.output_limits import MAX_BYTES, MAX_LINES, fit_lines
from sessiontree.agent.tools.sandboxed_call import confinable
from sessiontree.core.number_text import pluralize
from sessiontree.hooks.invoke import run_in_thread

MAX_COUNTED_BYTES = 64 << 20
"""The lines of larger files are not counted, in bytes."""


class ReadArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The file, relative to the working folder or absolute.")]
    offset: Annotated[int, Meta(ge=1, description="The first line to read, counting from 1.")] = 1
    limit: Annotated[int, Meta(ge=1, description="How many lines to read.")] = MAX_LINES


async def run_read(context: ToolContext) -> ToolOutput:
    return await run_in_thread(_read_file, context.arguments, context.cwd)


def _read_file(arguments: ReadArguments, cwd: str) -> ToolOutput:
    path = resolve_mention(arguments.path, cwd)
    size = check_regular(path, arguments.path).st_size
    try:
        with open(path, "rb") as file:
            image = read_image(file, arguments.path)
            if image is not None:
                said = {"type": "text", "text": f"{arguments.path} is an image ({image['mimeType']})."}
                return ToolOutput(content=[said, image])
            if is_binary(file.read(SNIFF_BYTES)):
                raise ToolError(f"{arguments.path} is a binary file of {size} bytes")
            file.seek(0)
            return _read_text(arguments, file, size)
    except OSError as error:
        raise ToolError(f"{arguments.path}: {error.strerror or error}") from error


def _read_text(arguments: ReadArguments, file: BinaryIO, size: int) -> ToolOutput:
    first, limit = arguments.offset, min(arguments.limit, MAX_LINES)
    lines: list[str] = []
    held = total = 0
    for total, raw in enumerate(_read_lines(file), 1):
        if total >= first:
            if len(lines) == limit or held > MAX_BYTES:
                if size > MAX_COUNTED_BYTES:
                    break
                continue
            lines.append(raw.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r"))
            held += len(raw)
    if first > max(total, 1):
        raise ToolError(f"{arguments.path} has {pluralize(total, 'line')}, so there is no line {first}")
    if not lines:
        return ToolOutput(content=f"{arguments.path} is empty.")
    shown = fit_lines(lines)
    last = first + shown.lines - 1
    notes: list[str] = []
    if len(shown.text) < len(lines[0]):
        notes.append(f"Line {last} is longer than {MAX_BYTES} bytes: this is its beginning.")
    if last < total:
        of = f" of {total}" if size <= MAX_COUNTED_BYTES else ""
        notes.append(f"These are lines {first} to {last}{of}. Go on with offset={last + 1}.")
    return ToolOutput(content=f"{shown.text}\n\n[{' '.join(notes)}]" if notes else shown.text)


def _read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Each line, of very long ones the beginning."""
    most = MAX_BYTES + 2
    while raw := file.readline(most):
        yield raw
        while len(raw) == most and not raw.endswith(b"\n"):
            raw = file.readline(most)


read = Tool(
    name="read",
    description="Read a text file, or look at an image (png, jpeg, gif, webp). "
    f"At most {MAX_LINES} lines or {MAX_BYTES} bytes at once: go on with offset.",
    run=confinable(run_read),
    arguments=ReadArguments,
    concurrent=True,
    does="reads",
    paths=("path",),
)
