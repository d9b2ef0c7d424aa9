"""The desk: the session that a person works in, its agent, and everything that commands and extensions need of both.

It moves within the session and goes over to others, with hooks told and the agent following. What is typed comes in
through `submit`. Drawing and asking are the business of the front end, behind `Ui` and `Host`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Literal

from msgspec import Struct

from sessiontree import catalog
from sessiontree.agent import tracing
from sessiontree.agent.agent import Agent
from sessiontree.agent.loop import Outcome, tell_written
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.record import Beside
from sessiontree.agent.shell import Shell
from sessiontree.agent.system import SystemPart
from sessiontree.agent.tool import Tool
from sessiontree.agent.tools.process import Ran
from sessiontree.commands.command import Done, Registry, typed
from sessiontree.commands.host import Host, PlainHost
from sessiontree.commands.models import ConfiguredModels, Models, model_name
from sessiontree.config import Config
from sessiontree.core.entries import JsonObject, Message
from sessiontree.core.places import BRANCH, branch_named, free_name
from sessiontree.core.plan import NavigatePlan, plan_move
from sessiontree.core.safe import safe
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
from sessiontree.hooks.ui import NoUi, Ui
from sessiontree.model.base import Model
from sessiontree.ops.fork import ForkOutcome, fork
from sessiontree.ops.navigate import NavigateOutcome, navigate, travel
from sessiontree.session import Branch, Place, Session
from sessiontree.store.postgres.address import is_address

Reason = Literal["new", "resume", "fork"]


class Submitted(Struct, frozen=True, kw_only=True):
    """What came of a line that was typed."""

    text: str = ""
    """What a command or the shell has to say."""
    editor_text: str | None = None
    """What a command has put in the editor."""
    outcome: Outcome | None = None
    """How the model's run ended, if there was one."""


