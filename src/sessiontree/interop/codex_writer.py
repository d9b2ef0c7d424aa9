"""Writes sessions that Codex resumes.

A session that was imported from Codex keeps its lines up to the place, and new messages follow them. Any other
session is written as the messages of its context.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sessiontree.convert.base import ApiKind, get_api
from sessiontree.core.entries import Entry, EntryId, JsonObject
from sessiontree.core.messages import (
    coerce_string,
    get_role,
    is_list,
    is_object,
    iter_blocks,
)
from sessiontree.core.timestamps import format_timestamp
from sessiontree.format.json_line import write_object, write_value
from sessiontree.format.splice import get_value, set_value
from sessiontree.interop.base import get_object, read_json, read_record
from sessiontree.interop.resume import (
    ResumableSession,
    ResumeFile,
    ResumeRequest,
    ResumeWriter,
    convert_entries,
    split_path,
    starts_with_summary,
)


def write_codex_session(request: ResumeRequest) -> ResumableSession:
    """Return the rollout file for the folder of the day."""
    writer = _RolloutLines(request)
    content = None if request.original is None else _extend_original(request, request.original, writer)
    if content is None:
        content = b"".join(line + b"\n" for line in writer.write_context())
    stamp = format_timestamp(request.now)
    day, time = stamp[:10].replace("-", "/"), stamp[:19].replace(":", "-")
    return ResumableSession(
        id=request.id,
        files=[ResumeFile(path=f"sessions/{day}/rollout-{time}-{request.id}.jsonl", content=content)],
        command=["codex", "resume", request.id],
        omitted=writer.omitted,
    )


def _extend_original(request: ResumeRequest, original: bytes, writer: _RolloutLines) -> bytes | None:
    """Return the original lines up to the place with the new messages; `None` if the place is not in this file."""
    lines = original.split(b"\n")
    if not lines[-1]:
        lines.pop()
    records = [read_record(line) or {} for line in lines]
    meta = next((index for index, record in enumerate(records) if record.get("type") == "session_meta"), None)
    facts = {} if meta is None else get_object(records[meta], "payload")
    thread = coerce_string(facts.get("id"))
    if "history_base" in facts or not thread:
        return None  # it needs another file, which may not be where the new one is read, or it is of a first version
    if request.is_unchanged:
        following, bodies = len(lines), list[Entry]()
    else:
        index = _index_entries(records, thread)
        found, bodies = split_path(request.path, lambda id: id if id in index else None)
        if found is None or bodies is None:
            return None
        following = next(
            (at for at in range(index[found] + 1, len(lines)) if _changes_context(records[at])), len(lines)
        )
    kept = lines[:following]
    if meta is not None and meta < following:
        kept[meta] = _replace_thread(kept[meta], facts, request.id)
    ordinals = [record["ordinal"] for record in records[:following] if isinstance(record.get("ordinal"), int)]
    writer.ordinal = ordinals[-1] + 1 if ordinals else None
    new = list(writer.write_entries(bodies))
    if not new and following == len(lines) and kept == lines:
        return original
    return b"".join(line + b"\n" for line in (*kept, *new))


def _changes_context(record: JsonObject) -> bool:
    """Return whether a line changes what the model gets."""
    kind = record.get("type")
    return kind in ("response_item", "compacted") or (
        kind == "event_msg" and get_object(record, "payload").get("type") == "thread_rolled_back"
    )


def _index_entries(records: list[JsonObject], thread: str) -> dict[EntryId, int]:
    """Return the numbers of the lines after which a session can go on, by the ids of their last entries."""
    index: dict[EntryId, int] = {}
    for number, record in enumerate(records):
        payload, ordinal = get_object(record, "payload"), record.get("ordinal")
        id = f"{thread}-{ordinal if isinstance(ordinal, int) else number}"
        match record.get("type"):
            case "response_item" if get_object(record, "metadata").get("compaction_output") is not True:
                index[coerce_string(payload.get("id")) or id] = number
            case "compacted":
                history = payload.get("replacement_history")
                items = [item for item in history if is_object(item)] if is_list(history) else []
                copies = [item for item in items if item.get("role") not in ("developer", "system")]
                index[f"{id}-{len(copies)}"] = number
            case _:
                pass
    return index


def _replace_thread(line: bytes, payload: JsonObject, id: str) -> bytes:
    """Replace the id of the thread in the first line, and nothing else."""
    inner = get_value(line, "payload")
    if inner is None:
        return line
    for key in ("id", "session_id"):
        if payload.get(key) not in (None, id):
            inner = set_value(inner, key, write_value(id))
    return set_value(line, "payload", inner)


class _RolloutLines(ResumeWriter):
    """Writes messages as lines of a rollout."""

    def __init__(self, request: ResumeRequest) -> None:
        super().__init__(request)
        self.ordinal: int | None = None
        """The number of the next line, in files that number their lines."""

    def write_context(self) -> Iterator[bytes]:
        """Yield the lines of the whole context."""
        request = self._request
        stamp = format_timestamp(request.now)
        facts = {
            "id": request.id,
            "timestamp": stamp,
            "cwd": request.cwd,
            "originator": "codex_cli_rs",
            "cli_version": "0.169.0",
            "source": "cli",
        }
        yield self._write_line("session_meta", facts, stamp)
        for number, (source, message) in enumerate(request.context.build_request()):
            if number == 0 and starts_with_summary(request.context):
                yield self._write_summary(message)
            else:
                yield from self._write_message(message, source)

    def write_entries(self, entries: list[Entry]) -> Iterator[bytes]:
        """Yield the lines of entries that follow others."""
        for source, message in convert_entries(entries):
            yield from self._write_message(message, source)

    def _write_summary(self, message: JsonObject) -> bytes:
        text = "".join(coerce_string(block.get("text")) for block in iter_blocks(message.get("content")))
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        payload = {"message": text, "replacement_history": [item]}
        return self._write_line("compacted", payload, self._format_time(message))

    def _write_message(self, message: JsonObject, source: EntryId) -> Iterator[bytes]:
        stamp = self._format_time(message)
        match get_role(message):
            case "system":
                self._omit(source, "system", "Codex sends its own instructions")
            case "assistant":
                for item in self._build_answer(message, source):
                    yield from self._write_item(item, stamp)
            case "toolResult":
                content = self._build_content(message)
                text = "\n".join(part["text"] for part in content if part["type"] == "input_text")
                has_images = any(part["type"] == "input_image" for part in content)
                if message.get("isError") is True:
                    self._omit(source, "isError", "Codex cannot mark the result of a call as failed")
                call = self._ids.match_result(coerce_string(message.get("toolCallId")))
                output: Any = content if has_images else text
                yield from self._write_item({"type": "function_call_output", "call_id": call, "output": output}, stamp)
            case _:
                content = self._build_content(message)
                if content:
                    yield from self._write_item({"type": "message", "role": "user", "content": content}, stamp)

    def _build_answer(self, message: JsonObject, source: EntryId) -> Iterator[JsonObject]:
        self._ids.start_turn()
        is_own = get_api(message) == ApiKind.OPENAI_RESPONSES
        for block in iter_blocks(message.get("content")):
            match block.get("type"):
                case "text" if coerce_string(block.get("text")):
                    part = {"type": "output_text", "text": block["text"]}
                    yield {"type": "message", "role": "assistant", "content": [part]}
                case "thinking":
                    item = read_json(coerce_string(block.get("thinkingSignature"))) if is_own else None
                    if is_object(item) and item.get("type") == "reasoning":
                        yield item
                    else:
                        self._omit(source, "thinking", "only reasoning of OpenAI can be sent again")
                case "toolCall":
                    wanted = coerce_string(block.get("id")).partition("|")[0]
                    id = self._assign_call_id(block, source, wanted)
                    arguments = block.get("arguments")
                    yield {
                        "type": "function_call",
                        "name": coerce_string(block.get("name")),
                        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                        "call_id": id,
                    }
                case _:
                    pass

    def _build_content(self, message: JsonObject) -> list[JsonObject]:
        content = message.get("content")
        if isinstance(content, str):
            return [{"type": "input_text", "text": content}] if content else []
        parts: list[JsonObject] = []
        for block in iter_blocks(content):
            match block.get("type"):
                case "text" if coerce_string(block.get("text")):
                    parts.append({"type": "input_text", "text": block["text"]})
                case "image":
                    media, data = coerce_string(block.get("mimeType")), coerce_string(block.get("data"))
                    parts.append({"type": "input_image", "image_url": f"data:{media};base64,{data}"})
                case _:
                    pass
        return parts

    def _write_item(self, item: JsonObject, stamp: str) -> Iterator[bytes]:
        """Yield the line of an item, and of the event that pickers and the transcript show."""
        yield self._write_line("response_item", item, stamp)
        if item["type"] == "message" and self.ordinal is None:
            text = "".join(coerce_string(part.get("text")) for part in item["content"])
            event = {"type": "user_message" if item["role"] == "user" else "agent_message", "message": text}
            yield self._write_line("event_msg", event, stamp)

    def _write_line(self, kind: str, payload: JsonObject, stamp: str) -> bytes:
        record: JsonObject = {"timestamp": stamp}
        if self.ordinal is not None:
            record["ordinal"] = self.ordinal
            self.ordinal += 1
        return write_object({**record, "type": kind, "payload": payload})

    def _format_time(self, message: JsonObject) -> str:
        return format_timestamp(self._get_time(message))
