"""Hypothesis: any well-formed session, and any damaged one.

Every entry that a model can see contains `mark(id)`, and nothing else does. A test can therefore find the text of
an entry wherever it is used. A well-formed session has no fault. A damaged one may have orphans, cycles, self-parents,
duplicate ids, lines that are not entries, and odd JSON as any value. A reflowed one has newlines or spaces in other
places.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from sessiontree.core.entries import HEAD_RECORD, Entry
from tests.builders import build_file, header, read

Wire = dict[str, Any]

CALLS = ("c1", "c2", "c3")
BRANCHES = ("main", "side", "other")


def mark(id: str) -> str:
    return f"<<{id}>>"


# Odd JSON

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**50), 10**50)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None), max_size=4)
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
"""Any JSON value, lone surrogates and 50 digits included."""


def _spaced(parts: list[str], blank: str) -> str:
    return blank + f"{blank},{blank}".join(parts) + blank


json_strings = st.sampled_from(
    ['""', '"a"', '"id"', '"\\u0069d"', '"\\ud800"', '"\\"{[,:"', '"]}"', '"\\\\"', '"é"', '"\\u00e9"', '"a\\/b"']
)
_blanks = st.sampled_from(["", "", " ", "\t", " \r "])
_scalar_texts = json_strings | st.sampled_from(["null", "true", "false", "0", "-0", "1.0", "1E+2", "7" * 50, "1e999"])


def _array_text(values: list[str], blank: str) -> str:
    return f"[{_spaced(values, blank)}]"


def _object_text(members: list[tuple[str, str]], blank: str) -> str:
    return f"{{{_spaced([f'{key}{blank}:{blank}{value}' for key, value in members], blank)}}}"


def _members(values: st.SearchStrategy[str]) -> st.SearchStrategy[list[tuple[str, str]]]:
    return st.lists(st.tuples(json_strings, values), max_size=4)


json_texts = st.recursive(
    _scalar_texts,
    lambda inner: (
        st.builds(_array_text, st.lists(inner, max_size=3), _blanks) | st.builds(_object_text, _members(inner), _blanks)
    ),
    max_leaves=6,
)
"""JSON values as text, spelled in every way: blanks, escapes, duplicate keys, odd numbers."""
object_texts = st.builds(_object_text, _members(json_texts), _blanks).map(str.encode)
"""JSON objects as bytes, spelled in every way."""


# The content of entries, built from a few numbers that hypothesis chooses

STOPS = ("stop", "toolUse", "length", "error", "aborted")
ROLES = ("user", "user", "system", "developer", "custom", "unheard-of")
SETTINGS: tuple[Wire, ...] = (
    {"type": "model_change", "provider": "p", "modelId": "m2"},
    {"type": "model_change", "model": "p/m3", "role": "default"},
    {"type": "thinking_level_change", "thinkingLevel": "high"},
    {"type": "mode_change", "mode": "plan", "data": {"x": 1}},
    {"type": "ttsr_injection", "injectedRules": ["r1", "r2"]},
    {"type": "reset_boundary"},
    {"type": "custom", "customType": "x", "data": [1]},
    {"type": "agent_action", "action": "spawn", "agentId": "a"},
    {"type": "usage", "kind": "warm", "usage": {"totalTokens": 5}},
    {"type": "session_info", "name": "called"},
    {"type": "from_the_future", "field": 1.0},
)


def _pick(options: Sequence[Any], number: int) -> Any:
    return options[number % len(options)]


def _message(id: str, role: str, **fields: Any) -> Wire:
    content = [{"type": "text", "text": mark(id)}]
    return {"type": "message", "message": {"role": role, "content": content, **fields}}


def _turn(id: str, number: int, stop: str) -> Wire:
    made = [
        {"type": "toolCall", "id": call, "name": "read", "arguments": {"path": "x"}}
        for bit, call in enumerate((*CALLS, "", "c1"))
        if number >> bit & 1
    ]
    turn = _message(id, "assistant", stopReason=stop, provider="p", model="m")
    turn["message"]["content"] += made
    return turn


def _body(kind: int, number: int, other: int, id: str, earlier: list[str], path: list[str]) -> Wire:
    target = _pick([*earlier, *path], other)
    match kind:
        case 0 | 1 | 2:
            return _message(id, _pick(ROLES, number))
        case 3 | 4 | 5 | 6:
            return _turn(id, number, _pick(STOPS, other))
        case 7 | 8 | 9 | 10:
            return _message(id, "toolResult", toolCallId=_pick([*CALLS, ""], number), toolName="read")
        case 11:
            return _message(id, "bashExecution", command="ls", output=mark(id), excludeFromContext=number % 2 == 0)
        case 12:
            return {"type": "custom_message", "customType": "x", "content": mark(id), "display": True}
        case 13:
            return {"type": "branch_summary", "fromId": "root", "summary": _pick([mark(id), ""], number)}
        case 14 | 15 | 16:
            return {"type": "compaction", "summary": mark(id), "firstKeptEntryId": _pick(path, number)}
        case 17:
            return {"type": "label", "targetId": target, "label": _pick(["x", ""], number)}
        case 18 | 19:
            put = _pick([None, {"content": mark(target)}], number)
            return {"type": "context_edit", "targetId": target, "replacement": put}
        case 20:
            return {"type": "branch_point", "branchName": _pick(BRANCHES, number)}
        case 21:
            heads = {"current": "main", "heads": {"main": target, "side": None}, "from": {}}
            return {"type": "custom", "customType": "sessiontree.head", "data": heads}
        case _:
            return dict(_pick(SETTINGS, number))


BRANCH_KEYS: tuple[Wire, ...] = (
    {},
    {},
    {"branch": "main"},
    {"branch": "side"},
    {"branch": None},
    {"branch": "side", "current": "main"},
)

Choice = tuple[int, int, int, int, int]
_choices = st.tuples(*(st.integers(0, most) for most in (24, 59, 59, 59, 59)))


def _histories(max_size: int) -> st.SearchStrategy[list[Choice]]:
    return st.integers(0, max_size).flatmap(lambda size: st.lists(_choices, min_size=size, max_size=size))


def _well_formed(choices: list[Choice]) -> list[Wire]:
    """Each entry's parent is an earlier one, mostly the last; anchors are on the path; targets are earlier."""
    lines: list[Wire] = []
    paths: dict[str | None, list[str]] = {None: []}
    for kind, number, other, above, keys in choices:
        id = f"{len(lines):08x}"
        earlier = [line["id"] for line in lines]
        parent = _pick([*earlier[-1:] * (len(earlier) + 1), *earlier, None], above)
        paths[id] = [*paths[parent], id]
        body = _body(kind, number, other, id, earlier, paths[id])
        place = {"id": id, "parentId": parent, "timestamp": f"2026-01-01T00:00:0{number % 4}.000Z"}
        lines.append({"type": body["type"], **place, **_pick(BRANCH_KEYS, keys), **body})
    return lines


