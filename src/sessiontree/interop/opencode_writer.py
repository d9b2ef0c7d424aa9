"""Writes exports for `opencode import`, from which opencode resumes the session.

A session that was imported from opencode keeps its messages up to the place, and new messages follow them. Any other
session is written as the messages of its context. All messages get new ids, because opencode knows a message by
its id alone: with the old ids, the import would change the existing session.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from sessiontree.convert.base import build_data_url
from sessiontree.core.conversion_result import Omission
from sessiontree.core.entries import EntryId, JsonObject
from sessiontree.core.messages import (
    coerce_number,
    coerce_string,
    extract_text,
    get_role,
    is_list,
    is_object,
    iter_blocks,
)
from sessiontree.interop.base import get_object, read_json
from sessiontree.interop.resume import (
    ResumableSession,
    ResumeFile,
    ResumeRequest,
    ResumeWriter,
    convert_entries,
    split_path,
    starts_with_summary,
)

VERSION = "1.18.33"
"""The version whose exports these are."""
NO_TOKENS: JsonObject = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def write_opencode_session(request: ResumeRequest) -> ResumableSession:
    """Return the export, and the command that imports it."""
    document = None if request.original is None else read_json(request.original)
    if request.original is not None and is_object(document) and _is_unchanged(request, document):
        return _build_result(request.id, request.original, [])
    writer = _ExportWriter(request)
    info, kept = _select_messages(request, document, writer) if is_object(document) else ({}, [])
    if kept:
        writer.copy(kept)
        _, added = split_path(request.path, _index_entries(kept).get)
        writer.write(convert_entries(added or []))
    else:
        writer.write_context()
    return _build_result(writer.id, _write_json(writer.build(info)), writer.omitted)


def _build_result(id: str, content: bytes, omitted: list[Omission]) -> ResumableSession:
    return ResumableSession(
        id=id,
        files=[ResumeFile(path=f"opencode-{id}.json", content=content)],
        command=["opencode", "--session", id],
        import_command=["opencode", "import"],
        omitted=omitted,
    )


def _write_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "surrogatepass")


def _list_messages(document: JsonObject) -> list[JsonObject]:
    messages = document.get("messages")
    found = [item for item in messages if is_object(item)] if is_list(messages) else []
    return sorted(found, key=lambda item: coerce_string(get_object(item, "info").get("id")))


def _index_entries(messages: Iterable[JsonObject]) -> dict[EntryId, str]:
    """Return the id of the message that each entry of a session belongs to."""
    index: dict[EntryId, str] = {}
    for message in messages:
        id, parts = coerce_string(get_object(message, "info").get("id")), message.get("parts")
        index[id] = id
        for part in filter(is_object, parts if is_list(parts) else ()):
            if part.get("type") == "tool" and get_object(part, "state").get("status") in ("completed", "error"):
                index[coerce_string(part.get("id"))] = id
    return index


def _is_unchanged(request: ResumeRequest, document: JsonObject) -> bool:
    """Return whether the place is where the original ends, and the id stays."""
    info, messages = get_object(document, "info"), _list_messages(document)
    undone_from = get_object(info, "revert").get("messageID")
    if isinstance(undone_from, str):
        messages = [item for item in messages if coerce_string(get_object(item, "info").get("id")) < undone_from]
    last = coerce_string(get_object(messages[-1], "info").get("id")) if messages else None
    anchor, added = split_path(request.path, _index_entries(messages).get)
    return info.get("id") == request.id and anchor == last and added == [] and _is_end(request, messages)


def _is_end(request: ResumeRequest, messages: list[JsonObject]) -> bool:
    """Return whether a path has all results of the last message that it shares with the original."""
    index = _index_entries(messages)
    on_path = {entry.id for entry in request.path}
    last = next((index[entry.id] for entry in reversed(request.path) if entry.id in index), None)
    return all(id in on_path for id, message in index.items() if message == last)


def _select_messages(
    request: ResumeRequest, document: JsonObject, writer: _ExportWriter
) -> tuple[JsonObject, list[JsonObject]]:
    """Return the session and the messages up to the place; none if more than messages was added."""
    messages = _list_messages(document)
    on_path = {entry.id for entry in request.path}
    kept = [item for item in messages if coerce_string(get_object(item, "info").get("id")) in on_path]
    anchor, added = split_path(request.path, _index_entries(kept).get)
    if anchor is None or added is None or not _is_end(request, kept):
        return {}, []
    return get_object(document, "info"), kept


class _ExportWriter(ResumeWriter):
    """Builds the messages of an export, with ids that grow."""

    def __init__(self, request: ResumeRequest) -> None:
        super().__init__(request)
        digest = hashlib.sha256(request.id.encode("utf-8", "surrogatepass")).digest()
        self._suffix = "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:14])
        size = 16 + sum(2 + len(list(iter_blocks(message.get("content")))) for message in request.context.messages)
        # New messages of opencode must sort behind these, so all of them lie in the past.
        self._count = request.now * 0x1000 - 8 * (size + 2 * len(request.path))
        self.id = self._make_id("ses")
        self._messages: list[JsonObject] = []
        self._prompt = ""
        self._latest_time = 0
        """The last user message."""
        self._calls: dict[str, JsonObject] = {}
        """The parts of calls that wait for their result, by id."""
        self._model: JsonObject = {"providerID": "unknown", "modelID": "unknown"}
        """The last model of the conversation, with which opencode continues."""
        for message in request.context.messages:
            if get_role(message) == "assistant":
                self._model = _get_model(message)

    def _make_id(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count & 0xFFFFFFFFFFFF:012x}{self._suffix}"

    def build(self, info: JsonObject) -> JsonObject:
        """Return the whole export. `info` is the session that it continues."""
        now = self._request.now
        kept = {name: value for name, value in info.items() if name not in ("revert", "share", "parentID")}
        session: JsonObject = {
            "slug": "continued",
            "projectID": "global",
            "directory": self._request.cwd,
            "title": self._request.title or "Continued session",
            "version": VERSION,
            "time": {"created": now, "updated": now},
            **kept,
            "id": self.id,
        }
        session["directory"] = self._request.cwd or session["directory"]
        return {"info": session, "messages": self._messages}

    def copy(self, messages: list[JsonObject]) -> None:
        """Add messages of the original under new ids."""
        ids: dict[str, str] = {}
        for message in messages:
            info, parts = get_object(message, "info"), message.get("parts")
            id = ids[coerce_string(info.get("id"))] = self._make_id("msg")
            parent = ids.get(coerce_string(info.get("parentID")))
            copied = {**info, "id": id, "sessionID": self.id, **({"parentID": parent} if parent else {})}
            self._messages.append({"info": copied, "parts": []})
            for part in filter(is_object, parts if is_list(parts) else ()):
                names = {"id": self._make_id("prt"), "sessionID": self.id, "messageID": id}
                anchor = ids.get(coerce_string(part.get("tail_start_id")))
                self._messages[-1]["parts"].append({**part, **names, **({"tail_start_id": anchor} if anchor else {})})
            if info.get("role") == "user":
                self._prompt = id

    def write_context(self) -> None:
        """Add the messages of the whole context."""
        context = self._request.context
        messages = context.build_request()
        if starts_with_summary(context):
            source = messages[0][0]
            self._omit(source, "compaction", "opencode sends a summary as an answer to its own question")
            self._add_summary(coerce_string(context.messages[0].get("summary")), messages[0][1])
            messages = messages[1:]
        self.write(messages)
        name = f"{self._model['providerID']}/{self._model['modelID']}"
        reason = f"opencode continues with {name}; if it does not have that model, add --model PROVIDER/MODEL"
        self.omitted.append(Omission(block="model", reason=reason))

    def write(self, messages: Iterable[tuple[EntryId, JsonObject]]) -> None:
        """Add stored messages."""
        for source, message in messages:
            match get_role(message):
                case "system":
                    self._omit(source, "system", "opencode sends its own system prompt")
                case "assistant":
                    self._add_answer(message, source)
                case "toolResult":
                    self._add_result(message, source)
                case _:
                    self._add_prompt(message)

    def _add(self, info: JsonObject, parts: list[JsonObject]) -> str:
        id = self._make_id("msg")
        listed = [{**part, "id": self._make_id("prt"), "sessionID": self.id, "messageID": id} for part in parts]
        self._messages.append({"info": {**info, "id": id, "sessionID": self.id}, "parts": listed})
        return id

    def _add_prompt(self, message: JsonObject) -> None:
        content = message.get("content")
        parts: list[JsonObject] = [{"type": "text", "text": content}] if isinstance(content, str) else []
        for block in () if isinstance(content, str) else iter_blocks(content):
            if block.get("type") == "text":
                parts.append({"type": "text", "text": coerce_string(block.get("text"))})
            elif block.get("type") == "image":
                parts.append(_build_file(block))
        if parts:
            self._prompt = self._add(self._describe_prompt(message), parts)

    def _describe_prompt(self, message: JsonObject) -> JsonObject:
        return {
            "role": "user",
            "time": {"created": self._get_time(message)},
            "agent": "build",
            "model": self._model,
        }

    def _add_summary(self, text: str, message: JsonObject) -> None:
        self._prompt = self._add(self._describe_prompt(message), [{"type": "compaction", "auto": False}])
        time = self._get_time(message)
        facts: JsonObject = {**self._describe_answer(message, "stop"), **self._model, "summary": True}
        facts |= {"mode": "compaction", "agent": "compaction"}
        self._add(facts, [{"type": "text", "text": text, "time": {"start": time, "end": time}}])

    def _describe_answer(self, message: JsonObject, finish: str) -> JsonObject:
        time, usage = self._get_time(message), get_object(message, "usage")
        tokens = {
            **NO_TOKENS,
            "input": int(coerce_number(usage.get("input"))),
            "output": int(coerce_number(usage.get("output"))),
            "cache": {
                "read": int(coerce_number(usage.get("cacheRead"))),
                "write": int(coerce_number(usage.get("cacheWrite"))),
            },
        }
        return {
            "role": "assistant",
            "parentID": self._prompt or f"msg_{0:012x}{self._suffix}",
            "mode": "build",
            "agent": "build",
            "path": {"cwd": self._request.cwd, "root": self._request.cwd},
            "cost": coerce_number(get_object(usage, "cost").get("total")),
            "tokens": tokens,
            **_get_model(message),
            "time": {"created": time, "completed": time},
            "finish": finish,
        }

    def _add_answer(self, message: JsonObject, source: EntryId) -> None:
        self._ids.start_turn()
        self._calls = {}
        time = self._get_time(message)
        span = {"start": time, "end": time}
        parts: list[JsonObject] = [{"type": "step-start"}]
        for block in iter_blocks(message.get("content")):
            match block.get("type"):
                case "text" if coerce_string(block.get("text")):
                    parts.append({"type": "text", "text": block["text"], "time": span})
                case "thinking" if _get_model(message) == self._model:
                    parts.append(_build_reasoning(block, span))
                case "thinking":
                    self._omit(source, "thinking", "opencode sends the thinking of another model as text")
                case "toolCall":
                    parts.append(self._build_call(block, source, time))
                case _:
                    pass
        if len(parts) == 1:
            return
        finish = "tool-calls" if parts[-1]["type"] == "tool" else "stop"
        parts.append({"type": "step-finish", "reason": finish, "cost": 0, "tokens": NO_TOKENS})
        self._add(self._describe_answer(message, finish), parts)
        for part in self._messages[-1]["parts"]:
            if part["type"] == "tool":
                self._calls[part["callID"]] = part

    def _get_time(self, message: JsonObject) -> int:
        """Return a time that is never before that of the message above: opencode drops a kept message otherwise."""
        self._latest_time = max(self._latest_time, super()._get_time(message))
        return self._latest_time

    def _build_call(self, block: JsonObject, source: EntryId, time: int) -> JsonObject:
        id, arguments = self._assign_call_id(block, source), self._read_arguments(block, source)
        state = {"status": "running", "input": arguments, "time": {"start": time}}
        return {"type": "tool", "tool": coerce_string(block.get("name")), "callID": id, "state": state}

    def _add_result(self, message: JsonObject, source: EntryId) -> None:
        """Put a result into the part of its call."""
        part = self._calls.pop(self._ids.match_result(coerce_string(message.get("toolCallId"))), None)
        if part is None:
            self._omit(source, "toolResult", "opencode has no place for a result without its call")
            return
        text = extract_text(message.get("content"))
        images = [block for block in iter_blocks(message.get("content")) if block.get("type") == "image"]
        state: JsonObject = part["state"]
        state["time"] = {"start": state["time"]["start"], "end": self._get_time(message)}
        if message.get("isError") is True:
            state |= {"status": "error", "error": text}
            if images:
                self._omit(source, "image", "opencode has no place for images in a failed result")
            return
        state |= {"status": "completed", "output": text, "title": part["tool"], "metadata": {}}
        if images:
            self._omit(source, "image", "opencode sends images of a result in a separate message")
            names = {"sessionID": self.id, "messageID": part["messageID"]}
            state["attachments"] = [{**_build_file(image), "id": self._make_id("prt"), **names} for image in images]


def _get_model(message: JsonObject) -> JsonObject:
    return {
        "providerID": coerce_string(message.get("provider")) or "unknown",
        "modelID": coerce_string(message.get("model")) or "unknown",
    }


def _build_reasoning(block: JsonObject, span: JsonObject) -> JsonObject:
    signature = block.get("thinkingSignature")
    signed = {"metadata": {"anthropic": {"signature": signature}}} if isinstance(signature, str) else {}
    return {"type": "reasoning", "text": coerce_string(block.get("thinking")), "time": span, **signed}


def _build_file(block: JsonObject) -> JsonObject:
    mime = coerce_string(block.get("mimeType"))
    return {"type": "file", "mime": mime, "filename": "image", "url": build_data_url({**block, "mimeType": mime})}
