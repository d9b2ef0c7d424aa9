"""Writes chats that Gemini CLI resumes.

A chat that was imported from Gemini keeps its whole log. If the conversation continues elsewhere than at its end, an
event that sets the list of messages follows, and then the new messages. Any other session is written as the messages of
its context.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable

from sessiontree.core.entries import EntryId, JsonObject
from sessiontree.core.messages import coerce_string, extract_text, get_role, is_list, is_object, iter_blocks
from sessiontree.core.timestamps import format_timestamp
from sessiontree.format.json_line import write_object, write_value
from sessiontree.format.splice import get_value, set_value
from sessiontree.interop.base import LineBuffer, derive_uuid, get_object, read_record
from sessiontree.interop.gemini_replay import ChatMessage, ChatReplay
from sessiontree.interop.resume import (
    JsonEntry,
    ResumableSession,
    ResumeFile,
    ResumeRequest,
    ResumeWriter,
    convert_entries,
    split_path,
)

PROJECTS = "projects.json"
"""The file that maps working folders to the names of their folders."""
PROJECT_ROOT = ".project_root"


def write_gemini_session(request: ResumeRequest) -> ResumableSession:
    """Return the chat for the folder of the project."""
    original = None if request.original is None else _OriginalChat(request.original)
    is_same = original is not None and original.replay.id == request.id
    id = request.id if is_same else derive_uuid(request.id)
    writer = _ChatWriter(request, id)
    content = None if original is None else original.extend(request, writer)
    if content is None:
        content = _join_lines(writer.write_context())
    slug, is_known = _find_slug(request)
    stamp = format_timestamp(request.now)[:16].replace(":", "-")
    files = [ResumeFile(path=f"tmp/{slug}/chats/session-{stamp}-{id[:8]}.jsonl", content=content)]
    if not is_known:
        files.append(ResumeFile(path=f"tmp/{slug}/{PROJECT_ROOT}", content=request.cwd.encode()))
    return ResumableSession(
        id=id,
        files=files,
        command=["gemini", "--resume", id],
        json_entries=[] if is_known else [JsonEntry(path=PROJECTS, keys=("projects", request.cwd), value=slug)],
        omitted=writer.omitted,
    )


def _find_slug(request: ResumeRequest) -> tuple[str, bool]:
    """Return the name of the project's folder, and whether Gemini knows the project."""
    projects = get_object(request.settings, "projects")
    known = projects.get(request.cwd)
    if isinstance(known, str) and re.fullmatch(r"[\w.-]+", known) and known not in (".", ".."):
        return known, True
    base = re.sub(r"[^a-z0-9]+", "-", posixpath.basename(request.cwd).lower()).strip("-") or "project"
    slug, number = base, 0
    while slug in projects.values():
        number += 1
        slug = f"{base}-{number}"
    return slug, False


