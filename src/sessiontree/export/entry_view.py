"""Builds views of entries: what a reader sees, the same in HTML, Markdown and plain text.

A view has a title, a few facts, and a list of parts. Marks of other programs, such as `<task-notification>`, are folded
into a part of their own. Other texts are unchanged, except that invisible characters and characters that change the
direction of the text become visible symbols. Each format decides how a part looks. Images are measured by their first
bytes and never decoded.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from sessiontree.core.entries import (
    BranchSummary,
    Compaction,
    ContextEdit,
    CustomMessage,
    Entry,
    JsonObject,
    Message,
    Usage,
    shorten_to_line,
)
from sessiontree.core.entry_text import (
    describe_execution,
    describe_stop,
    describe_summary,
    find_call_subject,
    format_model,
    get_result_diff,
)
from sessiontree.core.foreign_markup import format_program_text
from sessiontree.core.messages import (
    ToolCall,
    coerce_string,
    get_role,
    is_failed_turn,
    is_list,
    is_object,
    iter_blocks,
    sum_usage,
)
from sessiontree.core.number_text import list_usage
from sessiontree.core.operation_plans import is_merge
from sessiontree.core.sanitize import UNSAFE_IN_LINES

MAX_DATA = 20 << 20
"""The maximum length of an image in base64."""
MAX_PIXELS = 50_000_000
"""The maximum number of pixels. A browser cannot decode much larger images."""
HEAD_BYTES = 1 << 16
"""How many bytes of an image are read to measure it."""

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


class Picture(Struct, frozen=True, kw_only=True):
    kind: str = ""
    """The media type. Empty if the image is not shown."""
    data: str = ""
    """In base64."""
    width: int = 0
    height: int = 0
    fault: str = ""
    """Why the image is not shown."""

    @property
    def description(self) -> str:
        return f"image, {self.width} × {self.height}" if self.kind else f"image not shown: {self.fault}"


def read_picture(block: JsonObject) -> Picture:
    """Read an image block in the form of pi or of Anthropic."""
    source = block.get("source")
    data = (
        coerce_string(block.get("data")) or (coerce_string(source.get("data")) if is_object(source) else "")
    ).strip()
    if not data:
        return Picture(fault="the entry contains no image data")
    if len(data) > MAX_DATA:
        return Picture(fault=f"{len(data)} characters exceed the limit of {MAX_DATA}")
    if len(data) % 4 or not _BASE64.fullmatch(data):
        return Picture(fault="the data is not base64")
    kind, width, height = _measure(base64.b64decode(data[: HEAD_BYTES // 3 * 4]))
    if not kind:
        return Picture(fault="not a PNG, JPEG, GIF or WebP image")
    if not 0 < width * height <= MAX_PIXELS:
        return Picture(fault=f"{width} × {height} pixels are too large")
    return Picture(kind=kind, data=data, width=width, height=height)


def _measure(head: bytes) -> tuple[str, int, int]:
    """Return the media type, the width and the height from the first bytes of an image."""
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
            return "image/png", *struct.unpack(">II", head[16:24])
        if head[:6] in (b"GIF87a", b"GIF89a"):
            return "image/gif", *struct.unpack("<HH", head[6:10])
        if head[:3] == b"\xff\xd8\xff":
            return "image/jpeg", *_measure_jpeg(head)
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            return "image/webp", *_measure_webp(head)
    except (struct.error, IndexError):
        pass
    return "", 0, 0


def _measure_jpeg(head: bytes) -> tuple[int, int]:
    for marker, at in _iterate_segments(head):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", head[at + 3 : at + 7])
            return width, height
    return 0, 0


def _iterate_segments(head: bytes) -> Iterator[tuple[int, int]]:
    at = 2
    while at + 4 <= len(head) and head[at] == 0xFF:
        yield head[at + 1], at + 2
        at += 2 + struct.unpack(">H", head[at + 2 : at + 4])[0]


def _measure_webp(head: bytes) -> tuple[int, int]:
    form = head[12:16]
    if form == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if form == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8 ":
        width, height = struct.unpack("<HH", head[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return 0, 0


ViewKind: TypeAlias = Literal[
    "user", "assistant", "tool", "run", "system", "custom", "compaction", "summary", "merge", "setting", "note"
]
PartKind: TypeAlias = Literal["prose", "thinking", "code", "output", "diff", "data", "call", "image", "error"]


class ViewPart(Struct, frozen=True, kw_only=True):
    """A part of a view."""

    kind: PartKind
    text: str = ""
    name: str = ""
    """For a call, the name of the tool. For data, its name."""
    language: str = ""
    """For code, a language or the suffix of a file name."""
    picture: Picture | None = None
    inner: tuple[ViewPart, ...] = ()
    """For a call, its arguments."""


class EntryView(Struct, frozen=True, kw_only=True):
    kind: ViewKind
    title: str
    facts: tuple[str, ...] = ()
    parts: tuple[ViewPart, ...] = ()
    failed: bool = False


def build_view(entry: Entry, call: ToolCall | None = None) -> EntryView:
    """Build the view of an entry. `call` is the tool call that a tool result answers."""
    match entry.decode():
        case Message(message):
            return build_message_view(message, call)
        case Compaction() | BranchSummary() as body:
            title, facts = describe_summary(body)
            return EntryView(
                kind="compaction" if isinstance(body, Compaction) else "merge" if is_merge(body) else "summary",
                title=title,
                facts=(*map(make_visible, facts), *_format_usage(body.usage)),
                parts=(ViewPart(kind="prose", text=make_visible(body.summary)), *_build_data(details=body.details)),
            )
        case CustomMessage() as body:
            hidden = () if body.display else ("hidden in the terminal",)
            return EntryView(
                kind="custom",
                title=_format_name(body.custom_type) or "custom message",
                facts=hidden,
                parts=(*_build_user_content(body.content), *_build_data(details=body.details)),
            )
        case ContextEdit(replacement=replacement) as body:
            description = body.describe()
            parts = () if replacement is None else tuple(_build_content(replacement.get("content")))
            title = " ".join((description.title, _format_name(description.subject), *description.facts))
            return EntryView(kind="note", title=title, parts=parts)
        case Usage() as body:
            *facts, note = body.describe().facts
            shown = (*facts, *_format_usage(body.usage), note)
            return EntryView(kind="note", title="Usage", facts=tuple(make_visible(fact) for fact in shown if fact))
        case body:
            description = body.describe()
            subject = _format_name(description.subject or ("" if description.title else entry.type))
            return EntryView(
                kind="setting" if description.is_setting else "note",
                title=f"{description.title} {subject}".strip(),
                facts=tuple(make_visible(shorten_to_line(fact)) for fact in description.facts if fact),
                parts=tuple(_build_data(**{description.data_name: description.data})),
            )


def build_message_view(message: JsonObject, call: ToolCall | None = None) -> EntryView:
    """Build the view of a message."""
    match get_role(message):
        case "user":
            return EntryView(kind="user", title="User", parts=tuple(_build_user_content(message.get("content"))))
        case "assistant":
            return _build_assistant(message)
        case "toolResult":
            return _build_tool_result(message, call)
        case "bashExecution" | "pythonExecution" as kind:
            return _build_run(message, "bash" if kind == "bashExecution" else "python")
        case "system" | "developer" as kind:
            data = _build_data(sections=message.get("sections"), tools=message.get("toolsAdded"))
            return EntryView(
                kind="system", title=kind.capitalize(), parts=(*_build_content(message.get("content")), *data)
            )
        case kind:
            known = ("role", "content", "timestamp", "customType", "text", "summary")
            others = {key: value for key, value in message.items() if key not in known}
            words = coerce_string(message.get("text")) or coerce_string(message.get("summary"))
            parts = [*_build_content(message.get("content")), *_build_prose(words), *_build_data(fields=others or None)]
            title = coerce_string(message.get("customType")) or kind or "message"
            return EntryView(kind="custom", title=_format_name(title), parts=tuple(parts))


def _build_assistant(message: JsonObject) -> EntryView:
    failed = is_failed_turn(message)
    facts = [
        format_model(message),
        *_format_usage(message.get("usage")),
        describe_stop(message),
    ]
    parts = list(_build_content(message.get("content")))
    error = coerce_string(message.get("errorMessage"))
    if error:
        parts.append(ViewPart(kind="error", text=make_visible(error)))
    known = tuple(make_visible(fact) for fact in facts if fact)
    return EntryView(kind="assistant", title="Assistant", facts=known, parts=tuple(parts), failed=failed)


def _build_tool_result(message: JsonObject, call: ToolCall | None) -> EntryView:
    name = call.name if call is not None else coerce_string(message.get("toolName"))
    subject = _format_name(find_call_subject(call.arguments)) if call is not None else ""
    failed = message.get("isError") is True
    parts: list[ViewPart] = []
    details = message.get("details")
    diff = get_result_diff(message)
    if diff and is_object(details):
        details = {key: value for key, value in details.items() if key != "diff"} or None
    for part in _build_content(message.get("content")):
        parts.append(ViewPart(kind="error" if failed else "output", text=part.text) if part.kind == "prose" else part)
    if diff:
        parts.append(ViewPart(kind="diff", text=make_visible(diff)))
    parts.extend(_build_data(details=details))
    return EntryView(
        kind="tool",
        title=f"{_format_name(name) or 'tool'} {subject}".strip(),
        facts=("failed",) if failed else (),
        parts=tuple(parts),
        failed=failed,
    )


def _build_run(message: JsonObject, language: str) -> EntryView:
    command, output, facts, failed = describe_execution(message)
    parts = [ViewPart(kind="code", text=make_visible(command), language=language)]
    if output:
        parts.append(ViewPart(kind="output", text=make_visible(output)))
    return EntryView(
        kind="run",
        title=f"Run {_format_name(command)}".strip(),
        facts=tuple(map(make_visible, facts)),
        parts=tuple(parts),
        failed=failed,
    )


def _build_content(content: Any) -> Iterator[ViewPart]:
    for block in iter_blocks(content):
        match block.get("type"):
            case "text":
                yield from _build_prose(coerce_string(block.get("text")))
            case "thinking":
                words = coerce_string(block.get("thinking"))
                hidden = "(redacted by the provider)" if block.get("redacted") is True else ""
                if words or hidden:
                    yield ViewPart(kind="thinking", text=make_visible(words) or hidden)
            case "toolCall":
                yield _build_call(ToolCall.wrap(block))
            case "image":
                yield ViewPart(kind="image", picture=read_picture(block))
            case _:
                yield from _build_data(block=block)
    if content is not None and not isinstance(content, str) and not is_list(content):
        yield from _build_data(content=content)


def _build_user_content(content: Any) -> Iterator[ViewPart]:
    """Like `_build_content`, with texts of other programs first without their marks, and then as they are."""
    for part in _build_content(content):
        readable = format_program_text(part.text, with_results=True) if part.kind == "prose" else part.text
        if readable == part.text:
            yield part
        else:
            yield ViewPart(kind="prose", text=readable)
            yield ViewPart(kind="data", name="as the model sees it", text=part.text)


def _build_prose(words: str) -> Iterator[ViewPart]:
    if words.strip():
        yield ViewPart(kind="prose", text=make_visible(words))


EDIT_KEYS = (("oldText", "newText"), ("old_text", "new_text"), ("old_string", "new_string"))


def _build_call(call: ToolCall) -> ViewPart:
    """Build the view of a tool call: commands and files as code, edits as diffs, other arguments as data."""
    arguments: Any = call.arguments
    inner: list[ViewPart] = []
    rest = arguments
    if is_object(arguments):
        rest = dict(arguments)
        path = coerce_string(rest.get("path")) or coerce_string(rest.get("file_path"))
        if path:
            rest.pop("path" if coerce_string(rest.get("path")) else "file_path")
        if isinstance(rest.get("command"), str):
            inner.append(ViewPart(kind="code", text=make_visible(rest.pop("command")), language="bash"))
        if isinstance(rest.get("content"), str):
            inner.append(ViewPart(kind="code", text=make_visible(rest.pop("content")), language=_get_suffix(path)))
        inner.extend(_extract_edits(rest))
        rest = rest or None
    inner.extend(_build_data(arguments=rest))
    subject = _format_name(find_call_subject(arguments))
    return ViewPart(kind="call", name=_format_name(call.name) or "tool", text=subject, inner=tuple(inner))


def _extract_edits(arguments: JsonObject) -> Iterator[ViewPart]:
    """Yield the edits among the arguments of a call, and remove them from the arguments."""
    several = arguments.get("edits")
    if is_list(several) and several and all(is_object(edit) and _find_edit_keys(edit) for edit in several):
        del arguments["edits"]
        for edit in several:
            yield from _extract_edits(dict(edit))
    keys = _find_edit_keys(arguments)
    if keys is not None:
        old, new = arguments.pop(keys[0]), arguments.pop(keys[1])
        yield ViewPart(kind="diff", text=make_visible(_diff_texts(old, new)))


def _find_edit_keys(arguments: JsonObject) -> tuple[str, str] | None:
    return next(
        (
            (old, new)
            for old, new in EDIT_KEYS
            if isinstance(arguments.get(old), str) and isinstance(arguments.get(new), str)
        ),
        None,
    )


MAX_DIFF_LINES = 400
"""Longer texts are not diffed, because the time is quadratic."""


def _diff_texts(old: str, new: str) -> str:
    import difflib

    before, after = old.split("\n"), new.split("\n")
    if len(before) + len(after) > MAX_DIFF_LINES:
        return "\n".join([*(f"-{line}" for line in before), *(f"+{line}" for line in after)])
    lines = list(difflib.unified_diff(before, after, n=3, lineterm=""))[2:]
    return "\n".join(line for line in lines if not line.startswith("@@"))


def _get_suffix(path: str) -> str:
    name = path.rsplit("/", 1)[-1]
    return name.rsplit(".", 1)[-1].lower() if "." in name else ""


def _build_data(**values: Any) -> Iterator[ViewPart]:
    """Yield a part for each JSON value, by name. `None` is skipped."""
    for name, value in values.items():
        if value is not None:
            yield ViewPart(kind="data", name=name, text=make_visible(format_json(value)))


def format_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, indent=2)
    except RecursionError:
        return "(nested too deeply)"


def _format_usage(usage: Any) -> list[str]:
    used = sum_usage(usage)
    return [] if used is None else list_usage(*used)


def _format_name(words: str) -> str:
    return make_visible(shorten_to_line(words))[:120]


_COLORS = re.compile("\x1b\\[[0-9;:]*m")
_UNSEEN = re.compile(f"[{UNSAFE_IN_LINES}]")


def make_visible(words: str) -> str:
    """Return `words` without terminal colors, with `\\n` line ends, and with symbols for invisible characters."""
    if words.isprintable() or words.replace("\n", "").replace("\t", "").isprintable():
        return words
    words = _COLORS.sub("", words).replace("\r\n", "\n")
    return _UNSEEN.sub(_replace_character, words)


def _replace_character(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"⟨U+{code:04X}⟩"
