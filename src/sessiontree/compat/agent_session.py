"""`AgentSession` of pi and oh-my-pi: a session with an agent, commands and hooks, over `SessionController`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from msgspec import Struct, UnsetType, structs

from sessiontree.agent.agent import Agent
from sessiontree.agent.agent_input import resolve_tools
from sessiontree.agent.factory import AgentOptions
from sessiontree.agent.loop import Outcome
from sessiontree.agent.tool import Tool
from sessiontree.compat.session_entry import SessionEntry, SessionTreeNode, translate_entry, use_short_ids
from sessiontree.compat.session_manager import SessionManager, get_location
from sessiontree.core.entries import Compaction, CustomMessage, EntryId
from sessiontree.core.operation_plans import plan_move
from sessiontree.errors import InvalidOperation
from sessiontree.extensions.api import ExtensionApi, UiRegistry
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import CompactionResult
from sessiontree.hooks.ui_protocol import Ui
from sessiontree.model.base import Model
from sessiontree.model.selection import find_model
from sessiontree.ops.navigate import execute_navigation
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.registry import Command, parse_line

HookMessage = CustomMessage
"""A message that a hook sends: `custom_type`, `content`, `display` and `details`."""


class NavigateTreeResult(Struct, frozen=True, kw_only=True):
    editor_text: str | None = None
    """If a user message or a custom message was selected: its text."""
    cancelled: bool = False
    """Whether a hook or `abort` cancelled it. The leaf has not moved."""
    summary_entry: SessionEntry | None = None


class BranchResult(Struct, frozen=True, kw_only=True):
    selected_text: str = ""
    """The text of the selected user message."""
    cancelled: bool = False
    new_session_file: str | None = None
    """The new session's file; `None` if it is in memory, or if the branch is in the same file."""
    in_place: bool = False
    """Whether the branch is in the same file."""


class SessionCompaction(CompactionResult, frozen=True, kw_only=True):
    """A compaction, with pi's name for its first kept entry."""

    @property
    def first_kept_entry_id(self) -> EntryId | None:
        return None if isinstance(self.first_kept, UnsetType) else self.first_kept


class LimitedAgentSession:
    """The part of an `AgentSession` that hooks and commands get: it has no `prompt`."""

    def __init__(self, controller: SessionController) -> None:
        self.controller = controller
        self.session_manager = SessionManager.follow_controller(controller)

    @property
    def hooks(self) -> Hooks:
        return self.controller.hooks

    async def navigate_tree(
        self,
        target_id: EntryId,
        *,
        summarize: bool = False,
        custom_instructions: str | None = None,
        replace_instructions: bool = False,
        label: str | None = None,
    ) -> NavigateTreeResult:
        """Select an entry: move the leaf to it, or before it if it is a user message, whose text is returned.

        `summarize` has the model, or a hook, summarize the branch that the leaf leaves. `custom_instructions` are added
        to the prompt of the summary, or replace it. The label goes on the summary, or on the target without one.
        """
        outcome = await self.controller.navigate(
            self.controller.session.tree[target_id],
            summarize=summarize,
            custom_instructions=custom_instructions,
            replace_instructions=replace_instructions,
            label=label,
        )
        entry = outcome.summary_entry
        return NavigateTreeResult(
            editor_text=outcome.editor_text,
            cancelled=outcome.cancelled,
            summary_entry=None if entry is None else translate_entry(entry),
        )

    async def branch(self, entry_id: EntryId) -> BranchResult:
        """Change to a new session with the path before a user message, and return the text of that message."""
        outcome = await self.controller.fork(self.controller.session.tree[entry_id], position="before")
        use_short_ids(self.controller.session)
        return BranchResult(
            selected_text=outcome.editor_text or "",
            cancelled=outcome.cancelled,
            new_session_file=None if outcome.session is None else get_location(outcome.session),
        )

    async def branch_in_place(
        self, entry_id: EntryId, *, summarize: bool = False, summary: str | None = None
    ) -> BranchResult:
        """Move the leaf to an entry of the same file, whatever its type.

        `summarize` has the model, or a hook, summarize the branch that the leaf leaves; `summary` is your own summary.
        """
        controller = self.controller
        session, branch = controller.session, controller.branch
        request = None if summary is None else SummaryRequest.from_value(summary)
        if request is None and summarize:
            request = controller.request_summary()
            request.check_model()
        controller.ensure_idle()
        plan = plan_move(session.tree, branch.leaf, session.tree[entry_id].id)
        if not plan.is_move:
            return BranchResult(in_place=True)
        with controller.begin_move() as signal:
            outcome = await execute_navigation(branch, plan, controller.hooks, summary=request, signal=signal)
        controller.sync_position()
        return BranchResult(cancelled=outcome.cancelled, in_place=True)

    def get_session_tree(self) -> list[SessionTreeNode]:
        return self.session_manager.get_tree()

    async def send_hook_message(self, message: HookMessage, trigger_turn: bool = False) -> None:
        """Append the message of a hook; if an answer is running, at the end of the turn.

        With `trigger_turn`, the model answers it unless it is already answering.
        """
        api = ExtensionApi(message.custom_type, self.controller, UiRegistry())
        await api.send_message(
            message.content,
            custom_type=message.custom_type,
            display=message.display,
            details=message.details,
            trigger_turn=trigger_turn,
        )


