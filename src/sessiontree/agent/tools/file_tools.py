"""The `edit` tool: one exact piece of a file replaced by another. It never guesses which one is meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from sessiontree.core.number_text import pluralize

MAX_EDIT_BYTES = 32 << 20
"""Files larger than this are not edited."""


class EditArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The file, relative to the working folder or absolute.")]
    old_text: Annotated[str, Meta(min_length=1, description="What stands there now, letter by letter.")]
    new_text: Annotated[str, Meta(description="What shall stand there instead.")]
    replace_all: Annotated[bool, Meta(description="Replace it wherever it stands.")] = False


async def run_edit(context: ToolContext) -> ToolOutput:
    return await run_to_end(_edit_file, context.arguments, context.cwd)


def _edit_file(arguments: EditArguments, cwd: str) -> ToolOutput:
    path = resolve_path(arguments.path, cwd)
    if check_regular(path, arguments.path).st_size > MAX_EDIT_BYTES:
        raise ToolError(f"{arguments.path} is larger than {MAX_EDIT_BYTES >> 20} MiB, which is too large to edit")
    try:
        arguments.new_text.encode()
        with open(path, "rb") as file:
            raw = file.read()
        if is_binary(raw[:SNIFF_BYTES]):
            raise ToolError(f"{arguments.path} is a binary file")
        text = raw.decode("utf-8", "surrogateescape")
        changes = _find_changes(text, arguments)
        write_atomically(path, _apply_changes(text, changes).encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise ToolError("new_text has half of a surrogate pair, which no file of text can hold") from None
    except OSError as error:
        raise ToolError(f"{arguments.path}: {error.strerror or error}") from error
    line, more = text.count("\n", 0, changes[0].start) + 1, len(changes) - 1
    others = f", and at {pluralize(more, 'more place')}" if more else ""
    return ToolOutput(
        content=f"Edited {arguments.path} at line {line}{others}.",
        details={"diff": truncate_diff(build_unified_diff(text, changes, arguments.path)), "firstChangedLine": line},
    )


def _find_changes(text: str, arguments: EditArguments) -> list[TextChange]:
    """What is to be changed, in order. Ends of lines stay as the file has them."""
    old, new = arguments.old_text, arguments.new_text
    if "\r\n" in text and old not in text:
        old, new = _convert_to_crlf(old), _convert_to_crlf(new)
    if old == new:
        raise ToolError("old_text and new_text are the same, so there is nothing to edit")
    places = _find_places(text, old, len(old) if arguments.replace_all else 1)
    if not places:
        raise ToolError(f"old_text does not stand in {arguments.path}{_build_hint(text, old)}")
    if len(places) > 1 and not arguments.replace_all:
        lines = ", ".join(str(text.count("\n", 0, place) + 1) for place in places[:10])
        raise ToolError(
            f"old_text stands in {arguments.path} {len(places)} times, at lines {lines}: "
            "give more of what is round it, or replace_all"
        )
    if "\n" in old or "\n" not in new:
        return [TextChange(place, place + len(old), new) for place in places]
    crlf = _convert_to_crlf(new)
    return [
        TextChange(place, place + len(old), crlf if ends_so else new)
        for place, ends_so in zip(places, _detect_crlf(text, places), strict=True)
    ]


def _apply_changes(text: str, changes: Sequence[TextChange]) -> str:
    pieces: list[str] = []
    at = 0
    for change in changes:
        pieces += text[at : change.start], change.new
        at = change.end
    return "".join((*pieces, text[at:]))


def _convert_to_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _detect_crlf(text: str, places: Sequence[int]) -> Iterator[bool]:
    """Whether each place, in order, is in a line that ends with CRLF; the last line is as the one before it."""
    end, crlf = -1, False
    for place in places:
        if place > end:
            found = text.find("\n", place)
            crlf = text.endswith("\r", 0, found if found >= 0 else max(0, text.rfind("\n", 0, place)))
            end = found if found >= 0 else len(text)
        yield crlf


def _find_places(text: str, piece: str, step: int) -> list[int]:
    """Where `piece` stands. Places may overlap, and either could be meant, unless `step` takes one after the other."""
    places: list[int] = []
    at = text.find(piece)
    while at >= 0:
        places.append(at)
        at = text.find(piece, at + step)
    return places


def _build_hint(text: str, piece: str) -> str:
    """Where something stands that differs in blanks alone."""
    wanted = [line.strip() for line in piece.strip("\n").split("\n")]
    lines = [line.strip() for line in text.split("\n")]
    for start in range(len(lines) - len(wanted) + 1):
        if lines[start : start + len(wanted)] == wanted:
            return f"; what stands at line {start + 1} differs from it in blanks"
    return "; read the file again and copy it letter by letter"


edit = Tool(
    name="edit",
    description="Replace a piece of a text file. old_text must stand in the file exactly once, blanks and ends of "
    "lines included.",
    run=confinable(run_edit),
    arguments=EditArguments,
    does="edits",
    paths=("path",),
)
