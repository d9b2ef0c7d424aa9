"""Handlers: who is told of what, and how their answers combine.

The one place for both. Handlers are asked in the order they were registered, each shown what those before it
changed; the first that cancels ends it. One that raises, takes longer than its deadline, or answers with something
else than its event allows is reported by a `Notice`, and counts as if it had not been there; where the event `guards`
against harm, it counts as if it had cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET

from sessiontree.core.entries import Entry, JsonObject
from sessiontree.core.messages import ToolCall
from sessiontree.errors import NotFound
from sessiontree.hooks.events import (
    EVENT_ALIASES,
    EVENT_NAMES,
    EVENTS,
    Answer,
    BeforeMerge,
    BeforeNavigate,
    BeforeToolCall,
    Event,
    Forked,
    Navigated,
    Notice,
    Switched,
    ToolCallAnswer,
    ToolResult,
)
from sessiontree.hooks.invoke import call
from sessiontree.hooks.ui_protocol import DeadlineClock, stop_clock_during_questions

Handler: TypeAlias = Callable[[Any, Any], Any | Awaitable[Any]]
"""Takes the event and the context; may be async. One that is not runs in a thread of its own."""

Listener: TypeAlias = Callable[[Event], None]
"""Is shown every event, at once and in order; for front ends. It must not wait."""

DEADLINE = 60.0
"""How long a handler may take, in seconds, not counting the time that a person takes to answer its questions."""

PLACE_EVENTS = (Navigated, Forked, Switched)
"""Events after which a tool may be at another place than before."""

IMMUTABLE_TYPES = frozenset({str, int, float, bool, type(None)})
"""What in JSON cannot be changed in place."""

E = TypeVar("E", bound=Event)


@dataclass
class HookContext:
    """What handlers get beside the event."""

    session: Any = None
    branch: Any = None
    agent: Any = None
    models: Any = None
    """Finds models by name, so that a handler can call one."""
    ui: Any = None
    cwd: str | None = None
    """The folder that tools work in, where somebody has chosen one."""
    confinement: Any = None
    """What tools can reach, where something keeps them from the rest."""


@dataclass(frozen=True, eq=False)
class _Registration:
    handler: Handler
    source: str
    deadline: float


class _HandlerFailure:
    """What came of a handler that failed."""


class Hooks:
    def __init__(self, context: HookContext | None = None) -> None:
        self.context = HookContext() if context is None else context
        self._handlers: dict[type[Event], list[_Registration]] = {}
        self._tools: list[_Registration] = []
        self._listeners: list[Listener] = []

    def derive(self, context: HookContext) -> Hooks:
        """Hooks with the same handlers, now and later, and a context, tools and listeners of their own.

        For an agent that works beside another: its handlers must know whose event it is, and its tools are told of no
        place but its own.
        """
        hooks = Hooks(context)
        hooks._handlers = self._handlers
        return hooks

    def on(
        self, event: str | type[Event], handler: Handler, *, source: str = "", deadline: float = DEADLINE
    ) -> Callable[[], None]:
        """Have `handler` called at an event, by its type, name, or a peer's name. Returns what takes it off again."""
        kind = find_event_type(event) if isinstance(event, str) else event
        return _add(self._handlers.setdefault(kind, []), _build_registration(handler, source, deadline))

    def on_session(self, handler: Handler, *, source: str = "", deadline: float = DEADLINE) -> Callable[[], None]:
        """Have a tool told of `Navigated`, `Forked` and `Switched`, when all handlers have been."""
        return _add(self._tools, _build_registration(handler, source, deadline))

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Show `listener` every event from now on. Returns what takes it off again."""
        return _add(self._listeners, listener)

    def notify_listeners(self, event: Event) -> None:
        """Show an event to the listeners alone. One that fails is reported to the others."""
        failed: list[tuple[Listener, Exception]] = []
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - what happens must not depend on who looks on
                failed.append((listener, error))
        for listener, error in failed:
            text = f"{_get_name(listener, 'a listener')} failed with {type(error).__name__}: {error}"
            for other in tuple(self._listeners):
                if other is not listener:
                    with contextlib.suppress(Exception):
                        other(Notice(level="error", text=text))

    def has_handlers(self, event: Event) -> bool:
        """Whether anybody but listeners is told of an event."""
        return bool(self._handlers.get(type(event)) or (self._tools and isinstance(event, PLACE_EVENTS)))

    async def emit(self, event: Event) -> None:
        """Tell listeners and handlers of something that has happened."""
        self.notify_listeners(event)
        tools = self._tools if isinstance(event, PLACE_EVENTS) else ()
        for registered in (*self._handlers.get(type(event), ()), *tools):
            await self._call_handler(registered, event)

    async def ask(self, event: E) -> tuple[E, Answer]:
        """Ask about something that is about to happen: the event as the handlers changed it, and their answer."""
        self.notify_listeners(event)
        kind = event.answer or Answer
        answers: list[Answer] = []
        for registered in tuple(self._handlers.get(type(event), ())):
            given = await self._call_handler(registered, event)
            answer = self._parse_answer(registered, event, kind, given)
            if answer is None:
                continue
            answers.append(answer)
            if answer.cancel:
                break
            event = apply_answer(event, answer)
        return event, combine_answers(kind, answers)

    async def _call_handler(self, registered: _Registration, event: Event) -> Any:
        """What a handler gives; `_Failed` if it raises or is not done in time, for which nobody waits."""
        clock = DeadlineClock(registered.deadline)
        context = replace(
            self.context, ui=None if self.context.ui is None else stop_clock_during_questions(self.context.ui, clock)
        )
        task = asyncio.ensure_future(_call_without_exit(registered.handler, _copy_value(event), context))
        try:
            while not task.done() and clock.remaining > 0:
                await asyncio.wait({task}, timeout=clock.remaining)
        finally:
            late = not task.done()
            if late:
                task.cancel()
                task.add_done_callback(_consume_exception)
        if late:
            return self._report_failure(registered, event, f"took longer than {registered.deadline:g} s")
        if task.cancelled():
            return self._report_failure(registered, event, "was cancelled from inside")
        error = task.exception()
        if error is not None:
            return self._report_failure(registered, event, f"failed with {type(error).__name__}: {error}")
        return task.result()

    def _parse_answer(self, registered: _Registration, event: Event, kind: type[Answer], given: Any) -> Answer | None:
        """An answer in its type; `None` for one that says nothing or that cannot be understood."""
        if given is None:
            return None
        if not isinstance(given, _HandlerFailure):
            try:
                given = msgspec.convert(_convert_struct(given) if isinstance(given, kind) else given, kind, strict=True)
            except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
                given = self._report_failure(
                    registered, event, f"answered with something else than {kind.__name__}: {error}"
                )
        if isinstance(given, _HandlerFailure):
            return build_guard_answer(event, registered.source)
        return None if given == kind() else given

    def _report_failure(self, registered: _Registration, event: Event, what: str) -> _HandlerFailure:
        self.notify_listeners(Notice(level="error", text=f"{registered.source} {what} (at {EVENT_NAMES[type(event)]})"))
        return _HandlerFailure()


T = TypeVar("T")


def _add(several: list[T], one: T) -> Callable[[], None]:
    several.append(one)

    def remove() -> None:
        several[:] = [other for other in several if other is not one]

    return remove


def _build_registration(handler: Handler, source: str, deadline: float) -> _Registration:
    return _Registration(handler, source or _get_name(handler, "a handler"), deadline)


def _get_name(function: Callable[..., Any], otherwise: str) -> str:
    return getattr(function, "__name__", otherwise)


async def _call_without_exit(handler: Handler, event: Event, context: HookContext) -> Any:
    try:
        return await call(handler, event, context)
    except SystemExit as error:
        raise RuntimeError("it wanted the program to end") from error


def _consume_exception(task: asyncio.Future[Any]) -> None:
    """Look at what came of a handler that nobody waits for, so that nothing is printed of it."""
    if not task.cancelled():
        task.exception()


def find_event_type(name: str) -> type[Event]:
    """The event of that name, ours or a peer's. Raises `NotFound`."""
    kind = EVENTS.get(EVENT_ALIASES.get(name, name))
    if kind is None:
        raise NotFound("event", name, f"there are {', '.join(EVENTS)}")
    return kind


