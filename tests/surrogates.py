"""Sessions with one lone surrogate, which JSON can spell and UTF-8 cannot: one session for each of the texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sessiontree.format.codec import WIRE

SURROGATE = "\ud800"
TIME = "2026-01-01T00:00:00.000Z"

HEADS = {
    "current": "main",
    "heads": {"main": "00000004", "other": "00000002"},
    "archived": ["other"],
    "renamed": {"from": "old", "to": "other"},
    "from": {"branch": "main", "leaf": "00000002"},
}
CALL = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}}
MESSAGES = (
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": [{"type": "text", "text": "hi"}, CALL], "provider": "p", "model": "m"},
    {"role": "toolResult", "toolCallId": "c1", "toolName": "bash", "content": [{"type": "text", "text": "done"}]},
    {"role": "bashExecution", "command": "ls", "output": "a", "exitCode": 0},
)


def build_lines() -> list[dict[str, Any]]:
    """Return a session with an entry of every type and a text in every field that can have one."""
    bodies: list[dict[str, Any]] = [{"type": "message", "message": message} for message in MESSAGES]
    for type, (_, fields) in WIRE.items():
        taken: dict[str, Any] = {}
        for field in fields.values():
            forms = ("text", ["text"], {"key": "text"})
            taken[field.wire] = next((form for form in forms if field.read(form) not in (None, "", (), {}, 0)), 1)
        if type == "compaction":
            taken["firstKeptEntryId"] = "00000001"
        if type != "message":
            bodies.append({"type": type, **taken})
    bodies.append({"type": "unheard-of", "field": "text"})
    bodies.append({"type": "custom", "customType": "sessiontree.head", "data": HEADS})
    lines: list[dict[str, Any]] = []
    for number, body in enumerate(bodies, 1):
        parent = f"{number - 1:08x}" if number > 1 else None
        place = {"id": f"{number:08x}", "parentId": parent, "timestamp": TIME, "branch": "main", "current": "main"}
        lines.append({**body, **place})
    return lines


def find_texts(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every text in a value, and to every key that is not fixed."""
    if isinstance(value, str):
        yield way
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from find_texts(inner, (*way, key))
            if way[-1:] in (("heads",), ("arguments",)):
                yield (*way, "rename", key)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from find_texts(inner, (*way, place))


def replace_text(value: Any, way: tuple[Any, ...]) -> Any:
    if not way:
        return SURROGATE
    if way[0] == "rename" and len(way) == 2:
        return {SURROGATE if key == way[1] else key: inner for key, inner in value.items()}
    copy = list(value) if isinstance(value, list) else dict(value)
    copy[way[0]] = replace_text(copy[way[0]], way[1:])
    return copy


def write_hostile_files(folder: Path, cwd: Path) -> list[Path]:
    """Write a file for every text of a session, in which only that text is a surrogate."""
    return [_write(folder, name, lines) for name, lines in _hostile_sessions(cwd)]


def _hostile_sessions(cwd: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    header = {"type": "session", "version": 3, "id": "text", "timestamp": TIME, "cwd": str(cwd)}
    lines = [{**header, "title": "text", "parentSession": "text"}, *build_lines()]
    renamed = {**HEADS, "current": SURROGATE, "heads": {SURROGATE: "00000004"}}
    yield "renamed", [{**lines[0], "id": "renamed"}, *lines[1:-1], {**lines[-1], "data": renamed}]
    for number, way in enumerate(find_texts(lines)):
        name = f"hostile{number:03}"
        changed = replace_text(lines, way)
        if changed[0]["id"] == "text":
            changed[0] = {**changed[0], "id": name}
        yield name, changed


def _write(folder: Path, name: str, lines: list[dict[str, Any]]) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
