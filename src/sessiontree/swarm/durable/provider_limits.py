"""Limits of providers that all workers of a work database share: calls at the same time, and calls per minute.

Each call of a model has a row while it runs, and for a minute after it began. Rows of dead workers do not count. A row
of the provider makes workers look one after the other.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress

from sessiontree.config import ProviderLimits
from sessiontree.errors import StoreError
from sessiontree.model.base import Model, ModelEvent, ModelInfo, Request
from sessiontree.swarm.durable.database import WorkConnection, WorkDatabase

WINDOW = 60.0
"""Seconds in which calls per minute are counted."""
POLL_SECONDS = 0.5
"""Seconds between two attempts to begin a call. A few agents of a worker wait at the same time."""

_IS_DEAD = "NOT EXISTS (SELECT 1 FROM {t}worker AS w WHERE w.id = worker AND w.seen >= {now} - w.lease)"


class CallCounter:
    """The calls of models that workers make. All methods raise `StoreError`."""

    def __init__(self, database: WorkDatabase) -> None:
        self._database = database

    def begin(self, id: str, provider: str, worker: str, limits: ProviderLimits) -> bool:
        """Add a call. Return false, with nothing added, if the limits of the provider are reached."""

        def work(connection: WorkConnection) -> bool:
            if not connection.execute("UPDATE {t}provider SET name = name WHERE name = :name", name=provider):
                connection.execute(
                    "INSERT INTO {t}provider VALUES (:name) ON CONFLICT (name) DO NOTHING", name=provider
                )
                connection.execute("UPDATE {t}provider SET name = name WHERE name = :name", name=provider)
            connection.execute(
                "DELETE FROM {t}call WHERE provider = :name AND began < {now} - :window"
                f" AND (ended IS NOT NULL OR {_IS_DEAD})",
                name=provider,
                window=WINDOW,
            )
            running, recent = connection.query(
                f"SELECT coalesce(sum(CASE WHEN ended IS NULL AND NOT {_IS_DEAD} THEN 1 ELSE 0 END), 0),"
                " coalesce(sum(CASE WHEN began >= {now} - :window THEN 1 ELSE 0 END), 0)"
                " FROM {t}call WHERE provider = :name",
                name=provider,
                window=WINDOW,
            )[0]
            if limits.concurrent is not None and running >= limits.concurrent:
                return False
            if limits.per_minute is not None and recent >= limits.per_minute:
                return False
            connection.execute(
                "INSERT INTO {t}call VALUES (:id, :name, :worker, {now}, NULL) ON CONFLICT (id) DO NOTHING",
                id=id,
                name=provider,
                worker=worker,
            )
            return True

        return self._database.run(work)

    def end(self, id: str) -> None:
        self._database.execute("UPDATE {t}call SET ended = {now} WHERE id = :id", id=id)


class ProviderGate:
    """Lets calls of this worker through when the limits of their providers allow it."""

    def __init__(self, counter: CallCounter, worker: str, limits: Mapping[str, ProviderLimits]) -> None:
        self._counter = counter
        self._worker = worker
        self._limits = limits

    def wrap(self, model: Model, is_unwanted: Callable[[], bool]) -> Model:
        """Return a model that waits for its turn, or the same one if its provider has no limits.

        A call that waits is cancelled when `is_unwanted` returns true.
        """
        return LimitedModel(model, self, is_unwanted) if model.info.provider in self._limits else model

    @asynccontextmanager
    async def call(self, provider: str, is_unwanted: Callable[[], bool]) -> AsyncGenerator[None]:
        """Wait until a call may begin. It ends with the context."""
        id = os.urandom(8).hex()
        try:
            while not await self._try_begin(id, provider):
                await asyncio.sleep(POLL_SECONDS * random.uniform(0.5, 1.5))
                if is_unwanted():
                    raise asyncio.CancelledError
            yield
        finally:
            await asyncio.shield(asyncio.create_task(self._end(id)))

    async def _try_begin(self, id: str, provider: str) -> bool:
        with suppress(StoreError):  # the lease limits how long the worker waits for the database
            return await asyncio.to_thread(self._counter.begin, id, provider, self._worker, self._limits[provider])
        return False

    async def _end(self, id: str) -> None:
        with suppress(StoreError):  # the call counts until this worker ends
            await asyncio.to_thread(self._counter.end, id)


class LimitedModel:
    """A model whose calls wait for the limits of its provider."""

    def __init__(self, model: Model, gate: ProviderGate, is_unwanted: Callable[[], bool]) -> None:
        self._model = model
        self._gate = gate
        self._is_unwanted = is_unwanted

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        gate = self._gate.call(self.info.provider, self._is_unwanted)
        async with gate, aclosing(self._model.stream(request)) as events:
            async for event in events:
                yield event
