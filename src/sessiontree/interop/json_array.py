"""Splits a long JSON array into its elements, without reading all of it at once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sessiontree.errors import FormatError

MAX_ELEMENT = 128 << 20
"""How long an element can be, in bytes."""
_UNTIL_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+([{}\[\]])', re.DOTALL)


def split_array(name: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the objects in an array as JSON, or the only object of a file; `blocks` are the bytes of the file `name`.

    The objects are not checked. Raises `FormatError` at the end of a file that is cut off or not JSON, and for an
    object that is too long.
    """
    data, at, start = b"", 0, 0
    depth = 0
    """How many brackets are open, without that of the array."""
    is_array = is_done = False
    while True:
        found = None if is_done else _UNTIL_BRACKET.match(data, at)
        if found is None:
            kept = start if depth else at
            if depth and len(data) - kept > MAX_ELEMENT:
                raise FormatError(name, f"a conversation is longer than {MAX_ELEMENT >> 20} MiB")
            more = b"" if is_done else _read_more(blocks, len(data) - kept)
            if not more:
                break
            data, at, start = data[kept:] + more, at - kept, 0
            continue
        bracket, at = found[1], found.end()
        if bracket == b"[" and not depth and not is_array:
            is_array = True
        elif bracket in b"[{":
            start = start if depth else at - 1
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                yield data[start:at]
                is_done = not is_array
        else:
            is_done = True
    if not is_done:
        raise FormatError(name, "not valid JSON: the end is missing")


def _read_more(blocks: Iterator[bytes], size: int) -> bytes:
    """Return at least `size` bytes, or all that are left. Doubling what is known keeps long objects fast."""
    read: list[bytes] = []
    while (size > 0 or not read) and (block := next(blocks, b"")):
        read.append(block)
        size -= len(block)
    return b"".join(read)
