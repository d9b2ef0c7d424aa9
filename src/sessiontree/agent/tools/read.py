"""The `read` tool: text files by lines, and images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, BinaryIO

from msgspec import Meta, Struct

from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput
from sessiontree.agent.tools.confined import confinable
from sessiontree.agent.tools.files import SNIFF, check_regular, image_in, is_binary, resolve_mention
from sessiontree.agent.tools.output import BYTES, LINES, head
from sessiontree.core.figures import pluralize
from sessiontree.hooks.calling import in_thread

COUNTED = 64 << 20
"""The lines of larger files are not counted, in bytes."""


class Arguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The file, relative to the working folder or absolute.")]
    offset: Annotated[int, Meta(ge=1, description="The first line to read, counting from 1.")] = 1
    limit: Annotated[int, Meta(ge=1, description="How many lines to read.")] = LINES


async def run(context: ToolContext) -> ToolOutput:
    return await in_thread(_read, context.arguments, context.cwd)


def _read(arguments: Arguments, cwd: str) -> ToolOutput:
    path = resolve_mention(arguments.path, cwd)
    size = check_regular(path, arguments.path).st_size
    try:
        with open(path, "rb") as file:
            image = image_in(file, arguments.path)
            if image is not None:
                said = {"type": "text", "text": f"{arguments.path} is an image ({image['mimeType']})."}
                return ToolOutput(content=[said, image])
            if is_binary(file.read(SNIFF)):
                raise ToolError(f"{arguments.path} is a binary file of {size} bytes")
            file.seek(0)
            return _text(arguments, file, size)
    except OSError as error:
        raise ToolError(f"{arguments.path}: {error.strerror or error}") from error


def _text(arguments: Arguments, file: BinaryIO, size: int) -> ToolOutput:
    first, limit = arguments.offset, min(arguments.limit, LINES)
    lines: list[str] = []
    held = total = 0
    for total, raw in enumerate(_lines(file), 1):
        if total >= first:
            if len(lines) == limit or held > BYTES:
                if size > COUNTED:
                    break
                continue
            lines.append(raw.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r"))
            held += len(raw)
    if first > max(total, 1):
        raise ToolError(f"{arguments.path} has {pluralize(total, 'line')}, so there is no line {first}")
    if not lines:
        return ToolOutput(content=f"{arguments.path} is empty.")
    shown = head(lines)
    last = first + shown.lines - 1
    notes: list[str] = []
    if len(shown.text) < len(lines[0]):
        notes.append(f"Line {last} is longer than {BYTES} bytes: this is its beginning.")
    if last < total:
        of = f" of {total}" if size <= COUNTED else ""
        notes.append(f"These are lines {first} to {last}{of}. Go on with offset={last + 1}.")
    return ToolOutput(content=f"{shown.text}\n\n[{' '.join(notes)}]" if notes else shown.text)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Each line, of very long ones the beginning."""
    most = BYTES + 2
    while raw := file.readline(most):
        yield raw
        while len(raw) == most and not raw.endswith(b"\n"):
            raw = file.readline(most)


read = Tool(
    name="read",
    description="Read a text file, or look at an image (png, jpeg, gif, webp). "
    f"At most {LINES} lines or {BYTES} bytes at once: go on with offset.",
    run=confinable(run),
    arguments=Arguments,
    concurrent=True,
    does="reads",
    paths=("path",),
)
