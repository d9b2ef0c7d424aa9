"""Convert results of MCP servers to the output of tools, within the limits of our own tools.

Text and images reach the model. Structured content reaches it as JSON unless it is already in the text. Other binary
content is described. Long text is cut off; all of it goes to a private file that the model may read.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Any

import mcp_types
import msgspec

from sessiontree.agent.tool import ToolOutput
from sessiontree.agent.tools.file_access import MAX_IMAGE_FILE_BYTES, detect_image_type
from sessiontree.agent.tools.output_limits import fit_lines, strip_controls, write_full_output
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import is_object

MAX_IMAGES = 20
MAX_DETAIL_BYTES = 50_000
"""Larger structured content is not repeated in the details of a result."""


def convert_result(result: mcp_types.CallToolResult, *, server: str, tool: str) -> ToolOutput:
    """Return the output of a tool call."""
    blocks = list(convert_content(result.content))
    details: JsonObject = {"mcpServer": server, "mcpTool": tool}
    if result.structured_content is not None:
        encoded = msgspec.json.encode(result.structured_content)
        if not _has_json(blocks, result.structured_content):
            blocks.append({"type": "text", "text": encoded.decode()})
        if len(encoded) <= MAX_DETAIL_BYTES:
            details["structuredContent"] = result.structured_content
    limited = limit_blocks(blocks)
    return ToolOutput(content=limited or "(no output)", details=details, is_error=bool(result.is_error))


def convert_content(content: Iterable[Any]) -> Iterator[JsonObject]:
    """Yield the content of a result or a prompt as blocks of a message."""
    for block in content:
        match block:
            case mcp_types.TextContent():
                yield _build_text(block.text)
            case mcp_types.ImageContent():
                yield _build_image(block.data, block.mime_type)
            case mcp_types.AudioContent():
                yield _build_text(f"[audio, {block.mime_type}, {_count_bytes(block.data)} bytes: not shown]")
            case mcp_types.ResourceLink():
                note = f": {block.description}" if block.description else ""
                yield _build_text(f"[resource {block.name} at {block.uri}{note}]")
            case mcp_types.EmbeddedResource():
                yield from convert_resource([block.resource])
            case _:
                yield _build_text(f"[content of type {getattr(block, 'type', type(block).__name__)}: not shown]")


def convert_resource(contents: Iterable[Any]) -> Iterator[JsonObject]:
    """Yield the contents of a resource as blocks of a message."""
    for part in contents:
        if isinstance(part, mcp_types.TextResourceContents):
            yield _build_text(part.text)
        elif (part.mime_type or "").startswith("image/"):
            yield _build_image(part.blob, part.mime_type or "")
        else:
            kind = part.mime_type or "unknown type"
            yield _build_text(f"[{part.uri}: binary, {kind}, {_count_bytes(part.blob)} bytes: not shown]")


def limit_blocks(blocks: list[JsonObject]) -> list[JsonObject]:
    """Return the blocks with their text cut off at the limit of all tools together. The rest goes to a file."""
    texts: list[str] = [block["text"] for block in blocks if block["type"] == "text"]
    head = fit_lines("\n".join(texts).split("\n"))
    images = [block for block in blocks if block["type"] == "image"]
    if head.whole and len(images) <= MAX_IMAGES:
        return blocks
    limited: list[JsonObject] = [_build_text(head.text)] if texts else []
    if not head.whole:
        whole = "\n".join(texts)
        path = write_full_output(whole)
        rest = f"The full output is in {path}" if path is not None else "The rest could not be saved"
        size = len(whole.encode("utf-8", "replace"))
        limited.append(_build_text(f"[Only the first {head.lines} lines are shown ({size} bytes). {rest}]"))
    if len(images) > MAX_IMAGES:
        limited.append(_build_text(f"[Only the first {MAX_IMAGES} of {len(images)} images are shown]"))
    return [*limited, *images[:MAX_IMAGES]]


def _build_text(text: str) -> JsonObject:
    return {"type": "text", "text": strip_controls(text)}


def _build_image(data: str, media: str) -> JsonObject:
    """Return an image block, or a note if the image is too large or of a type that models do not accept."""
    size = _count_bytes(data)
    if size > MAX_IMAGE_FILE_BYTES:
        limit = f"{MAX_IMAGE_FILE_BYTES / 1_000_000:g} MB"
        return _build_text(f"[image, {media}, {size} bytes: images are limited to {limit}]")
    try:
        found = detect_image_type(base64.b64decode(data[:64], validate=True))
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        found = None
    if found is None:
        return _build_text(f"[image, {media}, {size} bytes: not a png, jpeg, gif or webp image]")
    return {"type": "image", "data": data, "mimeType": found}


def _count_bytes(encoded: str) -> int:
    return len(encoded) * 3 // 4 - encoded[-2:].count("=")


def _has_json(blocks: Iterable[JsonObject], value: Any) -> bool:
    """Return whether a text block has this value. Servers repeat structured content for older clients."""
    # Many servers wrap a result that is not an object.
    wrapped = value["result"] if is_object(value) and value.keys() == {"result"} else value
    for block in blocks:
        text = block.get("text", "")
        if text == wrapped:
            return True
        try:
            if msgspec.json.decode(text) in (value, wrapped):
                return True
        except (msgspec.DecodeError, RecursionError):
            pass
    return False
