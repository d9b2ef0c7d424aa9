"""Nesting: the limit for nested objects and lists in a line.

A limit by stack depth would depend on the caller, so one limit applies to all readers and writers, and nothing here
recurses. `is_too_deep` checks lines; `is_deep` checks values that are not yet a line.
"""

from __future__ import annotations

import re
from itertools import accumulate, chain, count
from operator import sub
from typing import Any

from sessiontree.core.messages import is_object

NESTING_LIMIT = 254
"""The depth that orjson can write. Lines of peers are nested less than ten deep."""

MIN_BRACKETS = NESTING_LIMIT + 1
"""The number of opening brackets that a line must have to exceed the limit."""

SHALLOW_SIZE = 2 * NESTING_LIMIT
"""A line of at most this many bytes cannot exceed the limit."""

LONG_LINE = 1 << 20
"""A line of more bytes is processed in parts."""

_STRING = rb'(?s:"[^"\\]*+(?:\\.?+[^"\\]*+)*+(?:"|\Z))'
_PART = rb'(?:[^"]*+%b){1,1000}+|[^"]++' % _STRING
"""Some strings with the text between them. Processing a whole line at once would take many times its size in memory."""
_STEPS = bytes.maketrans(b"{[}]", b"\2\2\0\0")
_REST = bytes(set(range(256)) - set(b"{[}]"))
_CLOSINGS = (b"]" * 64, b"}" * 64, b"}]" * 32)
_CONTAINERS: tuple[type[Any], ...] = (dict, list, tuple)


def can_be_deep(raw: bytes) -> bool:
    """Return whether a line has enough brackets, in strings or not, to need a closer check.

    Nearly all lines pass through here. `bytes.count` would take longer, because it visits every byte.
    """
    size = len(raw)
    return (
        size > SHALLOW_SIZE
        and size - len(raw.replace(b"[", b"", MIN_BRACKETS).replace(b"{", b"", MIN_BRACKETS)) >= MIN_BRACKETS
    )


def is_too_deep(raw: bytes) -> bool:
    """Return whether a line is nested too deeply: the rule for all readers and writers.

    The check uses the text. A value whose key is repeated later counts too, although decoders drop it.
    """
    return can_be_deep(raw) and is_deep_text(raw)


def looks_deep(lines: bytes) -> bool:
    """Return whether a line among many closes many brackets in a row, which suggests deep nesting.

    This is a fast check that can miss deep nesting if other values come between the brackets.
    """
    return any(closing in lines for closing in _CLOSINGS)


def is_deep(value: Any) -> bool:
    """Return whether a value is nested too deeply. A value that contains itself is."""
    within = [iter((value,))]
    while within:
        for item in within[-1]:
            if isinstance(item, _CONTAINERS):
                if len(within) > NESTING_LIMIT:
                    return True
                within.append(iter(item.values() if is_object(item) else item))
                break
        else:
            within.pop()
    return False


def is_deep_text(raw: bytes) -> bool:
    """Return whether a line is nested too deeply, from its text. Long lines are processed in parts to save memory."""
    if len(raw) > LONG_LINE:
        parts = (re.sub(_STRING, b"", part.group()) for part in re.finditer(_PART, raw))
    else:  # four times as fast: the text outside quotes, after escapes are removed
        parts = raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    brackets = (part.translate(_STEPS, _REST) for part in parts)
    steps = accumulate(chain.from_iterable(brackets))  # an opening bracket counts two: one level up
    return max(map(sub, steps, count(1)), default=0) > NESTING_LIMIT
