"""Splicing: replaces single values in the raw text of a line.

A line that must change (a migration, a new parent in a fork) keeps its key order, spacing, number spelling, duplicate
keys and escapes everywhere else. Splice only lines that are valid JSON objects.
"""

from __future__ import annotations

import re
from collections.abc import Container

from msgspec import Struct

_TOKEN = rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]'
"""Possessive, without backtracking: a string of megabytes would take a hundred times its size in memory."""


class Member(Struct, frozen=True):
    """The position of one member of an object in its text."""

    name: str
    key: bytes
    """The name as spelled in the text, with quotes and escapes."""
    start: int
    value: int
    end: int


def find_members(raw: bytes) -> list[Member]:
    """Return the members of an object, in order."""
    found: list[Member] = []
    depth = 0
    key = b""
    start = value = 0
    for token in re.finditer(_TOKEN, raw):
        match raw[token.start() : token.start() + 1]:
            case b"{" | b"[":
                depth += 1
                continue
            case b"}" | b"]":
                depth -= 1
                if depth == 0 and key:
                    found.append(Member(_decode_name(key), key, start, value, _trim_space(raw, value, token.start())))
                continue
            case _ if depth != 1:
                continue
            case b",":
                found.append(Member(_decode_name(key), key, start, value, _trim_space(raw, value, token.start())))
                key = b""
            case b":":
                value = _skip_space(raw, token.end())
            case _ if not key:
                key, start = token.group(), token.start()
            case _:
                pass
    return found


def _decode_name(key: bytes) -> str:
    spelled = key.decode("utf-8", "replace")
    if "\\" not in spelled:
        return spelled[1:-1]
    import json

    return json.loads(spelled)


def _skip_space(raw: bytes, at: int) -> int:
    while raw[at : at + 1].isspace():
        at += 1
    return at


def _trim_space(raw: bytes, start: int, end: int) -> int:
    while end > start and raw[end - 1 : end].isspace():
        end -= 1
    return end


def get_value(raw: bytes, key: str) -> bytes | None:
    """Return the text of a member's value. As in every reader, the last member with the key counts."""
    return next((raw[m.value : m.end] for m in reversed(find_members(raw)) if m.name == key), None)


def set_value(raw: bytes, key: str, value: bytes) -> bytes:
    """Set `key` to the JSON text `value`. A new key is inserted after the first member."""
    quoted = b'"%s"' % key.encode()
    spans = find_members(raw)
    for member in reversed(spans):
        if member.name == key:
            return raw[: member.value] + value + raw[member.end :]
    if spans:
        at = spans[0].end
        return raw[:at] + b"," + quoted + b":" + value + raw[at:]
    at = raw.index(b"{") + 1
    return raw[:at] + quoted + b":" + value + raw[at:]


def rename_key(raw: bytes, old: str, new: str) -> bytes:
    """Rename every member `old` to `new`."""
    parts: list[bytes] = []
    done = 0
    for member in find_members(raw):
        if member.name == old:
            parts += raw[done : member.start], b'"%s"' % new.encode()
            done = member.start + len(member.key)
    return b"".join([*parts, raw[done:]])


def drop_key(raw: bytes, key: str) -> bytes:
    """Remove every member `key`."""
    spans = find_members(raw)
    return _keep_members(raw, spans, [place for place, member in enumerate(spans) if member.name != key])


def drop_after(raw: bytes, key: str, names: Container[str]) -> bytes:
    """Remove the members `names` that come after the first member `key`."""
    spans = find_members(raw)
    first = next(place for place, member in enumerate(spans) if member.name == key)
    return _keep_members(
        raw, spans, [place for place, member in enumerate(spans) if place <= first or member.name not in names]
    )


def _keep_members(raw: bytes, spans: list[Member], kept: list[int]) -> bytes:
    """Keep only the given members."""
    if len(kept) == len(spans):
        return raw
    before, behind = raw[: spans[0].start], raw[spans[-1].end :]
    if not kept:
        return before + behind
    # All but the last keep the text up to the next member, including the comma.
    with_comma = [raw[spans[place].start : spans[place + 1].start] for place in kept[:-1]]
    last = spans[kept[-1]]
    return b"".join([before, *with_comma, raw[last.start : last.end], behind])
