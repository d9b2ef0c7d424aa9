"""The session controller: the open session, its agent, and the operations that commands and extensions call.

It moves between branches, entries and sessions, notifies the hooks, and keeps the agent on the right branch. Typed
lines arrive through `submit`. The front end draws and asks questions through `Ui` and `Host`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from typing import Literal

from msgspec import Struct, structs

from sessiontree.agent import tracing
from sessiontree.agent.agent import Agent
from sessiontree.agent.agent_input import THINKING_LEVELS
from sessiontree.agent.factory import AgentOptions, build_agent, open_agent_folder
from sessiontree.agent.loop import Outcome, emit_message_events
from sessiontree.agent.run_writer import BackgroundWriter
from sessiontree.agent.system_prompt import SystemPart, build_coding_prompt
from sessiontree.agent.tool import Tool
from sessiontree.agent.tools.bash_tool import CommandResult
from sessiontree.agent.user_shell import UserShell
from sessiontree.config import Config
from sessiontree.core.entries import BranchSummary, Entry, EntryId, JsonObject, Message
from sessiontree.core.operation_plans import NavigatePlan, plan_move
from sessiontree.core.place_names import (
    BRANCH_PREFIX,
    BRANCH_STEM,
    FIRST_BRANCH_NUMBER,
    check_new_branch,
    find_branch,
    find_free_name,
    find_unnamed_leaves,
    is_label,
)
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError, StoreError
from sessiontree.files.file_history import read_restore_diff
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.restore_plan import RestorePlan
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import (
    BeforeSwitch,
    Notice,
    SessionShutdown,
    SessionStart,
    Signal,
    Switched,
)
from sessiontree.hooks.ui_protocol import NoUi, Ui
from sessiontree.library import catalog
from sessiontree.model.base import Model
from sessiontree.ops.compare_files import FilesComparison, compare_files
from sessiontree.ops.fork import ForkOutcome, fork_session
from sessiontree.ops.move_files import UNDONE_RESTORE, FileMover, FilesChoice, restore_after_move
from sessiontree.ops.navigate import (
    MoveGuard,
    NavigateOutcome,
    build_move_items,
    execute_navigation,
    navigate,
)
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.session import Branch, Place, Session
from sessiontree.slash_commands.file_recovery import offer_recovery
from sessiontree.slash_commands.host import HeadlessHost, Host, WorkingFolder
from sessiontree.slash_commands.models import ConfiguredModels, Models
from sessiontree.slash_commands.plan_mode import PlanMode
from sessiontree.slash_commands.registry import CommandOutcome, CommandRegistry, get_builtin_commands, parse_line

Reason = Literal["new", "resume", "fork"]


class SubmitResult(Struct, frozen=True, kw_only=True):
    """The result of a typed line."""

    text: str = ""
    """The output of a command or of the shell."""
    editor_text: str | None = None
    """Text that a command put in the editor."""
    outcome: Outcome | None = None
    """How the agent's run ended, if there was one."""


