"""The loop: ask the model, carry out what it calls for, write it all down, until there is nothing left to do.

A `Run` is one way through it, from a prompt to the answer. Whatever happens, what has arrived is in the session:
failures of the model are part of the `Outcome`, never an exception in the middle of a turn. Where things are
written is in `record`, tool calls in `calls`, making room in `room`; who starts and stops a run is the `Agent`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from msgspec import Struct

from sessiontree.agent.calls import ABORTED, CUT_OFF, NOT_MADE, carry_out, groups, result_message
from sessiontree.agent.handlers import Handlers
from sessiontree.agent.plain import plain_message, unwritable
from sessiontree.agent.queues import Due
from sessiontree.agent.record import Record
from sessiontree.agent.rescue import Unsaved, fit_message, name_rest, save_in_temporary, save_messages, write_rest
from sessiontree.agent.room import Room
from sessiontree.agent.tool import ToolOutput
from sessiontree.agent.worker import Unwritten, Worker
from sessiontree.core.context import context_at, reach, state_of
from sessiontree.core.entries import (
    Body,
    ContextEdit,
    CustomMessage,
    Entry,
    JsonObject,
    Message,
    ModelChange,
    ThinkingLevelChange,
)
from sessiontree.core.messages import ToolCall, role, stop_reason, string, text, tool_calls
from sessiontree.errors import BranchMoved, OutcomeUnknown, SessionTreeError, StoreError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import (
    BeforeMessage,
    BeforeRequest,
    Event,
    MessageDelta,
    MessageEnd,
    MessageStart,
    Notice,
    RetryScheduled,
    RunEnd,
    RunStart,
    ToolEnd,
    TurnEnd,
    TurnStart,
)
from sessiontree.model.base import (
    Draft,
    Finished,
    Model,
    ModelError,
    ModelEvent,
    Request,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    cut_off,
)
from sessiontree.model.retry import backoff
from sessiontree.ops.ask import GRACE, Stopped
from sessiontree.store.files import discard


class Outcome(Struct, frozen=True, kw_only=True):
    """How a run ended."""

    message: Entry | None = None
    """The model's last message, as it was written."""
    aborted: bool = False
    cancelled: bool = False
    """A handler did not let it happen, or it was aborted before anything was said."""
    error: SessionTreeError | None = None
    """A `ModelError`; `BranchMoved` when the branch was moved meanwhile, and `message` is a late result; `Unsaved`."""
    unsaved: tuple[JsonObject, ...] = ()
    """Messages that arrived and could not be written, oldest first. The agent writes them before its next prompt."""

    @property
    def ok(self) -> bool:
        return not (self.aborted or self.cancelled or self.error)

    @property
    def text(self) -> str:
        """What the model said last."""
        return text(self._said.get("content"))

    @property
    def cut_off(self) -> bool:
        """Whether that ends where it reached its limit."""
        return stop_reason(self._said) == "length"

    @property
    def _said(self) -> JsonObject:
        for message in reversed(self.unsaved):
            if role(message) == "assistant":
                return message
        return {} if self.message is None else _message(self.message)

    def save_to(self, path: str | os.PathLike[str]) -> None:
        """Write what is `unsaved` to a new file, a message a line as JSON. Raises `StoreError`."""
        save_messages(path, self.unsaved)


class _Answer(NamedTuple):
    """The model's message, as far as it has come."""

    message: JsonObject
    error: Exception | None = None
    """What went wrong."""
    begun: bool = True
    """Whether anything had arrived by then."""
    stopped: bool = False
    """Whether it was stopped, since it had no end."""


class _Turn(NamedTuple):
    entry: Entry
    called: bool
    """Whether it called tools, so that the model is to see what they brought."""
    error: Exception | None
    begun: bool


