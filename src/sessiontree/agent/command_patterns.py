"""Match shell commands against the patterns of permission rules. Nothing here runs a command or reads a file.

An allow rule must never match too much, so it matches simple commands only: words and quotes, joined by `;`, `&&`,
`||`, `|` or newlines, each of them allowed. It matches no other shell syntax: substitutions, redirections, groups,
background jobs, comments, escapes. Ask and deny rules may match too much.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

BLANKS = " \t\n"
"""Whitespace that shells skip before a command; other whitespace is part of its name."""
SPECIAL_CHARACTERS = frozenset("$`\\<>(){}#!&")
"""Characters with a special meaning outside of quotes."""
EXPANDING_CHARACTERS = frozenset("*?[~")
"""Characters that a shell expands to file names."""
SPECIAL_IN_QUOTES = frozenset("$`\\!")
"""Characters with a special meaning inside double quotes."""
RESERVED_WORDS = frozenset({
    "if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "while", "until", "for", "select", "function",
    "time", "coproc", "[[", "]]", "{", "}", "!",
})  # fmt: skip
WRAPPERS = RESERVED_WORDS | {
    "builtin", "command", "doas", "env", "exec", "ionice", "nice", "nohup", "setsid", "stdbuf", "sudo",
    "timeout", "xargs",
}  # fmt: skip
"""Words that precede the actual command."""
RUNNERS = WRAPPERS | {
    "--", "ash", "bash", "busybox", "bwrap", "caffeinate", "capsh", "chronic", "chroot", "chrt", "cpulimit", "dash",
    "dbus-run-session", "entr", "eval", "fakeroot", "fd", "find", "firejail", "flock", "hyperfine", "ksh", "ltrace",
    "nsenter", "numactl", "parallel", "pkexec", "poetry", "prlimit", "proot", "proxychains", "runuser", "script",
    "setpriv", "sg", "sh", "ssh", "start-stop-daemon", "strace", "su", "systemd-run", "taskset", "torsocks", "trap",
    "unbuffer", "unshare", "uv", "valgrind", "watch", "xvfb-run", "zsh",
}  # fmt: skip
"""Commands that run a command from their arguments."""
MAX_DEPTH = 4
"""How many levels of nested commands an ask or deny rule checks."""
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?\+?=")
_BREAKS = re.compile(r"[;&|\n\r<>(){}`\"'$]+")


def split_commands(text: str) -> list[str] | None:
    """Return the simple commands of a command line with normalized quotes; `None` if it contains any other syntax."""
    if not all(letter in "\t\n" or letter.isprintable() for letter in text):
        return None  # shells treat such characters differently
    commands: list[str] = []
    words: list[str] = []
    pieces: list[tuple[str, bool]] = []
    """The parts of the current word, and whether each was quoted."""
    at, joined = 0, False
    """`joined`: the last operator needs a command after it."""

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
    """Return a word with normalized quotes; `None` if its expansion is unknown."""
    word = "".join(piece for piece, _ in pieces)
    plain = "".join(piece for piece, quoted in pieces if not quoted)
    expands = bool(EXPANDING_CHARACTERS.intersection(plain))
    if first and (expands or "=" in plain or word in RESERVED_WORDS or not word):
        return None
    if not expands:
        return shlex.quote(word)
    # Quoted and expanding characters must not be mixed: `'*'` is a name, `*` is every file.
    return word if len(plain) == len(word) else None


def allows(pattern: str | None, command: str, others: Collection[str] = ()) -> bool:
    """Return whether an allow rule, together with `others`, covers the whole command line."""
    patterns = [pattern, *others] if pattern is not None else [None]
    if any(each is None or each == "*" or _is_exactly(each, command) for each in patterns):
        return True
    parts = split_commands(command)
    if parts is None:
        return False
    matchers = [_compile_pattern(each) for each in patterns if each is not None]
    return all(any(matcher.fullmatch(part) for matcher in matchers) for part in parts)


def restricts(pattern: str | None, command: str, depth: int = 0) -> bool:
    """Return whether an ask or deny rule may match any part of a command line."""
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
    """Yield the arguments of a simple command that it may run as command lines."""
    words = shlex.split(part)
    if words[0].rpartition("/")[2] in RUNNERS:
        yield from (word for word in words[1:] if len(word.split()) > 1)
    yield from (word.partition("=!")[2] for word in words[1:] if "=!" in word)  # git -c alias.x='!command'


def _is_exactly(pattern: str, command: str) -> bool:
    """Return whether a pattern without wildcards equals this command."""
    return not _has_wildcard(pattern) and unescape(pattern) == command.lstrip(BLANKS)


def _matches_unwrapped(matcher: re.Pattern[str], part: str) -> bool:
    """Return whether the pattern matches a command, or the command that it runs."""
    words = part.split(" ")
    if words[0].rpartition("/")[2] not in RUNNERS:
        return _matches_from(matcher, words, lambda at: at == 0)
    return _matches_from(
        matcher, words, lambda at: not at or not (words[at].startswith("-") or _ASSIGNMENT.match(words[at]))
    )


def _matches_from(
    matcher: re.Pattern[str], words: Sequence[str], begins: Callable[[int], bool] = lambda at: True
) -> bool:
    """Return whether the pattern matches the words from a possible start of a command to the last word.

    A program matches by its path and by its name. The words are not copied: a command may have many.
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
            return False  # a leading star already covers the words that could be skipped
        at += len(word) + 1
    return False


def _has_wildcard(pattern: str) -> bool:
    return re.search(r"(?<!\\)(?:\\\\)*\*", pattern) is not None


@lru_cache(maxsize=512)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern. `*` matches anything, a final ` *` also nothing. `\\*` is a star, `\\\\` a backslash."""
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
    # Atomic groups match the first place of each piece without backtracking: the time is linear in the text.
    found = "".join(f"(?>.*?{piece})" for piece in middle)
    return re.compile(first + found + last + ("(?: .*)?" if optional else ""), re.DOTALL)


def escape(command: str) -> str:
    """Return a pattern that matches only this command. Leading whitespace is ignored."""
    return command.lstrip(BLANKS).replace("\\", "\\\\").replace("*", "\\*")


def unescape(pattern: str) -> str:
    return re.sub(r"\\(.)", r"\1", pattern, flags=re.DOTALL)