class SessionController:
    """The open session, its agent, and the operations that commands and extensions call."""

    def __init__(
        self,
        session: Session,
        *,
        commands: CommandRegistry | None = None,
        model: Model | None = None,
        models: Models | None = None,
        options: AgentOptions | None = None,
        hooks: Hooks | None = None,
        ui: Ui | None = None,
        host: Host | None = None,
        branch: Branch | None = None,
        fresh: bool = False,
    ) -> None:
        """Create a controller for `session`. Without a model, everything works except prompts.

        Tools work in `cwd`, which defaults to the current folder. `start` asks the user before it uses the session's
        own folder. Without `permissions`, the agent may use all of its tools.

        A `fresh` session was created for this controller. It is deleted if it is still empty when the user leaves it.
        """
        self.session = session
        self.commands = CommandRegistry(get_builtin_commands()) if commands is None else commands
        self.hooks = Hooks() if hooks is None else hooks
        self.options = AgentOptions() if options is None else options
        self.settings = self.options.settings
        self.models: Models = ConfiguredModels(self.settings, self.hooks) if models is None else models
        self.ui: Ui = NoUi() if ui is None else ui
        self.host: Host = HeadlessHost() if host is None else host
        self.permissions = self.options.permissions
        self.reload: Callable[[], Awaitable[list[str]]] | None = None
        """Reloads extensions and prompt files and returns their names. Set by the extension loader."""
        self.no_model_message = "no model: choose one with /model; `sessiontree models` lists them"
        """The error message if a model is needed and there is none."""
        self._tools = {tool.name: tool for tool in self.options.tools}
        self._added_tools: dict[str, Tool] = {}
        self._system_parts: list[SystemPart] = []
        self.plan_mode = PlanMode(self)
        self._moves = MoveGuard(self.hooks)
        self._shell = UserShell(self.hooks, self._write_shell_message)
        """Runs shell commands while no agent exists."""
        self._fresh = fresh
        self._editor_text: str | None = None
        self._branch = session.head if branch is None else branch
        self._agent: Agent | None = None
        self._stop_tracing: Callable[[], None] = lambda: None
        self._folder = WorkingFolder(self.options.cwd)
        self.project_folder = self._folder.start
        """The folder that tools work in on branches without a private folder, and that extensions come from."""
        self.cwd = self.project_folder
        """The folder that tools and commands with a path work in now."""
        self._folder_problem: str | None = None
        """Why the private folder of the branch cannot be used."""
        self.hooks.context.models, self.hooks.context.ui = self.models, self.ui
        self._attach_agent(model, self.options.thinking)

    # State

    @property
    def branch(self) -> Branch:
        """The branch that this controller works on. Other programs may move `HEAD`."""
        return self._branch

    @property
    def is_off_head(self) -> bool:
        """Whether this branch is not the session's current branch. Then nothing here changes which branch is
        current."""
        return self._branch != self.session.head

    def qualify_place(self, place: Place) -> Place:
        """Return a place with `HEAD` replaced by this controller's branch."""
        if isinstance(place, str) and self.is_off_head and (place == "HEAD" or place.startswith("HEAD~")):
            return f"{self._branch.name}{place.removeprefix('HEAD')}"
        return place

    def plan_navigation(self, place: Place) -> NavigatePlan:
        """Plan a navigation to a place by the selection rules."""
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
        """The agent. Raises `InvalidOperation` without a model."""
        if self._agent is None:
            raise InvalidOperation(self.no_model_message)
        return self._agent

    def _check_folder(self) -> None:
        if self._folder_problem is not None:
            raise InvalidOperation(f"{self._folder_problem}; merge or archive the branch, or switch to another one")

    async def wait_for_triggered_run(self) -> Outcome | None:
        """Wait until the controller is idle, and return the outcome of the last run that an extension's message
        triggered."""
        await self.wait_until_idle()
        return None if self._agent is None else await self._agent.wait_for_triggered_run()

    @property
    def is_running(self) -> bool:
        """Whether the agent is running, or a move or a merge is in progress."""
        return self._moves.is_active or (self._agent is not None and self._agent.running)

    def ensure_not_moving(self) -> None:
        """Raise `InvalidOperation` while a move is in progress. A prompt would land on the branch that is being
        left."""
        self._moves.ensure_inactive()

    def ensure_idle(self) -> None:
        """Raise `InvalidOperation` while anything is running."""
        self.ensure_not_moving()
        if self.is_running:
            raise InvalidOperation("the agent is running: abort it, or wait until it is done")

    async def wait_until_idle(self) -> None:
        """Wait until the agent is idle and no move is in progress. Shell commands may still run."""
        while self.is_running:
            await self._moves.wait()
            if self._agent is not None:
                await self._agent.wait_until_idle()

    def abort(self) -> None:
        """Abort the agent's run, the shell command and the move in progress, and stop waiting for navigation
        handlers."""
        self._moves.abort()
        if self._agent is not None:
            self._agent.abort()
        self._shell.abort()

    @contextlib.contextmanager
    def begin_move(self) -> Generator[Signal]:
        """Start a move and yield the signal that `abort` sets. Raise `InvalidOperation` unless the controller is idle.

        The move is written before its handlers run. They find the controller idle.
        """
        self.ensure_idle()
        with self._moves.begin() as signal:
            yield signal

    # Start and close

    async def start(self) -> None:
        """Choose the working folder, notify the handlers, and trace if an exporter is configured."""
        if tracing.is_configured():
            self._stop_tracing = tracing.trace(self.hooks)
        await self.choose_folder()
        await self.offer_recovery()
        await self.hooks.emit(SessionStart(reason="startup"))

    async def close(self) -> None:
        """Stop all activity, notify the handlers, and close the session."""
        await self._stop_activity()
        await self.hooks.emit(SessionShutdown(reason="quit"))
        self._stop_tracing()
        await self._release_session()
        if self.options.mcp is not None:
            await self.options.mcp.close()

    def _attach_agent(self, model: Model | None, thinking: str | None = None) -> None:
        """Create the agent for the current session."""
        context = self.hooks.context
        context.session, context.branch, context.agent = self.session, self.branch, None
        self._enter_folder()
        context.build_system_prompt = self._build_system_prompt
        if model is not None:
            options = structs.replace(self.options, tools=self.tools, thinking=thinking, cwd=self.cwd)
            self._agent = build_agent(self.branch, model, self.hooks, options)
            context.agent = self._agent

    async def choose_folder(self) -> None:
        """Choose the folder that tools work in. See `WorkingFolder.choose`."""
        self.project_folder = await self._folder.choose(
            self.session.cwd, self.ui, self.hooks, has_tools=bool(self.tools)
        )
        self._enter_folder()

    def _enter_folder(self) -> None:
        """Work in the private folder of the branch, if it has one, else in the folder of the project."""
        try:
            cwd, self._folder_problem = open_agent_folder(self.branch, self.project_folder, None).cwd, None
        except SnapshotError as error:
            cwd, self._folder_problem = None, f"cannot use the private folder of {self.branch.name!r}: {error}"
            self.hooks.notify_listeners(Notice(level="error", text=self._folder_problem))
        self.cwd = self.hooks.context.cwd = cwd or self.project_folder
        if self._agent is not None and not self._agent.running:
            self._agent.cwd = self.cwd

    async def _stop_activity(self) -> None:
        """Abort all activity and wait until its results are written.

        Do not wait for navigation handlers: one of them may be the caller.
        """
        self._moves.abort_unwritten()
        await self._moves.wait()
        if self._agent is not None:
            await self._agent.abort_and_wait()
        await self._shell.shutdown()

    async def _release_session(self) -> None:
        await self._stop_activity()  # handlers may have started something new
        if self._agent is not None:
            await self._agent.close()
            self._agent = None
        self.session.close()

    async def drop_unused(self) -> bool:
        """Delete the closed session if it was created here, is empty, and is not open elsewhere. Return whether it was
        deleted."""

        place = self.session.address
        if self._fresh and place is not None and not self.host.is_open_elsewhere(place):
            with contextlib.suppress(SessionTreeError):  # a failure here must not keep the user from leaving
                return await asyncio.to_thread(catalog.purge_unused, self.session, lambda tree: not len(tree))
        return False

    # Tools

    @property
    def tools(self) -> list[Tool]:
        return list({**self._tools, **self._added_tools}.values())

    def add_tool(self, tool: Tool) -> Callable[[], None]:
        """Add a tool and return a function that removes it. It replaces a built-in tool of the same name."""
        if tool.name in self._added_tools:
            raise InvalidOperation(f"another extension already registered the tool {tool.name!r}")
        self._added_tools[tool.name] = tool
        self._update_agent_tools()

        def remove() -> None:
            if self._added_tools.get(tool.name) is tool:
                del self._added_tools[tool.name]
                self._update_agent_tools()

        return remove

    def add_system_part(self, part: SystemPart) -> Callable[[], None]:
        """Add a part to the end of the system prompt, and return a function that removes it."""
        self._system_parts.append(part)

        def remove() -> None:
            self._system_parts[:] = [one for one in self._system_parts if one is not part]

        return remove

    def _build_system_prompt(self, cwd: str, tools: Sequence[Tool]) -> list[SystemPart]:
        return [*build_coding_prompt(cwd, tools), *self._system_parts]

    def _update_agent_tools(self) -> None:
        if self._agent is not None:
            self._agent.tools = {tool.name: tool for tool in self.tools}

    # Typed lines

    async def submit(self, line: str) -> SubmitResult:
        """Run a typed line: a slash command, a shell command after `!` or `!!`, or a prompt."""
        if parse_line(line) is not None:
            self._editor_text = None
            done = await self.commands.run(self, line)
            words = self._editor_text
            return SubmitResult(text=done.text, editor_text=words, outcome=await self._run_follow_up(done))
        if line.startswith("!"):
            command = line.lstrip("!").strip()
            if not command:
                raise InvalidOperation("no command after `!`")
            ran = await self._run_shell_command(command, in_context=not line.startswith("!!"))
            return SubmitResult(text="\n".join(filter(None, [ran.output.rstrip("\n"), ran.note])))
        return SubmitResult(outcome=await self.send_prompt(line))

    async def send_prompt(self, words: str, images: Sequence[JsonObject] = ()) -> Outcome:
        """Send a prompt to the model, even if it looks like a command."""
        self.ensure_not_moving()
        self._check_folder()
        return await self.agent.run(words, images)

    async def answer(self) -> Outcome:
        """Let the model answer the last message."""
        self._check_folder()
        return await self.agent.continue_()

    async def _run_shell_command(self, command: str, *, in_context: bool) -> CommandResult:
        """Run a shell command and append its output to the session. There may be no agent."""
        self._check_folder()
        if self._agent is not None:
            return await self._agent.run_bash(command, in_context=in_context)
        return await self._shell.run(command, self.branch, cwd=self.cwd, settings=self.settings, in_context=in_context)

    async def _write_shell_message(self, record: BackgroundWriter, message: Message) -> None:
        if self._agent is not None:  # a model was chosen in the meantime
            await self._agent.write_between_turns(record, message)
            return
        (entry,) = await record.extend_or_append_late([message])
        await emit_message_events(self.hooks.emit, entry)

    async def _run_follow_up(self, done: CommandOutcome) -> Outcome | None:
        if done.prompt is not None:
            return await self.send_prompt(done.prompt)
        return await self.answer() if done.answer else None

    # Moves within the session

    async def navigate(
        self,
        place: Place,
        *,
        summarize: bool = False,
        custom_instructions: str | None = None,
        replace_instructions: bool = False,
        label: str | None = None,
        summary: str | None = None,
        files: FilesChoice = "conversation",
        take: Collection[str] = (),
    ) -> NavigateOutcome:
        """Navigate to a place by the selection rules. Put the text of a selected prompt in the editor.

        `files` also restores the files of the place, or only them; `take` names conflicts to restore as well.
        """
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
                files=files,
                take=take,
                file_settings=self.settings.files,
                cwd=self.cwd,
            )
        self.sync_position(outcome.editor_text)
        return outcome

    async def plan_files(self, place: Place) -> RestorePlan:
        """Plan to restore the files of a place that the user selected: the preview of `navigate` with files."""
        leaf = self.plan_navigation(place).new_leaf
        return await self._plan_restore(lambda mover: mover.plan(leaf))

    async def plan_switch_files(self, place: Place) -> RestorePlan:
        """Plan to restore the files of a branch or a place: the preview of `switch` with files."""
        name = self._find_switch_branch(place)
        exact = self.qualify_place(place) if name is None else name
        return await self._plan_restore(lambda mover: mover.plan_switch(exact))

    async def plan_undo_files(self) -> RestorePlan:
        """Plan to restore the files from before the last move: the preview of `undo` with files."""
        return await self._plan_restore(lambda mover: mover.plan_undo(self._plan_undo))

    async def diff_files(self, plan: RestorePlan) -> str:
        """Return what a plan would change on disk, as a unified diff."""
        return await asyncio.to_thread(read_restore_diff, plan)

    async def compare_files(
        self, a: EntryId | None, b: EntryId | None, *, with_diff: bool = True
    ) -> FilesComparison | None:
        """Return how the files of two places differ; `None` if no agent changed files."""
        return await asyncio.to_thread(
            compare_files, self.session, a, b, self.settings.files, self.cwd, with_diff=with_diff
        )

    async def _plan_restore(self, make_plan: Callable[[FileMover], RestorePlan]) -> RestorePlan:
        mover = await self._find_files()
        return await asyncio.to_thread(make_plan, mover)

    async def _find_files(self) -> FileMover:
        return await asyncio.to_thread(FileMover.find, self.branch, self.settings.files, self.cwd)

    async def offer_recovery(self) -> None:
        """Ask whether to finish or revert restores that were killed half way, and report killed calls."""
        await offer_recovery(self.branch, self.settings.files, self.cwd, self.ui, self.hooks)

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
        """Move to the place itself, without the selection rules."""
        self.ensure_idle()
        plan = plan_move(self.session.tree, self.branch.leaf, self.session.resolve_place(self.qualify_place(place)))
        if not plan.is_move:
            return NavigateOutcome(old_leaf=plan.old_leaf, new_leaf=plan.new_leaf)
        with self.begin_move() as signal:
            outcome = await execute_navigation(self.branch, plan, self.hooks, signal=signal)
        self.sync_position()
        return outcome

    async def switch(
        self, place: Place, *, files: FilesChoice = "conversation", take: Collection[str] = ()
    ) -> NavigateOutcome:
        """Switch to another branch, or move to a place. The branch becomes current unless this controller is off
        `HEAD`. `files` and `take` are those of `navigate`."""
        name = self._find_switch_branch(place)

        def switch() -> Branch:
            assert name is not None
            return self.session.branch(name) if self.is_off_head else self.session.switch(f"{BRANCH_PREFIX}{name}")

        async def move() -> NavigateOutcome:
            if name is None:
                return await self.move_to(place)
            self.ensure_idle()
            return await self._change_branch(self._plan_change(self.session.branch(name).leaf), switch)

        return await self._move_with_files(files, take, lambda: self.plan_switch_files(place), move)

    def _find_switch_branch(self, place: Place) -> str | None:
        """Return the branch that a place names, or `None`. Raises `InvalidOperation` for a label."""
        name = find_branch(place, self.session.tree, self.session.heads) if isinstance(place, str) else None
        if name is None and isinstance(place, str) and is_label(place, self.session.tree):
            raise InvalidOperation(f"{place!r} is a label, not a branch; use /tree to go to a label")
        return name

    async def undo(self, *, files: FilesChoice = "conversation", take: Collection[str] = ()) -> NavigateOutcome:
        """Undo the last move or switch. `files` and `take` are those of `navigate`.

        With files, a restore that moved no conversation is undone first.
        """
        self.ensure_idle()

        async def move() -> NavigateOutcome:
            plan = self._plan_undo()

            def undo() -> Branch:
                self.session.undo(expected=plan)
                return self.session.head

            outcome = await self._change_branch(structs.replace(plan, abandoned=()), undo)
            return structs.replace(outcome, undo_description=plan.undo_description)

        return await self._move_with_files(files, take, self.plan_undo_files, move)

    def _plan_undo(self) -> NavigatePlan:
        if self.is_off_head:
            raise InvalidOperation(
                f"cannot undo on {self.branch.name!r}: it is not current, and undo would move the current branch"
            )
        return self.session.plan_undo()

    async def _move_with_files(
        self,
        files: FilesChoice,
        take: Collection[str],
        plan_files: Callable[[], Awaitable[RestorePlan]],
        move: Callable[[], Awaitable[NavigateOutcome]],
    ) -> NavigateOutcome:
        """Move the conversation, the files, or both. Files are planned before the conversation moves."""
        if files == "conversation":
            return await move()
        mover = await self._find_files()
        plan = (await plan_files()).take(take)
        if files == "files" or plan.is_files_only:
            leaf = self.branch.leaf
            with self.begin_move():
                restored = await asyncio.to_thread(mover.restore, plan)
            undone = UNDONE_RESTORE if plan.is_files_only else None
            return NavigateOutcome(old_leaf=leaf, new_leaf=leaf, files=restored, undo_description=undone)
        outcome = await move()
        if outcome.cancelled:
            return outcome
        mover.branch = self.branch
        return structs.replace(outcome, files=await restore_after_move(mover, plan))

    async def branch_here(
        self,
        name: str | None = None,
        place: Place | None = None,
        *,
        summarize: bool = False,
        summary: str | None = None,
    ) -> NavigateOutcome:
        """Create a branch here or at a place, and switch to it. It becomes current unless this controller is off
        `HEAD`.

        If the place is a user's message, the branch starts before it and the message is put in the editor. The new
        branch can start with a summary of the entries it lacks: yours, or with `summarize` one by the model.
        """
        self.ensure_idle()
        plan = self._plan_change(self.branch.leaf) if place is None else self.plan_navigation(place)
        at = None if plan.new_leaf is None else self.session.tree[plan.new_leaf]
        name = name or self._choose_branch_name(plan.new_leaf)
        check_new_branch(name, self.session.tree, self.session.heads)
        request = self.request_summary() if summarize else None
        if summary is not None:
            request = SummaryRequest.from_value(summary)
        if request is not None:
            if not plan.abandoned:
                raise InvalidOperation("nothing to summarize: the new branch has every entry of this one")
            request.check_model()

        def write(body: BranchSummary | None, label: str | None) -> tuple[Branch, Entry | None]:
            items = build_move_items(self.session, plan, body, label)
            self._branch = self.session.create_branch(name, at=at, current=not self.is_off_head, bodies=items)
            self.sync_position(plan.editor_text)
            return self._branch, None if body is None else self.session.tree[items[0].id or ""]

        with self.begin_move() as signal:
            return await execute_navigation(self.branch, plan, self.hooks, summary=request, signal=signal, write=write)

    def _choose_branch_name(self, leaf: EntryId | None) -> str:
        """Return a free name for a branch at an entry: for a leaf without a name, the one that listings show."""
        session = self.session
        unnamed = find_unnamed_leaves(session.tree, session.heads)
        return next((name for name, id in unnamed.items() if id == leaf), None) or find_free_name(
            BRANCH_STEM, session.heads.heads, FIRST_BRANCH_NUMBER
        )

    def _plan_change(self, leaf: EntryId | None) -> NavigatePlan:
        """Plan a change to a place by switching, which abandons nothing."""
        return structs.replace(plan_move(self.session.tree, self.branch.leaf, leaf), abandoned=())

    async def _change_branch(self, plan: NavigatePlan, change: Callable[[], Branch]) -> NavigateOutcome:
        """Ask the hooks, change to another branch or another head of it, and notify the hooks."""

        def write(summary: BranchSummary | None, label: str | None) -> tuple[Branch, Entry | None]:
            self._branch = change()
            if label is not None and plan.target is not None:
                self.session.label(self.session.tree[plan.target], label)
            self.sync_position()
            return self._branch, None

        with self.begin_move() as signal:
            return await execute_navigation(self.branch, plan, self.hooks, signal=signal, write=write)

    def sync_position(self, words: str | None = None) -> None:
        """Update the agent, the handlers and the front end to the current branch."""
        self.hooks.context.branch = self.branch
        self._enter_folder()
        if self._agent is not None and not self._agent.running:
            self._agent.branch = self.branch
        self.host.refresh()
        self._set_editor_text(words)

    def _set_editor_text(self, words: str | None) -> None:
        if words is not None:
            self._editor_text = words
            self.host.set_editor_text(words)

    # Switching sessions

    async def create_session(self, name: str | None = None) -> bool:
        """Create a session and switch to it. Return whether no handler cancelled."""
        return await self._switch_session(lambda: self._create_empty(name), "new", None)

    def _create_empty(self, name: str | None) -> Session:
        return catalog.create_near(self.session, name, cwd=self.cwd)

    async def open_session(self, session: str) -> bool:
        """Switch to another session by its path, id or name. Return whether no handler cancelled."""
        file = catalog.find(session)
        return await self._switch_session(lambda: catalog.open(file), "resume", file)

    async def fork(self, place: Place = "HEAD", *, position: Literal["before", "at"] = "at") -> ForkOutcome:
        """Fork the path to a place into a new session and switch to it.

        A fork before a user's message puts the message in the editor.
        """
        self.ensure_idle()
        outcome = await fork_session(self.session, self.qualify_place(place), hooks=self.hooks, position=position)
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
        """Switch to a session. Return whether the switch took place."""
        previous, branch = self.session.address, await self.host.choose_branch(session)
        if branch is None:
            session.close()
            return False
        model = self._find_model_for(session) if reason == "resume" else self.model
        thinking = None if reason == "resume" or self._agent is None else self._agent.thinking
        if thinking not in THINKING_LEVELS:  # of another program, in the session that is left
            thinking = None
        await self._stop_activity()
        await self.hooks.emit(SessionShutdown(reason=reason, target_session_file=session.address))
        try:
            await self._release_session()
        except StoreError as error:  # leave the session anyway; the failure may be the reason for leaving
            self.hooks.notify_listeners(Notice(level="warning", text=str(error)))
        fresh = reason != "resume"
        if session.address == previous:  # the same session was opened again
            fresh = self._fresh
        elif reason != "fork" and await self.drop_unused():
            previous = None
        self.session, self._branch, self._fresh = branch.session, branch, fresh
        self.project_folder = self._folder.start
        if self.permissions is not None:
            self.permissions.forget_grants()
        self._attach_agent(model, thinking)
        self.host.refresh()
        await self.choose_folder()
        await self.offer_recovery()
        await self.hooks.emit(SessionStart(reason=reason, previous_session_file=previous))
        if reason != "fork":
            await self.hooks.emit(Switched(reason=reason, previous_session_file=previous))
        return True

    def _find_model_for(self, session: Session) -> Model | None:
        """Return the model that the session used last, or the current one if that is unavailable."""
        from sessiontree.model.selection import NoModel

        model, name = self.model, session.head.state.model_name
        if name is None or (model is not None and model.info.name == name):
            return model
        try:
            return self.models.find(name)
        except (NoModel, NotFound) as error:
            instead = "there is no model" if model is None else f"using {model.info.name}"
            self.hooks.notify_listeners(Notice(level="warning", text=f"{error}; {instead}"))
            return model

    def apply_settings(self, settings: Config) -> None:
        """Use a changed configuration from now on. The permission rules stay as they are."""
        self.settings = settings
        self.options = structs.replace(self.options, settings=settings)
        if isinstance(self.models, ConfiguredModels):
            self.models = self.hooks.context.models = ConfiguredModels(settings, self.hooks)
        if self._agent is not None:
            self._agent.settings = settings

    async def set_model(self, wanted: str | Model) -> Model:
        """Use another model from now on, given by name or as an object."""
        model = self.models.find(wanted) if isinstance(wanted, str) else wanted
        if self._agent is None:
            self._attach_agent(model)
        else:
            await self._agent.set_model(model)
        return model