def combine_answers(kind: type[Answer], answers: Sequence[Answer]) -> Answer:
    """Several answers as one: the first that cancels wins; otherwise, field by field, the last that says something."""
    merged: dict[str, Any] = {}
    for answer in answers:
        if answer.cancel:
            return answer
        merged.update(_get_set_fields(answer))
    return kind(**merged)


def build_guard_answer(event: Event, source: str) -> Answer | None:
    """What counts as the answer of a handler that failed."""
    if not event.guards:
        return None
    return ToolCallAnswer(cancel=True, reason=f"{source}, which has to agree to this call, failed")


def _convert_struct(value: Any) -> Any:
    """A struct as the dict that would be converted to it: what is in one that was made by hand was never checked."""
    if not isinstance(value, msgspec.Struct):
        return value
    fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
    return {name: _convert_struct(field) for name, field in fields if field is not UNSET}


def _get_set_fields(answer: Answer) -> dict[str, Any]:
    fields = {name: getattr(answer, name) for name in answer.__struct_fields__ if name != "cancel"}
    return {name: value for name, value in fields.items() if value is not UNSET}


def _copy_value(value: Any) -> Any:
    """An event, or what is in it, for a handler to change in place. An entry's copy reads its line anew.

    It may be of a whole conversation and is for each handler: `deepcopy` takes many times as long.
    """
    if isinstance(value, dict):
        fields = cast("JsonObject", value)
        return {key: item if type(item) in IMMUTABLE_TYPES else _copy_value(item) for key, item in fields.items()}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [item if type(item) in IMMUTABLE_TYPES else _copy_value(item) for item in items]
    if isinstance(value, Entry):
        return msgspec.structs.replace(value, cached_body=None)
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return msgspec.structs.replace(value, **{name: _copy_value(getattr(value, name)) for name in names})
    if isinstance(value, ToolCall):
        return ToolCall(*map(_copy_value, value))
    if isinstance(value, tuple):
        return tuple(map(_copy_value, cast("tuple[Any, ...]", value)))
    return value


def apply_answer(event: E, answer: Answer) -> E:
    """The event as the next handler is shown it."""
    said: dict[str, Any] = _get_set_fields(answer)
    match event:
        case BeforeToolCall() if "arguments" in said:
            said = {"call": ToolCall(event.call.id, event.call.name, said["arguments"])}
        case BeforeNavigate():
            said.pop("summary", None)
            said = {"preparation": msgspec.structs.replace(event.preparation, **said)}
        case BeforeMerge():
            said.pop("summary", None)
        case ToolResult() if isinstance(said.get("content"), str):
            said["content"] = [{"type": "text", "text": said["content"]}]
        case _:
            pass
    return msgspec.structs.replace(event, **{name: value for name, value in said.items() if hasattr(event, name)})