class AgentSession(LimitedAgentSession):
    """A session with an agent. Without a model, all works but prompts and summaries by a model."""

    def __init__(
        self,
        session_manager: SessionManager | None = None,
        model: Model | str | None = None,
        *,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        hooks: Hooks | None = None,
        ui: Ui | None = None,
        options: AgentOptions | None = None,
    ) -> None:
        """Take over the session of `session_manager`; by default a new one in memory.

        `options` has the system prompt, settings and permissions. The manager of the agent is `session_manager` of this
        object, which follows it into other sessions.
        """
        manager = SessionManager() if session_manager is None else session_manager
        if not isinstance(manager, SessionManager):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise InvalidOperation(
                f"an AgentSession takes a SessionManager, as SessionManager(session), not {manager!r:.80}"
            )
        chosen = structs.replace(options or AgentOptions(), tools=tuple(resolve_tools(tools).values()))
        super().__init__(
            SessionController(
                manager.session,
                model=find_model(model, chosen.settings) if isinstance(model, str) else model,
                options=chosen,
                hooks=hooks,
                ui=ui,
            )
        )
        self.ui_registry = UiRegistry()
        """The renderers that hooks registered."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the agent and close the session."""
        await self.controller.close()

    @property
    def agent(self) -> Agent:
        """The agent. Raises `InvalidOperation` without a model."""
        return self.controller.agent

    async def prompt(self, text: str) -> Outcome | None:
        """Send a prompt to the model, or run a slash command. Return how the model's run ended, if there was one."""
        if parse_line(text) is not None:
            return (await self.controller.submit(text)).outcome
        return await self.controller.send_prompt(text)

    async def compact(self, custom_instructions: str | None = None) -> SessionCompaction | None:
        """Replace the older part of the context by a summary; `None` if there is none, or if a hook cancelled it."""
        outcome = await self.agent.compact(custom_instructions)
        body = None if outcome.entry is None else outcome.entry.body
        if not isinstance(body, Compaction):
            return None
        return SessionCompaction(
            summary=body.summary,
            first_kept=body.first_kept,
            tokens_before=body.tokens_before,
            details=body.details,
            usage=body.usage,
        )

    def abort(self) -> None:
        """Abort the answer or the navigation in progress."""
        self.controller.abort()

    def get_registered_commands(self) -> list[Command]:
        """Return the commands that hooks registered."""
        return [command for command in self.controller.commands if command.source != "sessiontree"]

    def get_command(self, name: str) -> Command | None:
        """Return the command of this name that a hook registered."""
        return next((command for command in self.get_registered_commands() if command.name == name), None)
