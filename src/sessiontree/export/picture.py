"""Pictures: image blocks looked at without decoding them.

The kind is told by the first bytes, whatever the block says; size and measures are read from there too. What is no
known picture, or would be huge once decoded, is not shown.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator

from msgspec import Struct

from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, is_object

MAX_DATA = 20 << 20
"""Characters of base64 that are put into a page."""
MAX_PIXELS = 50_000_000
"""Pixels that a reader's browser is asked to decode."""
HEAD_BYTES = 1 << 16
"""How much of a picture is looked at, in bytes."""

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


class Picture(Struct, frozen=True, kw_only=True):
    kind: str = ""
    """The media type; empty where the picture is not shown."""
    data: str = ""
    """In base64."""
    width: int = 0
    height: int = 0
    fault: str = ""
    """Why it is not shown."""

    @property
    def says(self) -> str:
        return f"image, {self.width} × {self.height}" if self.kind else f"image not shown: {self.fault}"


def read_picture(block: JsonObject) -> Picture:
    """The picture in an image block, in the form of pi or in that of Anthropic."""
    source = block.get("source")
    data = (
        coerce_string(block.get("data")) or (coerce_string(source.get("data")) if is_object(source) else "")
    ).strip()
    if not data:
        return Picture(fault="there is none in the entry")
    if len(data) > MAX_DATA:
        return Picture(fault=f"its {len(data)} characters are over the limit of {MAX_DATA}")
    if len(data) % 4 or not _BASE64.fullmatch(data):
        return Picture(fault="its data are not base64")
    kind, width, height = _measure(base64.b64decode(data[: HEAD_BYTES // 3 * 4]))
    if not kind:
        return Picture(fault="it is no PNG, JPEG, GIF or WebP")
    if not 0 < width * height <= MAX_PIXELS:
        return Picture(fault=f"it would be {width} × {height} large")
    return Picture(kind=kind, data=data, width=width, height=height)


def _measure(head: bytes) -> tuple[str, int, int]:
    """Media type, width and height, as the first bytes tell."""
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
