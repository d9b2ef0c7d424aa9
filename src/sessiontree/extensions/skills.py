"""Skills: folders with a `SKILL.md` that the model can load when a task needs them.

    ---
    name: release
    description: Make a release of this project. Use it when asked to publish a version.
    ---
    1. Run the tests …

The system prompt lists each skill by name and description. The `skill` tool returns the text of one. Skills come from
folders of the user, and from folders of a project that the user trusts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from sessiontree.agent.system_prompt import SystemPart
from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import FormatError
from sessiontree.extensions.prompt_files import split_front_matter
from sessiontree.home import is_below
from sessiontree.regular_file import open_regular_file, resolve_open_file

SKILL_FILE = "SKILL.md"
SKILL_FOLDERS = (".sessiontree/skills", ".agents/skills", ".claude/skills")
"""Folders of a project with skills. Other agents use the last two as well."""
MAX_SKILL_BYTES = 256 << 10
"""A larger file is not a skill: it would fill the context of the model."""
MAX_DESCRIPTION = 1024
"""Longer descriptions are cut off in the list."""
MAX_SKILLS = 200
"""Further skills are not loaded."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")


class Skill(Struct, frozen=True, kw_only=True):
    name: str
    description: str
    text: str
    """The instructions, without the front matter."""
    path: str
    """The `SKILL.md`."""


class SkillFiles(Struct, frozen=True, kw_only=True):
    """The `SKILL.md` files of some folders."""

    files: dict[str, bytes]
    """By path, in order."""
    problems: tuple[str, ...] = ()


def list_user_folders(home: str) -> list[str]:
    """Return the folders with skills of the user."""
    return [os.path.join(home, "skills"), *(os.path.expanduser(f"~/{name}") for name in SKILL_FOLDERS[1:])]


def list_project_folders(top: str) -> list[str]:
    """Return the folders with skills of the project in the folder `top`."""
    return [os.path.join(top, name) for name in SKILL_FOLDERS]


def read_skill_files(folders: Iterable[str], within: str | None = None) -> SkillFiles:
    """Read every `<folder>/<skill>/SKILL.md`. A file that is not `within` a folder, by a link, is not read."""
    files: dict[str, bytes] = {}
    problems: list[str] = []
    for path in _list_skill_paths(folders):
        shown = escape_line(path)
        if len(files) == MAX_SKILLS:
            problems.append(f"only the first {MAX_SKILLS} skills are loaded; {shown} and others are not")
            break
        try:
            with open_regular_file(path) as file:
                if within is not None and not is_below(resolve_open_file(file, path), os.path.realpath(within)):
                    problems.append(f"{shown} is a link to a file outside of the project; it is not loaded")
                    continue
                data = file.read(MAX_SKILL_BYTES + 1)
        except OSError as error:
            problems.append(f"{shown} is not loaded: {error.strerror or error}")
            continue
        if len(data) > MAX_SKILL_BYTES:
            problems.append(f"{shown} is not loaded: it is larger than {MAX_SKILL_BYTES >> 10} KiB")
        else:
            files[path] = data
    return SkillFiles(files=files, problems=tuple(problems))


def _list_skill_paths(folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            path = os.path.join(folder, name, SKILL_FILE)
            if os.path.lexists(path):
                yield path


def parse_skill(path: str, data: bytes) -> Skill:
    """Parse a `SKILL.md`. Raises `FormatError`."""
    values, text = split_front_matter(path, data, strict=False)
    name = values.get("name", "").partition(" #")[0].strip() or os.path.basename(os.path.dirname(path))
    if not _NAME.fullmatch(name):
        raise FormatError(
            escape_line(path), "the name of a skill has at most 64 letters, digits, `-`, `_`, `.` and `:`"
        )
    description = escape_line(" ".join(values.get("description", "").split()))
    if not description:
        raise FormatError(escape_line(path), "the skill has no description, so the model cannot know when to use it")
    if len(description) > MAX_DESCRIPTION:
        description = f"{description[:MAX_DESCRIPTION]}…"
    return Skill(name=name, description=description, text=text, path=path)


def build_skill_list(skills: Sequence[Skill]) -> SystemPart:
    """Return the part of the system prompt that lists the skills."""
    lines = [f"- {skill.name}: {skill.description}" for skill in skills]
    lead = (
        "Skills are instructions for certain tasks. If one fits the task, load it with the skill tool before you start."
    )
    return SystemPart(name="skills", text="\n".join([lead, *lines]))


class SkillArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(description="The name of the skill.")]


def build_skill_tool(skills: Sequence[Skill]) -> Tool:
    """Return the tool that loads a skill."""
    by_name = {skill.name: skill for skill in skills}

    async def load(context: ToolContext) -> ToolOutput:
        skill = by_name.get(context.arguments.name)
        if skill is None:
            raise ToolError(f"skill {context.arguments.name!r} not found; skills: {', '.join(by_name)}")
        folder = os.path.dirname(skill.path)
        return ToolOutput(content=f"Skill {skill.name}. Its files are in {folder}.\n\n{skill.text}")

    return Tool(
        name="skill",
        description="Load the instructions of a skill by its name. The system prompt lists the skills.",
        run=load,
        arguments=SkillArguments,
        concurrent=True,
        does="reads",
    )
