"""The `find` and `grep` tools: find files by name, and lines by a regular expression.

A search runs in its own process with a time limit, because a pattern or a folder may take very long. `main` is the
entry point of that process.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

import sessiontree.agent.tools.output_limits as output_limits
from sessiontree.agent.sandbox import clean_environment
from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput
from sessiontree.agent.tools.file_access import (
    SNIFF_BYTES,
    compile_glob,
    format_path,
    is_binary,
    resolve_mention,
    walk_files,
)
from sessiontree.agent.tools.output_limits import MAX_BYTES, fit_lines, truncate_line, write_full_output
from sessiontree.agent.tools.sandboxed_call import confinable
from sessiontree.home import build_self_command, get_home, is_below, is_private

SEARCH_TIMEOUT = 30.0
"""The time limit of a search, in seconds."""
MAX_GREP_BYTES = 16 << 20
"""Larger files are skipped."""
DEFAULT_FIND_LIMIT = 1000
DEFAULT_GREP_LIMIT = 200


class FindArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[str, Meta(description="A glob, such as *.py for names anywhere or src/**/test_*.py for paths.")]
    path: Annotated[str, Meta(description="The folder to search; default is the working folder.")] = "."
    limit: Annotated[int, Meta(ge=1, description=f"Maximum number of files; default {DEFAULT_FIND_LIMIT}.")] = (
        DEFAULT_FIND_LIMIT
    )


class GrepArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[str, Meta(description="A regular expression in Python syntax.")]
    path: Annotated[str, Meta(description="A folder or a file; default is the working folder.")] = "."
    glob: Annotated[str | None, Meta(description="Search only files that match this glob, such as *.py.")] = None
    ignore_case: bool = False
    literal: Annotated[bool, Meta(description="Treat pattern as plain text.")] = False
    context: Annotated[int, Meta(ge=0, le=50, description="Number of lines to show around each match.")] = 0
    limit: Annotated[
        int, Meta(ge=1, description=f"Maximum number of matching lines; default {DEFAULT_GREP_LIMIT}.")
    ] = DEFAULT_GREP_LIMIT


class FileSearchResult(Struct, frozen=True, kw_only=True):
    """The result of a search."""

    lines: list[str]
    more: bool = False
    """Whether the search stopped at its limit."""
    skipped: str = ""
    """How many files and folders were skipped, and why."""
    error: str | None = None


class SearchTask(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The input of the search process."""

    root: bytes
    """The path as bytes: it may not be valid text."""
    cwd: bytes = b""
    """Links may point into the working folder; if it is empty, into `root`."""
    home: bytes = b""
    """The folder of sessiontree, which is skipped."""


class FindTask(SearchTask, frozen=True, kw_only=True, tag="find"):
    arguments: FindArguments


class GrepTask(SearchTask, frozen=True, kw_only=True, tag="grep"):
    arguments: GrepArguments


async def run_find(context: ToolContext) -> ToolOutput:
    arguments: FindArguments = context.arguments
    found = await _run_search(FindTask(root=_resolve_root(arguments.path, context), arguments=arguments))
    return _build_output(found, "No files match.", f"the first {arguments.limit} files")


async def run_grep(context: ToolContext) -> ToolOutput:
    arguments: GrepArguments = context.arguments
    root, cwd = _resolve_root(arguments.path, context), os.fsencode(context.cwd)
    found = await _run_search(GrepTask(root=root, cwd=cwd, home=os.fsencode(get_home()), arguments=arguments))
    return _build_output(found, "No lines match.", f"the first {arguments.limit} matching lines")


def _resolve_root(path: str, context: ToolContext) -> bytes:
    return os.fsencode(resolve_mention(path, context.cwd))


