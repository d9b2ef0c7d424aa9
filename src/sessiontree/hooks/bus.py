"""The event bus: register handlers and listeners, emit events, and combine the answers of handlers.

Handlers are called in the order of their registration. Each one sees the changes of earlier handlers, and the first
that cancels ends the event. If a handler raises, exceeds its deadline or returns an invalid answer, a `Notice` reports
it and its answer is ignored. If the event `guards` against harm, such a handler cancels it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast, overload

import msgspec
from msgspec import UNSET

from sessiontree.core.entries import Entry, JsonObject, Message
from sessiontree.core.message_views import JsonView
from sessiontree.core.messages import ToolCall, is_list, is_object
from sessiontree.errors import InvalidOperation, NotFound
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
    ToolReturned,
)
from sessiontree.hooks.ui_protocol import DeadlineClock, stop_clock_during_questions

Handler: TypeAlias = Callable[[Any, Any], Any | Awaitable[Any]]
"""Receives the event and the context. It may be async; otherwise it runs in its own thread."""

Listener: TypeAlias = Callable[[Event], None]
"""Receives every event synchronously and in order, for front ends. It must not block."""

DEADLINE = 60.0
"""The default time limit of a handler, in seconds, without the time that the user takes to answer its questions."""

PLACE_EVENTS = (Navigated, Forked, Switched)
"""Events that may change the position of a tool in the tree."""

IMMUTABLE_TYPES = frozenset({str, int, float, bool, type(None)})
"""JSON types that are immutable."""

E = TypeVar("E", bound=Event)
H = TypeVar("H", bound=Handler)
P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class HookContext:
    """The context that handlers receive with the event."""

    session: Any = None
    branch: Any = None
    agent: Any = None
    models: Any = None
    """Finds models by name."""
    ui: Any = None
    cwd: str | None = None
    """The folder that tools work in, if one is set."""
    confinement: Any = None
    """The sandbox of tools, if there is one."""
    build_system_prompt: Any = None
    """Builds the system prompt of agents without one, from the folder and the tools."""


@dataclass(frozen=True, eq=False)
class _Registration:
    handler: Handler
    source: str
    deadline: float
    copies: bool = True
    """Whether the handler gets a copy of the event."""


class _HandlerFailure:
    """The result of a handler that failed."""


class Hooks:
    def __init__(self, context: HookContext | None = None) -> None:
        if context is not None and not isinstance(context, HookContext):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOperation(f"hooks take an st.HookContext, not {context!r:.80}; add handlers with hooks.on(…)")
        self.context = HookContext() if context is None else context
        self._handlers: dict[type[Event], list[_Registration]] = {}
        self._tools: list[_Registration] = []
        self._listeners: list[Listener] = []

    def derive(self, context: HookContext) -> Hooks:
        """Return hooks that share the handlers, but have their own context, tools and listeners.

        Use it for several agents at the same time: handlers see which agent an event belongs to, and a tool gets only
        the events of its own agent.
        """
        hooks = Hooks(context)
        hooks._handlers = self._handlers
        return hooks

    @overload
    def on(
        self,
        event: str | type[Event],
        handler: Handler,
        *,
        source: str = "",
        deadline: float = DEADLINE,
        copies: bool = True,
    ) -> Callable[[], None]: ...

    @overload
    def on(
        self, event: str | type[Event], *, source: str = "", deadline: float = DEADLINE, copies: bool = True
    ) -> Callable[[H], H]: ...

    def on(
        self,
        event: str | type[Event],
        handler: Handler | None = None,
        *,
        source: str = "",
        deadline: float = DEADLINE,
        copies: bool = True,
    ) -> Callable[..., Any]:
        """Register a handler for an event, by type, name or alias. Return a function that removes it.

        Without a handler it is a decorator, `@hooks.on("input")`. With `copies=False`, the handler gets the event
        itself, which it must not change. Copying an event with a whole conversation takes time.
        """
        kind = find_event_type(event) if isinstance(event, str) else event
        if not isinstance(kind, type):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise InvalidOperation(f'hooks.on takes the name of an event first, such as "input", not {event!r:.80}')
        if handler is None:

            def register(handler: H) -> H:
                self.on(kind, handler, source=source, deadline=deadline, copies=copies)
                return handler

            return register
        return _add(self._handlers.setdefault(kind, []), _build_registration(handler, source, deadline, copies))

    def on_session(self, handler: Handler, *, source: str = "", deadline: float = DEADLINE) -> Callable[[], None]:
        """Register a tool for `Navigated`, `Forked` and `Switched`. Tools are called after all handlers."""
        return _add(self._tools, _build_registration(handler, source, deadline))

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Register a listener for all events. Return a function that removes it."""
        return _add(self._listeners, listener)

    def notify_listeners(self, event: Event) -> None:
        """Pass an event to the listeners only. If one fails, report it to the others."""
        failed: list[tuple[Listener, Exception]] = []
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - a listener must not affect the operation
                failed.append((listener, error))
        for listener, error in failed:
            text = f"{_get_name(listener, 'a listener')} failed with {type(error).__name__}: {error}"
            for other in tuple(self._listeners):
                if other is not listener:
                    with contextlib.suppress(Exception):
                        other(Notice(level="error", text=text))

    def try_emit(self, event: Event) -> bool:
        """Emit an event that has no handlers, without waiting. If it has some, do nothing and return `False`."""
        if self._handlers.get(type(event)) or (self._tools and isinstance(event, PLACE_EVENTS)):
            return False
        if self._listeners:
            self.notify_listeners(event)
        return True

    async def emit(self, event: Event) -> None:
        """Pass an event to listeners and handlers, and ignore the answers."""
        self.notify_listeners(event)
        tools = self._tools if isinstance(event, PLACE_EVENTS) else ()
        for registered in (*self._handlers.get(type(event), ()), *tools):
            await self._call_handler(registered, event)

    async def ask(self, event: E) -> tuple[E, Answer]:
        """Ask the handlers about a planned operation. Return the changed event and the combined answer."""
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
                answers[-1] = msgspec.structs.replace(answer, cancelled_by=registered.source)
                break
            event = apply_answer(event, answer)
        return event, combine_answers(kind, answers)

    async def _call_handler(self, registered: _Registration, event: Event) -> Any:
        """Return the answer of a handler, or `_HandlerFailure` if it raises or exceeds its deadline."""
        clock = DeadlineClock(registered.deadline)
        context = replace(
            self.context, ui=None if self.context.ui is None else stop_clock_during_questions(self.context.ui, clock)
        )
        given = _copy_value(event) if registered.copies else event
        task = asyncio.ensure_future(_call_without_exit(registered.handler, given, context))
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
            return self._report_failure(registered, event, "cancelled itself")
        error = task.exception()
        if error is not None:
            return self._report_failure(registered, event, f"failed with {type(error).__name__}: {error}")
        return task.result()

    def _parse_answer(self, registered: _Registration, event: Event, kind: type[Answer], given: Any) -> Answer | None:
        """Convert an answer to its type; `None` for an empty or invalid answer."""
        if given is None:
            return None
        if not isinstance(given, _HandlerFailure):
            try:
                plain = _convert_struct(given) if isinstance(given, kind) else given
                given = msgspec.convert(_convert_messages(plain), kind, strict=True)
            except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
                given = self._report_failure(registered, event, f"returned an invalid {kind.__name__}: {error}")
        if isinstance(given, _HandlerFailure):
            return build_guard_answer(event, registered.source)
        return None if given == kind() else given

    def _report_failure(self, registered: _Registration, event: Event, what: str) -> _HandlerFailure:
        text = f"{registered.source} {what} (at {EVENT_NAMES[type(event)]})"
        if not self._listeners:  # a script that nobody watches: by default Python prints it
            logging.getLogger("sessiontree.hooks").warning("%s", text)
        self.notify_listeners(Notice(level="error", text=text))
        return _HandlerFailure()


