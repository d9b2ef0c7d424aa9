"""Steps: answers of models, kept in the database as soon as they are whole and before they are written.

When a worker dies, its work begins anew in another one, at the place where the session stands. An answer that was kept
and not written yet is given again instead of asking for it again. Answers are found by what they answer: the place in
the session, and how many requests were made there before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from dbos import DBOS
from dbos import error as dbos_error
from msgspec import Struct

from sessiontree.agent.record import SPEAKING
from sessiontree.core.entries import JsonObject
from sessiontree.model.base import Failure, Finished, Model, ModelError, ModelEvent, ModelInfo, Request, cut_off
from sessiontree.session import Branch

NAME = "answer"


class Kept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a request."""

    message: JsonObject | None = None
    kind: Failure | None = None
    """With a failure of the model: which."""
    reason: str = ""
    status: int | None = None
    retry_after: float | None = None

    def result(self, model: str) -> JsonObject:
        """The message. Raises what went wrong."""
        if self.message is not None:
            return self.message
        if self.kind is None:
            raise RuntimeError(self.reason)
        raise ModelError(model, self.kind, self.reason, status=self.status, retry_after=self.retry_after)


class Steps:
    """The steps of one piece of work, taken one after the other."""

    def __init__(self, lost: Callable[[], None]) -> None:
        """`lost` is called when another worker has this work now."""
        self._lost = lost
        self._turn = asyncio.Lock()

    async def take(self, key: str, ask: Callable[[], Awaitable[Kept]]) -> Kept:
        """What `ask` gives, or gave before for the same key."""

        async def step() -> dict[str, Any]:
            return {"key": key, "kept": msgspec.json.encode(await ask()).decode()}

        async with self._turn:
            try:
                while True:
                    # Steps are numbered. What a life before has taken comes first, each with its key.
                    taken = await DBOS.run_step_async({"name": NAME}, step)
                    if taken["key"] == key:
                        return msgspec.json.decode(taken["kept"], type=Kept)
            except dbos_error.DBOSWorkflowConflictIDError:
                self._lost()
                raise asyncio.CancelledError from None
            except dbos_error.DBOSWorkflowCancelledError:
                raise asyncio.CancelledError from None


class KeptModel:
    """A model whose answers are kept."""

    def __init__(
        self, model: Model, branch: Callable[[], Branch], steps: Steps, before: Callable[[], Awaitable[None]]
    ) -> None:
        """For the agent of a branch. `before` is awaited before every request: cancelled there, nothing is written."""
        self._model = model
        self._branch = branch
        self._steps = steps
        self._before = before
        self._asked: dict[str, int] = {}

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        await self._before()
        events: asyncio.Queue[ModelEvent | None] = asyncio.Queue()
        failure: Exception | None = None

        async def ask() -> Kept:
            nonlocal failure
            try:
                return Kept(message=await self._answer(request, events.put_nowait))
            except ModelError as error:
                failure = error
                return Kept(kind=error.kind, reason=error.reason, status=error.status, retry_after=error.retry_after)
            except Exception as error:  # noqa: BLE001 - an adapter may raise anything, and it is raised again below
                failure = error
                return Kept(reason=f"{type(error).__name__}: {error}")

        step = asyncio.create_task(self._steps.take(self._key(request), ask))
        step.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            kept = await step
        finally:
            step.cancel()
            with suppress(asyncio.CancelledError):
                await step
        if failure is not None:
            raise failure
        yield Finished(kept.result(self.info.name))

    async def _answer(self, request: Request, arrived: Callable[[ModelEvent], None]) -> JsonObject:
        message: JsonObject | None = None
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    message = event.message
                else:
                    arrived(event)
        if message is None:
            raise cut_off(self.info.name)
        return message

    def _key(self, request: Request) -> str:
        branch = self._branch()
        place = next((entry.id for entry in branch.session.tree.up(branch.leaf) if entry.type in SPEAKING), "root")
        number = self._asked[place] = self._asked.get(place, 0) + 1
        return f"{place} {number} {len(request.messages)}"
