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
_QUOTED = re.compile(r"""(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^']|'')*)')(?:\s+#.*)?""")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": " ", "t": " ", "r": " "}


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

    Values may be quoted and continue on indented lines, as in YAML. Without `strict`, lines of other forms are ignored.
    """
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FormatError(path, "not valid UTF-8") from error
    front = _FRONT.match(text)
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in front[1].split("\n") if front else ():
        if line[:1] in ("", " ", "\t"):
            lines.append(line.strip())
            continue
        key, colon, value = line.partition(":")
        if strict and not colon and not line.startswith(("- ", "#")):
            raise FormatError(path, f"{line.strip()!r} in the front matter is not `key: value`")
        lines = found[key.strip()] = [value.strip()]
    body = (text[front.end() :] if front else text).strip()
    if not body:
        raise FormatError(path, "the prompt is empty" if strict else "the file is empty")
    return {key: _read_value(lines) for key, lines in found.items()}, body


def _read_value(lines: list[str]) -> str:
    """Return a value of one or more lines as YAML reads it, on one line."""
    if lines[0] in _BLOCK_MARKS:
        return " ".join(filter(None, lines[1:]))
    value = " ".join(filter(None, lines))
    quoted = _QUOTED.fullmatch(value)
    if quoted is None:
        return value
    if quoted["single"] is not None:
        return quoted["single"].replace("''", "'")
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), quoted["double"])


def build_prompt_command(name: str, path: str, data: bytes) -> Command:
    """Return the command of a prompt file. Raises `FormatError`."""
    prompt = parse_prompt_file(path, data)

    async def run(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        return CommandOutcome(prompt=prompt.fill(args[0] if args else ""))

    first = prompt.text.split("\n", 1)[0].lstrip("# ")
    argument = Argument(name=prompt.argument_hint or "TEXT", rest=True)
    return Command(name=name, help=prompt.description or first[:80], run=run, arguments=(argument,), source=path)
