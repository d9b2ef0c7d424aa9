"""The system prompt: a short default prompt, then the `AGENTS.md` files of the user and the project.

It is built for every run and never stored: it depends on the machine, not on the conversation.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from msgspec import Struct

from sessiontree.agent.tool import Tool
from sessiontree.home import get_home

INSTRUCTIONS_FILE = "AGENTS.md"
MAX_INSTRUCTIONS_BYTES = 64 << 10
"""Larger files are cut off at this size, in bytes."""
OUTSIDE_NOTE = "[The file is a link to a file outside of the project; it was not read.]"

DEFAULT_PROMPT = """\
You are an agent that helps with the work in a folder of files. Look before you change anything, do what is asked and \
no more, and check what you did. Say in a few plain sentences what you found and changed; name files by their paths. \
When something cannot be done, say so and why."""


class SystemPart(Struct, frozen=True, kw_only=True):
    """One part of the system prompt."""

    name: str
    """`sessiontree` for the default prompt, `tools`, `folder`, or the path of a file."""
    text: str


def build_default_parts(cwd: str, tools: Sequence[Tool]) -> list[SystemPart]:
    """Return the system prompt of an agent in `cwd`."""
    parts = [SystemPart(name="sessiontree", text=DEFAULT_PROMPT)]
    if tools:
        names = ", ".join(tool.name for tool in tools)
        parts.append(SystemPart(name="tools", text=f"Your tools: {names}. Paths are relative to the working folder."))
    parts.append(SystemPart(name="folder", text=f"The working folder is {cwd}"))
    return [*parts, *read_instructions(cwd)]


def read_instructions(cwd: str) -> list[SystemPart]:
    """Read the `AGENTS.md` files of the user and of the project, from its top folder down to `cwd`.

    A file in the project that links to a file outside is not read: a malicious project could send any file of the user
    to a model.
    """
    folders = _find_project_folders(cwd)
    users = os.path.join(get_home(), INSTRUCTIONS_FILE)
    texts = {users: _read_instructions_file(users)}
    for path in (os.path.join(folder, INSTRUCTIONS_FILE) for folder in folders):
        if path not in texts:
            texts[path] = _read_instructions_file(path, within=os.path.realpath(folders[0]))
    return [SystemPart(name=path, text=f"Instructions in {path}:\n\n{text}") for path, text in texts.items() if text]


def join_parts(parts: Sequence[SystemPart]) -> str:
    return "\n\n".join(part.text for part in parts)


def _find_project_folders(cwd: str) -> list[str]:
    """Return the folders from the top of the repository down to `cwd`; outside of a repository, `cwd` alone."""
    folders = [cwd]
    while not os.path.lexists(os.path.join(folders[0], ".git")):
        parent = os.path.dirname(folders[0])
        if parent == folders[0]:
            return [cwd]
        folders.insert(0, parent)
    return folders


def _read_instructions_file(path: str, within: str | None = None) -> str:
    """Return the text of a file; empty if there is none. A file that is not `within` the folder is not read.

    The check uses the open file: the path may lead elsewhere in the meantime.
    """
    if not os.path.isfile(path):
        return ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            if within is not None and os.path.commonpath((within, _resolve_open_file(fd, path))) != within:
                return OUTSIDE_NOTE
            raw = file.read(MAX_INSTRUCTIONS_BYTES + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError as error:
        return f"[The file could not be read: {error.strerror or error}.]"
    text = raw[:MAX_INSTRUCTIONS_BYTES].decode("utf-8", "replace").strip()
    return (
        f"{text}\n\n[The file is longer; these are its first {MAX_INSTRUCTIONS_BYTES >> 10} KiB.]"
        if len(raw) > MAX_INSTRUCTIONS_BYTES
        else text
    )


def _resolve_open_file(fd: int, path: str) -> str:
    """Return the real path of an open file."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # no /proc on this system
        return os.path.realpath(path)
