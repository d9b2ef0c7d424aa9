"""Codec: the table of wire names, and the conversion of entries to bytes and back.

`docs/format.md` is the specification; `WIRE` is its table. A line is decoded in two steps: its head when it is read,
its body on first access. JSON itself is in `json_line`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from struct import Struct
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from sessiontree.core import entries as e
from sessiontree.core.entries import Body, Chain, Entry, EntryId, Header, JsonObject, Source
from sessiontree.core.messages import MessagePreview, coerce_number, is_list, is_object, preview_message
from sessiontree.core.sanitize import is_utf8
from sessiontree.errors import InvalidOperation
from sessiontree.format.json_line import (
    DECODE_ERRORS,
    LINE_LIMIT,
    NotJson,
    read_object,
    write_flat_object,
    write_object,
    write_value,
)
from sessiontree.format.nesting import can_be_deep, is_deep_text, is_too_deep
from sessiontree.format.splice import set_value

VERSION = 3
"""The version of pi's format that is read without migration and written."""


class WireField(msgspec.Struct, frozen=True):
    wire: str
    read: Callable[[Any], Any]
    """Converts any JSON value to a valid value of the body. Files are untrusted."""
    optional: bool = True
    """Whether `None` is left out of the line."""


def _parse_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _parse_optional_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _keep_value(value: Any) -> Any:
    return value


def _parse_count(value: Any) -> int:
    return int(coerce_number(value))


def _parse_flag(value: Any) -> bool:
    return value is True


def _parse_optional_flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _parse_object(value: Any) -> JsonObject:
    return value if is_object(value) else {}


def _parse_optional_object(value: Any) -> JsonObject | None:
    return value if is_object(value) else None


def _parse_texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if is_list(value) else ()


WIRE: dict[str, tuple[type[Any], dict[str, WireField]]] = {
    "message": (e.Message, {"message": WireField("message", _parse_object)}),
    "model_change": (
        e.ModelChange,
        {
            "provider": WireField("provider", _parse_optional_text),
            "model": WireField("modelId", _parse_optional_text),
            "role": WireField("role", _parse_optional_text),
        },
    ),
    "thinking_level_change": (
        e.ThinkingLevelChange,
        {"level": WireField("thinkingLevel", _parse_optional_text, optional=False)},
    ),
    "compaction": (
        e.Compaction,
        {
            "summary": WireField("summary", _parse_text),
            "first_kept": WireField("firstKeptEntryId", e.parse_entry_id),
            "tokens_before": WireField("tokensBefore", _parse_count),
            "details": WireField("details", _keep_value),
            "from_hook": WireField("fromHook", _parse_optional_flag),
            "usage": WireField("usage", _parse_optional_object),
            "system_message": WireField("systemMessage", _parse_optional_object),
            "state": WireField("state", _parse_optional_object),
        },
    ),
    "branch_summary": (
        e.BranchSummary,
        {
            "abandoned_leaf": WireField("fromId", _parse_optional_text),
            "summary": WireField("summary", _parse_text),
            "details": WireField("details", _keep_value),
            "from_hook": WireField("fromHook", _parse_optional_flag),
            "usage": WireField("usage", _parse_optional_object),
        },
    ),
    "custom": (e.Custom, {"custom_type": WireField("customType", _parse_text), "data": WireField("data", _keep_value)}),
    "custom_message": (
        e.CustomMessage,
        {
            "custom_type": WireField("customType", _parse_text),
            "content": WireField("content", _keep_value),
            "display": WireField("display", _parse_flag),
            "details": WireField("details", _keep_value),
        },
    ),
    "label": (
        e.Label,
        {"target": WireField("targetId", _parse_text), "text": WireField("label", _parse_optional_text)},
    ),
    "session_info": (e.SessionInfo, {"name": WireField("name", _parse_optional_text, optional=False)}),
    "usage": (
        e.Usage,
        {
            "kind": WireField("kind", _parse_text),
            "provider": WireField("provider", _parse_optional_text),
            "model": WireField("model", _parse_optional_text),
            "usage": WireField("usage", _parse_optional_object),
            "note": WireField("note", _parse_optional_text),
        },
    ),
    "context_edit": (
        e.ContextEdit,
        {
            "target": WireField("targetId", _parse_text),
            "replacement": WireField("replacement", _parse_optional_object, optional=False),
        },
    ),
    "branch_point": (
        e.BranchPoint,
        {"name": WireField("branchName", _parse_text), "description": WireField("description", _parse_optional_text)},
    ),
    "agent_action": (
        e.AgentAction,
        {
            "action": WireField("action", _parse_text),
            "agent": WireField("agentId", _parse_text),
            "data": WireField("data", _keep_value),
        },
    ),
    "mode_change": (e.ModeChange, {"mode": WireField("mode", _parse_text), "data": WireField("data", _keep_value)}),
    "ttsr_injection": (e.RuleInjection, {"rules": WireField("injectedRules", _parse_texts)}),
    "reset_boundary": (e.ResetBoundary, {}),
    "original": (
        e.Original,
        {
            "program": WireField("program", _parse_text),
            "file": WireField("file", _parse_text),
            "offset": WireField("offset", _parse_count),
            "size": WireField("size", _parse_count),
            "content": WireField("content", _parse_text),
            "heads": WireField("heads", _parse_optional_object),
        },
    ),
}