async def _run_search(task: FindTask | GrepTask) -> FileSearchResult:
    if not output_limits.CAN_KEEP_FILES:  # already in a separate process
        return _check_result(_execute_task(task))
    process = await asyncio.create_subprocess_exec(
        *build_self_command(__name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment(),
    )
    try:
        async with asyncio.timeout(SEARCH_TIMEOUT):
            raw, errors = await process.communicate(msgspec.json.encode(task))
    except TimeoutError:
        raise ToolError(f"the search took longer than {SEARCH_TIMEOUT:g} seconds; search a smaller folder") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        reason = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ToolError(f"the search ended with code {process.returncode}{reason and f': {reason}'}")
    return _check_result(msgspec.json.decode(raw, type=FileSearchResult))


def _check_result(found: FileSearchResult) -> FileSearchResult:
    if found.error is not None:
        raise ToolError(found.error)
    return found


def _build_output(found: FileSearchResult, nothing: str, limit: str) -> ToolOutput:
    shown = fit_lines(found.lines or [nothing])
    notes: list[str] = []
    details: dict[str, Any] | None = None
    if not shown.whole:
        path = write_full_output("\n".join(found.lines) + "\n")
        rest = "The rest could not be saved" if path is None else f"The full output is in {path}"
        notes.append(f"Only {shown.lines} of {len(found.lines)} lines are shown. {rest}.")
        details = None if path is None else {"fullOutputPath": path}
    if found.more:
        notes.append(f"Only {limit} are shown; there are more.")
    if found.skipped:
        notes.append(f"Skipped: {found.skipped}.")
    return ToolOutput(content=f"{shown.text}\n\n[{' '.join(notes)}]" if notes else shown.text, details=details)


# Inside the process


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=FindTask | GrepTask)
    sys.stdout.buffer.write(msgspec.json.encode(_execute_task(task)))


def _execute_task(task: FindTask | GrepTask) -> FileSearchResult:
    root = os.fsdecode(task.root)
    if isinstance(task, FindTask):
        return find_files(root, task.arguments)
    return grep_lines(root, task.arguments, os.fsdecode(task.cwd), os.fsdecode(task.home))


def find_files(root: str, arguments: FindArguments) -> FileSearchResult:
    if not os.path.isdir(root):
        return FileSearchResult(lines=[], error=f"folder {arguments.path} not found")
    pattern = compile_glob(arguments.pattern)
    found: list[str] = []
    closed: list[str] = []
    more = False
    for path in walk_files(root, closed):
        if pattern.fullmatch(path.replace(os.sep, "/")):
            more = len(found) == arguments.limit
            if more:
                break
            found.append(_join_name(arguments.path, path))
    return FileSearchResult(lines=found, more=more, skipped=_format_skipped(Counter(), closed))


def grep_lines(root: str, arguments: GrepArguments, cwd: str = "", own: str = "") -> FileSearchResult:
    try:
        expression = re.escape(arguments.pattern) if arguments.literal else arguments.pattern
        pattern = re.compile(expression, re.IGNORECASE if arguments.ignore_case else 0)
    except re.error as error:
        return FileSearchResult(lines=[], error=f"{arguments.pattern!r} is not a valid regular expression: {error}")
    if not os.path.exists(root):
        return FileSearchResult(lines=[], error=f"{arguments.path} not found")
    if not (os.path.isfile(root) or os.path.isdir(root)):
        return FileSearchResult(lines=[], error=f"{arguments.path} is not a regular file")
    glob = None if arguments.glob is None else compile_glob(arguments.glob)
    shown: list[str] = []
    matched = 0
    skipped: Counter[str] = Counter()
    closed: list[str] = []
    leads_out = _build_escape_check(root, cwd, own)
    for path, named in _list_candidates(root, arguments.path, glob, closed):
        if path != root and leads_out(path):
            skipped["link out of the folder"] += 1
            continue
        try:
            lines = _read_text_lines(path)
        except SkippedFile as error:
            if path == root:
                return FileSearchResult(lines=[], error=f"{arguments.path}{error.reason}")
            skipped[error.kind] += 1
            continue
        until = -1
        for number, line in enumerate(lines):
            if pattern.search(line) is None:
                continue
            if matched == arguments.limit:
                return FileSearchResult(lines=shown, more=True, skipped=_format_skipped(skipped, closed))
            matched += 1
            first = max(until + 1, number - arguments.context)
            if arguments.context and shown and (until < 0 or first > until + 1):
                shown.append("--")
            until = min(len(lines) - 1, number + arguments.context)
            for at in range(first, until + 1):
                mark = ":" if at == number or pattern.search(lines[at]) else "-"
                shown.append(f"{named}{mark}{at + 1}{mark} {truncate_line(lines[at])}")
    return FileSearchResult(lines=shown, skipped=_format_skipped(skipped, closed))


