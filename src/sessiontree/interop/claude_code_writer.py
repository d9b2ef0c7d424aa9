"""Writes sessions that Claude Code resumes.

A session that was imported from Claude Code keeps all its lines, and new messages follow them. Any other session
is written as the messages of its context, in one chain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sessiontree.convert.base import ApiKind, get_api
from sessiontree.core.entries import Entry, EntryId, JsonObject
from sessiontree.core.messages import (
    coerce_string,
    get_role,
    iter_blocks,
)
from sessiontree.core.timestamps import format_timestamp
from sessiontree.format.json_line import write_object, write_value
from sessiontree.format.splice import set_value
from sessiontree.interop.base import MemoryFile, derive_uuid, read_record
from sessiontree.interop.claude_lines import SessionLines
from sessiontree.interop.resume import (
    ResumableSession,
    ResumeFile,
    ResumeRequest,
    ResumeWriter,
    convert_entries,
    split_path,
    starts_with_summary,
)


def write_claude_session(request: ResumeRequest) -> ResumableSession:
    """Return the session file for the project folder of `cwd`."""
    writer = _LineWriter(request)
    content = None if request.original is None else _extend_original(request, request.original, writer)
    if content is None:
        content = b"".join(line + b"\n" for line in writer.write_context())
    folder = re.sub(r"[^A-Za-z0-9]", "-", request.cwd)
    return ResumableSession(
        id=request.id,
        files=[ResumeFile(path=f"projects/{folder}/{request.id}.jsonl", content=content)],
        command=["claude", "--resume", request.id],
        omitted=writer.omitted,
    )


def _extend_original(request: ResumeRequest, original: bytes, writer: _LineWriter) -> bytes | None:
    """Return the original lines with the new messages; `None` if other entries were added too."""
    lines = SessionLines(MemoryFile("original", original))
    if request.is_unchanged:
        return _replace_session(original, lines.session, request.id)
    anchor, bodies = split_path(request.path, lambda id: lines.find(id) if lines.is_known(id) else None)
    if anchor is None or bodies is None:
        return None
    kept = original if original.endswith(b"\n") or not original else original + b"\n"
    kept = _replace_session(kept, lines.session, request.id)
    leaves = lines.list_leaves()
    if not bodies and anchor == leaves[-1]:
        return kept
    path = _list_path(lines, anchor)
    # Claude Code ignores all lines before the last compaction, also if it is on another branch.
    has_other_compaction = any(node.boundary is not None and node.id not in path for node in lines.nodes.values())
    if has_other_compaction or _has_other_results(lines, path) or (not bodies and anchor not in leaves):
        kept = _select_path(kept, lines, path, anchor)
    new = list(writer.write_entries(bodies, anchor))
    leaf = writer.last if bodies else anchor
    mark = write_object({"type": "last-prompt", "leafUuid": leaf, "sessionId": request.id})
    return kept + b"".join(line + b"\n" for line in (*new, mark))


def _replace_session(data: bytes, old: str, new: str) -> bytes:
    """Replace the id of the session in every line, and nothing else."""
    if old in ("", new):
        return data
    value = write_value(new)
    lines = data.split(b"\n")
    for index, line in enumerate(lines):
        record = read_record(line)
        if record is not None:
            for key in ("sessionId", "session_id"):
                if record.get(key) == old:
                    lines[index] = set_value(lines[index], key, value)
    return b"\n".join(lines)


def _list_path(lines: SessionLines, anchor: EntryId) -> set[EntryId]:
    """Return the nodes from the root to a node."""
    path: set[EntryId] = set()
    node: EntryId | None = anchor
    while node is not None and node not in path:
        path.add(node)
        node = lines.find(lines.nodes[node].parent)
    return path


def _has_other_results(lines: SessionLines, path: set[EntryId]) -> bool:
    """Return whether calls of a path have results that are not on it. Claude Code sends those too."""
    made = {call for id in path if lines.nodes[id].kind == "assistant" for call in lines.nodes[id].calls}
    return any(
        node.kind == "user" and node.id not in path and not made.isdisjoint(node.calls) for node in lines.nodes.values()
    )


def _select_path(data: bytes, lines: SessionLines, path: set[EntryId], anchor: EntryId) -> bytes:
    """Return the lines of a path, without lines of other branches and notes of the current leaf."""
    records = [(line, read_record(line) or {}) for line in data.split(b"\n")]
    parents = {record.get("uuid"): record.get("parentUuid") or record.get("logicalParentUuid") for _, record in records}
    above: set[object] = set()
    """The line of the place and all above it, also those before the first message, such as the notes of hooks."""
    uuid: object = anchor
    while uuid in parents and uuid not in above:
        above.add(uuid)
        uuid = parents[uuid]
    kept: list[bytes] = []
    for line, record in records:
        uuid, kind = record.get("uuid"), record.get("type")
        if isinstance(uuid, str) and uuid not in above:
            node = lines.find(uuid)
            is_after = node == anchor and uuid not in lines.nodes and kind != "assistant"
            if node not in path or is_after:
                continue
        elif kind == "last-prompt":
            continue
        kept.append(line)
    return b"\n".join(kept)


class _LineWriter(ResumeWriter):
    """Writes messages as lines of a session."""

    def __init__(self, request: ResumeRequest) -> None:
        super().__init__(request)
        self.last: str | None = None
        """The uuid of the last line."""
        self._count = 0

    def write_context(self) -> Iterator[bytes]:
        """Yield the lines of the whole context."""
        request = self._request
        if request.title:
            yield self._write_record({"type": "custom-title", "customTitle": request.title})
        for number, (source, message) in enumerate(request.context.build_request()):
            if number == 0 and starts_with_summary(request.context):
                yield from self._write_summary(message)
            else:
                yield from self._write_message(message, source)

    def write_entries(self, entries: list[Entry], parent: EntryId) -> Iterator[bytes]:
        """Yield the lines of entries below a line."""
        self.last = parent
        for source, message in convert_entries(entries):
            yield from self._write_message(message, source)

    def _write_summary(self, message: JsonObject) -> Iterator[bytes]:
        boundary = derive_uuid(self._request.id, "boundary")
        stamp = self._format_time(message)
        yield self._write_record(
            {
                "parentUuid": None,
                "logicalParentUuid": None,
                "isSidechain": False,
                "type": "system",
                "subtype": "compact_boundary",
                "content": "Conversation compacted",
                "isMeta": False,
                "level": "info",
                "compactMetadata": {"trigger": "manual", "preTokens": 0},
                "uuid": boundary,
                "timestamp": stamp,
            }
        )
        self.last = boundary
        text = "".join(coerce_string(block.get("text")) for block in iter_blocks(message.get("content")))
        extra = {"isCompactSummary": True, "isVisibleInTranscriptOnly": True}
        yield self._write_line("user", {"role": "user", "content": text}, stamp, extra)

    def _write_message(self, message: JsonObject, source: EntryId) -> Iterator[bytes]:
        stamp = self._format_time(message)
        match get_role(message):
            case "system":
                self._omit(source, "system", "Claude Code sends its own system prompt")
            case "assistant":
                blocks = self._build_answer(message, source)
                if blocks:
                    uuid = derive_uuid(self._request.id, self._count)
                    answer = {
                        "id": f"msg_{uuid.replace('-', '')[:20]}",
                        "type": "message",
                        "role": "assistant",
                        "model": coerce_string(message.get("model")) or "unknown",
                        "content": blocks,
                        "stop_reason": "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn",
                        "stop_sequence": None,
                        "usage": {"input_tokens": 0, "output_tokens": 0},
                    }
                    yield self._write_line("assistant", answer, stamp)
            case "toolResult":
                content = self._build_content(message, source)
                is_text = len(content) == 1 and content[0]["type"] == "text"
                result = {
                    "type": "tool_result",
                    "tool_use_id": self._ids.match_result(coerce_string(message.get("toolCallId"))),
                    "content": content[0]["text"] if is_text else content or "",
                    "is_error": message.get("isError") is True,
                }
                yield self._write_line("user", {"role": "user", "content": [result]}, stamp)
            case _:
                content = message.get("content")
                if not isinstance(content, str):
                    content = self._build_content(message, source)
                if content:
                    yield self._write_line("user", {"role": "user", "content": content}, stamp)

    def _build_answer(self, message: JsonObject, source: EntryId) -> list[JsonObject]:
        self._ids.start_turn()
        is_own = get_api(message) in (ApiKind.ANTHROPIC, "")
        blocks: list[JsonObject] = []
        for block in iter_blocks(message.get("content")):
            match block.get("type"):
                case "text" if coerce_string(block.get("text")):
                    blocks.append({"type": "text", "text": block["text"]})
                case "thinking":
                    signature = coerce_string(block.get("thinkingSignature"))
                    if not is_own or not signature:
                        self._omit(source, "thinking", "only thinking with a signature of Anthropic can be sent again")
                    elif block.get("redacted") is True:
                        blocks.append({"type": "redacted_thinking", "data": signature})
                    else:
                        thinking = coerce_string(block.get("thinking"))
                        blocks.append({"type": "thinking", "thinking": thinking, "signature": signature})
                case "toolCall":
                    call = {"id": self._assign_call_id(block, source), "name": coerce_string(block.get("name"))}
                    blocks.append({"type": "tool_use", **call, "input": self._read_arguments(block, source)})
                case _:
                    pass
        return blocks

    def _build_content(self, message: JsonObject, source: EntryId) -> list[JsonObject]:
        blocks: list[JsonObject] = []
        for block in iter_blocks(message.get("content")):
            match block.get("type"):
                case "text" if coerce_string(block.get("text")):
                    blocks.append({"type": "text", "text": block["text"]})
                case "image":
                    media, data = coerce_string(block.get("mimeType")), coerce_string(block.get("data"))
                    image = {"type": "base64", "media_type": media, "data": data}
                    blocks.append({"type": "image", "source": image})
                case _:
                    pass
        return blocks

    def _write_line(self, kind: str, message: JsonObject, stamp: str, extra: JsonObject | None = None) -> bytes:
        uuid = derive_uuid(self._request.id, self._count)
        line = self._write_record(
            {
                "parentUuid": self.last,
                "isSidechain": False,
                "userType": "external",
                "cwd": self._request.cwd,
                "type": kind,
                **(extra or {}),
                "message": message,
                "uuid": uuid,
                "timestamp": stamp,
            }
        )
        self._count += 1
        self.last = uuid
        return line

    def _write_record(self, record: JsonObject) -> bytes:
        return write_object({**record, "sessionId": self._request.id})

    def _format_time(self, message: JsonObject) -> str:
        return format_timestamp(self._get_time(message))