ID, PARENT, ANCHOR, MESSAGE = "id", "parentId", "firstKeptEntryId", "message"
HEAD_KEYS = ("type", ID, PARENT, "timestamp", "branch", "current")
COPIED_FROM = "copiedFrom"
STARTING_CALL = "toolCallId"
"""The field of a branch point that names the tool call that started a subagent."""

_TYPES_BY_BODY = {body: type for type, (body, _) in WIRE.items()}


class LineHead(msgspec.Struct, gc=False):
    """The keys that are read of every line."""

    type: Any = None
    id: Any = None
    parent: Any = msgspec.field(name=PARENT, default=None)
    timestamp: Any = None
    branch: Any = UNSET
    current: Any = None
    custom_type: Any = msgspec.field(name="customType", default=None)


class _AnyLine(msgspec.Struct, gc=False):
    """Decodes nothing: used to check that a line is valid JSON."""


class _PreviewLine(msgspec.Struct, gc=False):
    message: MessagePreview


class _MessageLine(e.LinePreview, gc=False, kw_only=True):
    type: Any = None
    id: Any = None
    parent: Any = msgspec.field(name=PARENT, default=None)
    branch: Any = UNSET
    current: Any = None
    is_sound: bool = msgspec.field(name="", default=False)


_HEAD_FIELDS = tuple(zip(LineHead.__struct_fields__, LineHead.__struct_encode_fields__, strict=True))
_head_decoder = msgspec.json.Decoder(LineHead)
_any_decoder = msgspec.json.Decoder(_AnyLine)
_preview_decoder = msgspec.json.Decoder(_PreviewLine)
_line_decoder = msgspec.json.Decoder(_MessageLine)


def read_head(raw: bytes) -> LineHead:
    """Read the head of a line. Raises `NotJson`."""
    if not can_be_deep(raw):
        try:
            return _head_decoder.decode(raw)
        except DECODE_ERRORS:
            pass
    wire = read_object(raw)
    return LineHead(**{name: wire[key] for name, key in _HEAD_FIELDS if key in wire})


# The exact form in which pi and this program write messages. Nearly all lines match. Of these, only the start is read,
# and the end is checked to be two closing braces. If the second brace closes another object than the message, head keys
# between them are ignored and reported by `find_hidden_keys`.
_TYPE, _PARENT, _TIME, _MESSAGE, _END = (
    b'{"type":"message","id":"',
    b'","parentId":"',
    b'","timestamp":"',
    b',"message":{',
    b"}}",
)
_NEXT = _END + b"\n" + _TYPE
"""The bytes between the end of one message and the id of the next."""
_GAP = len(_END) + 1
_HEAD = re.compile(
    _TYPE.replace(b"{", rb"\{") + rb'([\w.-]{1,64})","parentId":(?:null|"([\w.-]{1,64})"),"timestamp":"([^"\\]{0,40})"'
    rb'(,"branch":(?:null|"([^"\\\x00-\x1f\x7f-\xff]{1,200})")(?:,"current":"([^"\\\x00-\x1f\x7f-\xff]{1,200})")?)?'
    rb',"message":\{'
)
_ID_CHARACTERS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-"
"""The characters of ids."""


