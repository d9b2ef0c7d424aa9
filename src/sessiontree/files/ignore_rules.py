"""Which files of a folder a snapshot leaves out: the ignore rules of the project and of the user.

git reads `.gitignore` files of the folder itself. Everything else is translated into the exclude file of the snapshot
store: `info/exclude` of the project, `.gitignore` files above the folder, and the global excludes of the user.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from sessiontree.regular_file import read_regular_file

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
    """Return the text of the exclude file for snapshots of a folder. Later rules override earlier ones."""
    parts = [user_rules]
    if project is not None:
        parts.append(_translate(os.path.join(project.common_dir, "info", "exclude"), project.root, folder))
        for above in _iter_folders_above(project.root, folder):
            parts.append(_translate(os.path.join(above, ".gitignore"), above, folder))
    return "".join(part if not part or part.endswith("\n") else f"{part}\n" for part in parts)


def _iter_folders_above(root: str, folder: str) -> Iterator[str]:
    """Yield the folders from the root of the project down to the one above `folder`."""
    relative = os.path.relpath(folder, root)
    if relative != os.curdir:
        above = root
        for name in relative.split(os.sep):
            yield above
            above = os.path.join(above, name)


def _translate(path: str, base: str, folder: str) -> str:
    """Return the rules of a file in `base` as rules relative to `folder`, which is `base` or below it."""
    prefix = os.path.relpath(folder, base)
    text = _read_text(path)
    if prefix == os.curdir:
        return text
    return "".join(f"{rule}\n" for line in text.splitlines() if (rule := translate_rule(line, prefix)) is not None)


def translate_rule(line: str, prefix: str) -> str | None:
    """Return a rule of a parent folder as a rule of its subfolder `prefix`; `None` if it cannot match there."""
    negation, pattern = ("!", line[1:]) if line.startswith("!") else ("", line)
    if not pattern.strip() or pattern.startswith("#"):
        return None
    if "/" not in pattern.rstrip("/ "):
        return line
    pattern = pattern.removeprefix("/")
    if pattern.startswith("**/"):
        return f"{negation}{pattern}"
    if prefix == pattern.rstrip("/") or prefix.startswith(pattern.rstrip("/") + "/"):
        return f"{negation}*"  # the folder itself, or one above it
    rest = pattern.removeprefix(f"{prefix}/")
    return None if rest == pattern else f"{negation}/{rest}"


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
