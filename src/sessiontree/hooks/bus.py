"""Handlers: who is told of what, and how their answers combine.

The one place for both. Handlers are asked in the order they were registered, each shown what those before it
changed; the first that cancels ends it. One that raises, takes longer than its deadline, or answers with something
else than its event allows is reported by a `Notice`, and counts as if it had not been there.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET

from sessiontree.core.messages import ToolCall
from sessiontree.errors import NotFound
from sessiontree.hooks.events import (
    ALIASES,
    EVENTS,
    NAMES,
    Answer,
    BeforeMessage,
    BeforeRequest,
    BeforeToolCall,
    Event,
    Notice,
    ToolCallAnswer,
    ToolResult,
)

Handler: TypeAlias = Callable[[Any, Any], Any | Awaitable[Any]]
"""Takes the event and the context; may be async. One that is not runs in a thread of its own."""

Listener: TypeAlias = Callable[[Event], None]
"""Is shown every event, at once and in order; for front ends. It must not wait."""

DEADLINE = 60.0
"""How long a handler may take, in seconds."""

E = TypeVar("E", bound=Event)


@dataclass
class Context:
    """What handlers get beside the event."""

    session: Any = None
    branch: Any = None
    agent: Any = None
    models: Any = None
    """Finds models by name, so that a handler can call one."""
    ui: Any = None
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class _Registered:
    handler: Handler
    source: str
    deadline: float


class Hooks:
    def __init__(self, context: Context | None = None) -> None:
        self.context = Context() if context is None else context
        self._handlers: dict[type[Event], list[_Registered]] = {}
        self._listeners: list[Listener] = []

    def on(
        self, event: str | type[Event], handler: Handler, *, source: str = "", deadline: float = DEADLINE
    ) -> Callable[[], None]:
        """Have `handler` called at an event, by its type, name, or a peer's name. Returns what takes it off again."""
        kind = event_type(event) if isinstance(event, str) else event
        registered = _Registered(handler, source or getattr(handler, "__name__", "a handler"), deadline)
        self._handlers.setdefault(kind, []).append(registered)

        def off() -> None:
            handlers = self._handlers.get(kind, [])
            if registered in handlers:
                handlers.remove(registered)

        return off

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Show `listener` every event from now on. Returns what takes it off again."""
        self._listeners.append(listener)

        def off() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return off

    def show(self, event: Event) -> None:
        """Show an event to the listeners alone."""
        for listener in tuple(self._listeners):
            listener(event)

    async def tell(self, event: Event) -> None:
        """Tell listeners and handlers of something that has happened."""
        self.show(event)
        for registered in tuple(self._handlers.get(type(event), ())):
            await self._called(registered, event)

    async def ask(self, event: E) -> tuple[E, Answer]:
        """Ask about something that is about to happen: the event as the handlers changed it, and their answer."""
        self.show(event)
        kind = event.answer or Answer
        answers: list[Answer] = []
        for registered in tuple(self._handlers.get(type(event), ())):
            given = await self._called(registered, shown(event))
            answer = self._understood(registered, event, kind, given)
            if answer is None:
                continue
            answers.append(answer)
            if answer.cancel:
                break
            event = changed(event, answer)
        return event, combine(kind, answers)

    async def _called(self, registered: _Registered, event: Event) -> Any:
        handler, context = registered.handler, self.context
        try:
            async with asyncio.timeout(registered.deadline):
                if inspect.iscoroutinefunction(handler):
                    return await handler(event, context)
                given = await asyncio.to_thread(handler, event, context)
                return await given if inspect.isawaitable(given) else given
        except TimeoutError:
            self._report(registered, event, f"took longer than {registered.deadline:g} s")
        except Exception as error:  # noqa: BLE001 - an extension may raise anything
            self._report(registered, event, f"failed with {type(error).__name__}: {error}")
        return None

    def _understood(self, registered: _Registered, event: Event, kind: type[Answer], given: Any) -> Answer | None:
        """An answer in its type; `None` for one that says nothing or that cannot be understood."""
        if given is None or given == {}:
            return None
        try:
            answer = given if isinstance(given, kind) else msgspec.convert(given, kind, strict=True)
        except msgspec.ValidationError as error:
            self._report(registered, event, f"answered with something else than {kind.__name__}: {error}")
            return None
        unknown = set(given) - set(kind.__struct_fields__) if isinstance(given, dict) else ()  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if unknown:
            names = ", ".join(sorted(map(str, unknown)))  # pyright: ignore[reportUnknownArgumentType]
            self._report(registered, event, f"answered with fields that do not exist: {names}")
            return None
        return None if answer == kind() else answer

    def _report(self, registered: _Registered, event: Event, what: str) -> None:
        self.show(Notice(level="error", text=f"{registered.source} {what} (at {NAMES[type(event)]})"))


def event_type(name: str) -> type[Event]:
    """The event of that name, ours or a peer's. Raises `NotFound`."""
    kind = EVENTS.get(ALIASES.get(name, name))
    if kind is None:
        raise NotFound("event", name, f"there are {', '.join(EVENTS)}")
    return kind


def combine(kind: type[Answer], answers: Sequence[Answer]) -> Answer:
    """Several answers as one: the first that cancels wins; otherwise, field by field, the last that says something."""
    merged: dict[str, Any] = {}
    for answer in answers:
        if answer.cancel:
            return answer
        merged.update(_said(answer))
    return kind(**merged)


def _said(answer: Answer) -> dict[str, Any]:
    fields = {name: getattr(answer, name) for name in answer.__struct_fields__ if name != "cancel"}
    return {name: value for name, value in fields.items() if value is not UNSET}


def shown(event: E) -> E:
    """The event with copies of what a handler could change in place."""
    if isinstance(event, BeforeRequest | BeforeMessage | BeforeToolCall | ToolResult):
        return copy.deepcopy(event)
    return event


def changed(event: E, answer: Answer) -> E:
    """The event as the next handler is shown it."""
    said: dict[str, Any] = _said(answer)
    if isinstance(event, BeforeToolCall) and isinstance(answer, ToolCallAnswer):
        if answer.arguments is UNSET:
            return event
        said = {"call": ToolCall(event.call.id, event.call.name, answer.arguments)}
    if isinstance(event, ToolResult) and isinstance(said.get("content"), str):
        said["content"] = [{"type": "text", "text": said["content"]}]
    return msgspec.structs.replace(event, **{name: value for name, value in said.items() if hasattr(event, name)})
