"""Nesting: how deep the objects and lists of a line may stand in one another, and whether some stand deeper.

What the stack allows would depend on who calls, so there is one limit for all who read and write,
and nothing here recurses. What is done with a line that is over it is not here: see `codec`.
"""

from __future__ import annotations

import re
from typing import Any

from sessiontree.core.messages import is_object

NESTING_LIMIT = 200
"""So deep. Lines of peers are nested less than ten deep."""

MANY = NESTING_LIMIT + 1
"""A line that is nested deeper has so many opening brackets, and as many closing ones."""

SHORT = 2 * NESTING_LIMIT
"""No line of so few bytes has."""

_MARK = re.compile(rb'"[^"\\]*+(?:\\.?+[^"\\]*+)*+(?:"|\Z)|[{\[]++|[}\]]++', re.DOTALL)
_STRING, _OPENING = b'"', b"{["
_CLOSINGS = (b"]" * 64, b"}" * 64, b"}]" * 32)
_HOLDERS: tuple[type[Any], ...] = (dict, list, tuple)


def may_be_deep(raw: bytes) -> bool:
    """Whether a line has so many brackets, in strings or not, that it has to be looked at closely.

    Nearly all that is read and written passes through here. `bytes.count` would take longer: it looks at every byte.
    """
    size = len(raw)
    return size > SHORT and size - len(raw.replace(b"[", b"", MANY).replace(b"{", b"", MANY)) >= MANY


def looks_deep(lines: bytes) -> bool:
    """Whether in one of many lines brackets are closed one right behind the other, as where something is nested deeply.

    For those who cannot afford to look at each line. It is not sure: what is closed may have something behind it.
    """
    return any(closing in lines for closing in _CLOSINGS)


def is_deep(value: Any) -> bool:
    """Whether a value is nested deeper than may be; one that holds itself is."""
    level: dict[int, Any] = {id(value): value}
    for _ in range(NESTING_LIMIT):
        level = {
            id(item): item
            for holder in level.values()
            for item in (holder.values() if is_object(holder) else holder)
            if isinstance(item, _HOLDERS)
        }
        if not level:
            return False
    return True


def is_deep_text(raw: bytes) -> bool:
    """The same of a line that no decoder gets to the end of."""
    depth = 0
    for mark in _MARK.finditer(raw):
        start, end = mark.span()
        if raw[start : start + 1] in _OPENING:
            depth += end - start
            if depth > NESTING_LIMIT:
                return True
        elif raw[start : start + 1] != _STRING:
            depth -= end - start
    return False
