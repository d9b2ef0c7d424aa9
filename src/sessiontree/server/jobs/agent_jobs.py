"""Runs: agents at work in this server, one on a branch at most, and the handlers that operations ask.

Everything here happens in the workshop. A session has a desk of its own there, made when something is first asked of
it, with the extensions of the user and of the project if that is trusted: what guards a session in the terminal guards
it here. Nobody is there who could be asked, so nothing new is trusted. What an agent does is told to the session's
feed; what it writes is in the session, where everybody finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from sessiontree import config
from sessiontree.agent.agent import Agent
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.setup import create_agent
from sessiontree.agent.tool import Tool
from sessiontree.agent.tools import builtin_tools
from sessiontree.agent.unsaved_messages import UnsavedMessages
from sessiontree.commands.controller import SessionController
from sessiontree.commands.models import ConfiguredModels, Models, choose_model
from sessiontree.config import PermissionMode
from sessiontree.core.entries import JsonObject
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.extensions.loader import ExtensionLoader
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import (
    Event,
    MessageDelta,
    MessageEnd,
    MessageStart,
    Notice,
    QueueChanged,
    RetryScheduled,
    ToolDenied,
    ToolEnd,
    ToolStart,
    ToolUpdate,
)
from sessiontree.model.base import Model
from sessiontree.server.http_errors import make_insufficient_rights
from sessiontree.server.jobs.agent_access import PermissionBroker, Workspace
from sessiontree.server.jobs.registry import AgentLoop
from sessiontree.session import Branch
from sessiontree.swarm.status import MAX_DENIED

if TYPE_CHECKING:
    from sessiontree.server.session_cache import OpenSession

log = logging.getLogger("sessiontree.server")


class AgentJob(Struct, frozen=True, eq=False):
    """An agent at work."""

    agent: Agent
    task: asyncio.Task[None]


class SessionRuntime(Struct, frozen=True, eq=False):
    """Where one session is worked on."""

    opened: OpenSession
    controller: SessionController
    extensions: ExtensionLoader
    limited_permissions: Permissions | None
    """For agents that are kept in their project. What somebody allows these must not count outside of a sandbox."""

    def get_tools(self, workspace: Workspace) -> list[Tool]:
        """The tools of agents that work at a place. Those of extensions run in this process, where no sandbox is."""
        return list(builtin_tools()) if workspace.is_limited else self.controller.tools

    def get_permissions(self, workspace: Workspace) -> Permissions | None:
        return self.limited_permissions if workspace.is_limited else self.controller.permissions

    def create_hooks(self, workspace: Workspace, branch: Branch | None = None) -> Hooks:
        """The session's handlers, for agents that work at a place."""
        shared = self.controller.hooks
        context = replace(shared.context, agent=None, cwd=workspace.cwd, confinement=workspace.confinement)
        if branch is not None:
            context = replace(context, session=branch.session, branch=branch)
        hooks = shared.derive(context)
        hooks.listen(partial(publish_notice, self.opened))
        if workspace.note is not None:
            hooks.notify_listeners(Notice(level="warning", text=workspace.note))
        return hooks

    async def close(self) -> None:
        with contextlib.suppress(SessionTreeError):
            await self.controller.close()
        self.extensions.unload()


