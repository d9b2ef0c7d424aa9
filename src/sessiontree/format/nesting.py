"""Nesting: how deep the objects and lists of a line may stand in one another, and whether some stand deeper.

What the stack allows would depend on who calls, so there is one limit for all who read and write,
and nothing here recurses. `is_too_deep` is the rule for lines; `is_deep` tells of a value that is no
line yet. What is done with a line that is over the limit is not here: see `codec`.
"""

from __future__ import annotations

import re
from itertools import accumulate, chain, count
from operator import sub
from typing import Any

from sessiontree.core.messages import is_object

NESTING_LIMIT = 254
"""So deep, as deep as orjson writes objects and lists. Lines of peers are nested less than ten deep."""

MIN_BRACKETS = NESTING_LIMIT + 1
"""A line that is nested deeper has so many opening brackets, and as many closing ones."""

SHALLOW_SIZE = 2 * NESTING_LIMIT
"""No line of so few bytes has."""

LONG_LINE = 1 << 20
"""A line of more bytes is not cut into all its parts at once."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.?+[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
_PART = re.compile(rb'(?:[^"]*+%b){1,1000}+|[^"]++' % _STRING.pattern, re.DOTALL)
"""Some strings with what stands between them: to leave out all of a line at once would take many times its size."""
_STEPS = bytes.maketrans(b"{[}]", b"\2\2\0\0")
_REST = bytes(set(range(256)) - set(b"{[}]"))
_CLOSINGS = (b"]" * 64, b"}" * 64, b"}]" * 32)
_CONTAINERS: tuple[type[Any], ...] = (dict, list, tuple)


def can_be_deep(raw: bytes) -> bool:
    """Whether a line has so many brackets, in strings or not, that it has to be looked at closely.

    Nearly all that is read and written passes through here. `bytes.count` would take longer: it looks at every byte.
    """
    size = len(raw)
    return (
        size > SHALLOW_SIZE
        and size - len(raw.replace(b"[", b"", MIN_BRACKETS).replace(b"{", b"", MIN_BRACKETS)) >= MIN_BRACKETS
    )


def is_too_deep(raw: bytes) -> bool:
    """Whether a line is nested deeper than may be: the one rule for all who read and write lines.

    It goes by the text. A value whose key is repeated later counts too, although decoders drop it.
    """
    return can_be_deep(raw) and is_deep_text(raw)


def looks_deep(lines: bytes) -> bool:
    """Whether in one of many lines brackets are closed one right behind the other, as where something is nested deeply.

    For those who cannot afford to look at each line. It is not sure: what is closed may have something behind it.
    """
    return any(closing in lines for closing in _CLOSINGS)


def is_deep(value: Any) -> bool:
    """Whether a value is nested deeper than may be; one that holds itself is."""
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
    """The same of a line that is not decoded. A long one is taken in parts, so that this takes little memory."""
    if len(raw) > LONG_LINE:
        parts = (_STRING.sub(b"", part.group()) for part in _PART.finditer(raw))
    else:  # in a quarter of the time: what stands between quotes, once those within strings are gone
        parts = raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    brackets = (part.translate(_STEPS, _REST) for part in parts)
    steps = accumulate(chain.from_iterable(brackets))  # two for each one that opens: one up
    return max(map(sub, steps, count(1)), default=0) > NESTING_LIMIT
