"""`HookAPI` of pi and oh-my-pi: what a hook gets to register handlers and commands, over `ExtensionApi`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct, structs

from sessiontree.agent.tools.bash_tool import CommandResult
from sessiontree.compat.agent_session import (
    AgentSession,
    BranchResult,
    HookMessage,
    LimitedAgentSession,
    NavigateTreeResult,
)
from sessiontree.compat.session_entry import SessionEntry, copy_as, translate_entry
from sessiontree.compat.session_manager import SessionManager
from sessiontree.core.context import Context
from sessiontree.core.entries import EntryId
from sessiontree.core.message_views import is_object
from sessiontree.extensions.api import ExtensionApi, Renderer
from sessiontree.hooks.bus import DEADLINE, Handler, HookContext, call
from sessiontree.hooks.events import (
    BeforeCompact,
    BeforeNavigate,
    CompactionPreparation,
    Event,
    Navigated,
    TreePreparation,
)
from sessiontree.hooks.ui_protocol import Ui

S = TypeVar("S", bound=Struct)


class SessionTreePreparation(TreePreparation, frozen=True, kw_only=True):
    """A planned move, with pi's names."""

    @property
    def target_id(self) -> EntryId | None:
        return self.target

    @property
    def old_leaf_id(self) -> EntryId | None:
        return self.old_leaf

    @property
    def common_ancestor_id(self) -> EntryId | None:
        return self.common_ancestor


class SessionBeforeTreeEvent(BeforeNavigate, frozen=True, kw_only=True):
    preparation: SessionTreePreparation  # pyright: ignore[reportIncompatibleVariableOverride] - it is only read

    @property
    def type(self) -> str:
        return "session_before_tree"


class SessionTreeEvent(Navigated, frozen=True, kw_only=True):
    @property
    def type(self) -> str:
        return "session_tree"

    @property
    def new_leaf_id(self) -> EntryId | None:
        return self.new_leaf

    @property
    def old_leaf_id(self) -> EntryId | None:
        return self.old_leaf

    @property
    def from_extension(self) -> bool:
        return self.from_hook


class SessionCompactPreparation(CompactionPreparation, frozen=True, kw_only=True):
    """A planned compaction, with pi's name for the first kept entry."""

    @property
    def first_kept_entry_id(self) -> EntryId | None:
        return self.first_kept


class SessionBeforeCompactEvent(BeforeCompact, frozen=True, kw_only=True):
    preparation: SessionCompactPreparation  # pyright: ignore[reportIncompatibleVariableOverride] - it is only read

    @property
    def type(self) -> str:
        return "session_before_compact"


def translate_preparation(preparation: CompactionPreparation) -> SessionCompactPreparation:
    return copy_as(SessionCompactPreparation, preparation)


def _translate_event(event: Event) -> Event:
    """Return an event with pi's names besides ours."""
    match event:
        case BeforeNavigate():
            preparation = copy_as(SessionTreePreparation, event.preparation)
            entries = tuple(map(translate_entry, preparation.entries_to_summarize))
            return SessionBeforeTreeEvent(
                preparation=structs.replace(preparation, entries_to_summarize=entries), signal=event.signal
            )
        case Navigated():
            entry = event.summary_entry
            return structs.replace(
                copy_as(SessionTreeEvent, event), summary_entry=None if entry is None else translate_entry(entry)
            )
        case BeforeCompact():
            return copy_as(
                SessionBeforeCompactEvent, structs.replace(event, preparation=translate_preparation(event.preparation))
            )
        case _:
            return event


def _translate_answer(answer: Any) -> Any:
    """Return the answer of a handler with our name for the first kept entry of a compaction."""
    if not is_object(answer) or not is_object(compaction := answer.get("compaction")):
        return answer
    renamed = {"first_kept" if name == "first_kept_entry_id" else name: value for name, value in compaction.items()}
    return {**answer, "compaction": renamed}


