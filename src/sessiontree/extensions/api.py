"""The API object that an extension receives in `setup(api)`.

Everything that an extension registers carries its name, and is removed when the extension is unloaded.
"""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from sessiontree.agent.sandbox import clean_environment
from sessiontree.agent.tool import Tool, tool
from sessiontree.agent.tools.bash_tool import CommandResult, run_command
from sessiontree.core.context import Context as ModelContext
from sessiontree.core.entries import Custom, CustomMessage, Entry, JsonObject
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.extensions.project_trust import ExtensionError
from sessiontree.hooks.bus import DEADLINE, Handler, HookContext, call
from sessiontree.hooks.events import Event, Notice
from sessiontree.hooks.ui_protocol import Ui
from sessiontree.ops.fork import ForkOutcome
from sessiontree.ops.navigate import NavigateOutcome
from sessiontree.session import Branch, Place, Session
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.registry import Argument, Command, CommandOutcome, Completer

CommandHandler: TypeAlias = Callable[[str, HookContext], Awaitable[str | None] | str | None]
"""Takes the text after the command name and the context. A returned text is sent as a prompt."""

Renderer: TypeAlias = Callable[[Entry], Any]
"""Returns what to show for an entry: a text, or a widget of the front end."""

ShortcutHandler: TypeAlias = Callable[[HookContext], Awaitable[None] | None]


class Shortcut(Struct, frozen=True, kw_only=True):
    key: str
    help: str
    run: Callable[[], Awaitable[None]]
    source: str


class UiRegistry:
    """Renderers and shortcuts that extensions add to a front end."""

    def __init__(self) -> None:
        self.renderers: dict[str, Renderer] = {}
        """By custom type of the entries."""
        self.shortcuts: dict[str, Shortcut] = {}
        """By key."""


