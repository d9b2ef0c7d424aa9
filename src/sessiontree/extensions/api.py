"""The API: what an extension is given in `setup(api)`, and everything it can do.

Whatever it registers carries its name and is taken off when it is unloaded.
"""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from sessiontree.agent.tool import Tool, tool
from sessiontree.agent.tools.environment import clean_environment
from sessiontree.agent.tools.process import Ran, run_command
from sessiontree.commands.command import Argument, Command, Complete, Done
from sessiontree.commands.desk import Desk
from sessiontree.core.context import Context as ModelContext
from sessiontree.core.entries import Custom, CustomMessage, Entry, JsonObject
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.extensions.errors import ExtensionError
from sessiontree.hooks.bus import DEADLINE, Context, Handler
from sessiontree.hooks.calling import call
from sessiontree.hooks.events import Event, Notice
from sessiontree.hooks.ui import Ui
from sessiontree.ops.fork import ForkOutcome
from sessiontree.ops.navigate import NavigateOutcome
from sessiontree.session import Branch, Place, Session

CommandHandler: TypeAlias = Callable[[str, Context], Awaitable[str | None] | str | None]
"""Takes what was typed behind the name, and the context. A text that it returns is sent as a prompt."""

Renderer: TypeAlias = Callable[[Entry], Any]
"""What to show for an entry: a text, or a component of the front end's own kind."""

ShortcutHandler: TypeAlias = Callable[[Context], Awaitable[None] | None]


class Shortcut(Struct, frozen=True, kw_only=True):
    key: str
    help: str
    run: Callable[[], Awaitable[None]]
    source: str


class Fittings:
    """What extensions add to a front end."""

    def __init__(self) -> None:
        self.renderers: dict[str, Renderer] = {}
        """By the custom type of the entries that they show."""
        self.shortcuts: dict[str, Shortcut] = {}
        """By key."""


