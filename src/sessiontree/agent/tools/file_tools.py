"""The file tools `edit`, `read`, `write` and `ls`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Annotated, BinaryIO

from msgspec import Meta, Struct

from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput
from sessiontree.agent.tools.file_access import (
    SNIFF_BYTES,
    check_regular,
    format_path,
    is_binary,
    read_image,
    resolve_mention,
    resolve_path,
    run_to_end,
    write_atomically,
)
from sessiontree.agent.tools.output_limits import MAX_BYTES, MAX_LINES, fit_lines
from sessiontree.agent.tools.sandboxed_call import confinable
from sessiontree.agent.tools.unified_diff import TextChange, build_unified_diff, truncate_diff
from sessiontree.core.entries import JsonObject
from sessiontree.core.number_text import pluralize
from sessiontree.hooks.bus import run_in_thread

# edit

MAX_EDIT_BYTES = 32 << 20
"""Larger files cannot be edited."""


class EditArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The file, relative to the working folder or absolute.")]
    old_text: Annotated[str, Meta(min_length=1, description="The exact text to replace.")]
    new_text: Annotated[str, Meta(description="The new text.")]
    replace_all: Annotated[bool, Meta(description="Replace all occurrences.")] = False


async def run_edit(context: ToolContext) -> ToolOutput:
    return await run_to_end(_edit_file, context.arguments, context.cwd)


def _edit_file(arguments: EditArguments, cwd: str) -> ToolOutput:
    path = resolve_path(arguments.path, cwd)
    if check_regular(path, arguments.path).st_size > MAX_EDIT_BYTES:
        raise ToolError(f"{arguments.path} is larger than {MAX_EDIT_BYTES >> 20} MiB; it cannot be edited")
    try:
        with open(path, "rb") as file:
            raw = file.read()
        if is_binary(raw[:SNIFF_BYTES]):
            raise ToolError(f"{arguments.path} is a binary file")
        changed, output = edit_text(raw.decode("utf-8", "surrogateescape"), arguments)
        write_atomically(path, changed.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise ToolError(f"{arguments.path}: {error.strerror or error}") from error
    return output


def edit_text(text: str, arguments: EditArguments) -> tuple[str, ToolOutput]:
    """Return the edited text of a file and the output of the tool. Raises `ToolError`."""
    _check_encodable(arguments.new_text, "new_text")
    changes = _find_changes(text, arguments)
    line, more = text.count("\n", 0, changes[0].start) + 1, len(changes) - 1
    others = f", and at {pluralize(more, 'more place')}" if more else ""
    return _apply_changes(text, changes), ToolOutput(
        content=f"Edited {arguments.path} at line {line}{others}.",
        details={"diff": truncate_diff(build_unified_diff(text, changes, arguments.path)), "firstChangedLine": line},
    )


def _check_encodable(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ToolError(f"{name} contains half of a surrogate pair, which cannot be encoded as UTF-8") from None


def _find_changes(text: str, arguments: EditArguments) -> list[TextChange]:
    """Return the changes in order. Line endings of the file are kept."""
    old, new = arguments.old_text, arguments.new_text
    if "\r\n" in text and old not in text:
        old, new = _convert_to_crlf(old), _convert_to_crlf(new)
    if old == new:
        raise ToolError("old_text and new_text are equal")
    places = _find_places(text, old, len(old) if arguments.replace_all else 1)
    if not places:
        raise ToolError(f"old_text not found in {arguments.path}{_build_hint(text, old)}")
    if len(places) > 1 and not arguments.replace_all:
        lines = ", ".join(str(text.count("\n", 0, place) + 1) for place in places[:10])
        raise ToolError(
            f"old_text occurs {len(places)} times in {arguments.path}, at lines {lines}: "
            "include more of the surrounding text, or set replace_all"
        )
    if "\n" in old or "\n" not in new:
        return [TextChange(place, place + len(old), new) for place in places]
    crlf = _convert_to_crlf(new)
    return [
        TextChange(place, place + len(old), crlf if is_crlf else new)
        for place, is_crlf in zip(places, _detect_crlf(text, places), strict=True)
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
    """Yield for each place whether its line ends with CRLF; the last line counts like the one before it."""
    end, crlf = -1, False
    for place in places:
        if place > end:
            found = text.find("\n", place)
            crlf = text.endswith("\r", 0, found if found >= 0 else max(0, text.rfind("\n", 0, place)))
            end = found if found >= 0 else len(text)
        yield crlf


def _find_places(text: str, piece: str, step: int) -> list[int]:
    """Return the positions of `piece`. With a `step` of 1, they may overlap."""
    places: list[int] = []
    at = text.find(piece)
    while at >= 0:
        places.append(at)
        at = text.find(piece, at + step)
    return places


def _build_hint(text: str, piece: str) -> str:
    """Return a hint for the model: a place that differs only in whitespace, or to read the file again."""
    wanted = [line.strip() for line in piece.strip("\n").split("\n")]
    lines = [line.strip() for line in text.split("\n")]
    for start in range(len(lines) - len(wanted) + 1):
        if lines[start : start + len(wanted)] == wanted:
            return f"; the text at line {start + 1} differs only in whitespace"
    return "; read the file again and copy the exact text"


edit = Tool(
    name="edit",
    description="Replace a piece of a text file. old_text must occur in the file exactly once, with the same "
    "whitespace and line endings.",
    run=confinable(run_edit),
    arguments=EditArguments,
    does="edits",
    paths=("path",),
)


# read

MAX_COUNTED_BYTES = 64 << 20
"""The lines of larger files are not counted."""


class ReadArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The file, relative to the working folder or absolute.")]
    offset: Annotated[int, Meta(ge=1, description="The first line to read, counting from 1.")] = 1
    limit: Annotated[int, Meta(ge=1, description="Number of lines to read.")] = MAX_LINES


async def run_read(context: ToolContext) -> ToolOutput:
    return await run_in_thread(_read_file, context.arguments, context.cwd)


def _read_file(arguments: ReadArguments, cwd: str) -> ToolOutput:
    path = resolve_mention(arguments.path, cwd)
    size = check_regular(path, arguments.path).st_size
    try:
        with open(path, "rb") as file:
            image = read_image(file, arguments.path)
            if image is not None:
                note = {"type": "text", "text": f"{arguments.path} is an image ({image['mimeType']})."}
                return ToolOutput(content=[note, image])
            if is_binary(file.read(SNIFF_BYTES)):
                raise ToolError(f"{arguments.path} is a binary file of {size} bytes")
            file.seek(0)
            return read_text(arguments, file, size)
    except OSError as error:
        raise ToolError(f"{arguments.path}: {error.strerror or error}") from error


def read_text(arguments: ReadArguments, file: BinaryIO, size: int) -> ToolOutput:
    """Return the output of the tool for a text file of `size` bytes. Raises `ToolError`."""
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
        raise ToolError(f"{arguments.path} has only {pluralize(total, 'line')}")
    if not lines:
        return ToolOutput(content=f"{arguments.path} is empty.")
    shown = fit_lines(lines)
    last = first + shown.lines - 1
    notes: list[str] = []
    if len(shown.text) < len(lines[0]):
        notes.append(f"Line {last} is longer than {MAX_BYTES} bytes and was cut off.")
    if last < total:
        of = f" of {total}" if size <= MAX_COUNTED_BYTES else ""
        notes.append(f"These are lines {first} to {last}{of}. Continue with offset={last + 1}.")
    return ToolOutput(content=f"{shown.text}\n\n[{' '.join(notes)}]" if notes else shown.text)


def _read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield each line; very long lines are cut off."""
    most = MAX_BYTES + 2
    while raw := file.readline(most):
        yield raw
        while len(raw) == most and not raw.endswith(b"\n"):
            raw = file.readline(most)