def _build_escape_check(root: str, cwd: str, own: str) -> Callable[[str], bool]:
    """Return a function that tests whether a file must be skipped: a link out of the folder, which needs a permission,
    or a file of sessiontree itself."""
    base, folder, own = (os.path.realpath(path) if path else "" for path in (root, cwd, own))
    if folder and is_below(base, folder):
        base = folder
    if own and is_below(base, own):
        own = ""

    def is_elsewhere(path: str) -> bool:
        real = os.path.realpath(path)
        return not is_below(real, base) or (bool(own) and is_below(real, own))

    return is_elsewhere


def _list_candidates(
    root: str, named: str, glob: re.Pattern[str] | None, closed: list[str]
) -> Iterator[tuple[str, str]]:
    if os.path.isfile(root):
        yield root, named
        return
    for path in walk_files(root, closed):
        if glob is None or glob.fullmatch(path.replace(os.sep, "/")):
            yield os.path.join(root, path), _join_name(named, path)


class SkippedFile(Exception):
    """A file was skipped. `kind` names such files in the summary, `reason` completes the sentence about this file."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind)
        self.kind = kind
        self.reason = reason


def _read_text_lines(path: str) -> list[str]:
    """Return the lines of a text file. Raises `SkippedFile`."""
    if (os.path.islink(path) or os.path.dirname(path) == os.path.realpath(get_home())) and is_private(path):
        raise SkippedFile("file with secrets of sessiontree", " contains secrets of sessiontree")
    try:
        if os.path.getsize(path) > MAX_GREP_BYTES:
            size = f"larger than {MAX_GREP_BYTES >> 20} MiB"
            raise SkippedFile(f"file {size}", f" is {size}, which is too large to search")
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        raise SkippedFile("unreadable file", f": {error.strerror or error}") from error
    if is_binary(raw[:SNIFF_BYTES]):
        raise SkippedFile("binary file", " is a binary file")
    text = raw.decode("utf-8", "replace").removesuffix("\n")
    return [line.removesuffix("\r") for line in text.split("\n")] if raw else []


def _format_skipped(files: Counter[str], closed: list[str]) -> str:
    counts = {**files, "unreadable folder": len(closed)}
    return ", ".join(f"{n} {kind if n == 1 else _pluralize_kind(kind)}" for kind, n in counts.items() if n)


def _pluralize_kind(kind: str) -> str:
    return kind.replace("file", "files").replace("unreadable folder", "unreadable folders").replace("link", "links")


def _join_name(folder: str, path: str) -> str:
    return format_path(path if folder in (".", "") else os.path.join(folder, path))


find = Tool(
    name="find",
    description="Find files by name. Files ignored by .gitignore are not found.",
    run=confinable(run_find),
    arguments=FindArguments,
    concurrent=True,
    does="reads",
    paths=("path",),
)
grep = Tool(
    name="grep",
    description="Find lines in files by a regular expression. Files ignored by .gitignore, binary files and very large "
    f"files are skipped. At most {MAX_BYTES} bytes are shown.",
    run=confinable(run_grep),
    arguments=GrepArguments,
    concurrent=True,
    does="reads",
    paths=("path",),
)
