"""Walk a folder without ignored files and without `.git`.

It supports the common syntax of `.gitignore`: blank lines and comments, `!`, a leading, inner or trailing `/`, `*`,
`?`, `[…]` and `**`. Links to folders are not followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

IGNORE_FILE = ".gitignore"
IGNORE_BYTES = 1 << 20


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
    unread = [("", _read_rules_above(root))]
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


def _read_rules_above(root: str) -> list[IgnoreRules]:
    """Read the rules of the folders above `root`, up to the top of its repository."""
    above: list[str] = []
    folder = root
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return []
        above.insert(0, folder := parent)
    return [rules for folder in above for rules in _read_rules_in(folder)]


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
