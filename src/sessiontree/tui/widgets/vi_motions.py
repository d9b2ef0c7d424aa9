"""Motions of vi: where a key such as `w` or `$` leads in a text. Pure: positions are offsets into the text."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeAlias

Step: TypeAlias = Callable[[str, int, bool], int]
"""A motion by one word, in a text, from a position; the last argument tells whether punctuation belongs to words."""


class MotionKind(Enum):
    """What an operator does with the two ends of a motion."""

    EXCLUSIVE = "exclusive"
    INCLUSIVE = "inclusive"
    LINES = "lines"


class Motion(NamedTuple):
    to: int
    kind: MotionKind = MotionKind.EXCLUSIVE


def find_line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def find_line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def find_first_letter(text: str, at: int) -> int:
    """Return the first character of the line that is not blank."""
    start, end = find_line_start(text, at), find_line_end(text, at)
    return start + len(text[start:end]) - len(text[start:end].lstrip())


def find_motion(keys: str, text: str, at: int, count: int | None) -> Motion | None:
    """Return where the keys of a motion lead; `None` if they lead nowhere. `count` is `None` if none was typed."""
    times = count or 1
    match keys[0]:
        case "h":
            start = find_line_start(text, at)
            return None if at == start else Motion(max(start, at - times))
        case "l":
            return Motion(min(find_line_end(text, at), at + times))
        case "j" | "k":
            to = _move_by_lines(text, at, times if keys == "j" else -times)
            return None if to is None else Motion(to, MotionKind.LINES)
        case "0":
            return Motion(find_line_start(text, at))
        case "^":
            return Motion(find_first_letter(text, at))
        case "$":
            to = _move_by_lines(text, at, times - 1)
            return (
                None
                if to is None
                else Motion(max(find_line_end(text, to) - 1, find_line_start(text, to)), MotionKind.INCLUSIVE)
            )
        case "g" | "G":
            last = text.count("\n")
            row = min(count - 1, last) if count is not None else 0 if keys == "gg" else last
            return Motion(find_first_letter(text, find_row(text, row)), MotionKind.LINES)
        case "w" | "W":
            return Motion(_repeat(_find_next_word, text, at, times, is_wide=keys == "W"))
        case "b" | "B":
            return Motion(_repeat(_find_previous_word, text, at, times, is_wide=keys == "B")) if at else None
        case "e" | "E":
            return Motion(_repeat(_find_word_end, text, at, times, is_wide=keys == "E"), MotionKind.INCLUSIVE)
        case _:
            return _find_character(keys, text, at, times)


def find_change_end(text: str, at: int, count: int | None, *, is_wide: bool) -> int:
    """Return where `cw` ends: at the end of the word, without the blanks after it."""
    end = _extend_word(text, at, at, len(text), is_wide)[1] - 1
    return _repeat(_find_word_end, text, end, (count or 1) - 1, is_wide=is_wide) + 1


def find_word(text: str, at: int, *, is_wide: bool, with_blanks: bool) -> tuple[int, int]:
    """Return the range of the word at a position: `iw`, or `aw` with the blanks after or before it."""
    low, high = find_line_start(text, at), find_line_end(text, at)
    start, end = _extend_word(text, at, low, high, is_wide)
    if with_blanks and end < high and (text[end].isspace() or text[start].isspace()):
        end = _extend_word(text, end, low, high, is_wide)[1]
    elif with_blanks and start > low and text[start - 1].isspace():
        start = _extend_word(text, start - 1, low, high, is_wide)[0]
    return start, end


def _extend_word(text: str, at: int, low: int, high: int, is_wide: bool) -> tuple[int, int]:
    start = end = at
    while start > low and end < high and _get_class(text[start - 1], is_wide) == _get_class(text[at], is_wide):
        start -= 1
    while end < high and _get_class(text[end], is_wide) == _get_class(text[at], is_wide):
        end += 1
    return start, end


def _get_class(sign: str, is_wide: bool) -> int:
    """Return the class of a character: 0 for blanks. A word ends where the class changes."""
    return 0 if sign.isspace() else 1 if is_wide or sign.isalnum() or sign == "_" else 2


def _repeat(step: Step, text: str, at: int, times: int, *, is_wide: bool) -> int:
    for _ in range(min(times, len(text))):
        at = step(text, at, is_wide)
    return at


def _find_next_word(text: str, at: int, is_wide: bool) -> int:
    if at < len(text) and not text[at].isspace():
        at = _extend_word(text, at, at, len(text), is_wide)[1]
    while at < len(text) and text[at].isspace():
        at += 1
        if text[at - 1] == "\n" and text[at : at + 1] in ("", "\n"):
            return at  # an empty line counts as a word
    return at


def _find_word_end(text: str, at: int, is_wide: bool) -> int:
    at += 1
    while at < len(text) and text[at].isspace():
        at += 1
    return min(_extend_word(text, at, at, len(text), is_wide)[1], len(text)) - 1 if at < len(text) else len(text) - 1


def _find_previous_word(text: str, at: int, is_wide: bool) -> int:
    at -= 1
    while at > 0 and text[at].isspace():
        if text[at] == text[at - 1] == "\n":
            return at
        at -= 1
    return _extend_word(text, at, 0, len(text), is_wide)[0] if at > 0 else 0


def find_row(text: str, row: int) -> int:
    """Return the start of a line."""
    at = 0
    for _ in range(row):
        at = find_line_end(text, at) + 1
    return at


def _move_by_lines(text: str, at: int, by: int) -> int | None:
    """Return the same column in another line, at most the first or the last; `None` if there is no such line."""
    row = text.count("\n", 0, at)
    to = min(max(row + by, 0), text.count("\n"))
    if by and to == row:
        return None
    start = find_row(text, to)
    return min(start + at - find_line_start(text, at), find_line_end(text, start))


def _find_character(keys: str, text: str, at: int, times: int) -> Motion | None:
    """`f`, `t`, `F` and `T`: find a character in the line."""
    command, sign = keys
    low, high = find_line_start(text, at), find_line_end(text, at)
    found: int = at
    for _ in range(times):
        found = text.find(sign, found + 1, high) if command in "ft" else text.rfind(sign, low, found)
        if found < 0:
            return None
    shift = {"t": -1, "T": 1}.get(command, 0)
    return Motion(found + shift, MotionKind.INCLUSIVE if command in "ft" else MotionKind.EXCLUSIVE)
