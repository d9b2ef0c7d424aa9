"""Agents: the public interface to one model that runs on one branch.

An `Agent` starts and stops runs, queues messages, and holds the model, the tools and the settings. The turns of a run
are in `loop`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, TypeVar, overload
from weakref import finalize

from sessiontree.agent.agent_input import (
    build_prompt_message,
    check_agent_options,
    check_thinking_level,
    resolve_branch,
    resolve_model,
    resolve_tools,
)
from sessiontree.agent.autocompact import run_compaction
from sessiontree.agent.file_recorder import FileRecorder
from sessiontree.agent.loop import AgentRun, Outcome, OutputT, emit_message_events
from sessiontree.agent.message_queues import QueuedMessage, QueueName, Queues, QueueSnapshot
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.run_writer import BackgroundWriter, PendingWrite, RunWriter, copy_writable, write_message
from sessiontree.agent.sandbox import Confinement
from sessiontree.agent.structured_output import StructuredOutput
from sessiontree.agent.system_prompt import SystemPart, SystemPromptBuilder, join_parts
from sessiontree.agent.tool import OnSession, SessionChange, Tool, ToolProvider
from sessiontree.agent.tools.bash_tool import CommandResult
from sessiontree.agent.user_shell import UserShell
from sessiontree.config import Config
from sessiontree.core.context import GrowingContext, build_shared_context
from sessiontree.core.entries import Body, CustomMessage, JsonObject, Message, ModelChange, ThinkingLevelChange
from sessiontree.core.message_views import Image
from sessiontree.core.messages import extract_text, name_author
from sessiontree.errors import InvalidOperation
from sessiontree.files.private_folder import find_private_folder, open_private_folder
from sessiontree.hooks.abort import AbortableHooks, AbortController, OperationStopped
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Event, Input, ModelChanged, Notice, RunEnd, ThinkingChanged
from sessiontree.model.base import Model
from sessiontree.ops.compact import CompactOutcome
from sessiontree.session import Branch, Session

T = TypeVar("T")

IDLE_TIMEOUT = 1.0
"""Seconds that a reader of events waits for a run to start."""


class Agent:
    def __init__(
        self,
        branch: Branch | Session | None = None,
        model: Model | str | None = None,
        tools: Iterable[Tool | Callable[..., Any]] | None = (),
        hooks: Hooks | None = None,
        *,
        system: str | Sequence[SystemPart] | SystemPromptBuilder | None = None,
        settings: Config | None = None,
        thinking: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        permissions: Permissions | None = None,
        snapshots: bool = False,
        tool_provider: ToolProvider | None = None,
    ) -> None:
        """Create an agent on a branch, on the current branch of a session, or on a new session in memory.

        `model` is a model, or its name such as `openai:gpt-5.5`; by default the default model. `tools` are functions
        and tools. `permissions` decide about every tool call; without them, every call is allowed. `system` is the
        system prompt; there is none by default. The thinking level defaults to the one at the head of the branch.
        `cwd`, the folder that tools work in, defaults to the private folder of the branch, if it has one, else to the
        current folder, and not to the folder in the session. With `snapshots`, the files of that folder are saved
        before and after every tool call that may change them. Before every request, `tool_provider` is asked for more
        tools; the tools in `tools` win if they have the same name. If another agent uses `hooks`, this agent gets its
        own hooks that call the same handlers and listeners.

        Raises `InvalidOperation` for wrong arguments, `NotFound` or `NoModel` for a model that is not available, and
        `SnapshotError` if the private folder cannot be used.
        """
        branch = resolve_branch(branch)
        by_name = resolve_tools(tools)
        check_agent_options(
            hooks=hooks, system=system, settings=settings, thinking=thinking, cwd=cwd, permissions=permissions
        )
        shared = Hooks() if hooks is None else hooks
        self.branch = branch
        self.model = resolve_model(model, settings, shared)
        self.hooks = _claim_hooks(shared)
        self.author = ""
        """Who writes the prompts, if several people use the session."""
        context = self.hooks.context
        context.session, context.branch, context.agent = branch.session, branch, self
        self._tools: Mapping[str, Tool] = {}
        self._provided_tools: Mapping[str, Tool] = {}
        self.tool_provider = tool_provider
        self._tool_unsubscribers: list[Callable[[], None]] = []
        """Each removes the session handler of a tool."""
        self.tools = by_name
        self.system = system
        self.settings = Config() if settings is None else settings
        self.thinking = thinking or branch.state.thinking_level
        self.cwd = os.fspath(cwd or _open_private_folder(branch) or context.cwd or os.getcwd())
        self.confinement: Confinement | None = context.confinement
        self.permissions = permissions
        self.file_recorder = FileRecorder(self.settings.files, self.hooks) if snapshots else None
        self.queues = Queues()
        self.request_context = GrowingContext()
        """The context of the last request, which the next one continues."""
        self.pending_writes: list[PendingWrite] = []
        """Messages that could not be written; the agent retries before the next run."""
        self.abort_controller = AbortController()
        self._user_shell = UserShell(self.hooks, self.write_between_turns)
        self._task: asyncio.Task[Any] | None = None
        self._writer: RunWriter | None = None
        """The writer of the current run or compaction."""
        self._triggered_run: asyncio.Task[Outcome] | None = None
        """The last run triggered by a message, until `wait_for_triggered_run` returns its outcome."""
        self._awaiting_triggered_run = False
        self._event_queues: list[asyncio.Queue[Event | None]] = []
        """One queue for each reader of events."""
        self._closed = False
        self._handed_over = False
        """Whether another process has taken over the branch."""
        self._write_lock = asyncio.Lock()
        """Held while an entry is written outside of a run. A new run waits for it."""

    def __repr__(self) -> str:
        return f"Agent({self.branch!r}, {self.model.info.name!r}, tools={list(self.tools)})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def session(self) -> Session:
        return self.branch.session

    async def close(self) -> None:
        """Abort everything, wait until the results are written, and disconnect from the hooks.

        The session stays open.
        """
        self._unsubscribe_tools()
        self._closed = True
        await self.abort_and_wait()
        self._release_hooks()
        self._end_events()

    def _release_hooks(self) -> None:
        """Release the hooks for the next agent, and the messages of the last request."""
        self.request_context.clear()
        if self.hooks.context.agent is self:
            self.hooks.context.agent = None

    # Running

    @property
    def running(self) -> bool:
        return self._task is not None

    @overload
    async def run(
        self, prompt: str, images: Sequence[JsonObject | Image] = (), *, extra_entries: Sequence[Body] = ()
    ) -> Outcome: ...

    @overload
    async def run(
        self,
        prompt: str,
        images: Sequence[JsonObject | Image] = (),
        *,
        output: type[OutputT],
        extra_entries: Sequence[Body] = (),
    ) -> Outcome[OutputT]: ...

    @overload
    async def run(
        self,
        prompt: str,
        images: Sequence[JsonObject | Image] = (),
        *,
        output: Any,
        extra_entries: Sequence[Body] = (),
    ) -> Outcome[Any]: ...

    async def run(
        self,
        prompt: str,
        images: Sequence[JsonObject | Image] = (),
        *,
        output: Any = None,
        extra_entries: Sequence[Body] = (),
    ) -> Outcome[Any]:
        """Send a prompt to the model and run until it has answered.

        `output` is the type of the answer: a pydantic model, a dataclass, a struct or a plain type. The model has to
        give such a value, and `Outcome.output` returns it. Without `output`, the answer is text.

        The prompt and `extra_entries` are written in one batch. Raises `InvalidOperation` while the agent runs, and
        `BranchMoved` if another writer moved the branch before anything was written. Cancelling the call aborts the run
        and waits until its entries are written.
        """
        message = build_prompt_message(prompt, images)
        expected = None if output is None or output is str else StructuredOutput(output)
        return await self._wait_for_task(self._start_task(self._run_prompt(message, extra_entries, expected)))

    @overload
    def run_sync(
        self, prompt: str, images: Sequence[JsonObject | Image] = (), *, extra_entries: Sequence[Body] = ()
    ) -> Outcome: ...

    @overload
    def run_sync(
        self,
        prompt: str,
        images: Sequence[JsonObject | Image] = (),
        *,
        output: type[OutputT],
        extra_entries: Sequence[Body] = (),
    ) -> Outcome[OutputT]: ...

    @overload
    def run_sync(
        self,
        prompt: str,
        images: Sequence[JsonObject | Image] = (),
        *,
        output: Any,
        extra_entries: Sequence[Body] = (),
    ) -> Outcome[Any]: ...

    def run_sync(
        self,
        prompt: str,
        images: Sequence[JsonObject | Image] = (),
        *,
        output: Any = None,
        extra_entries: Sequence[Body] = (),
    ) -> Outcome[Any]:
        """Do the same as `run` in a program without an event loop, such as a script."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(prompt, images, output=output, extra_entries=extra_entries))
        raise InvalidOperation(
            "an event loop is running, as in a notebook or an async function: write `await agent.run(…)` instead of "
            "agent.run_sync(…)"
        )

    async def continue_(self) -> Outcome:
        """Let the model answer the last message: after a failure, an abort or a crash."""
        if not self.running and not build_shared_context(self.branch.session.tree, self.branch.leaf).awaits_answer:
            self._end_events()
            raise InvalidOperation("no message to answer: the last message is from the model")
        return await self._wait_for_task(self._start_task(self._run([])))

    async def send_queued(self) -> Outcome:
        """Send the queued messages when no run is active, such as after a compaction. Run until the model answers."""
        if not self.running and not self.queues.has_due:
            self._end_events()
            raise InvalidOperation("no messages are queued")
        return await self._wait_for_task(self._start_task(self._run([], send_queued=True)))

    async def compact(self, instructions: str | None = None) -> CompactOutcome:
        """Abort the current run, and compact the branch."""
        self.abort()
        await self.wait_until_idle()
        return await self._wait_for_task(self._start_task(self._run_compaction(instructions)))

    def abort(self) -> None:
        """Abort the model call, tools, commands and compaction. Partial results are written."""
        self.abort_controller.abort()
        self._user_shell.abort()
        if not self.running:
            self.abort_controller.reset()

    def hand_over(self) -> None:
        """Abort the run because another process has taken over the branch.

        From then on the agent does not move the branch: it writes its results as late entries.
        """
        self._handed_over = True
        if self._writer is not None:
            self._writer.detach(self._build_handed_over_error())
        self.abort()

    def _build_handed_over_error(self) -> InvalidOperation:
        return InvalidOperation(f"another process has taken over branch {self.branch.name!r}")

    async def wait_until_idle(self) -> None:
        """Wait until no run is active. Commands of the user may still run."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def abort_and_wait(self) -> None:
        """Abort everything, and wait until the results are written. The agent can run again."""
        self.abort()
        await self.wait_until_idle()
        await self._user_shell.shutdown()

    def events(self) -> AsyncGenerator[Event]:
        """Iterate over all events from now until a run ends.

        The iteration also ends when a run is cancelled or refused before it starts, when the agent is closed, and after
        one second without a run.
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
        finalize(events, unsubscribe)  # a generator that is never started does not run its `finally`
        return events

    async def _wait_for_event(self, queue: asyncio.Queue[Event | None]) -> Event | None:
        """Return the next event; `None` at the end."""
        while True:
            try:
                # A requested run starts at once, so a reader without a run stops after a short wait.
                return await asyncio.wait_for(queue.get(), None if self.running else IDLE_TIMEOUT)
            except TimeoutError:
                if not self.running and queue.empty():
                    return None

    def _end_events(self) -> None:
        """Wake the readers of events: the stream has ended."""
        for queue in self._event_queues:
            queue.put_nowait(None)

    async def _run_prompt(
        self, message: Message, extra_entries: Sequence[Body], output: StructuredOutput | None
    ) -> Outcome:
        text = extract_text(message.message["content"])
        try:
            event, answer = await AbortableHooks(self.hooks, self.abort_controller.signal).ask(Input(text=text))
        except OperationStopped:
            return Outcome(aborted=True, cancelled=True)
        if answer.cancel:
            return Outcome(cancelled=True, cancelled_by=answer.cancelled_by)
        opening = message if event.text == text else build_prompt_message(event.text, _get_images(message))
        opening = name_author(opening, self.author)
        return await self._run([opening, *extra_entries], prompted=True, output=output)

    async def _run(
        self,
        opening: Sequence[Body],
        *,
        prompted: bool = False,
        send_queued: bool = False,
        output: StructuredOutput | None = None,
    ) -> Outcome:
        # Instruction files may be slow to read, so a thread reads them.
        builds = self._system_builder is not None
        parts = await asyncio.to_thread(self.build_system_parts) if builds else self.build_system_parts()
        async with self._open_run(join_parts(parts), output) as run:
            return await run.run(opening, prompted=prompted, send_queued=send_queued)

    async def _run_compaction(self, instructions: str | None) -> CompactOutcome:
        async with self._open_run() as run:
            return await run_compaction(self, run.writer, "manual", instructions)

    @asynccontextmanager
    async def _open_run(self, system: str = "", output: StructuredOutput | None = None) -> AsyncGenerator[AgentRun]:
        """Open a run at the head of the branch. At the end, write the entries that were deferred during it."""
        async with self._write_lock:
            await self._write_pending()
            writer = self._writer = RunWriter(self.branch)
        if self._handed_over:
            writer.detach(self._build_handed_over_error())
        run = AgentRun(self, writer, system, output)
        try:
            yield run
        finally:
            if not self.pending_writes:
                await run.write_deferred()
            self._writer = None

    @property
    def unsaved(self) -> list[JsonObject]:
        """Messages that could not be written, oldest first. The agent writes them before the next prompt."""
        return [message for _, message in self.pending_writes]

    async def _write_pending(self) -> None:
        """Write the messages that could not be written before. Raises `StoreError` if writing still fails."""
        while self.pending_writes:
            writer, message = self.pending_writes[0]
            entry = await write_message(writer, message, self.hooks)
            del self.pending_writes[0]
            await emit_message_events(self.hooks.emit, entry)

    def _start_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        if self._task is not None:
            work.close()
            raise InvalidOperation("the agent is running: steer it, queue a follow-up, or wait until it is idle")
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

    # Queues

    async def steer(self, text: str, images: Sequence[JsonObject | Image] = (), *, author: str = "") -> None:
        """Queue a message for after the tool calls of this turn, or for the next run if none is active.

        `author` is who wrote it, if several people use the agent.
        """
        await self._queue("steering", name_author(build_prompt_message(text, images), author))

    async def follow_up(self, text: str, images: Sequence[JsonObject | Image] = ()) -> None:
        """Queue a message for the end of the run."""
        await self._queue("follow_up", build_prompt_message(text, images))

    async def queue_for_next_turn(
        self, message: str | QueuedMessage, images: Sequence[JsonObject | Image] = ()
    ) -> None:
        """Queue a text with images, or a message, to be sent before the next prompt."""
        await self._queue("next_turn", build_prompt_message(message, images) if isinstance(message, str) else message)

    async def _queue(self, name: QueueName, message: QueuedMessage) -> None:
        """Queue a copy of a message. Raises `InvalidOperation` if it cannot be written."""
        self.queues.append(name, copy_writable(message))
        await self.hooks.emit(self.queues.build_changed_event())

    @property
    def queued(self) -> QueueSnapshot:
        """The queued messages, as text."""
        return self.queues.build_snapshot()

    async def clear_queues(self) -> QueueSnapshot:
        """Empty the queues and return their messages."""
        removed = self.queues.clear()
        await self.hooks.emit(self.queues.build_changed_event())
        return removed

    async def send_message(self, message: CustomMessage, *, trigger_turn: bool = False) -> None:
        """Write a message of an extension, and start a run that answers it if `trigger_turn` is set.

        While the agent runs, the message is written at the end of the turn and triggers no run. A triggered run works
        in the background: `wait_until_idle` waits for it, `wait_for_triggered_run` returns its outcome.
        """
        if trigger_turn and not self.running:
            self._triggered_run = self._start_task(self._run([message]))
            self._triggered_run.add_done_callback(self._report_failure)
        else:
            await self.write_between_turns(BackgroundWriter(self.branch), message)

    async def wait_for_triggered_run(self) -> Outcome | None:
        """Wait until no run is active. Return the outcome of the last run triggered by a message, or raise its error.

        Return `None` if no message has triggered a run since the last call.
        """
        self._awaiting_triggered_run = True
        try:
            await self.wait_until_idle()
        finally:
            self._awaiting_triggered_run = False
        triggered, self._triggered_run = self._triggered_run, None
        return None if triggered is None else await triggered

    def _report_failure(self, task: asyncio.Task[Any]) -> None:
        """Report the failure of a background run as a notice."""
        if self._awaiting_triggered_run and task is self._triggered_run:
            return
        if not task.cancelled() and task.exception() is not None:
            self.hooks.notify_listeners(Notice(level="error", text=str(task.exception())))

    async def run_bash(self, command: str, *, in_context: bool = True, timeout: float | None = None) -> CommandResult:
        """Run a shell command of the user and write its output; `in_context` decides whether the model sees it.

        The `timeout` is in seconds. While the agent runs, the output is written at the end of the turn. If the branch
        was moved in between, it is written as a late entry where the command started.
        """
        return await self._user_shell.run(
            command, self.branch, cwd=self.cwd, settings=self.settings, in_context=in_context, timeout=timeout
        )

    async def write_between_turns(self, writer: BackgroundWriter, body: Body) -> None:
        """Write an entry that needs no answer; at the end of the turn, if a run is active there.

        Raises `InvalidOperation` if it cannot be written.
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
        """Write an entry at the position of the agent, also during a run."""
        async with self._write_lock:
            (entry,) = await (self._writer or RunWriter(self.branch)).extend([body])
        await emit_message_events(self.hooks.emit, entry)

    # Settings

    async def set_model(self, model: Model | str) -> None:
        """Switch to another model, or to the model of that name."""
        model = resolve_model(model, self.settings, self.hooks)
        previous, self.model = self.model.info.name, model
        await self._append_entry(ModelChange(provider=model.info.provider, model=model.info.model))
        await self.hooks.emit(ModelChanged(model=model.info.name, previous=previous))

    async def set_thinking(self, level: str) -> None:
        """Set the thinking level. Listeners get a warning if the model does not support thinking."""
        check_thinking_level(level)
        previous, self.thinking = self.thinking, level
        if level != "off" and not self.model.info.thinking:
            text = f"{self.model.info.name} does not support thinking; the level has no effect"
            self.hooks.notify_listeners(Notice(level="warning", text=text))
        await self._append_entry(ThinkingLevelChange(level))
        await self.hooks.emit(ThinkingChanged(level=level, previous=previous))

    def build_system_parts(self) -> list[SystemPart]:
        """Return the parts of the system prompt of the next run."""
        builder, system = self._system_builder, self.system
        if builder is not None:
            return builder(self.cwd, list(self._tools.values()))  # provided tools are known only at the request
        if isinstance(system, str):
            return [SystemPart(name="system", text=system)]
        return [] if system is None or callable(system) else list(system)

    @property
    def _system_builder(self) -> SystemPromptBuilder | None:
        """Builds the system prompt: the function given as `system`, or the one of the front end if none is given."""
        if self.system is None:
            return self.hooks.context.build_system_prompt
        return None if isinstance(self.system, str | Sequence) else self.system

    async def update_provided_tools(self) -> None:
        """Ask the provider for its tools."""
        if self.tool_provider is not None:
            warn = partial(self._notify, "warning")
            self._provided_tools = {tool.name: tool for tool in await self.tool_provider.list_tools(warn)}

    def _notify(self, level: Literal["info", "warning", "error"], text: str) -> None:
        self.hooks.notify_listeners(Notice(level=level, text=text))

    @property
    def tools(self) -> Mapping[str, Tool]:
        return {**self._provided_tools, **self._tools} if self._provided_tools else self._tools

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
    """Return these hooks, or derived ones if another agent uses them: handlers must know whose event they get."""
    if hooks.context.agent is None:
        return hooks
    own = hooks.derive(replace(hooks.context))
    own.listen(hooks.notify_listeners)
    return own


def _open_private_folder(branch: Branch) -> str | None:
    private = find_private_folder(branch.session.id, branch.name)
    return None if private is None else open_private_folder(private)


async def _notify_tool(on_session: OnSession, event: SessionChange, context: Any) -> None:
    result = on_session(event)
    if result is not None:
        await result


def _get_images(message: Message) -> list[JsonObject]:
    content = message.message["content"]
    return [] if isinstance(content, str) else [block for block in content if block.get("type") != "text"]
