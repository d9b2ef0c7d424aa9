"""The agent loop: request an answer, run its tool calls, write everything, and repeat until there is nothing to do.

An `AgentRun` goes from a prompt to the final answer. All partial results are written to the session. Failures of the
model are part of the `Outcome`, not exceptions. Writing is in `run_writer`, tool calls in `tool_execution`, compaction
in `autocompact`; the `Agent` starts and stops runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from msgspec import Struct

from sessiontree.agent.abort import AbortableHooks
from sessiontree.agent.autocompact import AutoCompactor
from sessiontree.agent.jsonable import find_write_problem, make_message_jsonable
from sessiontree.agent.queues import DueMessages
from sessiontree.agent.run_protocol import PendingWrite, RunHost
from sessiontree.agent.run_writer import RunWriter
from sessiontree.agent.tool import ToolOutput
from sessiontree.agent.tool_execution import (
    ABORTED_OUTPUT,
    CUT_OFF_OUTPUT,
    NOT_RUN_OUTPUT,
    build_result_message,
    group_calls,
    run_tool_call,
)
from sessiontree.agent.unsaved_messages import (
    UnsavedMessages,
    add_overflow_note,
    fit_message,
    save_messages,
    save_to_temporary_file,
    write_overflow,
)
from sessiontree.core.context import build_shared_context, find_context_path, read_state
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
from sessiontree.core.messages import ToolCall, coerce_string, extract_text, get_role, get_stop_reason, get_tool_calls
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
    Finished,
    Model,
    ModelError,
    ModelEvent,
    PartialMessage,
    Request,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    build_cut_off_error,
)
from sessiontree.model.retry import compute_backoff
from sessiontree.ops.hook_requests import GRACE_SECONDS, OperationStopped
from sessiontree.store.files import discard


class Outcome(Struct, frozen=True, kw_only=True):
    """How a run ended."""

    message: Entry | None = None
    """The last message of the model, as written."""
    aborted: bool = False
    cancelled: bool = False
    """Whether a handler cancelled the run, or it was aborted before the prompt was written."""
    error: SessionTreeError | None = None
    """`ModelError`, `UnsavedMessages`, or `BranchMoved` if the branch was moved and `message` is a late entry."""
    unsaved: tuple[JsonObject, ...] = ()
    """Messages that could not be written, oldest first. The agent writes them before its next prompt."""

    @property
    def ok(self) -> bool:
        return not (self.aborted or self.cancelled or self.error)

    @property
    def text(self) -> str:
        """The text of the last message of the model."""
        return extract_text(self._last_answer.get("content"))

    @property
    def cut_off(self) -> bool:
        """Whether the last message ends at its length limit."""
        return get_stop_reason(self._last_answer) == "length"

    @property
    def _last_answer(self) -> JsonObject:
        for message in reversed(self.unsaved):
            if get_role(message) == "assistant":
                return message
        return {} if self.message is None else _get_message(self.message)

    def save_to(self, path: str | os.PathLike[str]) -> None:
        """Write the `unsaved` messages to a new file, one JSON object per line. Raises `StoreError`."""
        save_messages(path, self.unsaved)


class _ModelAnswer(NamedTuple):
    """A message of the model, complete or partial."""

    message: JsonObject
    error: Exception | None = None
    stream_started: bool = True
    """Whether the stream had started when the error occurred."""
    truncated: bool = False
    """Whether the agent stopped an answer that exceeded `answer_limit`."""


class _Turn(NamedTuple):
    entry: Entry
    has_tool_calls: bool
    """Whether there are tool results that the model has to see."""
    error: Exception | None
    stream_started: bool


class AgentRun:
    def __init__(self, agent: RunHost, writer: RunWriter, system: str) -> None:
        self.agent = agent
        self.writer = writer
        self._system = system
        self._compactor = AutoCompactor(agent, writer, system)
        self._hooks = agent.hooks
        self._signal = agent.abort_controller.signal
        self._handlers = AbortableHooks(agent.hooks, self._signal)
        self._failed_streams = 0
        """The number of consecutive broken streams."""

    async def run(self, opening: Sequence[Body], *, prompted: bool = False, send_queued: bool = False) -> Outcome:
        """Write the opening entries, and run turns until the model has answered.

        With `prompted`, the messages queued for the next turn come before the prompt. With `send_queued`, the run
        starts with the queued steering and follow-up messages.
        """
        await self._handlers.emit(RunStart())
        error: BaseException | None = None
        try:
            outcome = await self._run_turns(opening, prompted=prompted, send_queued=send_queued)
            error = outcome.error
            return outcome
        except BaseException as raised:
            error = raised
            raise
        finally:
            await self._handlers.emit(RunEnd(aborted=self._signal.aborted, error=None if error is None else str(error)))

    async def _run_turns(self, opening: Sequence[Body], *, prompted: bool, send_queued: bool) -> Outcome:
        last: Entry | None = None
        opened, recovered, count = False, False, 0
        try:
            await self._compactor.compact_if_needed()
            held = self.agent.queues.pop_all("next_turn") if prompted else []
            await self._write_messages(DueMessages("next_turn", held), opening)
            if send_queued and not await self._send_due_messages(run_ends=True):
                return Outcome(cancelled=True, aborted=self._signal.aborted)
            opened = True
            while not self._signal.aborted and not self.writer.has_branch_moved():
                count += 1
                turn = await self._run_turn(count)
                last = turn.entry
                if self.writer.moved_error is not None:
                    break
                if turn.error is not None:
                    if not recovered and await self._recover_from_overflow(turn):
                        recovered = True
                        continue
                    if await self._wait_for_retry(turn):
                        continue
                    if isinstance(turn.error, SessionTreeError):
                        return Outcome(message=last, error=turn.error)
                    raise turn.error
                recovered, self._failed_streams = False, 0
                if not await self._send_due_messages(run_ends=not turn.has_tool_calls) and not turn.has_tool_calls:
                    break
            return Outcome(message=last, error=self.writer.moved_error, aborted=self._signal.aborted)
        except BranchMoved as moved:
            if last is None:
                raise
            return Outcome(message=last, error=moved)
        except UnsavedMessages as error:
            return Outcome(message=last, error=error, unsaved=error.messages)
        except OperationStopped as stopped:
            return Outcome(message=last, aborted=stopped.aborted, cancelled=not (opened and stopped.aborted))

    async def _send_due_messages(self, *, run_ends: bool) -> bool:
        """Send the messages that are due between two requests or at the end of the run, and compact if needed."""
        while not self._signal.aborted:
            due = self.agent.queues.pop_due(run_ends=run_ends)
            if due.messages:
                await self._write_messages(due)
                await self._handlers.emit(self.agent.queues.build_changed_event())
            await self._compactor.compact_if_needed()
            if due.messages or not run_ends or not self.agent.queues.has_due:
                return bool(due.messages)
        return False

    async def _run_turn(self, count: int) -> _Turn:
        await self._handlers.emit(TurnStart(number=count))
        answer = await self._request_answer()
        entry = await self._save_message(Message(answer.message))
        results: list[Entry] = []
        if answer.error is None and get_stop_reason(answer.message) != "aborted":
            results = await self._call_tools(_get_message(entry))
        await self._handlers.emit(TurnEnd(number=count, message=entry, tool_results=tuple(results)))
        await self.write_deferred()
        return _Turn(entry, bool(results) and not answer.truncated, answer.error, answer.stream_started)

    # Requests

    async def _request_answer(self) -> _ModelAnswer:
        """Return the answer of the model. Raises `OperationStopped` if the run stops before the request."""
        if self._signal.aborted:
            raise OperationStopped(aborted=True)
        context = build_shared_context(self.writer.branch.session.tree, self.writer.follow_head())
        event, answer = await self._handlers.ask(BeforeRequest(messages=context.to_llm(), system=self._system))
        if answer.cancel:
            raise OperationStopped(aborted=False)
        request = Request(
            messages=event.messages,
            system=event.system,
            tools=tuple(tool.spec for tool in self.agent.tools.values()),
            thinking=self.agent.thinking,
        )
        model = self.agent.model
        draft = PartialMessage(model.info)
        try:
            await self.agent.abort_controller.start(self._stream_answer(model, request, draft))
        except asyncio.CancelledError:
            if not self._signal.aborted:
                raise
            return _ModelAnswer(make_message_jsonable(draft.build_message("aborted", "the run was aborted")))
        except ModelError as error:
            return _ModelAnswer(
                make_message_jsonable(draft.build_message("error", error.reason)), error, draft.has_started
            )
        except _AnswerTooLong:
            limit = self.agent.settings.answer_limit
            text = f"{model.info.name}: the answer was cut off after {limit} bytes (`answer_limit` in config.toml)"
            self._hooks.notify_listeners(Notice(level="warning", text=text))
            return _ModelAnswer(make_message_jsonable(draft.build_message("length")), truncated=True)
        except Exception as error:  # noqa: BLE001 - raised again after the partial answer is written
            return _ModelAnswer(
                make_message_jsonable(draft.build_message("error", f"{type(error).__name__}: {error}")), error
            )
        message = make_message_jsonable(draft.build_message())
        if get_stop_reason(message) == "error":
            reason = coerce_string(message.get("errorMessage")) or "the provider stopped the answer"
            return _ModelAnswer(message, ModelError(model.info.name, "rejected", reason))
        return _ModelAnswer(message, self._compactor.detect_overflow(message))

    async def _stream_answer(self, model: Model, request: Request, draft: PartialMessage) -> None:
        await self._hooks.emit(MessageStart(role="assistant"))
        limit = self.agent.settings.answer_limit
        finished = False
        async with aclosing(model.stream(request)) as events:
            async for event in events:
                draft.apply(event)
                delta = _build_delta(event)
                if delta is not None:
                    await self._hooks.emit(delta)
                finished = finished or isinstance(event, Finished)
                if draft.size > limit and not finished:
                    raise _AnswerTooLong
        if not finished:
            raise build_cut_off_error(model.info.name)

    async def _wait_for_retry(self, turn: _Turn) -> bool:
        """After a broken stream: wait for the backoff, and return whether to retry.

        Models themselves retry requests that fail before the stream starts. Raises `OperationStopped` if the run is
        aborted during the wait.
        """
        error, retry = turn.error, self.agent.settings.retry
        if not (isinstance(error, ModelError) and error.is_retryable and turn.stream_started):
            return False
        self._failed_streams += 1
        delay = compute_backoff(error, self._failed_streams, retry.base_delay)
        if self._failed_streams >= retry.attempts or delay is None:
            return False
        scheduled = RetryScheduled(attempt=self._failed_streams, attempts=retry.attempts, delay=delay, error=str(error))
        self._hooks.notify_listeners(scheduled)
        try:
            await self.agent.abort_controller.start(asyncio.sleep(delay))
        except asyncio.CancelledError:
            if not self._signal.aborted:
                raise
            raise OperationStopped(aborted=True) from None
        return True

    # Tool calls

    async def _call_tools(self, message: JsonObject) -> list[Entry]:
        """Run the tool calls of a message. Write each result as soon as the results of earlier calls are written."""
        incomplete = get_stop_reason(message) == "length"
        results: list[Entry] = []
        for group in group_calls(get_tool_calls(message), self.agent.tools):
            started = [(call, None if incomplete else self._start_tool_call(call)) for call in group]
            while started:
                call, task = started.pop(0)
                output = CUT_OFF_OUTPUT if incomplete else await self._wait_for_output(task)
                try:
                    entry = await self._save_message(build_result_message(call, output))
                except UnsavedMessages as error:
                    others = [
                        build_result_message(call, await self._wait_for_output(task)).message for call, task in started
                    ]
                    raise (await self._hold_unsaved(error.cause, others, error) if others else error) from error
                await self._handlers.emit(ToolEnd(call=call, entry=entry))
                results.append(entry)
        return results

    def _start_tool_call(self, call: ToolCall) -> asyncio.Task[ToolOutput] | None:
        if self._signal.aborted:
            return None
        agent = self.agent
        work = run_tool_call(
            call,
            agent.tools,
            self._hooks,
            cwd=agent.cwd,
            signal=self._signal,
            agent=agent,
            permissions=agent.permissions,
        )
        return agent.abort_controller.start(work)

    async def _wait_for_output(self, task: asyncio.Task[ToolOutput] | None) -> ToolOutput:
        if task is None:
            return NOT_RUN_OUTPUT
        aborted = asyncio.create_task(self._signal.wait())
        await asyncio.wait([task, aborted], return_when=asyncio.FIRST_COMPLETED)
        aborted.cancel()
        if not task.done():
            await asyncio.wait([task], timeout=GRACE_SECONDS)
        return task.result() if task.done() and not task.cancelled() else ABORTED_OUTPUT

    # Writing

    async def _write_messages(self, due: DueMessages, further: Sequence[Body] = ()) -> None:
        """Write the messages of users and extensions, preceded by changed settings.

        If writing fails, the due messages go back to their queue, except the one that a handler cancelled.
        """
        bodies = self._build_setting_changes()
        waiting = list(due.messages)
        try:
            for message in (*due.messages, *further):
                try:
                    bodies.append(await self._ask_before_message(message))
                except OperationStopped as stopped:
                    if not stopped.aborted:
                        waiting = [other for other in waiting if other is not message]
                    raise
            entries = await self.writer.extend(bodies) if bodies else []
        except Exception:
            if due.messages:
                self.agent.queues.requeue(due._replace(messages=waiting))
                await self._handlers.emit(self.agent.queues.build_changed_event())
            raise
        for entry in entries:
            await emit_message_events(self._handlers.emit, entry)

    async def _save_message(self, message: Message) -> Entry:
        """Write a message, late if necessary, and as much of it as fits. Raises `UnsavedMessages` if that fails."""
        body = await self._ask_before_message(message)
        assert isinstance(body, Message)
        try:
            entry = await write_message(self.writer, body.message, self._hooks)
        except StoreError as error:
            raise await self._hold_unsaved(error, [body.message]) from error
        await emit_message_events(self._handlers.emit, entry)
        return entry

    async def _hold_unsaved(
        self, cause: StoreError, messages: Sequence[JsonObject], previous: UnsavedMessages | None = None
    ) -> UnsavedMessages:
        """Keep messages that could not be written for the next run, and save them to a temporary file.

        Return an error for these messages and the messages of the `previous` error.
        """
        if previous is not None or not isinstance(cause, OutcomeUnknown):  # never repeat a write that may be done
            self.agent.pending_writes.extend(PendingWrite(self.writer, message) for message in messages)
        if previous is not None:
            messages = [*previous.messages, *messages]
        path = await asyncio.to_thread(save_to_temporary_file, messages)
        if path is not None and previous is not None and previous.path is not None:
            await asyncio.to_thread(discard, previous.path)
        return UnsavedMessages(cause, messages, path)

    async def _append_entry(self, body: Body) -> Entry:
        """Write an entry, late if necessary."""
        (entry,) = await self.writer.extend_or_append_late([await self._ask_before_message(body)])
        await emit_message_events(self._handlers.emit, entry)
        return entry

    async def write_deferred(self) -> None:
        """Write the entries that were deferred to the end of the turn."""
        annexes = self.agent.queues.deferred_entries
        while annexes:
            await self._append_entry(annexes[0])
            del annexes[0]

    async def _ask_before_message(self, body: Body) -> Body:
        if not isinstance(body, Message):
            return body
        users = get_role(body.message) == "user"
        try:
            event, answer = await self._handlers.ask(BeforeMessage(message=body.message))
        except OperationStopped:
            if users:
                raise
            return body  # results of the run are always written
        if answer.cancel and users:
            raise OperationStopped(aborted=False)
        if event.message is body.message:
            return body
        same_role = get_role(event.message) == get_role(body.message)
        problem = find_write_problem(event.message) if same_role else "it has another role"
        if problem is not None:
            text = f"the change of a message by a handler was ignored: {problem}"
            self._hooks.notify_listeners(Notice(level="error", text=text))
            return body
        return Message(event.message)

    def _build_setting_changes(self) -> list[Body]:
        """Return entries for the model and the thinking level if they differ from the path."""
        state = read_state(find_context_path(self.writer.branch.session.tree, self.writer.follow_head()))
        info = self.agent.model.info
        changes: list[Body] = []
        if (state.provider, state.model) != (info.provider, info.model):
            changes.append(ModelChange(provider=info.provider, model=info.model))
        if state.thinking_level != self.agent.thinking:
            changes.append(ThinkingLevelChange(self.agent.thinking))
        return changes

    async def _recover_from_overflow(self, turn: _Turn) -> bool:
        """After an overflow: remove the failed answer from the context, compact, and return whether to retry.

        Raises `OperationStopped` if the run is aborted during the compaction.
        """
        if not isinstance(turn.error, ModelError) or turn.error.kind != "overflow" or not self._compactor.enabled:
            return False
        await self.writer.extend([ContextEdit(target=turn.entry.id, replacement=None)])
        compacted = await self._compactor.compact_after_overflow()
        if not compacted and self._signal.aborted:
            raise OperationStopped(aborted=True)
        return compacted


class _AnswerTooLong(Exception):
    """The answer exceeds `answer_limit`."""


async def write_message(writer: RunWriter, message: JsonObject, hooks: Hooks) -> Entry:
    """Write a message, late if necessary. If it is too long for an entry, write the rest to a file and name the file.

    Raises `StoreError`.
    """
    fitted = fit_message(message)
    if fitted.overflow:
        path, size = await asyncio.to_thread(write_overflow, writer.branch.session, fitted.overflow)
        message = add_overflow_note(fitted, path, size)
        text = f"a message is too long for one entry; its remaining {size} bytes are in {path}"
        hooks.notify_listeners(Notice(level="warning", text=text))
    (entry,) = await writer.extend_or_append_late([Message(message)])
    return entry


async def emit_message_events(emit: Callable[[Event], Awaitable[None]], entry: Entry) -> None:
    """Emit the events of a written message. `MessageStart` of a model's message was emitted when its stream started."""
    if isinstance(entry.body, Message | CustomMessage):
        sender = get_role(entry.body.message) if isinstance(entry.body, Message) else "custom"
        if sender != "assistant":
            await emit(MessageStart(role=sender))
        await emit(MessageEnd(entry=entry))


def _get_message(entry: Entry) -> JsonObject:
    return entry.body.message if isinstance(entry.body, Message) else {}


def _build_delta(event: ModelEvent) -> MessageDelta | None:
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
