"""Exactly-once writes: a session that never writes an entry twice, and a store for model answers.

When a worker dies, another worker runs its job again from the state of the session. `IdempotentSession` derives the id
of an entry from the job, the entry's position and its content: if two workers write the same entry, or a worker lost
the database's reply to a write, the entry exists once. `AnswerStore` saves each model answer before it is written to
the session, so a new worker does not pay for it again. Answers are found by their position in the session and the
number of earlier requests there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from hashlib import sha256
from typing import TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from sessiontree.agent.run_writer import CONVERSATION_TYPES
from sessiontree.core.entries import Body, Entry, EntryId, JsonObject
from sessiontree.errors import BranchMoved, InvalidOperation, OutcomeUnknown, StoreError
from sessiontree.library import catalog
from sessiontree.model.base import (
    FailureKind,
    Finished,
    Model,
    ModelError,
    ModelEvent,
    ModelInfo,
    Request,
    build_cut_off_error,
)
from sessiontree.session import Branch, Item, Place, Session
from sessiontree.store.base import Store

RETRY_SECONDS = 1.0
"""Seconds between two attempts to reach the database."""
T = TypeVar("T")


class IdempotentSession(Session):
    """A session for one job, in which repeated writes have no effect."""

    def __init__(self, store: Store, job_id: str, before_write: Callable[[], object] = lambda: None) -> None:
        super().__init__(store)
        self._job_id = job_id
        self.before_write = before_write
        """Called before every write. It may raise to prevent it."""

    @classmethod
    def open_at(cls, where: str, job_id: str) -> IdempotentSession:
        """Open the session at a path or an address."""
        return cls(catalog.get_store(catalog.find(where)), job_id)

    def append(
        self,
        body: Body,
        *,
        parent: Place | UnsetType = UNSET,
        branch: str | UnsetType | None = UNSET,
        extra: JsonObject | None = None,
        expected: EntryId | UnsetType | None = UNSET,
    ) -> Entry:
        return self.extend([Item(body, extra)], parent=parent, branch=branch, expected=expected)[0]

    def extend(
        self,
        bodies: Iterable[Body | Item],
        *,
        parent: Place | UnsetType = UNSET,
        branch: str | UnsetType | None = UNSET,
        expected: EntryId | UnsetType | None = UNSET,
    ) -> Sequence[Entry]:
        with self.hold_lock():
            items = self._assign_ids(bodies, self._resolve_parent(parent, branch, expected))
            written = self._find_written_items(items)
            if written is not None:
                return written
            self.before_write()
            try:
                return super().extend(items, parent=parent, branch=branch, expected=expected)
            except (BranchMoved, InvalidOperation, OutcomeUnknown):
                self.refresh()
                written = self._find_written_items(items)
                if written is None:
                    raise
                return written

    def _is_at_last_line(self) -> bool:
        # Only other programs that read a file need a head record at its end. In a database, it would be in the way of
        # other agents, and the process that runs the swarm writes one.
        return self.store.path is None or super()._is_at_last_line()

    def _resolve_parent(
        self, parent: Place | UnsetType, branch: str | UnsetType | None, expected: EntryId | UnsetType | None
    ) -> EntryId | None:
        """Return the parent of the first entry, as far as this process knows."""
        if not isinstance(parent, UnsetType):
            return self.resolve_place(parent)
        if not isinstance(expected, UnsetType):
            return expected
        return self.heads.heads.get(branch) if isinstance(branch, str) else self.heads.leaf

    def _assign_ids(self, bodies: Iterable[Body | Item], place: EntryId | None) -> list[Item]:
        items = [body if isinstance(body, Item) else Item(body) for body in bodies]
        state, named = self._load(), list[Item]()
        is_after_loaded = place is not None and state.tree.has_loaded(place)
        for item in items:
            content = msgspec.json.encode([item.body, item.extra], order="deterministic", enc_hook=str)
            place = item.id or sha256(f"{self._job_id}\0{place}\0".encode() + content).hexdigest()[:16]
            if is_after_loaded and item.id is None:
                state.note_absent([place])  # it is written after the place that it is computed from, or not at all
            named.append(item._replace(id=place))
        return named

    def _find_written_items(self, items: Sequence[Item]) -> list[Entry] | None:
        """Return the entries if they are already written. They were written all together or not at all."""
        found = [self.tree[item.id] for item in items if item.id is not None and item.id in self.tree]
        return found if items and len(found) == len(items) else None


class StoredAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a model request."""

    message: JsonObject | None = None
    kind: FailureKind | None = None
    """The kind of failure, for a `ModelError`."""
    reason: str = ""
    status: int | None = None
    retry_after: float | None = None

    def get_message(self, model: str) -> JsonObject:
        """Return the message, or raise the error that the request failed with."""
        if self.message is not None:
            return self.message
        if self.kind is None:
            raise RuntimeError(self.reason)
        raise ModelError(model, self.kind, self.reason, status=self.status, retry_after=self.retry_after)


