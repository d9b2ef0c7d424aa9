"""Agents: one model at work on one branch, and everything that can be asked of it.

An `Agent` starts and stops runs, keeps what waits to be said, and holds the model, the tools and the settings. What
happens in a run is in `loop`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import finalize

from sessiontree.agent.abort import AbortableHooks, AbortController
from sessiontree.agent.autocompact import run_compaction
from sessiontree.agent.jsonable import copy_writable
from sessiontree.agent.loop import AgentRun, Outcome, emit_message_events, write_message
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.queues import QueuedMessage, QueueName, Queues, QueueSnapshot
from sessiontree.agent.run_host import PendingWrite
from sessiontree.agent.run_writer import BackgroundWriter, RunWriter
from sessiontree.agent.sandbox import Confinement
from sessiontree.agent.system_prompt import SystemPart, build_default_parts, join_parts
from sessiontree.agent.tool import OnSession, SessionChange, Tool
from sessiontree.agent.tools.command_runner import CommandResult
from sessiontree.agent.user_shell import UserShell
from sessiontree.config import Config
from sessiontree.core.context import build_shared_context
from sessiontree.core.entries import Body, CustomMessage, JsonObject, Message, ModelChange, ThinkingLevelChange
from sessiontree.core.messages import user
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Event, Input, ModelChanged, Notice, RunEnd, ThinkingChanged
from sessiontree.model.base import Model
from sessiontree.ops.hook_requests import OperationStopped
from sessiontree.session import Branch

if TYPE_CHECKING:
    from sessiontree.ops.compact import CompactOutcome

T = TypeVar("T")

IDLE_TIMEOUT = 1.0
"""Seconds that whoever reads events waits for a run."""


class Agent:
    def __init__(
        self,
        branch: Branch,
        model: Model,
        tools: Iterable[Tool] = (),
        hooks: Hooks | None = None,
        *,
        system: str | Sequence[SystemPart] | None = None,
        settings: Config | None = None,
        thinking: str | None = None,
        cwd: str | None = None,
        permissions: Permissions | None = None,
    ) -> None:
        """An agent on `branch`.

        `permissions` decide about every tool call; without them, all tools that are given may be used.

        `system` takes the place of the whole system prompt. The thinking level is by default the one that holds at
        the branch's head; `cwd`, where tools work, is the current folder, whatever folder the session names. Hooks
        that another agent has already are shared: this one has its own beside them, with the same handlers and
        listeners.
        """
        self.branch = branch
        self.model = model
        self.hooks = _claim_hooks(Hooks() if hooks is None else hooks)
        context = self.hooks.context
        context.session, context.branch, context.agent = branch.session, branch, self
        self._tools: Mapping[str, Tool] = {}
        self._tool_unsubscribers: list[Callable[[], None]] = []
        """Each has a tool not told of other places any more."""
        self.tools = {tool.name: tool for tool in tools}
        self.system = system
        self.settings = Config() if settings is None else settings
        self.thinking = thinking or branch.state.thinking_level
        self.cwd = cwd or context.cwd or os.getcwd()
        self.confinement: Confinement | None = context.confinement
        self.permissions = permissions
        self.queues = Queues()
        self.pending_writes: list[PendingWrite] = []
        """What has come of runs and could not be written: it is tried again before the next one."""
        self.abort_controller = AbortController()
        self._user_shell = UserShell(self.hooks, self.write_between_turns)
        self._task: asyncio.Task[Any] | None = None
        self._writer: RunWriter | None = None
        """Where the run or the compaction that goes on writes."""
        self._triggered_run: asyncio.Task[Outcome] | None = None
        """The last run that a message triggered, until somebody settles for how it ended."""
        self._awaiting_triggered_run = False
        self._event_queues: list[asyncio.Queue[Event | None]] = []
        """Of those who read events."""
        self._closed = False
        self._handed_over = False
        """Whether another process works on the branch."""
        self._write_lock = asyncio.Lock()
        """Held while something is written without a run, so that none starts from before it."""

    def close(self) -> None:
        """Give up what runs, and take no part any more: tools are not told of navigation."""
        self.abort()
        self._unsubscribe_tools()
        self._closed = True
        if not self.running:
            self._release_hooks()
            self._end_events()

    def _release_hooks(self) -> None:
        """Leave the hooks to the next agent: what is told from here on is not of this one."""
        if self.hooks.context.agent is self:
            self.hooks.context.agent = None

    # Running

    @property
    def running(self) -> bool:
        return self._task is not None

    async def prompt(
        self, text: str, images: Sequence[JsonObject] = (), *, extra_entries: Sequence[Body] = ()
    ) -> Outcome:
        """Say something to the model, and run until it has answered. Images are blocks in wire form.

        What is `beside` it is written with it, or not at all. Raises `InvalidOperation` while the agent runs, and
        `BranchMoved` when somebody else has moved the branch before anything was written. Cancelling it aborts the
        run, and waits until that is written down.
        """
        return await self._wait_for_task(self._start_task(self._run_prompt(text, images, extra_entries)))

    async def continue_(self) -> Outcome:
        """Have the model answer what is there: after a failure, an abort, or the death of a process."""
        if not self.running and not build_shared_context(self.branch.session.tree, self.branch.leaf).awaits_answer:
            self._end_events()
            raise InvalidOperation("there is nothing to answer: the model has the last word here")
        return await self._wait_for_task(self._start_task(self._run([])))

    async def send_queued(self) -> Outcome:
        """Say what waits though nothing runs, such as after a compaction, and run until the model has answered."""
        if not self.running and not self.queues.has_due:
            self._end_events()
            raise InvalidOperation("nothing waits to be said")
        return await self._wait_for_task(self._start_task(self._run([], send_queued=True)))

    async def compact(self, instructions: str | None = None) -> CompactOutcome:
        """Compact the branch now, after giving up what runs."""
        self.abort()
        await self.wait_until_idle()
        return await self._wait_for_task(self._start_task(self._run_compaction(instructions)))

    def abort(self) -> None:
        """Give up what runs: the model, tools, commands, a compaction. What had arrived is written down."""
        self.abort_controller.abort()
        self._user_shell.abort()
        if not self.running:
            self.abort_controller.reset()

    def hand_over(self) -> None:
        """Give up what runs since another process works on the branch: what had arrived is a late result there.

        From then on the agent writes nothing on the branch.
        """
        self._handed_over = True
        if self._writer is not None:
            self._writer.detach(self._build_handed_over_error())
        self.abort()

    def _build_handed_over_error(self) -> InvalidOperation:
        return InvalidOperation(f"another process works on branch {self.branch.name!r}")

    async def wait_until_idle(self) -> None:
        """Wait until nothing runs, commands of the user aside."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def shutdown(self) -> None:
        """Give up what runs, and wait until what has come of it is written."""
        self.abort()
        await self.wait_until_idle()
        await self._user_shell.shutdown()

    def events(self) -> AsyncGenerator[Event]:
        """Every event from now on, until a run has ended.

        It ends too when a run is cancelled or refused before it begins, when the agent is closed, and when nothing
        runs for a second.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        unlisten = self.hooks.listen(queue.put_nowait)
        self._event_queues.append(queue)

        def unsubscribe() -> None:
            if queue in self._event_queues:
                self._event_queues.remove(queue)
                unlisten()

        async def read_until_run_end() -> AsyncGenerator[Event]:
            try:
                while (event := await self._wait_for_event(queue)) is not None:
                    yield event
                    if isinstance(event, RunEnd):
                        break
            finally:
                unsubscribe()

        events = read_until_run_end()
        finalize(events, unsubscribe)  # one that nobody has begun to read has no end of its own
        return events

    async def _wait_for_event(self, queue: asyncio.Queue[Event | None]) -> Event | None:
        """What comes next; `None` at the end."""
        while True:
            try:
                # A run that was asked for begins at once, so nobody waits for long where there is none.
                return await asyncio.wait_for(queue.get(), None if self.running else IDLE_TIMEOUT)
            except TimeoutError:
                if not self.running and queue.empty():
                    return None

    def _end_events(self) -> None:
        """Tell those who read events that there are no more of what was asked for."""
        for queue in self._event_queues:
            queue.put_nowait(None)

    async def _run_prompt(self, text: str, images: Sequence[JsonObject], extra_entries: Sequence[Body]) -> Outcome:
        try:
            event, answer = await AbortableHooks(self.hooks, self.abort_controller.signal).ask(Input(text=text))
        except OperationStopped:
            return Outcome(aborted=True, cancelled=True)
        if answer.cancel:
            return Outcome(cancelled=True)
        return await self._run([_build_user_message(event.text, images), *extra_entries], prompted=True)

    async def _run(self, opening: Sequence[Body], *, prompted: bool = False, send_queued: bool = False) -> Outcome:
        # Files are read elsewhere, since they may be slow; a text that was given is there.
        parts = await asyncio.to_thread(self.build_system_parts) if self.system is None else self.build_system_parts()
        async with self._open_run(join_parts(parts)) as run:
            return await run.run(opening, prompted=prompted, send_queued=send_queued)

    async def _run_compaction(self, instructions: str | None) -> CompactOutcome:
        async with self._open_run() as run:
            return await run_compaction(self, run.writer, "manual", instructions)

    @asynccontextmanager
    async def _open_run(self, system: str = "") -> AsyncGenerator[AgentRun]:
        """A run from where the branch is now. However it ends, what has come beside it is written then."""
        async with self._write_lock:
            await self._write_pending()
            record = self._writer = RunWriter(self.branch)
        if self._handed_over:
            record.detach(self._build_handed_over_error())
        run = AgentRun(self, record, system)
        try:
            yield run
        finally:
            if not self.pending_writes:
                await run.write_deferred()
            self._writer = None

    @property
    def unsaved(self) -> list[JsonObject]:
        """Messages that arrived and could not be written, oldest first. They are written before the next prompt."""
        return [message for _, message in self.pending_writes]

    async def _write_pending(self) -> None:
        """Write what could not be written before, where it belongs. Raises `StoreError` where it still cannot be."""
        while self.pending_writes:
            record, message = self.pending_writes[0]
            entry = await write_message(record, message, self.hooks)
            del self.pending_writes[0]
            await emit_message_events(self.hooks.emit, entry)

    def _start_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        if self._task is not None:
            work.close()
            raise InvalidOperation("the agent is running: steer it, give it a follow-up, or wait until it is idle")
        task = self._task = asyncio.create_task(work)
        task.add_done_callback(self._finish_task)
        return task

    def _finish_task(self, task: asyncio.Task[Any]) -> None:
        self._task = self._writer = None
        self._end_events()
        self.abort_controller.reset()
        if self._closed:
            self._release_hooks()

    async def _wait_for_task(self, task: asyncio.Task[T]) -> T:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self.abort()
                await asyncio.wait([task])
            self._report_failure(task)
            raise

    # What waits to be said

    async def steer(self, text: str, images: Sequence[JsonObject] = ()) -> None:
        """Say something as soon as the tool calls of this turn are done. While nothing runs, it waits for a run."""
        await self._queue("steering", _build_user_message(text, images))

    async def follow_up(self, text: str, images: Sequence[JsonObject] = ()) -> None:
        """Say something when the run would end."""
        await self._queue("follow_up", _build_user_message(text, images))

    async def queue_for_next_turn(self, message: str | QueuedMessage, images: Sequence[JsonObject] = ()) -> None:
        """Put a text with images, or a message, before the next prompt."""
        await self._queue("next_turn", _build_user_message(message, images) if isinstance(message, str) else message)

    async def _queue(self, name: QueueName, message: QueuedMessage) -> None:
        """Have a message wait. Raises `InvalidOperation` for one that could not be written then."""
        self.queues.append(name, copy_writable(message))
        await self.hooks.emit(self.queues.build_changed_event())

    @property
    def queued(self) -> QueueSnapshot:
        """What waits, as text."""
        return self.queues.build_snapshot()

    async def clear_queues(self) -> QueueSnapshot:
        """Empty the queues, and return what was in them."""
        taken = self.queues.clear()
        await self.hooks.emit(self.queues.build_changed_event())
        return taken

    async def send_message(self, message: CustomMessage, *, trigger_turn: bool = False) -> None:
        """A message of an extension: written at once, and answered if it is to trigger a turn.

        While the agent runs it waits for the end of the turn, and triggers nothing. A run that it triggers goes
        on by itself: `idle` waits for it, and `settle` gives its outcome.
        """
        if trigger_turn and not self.running:
            self._triggered_run = self._start_task(self._run([message]))
            self._triggered_run.add_done_callback(self._report_failure)
        else:
            await self.write_between_turns(BackgroundWriter(self.branch), message)

    async def wait_for_triggered_run(self) -> Outcome | None:
        """Wait until nothing runs. Return how the last run ended that a message triggered, and raise what it raised.

        Return `None` where no message has triggered one since.
        """
        self._awaiting_triggered_run = True
        try:
            await self.wait_until_idle()
        finally:
            self._awaiting_triggered_run = False
        triggered, self._triggered_run = self._triggered_run, None
        return None if triggered is None else await triggered

    def _report_failure(self, task: asyncio.Task[Any]) -> None:
        """Tell of the failure of a run that nobody waits for."""
        if self._awaiting_triggered_run and task is self._triggered_run:
            return
        if not task.cancelled() and task.exception() is not None:
            self.hooks.notify_listeners(Notice(level="error", text=str(task.exception())))

    async def run_bash(self, command: str, *, in_context: bool = True, timeout: float | None = None) -> CommandResult:
        """Run a command for the user and write down what it printed, for the model to see or not.

        While the agent runs, it is written down when the turn ends; where somebody has gone elsewhere meanwhile, at the
        place where it was begun.
        """
        return await self._user_shell.run(
            command, self.branch, cwd=self.cwd, settings=self.settings, in_context=in_context, timeout=timeout
        )

    async def write_between_turns(self, writer: BackgroundWriter, body: Body) -> None:
        """Write something that nobody answers; when the turn ends, if one goes on there.

        Raises `InvalidOperation` for what could not be written then.
        """
        async with self._write_lock:
            if self._writer is not None and writer.branch == self._writer.branch and not writer.has_branch_moved():
                self.queues.deferred_entries.append(copy_writable(body))
                return
            if self._handed_over:
                writer.detach(self._build_handed_over_error())
            (entry,) = await writer.extend_or_append_late([body])
        await emit_message_events(self.hooks.emit, entry)

    async def _append_entry(self, body: Body) -> None:
        """Write something where the agent stands, while it runs too."""
        async with self._write_lock:
            (entry,) = await (self._writer or RunWriter(self.branch)).extend([body])
        await emit_message_events(self.hooks.emit, entry)

    # What holds

    async def set_model(self, model: Model) -> None:
        """Another model from here on."""
        previous, self.model = self.model.info.name, model
        await self._append_entry(ModelChange(provider=model.info.provider, model=model.info.model))
        await self.hooks.emit(ModelChanged(model=model.info.name, previous=previous))

    async def set_thinking(self, level: str) -> None:
        """Another thinking level from here on. Listeners are shown when the model does not think."""
        previous, self.thinking = self.thinking, level
        if level != "off" and not self.model.info.thinking:
            idle = f"{self.model.info.name} does not think, so this does nothing"
            self.hooks.notify_listeners(Notice(level="warning", text=idle))
        await self._append_entry(ThinkingLevelChange(level))
        await self.hooks.emit(ThinkingChanged(level=level, previous=previous))

    def build_system_parts(self) -> list[SystemPart]:
        """The system prompt, part by part, as the next run will send it."""
        if self.system is None:
            return build_default_parts(self.cwd, list(self.tools.values()))
        return [SystemPart(name="system", text=self.system)] if isinstance(self.system, str) else list(self.system)

    @property
    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    @tools.setter
    def tools(self, tools: Mapping[str, Tool]) -> None:
        self._unsubscribe_tools()
        self._tools = tools
        self._tool_unsubscribers = [
            self.hooks.on_session(partial(_notify_tool, tool.on_session), source=tool.name)
            for tool in tools.values()
            if tool.on_session is not None
        ]

    def _unsubscribe_tools(self) -> None:
        for off in self._tool_unsubscribers:
            off()


def _claim_hooks(hooks: Hooks) -> Hooks:
    """These hooks, or some beside them where another agent has them: its handlers must know whose event it is."""
    if hooks.context.agent is None:
        return hooks
    own = hooks.derive(replace(hooks.context))
    own.listen(hooks.notify_listeners)
    return own


async def _notify_tool(on_session: OnSession, event: SessionChange, context: Any) -> None:
    told = on_session(event)
    if told is not None:
        await told


def _build_user_message(text: str, images: Sequence[JsonObject]) -> Message:
    words: list[JsonObject] = [{"type": "text", "text": text}] if text else []
    return user([*words, *images] if images else text)