class Desk:
    def __init__(
        self,
        session: Session,
        *,
        commands: Registry | None = None,
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
        """A desk with `session` on it. Without a model it does everything but answer.

        Tools work in `cwd`, by default the current folder. The folder that a session names is used only if a person
        confirms it: `start` asks. Without `permissions`, its agent may use all of its tools.

        One that is `fresh` was made for this desk: if nothing was said in it, it is not kept when one leaves it.
        """
        if commands is None:
            from sessiontree.commands.builtin import builtin_commands

            commands = Registry(builtin_commands())
        self.session = session
        self.commands = commands
        self.hooks = Hooks() if hooks is None else hooks
        self.settings = Config() if settings is None else settings
        self.models: Models = ConfiguredModels(self.settings, self.hooks) if models is None else models
        self.ui: Ui = NoUi() if ui is None else ui
        self.host: Host = PlainHost() if host is None else host
        self.permissions = permissions
        self.reload: Callable[[], Awaitable[list[str]]] | None = None
        """Loads extensions and prompt files anew, and says what there is; set by whoever loads them."""
        self.no_model = "there is no model: /model chooses one, and `sessiontree models` lists them"
        """What is said where a model is needed and there is none."""
        self._tools = {tool.name: tool for tool in tools}
        self._added: dict[str, Tool] = {}
        self._system = system
        self._signal: Signal | None = None
        """Gives up the move or the merge that is under way, until it is written."""
        self._moved = asyncio.Event()
        """Set when none is."""
        self._telling: list[Signal] = []
        """Give up waiting for those who are told of moves and merges that are written."""
        self._moved.set()
        self._shell = Shell(self.hooks, self._write_beside)
        """Runs commands while there is no agent."""
        self._fresh = fresh
        self._edited: str | None = None
        self._branch = session.head if branch is None else branch
        self._agent: Agent | None = None
        self._untrace: Callable[[], None] = lambda: None
        self._base = os.getcwd() if cwd is None else os.path.abspath(cwd)
        """Where tools work unless a person confirms another folder."""
        self._is_given = cwd is not None
        self._confirmed: dict[str, bool] = {}
        """Folders that a person was asked about, and what was answered."""
        self.cwd = self._base
        """The folder that tools, and commands that take a path, work in."""
        self.hooks.context.models, self.hooks.context.ui = self.models, self.ui
        self._sit_down(model, thinking)

    # What is on it

    @property
    def branch(self) -> Branch:
        """The branch that is worked on: the one that was current, until one goes elsewhere; others may move `HEAD`."""
        return self._branch

    @property
    def beside(self) -> bool:
        """Whether the branch is not the current one: then nothing that is done here changes which one is."""
        return self._branch != self.session.head

    def place(self, place: Place) -> Place:
        """A place as it is meant here: `HEAD` is the head of this desk's branch."""
        if isinstance(place, str) and self.beside and (place == "HEAD" or place.startswith("HEAD~")):
            return f"{self._branch.name}{place.removeprefix('HEAD')}"
        return place

    def plan(self, place: Place) -> NavigatePlan:
        """What going to a place by the rules of selection would do."""
        return self.session.plan_navigate(
            self.place(place), start=f"{BRANCH}{self._branch.name}" if self.beside else "HEAD"
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
            raise InvalidOperation(self.no_model)
        return self._agent

    async def settle(self) -> Outcome | None:
        """Wait until nothing runs, and return how the last run ended that a message of an extension triggered."""
        await self.idle()
        return None if self._agent is None else await self._agent.settle()

    @property
    def running(self) -> bool:
        """Whether the agent runs, or one is about to be elsewhere: the summary of a move or a merge is made."""
        return self._signal is not None or (self._agent is not None and self._agent.running)

    def staying(self) -> None:
        """Raises `InvalidOperation` while one is about to be elsewhere: what is said now would be left behind."""
        if self._signal is not None:
            raise InvalidOperation("a move or a merge is under way: abort it, or wait until it is done")

    def at_rest(self) -> None:
        """Raises `InvalidOperation` while anything runs: its place cannot be changed under it."""
        self.staying()
        if self.running:
            raise InvalidOperation("the agent is running: abort it, or wait until it is done")

    async def idle(self) -> None:
        """Wait until nothing runs, commands of the shell aside."""
        while self.running:
            await self._moved.wait()
            if self._agent is not None:
                await self._agent.idle()

    def abort(self) -> None:
        """Give up what is under way: the agent's run, a command of the shell, the summary of a move, or waiting for
        those who are told of one."""
        for signal in self._telling:
            signal.abort()
        self._stay()
        if self._agent is not None:
            self._agent.abort()
        self._shell.abort()

    @contextlib.contextmanager
    def moving(self) -> Generator[Signal]:
        """While one is about to be elsewhere: a signal that `abort` gives. Raises `InvalidOperation` unless at rest.

        Those who are told of the move or the merge find the desk at rest: it is written by then.
        """
        self.at_rest()
        signal = self._signal = Signal()
        self._moved.clear()

        def written() -> None:
            if self._signal is signal:
                self._signal = None
                self._moved.set()
                self._telling.append(signal)

        off = self.hooks.listen(lambda event: written() if isinstance(event, Navigated | Merged) else None)
        try:
            yield signal
        finally:
            off()
            written()
            self._telling.remove(signal)

    def _stay(self) -> None:
        """Give up the move or the merge that is not written yet."""
        if self._signal is not None:
            self._signal.abort()

    # Beginning and ending

    async def start(self) -> None:
        """Tell the handlers that there is somebody. Where something collects spans, it gets them."""
        if tracing.configured():
            self._untrace = tracing.trace(self.hooks)
        await self.choose_folder()
        await self.hooks.tell(SessionStart(reason="startup"))

    async def close(self) -> None:
        """Give up what runs, tell the handlers, and let go of the session."""
        await self._end()
        await self.hooks.tell(SessionShutdown(reason="quit"))
        self._untrace()
        await self._stand_up()

    def _sit_down(self, model: Model | None, thinking: str | None = None) -> None:
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
        chosen = self._base
        if there and not _is_same_folder(there, self._base) and not (self._is_given and not self.ui.has_person):
            if there not in self._confirmed and os.path.isdir(there):
                self._confirmed[there] = await self._confirm_folder(there)
            if self._confirmed.get(there):
                chosen = there
        self.cwd = self.hooks.context.cwd = chosen
        if self._agent is not None:
            self._agent.cwd = chosen

    async def _confirm_folder(self, there: str) -> bool:
        if self.ui.has_person:
            text = f"The session names {safe(there)}; you are in {safe(self._base)}."
            return await self.ui.confirm("Have tools work in the folder of the session?", text)
        if self.tools:
            text = f"tools work in {safe(self._base)}, not in {safe(there)}, the session's folder"
            text += "; --cwd (--project of a worker) chooses it"
            self.hooks.show(Notice(level="info", text=text))
        return False

    async def _end(self) -> None:
        """Give up what is under way, and wait until what has come of it is written.

        Not those who are told of a move: it may be one of them who goes elsewhere.
        """
        self._stay()
        await self._moved.wait()
        if self._agent is not None:
            await self._agent.end()
        await self._shell.end()

    async def _stand_up(self) -> None:
        await self._end()  # of what came while handlers were told
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        self.session.close()

    async def drop_unused(self) -> bool:
        """Remove the session, which is closed, if it was made here, nothing was said in it and nobody else is there.

        Says whether it is gone.
        """
        from sessiontree import shelf

        place = self.session.kept_at
        if self._fresh and place is not None and not self.host.open_elsewhere(place):
            with contextlib.suppress(SessionTreeError):  # one can always leave
                return await asyncio.to_thread(shelf.purge_unused, self.session, lambda tree: not len(tree))
        return False

    # Tools

    @property
    def tools(self) -> list[Tool]:
        return list({**self._tools, **self._added}.values())

    def add_tool(self, tool: Tool) -> Callable[[], None]:
        """Let the model use one more tool; a built-in one of that name gives way. Returns what takes it off again."""
        if tool.name in self._added:
            raise InvalidOperation(f"there is a tool {tool.name!r} already, from another extension")
        self._added[tool.name] = tool
        self._hand_over_tools()

        def off() -> None:
            if self._added.get(tool.name) is tool:
                del self._added[tool.name]
                self._hand_over_tools()

        return off

    def _hand_over_tools(self) -> None:
        if self._agent is not None:
            self._agent.tools = {tool.name: tool for tool in self.tools}

    # What is typed

    async def submit(self, line: str) -> Submitted:
        """Do what a line says: a command, `!` or `!!` and something for the shell, or words for the model."""
        if typed(line) is not None:
            self._edited = None
            done = await self.commands.run(self, line)
            words = self._edited
            return Submitted(text=done.text, editor_text=words, outcome=await self._follow(done))
        if line.startswith("!"):
            command = line.lstrip("!").strip()
            if not command:
                raise InvalidOperation("there is nothing to run behind the `!`")
            ran = await self._bash(command, in_context=not line.startswith("!!"))
            return Submitted(text="\n".join(filter(None, [ran.output.rstrip("\n"), ran.note])))
        return Submitted(outcome=await self.say(line))

    async def say(self, words: str, images: Sequence[JsonObject] = ()) -> Outcome:
        """Say something to the model, whatever it begins with."""
        self.staying()
        return await self.agent.prompt(words, images)

    async def _bash(self, command: str, *, in_context: bool) -> Ran:
        """Run a command and write down what it printed. The agent does it where there is one, which need not be."""
        if self._agent is not None:
            return await self._agent.bash(command, in_context=in_context)
        return await self._shell.run(command, self.branch, cwd=self.cwd, settings=self.settings, in_context=in_context)

    async def _write_beside(self, record: Beside, message: Message) -> None:
        if self._agent is not None:  # a model was chosen meanwhile
            await self._agent.write_beside(record, message)
            return
        (entry,) = await record.extend_or_late([message])
        await tell_written(self.hooks.tell, entry)

    async def _follow(self, done: Done) -> Outcome | None:
        if done.prompt is not None:
            return await self.say(done.prompt)
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
        with self.moving() as signal:
            outcome = await navigate(
                self.session,
                self.place(place),
                hooks=self.hooks,
                model=self.model,
                summarize=summarize,
                custom_instructions=custom_instructions,
                replace_instructions=replace_instructions,
                label=label,
                summary=summary,
                branch=self._branch if self.beside else None,
                settings=self.settings.summary,
                retry=self.settings.retry,
                signal=signal,
            )
        self.arrived(outcome.editor_text)
        return outcome

    async def go(self, place: Place) -> NavigateOutcome:
        """Go to the place itself, without the rules of selection."""
        self.at_rest()
        plan = plan_move(self.session.tree, self.branch.leaf, self.session.place(self.place(place)))
        if not plan.moves:
            return NavigateOutcome(old_leaf=plan.old_leaf, new_leaf=plan.new_leaf)
        with self.moving() as signal:
            outcome = await travel(self.branch, plan, self.hooks, signal=signal)
        self.arrived()
        return outcome

    async def switch(self, place: Place) -> NavigateOutcome:
        """Go on on another branch, which is made current unless one works beside that; or go to a place."""
        name = branch_named(place, self.session.tree, self.session.heads) if isinstance(place, str) else None
        if name is None:
            return await self.go(place)
        self.at_rest()
        old = self.branch.leaf
        self._branch = self.session.branch(name) if self.beside else self.session.switch(f"{BRANCH}{name}")
        return await self._elsewhere(old)

    async def undo(self) -> NavigatePlan:
        """Take back the last move or switch."""
        self.at_rest()
        if self.beside:
            raise InvalidOperation(
                f"undo may move the current branch, where others work, and {self.branch.name!r} is not it"
            )
        plan = self.session.undo()
        self._branch = self.session.head
        await self._elsewhere(plan.old_leaf)
        return plan

    async def branch_here(self, name: str | None = None, place: Place | None = None) -> Branch:
        """A new branch of this session to go on on; from here, or from a chosen place. It is current, unless one works
        beside what is.

        A user's message that was chosen is put in the editor, and the branch begins before it.
        """
        self.at_rest()
        old = at = self.branch.leaf
        words = None
        if place is not None:
            plan = self.plan(place)
            at, words = plan.new_leaf, plan.editor_text
        entry = None if at is None else self.session.tree[at]
        name = name or free_name("branch", self.session.heads.heads, 2)
        self._branch = self.session.create_branch(name, at=entry, current=not self.beside)
        await self._elsewhere(old, words)
        return self._branch

    async def _elsewhere(self, old: str | None, words: str | None = None) -> NavigateOutcome:
        """Tell that one is at another place, which nobody was asked about since nothing was left or moved."""
        self.arrived(words)
        new = self.branch.leaf
        await self.hooks.tell(Navigated(new_leaf=new, old_leaf=old))
        return NavigateOutcome(old_leaf=old, new_leaf=new, editor_text=words)

    def arrived(self, words: str | None = None) -> None:
        """Have agent, handlers and front end follow to where one is now."""
        self.hooks.context.branch = self.branch
        if self._agent is not None and not self._agent.running:
            self._agent.branch = self.branch
        self.host.changed()
        self._edit(words)

    def _edit(self, words: str | None) -> None:
        if words is not None:
            self._edited = words
            self.host.put_in_editor(words)

    # Going over to another session

    async def new(self, name: str | None = None) -> bool:
        """Begin a new session. Says whether nobody objected."""
        return await self._go_over(lambda: self._empty(name), "new", None)

    def _empty(self, name: str | None) -> Session:
        before = self.session
        if before.kept_at is None:
            return catalog.memory(name, cwd=before.cwd)
        return catalog.create(name, cwd=self.cwd, dir=before.where if is_address(before.where) else None)

    async def open(self, session: str) -> bool:
        """Go over to another session, by any of its names. Says whether nobody objected."""
        file = catalog.find(session)
        return await self._go_over(lambda: catalog.open(file), "resume", file)

    async def fork(self, place: Place = "HEAD", *, position: Literal["before", "at"] = "at") -> ForkOutcome:
        """Go over to a new session with the path to a place; before a user's message, that is put in the editor."""
        self.at_rest()
        outcome = await fork(self.session, self.place(place), hooks=self.hooks, position=position)
        if outcome.session is not None and await self._take_over(outcome.session, "fork"):
            self._edit(outcome.editor_text)
        return outcome

    async def _go_over(self, make: Callable[[], Session], reason: Literal["new", "resume"], file: str | None) -> bool:
        self.at_rest()
        _, answer = await self.hooks.ask(BeforeSwitch(reason=reason, target_session_file=file))
        if answer.cancel:
            return False
        return await self._take_over(make(), reason)

    async def _take_over(self, session: Session, reason: Reason) -> bool:
        """Go over to a session; says whether one is in it now."""
        previous, branch = self.session.kept_at, await self.host.arrive(session)
        if branch is None:
            session.close()
            return False
        model = self._model_of(session) if reason == "resume" else self.model
        thinking = None if reason == "resume" or self._agent is None else self._agent.thinking
        await self._end()
        await self.hooks.tell(SessionShutdown(reason=reason, target_session_file=session.kept_at))
        try:
            await self._stand_up()
        except StoreError as error:  # it is left all the same, and may be left because of that
            self.hooks.show(Notice(level="warning", text=str(error)))
        fresh = reason != "resume"
        if session.kept_at == previous:  # it is the same one
            fresh = self._fresh
        elif reason != "fork" and await self.drop_unused():
            previous = None
        self.session, self._branch, self._fresh = branch.session, branch, fresh
        self.cwd = self._base
        if self.permissions is not None:
            self.permissions.forget_grants()
        self._sit_down(model, thinking)
        self.host.changed()
        await self.choose_folder()
        await self.hooks.tell(SessionStart(reason=reason, previous_session_file=previous))
        if reason != "fork":
            await self.hooks.tell(Switched(reason=reason, previous_session_file=previous))
        return True

    def _model_of(self, session: Session) -> Model | None:
        """The model that a session was held with, or the one that there is."""
        from sessiontree.model.find import NoModel

        model, name = self.model, model_name(session.head.state)
        if name is None or (model is not None and model.info.name == name):
            return model
        try:
            return self.models.find(name)
        except (NoModel, NotFound) as error:
            instead = "there is none" if model is None else f"going on with {model.info.name}"
            self.hooks.show(Notice(level="warning", text=f"{error}; {instead}"))
            return model

    async def set_model(self, wanted: str | Model) -> Model:
        """Another model from here on, by its name or as it was found already."""
        model = self.models.find(wanted) if isinstance(wanted, str) else wanted
        if self._agent is None:
            self._sit_down(model)
        else:
            await self._agent.set_model(model)
        return model


def _is_same_folder(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
