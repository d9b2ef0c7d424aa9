"""Parses prompt files: Markdown files that become slash commands.

    ---
    description: Review a file
    argument-hint: FILE [WHAT]
    ---
    Review $1. Look for these problems first: $2

`$1` to `$9` are the typed words. `$@` and `$ARGUMENTS` are the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from sessiontree.errors import FormatError
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.registry import Argument, Command, CommandOutcome, WordReader

KEYS = ("description", "argument-hint")

_FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_PLACEHOLDER = re.compile(r"\$(?:([1-9])(?!\d)|@|ARGUMENTS\b)")


_BLOCK_MARKS = (">", "|", ">-", "|-", ">+", "|+")
"""Values that start on the next line, in YAML."""


class PromptFile(Struct, frozen=True, kw_only=True):
    text: str
    description: str = ""
    argument_hint: str = ""

    def fill(self, typed: str) -> str:
        """Return the text with the typed arguments filled in, or appended if it has no placeholders."""
        words = list(WordReader(typed))

        def substitute(found: re.Match[str]) -> str:
            if found[1] is None:
                return typed
            index = int(found[1]) - 1
            return words[index] if index < len(words) else ""

        text, count = _PLACEHOLDER.subn(substitute, self.text)
        return text if count or not typed else f"{text}\n\n{typed}"


def parse_prompt_file(path: str, data: bytes) -> PromptFile:
    """Parse a prompt file. Raises `FormatError`."""
    values, text = split_front_matter(path, data)
    return PromptFile(text=text, description=values.get(KEYS[0], ""), argument_hint=values.get(KEYS[1], ""))


def split_front_matter(path: str, data: bytes, *, strict: bool = True) -> tuple[dict[str, str], str]:
    """Return the values at the top of a Markdown file, and its text. Raises `FormatError`, also for an empty text.

    Without `strict`, values may continue on indented lines, as in YAML, and lines of other forms are ignored.
    """
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FormatError(path, "not valid UTF-8") from error
    front = _FRONT.match(text)
    values: dict[str, str] = {}
    last = ""
    for line in front[1].split("\n") if front else ():
        key, colon, value = line.partition(":")
        if not strict and line[:1] in (" ", "\t"):
            values[last] = " ".join(filter(None, [values.get(last, ""), line.strip()]))
            continue
        if not colon and strict and line.strip():
            raise FormatError(path, f"{line.strip()!r} in the front matter is not `key: value`")
        last = key.strip()
        values[last] = "" if not strict and value.strip() in _BLOCK_MARKS else _strip_quotes(value.strip())
    body = (text[front.end() :] if front else text).strip()
    if not body:
        raise FormatError(path, "the prompt is empty" if strict else "the file is empty")
    return values, body


def _strip_quotes(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def build_prompt_command(name: str, path: str, data: bytes) -> Command:
    """Return the command of a prompt file. Raises `FormatError`."""
    prompt = parse_prompt_file(path, data)

    async def run(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        return CommandOutcome(prompt=prompt.fill(args[0] if args else ""))

    first = prompt.text.split("\n", 1)[0].lstrip("# ")
    argument = Argument(name=prompt.argument_hint or "TEXT", rest=True)
    return Command(name=name, help=prompt.description or first[:80], run=run, arguments=(argument,), source=path)
