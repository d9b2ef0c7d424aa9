"""Completion: what the word before the cursor can become, a command, its argument, or a file behind an `@`."""

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
"""How many choices are given."""
MAX_FILES = 20_000
"""How many files of a folder are looked at."""
CACHE_SECONDS = 10.0
"""Seconds that the list of files is good for."""

MENTION = re.compile(r'(?:^|(?<=\s))@("[^"\n]*|[^\s"]*)$')


class Suggestion(Struct, frozen=True):
    text: str
    """What is put in."""
    help: str = ""


class Suggestions(Struct, frozen=True):
    start: int
    """Where in the text before the cursor the word begins."""
    choices: tuple[Suggestion, ...]
    selects_first: bool = False
    """Whether Enter takes the first choice: the typed word can stand for nothing else. Otherwise the word stays."""


NO_SUGGESTIONS = Suggestions(0, ())


class Completer:
    def __init__(self, desk: SessionController) -> None:
        self._desk = desk
        self._files: list[str] = []
        self._files_read_at = 0.0

    def suggest(self, before: str) -> Suggestions:
        """What can be put in place of the last word of a text. It may look at files, so it is called in a thread."""
        mention = MENTION.search(before)
        if mention is not None:
            begun = mention[1].lstrip('"')
            paths = sort_exact_first(self._find_paths(begun), begun)
            choices = tuple(Suggestion(f"@{_quote_path(path)}") for path in paths)
            return Suggestions(mention.start(), choices, bool(begun) and not self._path_exists(begun))
        if not before.startswith("/") or "\n" in before:
            return NO_SUGGESTIONS
        completion = self._desk.commands.complete(self._desk, before)
        helps = {f"/{command.name}": command.help for command in self._desk.commands} if not completion.start else {}
        word = before[completion.start :]
        choices = [
            Suggestion(choice, helps.get(choice, ""))
            for choice in sort_exact_first(completion.choices, word)[:MAX_SUGGESTIONS]
        ]
        # An argument may be new, such as a label: only the name of a command must be one that there is.
        is_unknown = not completion.start and word not in completion.choices
        return Suggestions(completion.start, tuple(choices), is_unknown)

    def _path_exists(self, path: str) -> bool:
        return "\0" not in path and os.path.lexists(os.path.join(self._desk.cwd, os.path.expanduser(path)))

    def _find_paths(self, begun: str) -> list[str]:
        if begun.startswith(("/", "~", "..")):
            return list(islice(_list_folder(begun), MAX_SUGGESTIONS))
        if time.monotonic() - self._files_read_at > CACHE_SECONDS:
            from sessiontree.agent.tools.gitignore import walk_files

            try:
                self._files = list(islice(walk_files(self._desk.cwd), MAX_FILES))
            except OSError:  # the folder of the program itself was deleted
                self._files = []
            self._files_read_at = time.monotonic()
        return rank_paths(self._files, begun)[:MAX_SUGGESTIONS]


def sort_exact_first(choices: Sequence[str], word: str) -> list[str]:
    """The choices, with the word itself before those that only begin with it."""
    return sorted(choices, key=lambda choice: choice != word)


def _list_folder(begun: str) -> Iterable[str]:
    folder, _, name = begun.rpartition("/")
    try:
        with os.scandir(os.path.expanduser(folder or "/")) as found:
            listed = sorted((entry.name, entry.is_dir()) for entry in found)
    except OSError:
        return []
    return [f"{folder}/{entry}{'/' * is_folder}" for entry, is_folder in listed if entry.startswith(name)]


def rank_paths(paths: Iterable[str], begun: str) -> list[str]:
    """Paths with these letters in this order: those first whose name begins so, then those that have them together."""
    wanted = begun.lower()

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


def find_mentions(words: str) -> list[str]:
    """The files that a text names behind an `@`."""
    return [quoted or plain for quoted, plain in re.findall(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|([^\s"]+))', words)]
