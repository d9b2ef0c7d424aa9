"""Agents that answer prompts in this server, and the controllers and extensions of the sessions they work in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from msgspec import UNSET, Struct, UnsetType, structs

from sessiontree import config
from sessiontree.agent.agent import Agent
from sessiontree.agent.factory import create_agent
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.run_writer import UnsavedMessages
from sessiontree.agent.tool import Tool
from sessiontree.agent.tools import builtin_tools
from sessiontree.config import PermissionMode
from sessiontree.core.context import build_shared_context
from sessiontree.core.entries import EntryId, JsonObject
from sessiontree.core.operation_plans import plan_move
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
    SnapshotProgress,
    ToolDenied,
    ToolEnd,
    ToolStart,
    ToolUpdate,
)
from sessiontree.model.base import Model
from sessiontree.ops.navigate import execute_navigation
from sessiontree.server.http_errors import ApiError, make_insufficient_rights
from sessiontree.server.jobs.agent_access import PermissionBroker, Workspace
from sessiontree.server.jobs.job_registry import AgentLoop, Job, JobRegistry
from sessiontree.server.session_cache import OpenSession
from sessiontree.session import Branch
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.models import ConfiguredModels, Models, choose_model
from sessiontree.swarm.records import MAX_DENIED

log = logging.getLogger("sessiontree.server")


class SessionRuntime(Struct, frozen=True, eq=False):
    """The controller, extensions and permissions that jobs of one session share."""

    opened: OpenSession
    controller: SessionController
    extensions: ExtensionLoader
    limited_permissions: Permissions | None
    """Permissions of agents that are limited to their project. Their grants must not apply outside the sandbox."""

    def get_tools(self, workspace: Workspace) -> list[Tool]:
        """Return the tools of agents in a workspace. Tools of extensions run in this process, outside any sandbox."""
        return list(builtin_tools()) if workspace.is_limited else self.controller.tools

    def get_permissions(self, workspace: Workspace) -> Permissions | None:
        return self.limited_permissions if workspace.is_limited else self.controller.permissions

    def create_hooks(self, workspace: Workspace, branch: Branch | None = None) -> Hooks:
        """Return the hooks of the session for agents in a workspace."""
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
    """The agents that this server runs, at most one per branch, and the runtimes of the sessions they work in.

    A job has the key `("agent", file, branch)`: the file stays the same if the session is reopened during a run.
    """

    def __init__(
        self,
        jobs: JobRegistry,
        agent_loop: AgentLoop,
        models: Models | None = None,
        find_folder: Callable[[str], str] = lambda folder: os.getcwd(),
        permissions: PermissionBroker | None = None,
    ) -> None:
        self._jobs = jobs
        self._agent_loop = agent_loop
        self._models = models
        self._find_folder = find_folder
        """Maps the folder of a session to the folder whose project extensions are loaded."""
        self._permissions = PermissionBroker() if permissions is None else permissions
        self._runtimes: dict[str, SessionRuntime] = {}
        """By session file."""
        self._runtime_locks = dict[str, asyncio.Lock]()

    # Methods for any thread

    def find_model(self, name: str | None = None) -> Model:
        """Return the model of that name, or the default model, without a session. Raises `NoModel` or `NotFound`."""
        models = ConfiguredModels(config.load_config(), Hooks()) if self._models is None else self._models
        return models.find(name)

    def list_running(self, opened: OpenSession) -> list[str]:
        """Return the branches of a session on which an agent is running."""
        return [job.key[-1] for job in self._jobs.list_jobs("agent", opened.file)]

    def check_idle(self, opened: OpenSession, branch: str) -> None:
        """Raises `InvalidOperation` if an agent is running on the branch."""
        if branch in self.list_running(opened):
            raise InvalidOperation(f"an agent is running on branch {branch!r}; abort it or wait until it finishes")

    async def close_session(self, opened: OpenSession) -> None:
        """Close a session and its runtime."""
        runtime = self._runtimes.get(opened.file)
        if runtime is not None and runtime.opened is opened:
            await self._agent_loop.run(self._close_runtime(runtime))
        await asyncio.to_thread(opened.session.close)

    # Methods for the agent loop

    async def open_runtime(self, opened: OpenSession) -> SessionRuntime:
        """Return the runtime of a session. The first call loads its extensions.

        Extensions of a project load only if the user trusts it; the server never asks for trust.
        """
        async with self._runtime_locks.setdefault(opened.file, asyncio.Lock()):
            current = self._runtimes.get(opened.file)
            if current is not None:
                if current.controller.session is opened.session:
                    return current
                # The session was reopened: its old runtime cannot write any more.
                await self._jobs.stop(self._jobs.list_jobs("agent", opened.file))
                await self._close_runtime(current)
            hooks = Hooks()
            hooks.listen(partial(publish_notice, opened))
            settings = await asyncio.to_thread(config.load_config)
            controller = SessionController(
                opened.session,
                hooks=hooks,
                models=self._models,
                options=await asyncio.to_thread(
                    self._permissions.load_options, settings, self._find_folder(opened.session.cwd)
                ),
            )
            extensions = ExtensionLoader(controller)
            await extensions.load()
            await controller.start()
            limited = None if controller.permissions is None else controller.permissions.copy_without_grants()
            runtime = self._runtimes[opened.file] = SessionRuntime(opened, controller, extensions, limited)
            return runtime

    async def choose_model(self, runtime: SessionRuntime, branch: Branch, name: str | None = None) -> Model:
        """Return the named model, or the last model of the branch, or the default model."""
        model, warning = await asyncio.to_thread(choose_model, runtime.controller.models, name, branch.state)
        if warning is not None:
            runtime.controller.hooks.notify_listeners(Notice(level="warning", text=warning))
        return model

    async def start(
        self,
        opened: OpenSession,
        branch: str | None,
        text: str,
        images: Sequence[JsonObject],
        model: str | None,
        workspace: Workspace,
        mode: PermissionMode | None = None,
        at: EntryId | UnsetType | None = UNSET,
        author: str = "",
    ) -> tuple[str, str]:
        """Start an agent that answers a prompt. Return the id of the run and its branch without waiting.

        `at` is the entry to continue after: the branch moves there first. Without a text and images, the agent answers
        the last message. With a permission `mode`, clients are asked about tool calls that need permission. Otherwise
        such calls are denied. `author` is the name of who sends the prompt.
        """
        runtime = await self.open_runtime(opened)
        session = opened.session
        target = session.head if branch is None else session.branch(branch)
        chosen_model = await self.choose_model(runtime, target, model)
        self.check_idle(opened, target.name)
        hooks = runtime.create_hooks(workspace, branch=target)
        if not isinstance(at, UnsetType):
            await _move_before_run(target, at, hooks, must_answer=not text.strip() and not images)
        publisher = _EventPublisher(opened, target.name)
        hooks.listen(publisher)
        id = secrets.token_hex(4)
        permissions = runtime.get_permissions(workspace)
        if permissions is not None and mode is not None:
            asker = self._permissions.create_asker(opened, target.name, id, limited=workspace.is_limited)
            permissions = permissions.copy_with_asker(asker, mode)
        options = structs.replace(
            runtime.controller.options,
            tools=runtime.get_tools(workspace),
            thinking=runtime.controller.settings.thinking if target.leaf is None else None,
            cwd=workspace.cwd,
            permissions=permissions,
            mcp=None if workspace.is_limited else runtime.controller.options.mcp,
        )
        agent = create_agent(target, chosen_model, hooks, options)
        agent.author = author

        async def abort_agent() -> None:
            agent.abort()

        def publish_end(error: str | None) -> None:
            denied = [{"call": title, "reason": reason} for title, reason in publisher.denied.items()]
            publish(
                opened, "run", {"branch": target.name, "run": id, "status": "ended", "error": error, "denied": denied}
            )

        job = Job(key=("agent", opened.file, target.name), opened=opened, worker=agent, stop=abort_agent)
        self._jobs.start(job, _run_agent(agent, text, images), publish_end)
        publish(opened, "run", {"branch": target.name, "run": id, "status": "started"})
        return id, target.name

    def _get_job(self, opened: OpenSession, branch: str | None) -> Job:
        """Return the job on a branch, by default the current one. Raises `InvalidOperation` if there is none."""
        session = opened.session
        name = (session.head if branch is None else session.branch(branch)).name
        job = self._jobs.get("agent", opened.file, name)
        if job is None:
            raise InvalidOperation(f"no agent is running on branch {name!r}")
        return job

    async def steer(
        self, opened: OpenSession, branch: str | None, text: str, *, limited: bool, author: str = ""
    ) -> str:
        """Queue a message for the agent on a branch, and return the name of the branch."""
        agent: Agent = self._get_job(opened, branch).worker
        confinement = agent.confinement
        if limited and not (confinement is not None and confinement.is_limited):
            raise make_insufficient_rights()
        await agent.steer(text, author=author)
        return agent.branch.name

    async def abort(self, opened: OpenSession, branch: str | None) -> str:
        """Abort the agent on a branch, wait until its partial answer is written, and return the branch name."""
        job = self._get_job(opened, branch)
        agent: Agent = job.worker
        name = agent.branch.name
        agent.abort()
        if job.task is not None:
            await asyncio.wait([job.task])
        return name

    async def _close_runtime(self, runtime: SessionRuntime) -> None:
        if self._runtimes.get(runtime.opened.file) is runtime:
            del self._runtimes[runtime.opened.file]
            await runtime.close()


async def _move_before_run(branch: Branch, place: EntryId | None, hooks: Hooks, *, must_answer: bool) -> None:
    """Move a branch to the entry that a run continues after. Raises `ApiError`."""
    session = branch.session
    plan = plan_move(session.tree, branch.leaf, place)
    if must_answer and not build_shared_context(session.tree, plan.new_leaf).awaits_answer:
        raise ApiError(409, "no message to answer at this place: the last message is from the model")
    if plan.is_move and (await execute_navigation(branch, plan, hooks)).cancelled:
        raise ApiError(409, "cancelled by a handler", code="cancelled")


async def _run_agent(agent: Agent, text: str, images: Sequence[JsonObject]) -> str | None:
    """Send a prompt to an agent, or let it answer the last message. Return what went wrong."""
    try:
        outcome = await (agent.run(text, images) if text.strip() or images else agent.continue_())
    finally:
        await agent.close()
    if isinstance(outcome.error, UnsavedMessages):
        return str(outcome.error.build_exit_error("the page that shows it now"))
    if outcome.error is not None:
        return str(outcome.error)
    if outcome.aborted:
        return "aborted"
    return outcome.stop_text if outcome.cancelled else None


def publish(opened: OpenSession, kind: str, data: JsonObject) -> None:
    """Publish a live event, positioned after the entries that the session has now."""
    opened.feed.publish(kind, data, lambda: len(opened.session.tree.entries))


def publish_notice(opened: OpenSession, event: Event) -> None:
    """Log a notice or a retry and publish it to the clients of the session. Ignore other events."""
    if isinstance(event, RetryScheduled):
        event = Notice(level="warning", text=f"{event.text} in {event.delay:.0f} s…")
    if isinstance(event, Notice):
        level = logging.INFO if event.level == "info" else logging.WARNING
        log.log(level, "%s: %s", escape_line(opened.file), escape_line(event.text))
        publish(opened, "notice", {"level": event.level, "text": event.text})


class _EventPublisher:
    """Publishes what an agent does on a branch as live events."""

    def __init__(self, opened: OpenSession, branch: str) -> None:
        self._opened = opened
        self._branch = branch
        self._offsets: dict[str, int] = {}
        self.denied: dict[str, str] = {}
        """Reasons by the title of each denied tool call, up to `MAX_DENIED`."""

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
            case SnapshotProgress(done=done, total=total):
                self._publish("snapshot", done=done, total=total)
            case QueueChanged(steering=steering, follow_up=follow_up):
                self._publish("queue", steering=list(steering), followUp=list(follow_up))
            case _:
                pass

    def _publish(self, event: str, /, **data: object) -> None:
        publish(self._opened, event, {"branch": self._branch, **data})