read = Tool(
    name="read",
    description="Read a text file, or view an image (png, jpeg, gif, webp). "
    f"At most {MAX_LINES} lines or {MAX_BYTES} bytes at once: continue with offset.",
    run=confinable(run_read),
    arguments=ReadArguments,
    concurrent=True,
    does="reads",
    paths=("path",),
)


# write

MAX_DIFFED_BYTES = 1 << 20
"""Larger files get no diff."""


class WriteArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The file, relative to the working folder or absolute.")]
    content: Annotated[str, Meta(description="The complete content of the file.")]


async def run_write(context: ToolContext) -> ToolOutput:
    return await run_to_end(_write_file, context.arguments, context.cwd)


def _write_file(arguments: WriteArguments, cwd: str) -> ToolOutput:
    path = os.path.realpath(resolve_path(arguments.path, cwd))
    existed = os.path.exists(path)
    if existed:
        check_regular(path, arguments.path)
    _check_encodable(arguments.content, "content")
    try:
        before = _read_old_text(path) if existed else None
        write_atomically(path, arguments.content.encode())
    except OSError as error:
        raise ToolError(f"{arguments.path}: {error.strerror or error}") from error
    return describe_write(arguments, before, existed=existed)


def describe_write(arguments: WriteArguments, before: str | None, *, existed: bool) -> ToolOutput:
    """Return the output of the tool after a write. `before` is the old text, if there is one to compare with."""
    size = len(arguments.content.encode())
    return ToolOutput(
        content=f"{'Replaced' if existed else 'Created'} {arguments.path}: {pluralize(size, 'byte')}.",
        details=None if before is None else _build_diff_details(before, arguments),
    )


def _read_old_text(path: str) -> str | None:
    """Return the old text of a file; `None` for a large or binary file, which gets no diff."""
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
    diff = build_unified_diff(before, [TextChange(0, len(before), after)], arguments.path)
    first = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), None)
    at = min(len(before), len(after)) if first is None else first
    return {"diff": truncate_diff(diff), "firstChangedLine": before.count("\n", 0, at) + 1}


write = Tool(
    name="write",
    description="Write a complete file; missing folders are created. Existing content is replaced: "
    "use edit to change a part of a file.",
    run=confinable(run_write),
    arguments=WriteArguments,
    does="edits",
    paths=("path",),
)


# ls

DEFAULT_LS_LIMIT = 500


class LsArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The folder; default is the working folder.")] = "."
    limit: Annotated[int, Meta(ge=1, description=f"Maximum number of names; default {DEFAULT_LS_LIMIT}.")] = (
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
        raise ToolError(f"folder {arguments.path} not found") from None
    except OSError as error:
        raise ToolError(f"{arguments.path}: {error.strerror or error}") from error
    if not names:
        return ToolOutput(content=f"{arguments.path} is empty.")
    shown = fit_lines(names, limit=arguments.limit)
    note = "" if shown.whole else f"\n\n[{shown.lines} of {len(names)} names]"
    return ToolOutput(content=shown.text + note)


ls = Tool(
    name="ls",
    description="List the names in a folder, sorted. Folders end with a slash.",
    run=confinable(run_ls),
    arguments=LsArguments,
    concurrent=True,
    does="reads",
    paths=("path",),
)