@lru_cache(maxsize=64)
def _build_layout(id: int, parent: int, time: int, rest: int) -> Struct:
    """Return a struct that unpacks the parts of a head by their lengths, starting at the end of the line before."""
    return Struct(f"{len(_NEXT)}s{id}s{len(_PARENT)}s{parent}s{len(_TIME)}s{time}s{rest}s")


def scan_lines(
    data: bytes, offsets: array[int], source: Source, found: list[Entry | Chain]
) -> Iterator[tuple[int, int, int]]:
    """Read lines of version 3 into `found`, messages only by their start, and the ends of lines into `offsets`.

    Yields number, start and end of every line that the caller must decode.
    """
    find, match, ended = data.find, _HEAD.match, offsets.append
    start, line, base = 0, len(offsets), offsets[-1]
    careful = 0
    """Up to this position every line is matched on its own."""
    if data.startswith(b"\n") and not data.strip(b"\n"):  # for example millions of empty lines
        offsets.extend(range(base + 1, base + len(data) + 1))
        return
    end = find(b"\n")
    while end >= 0:
        head = match(data, start, end)
        if head is None or data[end - 2 : end] != _END or end - start > LINE_LIMIT:
            offsets.append(base + end + 1)
            yield line, start, end
            start, line = end + 1, line + 1
            end = find(b"\n", start)
            continue
        first, parent, time, keys, branch, current = head.groups()
        ids, times = [first], [time]
        first_start, last, rest = start, first, b'"' + (keys or b"") + _MESSAGE
        layout = _build_layout(len(first), len(first), len(time), len(rest))
        unpack, least = layout.unpack_from, layout.size - _GAP
        start = end + 1
        ended(base + start)
        end = find(b"\n", start)
        most = LINE_LIMIT if start >= careful else 0
        # Lines that continue the one before in the same form are only compared. Each comparison includes the end of the
        # line before.
        while least < end - start <= most:
            before, id, key, above, then, time, behind = unpack(data, start - _GAP)
            if above != last or behind != rest or before != _NEXT or key != _PARENT or then != _TIME:
                break
            ids.append(id)
            times.append(time)
            last = id
            start = end + 1
            ended(base + start)
            end = find(b"\n", start)
        if data[start - _GAP : start - 1] != _END:  # the last line has another ending
            del ids[-1], times[-1]
            end, start = offsets.pop() - base - 1, offsets[-1] - base
        if len(ids) > 1 and (b"".join(ids) + b"".join(times).replace(b":", b"")).translate(None, _ID_CHARACTERS):
            # A character that ids and times never contain: the comparison may have matched the wrong parts.
            careful, start = start, first_start
            del offsets[line:]
            end = find(b"\n", start)
            continue
        on_branch = UNSET if keys is None else None if branch is None else branch.decode()
        current_branch = None if current is None else current.decode()
        parent_id = None if parent is None else parent.decode()
        if len(ids) > 1:
            names = b" ".join(ids).decode().split(" ")
            found.append(
                Chain(ids=names, parent=parent_id, number=line, source=source, branch=on_branch, current=current_branch)
            )
        else:
            found.append(
                Entry(
                    id=first.decode(),
                    parent=parent_id,
                    type="message",
                    number=line,
                    source=source,
                    branch=on_branch,
                    current=current_branch,
                )
            )
        line += len(ids)


class LineSource(ABC):
    """A source of lines of version 3."""

    __slots__ = ()

    @abstractmethod
    def read_raw(self, line: int) -> bytes: ...

    def read_raws(self, lines: Iterable[int]) -> Iterator[bytes]:
        return map(self.read_raw, lines)

    def get_line(self, number: int) -> int:
        return number

    def detach(self, line: int) -> Source:
        return MemoryLine(self.read_raw(line))

    def decode_timestamp(self, raw: bytes) -> str:
        return read_timestamp(raw)

    def decode_body(self, raw: bytes) -> Body:
        return read_body(raw)

    def can_read(self, raw: bytes) -> bool:
        return is_readable(raw)

    def decode_extra(self, raw: bytes) -> JsonObject:
        return find_unknown_fields(read_object(raw))

    def find_hidden_keys(self, raw: bytes) -> list[str]:
        return find_hidden_keys(raw)

    def decode_line(self, raw: bytes) -> e.LinePreview | None:
        return read_line_preview(raw)

    def decode_preview(self, raw: bytes) -> MessagePreview | None:
        return read_preview(raw)


