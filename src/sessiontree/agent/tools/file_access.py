"""Files as tools see them: where a path leads, what kind of file is there, and writing one as a whole."""

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
"""How many bytes are looked at to tell what a file is."""
MAX_IMAGE_FILE_BYTES = MAX_IMAGE_BYTES // 4 * 3
"""The largest image that is sent, before base64 makes it longer."""


def resolve_path(path: str, cwd: str) -> str:
    """Where `path` leads from `cwd`; `~` is the home. It is left to the system what `..` behind a link is.

    Raises `ToolError` for what is no path, or where secrets of ours are.
    """
    if not path or "\0" in path:
        raise ToolError(f"{path!r} is no path")
    resolved = os.path.join(cwd, os.path.expanduser(path))
    if is_private(resolved):
        raise ToolError(f"{path} holds secrets of sessiontree, which tools do not touch")
    return resolved


def resolve_mention(path: str, cwd: str) -> str:
    """The same for tools that only look: a leading `@`, as people mention files, is left out where that finds it."""
    resolved = resolve_path(path, cwd)
    if path.startswith("@") and path != "@" and not os.path.lexists(resolved):
        mentioned = resolve_path(path[1:], cwd)
        if os.path.lexists(mentioned):
            return mentioned
    return resolved


def format_path(path: str) -> str:
    """A path that can be written down: bytes that are no text are marked as such."""
    return os.fsencode(path).decode("utf-8", "replace")


async def run_to_end(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What `work` gives, done in a thread. Cancelled once, it is waited for: what was written has to be told."""
    working = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        return await working


def check_regular(path: str, named: str) -> os.stat_result:
    """That there is a file that can be read to its end."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise ToolError(f"there is no file {named}") from None
    except OSError as error:
        raise ToolError(f"{named}: {error.strerror or error}") from error
    if stat.S_ISDIR(found.st_mode):
        raise ToolError(f"{named} is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"{named} is no regular file")
    return found


def detect_image_type(start: bytes) -> str | None:
    """The media type of an image that models take, told from its first bytes."""
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((media for magic, media in IMAGE_SIGNATURES.items() if start.startswith(magic)), None)


def read_image(file: BufferedReader, named: str) -> JsonObject | None:
    """The image that a file holds, as a block of content; `None` for another file, of which nothing is read then."""
    media = detect_image_type(file.peek(SNIFF_BYTES))
    if media is None:
        return None
    data = file.read(MAX_IMAGE_FILE_BYTES + 1)
    if len(data) > MAX_IMAGE_FILE_BYTES:
        most = f"{MAX_IMAGE_FILE_BYTES / 1_000_000:g} MB"
        raise ToolError(f"{named} is an image of more than {most}, which is too large to look at")
    return build_image_block(data, media)


def is_binary(start: bytes) -> bool:
    """Whether bytes at the beginning of a file are no text."""
    if b"\0" in start:
        return True
    try:
        start.decode()
    except UnicodeDecodeError as error:
        return error.start < len(start) - 4  # not merely a character cut in two
    return False


def write_atomically(path: str, data: bytes) -> None:
    """Put `data` in a file, at once: whoever reads it meanwhile sees the old one or the new one. Links are followed."""
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
    # Asking for it means setting it for a moment; the status file of the process knows without.
    try:
        with open("/proc/self/status") as status:
            return int(next(line for line in status if line.startswith("Umask:")).split()[1], 8)
    except (OSError, StopIteration):
        return 0o022