class HookEventContext:
    """What handlers get besides the event."""

    def __init__(self, api: ExtensionApi, ui: Ui) -> None:
        self.session = LimitedAgentSession(api.controller)
        self.ui = ui
        self._api = api

    @property
    def session_manager(self) -> SessionManager:
        return self.session.session_manager

    @property
    def entries(self) -> Sequence[SessionEntry]:
        """All entries of the session, in the order of the file."""
        return self.session_manager.get_entries()

    @property
    def current_path(self) -> Sequence[SessionEntry]:
        """The entries from the root to the leaf."""
        return self.session_manager.get_branch()

    async def branch(self, entry_id: EntryId) -> BranchResult:
        return await self.session.branch(entry_id)

    async def branch_in_place(self, parent_id: EntryId, summary: str | None = None) -> BranchResult:
        return await self.session.branch_in_place(parent_id, summary=summary)

    async def navigate_tree(self, target_id: EntryId, *, summarize: bool = False) -> NavigateTreeResult:
        return await self.session.navigate_tree(target_id, summarize=summarize)

    async def rebuild_context(self) -> Context:
        """Return what the model is sent at the leaf. Agents read it again before every request."""
        return self.session_manager.build_session_context()

    async def exec(self, command: str, args: Sequence[str] = (), *, timeout: float | None = None) -> CommandResult:
        """Run a program without a shell."""
        return await self._api.exec(command, *args, timeout=timeout)


class CommandContext(HookEventContext):
    """What the handler of a command gets."""

    def __init__(self, api: ExtensionApi, ui: Ui, args: str) -> None:
        super().__init__(api, ui)
        self.args = args
        """Everything after the name of the command."""


ExtensionCommandContext = CommandContext
"""oh-my-pi's name."""

PiCommandHandler: TypeAlias = Callable[[CommandContext], Awaitable[str | None] | str | None]
"""Returns a text to send as a prompt, or nothing."""


class HookAPI:
    """The object that a hook registers with. In an extension, `pi = HookAPI(api)`."""

    def __init__(self, api: ExtensionApi | AgentSession, name: str = "hook") -> None:
        """`name` is the source of what the hook registers; in an extension it is the extension's own."""
        if isinstance(api, AgentSession):
            api = ExtensionApi(name, api.controller, api.ui_registry)
        self._api = api

    def on(self, event: str, handler: Handler, *, deadline: float = DEADLINE) -> None:
        """Register a handler of an event. It takes the event and a `HookEventContext`, and may be async."""

        @wraps(handler)
        async def handle(event: Event, context: HookContext) -> Any:
            return _translate_answer(await call(handler, _translate_event(event), self._build_context(context)))

        self._api.on(event, handle, deadline=deadline)

    def _build_context(self, context: HookContext) -> HookEventContext:
        return HookEventContext(self._api, self._api.ui if context.ui is None else context.ui)

    async def send_message(self, message: HookMessage, trigger_turn: bool = False) -> None:
        """Append a message that the model sees as a user message. With `trigger_turn`, the model answers it."""
        await LimitedAgentSession(self._api.controller).send_hook_message(message, trigger_turn)

    def append_entry(self, custom_type: str, data: Any = None) -> EntryId:
        """Append the state of the hook, which the model does not see."""
        return self._api.append_entry(custom_type, data).id

    def register_command(self, name: str, *, description: str = "", handler: PiCommandHandler) -> None:
        """Add a slash command. If its handler returns a text, it is sent as a prompt."""

        async def run(args: str, context: HookContext) -> str | None:
            ui = self._api.ui if context.ui is None else context.ui
            return await call(handler, CommandContext(self._api, ui, args))

        self._api.register_command(name, run, help=description)

    def register_custom_message_renderer(self, custom_type: str, renderer: Renderer) -> None:
        """Register how front ends show custom messages of a type."""
        self._api.register_renderer(custom_type, renderer)