class Api:
    def __init__(self, name: str, desk: Desk, fittings: Fittings) -> None:
        self.name = name
        self._desk_of_all = desk
        self._fittings = fittings
        self._off: list[Callable[[], None]] = []
        self._closed = False

    def close(self) -> None:
        """Take off all that was registered. What the extension still holds of this object works no more."""
        self._closed = True
        while self._off:
            self._off.pop()()

    @property
    def _desk(self) -> Desk:
        if self._closed:
            raise ExtensionError(self.name, "it is not loaded any more")
        return self._desk_of_all

    # What there is

    @property
    def ui(self) -> Ui:
        """Asks and tells the person. In handlers, `ctx.ui` is the same, and stops the handler's clock meanwhile."""
        return self._desk.ui

    @property
    def session(self) -> Session:
        return self._desk.session

    @property
    def branch(self) -> Branch:
        """The branch that is worked on."""
        return self._desk.branch

    def entries(self, custom_type: str | None = None) -> list[Entry]:
        """All entries of the session, in the order of the file; or those of one custom type."""
        return _of_type(list(self._desk.session.tree), custom_type)

    def path(self, custom_type: str | None = None) -> list[Entry]:
        """The entries from the root to here; or those of one custom type."""
        return _of_type(self._desk.branch.path(), custom_type)

    def rebuild_context(self) -> ModelContext:
        """What the model sees from here, worked out anew."""
        return self._desk.branch.context()

    # Registering

    def on(self, event: str | type[Event], handler: Handler | None = None, *, deadline: float = DEADLINE) -> Any:
        """Have a handler called at an event, by its type, its name or a peer's name. Also a decorator."""

        def register(handler: Handler) -> Handler:
            self._off.append(self._desk.hooks.on(event, handler, source=self.name, deadline=deadline))
            return handler

        return register if handler is None else register(handler)

    def register_command(
        self,
        name: str,
        handler: CommandHandler | None = None,
        *,
        help: str = "",
        usage: str = "",
        complete: Complete | None = None,
    ) -> Any:
        """Add a slash command. Also a decorator, with the handler's docstring as help."""

        def register(handler: CommandHandler) -> CommandHandler:
            async def run(desk: Desk, args: Sequence[str]) -> Done:
                given = await self._called(f"/{name}", handler, args[0] if args else "", desk.hooks.context)
                if given is not None and not isinstance(given, str):
                    raise ExtensionError(self.name, f"/{name} returned neither a prompt nor nothing")
                return Done(prompt=given)

            said = (help or inspect.getdoc(handler) or "").split("\n")[0].rstrip(".")
            offer = None if complete is None else self._guarded(f"the completion of /{name}", complete)
            argument = Argument(name=usage or "TEXT", complete=offer, rest=True)
            command = Command(name=name, help=said, run=run, arguments=(argument,), source=self.name)
            self._off.append(self._desk.commands.add(command))
            return handler

        return register if handler is None else register(handler)

    def register_tool(self, given: Tool | Callable[..., Any]) -> Any:
        """Let the model use a tool: a `Tool`, or a typed function with a docstring. Also a decorator."""
        self._off.append(self._desk.add_tool(given if isinstance(given, Tool) else tool(given)))
        return given

    def register_renderer(self, custom_type: str, renderer: Renderer | None = None) -> Any:
        """Say how front ends are to show entries of a custom type. Also a decorator."""

        def register(renderer: Renderer) -> Renderer:
            self._fit(self._fittings.renderers, custom_type, renderer, "a renderer for")
            return renderer

        return register if renderer is None else register(renderer)

    def register_shortcut(self, key: str, handler: ShortcutHandler | None = None, *, help: str = "") -> Any:
        """Have something done at a key, such as `ctrl+g`, in front ends that have keys. Also a decorator."""

        def register(handler: ShortcutHandler) -> ShortcutHandler:
            async def run() -> None:
                await self._called(key, handler, self._desk.hooks.context)

            shortcut = Shortcut(key=key, help=help or inspect.getdoc(handler) or "", run=run, source=self.name)
            self._fit(self._fittings.shortcuts, key, shortcut, "something at")
            return handler

        return register if handler is None else register(handler)

    def _fit(self, fitted: dict[str, Any], key: str, value: Any, what: str) -> None:
        if key in fitted:
            raise ExtensionError(self.name, f"there is {what} {key!r} already, from another extension")
        fitted[key] = value
        self._off.append(lambda: fitted.pop(key, None) and None)

    async def _called(self, what: str, handler: Callable[..., Any], *arguments: Any) -> Any:
        """What a handler returns. One that is not async runs in a thread of its own."""
        try:
            return await call(handler, *arguments)
        except SessionTreeError:
            raise
        except (Exception, SystemExit) as error:
            raise ExtensionError(self.name, f"{what} failed with {type(error).__name__}: {error}") from error

    def _guarded(self, what: str, complete: Complete) -> Complete:
        """A completion that offers nothing where it fails, which is told once: it is asked for at every letter."""
        told = False

        def offered(desk: Desk, begun: str) -> list[str]:
            nonlocal told
            try:
                choices = list(complete(desk, begun))
                if not all(isinstance(choice, str) for choice in choices):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise TypeError("it offers something else than texts")
            except (Exception, SystemExit) as error:  # noqa: BLE001 - an extension may raise anything
                if not told:
                    told = True
                    text = f"extension {self.name}: {what} failed with {type(error).__name__}: {error}"
                    desk.hooks.show(Notice(level="error", text=text))
                return []
            return choices

        return offered

    # Doing

    async def send_message(
        self,
        content: str | list[JsonObject],
        *,
        custom_type: str | None = None,
        display: bool = True,
        details: Any = None,
        trigger_turn: bool = False,
    ) -> None:
        """Put a message in the context, as the user's. While the agent runs, it waits for the end of the turn.

        With `trigger_turn`, and nothing running, the model answers it. Where there is no model, it is written all the
        same, and `InvalidOperation` says that nobody answers.
        """
        message = CustomMessage(custom_type=custom_type or self.name, content=content, display=display, details=details)
        if self._desk.has_agent:
            await self._desk.agent.send_message(message, trigger_turn=trigger_turn)
        else:
            await asyncio.to_thread(self._desk.branch.append, message)
            if trigger_turn:
                raise InvalidOperation(f"the message was written, but nobody answers it: {self._desk.no_model}")

    def append_entry(self, custom_type: str, data: Any = None) -> Entry:
        """Write down state. It is not in the context, and stands in the tree where the branch is now."""
        return self._desk.branch.append(Custom(custom_type=custom_type, data=data))

    async def navigate(self, place: Place, **options: Any) -> NavigateOutcome:
        """Go to a place, with a summary if that is asked for: see `ops.navigate` for the options."""
        return await self._desk.navigate(place, **options)

    async def branch_in_place(self, place: Place | None = None, *, name: str | None = None) -> Branch:
        """A new branch in this session, which is current from now on; from here or from a place."""
        return await self._desk.branch_here(name, place)

    async def fork(self, place: Place = "HEAD", *, position: Literal["before", "at"] = "at") -> ForkOutcome:
        """Go over to a new session with the path to a place."""
        return await self._desk.fork(place, position=position)

    async def exec(self, program: str, *arguments: str, cwd: str | None = None, timeout: float | None = None) -> Ran:
        """Run a program to its end, without a shell in between. Its output and errors come together.

        It gets the variables that commands of the model get.
        """
        return await run_command(
            shlex.join([program, *arguments]),
            cwd=cwd or self._desk.cwd,
            environment=clean_environment(self._desk.settings),
            timeout=timeout,
        )


def _of_type(entries: list[Entry], custom_type: str | None) -> list[Entry]:
    if custom_type is None:
        return entries
    return [
        entry
        for entry in entries
        if isinstance(entry.body, Custom | CustomMessage) and entry.body.custom_type == custom_type
    ]