class AnswerStore:
    """Stores the model answers of one job. An answer that is stored is never asked for again."""

    def __init__(
        self,
        load: Callable[[], dict[str, str]],
        store: Callable[[str, str], bool],
        on_lost: Callable[[], None],
    ) -> None:
        """`load` returns the stored answers, and `store` adds one; it returns false if another worker runs this job.

        Both run in threads. `on_lost` is called if another worker runs this job.
        """
        self._load, self._store, self._on_lost = load, store, on_lost
        self._known: dict[str, str] | None = None
        self._lock = asyncio.Lock()

    async def get_or_ask(self, key: str, ask: Callable[[], Awaitable[StoredAnswer]]) -> StoredAnswer:
        """Return the stored answer for a key, or call `ask` and store its answer."""
        async with self._lock:
            if self._known is None:
                self._known = await _retry(self._load)
            known = self._known.get(key)
            if known is not None:
                return msgspec.json.decode(known, type=StoredAnswer)
            answer = await ask()
            # It is paid for: a cancelled run must not lose it.
            await asyncio.shield(asyncio.create_task(self._keep(key, msgspec.json.encode(answer).decode())))
            return answer

    async def _keep(self, key: str, text: str) -> None:
        assert self._known is not None
        self._known[key] = text
        if not await _retry(partial(self._store, key, text)):
            self._on_lost()
            raise asyncio.CancelledError


async def _retry(function: Callable[[], T]) -> T:
    """Call a function in a thread until the database can be reached. The worker's lease limits how long that takes."""
    while True:
        with suppress(StoreError):
            return await asyncio.to_thread(function)
        await asyncio.sleep(RETRY_SECONDS)


class StoringModel:
    """A model whose answers are stored before they are returned."""

    def __init__(
        self,
        model: Model,
        get_branch: Callable[[], Branch],
        answers: AnswerStore,
        before_request: Callable[[], Awaitable[None]],
    ) -> None:
        """`get_branch` returns the agent's branch. `before_request` is awaited before requests and may cancel them."""
        self._model = model
        self._get_branch = get_branch
        self._answers = answers
        self._before_request = before_request
        self._request_counts: dict[str, int] = {}

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        await self._before_request()
        events: asyncio.Queue[ModelEvent | None] = asyncio.Queue()
        failure: Exception | None = None

        async def ask() -> StoredAnswer:
            nonlocal failure
            try:
                return StoredAnswer(message=await self._ask_model(request, events.put_nowait))
            except ModelError as error:
                failure = error
                return StoredAnswer(
                    kind=error.kind, reason=error.reason, status=error.status, retry_after=error.retry_after
                )
            except Exception as error:  # noqa: BLE001 - an adapter may raise anything; it is raised again below
                failure = error
                return StoredAnswer(reason=f"{type(error).__name__}: {error}")

        step = asyncio.create_task(self._answers.get_or_ask(self._build_key(request), ask))
        step.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            answer = await step
        finally:
            step.cancel()
            with suppress(asyncio.CancelledError):
                await step
        if failure is not None:
            raise failure
        yield Finished(answer.get_message(self.info.name))

    async def _ask_model(self, request: Request, on_event: Callable[[ModelEvent], None]) -> JsonObject:
        message: JsonObject | None = None
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    message = event.message
                else:
                    on_event(event)
        if message is None:
            raise build_cut_off_error(self.info.name)
        return message

    def _build_key(self, request: Request) -> str:
        branch = self._get_branch()
        place = next(
            (entry.id for entry in branch.session.tree.walk_up(branch.leaf) if entry.type in CONVERSATION_TYPES), "root"
        )
        number = self._request_counts[place] = self._request_counts.get(place, 0) + 1
        return f"{place} {number} {len(request.messages)}"