class MemoryLine(LineSource):
    """A source that holds one line in memory."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_raw(self, line: int) -> bytes:
        return self.data


def read_entry(raw: bytes, line: int, source: Source | None = None) -> Entry:
    """Read a line as an entry without decoding its body. Raises `NotJson`."""
    return _build_entry(read_head(raw), line, MemoryLine(raw) if source is None else source)


def read_line(raw: bytes, line: int, source: Source) -> Entry:
    """Read one line of a file as `scan_lines` would. Raises `NotJson`."""
    head = _read_message_head(raw)
    return _build_entry(read_head(raw) if head is None else head, line, source)


def _build_entry(head: LineHead, line: int, source: Source) -> Entry:
    if not isinstance(head.type, str):
        raise NotJson("no type")
    if not isinstance(head.id, str):
        raise NotJson("no id")
    branch: str | UnsetType | None = head.branch
    if branch is not None and not isinstance(branch, str):
        branch = UNSET
    return Entry(
        id=head.id,
        parent=e.parse_entry_id(head.parent),
        type=head.type,
        number=line,
        source=source,
        branch=branch,
        current=_parse_optional_text(head.current),
        custom_type=_parse_optional_text(head.custom_type),
    )


def _read_message_head(raw: bytes) -> LineHead | None:
    """Return the head of a line in the standard form of a message, or `None`."""
    head = _match_message_head(raw)
    if head is None:
        return None
    id, parent, time, keys, branch, current = head.groups()
    return LineHead(
        type="message",
        id=id.decode(),
        parent=None if parent is None else parent.decode(),
        timestamp=time.decode("utf-8", "replace"),
        branch=UNSET if keys is None else None if branch is None else branch.decode(),
        current=None if current is None else current.decode(),
    )


def _match_message_head(raw: bytes) -> re.Match[bytes] | None:
    return _HEAD.match(raw) if raw.endswith(_END) else None


def set_parent(raw: bytes, parent: EntryId | None) -> bytes:
    """Replace the parent of a line where readers look for it. In a damaged line that is not the last `parentId` key."""
    value = write_value(parent)
    head = _match_message_head(raw)
    if head is None:
        return set_value(raw, PARENT, value)
    start, end = head.end(1) + len(_PARENT) - 1, head.start(3) - len(_TIME) + 1
    return raw[:start] + value + raw[end:]


def find_hidden_keys(raw: bytes) -> list[str]:
    """Return the head keys after the message that differ from the ones before it, in a line of the standard form."""
    head = _read_message_head(raw)
    if head is None:
        return []
    try:
        full_head = read_head(raw)
    except NotJson:
        return []
    if full_head == head:  # the common case
        return []
    return [key for name, key in _HEAD_FIELDS if key in HEAD_KEYS and getattr(full_head, name) != getattr(head, name)]


def _has_one_head(raw: bytes, line: _MessageLine) -> bool:
    """Return whether a line starts with the values that were decoded, so no later key has another value."""
    keys = ""
    if line.branch is not UNSET:
        keys = ',"branch":null' if line.branch is None else f',"branch":"{line.branch}"'
        if line.current is not None:
            keys += f',"current":"{line.current}"'
    parent = "null" if line.parent is None else f'"{line.parent}"'
    head = f'{{"type":"message","id":"{line.id}","parentId":{parent},"timestamp":"{line.timestamp}"{keys},"message":{{'
    return raw.startswith(head.encode("utf-8", "surrogatepass"))


def read_timestamp(raw: bytes) -> str:
    """Return the timestamp of a line, or an empty string."""
    head = _match_message_head(raw)
    return head[3].decode("utf-8", "replace") if head is not None else _parse_text(read_head(raw).timestamp)


def read_body(raw: bytes) -> Body:
    """Decode the body of a line; `e.UNREADABLE` if the line is not valid JSON after all."""
    try:
        return parse_body(read_object(raw))
    except NotJson:
        return e.UNREADABLE


def is_readable(raw: bytes) -> bool:
    """Return whether `read_object` can read a line, without building the object."""
    try:
        _any_decoder.decode(raw)
        return not is_too_deep(raw)
    except (*DECODE_ERRORS, RecursionError):
        return read_body(raw) is not e.UNREADABLE


def read_line_preview(raw: bytes) -> e.LinePreview | None:
    """Read a message line for a listing; `None` if `read_body` is needed."""
    try:
        line = _line_decoder.decode(raw)
    except (*DECODE_ERRORS, RecursionError):
        return None
    if can_be_deep(raw) and is_deep_text(raw):
        return None
    line.is_sound = (raw.isascii() or is_utf8(raw)) and _has_one_head(raw, line)
    return line


def read_preview(raw: bytes) -> MessagePreview | None:
    """Return a preview of the message in a line; `None` if there is no message."""
    try:
        message = _preview_decoder.decode(raw).message
        return None if is_too_deep(raw) else message
    except (*DECODE_ERRORS, RecursionError):
        body = read_body(raw)
    return preview_message(body.message) if isinstance(body, e.Message) else None


def parse_body(wire: JsonObject) -> Body:
    """Build the body from an object in wire form. Its id, parent and timestamp are ignored."""
    type = _parse_text(wire.get("type"))
    if type == "message" and not is_object(wire.get("message")):
        return e.NO_MESSAGE
    if type not in WIRE:
        return e.Opaque(type=type, fields={key: value for key, value in wire.items() if key not in HEAD_KEYS})
    if type == "model_change" and "modelId" not in wire:
        # oh-my-pi stores provider and model in one field.
        provider, slash, model = _parse_text(wire.get("model")).partition("/")
        wire = {**wire, "provider": provider, "modelId": model} if slash else {**wire, "modelId": provider or None}
    body, fields = WIRE[type]
    return body(**{name: field.read(wire.get(field.wire)) for name, field in fields.items()})


def find_unknown_fields(wire: JsonObject) -> JsonObject:
    """Return the fields of an object in wire form that its body does not hold."""
    type = _parse_text(wire.get("type"))
    if type not in WIRE:
        return {}
    known = _get_known_fields(type)
    return {key: value for key, value in wire.items() if key not in known and key not in HEAD_KEYS}


def _get_known_fields(type: str) -> set[str]:
    """Return the wire fields that a body of the type holds."""
    return {field.wire for field in WIRE[type][1].values()} if type in WIRE else set()


def build_copy_fields(entry: Entry) -> JsonObject:
    """Return the extra fields of a copy of `entry`: fields that its body does not hold, and the id of the original.

    Raises `InvalidOperation` if the entry cannot be read.
    """
    try:
        wire = read_object(entry.raw)
    except NotJson as error:
        raise InvalidOperation(f"cannot copy entry {entry.id!r}: {error}") from None
    return {**find_unknown_fields(wire), COPIED_FROM: entry.id}


def get_type(body: Body) -> str:
    """Return the wire type of a body."""
    if isinstance(body, e.Opaque):
        return body.type
    try:
        return _TYPES_BY_BODY[type(body)]
    except KeyError:
        hint = f"; write st.user({body!r})" if isinstance(body, str) and len(body) < 40 else ""
        if isinstance(body, dict):
            hint = "; st.from_openai([…]) and the like convert messages of other SDKs"
        if isinstance(body, e.Entry):
            hint = "; to append a copy, write entry.body"
        raise InvalidOperation(
            f'an entry needs a body such as st.user("hi"), not {type(body).__name__}{hint}'
        ) from None


def encode_body(body: Body) -> JsonObject:
    """Return the fields of a body under their wire names."""
    if isinstance(body, e.Message):
        return {"message": body.message}
    if isinstance(body, e.Opaque):
        return {key: value for key, value in body.fields.items() if key not in HEAD_KEYS}
    _, fields = WIRE[get_type(body)]
    values = {field.wire: (getattr(body, name), field.optional) for name, field in fields.items()}
    return {wire: value for wire, (value, optional) in values.items() if value is not None or not optional}


def write_entry(
    body: Body,
    *,
    id: EntryId,
    parent: EntryId | None,
    timestamp: str,
    branch: str | None,
    current: str | None = None,
    line: int = 0,
    extra: JsonObject | None = None,
) -> Entry:
    """Build a new entry and its line. Pass `current` only if it differs from `branch`.

    Raises `InvalidOperation` for a body that would be read back as something else.
    """
    type = get_type(body)
    if isinstance(body, e.Opaque) and type in WIRE:
        raise InvalidOperation(f"use {WIRE[type][0].__name__} to write an entry of type {type!r}")
    wire: JsonObject = {"type": type, ID: id, PARENT: parent, "timestamp": timestamp, "branch": branch}
    if current is not None:
        wire["current"] = current
    if isinstance(body, e.Message):  # the common case
        wire["message"] = body.message
    else:
        wire.update(encode_body(body))
    if extra is not None:
        own = {*wire, *HEAD_KEYS, *_get_known_fields(type)} - {COPIED_FROM}  # a copy of a copy overwrites it
        conflicts = [key for key in extra if key in own]
        if conflicts:
            raise InvalidOperation(f"extra field {conflicts[0]!r} conflicts with a field of the entry")
        wire.update(extra)
    return Entry(
        id=id,
        parent=parent,
        type=type,
        number=line,
        source=MemoryLine(write_object(wire)),
        branch=branch,
        current=current,
        custom_type=_parse_optional_text(wire.get("customType")),
    )


def write_message(
    message: JsonObject, id: EntryId, parent: EntryId | None, timestamp: str, branch: str | None, current: str | None
) -> bytes:
    """Return the line of a new message: a fast form of `write_entry`.

    Tuples do not count for nesting here, because checking for them would take as long as writing the line.
    """
    return write_flat_object(_build_message_line(message, id, parent, timestamp, branch, current))


class ChainWriter:
    """Writes the lines of messages with the same time and branch as `write_message` does, in fewer steps."""

    __slots__ = ("_wire",)

    def __init__(self, timestamp: str, branch: str | None, current: str | None) -> None:
        self._wire = _build_message_line({}, "", None, timestamp, branch, current)

    def write(self, message: JsonObject, id: EntryId, parent: EntryId | None) -> bytes:
        wire = self._wire
        wire[ID], wire[PARENT], wire["message"] = id, parent, message
        return write_flat_object(wire)


def _build_message_line(
    message: JsonObject, id: EntryId, parent: EntryId | None, timestamp: str, branch: str | None, current: str | None
) -> JsonObject:
    wire = {"type": "message", ID: id, PARENT: parent, "timestamp": timestamp, "branch": branch, "message": message}
    if current is not None:
        del wire["message"]
        wire |= {"current": current, "message": message}
    return wire


def read_header(raw: bytes, wire: JsonObject) -> Header | None:
    """Return the header, or `None` if the line is not a header."""
    if wire.get("type") != "session" or not isinstance(wire.get("id"), str):
        return None
    version = wire.get("version", 1)
    return Header(
        raw=raw,
        id=wire["id"],
        version=version if isinstance(version, int) and not isinstance(version, bool) else VERSION,
        timestamp=_parse_text(wire.get("timestamp")),
        cwd=_parse_text(wire.get("cwd")),
        parent_session=_parse_optional_text(wire.get("parentSession")),
        forked_from=_parse_optional_text(wire.get("forkedFrom")),
        title=_parse_optional_text(wire.get("title")) or _parse_optional_text(wire.get("name")),
        redacted=_parse_flag(wire.get("redacted")),
        origin=_parse_optional_object(wire.get("origin")),
    )


def write_header(
    *,
    id: str,
    timestamp: str,
    cwd: str,
    parent_session: str | None = None,
    forked_from: EntryId | None = None,
    title: str | None = None,
    origin: JsonObject | None = None,
) -> bytes:
    wire: JsonObject = {"type": "session", "version": VERSION, "id": id, "timestamp": timestamp, "cwd": cwd}
    optional = {"parentSession": parent_session, "forkedFrom": forked_from, "title": title, "origin": origin}
    for key, value in optional.items():
        if value is not None:
            wire[key] = value
    return write_object(wire)
