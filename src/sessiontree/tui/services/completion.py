"""Completion of commands, their arguments and `@file` mentions."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from sessiontree.commands.controller import SessionController

MAX_SUGGESTIONS = 50
"""Maximum number of suggestions."""
MAX_FILES = 20_000
"""Maximum number of files to search."""
CACHE_SECONDS = 10.0
"""Lifetime of the cached list of files."""

MENTION = re.compile(r'(?:^|(?<=\s))@("[^"\n]*|[^\s"]*)$')


class Suggestion(Struct, frozen=True):
    text: str
    """The text to insert."""
    help: str = ""


class Suggestions(Struct, frozen=True):
    start: int
    """Start of the completed word in the text before the cursor."""
    choices: tuple[Suggestion, ...]
    selects_first: bool = False
    """Whether Enter inserts the first suggestion, because the typed word is not valid by itself."""


NO_SUGGESTIONS = Suggestions(0, ())


class Completer:
    def __init__(self, controller: SessionController) -> None:
        self._controller = controller
        self._files: list[str] = []
        self._files_read_at = 0.0

    def suggest(self, before: str) -> Suggestions:
        """Return suggestions for the last word of the text. Call this in a thread, because it may read files."""
        mention = MENTION.search(before)
        if mention is not None:
            typed = mention[1].lstrip('"')
            paths = sort_exact_first(self._find_paths(typed), typed)
            choices = tuple(Suggestion(f"@{_quote_path(path)}") for path in paths)
            return Suggestions(mention.start(), choices, bool(typed) and not self._path_exists(typed))
        if not before.startswith("/") or "\n" in before:
            return NO_SUGGESTIONS
        completion = self._controller.commands.complete(self._controller, before)
        helps = (
            {f"/{command.name}": command.help for command in self._controller.commands} if not completion.start else {}
        )
        word = before[completion.start :]
        choices = [
            Suggestion(choice, helps.get(choice, ""))
            for choice in sort_exact_first(completion.choices, word)[:MAX_SUGGESTIONS]
        ]
        # An argument, such as a label, may be new. A command must exist.
        is_unknown = not completion.start and word not in completion.choices
        return Suggestions(completion.start, tuple(choices), is_unknown)

    def _path_exists(self, path: str) -> bool:
        return "\0" not in path and os.path.lexists(os.path.join(self._controller.cwd, os.path.expanduser(path)))

    def _find_paths(self, typed: str) -> list[str]:
        if typed.startswith(("/", "~", "..")):
            return list(islice(_list_folder(typed), MAX_SUGGESTIONS))
        if time.monotonic() - self._files_read_at > CACHE_SECONDS:
            from sessiontree.agent.tools.gitignore import walk_files

            try:
                self._files = list(islice(walk_files(self._controller.cwd), MAX_FILES))
            except OSError:  # the working directory was deleted
                self._files = []
            self._files_read_at = time.monotonic()
        return rank_paths(self._files, typed)[:MAX_SUGGESTIONS]


def sort_exact_first(choices: Sequence[str], word: str) -> list[str]:
    """Sort the choices so that an exact match comes first."""
    return sorted(choices, key=lambda choice: choice != word)


def _list_folder(typed: str) -> Iterable[str]:
    folder, _, name = typed.rpartition("/")
    try:
        with os.scandir(os.path.expanduser(folder or "/")) as found:
            listed = sorted((entry.name, entry.is_dir()) for entry in found)
    except OSError:
        return []
    return [f"{folder}/{entry}{'/' * is_folder}" for entry, is_folder in listed if entry.startswith(name)]


def rank_paths(paths: Iterable[str], typed: str) -> list[str]:
    """Return fuzzy matches, best first: file names with this prefix, then substrings, then subsequences."""
    wanted = typed.lower()

    def rank(path: str) -> int | None:
        low = path.lower()
        if low.rpartition("/")[2].startswith(wanted):
            return 0
        if wanted in low:
            return 1
        letters = iter(low)
        return 2 if all(letter in letters for letter in wanted) else None

    found = [(place, path) for path in paths if (place := rank(path)) is not None]
    return [path for _, path in sorted(found, key=lambda item: (item[0], item[1].count("/"), len(item[1]), item[1]))]


def _quote_path(path: str) -> str:
    return f'"{path}"' if re.search(r"\s", path) else path


def find_mentions(text: str) -> list[str]:
    """Return the paths mentioned with `@` in a text."""
    return [quoted or plain for quoted, plain in re.findall(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|([^\s"]+))', text)]
