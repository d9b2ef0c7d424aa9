"""The session controller: the open session, its agent, and the operations that commands and extensions call.

It moves between branches, entries and sessions, notifies the hooks, and keeps the agent on the right branch. Typed
lines arrive through `submit`. The front end draws and asks questions through `Ui` and `Host`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Literal

from msgspec import Struct

from sessiontree.agent import tracing
from sessiontree.agent.agent import Agent
from sessiontree.agent.loop import Outcome, emit_message_events
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.run_writer import BackgroundWriter
from sessiontree.agent.system_prompt import SystemPart
from sessiontree.agent.tool import Tool
from sessiontree.agent.tools.command_runner import CommandResult
from sessiontree.agent.user_shell import UserShell
from sessiontree.commands.host import HeadlessHost, Host
from sessiontree.commands.models import ConfiguredModels, Models, get_model_name
from sessiontree.commands.registry import CommandOutcome, CommandRegistry, parse_line
from sessiontree.config import Config
from sessiontree.core.entries import JsonObject, Message
from sessiontree.core.places import BRANCH_PREFIX, find_branch, find_free_name
from sessiontree.core.plan import NavigatePlan, plan_move
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError, StoreError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import (
    BeforeSwitch,
    Merged,
    Navigated,
    Notice,
    SessionShutdown,
    SessionStart,
    Signal,
    Switched,
)
from sessiontree.hooks.ui_protocol import NoUi, Ui
from sessiontree.library import catalog
from sessiontree.model.base import Model
from sessiontree.ops.fork import ForkOutcome, fork
from sessiontree.ops.navigate import NavigateOutcome, execute_navigation, navigate
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.session import Branch, Place, Session

Reason = Literal["new", "resume", "fork"]


class SubmitResult(Struct, frozen=True, kw_only=True):
    """What came of a line that was typed."""

    text: str = ""
    """What a command or the shell has to say."""
    editor_text: str | None = None
    """What a command has put in the editor."""
    outcome: Outcome | None = None
    """How the model's run ended, if there was one."""


