"""File access of tools: resolve paths, detect file types, write files atomically, and walk folders.

Walking skips `.git` and ignored files, and does not follow links to folders. It supports the common syntax of
`.gitignore`: blank lines and comments, `!`, a leading, inner or trailing `/`, `*`, `?`, `[…]` and `**`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from io import BufferedReader
from typing import NamedTuple, ParamSpec, TypeVar

from sessiontree.agent.tool import ToolError
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import build_image_block
from sessiontree.home import is_private
from sessiontree.model.request_images import MAX_IMAGE_BYTES

P = ParamSpec("P")
R = TypeVar("R")

IMAGE_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
SNIFF_BYTES = 8192
"""The number of bytes that are read to detect the type of a file."""
MAX_IMAGE_FILE_BYTES = MAX_IMAGE_BYTES // 4 * 3
"""The size of the largest image for a model, before base64 encoding."""
IGNORE_FILE = ".gitignore"
IGNORE_BYTES = 1 << 20


def resolve_path(path: str, cwd: str) -> str:
    """Return `path` relative to `cwd`, with `~` expanded. `..` after a link is left to the system.

    Raises `ToolError` for an invalid path and for files with secrets of sessiontree.
    """
    if not path or "\0" in path:
        raise ToolError(f"{path!r} is not a valid path")
    resolved = os.path.join(cwd, os.path.expanduser(path))
    if is_private(resolved):
        raise ToolError(f"{path} contains secrets of sessiontree; tools cannot access it")
    return resolved


def resolve_mention(path: str, cwd: str) -> str:
    """Resolve a path for tools that only read. A leading `@`, as in mentions, is ignored if that finds a file."""
    resolved = resolve_path(path, cwd)
    if path.startswith("@") and path != "@" and not os.path.lexists(resolved):
        mentioned = resolve_path(path[1:], cwd)
        if os.path.lexists(mentioned):
            return mentioned
    return resolved


def format_path(path: str) -> str:
    """Return a path as valid text; invalid bytes become replacement characters."""
    return os.fsencode(path).decode("utf-8", "replace")


async def run_to_end(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `work` in a thread, and wait for it like `wait_despite_cancel`."""
    return await wait_despite_cancel(asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs)))


async def wait_despite_cancel(working: asyncio.Future[R]) -> R:
    """Wait for a result. After one cancellation, keep waiting: the model must see the result of the write."""
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        return await working


def check_regular(path: str, named: str) -> os.stat_result:
    """Check that a path is a regular file, and return its status. Raises `ToolError`."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise ToolError(f"file {named} not found") from None
    except OSError as error:
        raise ToolError(f"{named}: {error.strerror or error}") from error
    if stat.S_ISDIR(found.st_mode):
        raise ToolError(f"{named} is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"{named} is not a regular file")
    return found


def detect_image_type(start: bytes) -> str | None:
    """Return the media type of an image that models support, from its first bytes."""
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((media for magic, media in IMAGE_SIGNATURES.items() if start.startswith(magic)), None)


def read_image(file: BufferedReader, named: str) -> JsonObject | None:
    """Return the image in a file as a content block; `None`, without reading, for other files."""
    media = detect_image_type(file.peek(SNIFF_BYTES))
    if media is None:
        return None
    data = file.read(MAX_IMAGE_FILE_BYTES + 1)
    if len(data) > MAX_IMAGE_FILE_BYTES:
        limit = f"{MAX_IMAGE_FILE_BYTES / 1_000_000:g} MB"
        raise ToolError(f"{named} is too large: images are limited to {limit}")
    return build_image_block(data, media)


def is_binary(start: bytes) -> bool:
    """Return whether the first bytes of a file are not UTF-8 text."""
    if b"\0" in start:
        return True
    try:
        start.decode()
    except UnicodeDecodeError as error:
        return error.start < len(start) - 4  # the last character may be cut off
    return False


def write_atomically(path: str, data: bytes) -> None:
    """Replace a file atomically: readers see the old or the new content. Links are followed."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    try:
        old = os.stat(target)
    except FileNotFoundError:
        old = None
    fd, temporary = tempfile.mkstemp(prefix=".sessiontree-", dir=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):
                    os.fchown(fd, old.st_uid, old.st_gid)
            os.fchmod(fd, 0o666 & ~_read_umask() if old is None else stat.S_IMODE(old.st_mode))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _read_umask() -> int:
    # `os.umask` would change it for a moment, so read it from /proc.
    try:
        with open("/proc/self/status") as status:
            return int(next(line for line in status if line.startswith("Umask:")).split()[1], 8)
    except (OSError, StopIteration):
        return 0o022


# Globs and ignored files