class Run:
    def __init__(self, agent: Worker, record: Record, system: str) -> None:
        self.agent = agent
        self.record = record
        self._system = system
        self._room = Room(agent, record, system)
        self._hooks = agent.hooks
        self._signal = agent.stop.signal
        self._handlers = Handlers(agent.hooks, self._signal)
        self._broken = 0
        """How many streams in a row broke off."""

    async def through(self, opening: Sequence[Body], *, prompted: bool = False, waiting: bool = False) -> Outcome:
        """Say what opens the run, and go on until the model has answered.

        A prompt has before it what waited for it; with `waiting`, what would be said at the end of a run opens it.
        """
        await self._handlers.tell(RunStart())
        error: BaseException | None = None
        try:
            outcome = await self._loop(opening, prompted=prompted, waiting=waiting)
            error = outcome.error
            return outcome
        except BaseException as raised:
            error = raised
            raise
        finally:
            await self._handlers.tell(RunEnd(aborted=self._signal.aborted, error=None if error is None else str(error)))

    async def _loop(self, opening: Sequence[Body], *, prompted: bool, waiting: bool) -> Outcome:
        last: Entry | None = None
        opened, recovered, count = False, False, 0
        try:
            await self._room.make()
            held = self.agent.queues.take("next_turn") if prompted else []
            await self._say(Due("next_turn", held), opening)
            if waiting and not await self._said_more(run_ends=True):
                return Outcome(cancelled=True, aborted=self._signal.aborted)
            opened = True
            while not self._signal.aborted and not self.record.left():
                count += 1
                turn = await self._turn(count)
                last = turn.entry
                if self.record.moved is not None:
                    break
                if turn.error is not None:
                    if not recovered and await self._recovered(turn):
                        recovered = True
                        continue
                    if await self._retried(turn):
                        continue
                    if isinstance(turn.error, SessionTreeError):
                        return Outcome(message=last, error=turn.error)
                    raise turn.error
                recovered, self._broken = False, 0
                if not await self._said_more(run_ends=not turn.called) and not turn.called:
                    break
            return Outcome(message=last, error=self.record.moved, aborted=self._signal.aborted)
        except BranchMoved as moved:
            if last is None:
                raise
            return Outcome(message=last, error=moved)
        except Unsaved as error:
            return Outcome(message=last, error=error, unsaved=error.messages)
        except Stopped as stopped:
            return Outcome(message=last, aborted=stopped.aborted, cancelled=not (opened and stopped.aborted))

    async def _said_more(self, *, run_ends: bool) -> bool:
        """Between two requests, or where the run would end: say what waits, and make room."""
        while not self._signal.aborted:
            due = self.agent.queues.due(run_ends=run_ends)
            if due.messages:
                await self._say(due)
                await self._handlers.tell(self.agent.queues.changed())
            await self._room.make()
            if due.messages or not run_ends or not self.agent.queues.has_due:
                return bool(due.messages)
        return False

    async def _turn(self, count: int) -> _Turn:
        await self._handlers.tell(TurnStart(number=count))
        answer = await self._answer()
        entry = await self._keep(Message(answer.message))
        results: list[Entry] = []
        if answer.error is None and stop_reason(answer.message) != "aborted":
            results = await self._call_tools(_message(entry))
        await self._handlers.tell(TurnEnd(number=count, message=entry, tool_results=tuple(results)))
        await self.write_annexes()
        return _Turn(entry, bool(results) and not answer.stopped, answer.error, answer.begun)

    # Asking the model

    async def _answer(self) -> _Answer:
        """What the model answers. Raises `Stopped` before it is asked."""
        if self._signal.aborted:
            raise Stopped(aborted=True)
        context = context_at(self.record.branch.session.tree, self.record.follow())
        asked, answer = await self._handlers.ask(BeforeRequest(messages=context.to_llm(), system=self._system))
        if answer.cancel:
            raise Stopped(aborted=False)
        request = Request(
            messages=asked.messages,
            system=asked.system,
            tools=tuple(tool.spec for tool in self.agent.tools.values()),
            thinking=self.agent.thinking,
        )
        model = self.agent.model
        draft = Draft(model.info)
        try:
            await self.agent.stop.start(self._stream(model, request, draft))
        except asyncio.CancelledError:
            if not self._signal.aborted:
                raise
            return _Answer(plain_message(draft.message("aborted", "the run was aborted")))
        except ModelError as error:
            return _Answer(plain_message(draft.message("error", error.reason)), error, draft.begun)
        except _Endless:
            limit = self.agent.settings.answer_limit
            text = f"{model.info.name}: the answer was stopped after {limit} bytes (`answer_limit` in config.toml)"
            self._hooks.show(Notice(level="warning", text=text))
            return _Answer(plain_message(draft.message("length")), stopped=True)
        except Exception as error:  # noqa: BLE001 - it is raised again, once what has arrived is written
            return _Answer(plain_message(draft.message("error", f"{type(error).__name__}: {error}")), error)
        message = plain_message(draft.message())
        if stop_reason(message) == "error":
            reason = string(message.get("errorMessage")) or "the provider stopped the answer"
            return _Answer(message, ModelError(model.info.name, "rejected", reason))
        return _Answer(message, self._room.overflow(message))

    async def _stream(self, model: Model, request: Request, draft: Draft) -> None:
        await self._hooks.tell(MessageStart(role="assistant"))
        limit = self.agent.settings.answer_limit
        finished = False
        async with aclosing(model.stream(request)) as events:
            async for event in events:
                draft.take(event)
                delta = _delta(event)
                if delta is not None:
                    await self._hooks.tell(delta)
                finished = finished or isinstance(event, Finished)
                if draft.size > limit and not finished:
                    raise _Endless
        if not finished:
            raise cut_off(model.info.name)

    async def _retried(self, turn: _Turn) -> bool:
        """After a stream that broke off in the middle: wait, and say whether the model is to be asked again.

        Models see to failures before that themselves. Raises `Stopped` if the wait was given up.
        """
        error, retry = turn.error, self.agent.settings.retry
        if not (isinstance(error, ModelError) and error.passing and turn.begun):
            return False
        self._broken += 1
        delay = backoff(error, self._broken, retry.base_delay)
        if self._broken >= retry.attempts or delay is None:
            return False
        scheduled = RetryScheduled(attempt=self._broken, attempts=retry.attempts, delay=delay, error=str(error))
        self._hooks.show(scheduled)
        try:
            await self.agent.stop.start(asyncio.sleep(delay))
        except asyncio.CancelledError:
            if not self._signal.aborted:
                raise
            raise Stopped(aborted=True) from None
        return True

    # Carrying out what it calls for

    async def _call_tools(self, message: JsonObject) -> list[Entry]:
        """Carry out the calls in a message as it was written.

        Results are written in the order of their calls, each as soon as those before it are there.
        """
        not_whole = stop_reason(message) == "length"
        results: list[Entry] = []
        for group in groups(tool_calls(message), self.agent.tools):
            begun = [(call, None if not_whole else self._called(call)) for call in group]
            while begun:
                call, task = begun.pop(0)
                output = CUT_OFF if not_whole else await self._output(task)
                try:
                    entry = await self._keep(result_message(call, output))
                except Unsaved as error:
                    others = [result_message(call, await self._output(task)).message for call, task in begun]
                    raise (await self._unsaved(error.cause, others, error) if others else error) from error
                await self._handlers.tell(ToolEnd(call=call, entry=entry))
                results.append(entry)
        return results

    def _called(self, call: ToolCall) -> asyncio.Task[ToolOutput] | None:
        if self._signal.aborted:
            return None
        agent = self.agent
        work = carry_out(
            call,
            agent.tools,
            self._hooks,
            cwd=agent.cwd,
            signal=self._signal,
            agent=agent,
            permissions=agent.permissions,
        )
        return agent.stop.start(work)

    async def _output(self, task: asyncio.Task[ToolOutput] | None) -> ToolOutput:
        if task is None:
            return NOT_MADE
        aborted = asyncio.create_task(self._signal.wait())
        await asyncio.wait([task, aborted], return_when=asyncio.FIRST_COMPLETED)
        aborted.cancel()
        if not task.done():
            await asyncio.wait([task], timeout=GRACE)
        return task.result() if task.done() and not task.cancelled() else ABORTED

    # Writing

    async def _say(self, due: Due, further: Sequence[Body] = ()) -> None:
        """Write what users and extensions say, and before it the settings that hold from here on.

        If nothing is written, what was due waits again, without what a handler did not let be said.
        """
        bodies = self._settings()
        waiting = list(due.messages)
        try:
            for said in (*due.messages, *further):
                try:
                    bodies.append(await self._before(said))
                except Stopped as stopped:
                    if not stopped.aborted:
                        waiting = [other for other in waiting if other is not said]
                    raise
            entries = await self.record.extend(bodies) if bodies else []
        except Exception:
            if due.messages:
                self.agent.queues.put_back(due._replace(messages=waiting))
                await self._handlers.tell(self.agent.queues.changed())
            raise
        for entry in entries:
            await tell_written(self._handlers.tell, entry)

    async def _keep(self, message: Message) -> Entry:
        """Write what was paid for, late if need be, and as much of it as fits. Raises `Unsaved` where that fails."""
        body = await self._before(message)
        assert isinstance(body, Message)
        try:
            entry = await write_fitted(self.record, body.message, self._hooks)
        except StoreError as error:
            raise await self._unsaved(error, [body.message]) from error
        await tell_written(self._handlers.tell, entry)
        return entry

    async def _unsaved(
        self, cause: StoreError, messages: Sequence[JsonObject], before: Unsaved | None = None
    ) -> Unsaved:
        """Hold messages that could not be written, to be written before the next run, and save them elsewhere.

        What is said of those that could not be written `before` them is said of all.
        """
        if before is not None or not isinstance(cause, OutcomeUnknown):  # a write that may be done is not done again
            self.agent.unwritten.extend(Unwritten(self.record, message) for message in messages)
        if before is not None:
            messages = [*before.messages, *messages]
        path = await asyncio.to_thread(save_in_temporary, messages)
        if path is not None and before is not None and before.path is not None:
            await asyncio.to_thread(discard, before.path)
        return Unsaved(cause, messages, path)

    async def _write(self, body: Body) -> Entry:
        """Write what has come of the run, late if need be."""
        (entry,) = await self.record.extend_or_late([await self._before(body)])
        await tell_written(self._handlers.tell, entry)
        return entry

    async def write_annexes(self) -> None:
        """Write what waited for the end of the turn, and what comes while that is done."""
        annexes = self.agent.queues.annexes
        while annexes:
            await self._write(annexes[0])
            del annexes[0]

    async def _before(self, body: Body) -> Body:
        if not isinstance(body, Message):
            return body
        users = role(body.message) == "user"
        try:
            event, answer = await self._handlers.ask(BeforeMessage(message=body.message))
        except Stopped:
            if users:
                raise
            return body  # it has come of the run, and is written
        if answer.cancel and users:
            raise Stopped(aborted=False)
        if event.message is body.message:
            return body
        same_role = role(event.message) == role(body.message)
        fault = unwritable(event.message) if same_role else "it has another role"
        if fault is not None:
            text = f"a handler changed a message, which stays as it was: {fault}"
            self._hooks.show(Notice(level="error", text=text))
            return body
        return Message(event.message)

    def _settings(self) -> list[Body]:
        """The model and the thinking level, where the path says otherwise."""
        state = state_of(reach(self.record.branch.session.tree, self.record.follow()))
        info = self.agent.model.info
        changes: list[Body] = []
        if (state.provider, state.model) != (info.provider, info.model):
            changes.append(ModelChange(provider=info.provider, model=info.model))
        if state.thinking_level != self.agent.thinking:
            changes.append(ThinkingLevelChange(self.agent.thinking))
        return changes

    async def _recovered(self, turn: _Turn) -> bool:
        """After an answer that failed since the conversation is too long: whether it is short enough to ask again.

        Raises `Stopped` if that was given up.
        """
        if not isinstance(turn.error, ModelError) or turn.error.kind != "overflow" or not self._room.enabled:
            return False
        await self.record.extend([ContextEdit(target=turn.entry.id, replacement=None)])
        made = await self._room.make_after_overflow()
        if not made and self._signal.aborted:
            raise Stopped(aborted=True)
        return made