def _join_lines(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


class _OriginalChat:
    """The log that a session was imported from."""

    def __init__(self, data: bytes) -> None:
        lines = data.split(b"\n")
        self.lines = lines if lines[-1] else lines[:-1]
        self._data = data
        records = [read_record(line) for line in self.lines]
        self.is_log = all(record is not None and "history" not in record for record in records)
        self.replay = ChatReplay(enumerate(records, 1), LineBuffer())

    def extend(self, request: ResumeRequest, writer: _ChatWriter) -> bytes | None:
        """Return the log with the new messages; `None` if the original is not a log or other entries were added too."""
        if request.is_unchanged and self.is_log:
            return _join_lines(self._replace_id(writer.id))
        anchor, added = split_path(request.path, self._find)
        if not self.is_log or anchor is None or added is None or not self._has_results(anchor, request):
            return None
        live = [id for id in self.replay.live if self.replay.messages[id].is_conversation]
        kept = self._replace_id(writer.id)
        new: list[bytes] = []
        if not live or anchor != live[-1]:
            new.append(write_object({"$set": {"messages": self._list_records(anchor)}}))
        new += writer.write(convert_entries(added))
        if not new and writer.id == self.replay.id:
            return self._data
        return _join_lines([*kept, *new])

    def _find(self, id: EntryId) -> EntryId | None:
        """Return the message of the conversation that an entry belongs to. A result belongs to that of its call."""
        message = self.replay.messages.get(id)
        if message is not None:
            return id if message.is_conversation else message.anchor
        return next((key for key in self._list_prefixes(id) if key in self.replay.messages), None)

    def _has_results(self, anchor: EntryId, request: ResumeRequest) -> bool:
        """Return whether a path has all results that a message of the original has."""
        ids = {entry.id for entry in request.path}
        calls = self.replay.read_record(self.replay.messages[anchor]).get("toolCalls")
        answered = [call for call in calls if is_object(call) and call.get("result")] if is_list(calls) else []
        return all(f"{anchor}-{call.get('id')}" in ids for call in answered)

    @staticmethod
    def _list_prefixes(id: str) -> list[str]:
        """Return the shorter ids that an id may be made of, longest first."""
        return [id[:index] for index in range(len(id) - 1, 0, -1) if id[index] == "-"]

    def _list_records(self, anchor: EntryId) -> list[JsonObject]:
        """Return the messages up to one, without repeated results: Gemini would send those twice."""
        path: list[ChatMessage] = []
        id: str | None = anchor
        while id is not None:
            message = self.replay.messages[id]
            if message.is_conversation or message.is_context:
                path.append(message)
            id = message.parent
        return [{**self.replay.read_record(message), "id": message.id} for message in reversed(path)]

    def _replace_id(self, id: str) -> list[bytes]:
        """Return the lines with another id of the session, and nothing else changed."""
        lines = list(self.lines)
        if id == self.replay.id:
            return lines
        value = write_value(id)
        for index, line in enumerate(lines):
            if b'"sessionId"' not in line:
                continue
            record = read_record(line) or {}
            inner = get_value(line, "$set")
            if "sessionId" in record:
                lines[index] = set_value(line, "sessionId", value)
            elif inner is not None and "sessionId" in get_object(record, "$set"):
                lines[index] = set_value(line, "$set", set_value(inner, "sessionId", value))
        return lines


class _ChatWriter(ResumeWriter):
    """Writes messages as lines of a chat."""

    def __init__(self, request: ResumeRequest, id: str) -> None:
        super().__init__(request)
        self.id = id
        self._count = 0

    def write_context(self) -> list[bytes]:
        """Return the lines of the whole context."""
        now = format_timestamp(self._request.now)
        header: JsonObject = {
            "sessionId": self.id,
            "projectHash": hashlib.sha256(self._request.cwd.encode("utf-8", "surrogatepass")).hexdigest(),
            "startTime": now,
            "lastUpdated": now,
            "kind": "main",
        }
        messages = self._request.context.build_request()
        if messages and get_role(messages[-1][1]) == "toolResult":
            self._omit(messages[-1][0], "toolResult", "Gemini CLI adds an answer that says it was interrupted")
        title = [write_object({"$set": {"summary": self._request.title}})] if self._request.title else []
        return [write_object(header), *self.write(messages), *title]

    def write(self, messages: Iterable[tuple[EntryId, JsonObject]]) -> list[bytes]:
        """Return the lines of stored messages. Results go into the message of their call."""
        records: list[JsonObject] = []
        calls: dict[str, JsonObject] = {}
        for source, message in messages:
            match get_role(message):
                case "system":
                    self._omit(source, "system", "Gemini CLI sends its own system prompt")
                case "assistant":
                    self._ids.start_turn()
                    record, calls = self._build_answer(message, source)
                    records += [record] if record["content"] or calls else []
                case "toolResult":
                    call = calls.pop(self._ids.match_result(coerce_string(message.get("toolCallId"))), None)
                    if call is None:
                        self._omit(source, "toolResult", "Gemini CLI has no place for a result without its call")
                    else:
                        failed = message.get("isError") is True
                        call["status"] = "error" if failed else "success"
                        call["result"] = [_build_response(call, message)]
                case _:
                    parts = _build_parts(message)
                    records += [{**self._start_record(message, "user"), "content": parts}] if parts else []
        return [write_object(record) for record in records]

    def _start_record(self, message: JsonObject, kind: str) -> JsonObject:
        time = format_timestamp(self._get_time(message))
        self._count += 1
        return {"id": derive_uuid(self.id, self._count), "timestamp": time, "type": kind}

    def _build_answer(self, message: JsonObject, source: EntryId) -> tuple[JsonObject, dict[str, JsonObject]]:
        record = self._start_record(message, "gemini")
        texts: list[str] = []
        thoughts: list[JsonObject] = []
        calls: dict[str, JsonObject] = {}
        for block in iter_blocks(message.get("content")):
            match block.get("type"):
                case "text":
                    texts.append(coerce_string(block.get("text")))
                case "thinking":
                    self._omit(source, "thinking", "Gemini CLI does not send thoughts again")
                    text = coerce_string(block.get("thinking"))
                    thoughts.append({"subject": "", "description": text, "timestamp": record["timestamp"]})
                case "toolCall":
                    call = self._build_call(block, source, record["timestamp"])
                    calls[call["id"]] = call
                case _:
                    pass
        record |= {"content": "".join(texts), "thoughts": thoughts, "model": coerce_string(message.get("model"))}
        return {**record, **({"toolCalls": list(calls.values())} if calls else {})}, calls

    def _build_call(self, block: JsonObject, source: EntryId, time: str) -> JsonObject:
        id, arguments = self._assign_call_id(block, source), self._read_arguments(block, source)
        name = coerce_string(block.get("name"))
        return {"id": id, "name": name, "args": arguments, "status": "cancelled", "timestamp": time, "result": []}


def _build_response(call: JsonObject, message: JsonObject) -> JsonObject:
    key = "error" if message.get("isError") is True else "output"
    response: JsonObject = {
        "id": call["id"],
        "name": call["name"],
        "response": {key: extract_text(message.get("content"))},
    }
    images = [part for part in _build_parts(message) if "inlineData" in part]
    return {"functionResponse": {**response, **({"parts": images} if images else {})}}


def _build_parts(message: JsonObject) -> list[JsonObject]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"text": content}] if content else []
    parts: list[JsonObject] = []
    for block in iter_blocks(content):
        if block.get("type") == "text" and coerce_string(block.get("text")):
            parts.append({"text": block["text"]})
        elif block.get("type") == "image":
            mime, data = coerce_string(block.get("mimeType")), coerce_string(block.get("data"))
            parts.append({"inlineData": {"mimeType": mime, "data": data}})
    return parts
