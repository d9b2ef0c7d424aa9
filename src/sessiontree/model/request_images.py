"""Decides which images of a request are sent. A note replaces each of the others.

A broken or oversized image in a stored message would make every later request fail. Only the request changes. The
stored messages stay as they are.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from msgspec import Struct

from sessiontree.convert.cleanup import clean_text
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, iter_blocks

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_IMAGE_BYTES = 5_000_000
"""The maximum size of an image in base64: the lowest limit among the large providers."""
MAX_TOTAL_IMAGE_BYTES = 20_000_000
"""The maximum size of all images of a request. Beyond it the oldest images are omitted."""


class RequestImage(Struct, frozen=True):
    data: bytes
    media_type: str


class ImageFilter:
    """Decides which images of a request are sent, and describes the others."""

    def __init__(self, messages: Sequence[JsonObject], *, accepts_images: bool) -> None:
        self._accepts_images = accepts_images
        self._omitted: set[int] = set()
        room = MAX_TOTAL_IMAGE_BYTES
        for message in reversed(messages):
            for block in reversed(list(iter_blocks(message.get("content")))):
                if block.get("type") == "image" and self._find_fault(block) is None:
                    room -= len(coerce_string(block.get("data")))
                    if room < 0:
                        self._omitted.add(id(block))

    def prepare(self, block: JsonObject) -> RequestImage | str:
        """Return the image, or a note that replaces it."""
        fault = self._find_fault(block)
        if fault is None and id(block) in self._omitted:
            fault = f"the images of this request exceed {_format_megabytes(MAX_TOTAL_IMAGE_BYTES)} in total"
        if fault is not None:
            return f"[An image was omitted here: {fault}.]"
        try:
            return RequestImage(
                base64.b64decode(coerce_string(block.get("data")), validate=True), coerce_string(block.get("mimeType"))
            )
        except (binascii.Error, ValueError):
            return "[An image was omitted here: the data is invalid.]"

    def _find_fault(self, block: JsonObject) -> str | None:
        data, media_type = coerce_string(block.get("data")), coerce_string(block.get("mimeType"))
        if not self._accepts_images:
            return "this model does not accept images"
        if media_type not in IMAGE_TYPES:
            return f"its type is {clean_text(media_type) or 'unknown'}"
        if not data:
            return "it is empty"
        if len(data) > MAX_IMAGE_BYTES:
            return f"it is larger than {_format_megabytes(MAX_IMAGE_BYTES)}"
        return None


def _format_megabytes(size: int) -> str:
    return f"{size / 1_000_000:g} MB"
