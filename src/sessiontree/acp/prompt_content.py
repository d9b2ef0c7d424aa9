"""Prompts of an editor: content blocks as a text with images, and the files that the user attached."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Sequence
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from acp.schema import (
    AudioContentBlock,
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)
from msgspec import Struct

from sessiontree.agent.tools.file_access import MAX_IMAGE_FILE_BYTES, detect_image_type
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import build_image_block
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import InvalidOperation

ContentBlock: TypeAlias = (
    TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
)


class PromptContent(Struct, frozen=True, kw_only=True):
    """A prompt as the agent takes it."""

    line: str
    """What the user typed. Attached files appear as links."""
    attachments: str
    """The text of the attached files; empty without any."""
    images: list[JsonObject]

    @property
    def text(self) -> str:
        """The whole text of the prompt."""
        return attach(self.line, self.attachments)


def attach(text: str, attachments: str) -> str:
    """Return a prompt with the attached files after it."""
    return "\n\n".join(filter(None, [text, attachments]))


def read_prompt(blocks: Sequence[ContentBlock]) -> PromptContent:
    """Convert the content blocks of a prompt. Raises `InvalidOperation`."""
    pieces: list[str] = []
    attached: list[str] = []
    images: list[JsonObject] = []
    for block in blocks:
        match block:
            case TextContentBlock():
                pieces.append(block.text)
            case ImageContentBlock():
                images.append(_read_image(block.data))
            case ResourceContentBlock():
                pieces.append(_format_link(block.title or block.name, block.uri))
            case EmbeddedResourceContentBlock(resource=TextResourceContents() as resource):
                pieces.append(_format_link(_get_name(resource.uri), resource.uri))
                attached.append(f'<file path="{_format_place(resource.uri)}">\n{resource.text}\n</file>')
            case EmbeddedResourceContentBlock(resource=BlobResourceContents() as resource):
                pieces.append(_format_link(_get_name(resource.uri), resource.uri))
                images.append(_read_image(resource.blob, resource.uri))
            case _:
                raise InvalidOperation(f"a prompt cannot contain {block.type} content")
    content = PromptContent(line="".join(pieces).strip(), attachments="\n\n".join(attached), images=images)
    if not content.text and not images:
        raise InvalidOperation("the prompt is empty")
    return content


def _read_image(data: str, uri: str = "") -> JsonObject:
    """Return an image block. Its type is detected: the one that the client names may be wrong."""
    name = f"{_format_place(uri)}" if uri else "the image"
    try:
        raw = b64decode(data, validate=True)
    except (ValueError, binascii.Error):
        raise InvalidOperation(f"{name} is not valid base64") from None
    media = detect_image_type(raw)
    if media is None:
        raise InvalidOperation(f"{name} is not an image that models accept; use png, jpeg, gif or webp")
    if len(raw) > MAX_IMAGE_FILE_BYTES:
        raise InvalidOperation(f"{name} is too large: images are limited to {MAX_IMAGE_FILE_BYTES / 1_000_000:g} MB")
    return build_image_block(raw, media)


def _format_link(name: str, uri: str) -> str:
    return f"[@{escape_line(name)}]({escape_line(uri)})"


def _get_name(uri: str) -> str:
    return _format_place(uri).rpartition("/")[2] or uri


def _format_place(uri: str) -> str:
    """Return the path of a file, or the URI of anything else, as one line without quotes."""
    place = uri
    try:
        parts = urlsplit(uri)
        if parts.scheme == "file":
            place = unquote(parts.path) + (f"#{parts.fragment}" if parts.fragment else "")
    except ValueError:  # the URI is invalid
        pass
    return escape_line(place).replace('"', "%22")
