"""The agent loop: request an answer, run its tool calls, write everything, and repeat until there is nothing to do.

An `AgentRun` goes from a prompt to the final answer. All partial results are written to the session. Failures of the
model are part of the `Outcome`, not exceptions. Writing is in `run_writer`, tool calls in `tool_execution`, compaction
in `autocompact`; the `Agent` starts and stops runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self

from msgspec import UNSET, Struct, structs

from sessiontree.agent.autocompact import AutoCompactor
from sessiontree.agent.message_queues import DueMessages, RunHost
from sessiontree.agent.run_writer import (
    PendingWrite,
    RunWriter,
    UnsavedMessages,
    find_message_problem,
    make_message_jsonable,
    save_messages,
    save_to_temporary_file,
    write_message,
)
from sessiontree.agent.structured_output import StructuredOutput
from sessiontree.agent.tool import Tool, ToolOutput
from sessiontree.agent.tool_execution import (
    ABORTED_OUTPUT,
    CUT_OFF_OUTPUT,
    NOT_RUN_OUTPUT,
    build_result_message,
    group_calls,
    run_tool_call,
)
from sessiontree.core.context import GrowingContext
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
from sessiontree.core.message_views import TokenUsage, view_usage
from sessiontree.core.messages import ToolCall, coerce_string, extract_text, get_role, get_stop_reason, get_tool_calls
from sessiontree.errors import BranchMoved, OutcomeUnknown, SessionTreeError, StoreError
from sessiontree.hooks.abort import GRACE_SECONDS, AbortableHooks, OperationStopped, run_unless_aborted
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
from sessiontree.store.file_operations import discard

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    OutputT = TypeVar("OutputT", default=str)
else:  # type variables have no defaults in Python 3.11
    from typing import TypeVar

    OutputT = TypeVar("OutputT")


class RunStopped(SessionTreeError):
    """A run was aborted, or a handler cancelled it. Raised only by `Outcome.raise_for_error` and `Outcome.output`."""


class Outcome(Struct, Generic[OutputT], frozen=True, kw_only=True):
    """The result of a run: the answer, what it used, and how the run ended."""

    message: Entry | None = None
    """The last message of the model, as written."""
    aborted: bool = False
    cancelled: bool = False
    """Whether a handler cancelled the run, or it was aborted before the prompt was written."""
    cancelled_by: str | None = None
    """The handler or extension that cancelled the run."""
    error: SessionTreeError | None = None
    """`ModelError`, `InvalidOutput`, `UnsavedMessages`, or `BranchMoved` if the branch was moved and `message` is a
    late entry."""
    usage: TokenUsage = TokenUsage()
    """The tokens and the cost of all model calls of the run."""
    unsaved: tuple[JsonObject, ...] = ()
    """Messages that could not be written, oldest first. The agent writes them before its next prompt."""
    value: Any = UNSET
    """The answer as a value, if the run asked for one. `output` returns it."""

    @property
    def ok(self) -> bool:
        return not (self.aborted or self.cancelled or self.error)

    @property
    def text(self) -> str:
        """The text of the last message of the model."""
        return extract_text(self._last_answer.get("content"))

    @property
    def output(self) -> OutputT:
        """The answer: a value of the type that `run` was given as `output`, and otherwise the text.

        Raises the error of the run if it failed, as `raise_for_error` does.
        """
        self.raise_for_error()
        answer: Any = self.text if self.value is UNSET else self.value
        return answer

    @property
    def cost(self) -> float:
        """The cost of all model calls of the run, in US dollars."""
        return self.usage.cost

    def raise_for_error(self) -> Self:
        """Raise the error of the run, or `RunStopped` if it was cancelled or aborted. Otherwise return the outcome."""
        if self.error is not None:
            raise self.error
        if not self.ok:
            raise RunStopped(self.stop_text)
        return self

    @property
    def stop_text(self) -> str:
        """A sentence about a run that was cancelled or aborted; empty for other runs."""
        if self.cancelled and not self.aborted:
            return f"the run was cancelled by {self.cancelled_by or 'a handler'}"
        return "the run was aborted" if self.aborted else ""

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
    def __init__(self, agent: RunHost, writer: RunWriter, system: str, output: StructuredOutput | None = None) -> None:
        self.agent = agent
        self.writer = writer
        self._system = system
        self._compactor = AutoCompactor(agent, writer, system)
        self._hooks = agent.hooks
        self._signal = agent.abort_controller.signal
        self._handlers = AbortableHooks(agent.hooks, self._signal)
        self._failed_streams = 0
        """The number of consecutive broken streams."""
        self._output = output
        self._usage = TokenUsage()
        if agent.file_recorder is not None:
            agent.file_recorder.follow(writer)

    async def run(self, opening: Sequence[Body], *, prompted: bool = False, send_queued: bool = False) -> Outcome:
        """Write the opening entries, and run turns until the model has answered.

        With `prompted`, the messages queued for the next turn come before the prompt. With `send_queued`, the run
        starts with the queued steering and follow-up messages.
        """
        await self._handlers.emit(RunStart())
        error: BaseException | None = None
        try:
            ended = await self._run_turns(opening, prompted=prompted, send_queued=send_queued)
            outcome = self._complete_outcome(ended)
            error = outcome.error
            return outcome
        except BaseException as raised:
            error = raised
            raise
        finally:
            await self._handlers.emit(RunEnd(aborted=self._signal.aborted, error=None if error is None else str(error)))

    def _complete_outcome(self, outcome: Outcome) -> Outcome:
        """Add the usage of the run, and the answer as a value if one was asked for."""
        usage = self._usage.add(self._compactor.usage)
        if self._output is None or not outcome.ok:
            return structs.replace(outcome, usage=usage)
        return structs.replace(outcome, usage=usage, value=self._output.value, error=self._output.build_error())

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
                ends = not turn.has_tool_calls or (self._output is not None and self._output.is_over)
                if await self._send_due_messages(run_ends=ends) or not ends:
                    continue
                if not await self._request_output(turn):
                    break
            return Outcome(message=last, error=self.writer.moved_error, aborted=self._signal.aborted)
        except BranchMoved as moved:
            if last is None:
                raise
            return Outcome(message=last, error=moved)
        except UnsavedMessages as error:
            return Outcome(message=last, error=error, unsaved=error.messages)
        except OperationStopped as stopped:
            cancelled = not (opened and stopped.aborted)
            return Outcome(message=last, aborted=stopped.aborted, cancelled=cancelled, cancelled_by=stopped.by or None)

    async def _request_output(self, turn: _Turn) -> bool:
        """Read the text of the last answer if a value is expected. Return whether the model has to answer again."""
        if self._output is None or self._output.is_over or self._signal.aborted:
            return False
        request = self._output.read_text(extract_text(_get_message(turn.entry).get("content")))
        if request is None:
            return False
        await self._write_messages(DueMessages("steering", []), [request])
        return True

    @property
    def _tools(self) -> Mapping[str, Tool]:
        """The tools of the agent, which may change during the run, and the one for the answer."""
        if self._output is None:
            return self.agent.tools
        return {**self.agent.tools, self._output.tool.name: self._output.tool}

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
        self._usage = self._usage.add(view_usage(answer.message.get("usage")))
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
        if self.agent.tool_provider is not None:
            await run_unless_aborted(self._signal, self.agent.update_provided_tools())
        messages = self._read_context().get_messages()
        event, answer = await self._handlers.ask(BeforeRequest(messages=messages, system=self._system))
        if answer.cancel:
            raise OperationStopped(aborted=False, by=answer.cancelled_by)
        request = Request(
            messages=event.messages,
            system=event.system,
            tools=tuple(tool.spec for tool in self._tools.values()),
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

    def _read_context(self) -> GrowingContext:
        """Return the context at the position of the run."""
        context = self.agent.request_context
        context.follow(self.writer.branch.session.tree, self.writer.follow_head())
        return context

    async def _stream_answer(self, model: Model, request: Request, draft: PartialMessage) -> None:
        await self._hooks.emit(MessageStart(role="assistant"))
        limit = self.agent.settings.answer_limit
        finished = False
        async with aclosing(model.stream(request)) as events:
            async for event in events:
                draft.apply(event)
                if isinstance(event, Finished):
                    finished = True
                    continue
                delta = _build_delta(event)
                if delta is not None and not self._hooks.try_emit(delta):
                    await self._hooks.emit(delta)
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
        if self.agent.file_recorder is not None:
            await self.agent.file_recorder.begin_turn()
        for group in group_calls(get_tool_calls(message), self._tools):
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
                    raise (await self._keep_unsaved(error.cause, others, error) if others else error) from error
                if self.agent.file_recorder is not None:
                    await self.agent.file_recorder.note(entry)
                await self._handlers.emit(ToolEnd(call=call, entry=entry))
                results.append(entry)
        return results

    def _start_tool_call(self, call: ToolCall) -> asyncio.Task[ToolOutput] | None:
        if self._signal.aborted:
            return None
        return self.agent.abort_controller.start(run_tool_call(self.agent, call, self._signal, self._tools))

    async def _wait_for_output(self, task: asyncio.Task[ToolOutput] | None) -> ToolOutput:
        if task is None:
            return NOT_RUN_OUTPUT
        await self._signal.wait_while_running(task)
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
            raise await self._keep_unsaved(error, [body.message]) from error
        await emit_message_events(self._handlers.emit, entry)
        return entry

    async def _keep_unsaved(
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
        deferred = self.agent.queues.deferred_entries
        while deferred:
            await self._append_entry(deferred[0])
            del deferred[0]

    async def _ask_before_message(self, body: Body) -> Body:
        if not isinstance(body, Message):
            return body
        is_from_user = get_role(body.message) == "user"
        try:
            event, answer = await self._handlers.ask(BeforeMessage(message=body.message))
        except OperationStopped:
            if is_from_user:
                raise
            return body  # results of the run are always written
        if answer.cancel and is_from_user:
            raise OperationStopped(aborted=False, by=answer.cancelled_by)
        if event.message is body.message:
            return body
        same_role = get_role(event.message) == get_role(body.message)
        problem = find_message_problem(event.message) if same_role else "it has another role"
        if problem is not None:
            text = f"a handler's change to a message was ignored: {problem}"
            self._hooks.notify_listeners(Notice(level="error", text=text))
            return body
        return Message(event.message)

    def _build_setting_changes(self) -> list[Body]:
        """Return entries for the model and the thinking level if they differ from the path."""
        state = self._read_context().state
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
