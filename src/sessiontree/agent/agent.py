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

from sessiontree.agent.handlers import Handlers
from sessiontree.agent.loop import Outcome, Run, tell_written, write_fitted
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.plain import settled
from sessiontree.agent.queues import Queued, QueueName, Queues, Said
from sessiontree.agent.record import Beside, Record
from sessiontree.agent.room import compact
from sessiontree.agent.sandbox import Confinement
from sessiontree.agent.shell import Shell
from sessiontree.agent.stop import Stop
from sessiontree.agent.system import SystemPart, default_parts, joined
from sessiontree.agent.tool import OnSession, SessionChange, Tool
from sessiontree.agent.tools.process import Ran
from sessiontree.agent.worker import Unwritten
from sessiontree.config import Config
from sessiontree.core.context import context_at
from sessiontree.core.entries import Body, CustomMessage, JsonObject, Message, ModelChange, ThinkingLevelChange
from sessiontree.core.messages import user
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Event, Input, ModelChanged, Notice, RunEnd, ThinkingChanged
from sessiontree.model.base import Model
from sessiontree.ops.ask import Stopped
from sessiontree.session import Branch

if TYPE_CHECKING:
    from sessiontree.ops.compact import CompactOutcome

T = TypeVar("T")

PATIENCE = 1.0
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
        self.hooks = _own(Hooks() if hooks is None else hooks)
        context = self.hooks.context
        context.session, context.branch, context.agent = branch.session, branch, self
        self._tools: Mapping[str, Tool] = {}
        self._untold: list[Callable[[], None]] = []
        """Each has a tool not told of other places any more."""
        self.tools = {tool.name: tool for tool in tools}
        self.system = system
        self.settings = Config() if settings is None else settings
        self.thinking = thinking or branch.state.thinking_level
        self.cwd = cwd or context.cwd or os.getcwd()
        self.confinement: Confinement | None = context.confinement
        self.permissions = permissions
        self.queues = Queues()
        self.unwritten: list[Unwritten] = []
        """What has come of runs and could not be written: it is tried again before the next one."""
        self.stop = Stop()
        self._shell = Shell(self.hooks, self.write_beside)
        self._task: asyncio.Task[Any] | None = None
        self._record: Record | None = None
        """Where the run or the compaction that goes on writes."""
        self._triggered: asyncio.Task[Outcome] | None = None
        """The last run that a message triggered, until somebody settles for how it ended."""
        self._settling = False
        self._watching: list[asyncio.Queue[Event | None]] = []
        """Of those who read events."""
        self._closed = False
        self._gave_way = False
        """Whether another process works on the branch."""
        self._noting = asyncio.Lock()
        """Held while something is written without a run, so that none starts from before it."""

    def close(self) -> None:
        """Give up what runs, and take no part any more: tools are not told of navigation."""
        self.abort()
        self._tell_no_tools()
        self._closed = True
        if not self.running:
            self._let_go()
            self._end_events()

    def _let_go(self) -> None:
        """Leave the hooks to the next agent: what is told from here on is not of this one."""
        if self.hooks.context.agent is self:
            self.hooks.context.agent = None

    # Running

    @property
    def running(self) -> bool:
        return self._task is not None

    async def prompt(self, text: str, images: Sequence[JsonObject] = (), *, beside: Sequence[Body] = ()) -> Outcome:
        """Say something to the model, and run until it has answered. Images are blocks in wire form.

        What is `beside` it is written with it, or not at all. Raises `InvalidOperation` while the agent runs, and
        `BranchMoved` when somebody else has moved the branch before anything was written. Cancelling it aborts the
        run, and waits until that is written down.
        """
        return await self._wait(self._start(self._prompted(text, images, beside)))

    async def continue_(self) -> Outcome:
        """Have the model answer what is there: after a failure, an abort, or the death of a process."""
        if not self.running and not context_at(self.branch.session.tree, self.branch.leaf).awaits_answer:
            self._end_events()
            raise InvalidOperation("there is nothing to answer: the model has the last word here")
        return await self._wait(self._start(self._run([])))

    async def say_waiting(self) -> Outcome:
        """Say what waits though nothing runs, such as after a compaction, and run until the model has answered."""
        if not self.running and not self.queues.has_due:
            self._end_events()
            raise InvalidOperation("nothing waits to be said")
        return await self._wait(self._start(self._run([], waiting=True)))

    async def compact(self, instructions: str | None = None) -> CompactOutcome:
        """Compact the branch now, after giving up what runs."""
        self.abort()
        await self.idle()
        return await self._wait(self._start(self._compacted(instructions)))

    def abort(self) -> None:
        """Give up what runs: the model, tools, commands, a compaction. What had arrived is written down."""
        self.stop.abort()
        self._shell.abort()
        if not self.running:
            self.stop.renew()

    def give_way(self) -> None:
        """Give up what runs since another process works on the branch: what had arrived is a late result there.

        From then on the agent writes nothing on the branch.
        """
        self._gave_way = True
        if self._record is not None:
            self._record.give_way(self._elsewhere())
        self.abort()

    def _elsewhere(self) -> InvalidOperation:
        return InvalidOperation(f"another process works on branch {self.branch.name!r}")

    async def idle(self) -> None:
        """Wait until nothing runs, commands of the user aside."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def end(self) -> None:
        """Give up what runs, and wait until what has come of it is written."""
        self.abort()
        await self.idle()
        await self._shell.end()

    def events(self) -> AsyncGenerator[Event]:
        """Every event from now on, until a run has ended.

        It ends too when a run is cancelled or refused before it begins, when the agent is closed, and when nothing
        runs for a second.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        unlisten = self.hooks.listen(queue.put_nowait)
        self._watching.append(queue)

        def off() -> None:
            if queue in self._watching:
                self._watching.remove(queue)
                unlisten()

        async def until_the_end() -> AsyncGenerator[Event]:
            try:
                while (event := await self._next(queue)) is not None:
                    yield event
                    if isinstance(event, RunEnd):
                        break
            finally:
                off()

        events = until_the_end()
        finalize(events, off)  # one that nobody has begun to read has no end of its own
        return events

    async def _next(self, queue: asyncio.Queue[Event | None]) -> Event | None:
        """What comes next; `None` at the end."""
        while True:
            try:
                # A run that was asked for begins at once, so nobody waits for long where there is none.
                return await asyncio.wait_for(queue.get(), None if self.running else PATIENCE)
            except TimeoutError:
                if not self.running and queue.empty():
                    return None

    def _end_events(self) -> None:
        """Tell those who read events that there are no more of what was asked for."""
        for queue in self._watching:
            queue.put_nowait(None)

    async def _prompted(self, text: str, images: Sequence[JsonObject], beside: Sequence[Body]) -> Outcome:
        try:
            event, answer = await Handlers(self.hooks, self.stop.signal).ask(Input(text=text))
        except Stopped:
            return Outcome(aborted=True, cancelled=True)
        if answer.cancel:
            return Outcome(cancelled=True)
        return await self._run([_user(event.text, images), *beside], prompted=True)

    async def _run(self, opening: Sequence[Body], *, prompted: bool = False, waiting: bool = False) -> Outcome:
        # Files are read elsewhere, since they may be slow; a text that was given is there.
        parts = await asyncio.to_thread(self.system_parts) if self.system is None else self.system_parts()
        async with self._beginning(joined(parts)) as run:
            return await run.through(opening, prompted=prompted, waiting=waiting)

    async def _compacted(self, instructions: str | None) -> CompactOutcome:
        async with self._beginning() as run:
            return await compact(self, run.record, "manual", instructions)

    @asynccontextmanager
    async def _beginning(self, system: str = "") -> AsyncGenerator[Run]:
        """A run from where the branch is now. However it ends, what has come beside it is written then."""
        async with self._noting:
            await self._write_unwritten()
            record = self._record = Record(self.branch)
        if self._gave_way:
            record.give_way(self._elsewhere())
        run = Run(self, record, system)
        try:
            yield run
        finally:
            if not self.unwritten:
                await run.write_annexes()
            self._record = None

    @property
    def unsaved(self) -> list[JsonObject]:
        """Messages that arrived and could not be written, oldest first. They are written before the next prompt."""
        return [message for _, message in self.unwritten]

    async def _write_unwritten(self) -> None:
        """Write what could not be written before, where it belongs. Raises `StoreError` where it still cannot be."""
        while self.unwritten:
            record, message = self.unwritten[0]
            entry = await write_fitted(record, message, self.hooks)
            del self.unwritten[0]
            await tell_written(self.hooks.tell, entry)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        if self._task is not None:
            work.close()
            raise InvalidOperation("the agent is running: steer it, give it a follow-up, or wait until it is idle")
        task = self._task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._task = self._record = None
        self._end_events()
        self.stop.renew()
        if self._closed:
            self._let_go()

    async def _wait(self, task: asyncio.Task[T]) -> T:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self.abort()
                await asyncio.wait([task])
            self._report(task)
            raise

    # What waits to be said

    async def steer(self, text: str, images: Sequence[JsonObject] = ()) -> None:
        """Say something as soon as the tool calls of this turn are done. While nothing runs, it waits for a run."""
        await self._queue("steering", _user(text, images))

    async def follow_up(self, text: str, images: Sequence[JsonObject] = ()) -> None:
        """Say something when the run would end."""
        await self._queue("follow_up", _user(text, images))

    async def next_turn(self, message: str | Said, images: Sequence[JsonObject] = ()) -> None:
        """Put a text with images, or a message, before the next prompt."""
        await self._queue("next_turn", _user(message, images) if isinstance(message, str) else message)

    async def _queue(self, name: QueueName, message: Said) -> None:
        """Have a message wait. Raises `InvalidOperation` for one that could not be written then."""
        self.queues.put(name, settled(message))
        await self.hooks.tell(self.queues.changed())

    @property
    def queued(self) -> Queued:
        """What waits, as text."""
        return self.queues.listed()

    async def take_back(self) -> Queued:
        """Empty the queues, and return what was in them."""
        taken = self.queues.take_back()
        await self.hooks.tell(self.queues.changed())
        return taken

    async def send_message(self, message: CustomMessage, *, trigger_turn: bool = False) -> None:
        """A message of an extension: written at once, and answered if it is to trigger a turn.

        While the agent runs it waits for the end of the turn, and triggers nothing. A run that it triggers goes
        on by itself: `idle` waits for it, and `settle` gives its outcome.
        """
        if trigger_turn and not self.running:
            self._triggered = self._start(self._run([message]))
            self._triggered.add_done_callback(self._report)
        else:
            await self.write_beside(Beside(self.branch), message)

    async def settle(self) -> Outcome | None:
        """Wait until nothing runs. Return how the last run ended that a message triggered, and raise what it raised.

        Return `None` where no message has triggered one since.
        """
        self._settling = True
        try:
            await self.idle()
        finally:
            self._settling = False
        triggered, self._triggered = self._triggered, None
        return None if triggered is None else await triggered

    def _report(self, task: asyncio.Task[Any]) -> None:
        """Tell of the failure of a run that nobody waits for."""
        if self._settling and task is self._triggered:
            return
        if not task.cancelled() and task.exception() is not None:
            self.hooks.show(Notice(level="error", text=str(task.exception())))

    async def bash(self, command: str, *, in_context: bool = True, timeout: float | None = None) -> Ran:
        """Run a command for the user and write down what it printed, for the model to see or not.

        While the agent runs, it is written down when the turn ends; where somebody has gone elsewhere meanwhile, at the
        place where it was begun.
        """
        return await self._shell.run(
            command, self.branch, cwd=self.cwd, settings=self.settings, in_context=in_context, timeout=timeout
        )

    async def write_beside(self, record: Beside, body: Body) -> None:
        """Write something that nobody answers; when the turn ends, if one goes on there.

        Raises `InvalidOperation` for what could not be written then.
        """
        async with self._noting:
            if self._record is not None and record.branch == self._record.branch and not record.left():
                self.queues.annexes.append(settled(body))
                return
            if self._gave_way:
                record.give_way(self._elsewhere())
            (entry,) = await record.extend_or_late([body])
        await tell_written(self.hooks.tell, entry)

    async def _note(self, body: Body) -> None:
        """Write something where the agent stands, while it runs too."""
        async with self._noting:
            (entry,) = await (self._record or Record(self.branch)).extend([body])
        await tell_written(self.hooks.tell, entry)

    # What holds

    async def set_model(self, model: Model) -> None:
        """Another model from here on."""
        previous, self.model = self.model.info.name, model
        await self._note(ModelChange(provider=model.info.provider, model=model.info.model))
        await self.hooks.tell(ModelChanged(model=model.info.name, previous=previous))

    async def set_thinking(self, level: str) -> None:
        """Another thinking level from here on. Listeners are shown when the model does not think."""
        previous, self.thinking = self.thinking, level
        if level != "off" and not self.model.info.thinking:
            idle = f"{self.model.info.name} does not think, so this does nothing"
            self.hooks.show(Notice(level="warning", text=idle))
        await self._note(ThinkingLevelChange(level))
        await self.hooks.tell(ThinkingChanged(level=level, previous=previous))

    def system_parts(self) -> list[SystemPart]:
        """The system prompt, part by part, as the next run will send it."""
        if self.system is None:
            return default_parts(self.cwd, list(self.tools.values()))
        return [SystemPart(name="system", text=self.system)] if isinstance(self.system, str) else list(self.system)

    @property
    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    @tools.setter
    def tools(self, tools: Mapping[str, Tool]) -> None:
        self._tell_no_tools()
        self._tools = tools
        self._untold = [
            self.hooks.on_session(partial(_tell_tool, tool.on_session), source=tool.name)
            for tool in tools.values()
            if tool.on_session is not None
        ]

    def _tell_no_tools(self) -> None:
        for off in self._untold:
            off()


def _own(hooks: Hooks) -> Hooks:
    """These hooks, or some beside them where another agent has them: its handlers must know whose event it is."""
    if hooks.context.agent is None:
        return hooks
    own = hooks.beside(replace(hooks.context))
    own.listen(hooks.show)
    return own


async def _tell_tool(on_session: OnSession, event: SessionChange, context: Any) -> None:
    told = on_session(event)
    if told is not None:
        await told


def _user(text: str, images: Sequence[JsonObject]) -> Message:
    words: list[JsonObject] = [{"type": "text", "text": text}] if text else []
    return user([*words, *images] if images else text)
