"""Idempotency: a request that is sent again with the same key is not done again, and has the same answer.

The last answers are kept, in the memory of this process alone: another server does the request again. Two requests with
one key at once are done once, and a key is its token's own. No HTTP here beyond statuses: what a request is, is told by
its fingerprint.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from sessiontree.web.refusals import Refused

KEPT = 1000
"""Answers that are kept at most."""
KEPT_BYTES = 32 << 20
LONGEST_KEY = 200
AGAIN = (408, 412, 429)
"""Refusals after which the same request may be sent again, once there is time or what it has seen is seen anew."""


class Replied(Struct, frozen=True, kw_only=True):
    """A whole answer."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class _Kept(Struct):
    fingerprint: bytes
    reply: asyncio.Future[Replied]
    size: int = 0


def fingerprint(*parts: bytes) -> bytes:
    """What tells one request from another."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


class Replies:
    """The answers to requests that carried a key. For one event loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, bytes], _Kept] = OrderedDict()
        self._size = 0

    async def once(
        self, owner: str, key: bytes, request: bytes, do: Callable[[], Awaitable[Replied]]
    ) -> tuple[Replied, bool]:
        """The answer, and whether it is one from before. Raises `Refused` for a key that was another request's."""
        if not key or len(key) > LONGEST_KEY:
            raise Refused(400, f"an idempotency key has 1 to {LONGEST_KEY} characters")
        known = self._kept.get((owner, key))
        if known is not None:
            if known.fingerprint != request:
                raise Refused(422, "this idempotency key was another request's", code="key_reused")
            return await asyncio.shield(known.reply), True
        kept = _Kept(request, asyncio.get_running_loop().create_future())
        self._kept[owner, key] = kept
        try:
            reply = await do()
        except BaseException as error:
            self._forget(owner, key)
            if not kept.reply.done():
                kept.reply.set_exception(error if isinstance(error, Exception) else Refused(503, "it was given up"))
                kept.reply.exception()  # nobody need be waiting for it
            raise
        kept.reply.set_result(reply)
        if reply.status >= 500 or reply.status in AGAIN:
            self._forget(owner, key)
        else:
            kept.size = len(reply.body)
            self._size += kept.size
            self._make_room()
        return reply, False

    def _forget(self, owner: str, key: bytes) -> None:
        kept = self._kept.pop((owner, key), None)
        if kept is not None:
            self._size -= kept.size

    def _make_room(self) -> None:
        for owner, key in list(self._kept):
            if len(self._kept) <= KEPT and self._size <= KEPT_BYTES:
                return
            if self._kept[owner, key].reply.done():
                self._forget(owner, key)