NOT_ENTRIES = (b"", b"{", b"[]", b"nonsense", b'{"type":"message"}', b"\xff", b'{"type":1,"id":"x"}')


def _damaged(choices: list[Choice], harm: list[tuple[int, int]], odd: list[Any]) -> list[Wire | bytes]:
    lines = _well_formed(choices)
    anyone = [*(line["id"] for line in lines), "gone"]
    damaged: list[Wire | bytes] = []
    for line, (kind, number) in zip(lines, harm, strict=False):
        match kind:
            case 0 | 1:
                damaged.append({**line, "parentId": _pick([*anyone, line["id"]], number)})
            case 2:
                damaged.append({**line, "id": _pick(anyone, number)})
            case 3:
                key = _pick([key for key in line if key != "type"], number)
                damaged.append({**line, key: _pick(odd, number)})
            case 4 | 5 if "message" in line:
                key = _pick([*line["message"], "usage", "timestamp", "files"], number)
                damaged.append({**line, "message": {**line["message"], key: _pick(odd, number)}})
            case 6:
                damaged += [_pick(NOT_ENTRIES, number), line]
            case _:
                damaged.append(line)
    return damaged


def sessions(max_size: int = 20) -> st.SearchStrategy[bytes]:
    """Files without a fault."""
    lines = _histories(max_size).map(_well_formed)
    return st.builds(lambda lines, spaced: build_file(header(), *lines, spaced=spaced), lines, st.booleans())


