"""Tool calls as an editor shows them: title, kind, places in files, diffs and output.

Arguments come from a model and results from tools, so both are limited in size here. The session has all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from sessiontree.agent.tool import Tool
from sessiontree.agent.tools.file_access import SNIFF_BYTES, is_binary
from sessiontree.agent.tools.file_tools import MAX_DIFFED_BYTES
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import ToolCall, coerce_string, is_list, is_object, iter_blocks
from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.home import is_private
from sessiontree.regular_file import open_regular_file

MAX_TITLE_CHARS = 200
MAX_OUTPUT_CHARS = 64 << 10
"""Longer output of tools is cut off in the editor."""
MAX_INPUT_CHARS = 64 << 10
"""Larger arguments are not sent in raw form."""
KINDS = {"read": "read", "ls": "read", "find": "search", "grep": "search", "bash": "execute"}
"""The kinds of built-in tools, in the words of the protocol."""


def describe_call(call: ToolCall, tool: Tool | None, cwd: str, *, is_new: bool = False) -> JsonObject:
    """Return the fields of a tool call. For a call that `is_new`, the diff shows what it would change on disk."""
    arguments = call.arguments if is_object(call.arguments) else {}
    fields: JsonObject = {"title": _build_title(call.name, arguments, tool), "kind": _get_kind(call.name, tool)}
    locations = _list_locations(arguments, tool, cwd)
    if locations:
        fields["locations"] = locations
    diff = _build_diff(call.name, arguments, cwd, is_new=is_new)
    if diff is not None:
        fields["content"] = [diff]
    if _count_chars(arguments) <= MAX_INPUT_CHARS:
        fields["rawInput"] = arguments
    return fields


def describe_result(message: JsonObject, call: ToolCall | None, tool: Tool | None, cwd: str) -> JsonObject:
    """Return the fields that a tool result changes. A successful edit keeps its diff as content."""
    failed = message.get("isError") is True
    fields: JsonObject = {"status": "failed" if failed else "completed"}
    shows_diff = call is not None and call.name in ("edit", "write") and not failed
    if not shows_diff:
        fields["content"] = build_output_content(iter_blocks(message.get("content")))
    details = message.get("details")
    line = details.get("firstChangedLine") if is_object(details) else None
    if call is not None and isinstance(line, int):
        arguments = call.arguments if is_object(call.arguments) else {}
        fields["locations"] = [{**place, "line": line} for place in _list_locations(arguments, tool, cwd)]
    return fields


def build_output_content(blocks: Iterable[JsonObject]) -> list[JsonObject]:
    """Return text and image blocks as the content of a tool call."""
    content: list[JsonObject] = []
    for block in blocks:
        if block.get("type") == "image":
            shown = {"data": coerce_string(block.get("data")), "mimeType": coerce_string(block.get("mimeType"))}
            content.append({"type": "content", "content": {"type": "image", **shown}})
        elif text := coerce_string(block.get("text")):
            content.append({"type": "content", "content": {"type": "text", "text": quote_output(text)}})
    return content


def build_detail_content(detail: str) -> list[JsonObject] | None:
    """Return all arguments of a call as content; `None` if they are too long to be shown in full."""
    text = escape_lines(detail)
    if len(text) > MAX_OUTPUT_CHARS:
        return None
    return build_output_content([{"type": "text", "text": text}])


def quote_output(text: str) -> str:
    """Return preformatted text as a code block, cut off if it is long. Editors render Markdown."""
    left = len(text) - MAX_OUTPUT_CHARS
    shown = text[:MAX_OUTPUT_CHARS].rstrip("\n")
    longest = max(map(len, re.findall("`{3,}", shown)), default=2)
    fence = "`" * (longest + 1)
    note = f"\n\n{left} more characters are in the session." if left > 0 else ""
    return f"{fence}\n{shown}\n{fence}{note}"


def _build_title(name: str, arguments: JsonObject, tool: Tool | None) -> str:
    command = None if tool is None or tool.command is None else coerce_string(arguments.get(tool.command))
    subjects = () if tool is None else tool.paths
    places = [text for key in subjects if (text := coerce_string(arguments.get(key)))]
    title = command or " ".join([name, *places[:1]])
    line = escape_line(" ".join(title[: MAX_TITLE_CHARS * 4].split()))
    return line if len(line) <= MAX_TITLE_CHARS else f"{line[:MAX_TITLE_CHARS]}…"


def _get_kind(name: str, tool: Tool | None) -> str:
    if tool is None:
        return "other"
    return KINDS.get(name) or {"reads": "read", "edits": "edit"}.get(tool.does, "other")


def _list_locations(arguments: JsonObject, tool: Tool | None, cwd: str) -> list[JsonObject]:
    places: list[JsonObject] = []
    for key in () if tool is None else tool.paths:
        path = _resolve(coerce_string(arguments.get(key)), cwd)
        if path is not None:
            line = arguments.get("offset")
            places.append({"path": path, **({"line": line} if isinstance(line, int) and line > 0 else {})})
    return places


def _resolve(path: str, cwd: str) -> str | None:
    if not path or "\0" in path or len(path) > MAX_OUTPUT_CHARS:
        return None
    return os.path.normpath(os.path.join(cwd, os.path.expanduser(path)))


def _build_diff(name: str, arguments: JsonObject, cwd: str, *, is_new: bool) -> JsonObject | None:
    path = _resolve(coerce_string(arguments.get("path")), cwd)
    if path is None or name not in ("edit", "write"):
        return None
    old: Any = arguments.get("old_text") if name == "edit" else _read_old_text(path) if is_new else None
    new = arguments.get("new_text" if name == "edit" else "content")
    if not isinstance(new, str) or len(new) > MAX_DIFFED_BYTES:
        return None
    diff = {"type": "diff", "path": path, "newText": new}
    return {**diff, "oldText": old} if isinstance(old, str) and len(old) <= MAX_DIFFED_BYTES else diff


def _read_old_text(path: str) -> str | None:
    """Return the text of a file that a call would replace; `None` if there is none to show."""
    if is_private(path):
        return None
    try:
        with open_regular_file(path) as file:
            raw = file.read(MAX_DIFFED_BYTES + 1)
    except OSError:
        return None
    return None if len(raw) > MAX_DIFFED_BYTES or is_binary(raw[:SNIFF_BYTES]) else raw.decode("utf-8", "replace")


def _count_chars(value: Any) -> int:
    """Return about how long a JSON value is."""
    if isinstance(value, str):
        return len(value)
    if is_object(value):
        return sum(len(key) + _count_chars(item) for key, item in value.items())
    if is_list(value):
        return sum(map(_count_chars, value))
    return 8
