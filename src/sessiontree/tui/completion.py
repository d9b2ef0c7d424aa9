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
    from sessiontree.commands.desk import Desk

MOST = 50
"""How many choices are given."""
FILES = 20_000
"""How many files of a folder are looked at."""
FRESH = 10.0
"""Seconds that the list of files is good for."""

MENTION = re.compile(r'(?:^|(?<=\s))@("[^"\n]*|[^\s"]*)$')


class Choice(Struct, frozen=True):
    text: str
    """What is put in."""
    help: str = ""


class Offer(Struct, frozen=True):
    start: int
    """Where in the text before the cursor the word begins."""
    choices: tuple[Choice, ...]
    replaces_typed: bool = False
    """Whether Enter takes the first choice: the typed word can stand for nothing else. Otherwise the word stays."""


NOTHING = Offer(0, ())


class Completer:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._files: list[str] = []
        self._read_at = 0.0

    def offer(self, before: str) -> Offer:
        """What can be put in place of the last word of a text. It may look at files, so it is called in a thread."""
        mention = MENTION.search(before)
        if mention is not None:
            begun = mention[1].lstrip('"')
            paths = exact_first(self._matching(begun), begun)
            choices = tuple(Choice(f"@{_quoted(path)}") for path in paths)
            return Offer(mention.start(), choices, bool(begun) and not self._exists(begun))
        if not before.startswith("/") or "\n" in before:
            return NOTHING
        completion = self._desk.commands.complete(self._desk, before)
        helps = {f"/{command.name}": command.help for command in self._desk.commands} if not completion.start else {}
        word = before[completion.start :]
        choices = [Choice(choice, helps.get(choice, "")) for choice in exact_first(completion.choices, word)[:MOST]]
        # An argument may be new, such as a label: only the name of a command must be one that there is.
        is_unknown = not completion.start and word not in completion.choices
        return Offer(completion.start, tuple(choices), is_unknown)

    def _exists(self, path: str) -> bool:
        return "\0" not in path and os.path.lexists(os.path.join(self._desk.cwd, os.path.expanduser(path)))

    def _matching(self, begun: str) -> list[str]:
        if begun.startswith(("/", "~", "..")):
            return list(islice(_in_folder(begun), MOST))
        if time.monotonic() - self._read_at > FRESH:
            from sessiontree.agent.tools.walk import files_below

            try:
                self._files = list(islice(files_below(self._desk.cwd), FILES))
            except OSError:  # the folder of the program itself was deleted
                self._files = []
            self._read_at = time.monotonic()
        return ranked(self._files, begun)[:MOST]


def exact_first(choices: Sequence[str], word: str) -> list[str]:
    """The choices, with the word itself before those that only begin with it."""
    return sorted(choices, key=lambda choice: choice != word)


def _in_folder(begun: str) -> Iterable[str]:
    folder, _, name = begun.rpartition("/")
    try:
        with os.scandir(os.path.expanduser(folder or "/")) as found:
            listed = sorted((entry.name, entry.is_dir()) for entry in found)
    except OSError:
        return []
    return [f"{folder}/{entry}{'/' * is_folder}" for entry, is_folder in listed if entry.startswith(name)]


def ranked(paths: Iterable[str], begun: str) -> list[str]:
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


def _quoted(path: str) -> str:
    return f'"{path}"' if re.search(r"\s", path) else path


def mentioned(words: str) -> list[str]:
    """The files that a text names behind an `@`."""
    return [quoted or plain for quoted, plain in re.findall(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|([^\s"]+))', words)]