class _Endless(Exception):
    """An answer is longer than any may be."""


async def write_fitted(record: Record, message: JsonObject, hooks: Hooks) -> Entry:
    """Write a message, late if need be. One that is too long for an entry has its rest in a file, and names it.

    Raises `StoreError`.
    """
    fitted = fit_message(message)
    if fitted.rest:
        path, size = await asyncio.to_thread(write_rest, record.branch.session, fitted.rest)
        message = name_rest(fitted, path, size)
        text = f"a message is too long for one entry: its remaining {size} bytes are in {path}"
        hooks.show(Notice(level="warning", text=text))
    (entry,) = await record.extend_or_late([Message(message)])
    return entry


async def tell_written(tell: Callable[[Event], Awaitable[None]], entry: Entry) -> None:
    """Tell of a message that was written. The model's own began when it began to arrive."""
    if isinstance(entry.body, Message | CustomMessage):
        said_by = role(entry.body.message) if isinstance(entry.body, Message) else "custom"
        if said_by != "assistant":
            await tell(MessageStart(role=said_by))
        await tell(MessageEnd(entry=entry))


def _message(entry: Entry) -> JsonObject:
    return entry.body.message if isinstance(entry.body, Message) else {}


def _delta(event: ModelEvent) -> MessageDelta | None:
    match event:
        case TextDelta(text):
            return MessageDelta(kind="text", text=text)
        case ThinkingDelta(text):
            return MessageDelta(kind="thinking", text=text)
        case ToolCallStart(id, name):
            return MessageDelta(kind="tool_call", text="", call=id, name=name)
        case ToolCallDelta(id, arguments):
            return MessageDelta(kind="tool_call", text=arguments, call=id)
        case ToolCallEnd() | Finished():
            return None
