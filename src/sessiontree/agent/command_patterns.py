"""Patterns of shell commands: which rules a command line falls under. Pure: nothing here runs or reads anything.

A rule that allows must never match more than it says, so it matches simple commands only: words and quotes, joined by
`;`, `&&`, `||`, `|` or newlines, each of them allowed. Whatever else a shell knows (substitutions, redirections,
groups, background jobs, comments, escapes) is not matched. A rule that restricts may match more than it says.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

BLANKS = " \t\n"
"""What shells skip before a command; other white space is part of its name."""
SPECIAL_CHARACTERS = frozenset("$`\\<>(){}#!&")
"""What makes a command more than words, outside of quotes."""
EXPANDING_CHARACTERS = frozenset("*?[~")
"""What a shell replaces by names of files."""
SPECIAL_IN_QUOTES = frozenset("$`\\!")
"""What has a meaning inside double quotes."""
RESERVED_WORDS = frozenset({
    "if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "while", "until", "for", "select", "function",
    "time", "coproc", "[[", "]]", "{", "}", "!",
})  # fmt: skip
WRAPPERS = RESERVED_WORDS | {
    "builtin", "command", "doas", "env", "exec", "ionice", "nice", "nohup", "setsid", "stdbuf", "sudo",
    "timeout", "xargs",
}  # fmt: skip
"""Words before the command that is really run."""
RUNNERS = WRAPPERS | {
    "--", "ash", "bash", "busybox", "chroot", "dash", "entr", "eval", "fd", "find", "flock", "ksh", "parallel",
    "runuser", "script", "sg", "sh", "ssh", "strace", "su", "systemd-run", "trap", "unshare", "watch", "zsh",
}  # fmt: skip
"""Commands that run what stands somewhere in their arguments, as words or as one text."""
MAX_DEPTH = 4
"""How many texts inside of texts a rule that restricts looks at."""
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?\+?=")
_BREAKS = re.compile(r"[;&|\n\r<>(){}`\"'$]+")


def split_commands(text: str) -> list[str] | None:
    """The simple commands of a command line, each with its words quoted in one way; `None` if it has anything else."""
    if not all(letter in "\t\n" or letter.isprintable() for letter in text):
        return None  # shells do not agree on what such letters are
    commands: list[str] = []
    words: list[str] = []
    pieces: list[tuple[str, bool]] = []
    """Parts of the word that is read, each with whether it was quoted."""
    at, joined = 0, False
    """`joined`: an operator was read that needs a command behind it."""

    def end_word() -> bool:
        if pieces:
            word = _normalize_word(pieces, first=not words)
            if word is None:
                return False
            words.append(word)
            pieces.clear()
        return True

    def end_command() -> bool:
        if words:
            commands.append(" ".join(words))
            words.clear()
            return True
        return False

    while at < len(text):
        letter = text[at]
        if letter in " \t\n;|" or text.startswith("&&", at):
            if not end_word():
                return None
            if letter in " \t":
                at += 1
                continue
            had_one = end_command()
            if letter == "\n":
                at += 1
                continue
            if not had_one or text.startswith(("|&", ";;"), at):
                return None
            joined = letter != ";"
            at += 2 if text.startswith(("&&", "||"), at) else 1
            continue
        joined = False
        if letter == "'":
            end = text.find("'", at + 1)
            if end < 0:
                return None
            pieces.append((text[at + 1 : end], True))
            at = end + 1
        elif letter == '"':
            end = text.find('"', at + 1)
            if end < 0 or SPECIAL_IN_QUOTES.intersection(text[at + 1 : end]):
                return None
            pieces.append((text[at + 1 : end], True))
            at = end + 1
        elif letter in SPECIAL_CHARACTERS:
            return None
        else:
            pieces.append((letter, False))
            at += 1
    if not end_word():
        return None
    end_command()
    return None if joined or not commands else commands


def _normalize_word(pieces: list[tuple[str, bool]], *, first: bool) -> str | None:
    """A word in the one way in which it is compared; `None` if it cannot be told what it becomes."""
    word = "".join(piece for piece, _ in pieces)
    plain = "".join(piece for piece, quoted in pieces if not quoted)
    expands = bool(EXPANDING_CHARACTERS.intersection(plain))
    if first and (expands or "=" in plain or word in RESERVED_WORDS or not word):
        return None
    if not expands:
        return shlex.quote(word)
    # What is quoted and what expands must stay apart: `'*'` is a name, `*` is every file.
    return word if len(plain) == len(word) else None


def allows(pattern: str | None, command: str, others: Collection[str] = ()) -> bool:
    """Whether a rule that allows, together with `others`, covers all of a command line."""
    patterns = [pattern, *others] if pattern is not None else [None]
    if any(each is None or each == "*" or _is_exactly(each, command) for each in patterns):
        return True
    parts = split_commands(command)
    if parts is None:
        return False
    matchers = [_compile_pattern(each) for each in patterns if each is not None]
    return all(any(matcher.fullmatch(part) for matcher in matchers) for part in parts)


def restricts(pattern: str | None, command: str, depth: int = 0) -> bool:
    """Whether a rule that restricts concerns any part of a command line, as far as one can tell without running it."""
    if pattern is None or pattern == "*" or _is_exactly(pattern, command):
        return True
    matcher = _compile_pattern(pattern)
    parts = split_commands(command)
    if parts is None:
        without_quotes = re.sub("[\"']", "", command)
        texts = (part for text in (command, without_quotes) for part in _BREAKS.split(text))
        return any(_matches_from(matcher, part.replace("\\", "").split()) for part in texts)
    if any(_matches_unwrapped(matcher, part) for part in parts):
        return True
    return depth < MAX_DEPTH and any(
        restricts(pattern, text, depth + 1) for part in parts for text in _find_nested_commands(part)
    )


def _find_nested_commands(part: str) -> Iterable[str]:
    """The arguments of a simple command that it may run as command lines of their own."""
    words = shlex.split(part)
    if words[0].rpartition("/")[2] in RUNNERS:
        yield from (word for word in words[1:] if len(word.split()) > 1)
    yield from (word.partition("=!")[2] for word in words[1:] if "=!" in word)  # git -c alias.x='!command'


def _is_exactly(pattern: str, command: str) -> bool:
    """Whether a pattern without wildcards says this command, letter for letter."""
    return not _has_wildcard(pattern) and unescape(pattern) == command.lstrip(BLANKS)


def _matches_unwrapped(matcher: re.Pattern[str], part: str) -> bool:
    """Whether a command is meant, or what it runs where it is one that runs another."""
    words = part.split(" ")
    if words[0].rpartition("/")[2] not in RUNNERS:
        return _matches_from(matcher, words, lambda at: at == 0)
    return _matches_from(
        matcher, words, lambda at: not at or not (words[at].startswith("-") or _ASSIGNMENT.match(words[at]))
    )


def _matches_from(
    matcher: re.Pattern[str], words: Sequence[str], begins: Callable[[int], bool] = lambda at: True
) -> bool:
    """Whether words in a row are meant, from one of those with which a command `begins` to the last.

    A program counts by its path and by its name. Nothing is copied: a command may have many words.
    """
    text, at = " ".join(words), 0
    for number, word in enumerate(words):
        name = word.rpartition("/")[2]
        if begins(number) and (
            matcher.fullmatch(text, at)
            or (name and name != word and matcher.fullmatch(text, at + len(word) - len(name)))
        ):
            return True
        if matcher.pattern.startswith((".*", "(?>.*?")):
            return False  # a star at the beginning stands for all words that could be left out
        at += len(word) + 1
    return False


def _has_wildcard(pattern: str) -> bool:
    return re.search(r"(?<!\\)(?:\\\\)*\*", pattern) is not None


@lru_cache(maxsize=512)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    """`*` is anything; behind a blank at the end it may be nothing. `\\*` is a star, and `\\\\` a backslash."""
    optional = pattern.endswith(" *") and not pattern.endswith("\\ *")
    pieces = [""]
    letters = iter(pattern[:-2] if optional else pattern)
    for letter in letters:
        if letter == "*":
            pieces.append("")
        else:
            pieces[-1] += re.escape(next(letters, "\\") if letter == "\\" else letter)
    first, *middle = pieces
    last = f".*{middle.pop()}" if middle else ""
    # The first place of each piece will do, so it is never looked for again: the time grows with the text alone.
    found = "".join(f"(?>.*?{piece})" for piece in middle)
    return re.compile(first + found + last + ("(?: .*)?" if optional else ""), re.DOTALL)


def escape(command: str) -> str:
    """A pattern that only this command matches. Blanks at its beginning mean nothing."""
    return command.lstrip(BLANKS).replace("\\", "\\\\").replace("*", "\\*")


def unescape(pattern: str) -> str:
    return re.sub(r"\\(.)", r"\1", pattern, flags=re.DOTALL)