class ExtensionApi:
    """What an extension registers with and acts through."""

    def __init__(self, name: str, controller: SessionController, ui_registry: UiRegistry) -> None:
        self.name = name
        self._session_controller = controller
        self._ui_registry = ui_registry
        self._unregister: list[Callable[[], None]] = []
        self._closed = False

    def close(self) -> None:
        """Remove everything that the extension registered. The object cannot be used afterwards."""
        self._closed = True
        while self._unregister:
            self._unregister.pop()()

    @property
    def _controller(self) -> SessionController:
        if self._closed:
            raise ExtensionError(self.name, "the extension was unloaded")
        return self._session_controller

    # State

    @property
    def controller(self) -> SessionController:
        """The controller of the session that the user works on."""
        return self._controller

    @property
    def ui(self) -> Ui:
        """Dialogs and notifications. In handlers, use `ctx.ui`: it also pauses the handler's timeout."""
        return self._controller.ui

    @property
    def session(self) -> Session:
        return self._controller.session

    @property
    def branch(self) -> Branch:
        """The branch that the user works on."""
        return self._controller.branch

    def entries(self, custom_type: str | None = None) -> list[Entry]:
        """Return all entries of the session in file order, optionally of one custom type."""
        return _filter_by_type(list(self._controller.session.tree), custom_type)

    def path(self, custom_type: str | None = None) -> list[Entry]:
        """Return the entries from the root to the current leaf, optionally of one custom type."""
        return _filter_by_type(self._controller.branch.path(), custom_type)

    def rebuild_context(self) -> ModelContext:
        """Build the context that the model sees at the current leaf."""
        return self._controller.branch.context()

    # Registration

    def on(self, event: str | type[Event], handler: Handler | None = None, *, deadline: float = DEADLINE) -> Any:
        """Register an event handler, by event type, event name or the name that other programs use. Also a
        decorator."""

        def register(handler: Handler) -> Handler:
            self._unregister.append(self._controller.hooks.on(event, handler, source=self.name, deadline=deadline))
            return handler

        return register if handler is None else register(handler)

    def register_command(
        self,
        name: str,
        handler: CommandHandler | None = None,
        *,
        help: str = "",
        usage: str = "",
        complete: Completer | None = None,
    ) -> Any:
        """Add a slash command. Also a decorator, which uses the handler's docstring as help."""

        def register(handler: CommandHandler) -> CommandHandler:
            async def run(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
                result = await self._call_handler(
                    f"/{name}", handler, args[0] if args else "", controller.hooks.context
                )
                if result is not None and not isinstance(result, str):
                    raise ExtensionError(self.name, f"/{name} must return a prompt or None")
                return CommandOutcome(prompt=result)

            summary = (help or inspect.getdoc(handler) or "").split("\n")[0].rstrip(".")
            offer = None if complete is None else self._guard_completer(f"the completion of /{name}", complete)
            argument = Argument(name=usage or "TEXT", complete=offer, rest=True)
            command = Command(name=name, help=summary, run=run, arguments=(argument,), source=self.name)
            self._unregister.append(self._controller.commands.add(command))
            return handler

        return register if handler is None else register(handler)

    def register_tool(self, implementation: Tool | Callable[..., Any]) -> Any:
        """Add a tool for the model: a `Tool`, or a typed function with a docstring. Also a decorator."""
        self._unregister.append(
            self._controller.add_tool(implementation if isinstance(implementation, Tool) else tool(implementation))
        )
        return implementation

    def register_renderer(self, custom_type: str, renderer: Renderer | None = None) -> Any:
        """Register how front ends show entries of a custom type. Also a decorator."""

        def register(renderer: Renderer) -> Renderer:
            self._register_unique(self._ui_registry.renderers, custom_type, renderer, "a renderer for")
            return renderer

        return register if renderer is None else register(renderer)

    def register_shortcut(self, key: str, handler: ShortcutHandler | None = None, *, help: str = "") -> Any:
        """Register a keyboard shortcut, such as `ctrl+g`. Front ends without a keyboard ignore it. Also a decorator."""

        def register(handler: ShortcutHandler) -> ShortcutHandler:
            async def run() -> None:
                await self._call_handler(key, handler, self._controller.hooks.context)

            shortcut = Shortcut(key=key, help=help or inspect.getdoc(handler) or "", run=run, source=self.name)
            self._register_unique(self._ui_registry.shortcuts, key, shortcut, "a shortcut for")
            return handler

        return register if handler is None else register(handler)

    def _register_unique(self, fitted: dict[str, Any], key: str, value: Any, what: str) -> None:
        if key in fitted:
            raise ExtensionError(self.name, f"another extension already registered {what} {key!r}")
        fitted[key] = value
        self._unregister.append(lambda: fitted.pop(key, None) and None)

    async def _call_handler(self, what: str, handler: Callable[..., Any], *arguments: Any) -> Any:
        """Call a handler and return its result. A function that is not async runs in a thread."""
        try:
            return await call(handler, *arguments)
        except SessionTreeError:
            raise
        except (Exception, SystemExit) as error:
            raise ExtensionError(self.name, f"{what} failed with {type(error).__name__}: {error}") from error

    def _guard_completer(self, what: str, complete: Completer) -> Completer:
        """Return a completer that returns nothing on failure. It reports the first failure only, because it runs on
        every key."""
        reported = False

        def complete_safely(controller: SessionController, prefix: str) -> list[str]:
            nonlocal reported
            try:
                choices = list(complete(controller, prefix))
                if not all(isinstance(choice, str) for choice in choices):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise TypeError("it must return strings")
            except (Exception, SystemExit) as error:  # noqa: BLE001 - an extension may raise anything
                if not reported:
                    reported = True
                    text = f"extension {self.name}: {what} failed with {type(error).__name__}: {error}"
                    controller.hooks.notify_listeners(Notice(level="error", text=text))
                return []
            return choices

        return complete_safely

    # Actions

    async def send_message(
        self,
        content: str | list[JsonObject],
        *,
        custom_type: str | None = None,
        display: bool = True,
        details: Any = None,
        trigger_turn: bool = False,
    ) -> None:
        """Append a user message to the context. While the agent runs, the message is queued until the end of the turn.

        With `trigger_turn`, the model answers it unless the agent is running. Without a model, the message is still
        written, and `InvalidOperation` is raised.
        """
        message = CustomMessage(custom_type=custom_type or self.name, content=content, display=display, details=details)
        if self._controller.has_agent:
            await self._controller.agent.send_message(message, trigger_turn=trigger_turn)
        else:
            await asyncio.to_thread(self._controller.branch.append, message)
            if trigger_turn:
                raise InvalidOperation(
                    f"the message was written, but cannot be answered: {self._controller.no_model_message}"
                )

    def append_entry(self, custom_type: str, data: Any = None) -> Entry:
        """Append an entry with state to the branch. The model does not see it."""
        return self._controller.branch.append(Custom(custom_type=custom_type, data=data))

    async def navigate(self, place: Place, **options: Any) -> NavigateOutcome:
        """Navigate to a place, optionally with a summary. See `ops.navigate` for the options."""
        return await self._controller.navigate(place, **options)

    async def branch_in_place(
        self,
        place: Place | None = None,
        *,
        name: str | None = None,
        summarize: bool = False,
        summary: str | None = None,
    ) -> NavigateOutcome:
        """Create a branch in this session, here or at a place, and switch to it. `branch` is the new branch.

        The branch can start with a summary of the entries it lacks: yours, or with `summarize` one by the model.
        """
        return await self._controller.branch_here(name, place, summarize=summarize, summary=summary)

    async def fork(self, place: Place = "HEAD", *, position: Literal["before", "at"] = "at") -> ForkOutcome:
        """Fork the path to a place into a new session and switch to it."""
        return await self._controller.fork(place, position=position)

    async def exec(
        self, program: str, *arguments: str, cwd: str | None = None, timeout: float | None = None
    ) -> CommandResult:
        """Run a program without a shell and return its combined output and errors.

        It gets the same environment variables as the model's commands. The `timeout` is in seconds.
        """
        return await run_command(
            shlex.join([program, *arguments]),
            cwd=cwd or self._controller.cwd,
            environment=clean_environment(self._controller.settings),
            timeout=timeout,
        )


def _filter_by_type(entries: list[Entry], custom_type: str | None) -> list[Entry]:
    if custom_type is None:
        return entries
    return [
        entry
        for entry in entries
        if isinstance(entry.body, Custom | CustomMessage) and entry.body.custom_type == custom_type
    ]