class IgnoreRule(NamedTuple):
    pattern: re.Pattern[str]
    """Matches a path relative to the folder of the rule."""
    ignores: bool
    folders_only: bool


class IgnoreRules(NamedTuple):
    """The rules of one `.gitignore` file."""

    folder: str
    rules: list[IgnoreRule]


def compile_glob(glob: str) -> re.Pattern[str]:
    """Compile a glob. `*` and `?` do not match a slash, `**` does, and `{…,…}` matches one of several.

    A glob without a slash matches names at any depth.
    """
    anchored = "/" in glob.rstrip("/")
    glob = glob.strip("/")
    expression = "" if anchored else "(?:.*/)?"
    choices = _find_choices(glob)
    at = 0
    while at < len(glob):
        letter = glob[at]
        if glob.startswith("**/", at):
            expression, at = expression + "(?:.*/)?", at + 3
        elif glob.startswith("**", at):
            expression, at = expression + ".*", at + 2
        elif letter == "*":
            expression, at = expression + "[^/]*", at + 1
        elif letter == "?":
            expression, at = expression + "[^/]", at + 1
        elif letter == "[" and (end := glob.find("]", at + 2)) > 0:
            inside = glob[at + 1 : end].replace("\\", r"\\").replace("[", r"\[")
            expression, at = expression + f"[{'^' + inside[1:] if inside[0] in '!^' else inside}]", end + 1
        elif at in choices:
            expression, at = expression + choices[at], at + 1
        else:
            expression, at = expression + re.escape(letter), at + 1
    try:
        return re.compile(expression)
    except (re.error, RecursionError):
        return re.compile(re.escape(glob))


def _find_choices(glob: str) -> dict[int, str]:
    """Return the regular expressions for the braces and commas of `{…,…}`, by position. Other braces are literal."""
    found: dict[int, str] = {}
    opened: list[list[int]] = []
    for at, letter in enumerate(glob):
        if letter == "{":
            opened.append([at])
        elif letter == "," and opened:
            opened[-1].append(at)
        elif letter == "}" and opened:
            first, *commas = opened.pop()
            if commas:
                found |= {first: "(?:", **dict.fromkeys(commas, "|"), at: ")"}
    return found


def walk_files(root: str, closed: list[str] | None = None) -> Iterator[str]:
    """Yield the paths of files below `root`, relative to it and sorted by name; subfolders come after files.

    Folders that cannot be read are added to `closed`.
    """
    root = os.path.realpath(root)
    unread = [("", [rules for folder in find_project_folders(root)[:-1] for rules in _read_rules_in(folder)])]
    while unread:
        below, above = unread.pop()
        folder = os.path.join(root, below)
        rules = [*above, *_read_rules_in(folder)]
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            if closed is not None:
                closed.append(below)
            continue
        folders: list[str] = []
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name == ".git" or _is_ignored(entry.path, is_folder, rules):
                continue
            path = os.path.join(below, entry.name)
            if is_folder:
                folders.append(path)
            elif entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path):  # false for circular links
                yield path
        unread += [(path, rules) for path in reversed(folders)]


def find_project_folders(folder: str) -> list[str]:
    """Return the folders from the top of the repository down to `folder`; outside of a repository, `folder` alone."""
    folders = [folder]
    while not os.path.lexists(os.path.join(folders[0], ".git")):
        parent = os.path.dirname(folders[0])
        if parent == folders[0]:
            return [folder]
        folders.insert(0, parent)
    return folders


def _read_rules_in(folder: str) -> list[IgnoreRules]:
    path = os.path.join(folder, IGNORE_FILE)
    if not os.path.isfile(path):
        return []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(IGNORE_BYTES)
    except OSError:
        return []
    rules = [rule for line in text.split("\n") if (rule := parse_ignore_rule(line)) is not None]
    return [IgnoreRules(folder, rules)] if rules else []


def parse_ignore_rule(line: str) -> IgnoreRule | None:
    """Parse a line of a `.gitignore`; `None` for blank lines and comments."""
    text = line.rstrip("\r\n ")
    if not text or text.startswith("#"):
        return None
    ignores = not text.startswith("!")
    text = text.removeprefix("!").removeprefix("\\")
    if not text.strip("/"):
        return None
    return IgnoreRule(compile_glob(text), ignores, text.endswith("/"))


def _is_ignored(path: str, is_folder: bool, above: list[IgnoreRules]) -> bool:
    """Return whether a path is ignored. The last matching rule decides; inner folders come last."""
    ignored = False
    for folder, rules in above:
        relative = os.path.relpath(path, folder).replace(os.sep, "/")
        for rule in rules:
            if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(relative):
                ignored = rule.ignores
    return ignored
