"""A value of the wrong type, at any place of a session, never ends an export, an explanation or a replay."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from sessiontree.acp.session_updates import ConversationUpdates
from sessiontree.core.context import build_context
from sessiontree.core.context_explanation import explain
from sessiontree.errors import SessionTreeError
from sessiontree.export import DATASET_FORMATS, FORMATS, stream_export
from sessiontree.export.redact import Redactor
from sessiontree.export.snapshot import read_snapshot
from tests.reliability.harness import times
from tests.surrogates import TIME, build_lines

EVERY = times(7, torture=1)
"""Change every n-th place only."""
CALL = {"type": "toolCall", "id": "c9", "name": "edit", "arguments": {"path": "a", "edits": [{"newText": "b"}]}}
USAGE = {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 3, "cost": {"total": 0.1}}
IMAGE = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
MESSAGES: list[dict[str, Any]] = [
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, CALL], "usage": USAGE, "stopReason": "x"},
    {"role": "toolResult", "toolCallId": "c9", "content": [IMAGE], "details": {"diff": "+b"}, "isError": False},
    {"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE], "timestamp": 1700000000000},
    {"role": "assistant", "content": [{"type": "text", "text": "done"}], "tool_calls": [{"id": "c"}]},
]


def build_session() -> list[dict[str, Any]]:
    lines = [{"type": "session", "version": 3, "id": "s", "timestamp": TIME, "cwd": "/p"}, *build_lines()]
    for message in MESSAGES:
        place = {"id": f"{len(lines):08x}", "parentId": f"{len(lines) - 1:08x}", "timestamp": TIME}
        lines.append({"type": "message", **place, "copiedFrom": "00000001", "message": message})
    lines[-1]["message"]["content"].append({"type": "text", "text": "and more"})
    return lines


def list_places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if way:
        yield way
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from list_places(inner, (*way, key))


def replace_at(lines: list[dict[str, Any]], way: tuple[Any, ...], value: Any) -> list[bytes]:
    changed: Any = copy.deepcopy(lines)
    holder = changed
    for key in way[:-1]:
        holder = holder[key]
    holder[way[-1]] = value
    return [json.dumps(line).encode() for line in changed]


def use_session(lines: list[bytes]) -> None:
    """Read a session in every way of this package, of the context and of the replay for editors."""
    for form in (*FORMATS, *DATASET_FORMATS):
        try:
            list(stream_export(lines, form))
        except SessionTreeError:
            continue  # refused
    list(stream_export(lines, "jsonl", redactor=Redactor()))
    snapshot = read_snapshot(lines)
    for leaf in snapshot.heads.heads.values():
        if leaf is None or leaf in snapshot.tree:
            explain(snapshot.tree, leaf)
            build_context(snapshot.tree, leaf).to_llm()
            json.dumps(list(ConversationUpdates(dict, lambda: "/p").replay(snapshot.tree.path(leaf))))


@pytest.mark.parametrize("value", [{}, [], [{}], {"type": {}}, None, 10**30, "\ud800"], ids=ascii)
def test_any_field_may_have_any_type(value: Any) -> None:
    lines = build_session()
    places = [way for way in list_places(lines) if len(way) > 1]
    assert len(places) > 250
    for way in places[::EVERY]:
        try:
            use_session(replace_at(lines, way, value))
        except SessionTreeError:
            continue
        except Exception as error:
            raise AssertionError(f"{way} with {value!r}") from error
