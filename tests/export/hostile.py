"""Sessions with a given text in every string field of every entry type, built from the table of wire names.

A field that is added to the format is therefore tested at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sessiontree.format.codec import WIRE
from sessiontree.format.json_line import write_object

MESSAGE_FIELDS = (
    *("role", "provider", "model", "api", "stopReason", "errorMessage", "toolName", "toolCallId", "command", "code"),
    *("output", "fullOutputPath", "customType", "summary", "text", "fromId", "content"),
)
ROLES = (
    *("user", "assistant", "toolResult", "bashExecution", "pythonExecution", "system", "developer", "custom"),
    *("hookMessage", "fileMention", "compactionSummary", "branchSummary", "unheard-of"),
)


def _make_blocks(text: str) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": text},
        {"type": "text", "text": f"```{text}\n{text}\n```\n\n[{text}](<{text}>) ![{text}](<{text}>) `{text}`"},
        {"type": "text", "text": f"| {text} |\n|---|\n| {text} |\n\n# {text}\n\n- {text}\n\n> {text}"},
        {"type": "thinking", "thinking": text, "thinkingSignature": text},
        {"type": "toolCall", "id": text, "name": text, "arguments": _make_nested(text)},
        {"type": "toolCall", "id": "c", "name": "bash", "arguments": {"command": text, "path": text, "content": text}},
        {"type": "toolCall", "id": "d", "name": "edit", "arguments": {"path": text, "oldText": "x", "newText": text}},
        {"type": "toolCall", "id": "e", "name": "read", "arguments": text},
        {"type": "image", "data": text, "mimeType": text},
        {"type": "image", "data": "iVBORw0KGgo=", "mimeType": text},
        {"type": text, text: text},
    ]


def _make_nested(text: str) -> dict[str, Any]:
    return {"value": text, text: [text, {"deep": text}], "kind": "merge", "diff": f"+{text}", "path": text}


def iterate_bodies(text: str) -> Iterator[dict[str, Any]]:
    """Yield entries without ids and parents. Each field of each type has the text once, in every accepted form."""
    for type, (_, fields) in WIRE.items():
        for field in fields.values():
            forms = (text, [text], _make_nested(text), {"content": text}, {"content": _make_blocks(text)})
            taken = [form for form in forms if field.read(form) and field.read(form) not in (True, 0)]
            for form in taken if type != "message" else ():
                yield {"type": type, field.wire: form}
        yield {"type": type, "extra": text, text: text}
    for role in ROLES:
        for key in MESSAGE_FIELDS:
            yield {"type": "message", "message": {"role": role, "content": "said", key: text}}
        everything: dict[str, Any] = {
            "content": _make_blocks(text),
            "details": _make_nested(text),
            "sections": {text: text},
        }
        everything |= {
            "toolsAdded": [{"name": text}],
            "files": [{"path": text, "content": text}],
            "usage": _make_nested(text),
        }
        yield {"type": "message", "message": {"role": role, **everything, "timestamp": text, "isError": True}}
    yield {"type": text, "field": text, "data": _make_nested(text)}


def make_hostile_lines(texts: Iterable[str]) -> list[bytes]:
    """Return a session with all bodies for each text, once on the active path and once on another branch."""
    texts = list(texts)
    first = texts[0]
    header = {"type": "session", "version": 3, "id": first, "timestamp": first, "cwd": first, "parentSession": first}
    lines: list[dict[str, Any]] = [{**header, "title": first, "name": first, first: first}]
    number = 0
    for side in ("aside", "main"):
        parent = None
        for text in texts:
            for body in iterate_bodies(text):
                number += 1
                id = f"{number} {text}" if number % 3 == 0 else f"{number:08x}"
                place = {"id": id, "parentId": parent, "timestamp": text if number % 5 == 0 else "2026-01-01T00:00:00Z"}
                lines.append({**body, "type": body["type"], **place, "branch": side})
                parent = id
            label = {"type": "label", "id": f"l{number}", "parentId": parent, "targetId": parent, "label": text}
            lines.append({**label, "timestamp": "", "branch": side})
        point = {"type": "branch_point", "id": f"b{number}", "parentId": parent, "branchName": f"{side} {first}"}
        lines.append({**point, "timestamp": "", "description": first, "branch": f"{side} {first}", "current": "main"})
    lines.append(
        {"type": "session_info", "id": "n", "parentId": parent, "timestamp": "", "name": first, "branch": "main"}
    )
    return [write_object(line) for line in lines]