class SessionController:
    def __init__(
        self,
        session: Session,
        *,
        commands: CommandRegistry | None = None,
        model: Model | None = None,
        models: Models | None = None,
        tools: Iterable[Tool] = (),
        hooks: Hooks | None = None,
        ui: Ui | None = None,
        host: Host | None = None,
        settings: Config | None = None,
        branch: Branch | None = None,
        system: str | Sequence[SystemPart] | None = None,
        thinking: str | None = None,
        fresh: bool = False,
        cwd: str | None = None,
        permissions: Permissions | None = None,
    ) -> None:
        """A controller with `session` on it. Without a model it does everything but answer.

        Tools work in `cwd`, by default the current folder. The folder that a session names is used only if a person
        confirms it: `start` asks. Without `permissions`, its agent may use all of its tools.

        One that is `fresh` was made for this controller: if nothing was said in it, it is not kept when one leaves it.
        """
        if commands is None:
            from sessiontree.commands.builtin import get_builtin_commands

            commands = CommandRegistry(get_builtin_commands())
        self.session = session
        self.commands = commands
        self.hooks = Hooks() if hooks is None else hooks
        self.settings = Config() if settings is None else settings
        self.models: Models = ConfiguredModels(self.settings, self.hooks) if models is None else models
        self.ui: Ui = NoUi() if ui is None else ui
        self.host: Host = HeadlessHost() if host is None else host
        self.permissions = permissions
        self.reload: Callable[[], Awaitable[list[str]]] | None = None
        """Loads extensions and prompt files anew, and says what there is; set by whoever loads them."""
        self.no_model_message = "there is no model: /model chooses one, and `sessiontree models` lists them"
        """What is said where a model is needed and there is none."""
        self._tools = {tool.name: tool for tool in tools}
        self._added_tools: dict[str, Tool] = {}
        self._system = system
        self._move_signal: Signal | None = None
        """Gives up the move or the merge that is under way, until it is written."""
        self._move_done = asyncio.Event()
        """Set when none is."""
        self._notification_signals: list[Signal] = []
        """Give up waiting for those who are told of moves and merges that are written."""
        self._move_done.set()
        self._shell = UserShell(self.hooks, self._write_shell_message)
        """Runs commands while there is no agent."""
        self._fresh = fresh
        self._editor_text: str | None = None
        self._branch = session.head if branch is None else branch
        self._agent: Agent | None = None
        self._stop_tracing: Callable[[], None] = lambda: None
        self._start_folder = os.getcwd() if cwd is None else os.path.abspath(cwd)
        """Where tools work unless a person confirms another folder."""
        self._is_cwd_explicit = cwd is not None
        self._confirmed_folders: dict[str, bool] = {}
        """Folders that a person was asked about, and what was answered."""
        self.cwd = self._start_folder
        """The folder that tools, and commands that take a path, work in."""
        self.hooks.context.models, self.hooks.context.ui = self.models, self.ui
        self._attach_agent(model, thinking)

    # What is on it

    @property
    def branch(self) -> Branch:
        """The branch that is worked on: the one that was current, until one goes elsewhere; others may move `HEAD`."""
        return self._branch

    @property
    def is_off_head(self) -> bool:
        """Whether the branch is not the current one: then nothing that is done here changes which one is."""
        return self._branch != self.session.head

    def qualify_place(self, place: Place) -> Place:
        """A place as it is meant here: `HEAD` is the head of this controller's branch."""
        if isinstance(place, str) and self.is_off_head and (place == "HEAD" or place.startswith("HEAD~")):
            return f"{self._branch.name}{place.removeprefix('HEAD')}"
        return place

    def plan_navigation(self, place: Place) -> NavigatePlan:
        """What going to a place by the rules of selection would do."""
        return self.session.plan_navigate(
            self.qualify_place(place), start=f"{BRANCH_PREFIX}{self._branch.name}" if self.is_off_head else "HEAD"
        )

    @property
    def model(self) -> Model | None:
        return None if self._agent is None else self._agent.model

    @property
    def has_agent(self) -> bool:
        return self._agent is not None

    @property
    def agent(self) -> Agent:
        """The agent. Raises `InvalidOperation` where there is no model."""
        if self._agent is None:
            raise InvalidOperation(self.no_model_message)
        return self._agent

    async def wait_for_triggered_run(self) -> Outcome | None:
        """Wait until nothing runs, and return how the last run ended that a message of an extension triggered."""
        await self.wait_until_idle()
        return None if self._agent is None else await self._agent.wait_for_triggered_run()

    @property
    def is_running(self) -> bool:
        """Whether the agent runs, or one is about to be elsewhere: the summary of a move or a merge is made."""
        return self._move_signal is not None or (self._agent is not None and self._agent.running)

    def ensure_not_moving(self) -> None:
        """Raises `InvalidOperation` while one is about to be elsewhere: what is said now would be left behind."""
        if self._move_signal is not None:
            raise InvalidOperation("a move or a merge is under way: abort it, or wait until it is done")

    def ensure_idle(self) -> None:
        """Raises `InvalidOperation` while anything runs: its place cannot be changed under it."""
        self.ensure_not_moving()
        if self.is_running:
            raise InvalidOperation("the agent is running: abort it, or wait until it is done")

    async def wait_until_idle(self) -> None:
        """Wait until nothing runs, commands of the shell aside."""
        while self.is_running:
            await self._move_done.wait()
            if self._agent is not None:
                await self._agent.wait_until_idle()

    def abort(self) -> None:
        """Give up what is under way: the agent's run, a command of the shell, the summary of a move, or waiting for
        those who are told of one."""
        for signal in self._notification_signals:
            signal.abort()
        self._abort_move()
        if self._agent is not None:
            self._agent.abort()
        self._shell.abort()

    @contextlib.contextmanager
    def begin_move(self) -> Generator[Signal]:
        """While one is about to be elsewhere: a signal that `abort` gives. Raises `InvalidOperation` unless at rest.

        Those who are told of the move or the merge find the controller at rest: it is written by then.
        """
        self.ensure_idle()
        signal = self._move_signal = Signal()
        self._move_done.clear()

        def finish_move() -> None:
            if self._move_signal is signal:
                self._move_signal = None
                self._move_done.set()
                self._notification_signals.append(signal)

        off = self.hooks.listen(lambda event: finish_move() if isinstance(event, Navigated | Merged) else None)
        try:
            yield signal
        finally:
            off()
            finish_move()
            self._notification_signals.remove(signal)

    def _abort_move(self) -> None:
        """Give up the move or the merge that is not written yet."""
        if self._move_signal is not None:
            self._move_signal.abort()

    # Beginning and ending

    async def start(self) -> None:
        """Tell the handlers that there is somebody. Where something collects spans, it gets them."""
        if tracing.is_configured():
            self._stop_tracing = tracing.trace(self.hooks)
        await self.choose_folder()
        await self.hooks.emit(SessionStart(reason="startup"))

    async def close(self) -> None:
        """Give up what runs, tell the handlers, and let go of the session."""
        await self._stop_activity()
        await self.hooks.emit(SessionShutdown(reason="quit"))
        self._stop_tracing()
        await self._release_session()

    def _attach_agent(self, model: Model | None, thinking: str | None = None) -> None:
        """Have an agent for the session that is here now."""
        context = self.hooks.context
        context.session, context.branch, context.agent = self.session, self.branch, None
        context.cwd = self.cwd
        if model is not None:
            self._agent = Agent(
                self.branch,
                model,
                self.tools,
                self.hooks,
                system=self._system,
                settings=self.settings,
                thinking=thinking,
                permissions=self.permissions,
            )
            context.agent = self._agent

    async def choose_folder(self) -> None:
        """Settle where tools work. If the session names another folder, a person is asked whether to go there.

        Whoever made the session file wrote that name, so it does not decide by itself.
        """
        there = self.session.cwd
        chosen = self._start_folder
        if (
            there
            and not _is_same_folder(there, self._start_folder)
            and not (self._is_cwd_explicit and not self.ui.has_person)
        ):
            if there not in self._confirmed_folders and os.path.isdir(there):
                self._confirmed_folders[there] = await self._confirm_folder(there)
            if self._confirmed_folders.get(there):
                chosen = there
        self.cwd = self.hooks.context.cwd = chosen
        if self._agent is not None:
            self._agent.cwd = chosen

    async def _confirm_folder(self, there: str) -> bool:
        if self.ui.has_person:
            text = f"The session names {escape_line(there)}; you are in {escape_line(self._start_folder)}."
            return await self.ui.confirm("Have tools work in the folder of the session?", text)
        if self.tools:
            text = f"tools work in {escape_line(self._start_folder)}, not in {escape_line(there)}, the session's folder"
            text += "; --cwd (--project of a worker) chooses it"
            self.hooks.notify_listeners(Notice(level="info", text=text))
        return False

    async def _stop_activity(self) -> None:
        """Give up what is under way, and wait until what has come of it is written.

        Not those who are told of a move: it may be one of them who goes elsewhere.
        """
        self._abort_move()
        await self._move_done.wait()
        if self._agent is not None:
            await self._agent.shutdown()
        await self._shell.shutdown()

    async def _release_session(self) -> None:
        await self._stop_activity()  # of what came while handlers were told
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        self.session.close()

    async def drop_unused(self) -> bool:
        """Remove the session, which is closed, if it was made here, nothing was said in it and nobody else is there.

        Says whether it is gone.
        """
        from sessiontree.library import trash

        place = self.session.address
        if self._fresh and place is not None and not self.host.is_open_elsewhere(place):
            with contextlib.suppress(SessionTreeError):  # one can always leave
                return await asyncio.to_thread(trash.purge_unused, self.session, lambda tree: not len(tree))
        return False

    # Tools

    @property
    def tools(self) -> list[Tool]:
        return list({**self._tools, **self._added_tools}.values())

    def add_tool(self, tool: Tool) -> Callable[[], None]:
        """Let the model use one more tool; a built-in one of that name gives way. Returns what takes it off again."""
        if tool.name in self._added_tools:
            raise InvalidOperation(f"there is a tool {tool.name!r} already, from another extension")
        self._added_tools[tool.name] = tool
        self._update_agent_tools()

        def remove() -> None:
            if self._added_tools.get(tool.name) is tool:
                del self._added_tools[tool.name]
                self._update_agent_tools()

        return remove

    def _update_agent_tools(self) -> None:
        if self._agent is not None:
            self._agent.tools = {tool.name: tool for tool in self.tools}

    # What is typed

    async def submit(self, line: str) -> SubmitResult:
        """Do what a line says: a command, `!` or `!!` and something for the shell, or words for the model."""
        if parse_line(line) is not None:
            self._editor_text = None
            done = await self.commands.run(self, line)
            words = self._editor_text
            return SubmitResult(text=done.text, editor_text=words, outcome=await self._run_follow_up(done))
        if line.startswith("!"):
            command = line.lstrip("!").strip()
            if not command:
                raise InvalidOperation("there is nothing to run behind the `!`")
            ran = await self._run_shell_command(command, in_context=not line.startswith("!!"))
            return SubmitResult(text="\n".join(filter(None, [ran.output.rstrip("\n"), ran.note])))
        return SubmitResult(outcome=await self.send_prompt(line))

    async def send_prompt(self, words: str, images: Sequence[JsonObject] = ()) -> Outcome:
        """Say something to the model, whatever it begins with."""
        self.ensure_not_moving()
        return await self.agent.prompt(words, images)

    async def _run_shell_command(self, command: str, *, in_context: bool) -> CommandResult:
        """Run a command and write down what it printed. The agent does it where there is one, which need not be."""
        if self._agent is not None:
            return await self._agent.run_bash(command, in_context=in_context)
        return await self._shell.run(command, self.branch, cwd=self.cwd, settings=self.settings, in_context=in_context)

    async def _write_shell_message(self, record: BackgroundWriter, message: Message) -> None:
        if self._agent is not None:  # a model was chosen meanwhile
            await self._agent.write_between_turns(record, message)
            return
        (entry,) = await record.extend_or_append_late([message])
        await emit_message_events(self.hooks.emit, entry)

    async def _run_follow_up(self, done: CommandOutcome) -> Outcome | None:
        if done.prompt is not None:
            return await self.send_prompt(done.prompt)
        return await self.agent.continue_() if done.answer else None

    # Moving within the session

    async def navigate(
        self,
        place: Place,
        *,
        summarize: bool = False,
        custom_instructions: str | None = None,
        replace_instructions: bool = False,
        label: str | None = None,
        summary: str | None = None,
    ) -> NavigateOutcome:
        """Go to a place by the rules of selection. Text to be said anew is put in the editor."""
        request = self.request_summary(custom_instructions, replace=replace_instructions) if summarize else None
        with self.begin_move() as signal:
            outcome = await navigate(
                self.session,
                self.qualify_place(place),
                hooks=self.hooks,
                summary=request if summary is None else summary,
                label=label,
                branch=self._branch if self.is_off_head else None,
                signal=signal,
            )
        self.sync_position(outcome.editor_text)
        return outcome

    def request_summary(self, instructions: str | None = None, *, replace: bool = False) -> SummaryRequest:
        """Return a request for a summary by the current model."""
        return SummaryRequest(
            model=self.model,
            instructions=instructions,
            replace_instructions=replace,
            settings=self.settings.summary,
            retry=self.settings.retry,
        )

    async def move_to(self, place: Place) -> NavigateOutcome:
        """Go to the place itself, without the rules of selection."""
        self.ensure_idle()
        plan = plan_move(self.session.tree, self.branch.leaf, self.session.resolve_place(self.qualify_place(place)))
        if not plan.is_move:
            return NavigateOutcome(old_leaf=plan.old_leaf, new_leaf=plan.new_leaf)
        with self.begin_move() as signal:
            outcome = await execute_navigation(self.branch, plan, self.hooks, signal=signal)
        self.sync_position()
        return outcome

    async def switch(self, place: Place) -> NavigateOutcome:
        """Go on on another branch, which is made current unless one works beside that; or go to a place."""
        name = find_branch(place, self.session.tree, self.session.heads) if isinstance(place, str) else None
        if name is None:
            return await self.move_to(place)
        self.ensure_idle()
        old = self.branch.leaf
        self._branch = self.session.branch(name) if self.is_off_head else self.session.switch(f"{BRANCH_PREFIX}{name}")
        return await self._notify_navigated(old)

    async def undo(self) -> NavigatePlan:
        """Take back the last move or switch."""
        self.ensure_idle()
        if self.is_off_head:
            raise InvalidOperation(
                f"undo may move the current branch, where others work, and {self.branch.name!r} is not it"
            )
        plan = self.session.undo()
        self._branch = self.session.head
        await self._notify_navigated(plan.old_leaf)
        return plan

    async def branch_here(self, name: str | None = None, place: Place | None = None) -> Branch:
        """A new branch of this session to go on on; from here, or from a chosen place. It is current, unless one works
        beside what is.

        A user's message that was chosen is put in the editor, and the branch begins before it.
        """
        self.ensure_idle()
        old = at = self.branch.leaf
        words = None
        if place is not None:
            plan = self.plan_navigation(place)
            at, words = plan.new_leaf, plan.editor_text
        entry = None if at is None else self.session.tree[at]
        name = name or find_free_name("branch", self.session.heads.heads, 2)
        self._branch = self.session.create_branch(name, at=entry, current=not self.is_off_head)
        await self._notify_navigated(old, words)
        return self._branch

    async def _notify_navigated(self, old: str | None, words: str | None = None) -> NavigateOutcome:
        """Tell that one is at another place, which nobody was asked about since nothing was left or moved."""
        self.sync_position(words)
        new = self.branch.leaf
        await self.hooks.emit(Navigated(new_leaf=new, old_leaf=old))
        return NavigateOutcome(old_leaf=old, new_leaf=new, editor_text=words)

    def sync_position(self, words: str | None = None) -> None:
        """Have agent, handlers and front end follow to where one is now."""
        self.hooks.context.branch = self.branch
        if self._agent is not None and not self._agent.running:
            self._agent.branch = self.branch
        self.host.refresh()
        self._set_editor_text(words)

    def _set_editor_text(self, words: str | None) -> None:
        if words is not None:
            self._editor_text = words
            self.host.set_editor_text(words)

    # Going over to another session

    async def create_session(self, name: str | None = None) -> bool:
        """Begin a new session. Says whether nobody objected."""
        return await self._switch_session(lambda: self._create_empty(name), "new", None)

    def _create_empty(self, name: str | None) -> Session:
        return catalog.create_near(self.session, name, cwd=self.cwd)

    async def open_session(self, session: str) -> bool:
        """Go over to another session, by any of its names. Says whether nobody objected."""
        file = catalog.find(session)
        return await self._switch_session(lambda: catalog.open(file), "resume", file)

    async def fork(self, place: Place = "HEAD", *, position: Literal["before", "at"] = "at") -> ForkOutcome:
        """Go over to a new session with the path to a place; before a user's message, that is put in the editor."""
        self.ensure_idle()
        outcome = await fork(self.session, self.qualify_place(place), hooks=self.hooks, position=position)
        if outcome.session is not None and await self._adopt_session(outcome.session, "fork"):
            self._set_editor_text(outcome.editor_text)
        return outcome

    async def _switch_session(
        self, make: Callable[[], Session], reason: Literal["new", "resume"], file: str | None
    ) -> bool:
        self.ensure_idle()
        _, answer = await self.hooks.ask(BeforeSwitch(reason=reason, target_session_file=file))
        if answer.cancel:
            return False
        return await self._adopt_session(make(), reason)

    async def _adopt_session(self, session: Session, reason: Reason) -> bool:
        """Go over to a session; says whether one is in it now."""
        previous, branch = self.session.address, await self.host.choose_branch(session)
        if branch is None:
            session.close()
            return False
        model = self._find_model_for(session) if reason == "resume" else self.model
        thinking = None if reason == "resume" or self._agent is None else self._agent.thinking
        await self._stop_activity()
        await self.hooks.emit(SessionShutdown(reason=reason, target_session_file=session.address))
        try:
            await self._release_session()
        except StoreError as error:  # it is left all the same, and may be left because of that
            self.hooks.notify_listeners(Notice(level="warning", text=str(error)))
        fresh = reason != "resume"
        if session.address == previous:  # it is the same one
            fresh = self._fresh
        elif reason != "fork" and await self.drop_unused():
            previous = None
        self.session, self._branch, self._fresh = branch.session, branch, fresh
        self.cwd = self._start_folder
        if self.permissions is not None:
            self.permissions.forget_grants()
        self._attach_agent(model, thinking)
        self.host.refresh()
        await self.choose_folder()
        await self.hooks.emit(SessionStart(reason=reason, previous_session_file=previous))
        if reason != "fork":
            await self.hooks.emit(Switched(reason=reason, previous_session_file=previous))
        return True

    def _find_model_for(self, session: Session) -> Model | None:
        """The model that a session was held with, or the one that there is."""
        from sessiontree.model.selection import NoModel

        model, name = self.model, get_model_name(session.head.state)
        if name is None or (model is not None and model.info.name == name):
            return model
        try:
            return self.models.find(name)
        except (NoModel, NotFound) as error:
            instead = "there is none" if model is None else f"going on with {model.info.name}"
            self.hooks.notify_listeners(Notice(level="warning", text=f"{error}; {instead}"))
            return model

    async def set_model(self, wanted: str | Model) -> Model:
        """Another model from here on, by its name or as it was found already."""
        model = self.models.find(wanted) if isinstance(wanted, str) else wanted
        if self._agent is None:
            self._attach_agent(model)
        else:
            await self._agent.set_model(model)
        return model


def _is_same_folder(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