class AgentJobs:
    def __init__(
        self,
        agent_loop: AgentLoop,
        models: Models | None = None,
        folder: Callable[[str], str] = lambda folder: os.getcwd(),
        permissions: PermissionBroker | None = None,
    ) -> None:
        self._agent_loop = agent_loop
        self._models = models
        self._find_folder = folder
        """Says which folder belongs to a session that names one: its project's extensions are looked for there."""
        self._permissions = PermissionBroker() if permissions is None else permissions
        self._runtimes: dict[str, SessionRuntime] = {}
        """By the file of the session."""
        self._jobs: dict[str, dict[str, AgentJob]] = {}
        """By the file and the name of the branch, also when the file was replaced under a run and opened anew."""
        self._runtime_locks = dict[str, asyncio.Lock]()

    def _get_runtime(self, opened: OpenSession) -> SessionRuntime | None:
        """Where a session is worked on; one that was opened anew since is another."""
        seat = self._runtimes.get(opened.file)
        return seat if seat is not None and seat.controller.session is opened.session else None

    # What may be asked from outside of the workshop

    def find_model(self, name: str | None = None) -> Model:
        """The model of that name, or the usual one, for no session yet. Raises `NoModel` or `NotFound`."""
        models = ConfiguredModels(config.load(), Hooks()) if self._models is None else self._models
        return models.find(name)

    def list_running(self, opened: OpenSession) -> list[str]:
        """The branches of a session with an agent at work."""
        return list(self._jobs.get(opened.file, ()))

    def check_idle(self, opened: OpenSession, branch: str) -> None:
        """Raises `InvalidOperation` while an agent is at work on a branch: it cannot be moved under it."""
        if branch in self.list_running(opened):
            raise InvalidOperation(f"an agent is at work on branch {branch!r}: abort it, or wait until it is done")

    async def close_session(self, opened: OpenSession) -> None:
        """Let go of a session."""
        seat = self._runtimes.get(opened.file)
        if seat is not None and seat.opened is opened:
            await self._agent_loop.run(self._close_runtime(seat))
        await asyncio.to_thread(opened.session.close)

    async def close(self) -> None:
        """Give up all runs, and wait until that is written down."""
        if self._jobs:
            await self._agent_loop.run(self._abort_all())

    # In the workshop

    async def open_runtime(self, opened: OpenSession) -> SessionRuntime:
        """The desk of a session, with its extensions."""
        async with self._runtime_locks.setdefault(opened.file, asyncio.Lock()):
            seat = self._get_runtime(opened)
            if seat is not None:
                return seat
            before = self._runtimes.get(opened.file)
            if before is not None:  # nothing can be written from there any more
                await _abort_jobs(self._jobs.get(opened.file, {}).values())
                await self._close_runtime(before)
            hooks = Hooks()
            hooks.listen(partial(publish_notice, opened))
            settings = await asyncio.to_thread(config.load)
            desk = SessionController(
                opened.session,
                hooks=hooks,
                models=self._models,
                options=await asyncio.to_thread(
                    self._permissions.load_options, settings, self._find_folder(opened.session.cwd)
                ),
            )
            extensions = ExtensionLoader(desk)
            await extensions.load()
            await desk.start()
            limited = None if desk.permissions is None else desk.permissions.copy_without_grants()
            made = self._runtimes[opened.file] = SessionRuntime(opened, desk, extensions, limited)
            return made

    async def choose_model(self, runtime: SessionRuntime, branch: Branch, name: str | None = None) -> Model:
        """The model that was named, or that the branch was held with, or the usual one."""
        found, warning = await asyncio.to_thread(choose_model, runtime.controller.models, name, branch.state)
        if warning is not None:
            runtime.controller.hooks.notify_listeners(Notice(level="warning", text=warning))
        return found

    async def start(
        self,
        opened: OpenSession,
        branch: str | None,
        text: str,
        images: Sequence[JsonObject],
        model: str | None,
        on_end: Callable[[], None],
        workspace: Workspace,
        mode: PermissionMode | None = None,
    ) -> tuple[str, str]:
        """Have an agent answer, and return at once: the run and its branch. `ended` is called when it is over.

        With a permission `mode`, whoever listens is asked about calls that need an answer; without, they are denied.

        Where none can begin, `ended` is not called.
        """
        seat = await self.open_runtime(opened)
        session = opened.session
        on = session.head if branch is None else session.branch(branch)
        found = await self.choose_model(seat, on, model)
        self.check_idle(opened, on.name)
        hooks = seat.create_hooks(workspace, branch=on)
        teller = _EventPublisher(opened, on.name)
        hooks.listen(teller)
        id = secrets.token_hex(4)
        permissions = seat.get_permissions(workspace)
        if permissions is not None and mode is not None:
            asker = self._permissions.create_asker(opened, on.name, id, limited=workspace.is_limited)
            permissions = permissions.copy_with_asker(asker, mode)
        thinking = seat.controller.settings.thinking if on.leaf is None else None
        options = structs.replace(
            seat.controller.options,
            tools=seat.get_tools(workspace),
            thinking=thinking,
            cwd=workspace.cwd,
            permissions=permissions,
        )
        agent = create_agent(on, found, hooks, options)
        task = asyncio.create_task(self._run(opened, agent, id, text, images, on_end, teller.denied))
        self._jobs.setdefault(opened.file, {})[on.name] = AgentJob(agent, task)
        return id, on.name

    async def _run(
        self,
        opened: OpenSession,
        agent: Agent,
        id: str,
        text: str,
        images: Sequence[JsonObject],
        on_end: Callable[[], None],
        denied: dict[str, str],
    ) -> None:
        name = agent.branch.name
        told: JsonObject = {"branch": name, "run": id}
        error: str | None = None
        tell = partial(opened.feed.publish, count=partial(_count_entries, opened))
        tell("run", {**told, "status": "started"})
        try:
            outcome = await agent.prompt(text, images)
            if isinstance(outcome.error, UnsavedMessages):
                error = str(outcome.error.build_exit_error("the page that shows it now"))
            elif outcome.error is not None:
                error = str(outcome.error)
            elif outcome.aborted or outcome.cancelled:
                error = "it was aborted" if outcome.aborted else "a handler did not let it happen"
        except SessionTreeError as failed:
            error = str(failed)
        except Exception:
            log.exception("a run on %s failed", opened.file)
            error = "something went wrong here; the server's log tells what"
        finally:
            agent.close()
            self._remove(opened.file, name)
            refused = [{"call": title, "reason": reason} for title, reason in denied.items()]
            tell("run", {**told, "status": "ended", "error": error, "denied": refused})
            on_end()

    def _remove(self, file: str, branch: str) -> None:
        running = self._jobs[file]
        del running[branch]
        if not running:
            del self._jobs[file]

    def get_job(self, opened: OpenSession, branch: str | None) -> AgentJob:
        """The run on a branch, the current one by default. Raises `InvalidOperation` where none is."""
        session = opened.session
        name = (session.head if branch is None else session.branch(branch)).name
        run = self._jobs.get(opened.file, {}).get(name)
        if run is None:
            raise InvalidOperation(f"no agent is at work on branch {name!r}")
        return run

    async def steer(self, opened: OpenSession, branch: str | None, text: str, *, limited: bool) -> str:
        run = self.get_job(opened, branch)
        confinement = run.agent.confinement
        if limited and not (confinement is not None and confinement.is_limited):
            raise make_insufficient_rights()
        await run.agent.steer(text)
        return run.agent.branch.name

    async def abort(self, opened: OpenSession, branch: str | None) -> str:
        """Give up the run on a branch, and wait until that is written down."""
        run = self.get_job(opened, branch)
        name = run.agent.branch.name
        run.agent.abort()
        await asyncio.wait([run.task])
        return name

    async def _abort_all(self) -> None:
        await _abort_jobs(run for runs in self._jobs.values() for run in runs.values())

    async def _close_runtime(self, runtime: SessionRuntime) -> None:
        if self._runtimes.get(runtime.opened.file) is runtime:
            del self._runtimes[runtime.opened.file]
            await runtime.close()


