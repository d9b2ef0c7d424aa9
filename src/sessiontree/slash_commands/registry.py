"""Slash commands: their definition, parsing, arguments, completion and registry.

A `Command` has a name, a help text, arguments and a function. The `CommandRegistry` finds, completes and runs commands.
The functions of the built-in commands are in `info`, `navigation` and `sessions`. They act on a `SessionController`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec import Struct

from sessiontree.config import CHOICES
from sessiontree.core.entries import Message
from sessiontree.core.messages import get_role
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.library import catalog

if TYPE_CHECKING:
    from sessiontree.slash_commands.controller import (
        SessionController,  # cycle: commands act on the controller, which holds the registry
    )


class CommandOutcome(Struct, frozen=True, kw_only=True):
    """The result of a command."""

    text: str = ""
    """Output for the user. It may have several lines."""
    prompt: str | None = None
    """A prompt to send to the model."""
    answer: bool = False
    """Whether the model should answer the last message."""


Completer: TypeAlias = "Callable[[SessionController, str], Iterable[str]]"
"""Returns the possible values of an argument that starts with the given text. It may return more, which are filtered
out."""

CommandRunner: TypeAlias = "Callable[[SessionController, Sequence[str]], Awaitable[CommandOutcome | None]]"
"""Takes one value for each given argument."""


class Argument(Struct, frozen=True, kw_only=True):
    name: str
    """The name in the usage text, such as `PLACE`."""
    complete: Completer | None = None
    required: bool = False
    repeated: bool = False
    """Whether it takes all remaining words, each as a value."""
    rest: bool = False
    """Whether it takes the rest of the line as one text."""

    @property
    def usage(self) -> str:
        shown = f"{self.name}..." if self.repeated else self.name
        return shown if self.required else f"[{shown}]"


class Command(Struct, frozen=True, kw_only=True):
    name: str
    help: str
    """One sentence without a full stop."""
    run: CommandRunner
    arguments: tuple[Argument, ...] = ()
    source: str = "sessiontree"
    """Where it comes from: `sessiontree`, the name of an extension, or the path of a prompt file."""

    @property
    def usage(self) -> str:
        return " ".join([f"/{self.name}", *(argument.usage for argument in self.arguments)])

    def parse(self, text: str) -> list[str]:
        """Split the text after the command name into arguments. Raises `InvalidOperation`."""
        words = WordReader(text)
        values: list[str] = []
        for argument in self.arguments:
            if argument.rest:
                values += filter(None, [words.read_rest()])
            elif argument.repeated:
                values += words
            else:
                values += islice(words, 1)
        if words.read_rest():
            raise InvalidOperation(f"too many arguments for /{self.name}; usage: {self.usage}")
        if len(values) < sum(argument.required for argument in self.arguments):
            raise InvalidOperation(f"missing arguments for /{self.name}; usage: {self.usage}")
        return values

    def get_argument(self, count: int) -> Argument | None:
        """Return the argument that follows `count` words."""
        if count < len(self.arguments):
            return self.arguments[count]
        last = self.arguments[-1] if self.arguments else None
        return last if last is not None and last.repeated else None


class WordReader(Iterator[str]):
    """Reads a text word by word. A quote at the start of a word groups words. Elsewhere it is an ordinary character."""

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
        """Return the remaining text as it was typed."""
        left, self._position = self._text[self._position :].strip(), len(self._text)
        return left


def quote_word(word: str) -> str:
    """Return a word in the form that `WordReader` reads, with quotes if necessary.

    A word with a space and both kinds of quotes has no such form.
    """
    if re.fullmatch(r"[^\s\"']\S*", word):
        return word
    return f"'{word}'" if '"' in word else f'"{word}"'


class ParsedLine(NamedTuple):
    name: str
    text: str
    """The text after the name."""


NAME = r"[A-Za-z0-9][\w:.-]*"
_LINE = re.compile(rf"/({NAME})(?:\s+(.*))?\s*", re.DOTALL)
_LAST = re.compile(r"""(?:^|(?<=\s))("[^"]*|'[^']*|\S*)\Z""")
"""The last word of a line. It contains spaces if it starts with an unclosed quote."""


def parse_line(line: str) -> ParsedLine | None:
    """Parse a line as a command. Return `None` for any other line, such as one that starts with a path."""
    found = _LINE.fullmatch(line.strip())
    return None if found is None else ParsedLine(found[1], found[2] or "")


def is_prompt_line(line: str) -> bool:
    """Whether a line is a prompt, and not a slash command or a shell command."""
    return parse_line(line) is None and not line.startswith("!")


class Completion(Struct, frozen=True, kw_only=True):
    start: int
    """Where the completed word starts in the line."""
    choices: tuple[str, ...]


class CommandRegistry:
    def __init__(self, commands: Iterable[Command] = ()) -> None:
        self._commands: dict[str, Command] = {command.name: command for command in commands}

    def __iter__(self) -> Iterator[Command]:
        return iter(self._commands.values())

    def add(self, command: Command) -> Callable[[], None]:
        """Register a command and return a function that removes it. Raises `InvalidOperation` if the name is in use."""
        if not re.fullmatch(NAME, command.name):
            raise InvalidOperation(f"{command.name!r} is not a valid command name")
        taken = self._commands.get(command.name)
        if taken is not None:
            raise InvalidOperation(f"the command /{command.name} already exists, from {taken.source}")
        self._commands[command.name] = command

        def remove() -> None:
            if self._commands.get(command.name) is command:
                del self._commands[command.name]

        return remove

    def find(self, name: str) -> Command:
        """Return the command of that name. Raises `NotFound` with similar names."""
        if name not in self._commands:
            from difflib import get_close_matches

            near = get_close_matches(name, self._commands, cutoff=0.5)
            near += [other for other in self._commands if other.startswith(name) and other not in near]
            hint = f"similar: {', '.join(f'/{other}' for other in near[:5])}" if near else "/help lists all commands"
            raise NotFound("command", f"/{name}", hint)
        return self._commands[name]

    async def run(self, controller: SessionController, line: str) -> CommandOutcome:
        """Run the command of a line."""
        called = parse_line(line)
        if called is None:
            raise InvalidOperation(f"{line!r} is not a command")
        command = self.find(called.name)
        return await command.run(controller, command.parse(called.text)) or CommandOutcome()

    def complete(self, controller: SessionController, line: str) -> Completion:
        """Complete the last word of a line: the name of a command or one of its arguments."""
        prefix = _LAST.findall(line)[0]
        start = len(line) - len(prefix)
        if start == 0:
            names = [f"/{name}" for name in self._commands] if line.startswith("/") else []
            return Completion(start=0, choices=_filter_by_prefix(names, prefix))
        called = parse_line(line[:start])
        command = None if called is None else self._commands.get(called.name)
        argument = (
            None if command is None or called is None else command.get_argument(len(list(WordReader(called.text))))
        )
        if argument is None or argument.complete is None:
            return Completion(start=start, choices=())
        if argument.rest:
            return Completion(start=start, choices=_filter_by_prefix(argument.complete(controller, prefix), prefix))
        prefix = prefix.lstrip("\"'")
        matches = _filter_by_prefix(argument.complete(controller, prefix), prefix)
        typable = (quote_word(choice) for choice in matches if [*WordReader(quote_word(choice))] == [choice])
        return Completion(start=start, choices=tuple(typable))


def _filter_by_prefix(choices: Iterable[str], prefix: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(choice for choice in choices if choice.startswith(prefix)))


# Arguments

LEVELS = CHOICES["thinking"]


def complete_branches(controller: SessionController, prefix: str) -> Iterable[str]:
    return [name for name in controller.session.heads.heads if name not in controller.session.heads.archived]


def complete_places(controller: SessionController, prefix: str) -> Iterable[str]:
    """Complete names first, and entry ids after four characters."""
    names = ["HEAD", "root", *complete_branches(controller, prefix), *controller.session.tree.labels.values()]
    return [*names, *(controller.session.tree.find_by_prefix(prefix) if len(prefix) >= 4 else ())]


def complete_prompts(controller: SessionController, prefix: str) -> Iterable[str]:
    """Complete the user's messages on the path, the last one first."""
    return [
        entry.id
        for entry in reversed(controller.branch.path())
        if isinstance(entry.body, Message) and get_role(entry.body.message) == "user"
    ]


