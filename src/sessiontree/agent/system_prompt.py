"""The system prompt: a few lines of ours, then what the user and the project say in their `AGENTS.md` files.

It is made anew for every run and never stored: it belongs to the program and the machine, not to the conversation.
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
"""How much of such a file is taken, in bytes."""
OUTSIDE_NOTE = "[The file is a link that leads out of the project, and is not read.]"

DEFAULT_PROMPT = """\
You are an agent that helps with the work in a folder of files. Look before you change anything, do what is asked and \
no more, and check what you did. Say in a few plain sentences what you found and changed; name files by their paths. \
When something cannot be done, say so and why."""


class SystemPart(Struct, frozen=True, kw_only=True):
    """One part of the system prompt."""

    name: str
    """What it is: `sessiontree` for ours, `tools` and `folder`, or the path of a file."""
    text: str


def build_default_parts(cwd: str, tools: Sequence[Tool]) -> list[SystemPart]:
    """The system prompt of an agent that works in `cwd`."""
    parts = [SystemPart(name="sessiontree", text=DEFAULT_PROMPT)]
    if tools:
        names = ", ".join(tool.name for tool in tools)
        parts.append(SystemPart(name="tools", text=f"Your tools: {names}. Paths are relative to the working folder."))
    parts.append(SystemPart(name="folder", text=f"The working folder is {cwd}"))
    return [*parts, *read_instructions(cwd)]


def read_instructions(cwd: str) -> list[SystemPart]:
    """What the `AGENTS.md` files say: the user's, then those of the project, from its top down to `cwd`.

    A file of the project that is a link out of it is not read: whoever made the project could have any file of the
    user's sent to a model.
    """
    folders = _find_project_folders(cwd)
    users = os.path.join(get_home(), INSTRUCTIONS_FILE)
    said = {users: _read_instructions_file(users)}
    for path in (os.path.join(folder, INSTRUCTIONS_FILE) for folder in folders):
        if path not in said:
            said[path] = _read_instructions_file(path, within=os.path.realpath(folders[0]))
    return [SystemPart(name=path, text=f"Instructions in {path}:\n\n{text}") for path, text in said.items() if text]


def join_parts(parts: Sequence[SystemPart]) -> str:
    return "\n\n".join(part.text for part in parts)


def _find_project_folders(cwd: str) -> list[str]:
    """From the top of the repository down to `cwd`; outside a repository, `cwd` alone."""
    folders = [cwd]
    while not os.path.lexists(os.path.join(folders[0], ".git")):
        parent = os.path.dirname(folders[0])
        if parent == folders[0]:
            return [cwd]
        folders.insert(0, parent)
    return folders


def _read_instructions_file(path: str, within: str | None = None) -> str:
    """The text of a file; empty where there is none. One that does not lie `within` a folder is not read.

    Where it lies is asked of the file that is open: the path may lead elsewhere by then.
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
        f"{text}\n\n[The file goes on; only its first {MAX_INSTRUCTIONS_BYTES >> 10} KiB are here.]"
        if len(raw) > MAX_INSTRUCTIONS_BYTES
        else text
    )


def _resolve_open_file(fd: int, path: str) -> str:
    """Where the file lies that was opened at `path`."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # a system without it
        return os.path.realpath(path)
