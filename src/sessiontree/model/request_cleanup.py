"""Cleaning at the provider's edge: what sessions may hold but requests may not.

Lone surrogates, NUL, numbers that JSON does not know, images that are broken, of an unknown kind or too large, an id
that two calls have: one of them in stored messages would have every later request refused. Here they are replaced in
what is sent; what is stored stays as it is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import re
from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, is_list, is_object, iter_blocks

REPLACEMENT = "\ufffd"

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_IMAGE_BYTES = 5_000_000
"""Bytes of one image, as sent in base64: the smallest limit of the large providers."""
MAX_TOTAL_IMAGE_BYTES = 20_000_000
"""Bytes of all images of a request; beyond it the older ones are left out."""

_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def clean_text(text: str) -> str:
    return _UNSENDABLE.sub(REPLACEMENT, text)


def clean_json(value: Any) -> Any:
    """`value` with its texts clean, and numbers that JSON does not know as null."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_object(value):
        return {clean_text(key): clean_json(item) for key, item in value.items()}
    if is_list(value):
        return [clean_json(item) for item in value]
    return value


def clean_id(id: str) -> str:
    """An id of a tool call that every provider takes; always the same one for the same id."""
    if _ID.fullmatch(id):
        return id
    return f"call_{hashlib.sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


class CallIds:
    """The ids of the tool calls of one request, no two the same: some servers count from 0 in every answer.

    A call whose id was used before gets a number, and so does its result. What a turn is called does not depend on
    those that come after it, so that a longer request begins like the one before.
    """

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        """How often each was wanted."""
        self._pending: dict[str, tuple[int, deque[str]]] = {}
        """By its id as it is stored: the turn that used it last, and the ids of its calls that have no result yet."""
        self._turn = 0

    def start_turn(self) -> None:
        """Another turn begins."""
        self._turn += 1

    def assign_id(self, id: str) -> str:
        """The id of a call of this turn."""
        given = base = clean_id(id)
        while given in self._used:
            self._used[base] += 1
            given = f"{base[:54]}_{self._used[base]}"
        self._used[given] = 1
        turn, waiting = self._pending.get(id, (0, deque[str]()))
        if turn != self._turn:
            waiting = deque[str]()
            self._pending[id] = self._turn, waiting
        waiting.append(given)
        return given

    def match_result(self, id: str) -> str:
        """The id of the call that a result belongs to: the first without one of the last turn that made such a call."""
        _, waiting = self._pending.get(id, (0, None))
        return waiting.popleft() if waiting else clean_id(id)


def clean_name(name: str) -> str:
    """The name of a tool that every provider takes."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"


class Image(Struct, frozen=True):
    data: bytes
    media_type: str


class ImageFilter:
    """Which images of a request are sent, and what is said in place of the others."""

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

    def prepare(self, block: JsonObject) -> Image | str:
        """The image, or a note in its place."""
        fault = self._find_fault(block)
        if fault is None and id(block) in self._omitted:
            fault = f"the images of this request are larger than {_format_megabytes(MAX_TOTAL_IMAGE_BYTES)} together"
        if fault is not None:
            return f"[An image was here that cannot be shown: {fault}.]"
        try:
            return Image(
                base64.b64decode(coerce_string(block.get("data")), validate=True), coerce_string(block.get("mimeType"))
            )
        except (binascii.Error, ValueError):
            return "[An image was here that cannot be shown: it is broken.]"

    def _find_fault(self, block: JsonObject) -> str | None:
        data, media_type = coerce_string(block.get("data")), coerce_string(block.get("mimeType"))
        if not self._accepts_images:
            return "this model takes no images"
        if media_type not in IMAGE_TYPES:
            return f"its type is {clean_text(media_type) or 'unknown'}"
        if not data:
            return "it is empty"
        if len(data) > MAX_IMAGE_BYTES:
            return f"it is larger than {_format_megabytes(MAX_IMAGE_BYTES)}"
        return None


def _format_megabytes(size: int) -> str:
    return f"{size / 1_000_000:g} MB"