def complete_labels(controller: SessionController, prefix: str) -> Iterable[str]:
    return controller.session.tree.labels.values()


def complete_models(controller: SessionController, prefix: str) -> Iterable[str]:
    return controller.models.list_names()


def complete_levels(controller: SessionController, prefix: str) -> Iterable[str]:
    return LEVELS


def complete_modes(controller: SessionController, prefix: str) -> Iterable[str]:
    """Complete permission modes."""
    from sessiontree.agent.permission_rules import PERMISSION_MODES

    return PERMISSION_MODES


def complete_servers(controller: SessionController, prefix: str) -> Iterable[str]:
    """Complete names of MCP servers."""
    return [] if controller.options.mcp is None else [server.name for server in controller.options.mcp.servers]


def complete_sessions(controller: SessionController, prefix: str) -> Iterable[str]:
    """Complete names and ids of the sessions of this folder."""
    known = catalog.sessions(controller.cwd)
    return [word for summary in known for word in (summary.name, summary.id) if word]


def complete_commands(controller: SessionController, prefix: str) -> Iterable[str]:
    return [command.name for command in controller.commands]


def complete_files(controller: SessionController, prefix: str) -> Iterable[str]:
    """Complete files and folders in the working folder."""
    folder, _, _ = prefix.rpartition("/")
    where = os.path.join(controller.cwd, os.path.expanduser(f"{folder}/" if "/" in prefix else ""))
    try:
        with os.scandir(where) as found:
            listed = sorted((entry.name, entry.is_dir()) for entry in found if not entry.name.startswith("."))
    except OSError:
        return []
    lead = f"{folder}/" if "/" in prefix else ""
    return [f"{lead}{name}{'/' if is_folder else ''}" for name, is_folder in listed]


PLACE = Argument(name="PLACE", complete=complete_places)
PROMPT = Argument(name="MESSAGE", complete=complete_prompts)
FOCUS = Argument(name="FOCUS", rest=True)
FILE = Argument(name="FILE", complete=complete_files)


# Built-in commands

ORDER = (
    "help", "tree", "branch-here", "branches", "switch", "pop", "undo", "retry", "clear", "label",
    "fork", "branch", "clone", "new", "resume", "session", "name", "search", "export", "export-branch",
    "merge", "cherry-pick", "rebase", "compact", "uncompact", "context", "cost", "diff", "compare",
    "model", "thinking", "permissions", "plan", "mcp", "copy", "save-unsaved", "reload", "quit",
)  # fmt: skip
"""The built-in commands in the order of the help."""


def get_builtin_commands() -> list[Command]:
    from sessiontree.slash_commands import (  # cycle: they define commands with the classes above
        info,
        navigation,
        plan_mode,
        sessions,
        usage,
    )

    modules = (navigation, sessions, info, usage, plan_mode)
    commands = {command.name: command for module in modules for command in module.COMMANDS}
    return [commands[name] for name in ORDER]
