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

from sessiontree.server.http_errors import ApiError

MAX_STORED_RESPONSES = 1000
"""Answers that are kept at most."""
MAX_STORED_BYTES = 32 << 20
MAX_KEY_LENGTH = 200
RETRYABLE_STATUSES = (408, 412, 429)
"""Refusals after which the same request may be sent again, once there is time or what it has seen is seen anew."""


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A whole answer."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class _CachedRequest(Struct):
    fingerprint: bytes
    response: asyncio.Future[StoredResponse]
    size: int = 0


def compute_fingerprint(*parts: bytes) -> bytes:
    """What tells one request from another."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


class IdempotencyCache:
    """The answers to requests that carried a key. For one event loop."""

    def __init__(self) -> None:
        self._requests: OrderedDict[tuple[str, bytes], _CachedRequest] = OrderedDict()
        self._size = 0

    async def run_once(
        self, owner: str, key: bytes, request: bytes, do: Callable[[], Awaitable[StoredResponse]]
    ) -> tuple[StoredResponse, bool]:
        """The answer, and whether it is one from before. Raises `Refused` for a key that was another request's."""
        if not key or len(key) > MAX_KEY_LENGTH:
            raise ApiError(400, f"an idempotency key has 1 to {MAX_KEY_LENGTH} characters")
        known = self._requests.get((owner, key))
        if known is not None:
            if known.fingerprint != request:
                raise ApiError(422, "this idempotency key was another request's", code="key_reused")
            return await asyncio.shield(known.response), True
        kept = _CachedRequest(request, asyncio.get_running_loop().create_future())
        self._requests[owner, key] = kept
        try:
            reply = await do()
        except BaseException as error:
            self._forget(owner, key)
            if not kept.response.done():
                kept.response.set_exception(error if isinstance(error, Exception) else ApiError(503, "it was given up"))
                kept.response.exception()  # nobody need be waiting for it
            raise
        kept.response.set_result(reply)
        if reply.status >= 500 or reply.status in RETRYABLE_STATUSES:
            self._forget(owner, key)
        else:
            kept.size = len(reply.body)
            self._size += kept.size
            self._evict()
        return reply, False

    def _forget(self, owner: str, key: bytes) -> None:
        kept = self._requests.pop((owner, key), None)
        if kept is not None:
            self._size -= kept.size

    def _evict(self) -> None:
        for owner, key in list(self._requests):
            if len(self._requests) <= MAX_STORED_RESPONSES and self._size <= MAX_STORED_BYTES:
                return
            if self._requests[owner, key].response.done():
                self._forget(owner, key)
