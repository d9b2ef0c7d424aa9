"""The system prompt for work in a folder: a short text, then the instruction files of the user and the project.

Front ends use it. An agent of a program has only the system prompt that the program gives it.

It is built for every run and never stored: it depends on the machine, not on the conversation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from sessiontree.agent.tool import Tool
from sessiontree.agent.tools.file_access import find_project_folders
from sessiontree.files.private_folder import find_folder_of_path
from sessiontree.home import get_home, is_below
from sessiontree.regular_file import open_regular_file, resolve_open_file

INSTRUCTIONS_FILES = ("AGENTS.md", "CLAUDE.md")
"""Files with instructions for agents. If both are in a folder and say the same, one of them is sent."""
MAX_INSTRUCTIONS_BYTES = 64 << 10
"""Larger files are cut off at this size, in bytes."""
OUTSIDE_NOTE = "[The file is a link to a file outside of the project; it was not read.]"

CODING_PROMPT = """\
You are an agent that works on the files in a folder. Look before you change anything, do only what you are asked, and \
check your work. Report in a few plain sentences what you found and changed, and name files by their paths. If \
something cannot be done, say so and explain why."""


SystemPromptBuilder: TypeAlias = "Callable[[str, Sequence[Tool]], list[SystemPart]]"
"""Builds the system prompt for each run, from the folder and the tools."""


class SystemPart(Struct, frozen=True, kw_only=True):
    """One part of the system prompt."""

    name: str
    """`sessiontree` for the first text, `tools`, `folder`, or the path of a file."""
    text: str


def build_coding_prompt(cwd: str, tools: Sequence[Tool]) -> list[SystemPart]:
    """Return the system prompt of an agent that works on the files in `cwd`."""
    parts = [SystemPart(name="sessiontree", text=CODING_PROMPT)]
    if tools:
        names = ", ".join(tool.name for tool in tools)
        parts.append(SystemPart(name="tools", text=f"Your tools: {names}. Paths are relative to the working folder."))
    parts.append(SystemPart(name="folder", text=_describe_folder(cwd)))
    return [*parts, *read_instructions(cwd)]


def _describe_folder(cwd: str) -> str:
    private = find_folder_of_path(cwd)
    if private is None:
        return f"The working folder is {cwd}"
    return (
        f"The working folder is {cwd}, a copy of {private.source} that only you use. Work in the copy: others work in "
        "the original, and changes there are not part of your branch."
    )


def read_instructions(cwd: str) -> list[SystemPart]:
    """Read the `AGENTS.md` and `CLAUDE.md` files of the user and of the project, from its top folder down to `cwd`.

    A file in the project that links to a file outside is not read: a malicious project could send any file of the user
    to a model.
    """
    folders = find_project_folders(cwd)
    top = os.path.realpath(folders[0])
    texts: dict[str, str] = {}
    for folder, within in ((get_home(), None), *((folder, top) for folder in folders)):
        for name in INSTRUCTIONS_FILES:
            path = os.path.join(folder, name)
            text = "" if path in texts else _read_instructions_file(path, within)
            if text and text not in (texts.get(os.path.join(folder, one)) for one in INSTRUCTIONS_FILES):
                texts[path] = text
    return [SystemPart(name=path, text=f"Instructions in {path}:\n\n{text}") for path, text in texts.items()]


def join_parts(parts: Sequence[SystemPart]) -> str:
    return "\n\n".join(part.text for part in parts)


def _read_instructions_file(path: str, within: str | None = None) -> str:
    """Return the text of a file; empty if there is none. A file that is not `within` the folder is not read.

    The check uses the open file: the path may lead elsewhere in the meantime.
    """
    if not os.path.isfile(path):
        return ""
    try:
        with open_regular_file(path) as file:
            if within is not None and not is_below(resolve_open_file(file, path), within):
                return OUTSIDE_NOTE
            raw = file.read(MAX_INSTRUCTIONS_BYTES + 1)
    except OSError as error:
        return f"[The file could not be read: {error.strerror or error}.]"
    text = raw[:MAX_INSTRUCTIONS_BYTES].decode("utf-8", "replace").strip()
    if len(raw) > MAX_INSTRUCTIONS_BYTES:
        text += f"\n\n[The file is longer; these are its first {MAX_INSTRUCTIONS_BYTES >> 10} KiB.]"
    return text
