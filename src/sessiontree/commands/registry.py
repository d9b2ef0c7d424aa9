"""Commands: what a person types behind a slash.

A `Command` says what it is called, what it is for, what it takes and what it does; the `Registry` finds, completes and
runs them. What they do is in the modules beside this one, and what they do it to is the `Desk`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec import Struct

from sessiontree.errors import InvalidOperation, NotFound

if TYPE_CHECKING:
    from sessiontree.commands.controller import SessionController


class CommandOutcome(Struct, frozen=True, kw_only=True):
    """What came of a command."""

    text: str = ""
    """For the person; it may have several lines."""
    prompt: str | None = None
    """To be said to the model now."""
    answer: bool = False
    """Whether the model is to answer what is there."""


Completer: TypeAlias = "Callable[[SessionController, str], Iterable[str]]"
"""What an argument can be, given how it begins. More than fits may be given."""

CommandRunner: TypeAlias = "Callable[[SessionController, Sequence[str]], Awaitable[CommandOutcome | None]]"
"""Takes one value for each argument that was given."""


class Argument(Struct, frozen=True, kw_only=True):
    name: str
    """As the usage shows it, such as `PLACE`."""
    complete: Completer | None = None
    required: bool = False
    repeated: bool = False
    """Whether it takes all words that follow, each by itself."""
    rest: bool = False
    """Whether it takes all that follows as one text, as it was typed."""

    @property
    def usage(self) -> str:
        shown = f"{self.name}..." if self.repeated else self.name
        return shown if self.required else f"[{shown}]"


class Command(Struct, frozen=True, kw_only=True):
    name: str
    help: str
    """One sentence, without a full stop."""
    run: CommandRunner
    arguments: tuple[Argument, ...] = ()
    source: str = "sessiontree"
    """Where it comes from: an extension's name or a prompt file's path, if it is none of ours."""

    @property
    def usage(self) -> str:
        return " ".join([f"/{self.name}", *(argument.usage for argument in self.arguments)])

    def parse(self, text: str) -> list[str]:
        """What was typed behind the name, by argument. Raises `InvalidOperation`."""
        words = WordReader(text)
        given: list[str] = []
        for argument in self.arguments:
            if argument.rest:
                given += filter(None, [words.read_rest()])
            elif argument.repeated:
                given += words
            else:
                given += islice(words, 1)
        if words.read_rest():
            raise InvalidOperation(f"that is more than /{self.name} takes: {self.usage}")
        if len(given) < sum(argument.required for argument in self.arguments):
            raise InvalidOperation(f"/{self.name} needs more: {self.usage}")
        return given

    def get_argument(self, count: int) -> Argument | None:
        """The argument that follows `count` words."""
        if count < len(self.arguments):
            return self.arguments[count]
        last = self.arguments[-1] if self.arguments else None
        return last if last is not None and last.repeated else None


class WordReader(Iterator[str]):
    """A text taken word by word. Quotes hold words together where they begin one; otherwise they are letters."""

    _WORD = re.compile(r"""\s*(?:"([^"]*)"(?!\S)|'([^']*)'(?!\S)|(\S+))""")

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def __next__(self) -> str:
        found = self._WORD.match(self._text, self._position)
        if found is None:
            raise StopIteration
        self._position = found.end()
        return found[found.lastindex or 0]

    def read_rest(self) -> str:
        """All that is left, as it was typed."""
        left, self._position = self._text[self._position :].strip(), len(self._text)
        return left


def quote_word(word: str) -> str:
    """A word as `Words` takes it, in quotes where it needs them. One with both kinds and blanks cannot be typed."""
    if re.fullmatch(r"[^\s\"']\S*", word):
        return word
    return f"'{word}'" if '"' in word else f'"{word}"'


class ParsedLine(NamedTuple):
    name: str
    text: str
    """What stands behind the name."""


NAME = r"[A-Za-z0-9][\w:.-]*"
_LINE = re.compile(rf"/({NAME})(?:\s+(.*))?\s*", re.DOTALL)
_LAST = re.compile(r"""(?:^|(?<=\s))("[^"]*|'[^']*|\S*)\Z""")
"""The last word of a line, which has blanks in it where a quote was not closed yet."""


def parse_line(line: str) -> ParsedLine | None:
    """The command that a line calls; `None` for a line that is no command, such as one that begins with a path."""
    found = _LINE.fullmatch(line.strip())
    return None if found is None else ParsedLine(found[1], found[2] or "")


def is_prompt_line(line: str) -> bool:
    """Whether a line is for the model: it is no command, and nothing for the shell."""
    return parse_line(line) is None and not line.startswith("!")


class Completion(Struct, frozen=True, kw_only=True):
    start: int
    """Where in the line the word begins that is to be replaced."""
    choices: tuple[str, ...]


class CommandRegistry:
    def __init__(self, commands: Iterable[Command] = ()) -> None:
        self._commands: dict[str, Command] = {command.name: command for command in commands}

    def __iter__(self) -> Iterator[Command]:
        return iter(self._commands.values())

    def add(self, command: Command) -> Callable[[], None]:
        """Take in a command. Returns what takes it off again. Raises `InvalidOperation` for a name that is taken."""
        if not re.fullmatch(NAME, command.name):
            raise InvalidOperation(f"{command.name!r} cannot be the name of a command")
        taken = self._commands.get(command.name)
        if taken is not None:
            raise InvalidOperation(f"there is a command /{command.name} already, from {taken.source}")
        self._commands[command.name] = command

        def remove() -> None:
            if self._commands.get(command.name) is command:
                del self._commands[command.name]

        return remove

    def find(self, name: str) -> Command:
        """The command of that name. Raises `NotFound`, which says what comes near."""
        if name not in self._commands:
            from difflib import get_close_matches

            near = get_close_matches(name, self._commands, cutoff=0.5)
            near += [other for other in self._commands if other.startswith(name) and other not in near]
            hint = f"near: {', '.join(f'/{other}' for other in near[:5])}" if near else "/help lists them all"
            raise NotFound("command", f"/{name}", hint)
        return self._commands[name]

    async def run(self, controller: SessionController, line: str) -> CommandOutcome:
        """Do what a line that is a command says."""
        called = parse_line(line)
        if called is None:
            raise InvalidOperation(f"{line!r} is no command")
        command = self.find(called.name)
        return await command.run(controller, command.parse(called.text)) or CommandOutcome()

    def complete(self, controller: SessionController, line: str) -> Completion:
        """What the last word of a line can become: the name of a command, or an argument of it."""
        begun = _LAST.findall(line)[0]
        start = len(line) - len(begun)
        if start == 0:
            names = [f"/{name}" for name in self._commands] if line.startswith("/") else []
            return Completion(start=0, choices=_filter_by_prefix(names, begun))
        called = parse_line(line[:start])
        command = None if called is None else self._commands.get(called.name)
        argument = (
            None if command is None or called is None else command.get_argument(len(list(WordReader(called.text))))
        )
        if argument is None or argument.complete is None:
            return Completion(start=start, choices=())
        if argument.rest:
            return Completion(start=start, choices=_filter_by_prefix(argument.complete(controller, begun), begun))
        begun = begun.lstrip("\"'")
        fitting = _filter_by_prefix(argument.complete(controller, begun), begun)
        typable = (quote_word(choice) for choice in fitting if [*WordReader(quote_word(choice))] == [choice])
        return Completion(start=start, choices=tuple(typable))


def _filter_by_prefix(choices: Iterable[str], begun: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(choice for choice in choices if choice.startswith(begun)))
