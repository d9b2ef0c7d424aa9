"""Originals: the bytes of foreign files, kept in the sessions that were imported from them.

A file is kept in pieces, each in a separate entry, compressed. So an unchanged import is written back byte for byte,
including data that has no meaning here.
"""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator

from sessiontree.core.entries import Body, EntryId, Original
from sessiontree.errors import FormatError

PIECE_SIZE = 4 << 20
"""How many bytes of a file one entry holds."""


def build_originals(
    program: str, file: str, blocks: Iterable[bytes], heads: dict[str, EntryId | None], offset: int = 0
) -> Iterator[Original]:
    """Yield the entries for a file from `offset` on, given its bytes. The last one has the heads."""
    last: Original | None = None
    for piece in _split_pieces(blocks):
        if last is not None:
            yield last
        content = b64encode(zlib.compress(piece, 3)).decode()
        last = Original(program=program, file=file, offset=offset, size=len(piece), content=content)
        offset += len(piece)
    last = last or Original(program=program, file=file, offset=offset)
    yield Original(
        program=program, file=file, offset=last.offset, size=last.size, content=last.content, heads=dict(heads)
    )


def _split_pieces(blocks: Iterable[bytes]) -> Iterator[bytes]:
    piece = bytearray()
    for block in blocks:
        piece += block
        while len(piece) >= PIECE_SIZE:
            yield bytes(piece[:PIECE_SIZE])
            del piece[:PIECE_SIZE]
    if piece:
        yield bytes(piece)


def read_originals(bodies: Iterable[Body]) -> dict[str, bytes]:
    """Return the files that a session was imported from, given the bodies of its `original` entries in order.

    A piece that starts at 0 begins a file again: the program had rewritten it. Raises `FormatError` for damage.
    """
    files: dict[str, bytearray] = {}
    for body in bodies:
        if not isinstance(body, Original):
            continue
        if not body.offset:
            files[body.file] = bytearray()
        found = files.setdefault(body.file, bytearray())
        piece = decode_piece(body)
        if len(found) != body.offset or len(piece) != body.size:
            raise FormatError(body.file, "a piece of the original is missing or damaged")
        found += piece
    return {name: bytes(data) for name, data in files.items()}


def decode_piece(body: Original) -> bytes:
    """Return the bytes of a piece. Raises `FormatError` for damage."""
    if not body.content:
        return b""
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(b64decode(body.content, validate=True), PIECE_SIZE + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise FormatError(body.file, f"a piece of the original is damaged: {error}") from None
    return data
