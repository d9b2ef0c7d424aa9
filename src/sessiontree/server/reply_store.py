"""Replies to requests with an idempotency key, in the work database: shared by servers, and kept over restarts.

A server claims a key before it runs the request, and renews the claim until the reply is stored. If a claim is not
renewed, its server died, and nobody knows whether the request was done.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from sessiontree.core.sanitize import escape_line
from sessiontree.swarm.durable.database import TablesMissing, WorkConnection, WorkDatabase

CLAIM_SECONDS = 30.0
"""Seconds without a renewal after which the server of a claim counts as dead."""
KEPT_SECONDS = 24 * 3600.0
"""Seconds for which a key and its reply are kept."""
CLEANUP_SECONDS = 600.0
"""Seconds between two removals of old replies."""
MAX_REPLY_BYTES = 8 << 20
"""A longer reply is not stored."""

log = logging.getLogger("sessiontree.server")


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A complete response."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


ClaimState: TypeAlias = Literal["claimed", "done", "running", "lost", "reused"]


class Claim(NamedTuple):
    """What is known about a key."""

    state: ClaimState
    """`claimed` is by this call, and `reused` a key of another request."""
    reply: StoredResponse | None = None


class ReplyStore:
    """Stored replies. All methods block, and raise `StoreError`.

    Without the right to use the tables of the work database, nothing is stored: then `is_available` is false.
    """

    def __init__(self, database: WorkDatabase | None = None) -> None:
        self._database = database
        self._is_open = False
        self.is_available = True
        self._cleaned_at = 0.0

    def claim(self, owner: str, key: bytes, request: bytes) -> Claim:
        """Claim a key for a request, unless it is taken."""
        database = self._open()
        if database is None:
            return Claim("claimed")
        values = {"owner": owner, "key": hashlib.sha256(key).hexdigest()}

        def work(connection: WorkConnection) -> Claim:
            if connection.execute(
                "INSERT INTO {t}reply (owner, key, request, seen) VALUES (:owner, :key, :request, {now})"
                " ON CONFLICT (owner, key) DO NOTHING",
                **values,
                request=request.hex(),
            ):
                return Claim("claimed")
            known, reply, is_old = connection.query(
                "SELECT request, reply, seen < {now} - :limit FROM {t}reply WHERE owner = :owner AND key = :key",
                **values,
                limit=CLAIM_SECONDS,
            )[0]
            if known != request.hex():
                return Claim("reused")
            if reply is not None:
                return Claim("done", msgspec.json.decode(reply, type=StoredResponse))
            return Claim("lost" if is_old else "running")

        found = database.run(work)
        if found.state == "claimed":
            self._clean_up(database)
        return found

    def renew(self, owner: str, key: bytes) -> None:
        """Say that the request of a key is still running."""
        self._execute("UPDATE {t}reply SET seen = {now} WHERE owner = :owner AND key = :key", owner, key)

    def store(self, owner: str, key: bytes, reply: StoredResponse) -> None:
        """Store the reply of a key."""
        if len(reply.body) > MAX_REPLY_BYTES:
            self.drop(owner, key)
            return
        self._execute(
            "UPDATE {t}reply SET seen = {now}, reply = :reply WHERE owner = :owner AND key = :key",
            owner,
            key,
            reply=msgspec.json.encode(reply).decode(),
        )

    def drop(self, owner: str, key: bytes) -> None:
        """Forget a key, so that its request can be sent again."""
        self._execute("DELETE FROM {t}reply WHERE owner = :owner AND key = :key", owner, key)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _execute(self, statement: str, owner: str, key: bytes, **values: str) -> None:
        database = self._open()
        if database is not None:
            database.execute(statement, owner=owner, key=hashlib.sha256(key).hexdigest(), **values)

    def _open(self) -> WorkDatabase | None:
        if self._database is None:
            self._database = WorkDatabase()
        if not self._is_open and self.is_available:
            try:
                self._database.migrate()
                self._is_open = True
            except TablesMissing as error:
                log.warning("answers to idempotency keys are not shared: %s", escape_line(str(error)))
                self.is_available = False
        return self._database if self.is_available else None

    def _clean_up(self, database: WorkDatabase) -> None:
        now = time.monotonic()
        if self._cleaned_at == 0.0 or now > self._cleaned_at + CLEANUP_SECONDS:
            self._cleaned_at = now
            database.execute("DELETE FROM {t}reply WHERE seen < {now} - :age", age=KEPT_SECONDS)
