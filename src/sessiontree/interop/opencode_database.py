"""opencode's database: its rows as the objects that `opencode export` writes, and the messages that were deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, is_object
from sessiontree.interop.base import ForeignFile, get_object, read_json


class OpencodeSession(Struct, frozen=True):
    """One session in the form of an export, with the additions of the event log."""

    info: JsonObject
    messages: list[JsonObject]
    """Objects with `info` and `parts`."""
    removed: Mapping[str, JsonObject] = {}
    """Messages that are deleted, by id."""
    parents: Mapping[str, str | None] = {}
    """The message before each deleted one when it was written."""
    unread: int = 0
    """How many messages could not be read."""


def iter_text_rows(file: ForeignFile, table: str, **equal: str) -> Iterator[JsonObject]:
    """Yield the rows of a table. It has no binary columns: bytes are damaged text."""
    for row in file.iter_rows(table, **equal):
        yield {
            name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value for name, value in row.items()
        }


def load_session(file: ForeignFile, row: JsonObject) -> OpencodeSession:
    """Return the session of a row of the session table."""
    id = coerce_string(row.get("id"))
    parts: dict[str, list[JsonObject]] = {}
    for part in iter_text_rows(file, "part", session_id=id):
        names = {"id": part.get("id"), "sessionID": id, "messageID": part.get("message_id")}
        parts.setdefault(coerce_string(part.get("message_id")), []).append({**_read_column(part, "data"), **names})
    messages: list[JsonObject] = [
        {
            "info": {**_read_column(message, "data"), "id": message.get("id"), "sessionID": id},
            "parts": sorted(parts.get(coerce_string(message.get("id")), ()), key=get_id),
        }
        for message in iter_text_rows(file, "message", session_id=id)
    ]
    messages.sort(key=lambda message: get_id(message["info"]))
    removed, parents = _recover_removed(file, id, {get_id(message["info"]) for message in messages})
    return OpencodeSession(_build_info(row), messages, removed, parents)


def _build_info(row: JsonObject) -> JsonObject:
    """Return a row of the session table in the form of an export."""
    tokens: JsonObject = {name: row.get(f"tokens_{name}") for name in ("input", "output", "reasoning")}
    summary = {name: row.get(f"summary_{name}") for name in ("additions", "deletions", "files")}
    summary["diffs"] = read_json(coerce_string(row.get("summary_diffs")))
    times = {name: row.get(f"time_{name}") for name in ("created", "updated", "compacting", "archived")}
    info: JsonObject = {
        "id": row.get("id"),
        "slug": row.get("slug"),
        "projectID": row.get("project_id"),
        "workspaceID": row.get("workspace_id"),
        "directory": row.get("directory"),
        "path": row.get("path"),
        "parentID": row.get("parent_id"),
        "title": row.get("title"),
        "agent": row.get("agent"),
        "model": read_json(coerce_string(row.get("model"))),
        "version": row.get("version"),
        "summary": _drop_empty(summary) or None,
        "metadata": read_json(coerce_string(row.get("metadata"))),
        "share": None if row.get("share_url") is None else {"url": row["share_url"]},
        "cost": row.get("cost"),
        "tokens": {**tokens, "cache": {"read": row.get("tokens_cache_read"), "write": row.get("tokens_cache_write")}},
        "revert": read_json(coerce_string(row.get("revert"))),
        "permission": read_json(coerce_string(row.get("permission"))),
        "time": _drop_empty(times),
    }
    return _drop_empty(info)


def _recover_removed(
    file: ForeignFile, session: str, existing: set[str]
) -> tuple[dict[str, JsonObject], dict[str, str | None]]:
    """Return the deleted messages of a session from its event log, and the message before each of them."""
    gone = (
        {
            coerce_string(_read_column(event, "data").get("messageID"))
            for event in iter_text_rows(file, "event", aggregate_id=session)
            if coerce_string(event.get("type")).startswith("message.removed.")
        }
        - existing
        - {""}
    )
    removed: dict[str, JsonObject] = {}
    parents: dict[str, str | None] = {}
    live = set(existing)
    parts: dict[str, dict[str, JsonObject]] = {}
    for event in iter_text_rows(file, "event", aggregate_id=session) if gone else ():
        kind, data = coerce_string(event.get("type")), _read_column(event, "data")
        part, info = get_object(data, "part"), get_object(data, "info")
        owner = coerce_string(part.get("messageID", data.get("messageID")))
        if kind.startswith("message.updated.") and (id := get_id(info)) in gone:
            if id not in removed:
                parents[id] = max((other for other in live if other < id), default=None)
                live.add(id)
            removed[id] = info
        elif kind.startswith("message.part.updated.") and owner in gone:
            parts.setdefault(owner, {})[get_id(part)] = part
        elif kind.startswith("message.part.removed."):
            parts.get(owner, {}).pop(coerce_string(data.get("partID")), None)
        elif kind.startswith("message.removed."):
            live.discard(owner)
    messages = {
        id: {"info": info, "parts": sorted(parts.get(id, {}).values(), key=get_id)} for id, info in removed.items()
    }
    return messages, parents


def get_id(value: JsonObject) -> str:
    return coerce_string(value.get("id"))


def _read_column(row: JsonObject, name: str) -> JsonObject:
    value = row.get(name)
    value = read_json(value) if isinstance(value, str | bytes) else None
    return value if is_object(value) else {}


def _drop_empty(fields: JsonObject) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}