async def _abort_jobs(runs: Iterable[AgentJob]) -> None:
    """Abort runs, and wait a while until that is written down."""
    given_up = list(runs)
    for run in given_up:
        run.agent.abort()
    if given_up:
        await asyncio.wait([run.task for run in given_up], timeout=10)


def _count_entries(opened: OpenSession) -> int:
    return len(opened.session.tree.entries)


def publish_notice(opened: OpenSession, event: Event) -> None:
    """Tell whoever listens to the session of a notice or a retry, and the log; other events are not for here."""
    if isinstance(event, RetryScheduled):
        event = Notice(level="warning", text=f"{event.text} in {event.delay:.0f} s…")
    if isinstance(event, Notice):
        level = logging.INFO if event.level == "info" else logging.WARNING
        log.log(level, "%s: %s", escape_line(opened.file), escape_line(event.text))
        opened.feed.publish("notice", {"level": event.level, "text": event.text}, partial(_count_entries, opened))


class _EventPublisher:
    """Tells what an agent does on a branch, as it happens."""

    def __init__(self, opened: OpenSession, branch: str) -> None:
        self._opened = opened
        self._branch = branch
        self._offsets: dict[str, int] = {}
        self.denied: dict[str, str] = {}
        """Calls that were not allowed, and why; as many as one wants to read."""

    def __call__(self, event: Event) -> None:
        match event:
            case MessageStart():
                self._offsets.clear()
            case MessageDelta(kind=kind, text=text):
                offset = self._offsets.get(kind, 0)
                self._offsets[kind] = offset + len(text)
                more = {} if event.call is None else {"call": event.call, "name": event.name}
                self._publish("delta", kind=kind, text=text, offset=offset, **more)
            case MessageEnd():
                self._opened.feed.wake()
            case ToolDenied(call=call, title=title, reason=reason):
                if len(self.denied) < MAX_DENIED:
                    self.denied[title] = reason
                self._publish("tool", call=call.id, name=call.name, status="denied", title=title, reason=reason)
            case ToolStart(call=call):
                self._publish("tool", call=call.id, name=call.name, status="started")
            case ToolUpdate(call=call, text=text):
                self._publish("tool", call=call.id, name=call.name, status="running", text=text)
            case ToolEnd(call=call):
                self._publish("tool", call=call.id, name=call.name, status="ended")
            case QueueChanged(steering=steering, follow_up=follow_up):
                self._publish("queue", steering=list(steering), followUp=list(follow_up))
            case _:
                pass

    def _publish(self, event: str, /, **data: object) -> None:
        self._opened.feed.publish(event, {"branch": self._branch, **data}, partial(_count_entries, self._opened))