def _add(items: list[T], item: T) -> Callable[[], None]:
    items.append(item)

    def remove() -> None:
        items[:] = [other for other in items if other is not item]

    return remove


def _build_registration(handler: Handler, source: str, deadline: float, copies: bool = True) -> _Registration:
    if not callable(handler):
        raise InvalidOperation(f"a handler is a function of an event and its context, not {handler!r:.80}")
    return _Registration(handler, source or _get_name(handler, "a handler"), deadline, copies)


def _get_name(function: Callable[..., Any], otherwise: str) -> str:
    return getattr(function, "__name__", otherwise)


def _convert_messages(answer: Any) -> Any:
    """Return an answer with the JSON of messages and blocks, such as `st.user("hi")`, in their place."""
    if not is_object(answer):
        return answer
    return {
        key: [*map(_convert_message, value)] if is_list(value) else _convert_message(value)
        for key, value in answer.items()
    }


def _convert_message(value: Any) -> Any:
    if isinstance(value, JsonView):
        return value.raw
    return value.message if isinstance(value, Message) else value


async def _call_without_exit(handler: Handler, event: Event, context: HookContext) -> Any:
    try:
        return await call(handler, event, context)
    except SystemExit as error:
        raise RuntimeError("it called sys.exit") from error


def _consume_exception(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned handler, or asyncio would log it."""
    if not task.cancelled():
        task.exception()


def find_event_type(name: str) -> type[Event]:
    """Return the event type with a name or an alias. Raises `NotFound`."""
    kind = EVENTS.get(EVENT_ALIASES.get(name, name))
    if kind is None:
        raise NotFound("event", name, f"events: {', '.join(EVENTS)}")
    return kind


def combine_answers(kind: type[Answer], answers: Sequence[Answer]) -> Answer:
    """Combine answers: the first that cancels wins; otherwise, for each field, the last value that is set."""
    merged: dict[str, Any] = {}
    for answer in answers:
        if answer.cancel:
            return answer
        merged.update(_get_set_fields(answer))
    return kind(**merged)


def build_guard_answer(event: Event, source: str) -> Answer | None:
    """Return the answer that replaces the answer of a failed handler."""
    if not event.guards:
        return None
    return ToolCallAnswer(cancel=True, reason=f"{source} failed, and it must approve this call")


def _convert_struct(value: Any) -> Any:
    """Convert a struct to a dict, to validate it: structs that handlers create are not validated."""
    if not isinstance(value, msgspec.Struct):
        return value
    fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
    return {name: _convert_struct(field) for name, field in fields if field is not UNSET}


def _get_set_fields(answer: Answer) -> dict[str, Any]:
    fields = {name: getattr(answer, name) for name in answer.__struct_fields__}
    own = Answer.__struct_fields__
    return {name: value for name, value in fields.items() if name not in own and value is not UNSET}


def _copy_value(value: Any) -> Any:
    """Return a copy of an event that a handler may modify. The copy of an entry decodes its line again.

    Events may contain a whole conversation and are copied for each handler; `deepcopy` is many times slower.
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
        return ToolCall.wrap(_copy_value(value.raw))
    if isinstance(value, tuple):
        return tuple(map(_copy_value, cast("tuple[Any, ...]", value)))
    return value


def apply_answer(event: E, answer: Answer) -> E:
    """Return the event with the changes of an answer, for the next handler."""
    fields: dict[str, Any] = _get_set_fields(answer)
    match event:
        case BeforeToolCall() if "arguments" in fields:
            fields = {"call": ToolCall(event.call.id, event.call.name, fields["arguments"])}
        case BeforeNavigate():
            fields.pop("summary", None)
            fields = {"preparation": msgspec.structs.replace(event.preparation, **fields)}
        case BeforeMerge():
            fields.pop("summary", None)
        case ToolReturned() if isinstance(fields.get("content"), str):
            fields["content"] = [{"type": "text", "text": fields["content"]}]
        case _:
            pass
    return msgspec.structs.replace(event, **{name: value for name, value in fields.items() if hasattr(event, name)})


# Calling functions of users and extensions: handlers, tools and commands


async def call(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Call a function and return its result. An async function is awaited; any other runs in its own thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments, **named)
    given = await run_in_thread(function, *arguments, **named)
    return await given if inspect.isawaitable(given) else given


def run_in_thread(function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> asyncio.Future[T]:
    """Call a function in its own daemon thread, which does not block other threads or the exit of the program.

    Cancelling the future abandons the thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    work = partial(contextvars.copy_context().run, function, *arguments, **named)

    def set_outcome(given: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_result(given) if error is None else future.set_exception(error)

    def run() -> None:
        given, error = None, None
        try:
            given = work()
        except BaseException as raised:  # noqa: BLE001 - the function may raise anything
            error = RuntimeError("it raised StopIteration") if isinstance(raised, StopIteration) else raised
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(set_outcome, given, error)

    threading.Thread(target=run, daemon=True).start()
    return future