def _damaged_lines(max_size: int) -> st.SearchStrategy[list[Wire | bytes]]:
    harm = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 59)), min_size=max_size, max_size=max_size)
    return st.builds(_damaged, _histories(max_size), harm, st.lists(json_values, min_size=1, max_size=3))


def damaged_sessions(max_size: int = 20) -> st.SearchStrategy[bytes]:
    """Files with any damage after the header."""
    lines = _damaged_lines(max_size)
    return st.builds(lambda lines, spaced: build_file(header(), *lines, spaced=spaced), lines, st.booleans())


@st.composite
def reflowed_sessions(draw: st.DrawFn, max_size: int = 12) -> bytes:
    """Files that lack newlines after lines, and have some where JSON allows them."""
    first, *lines = draw(sessions(max_size)).splitlines(keepends=True)
    for at, line in enumerate(lines):
        match draw(st.integers(0, 9)):
            case 0 | 1:
                lines[at] = line[:-1]
            case 2:
                lines[at] = line.replace(b",", b",\n", draw(st.integers(1, 3)))
            case 3:
                lines[at] = line[:-1] + draw(st.sampled_from([b"\r\n", b" \n", b"\n\n", b"\n "]))
            case _:
                pass
    return first + b"".join(lines)


PREAMBLES = ((), ("junk",), ("junk", "") * 20, ({"type": "title", "title": "t", "id": "00000000"},))


def _records(ids: list[str]) -> st.SearchStrategy[Any]:
    """Return the data of head records, mostly invalid."""
    heads = st.dictionaries(st.sampled_from(BRANCHES), st.sampled_from([*ids, *ids, None, "gone"]), max_size=3)
    parts = {"current": st.sampled_from(["main", "side", "gone", 5]), "heads": heads, "archived": st.just(["side"])}
    return st.sampled_from([None, "odd"]) | st.fixed_dictionaries({}, optional=parts)


@st.composite
def marred_sessions(draw: st.DrawFn, max_size: int = 12) -> bytes:
    """Files with lines that start like messages but are not JSON, odd head records, and headers anywhere."""
    lines: list[Any] = draw(st.one_of(_histories(max_size).map(_well_formed), _damaged_lines(max_size)))
    ids = [f"{number:08x}" for number in range(len(lines))]
    for at in range(len(lines)):
        match draw(st.integers(0, 9)):
            case 0 | 1 | 2:
                lines[at] = build_file(lines[at], spaced=False)[:-1].replace(b',"message":{', b',"message":{oops')
            case 3 | 4:
                place = {"type": "custom", "id": ids[at], "parentId": ids[at - 1] if at else None}
                keys: Wire = draw(st.sampled_from(BRANCH_KEYS))
                lines[at] = {**place, **keys, "customType": HEAD_RECORD, "data": draw(_records(ids))}
            case 5 if draw(st.booleans()):
                lines[at] = header()
            case _:
                pass
    return build_file(*draw(st.sampled_from(PREAMBLES)), header(), *lines, spaced=False)


def entry_lists(max_size: int = 20) -> st.SearchStrategy[list[Entry]]:
    """The entries of files without a fault."""
    return sessions(max_size).map(lambda data: read(data)[1])


def damaged_entry_lists(max_size: int = 20) -> st.SearchStrategy[list[Entry]]:
    """The entries of files with any damage."""
    return damaged_sessions(max_size).map(lambda data: read(data)[1])


def places(entries: list[Entry]) -> st.SearchStrategy[str | None]:
    """Any place in the tree of these entries."""
    return st.sampled_from([None, *dict.fromkeys(entry.id for entry in entries)])


def dump_messages(messages: list[Wire]) -> str:
    """Return `messages` as one text, to find marks in."""
    return json.dumps(messages)
