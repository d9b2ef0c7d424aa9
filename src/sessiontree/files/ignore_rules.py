"""Which files of a folder a snapshot leaves out: the ignore rules of the project and of the user.

git reads `.gitignore` files of the folder itself. Everything else is translated into the exclude file of the snapshot
store: `info/exclude` of the project, `.gitignore` files above the folder, and the global excludes of the user.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from sessiontree.home import is_below
from sessiontree.regular_file import read_regular_file

RULES_NAME = ".gitignore"
MAX_RULES_SIZE = 1 << 20
"""Bytes of a file with rules. Larger ones are not read."""
CONFIG_SECONDS = 5.0


class Project(NamedTuple):
    """The git repository that a folder belongs to."""

    root: str
    git_dir: str
    common_dir: str
    """The directory that all work trees of the repository share."""

    @property
    def index_file(self) -> str:
        return os.path.join(self.git_dir, "index")


def find_project(folder: str) -> Project | None:
    """Return the git repository that a folder belongs to; `None` if it belongs to none."""
    root = folder
    while True:
        marker = os.path.join(root, ".git")
        if os.path.isdir(marker):
            return Project(root, marker, marker)
        text = _read_text(marker).strip()
        if text.startswith("gitdir: "):
            git_dir = os.path.join(root, text.removeprefix("gitdir: "))
            common = _read_text(os.path.join(git_dir, "commondir")).strip()
            return Project(root, git_dir, os.path.join(git_dir, common) if common else git_dir)
        above = os.path.dirname(root)
        if above == root:
            return None
        root = above


def build_exclude_text(folder: str, project: Project | None, user_rules: str) -> str:
    """Return the text of the exclude file for snapshots of a folder. Later rules override earlier ones.

    If the project ignores the folder itself, its rules do not count: every file would be left out.
    """
    if project is None:
        return _end_line(user_rules)
    sources = [(project.root, user_rules), (project.root, _read_text(os.path.join(project.common_dir, "info/exclude")))]
    sources += [(above, _read_text(os.path.join(above, RULES_NAME))) for above in _iter_folders_above(project, folder)]
    return _translate_all(folder, project, tuple(sources))


@lru_cache(maxsize=16)
def _translate_all(folder: str, project: Project, sources: tuple[tuple[str, str], ...]) -> str:
    """Return all rules as rules relative to a folder. They are the same for nearly every snapshot."""
    if _is_ignored(folder, project, sources):
        return _end_line(sources[0][1])
    return "".join(_end_line(_translate(text, base, folder)) for base, text in sources)


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _iter_folders_above(project: Project, folder: str) -> Iterator[str]:
    """Yield the folders from the root of the project down to the one above `folder`."""
    above = project.root
    for name in _split_relative(folder, project.root):
        yield above
        above = os.path.join(above, name)


def _split_relative(folder: str, base: str) -> list[str]:
    """Return the names of the folders from `base`, which is `folder` or above it, down to `folder`."""
    relative = os.path.relpath(folder, base)
    return [] if relative == os.curdir else relative.split(os.sep)


def _is_ignored(folder: str, project: Project, sources: Sequence[tuple[str, str]]) -> bool:
    """Return whether rules ignore a folder or one above it. A folder in an ignored one cannot be included again."""
    rules = [(base, rule) for base, text in sources for line in _split_lines(text) if (rule := Rule.parse(line))]
    path = project.root
    for name in _split_relative(folder, project.root):
        path, is_ignored = os.path.join(path, name), False
        for base, rule in rules:
            if is_below(path, base) and rule.matches(_split_relative(path, base)):
                is_ignored = not rule.is_negated
        if is_ignored:
            return True
    return False


def _translate(text: str, base: str, folder: str) -> str:
    """Return rules of a file in `base` as rules relative to `folder`, which is `base` or below it."""
    names = _split_relative(folder, base)
    if not names:
        return text
    return "".join(
        f"{line}\n" for rule in map(Rule.parse, _split_lines(text)) if rule for line in rule.translate(names)
    )


def _split_lines(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.split("\n")]


class Rule(NamedTuple):
    """A line of a file with ignore rules."""

    is_negated: bool
    names: tuple[str, ...]
    """The parts of the pattern between slashes."""
    is_anchored: bool
    """Whether the pattern starts at the folder of the file. Otherwise it is one name, at any depth."""
    only_folders: bool

    @classmethod
    def parse(cls, line: str) -> Rule | None:
        """Return the rule of a line; `None` for a comment or an empty line."""
        stripped = line.rstrip(" ")
        pattern = f"{stripped} " if stripped.endswith("\\") and stripped != line else stripped
        if pattern.startswith("#"):
            return None
        is_negated, pattern = pattern.startswith("!"), pattern.removeprefix("!")
        body = pattern.rstrip("/")
        if not body:
            return None
        return cls(is_negated, tuple(body.lstrip("/").split("/")), "/" in body, pattern.endswith("/"))

    def matches(self, names: Sequence[str]) -> bool:
        """Return whether the rule matches the folder with these names, not one above it."""
        if not self.is_anchored:
            return _matches_name(self.names[0], names[-1])
        return () in _match_start(self.names, names) or ("**",) in _match_start(self.names, names[:-1])

    def translate(self, names: Sequence[str]) -> list[str]:
        """Return the rule as rules for the folder with these names: what is left of it there."""
        sign, end = "!" if self.is_negated else "", "/" if self.only_folders else ""
        if not self.is_anchored:
            return [f"{sign}{self.names[0]}{end}"]
        return [f"{sign}/{'/'.join(rest)}{end}" for rest in _match_start(self.names, names) if rest]


def _match_start(pattern: tuple[str, ...], names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return what can be left of a pattern after its start has matched all names. `**` is any number of names."""
    if not names:
        return [pattern]
    if not pattern:
        return []
    if pattern[0] == "**":
        found = [*_match_start(pattern[1:], names), *_match_start(pattern, names[1:])]
        return list(dict.fromkeys(found))
    return _match_start(pattern[1:], names[1:]) if _matches_name(pattern[0], names[0]) else []


def _matches_name(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(_build_expression(pattern), name, re.DOTALL) is not None
    except re.error:  # such as the range in `[z-a]`, which matches nothing
        return False


@cache
def _build_expression(pattern: str) -> str:
    """Return a regular expression for one name of a pattern, with `*`, `?`, `[…]` and `\\`."""
    expression, position = "", 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char in "*?":
            expression += ".*" if char == "*" else "."
        elif char == "[" and (group := re.match(r"([!^]?)(\]?[^\]]*)\]", pattern[position:])):
            inner = re.sub(r"[\[&~|\\]", r"\\\g<0>", group[2])
            expression += f"[{'^' if group[1] else ''}{inner}]"
            position += group.end()
        elif char == "\\" and position < len(pattern):
            expression += re.escape(pattern[position])
            position += 1
        else:
            expression += re.escape(char)
    return expression


def read_user_rules() -> str:
    """Return the global excludes of the user. Only the configuration of the user is read, not that of a project."""
    home = os.path.expanduser("~")
    configured = os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "git", "ignore")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        ran = subprocess.run(
            ["git", "config", "--global", "--path", "--get", "core.excludesFile"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            cwd="/",
            timeout=CONFIG_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return _read_text(configured)
    named = os.fsdecode(ran.stdout.rstrip(b"\n"))
    return _read_text(named if ran.returncode == 0 and named else configured)


def _read_text(path: str) -> str:
    try:
        return read_regular_file(path, MAX_RULES_SIZE).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
