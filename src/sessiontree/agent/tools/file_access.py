"""File access of tools: resolve paths, detect file types, and write files atomically."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import Callable
from io import BufferedReader
from typing import ParamSpec, TypeVar

from sessiontree.agent.tool import ToolError
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import build_image_block
from sessiontree.home import is_private
from sessiontree.model.request_cleanup import MAX_IMAGE_BYTES

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
    """Run `work` in a thread. After one cancellation, wait all the same: the model must see the result of the write."""
    working = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
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
