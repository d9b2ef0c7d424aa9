"""All events, and the answers that handlers may return.

Events are immutable. For a `Before…` event, a handler may return a dict or the `…Answer` struct of the event; `None`
and empty answers change nothing. For other events, answers are ignored unless the event has an answer type.
`EVENT_ALIASES` has the names of the same events in other programs.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from sessiontree.core.compaction import CompactionPreparation as CompactionPreparation
from sessiontree.core.entries import Entry, EntryId, JsonObject
from sessiontree.core.messages import ToolCall
from sessiontree.format.json_line import read_object


class Signal:
    """Aborts an operation. Long operations check it or wait for it. All methods are thread-safe."""

    def __init__(self) -> None:
        self._aborted = False
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def aborted(self) -> bool:
        return self._aborted

    def abort(self) -> None:
        self._aborted = True
        for waiter in tuple(self._waiters):
            loop = waiter.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, waiter)

    async def wait(self) -> None:
        """Wait until the signal aborts."""
        await self._wait(asyncio.get_running_loop().create_future())

    async def wait_while_running(self, task: asyncio.Future[Any]) -> None:
        """Wait until `task` is done or the signal aborts."""
        if task.done():
            return
        waiter: asyncio.Future[None] = task.get_loop().create_future()
        wake = partial(_wake, waiter)
        task.add_done_callback(wake)
        try:
            await self._wait(waiter)
        finally:
            task.remove_done_callback(wake)

    async def _wait(self, waiter: asyncio.Future[None]) -> None:
        self._waiters.append(waiter)
        try:
            if not self._aborted:
                await waiter
        finally:
            self._waiters.remove(waiter)


def _wake(waiter: asyncio.Future[None], _: object = None) -> None:
    if not waiter.done():
        waiter.set_result(None)


# Plans of operations


class TreePreparation(Struct, frozen=True, kw_only=True):
    """A planned move to another place in the tree."""

    target: EntryId | None
    old_leaf: EntryId | None
    common_ancestor: EntryId | None
    entries_to_summarize: tuple[Entry, ...]
    user_wants_summary: bool
    custom_instructions: str | None = None
    replace_instructions: bool = False
    label: str | None = None


class Summary(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A branch summary that a handler supplies."""

    summary: str
    details: Any = None
    usage: JsonObject | None = None


class CompactionResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A compaction that a handler supplies."""

    summary: str
    first_kept: EntryId | UnsetType | None = UNSET
    """By default the first entry that the preparation keeps."""
    tokens_before: int | UnsetType = UNSET
    details: Any = None
    usage: JsonObject | None = None


# Answers: a field that is not set changes nothing


class Answer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cancel: bool = False
    cancelled_by: str = ""
    """The handler or extension that cancelled. The bus sets it."""


class NavigateAnswer(Answer, frozen=True, kw_only=True):
    summary: Summary | UnsetType = UNSET
    custom_instructions: str | UnsetType = UNSET
    replace_instructions: bool | UnsetType = UNSET
    label: str | UnsetType = UNSET


class MergeAnswer(Answer, frozen=True, kw_only=True):
    summary: Summary | UnsetType = UNSET
    custom_instructions: str | UnsetType = UNSET


class CompactAnswer(Answer, frozen=True, kw_only=True):
    compaction: CompactionResult | UnsetType = UNSET


class ToolCallAnswer(Answer, frozen=True, kw_only=True):
    """`cancel` blocks the call; the model sees `reason`."""

    reason: str | UnsetType = UNSET
    arguments: JsonObject | UnsetType = UNSET


class ToolResultAnswer(Answer, frozen=True, kw_only=True):
    content: str | list[JsonObject] | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    details: Any = UNSET


class ContextAnswer(Answer, frozen=True, kw_only=True):
    messages: list[JsonObject] | UnsetType = UNSET
    system: str | UnsetType = UNSET


class MessageAnswer(Answer, frozen=True, kw_only=True):
    message: JsonObject | UnsetType = UNSET
    """Another message of the same role."""


class InputAnswer(Answer, frozen=True, kw_only=True):
    text: str | UnsetType = UNSET


# Events


class Event(Struct, frozen=True, kw_only=True):
    answer: ClassVar[type[Answer] | None] = None
    """The type of answers; `None` if answers are ignored."""
    guards: ClassVar[bool] = False
    """Whether a failing handler cancels the event; set for events whose handlers prevent harm."""


class SessionStart(Event, frozen=True, kw_only=True):
    reason: Literal["startup", "reload", "new", "resume", "fork"]
    previous_session_file: str | None = None


class SessionShutdown(Event, frozen=True, kw_only=True):
    reason: Literal["quit", "reload", "new", "resume", "fork"]
    target_session_file: str | None = None


class BeforeSwitch(Event, frozen=True, kw_only=True):
    """The program is about to switch to another session."""

    answer = Answer
    reason: Literal["new", "resume"]
    target_session_file: str | None = None


class Switched(Event, frozen=True, kw_only=True):
    reason: Literal["new", "resume"]
    previous_session_file: str | None = None


class BeforeFork(Event, frozen=True, kw_only=True):
    answer = Answer
    entry: EntryId | None
    position: Literal["before", "at"]


class Forked(Event, frozen=True, kw_only=True):
    entry: EntryId | None
    previous_session_file: str | None = None
    session_file: str | None = None


class BeforeNavigate(Event, frozen=True, kw_only=True):
    answer = NavigateAnswer
    preparation: TreePreparation
    signal: Signal


class Navigated(Event, frozen=True, kw_only=True):
    new_leaf: EntryId | None
    old_leaf: EntryId | None
    summary_entry: Entry | None = None
    from_hook: bool = False


class BeforeMerge(Event, frozen=True, kw_only=True):
    """A summary of other branches is about to be appended to a branch."""

    answer = MergeAnswer
    kind: Literal["merge", "promote"]
    branch: str
    """The target branch."""
    sources: tuple[str, ...]
    """The names of the merged branches."""
    entries: tuple[Entry, ...]
    """The entries that the summary covers."""
    user_wants_summary: bool
    """False if the user has written the summary."""
    custom_instructions: str | None
    signal: Signal


class Merged(Event, frozen=True, kw_only=True):
    kind: Literal["merge", "promote"]
    branch: str
    sources: tuple[str, ...]
    summary_entry: Entry | None
    from_hook: bool = False


class BeforeCopy(Event, frozen=True, kw_only=True):
    """Copies of entries are about to be appended to a branch."""

    answer = Answer
    kind: Literal["cherry_pick", "rebase"]
    branch: str
    onto: EntryId | None
    """The parent of the first copy."""
    entries: tuple[Entry, ...]


class Copied(Event, frozen=True, kw_only=True):
    kind: Literal["cherry_pick", "rebase"]
    branch: str
    entries: tuple[Entry, ...]
    """The copies."""


CompactReason: TypeAlias = Literal["manual", "threshold", "overflow"]


class BeforeCompact(Event, frozen=True, kw_only=True):
    answer = CompactAnswer
    preparation: CompactionPreparation
    previous_compactions: tuple[Entry, ...]
    """The compactions on this path, newest first."""
    path: tuple[Entry, ...]
    custom_instructions: str | None
    model: str | None
    reason: CompactReason
    will_retry: bool
    signal: Signal


class Compacted(Event, frozen=True, kw_only=True):
    compaction_entry: Entry
    from_hook: bool
    reason: CompactReason
    will_retry: bool


class CompactFailed(Event, frozen=True, kw_only=True):
    reason: CompactReason
    error: str
    aborted: bool


class Input(Event, frozen=True, kw_only=True):
    """The user has sent a prompt; it is not written yet."""

    answer = InputAnswer
    text: str


class RunStart(Event, frozen=True, kw_only=True):
    pass


class RunEnd(Event, frozen=True, kw_only=True):
    aborted: bool
    error: str | None = None


class TurnStart(Event, frozen=True, kw_only=True):
    number: int
    """The number of the turn in this run, from 1."""


class TurnEnd(Event, frozen=True, kw_only=True):
    number: int
    message: Entry | None
    tool_results: tuple[Entry, ...] = ()


class BeforeRequest(Event, frozen=True, kw_only=True):
    """A request is about to be sent. Changes apply to this request only and are not stored."""

    answer = ContextAnswer
    messages: list[JsonObject]
    system: str


class MessageStart(Event, frozen=True, kw_only=True):
    role: str


class MessageDelta(Event, frozen=True, kw_only=True):
    kind: Literal["text", "thinking", "tool_call"]
    text: str
    """The new text; for a tool call, a piece of its arguments as JSON."""
    call: str | None = None
    """The id of the tool call."""
    name: str | None = None
    """The name of the tool, at the start of a call."""


class BeforeMessage(Event, frozen=True, kw_only=True):
    """A message is about to be written."""

    answer = MessageAnswer
    message: JsonObject


class MessageEnd(Event, frozen=True, kw_only=True):
    entry: Entry


class BeforeToolCall(Event, frozen=True, kw_only=True):
    answer = ToolCallAnswer
    guards = True
    call: ToolCall


class ToolDenied(Event, frozen=True, kw_only=True):
    """Permissions denied a call. The model sees the denial."""

    call: ToolCall
    title: str
    """The tool and its command or path, in one line."""
    reason: str
    rule: str | None = None
    """The value of `--allow` that would allow the call."""


class ToolStart(Event, frozen=True, kw_only=True):
    call: ToolCall


class ToolUpdate(Event, frozen=True, kw_only=True):
    """Output of a running tool."""

    call: ToolCall
    text: str


class ToolReturned(Event, frozen=True, kw_only=True):
    """A tool has returned; the result is not written yet."""

    answer = ToolResultAnswer
    call: ToolCall
    content: list[JsonObject]
    is_error: bool
    details: Any = None


class ToolEnd(Event, frozen=True, kw_only=True):
    call: ToolCall
    entry: Entry


class ModelChanged(Event, frozen=True, kw_only=True):
    model: str
    previous: str | None


class ThinkingChanged(Event, frozen=True, kw_only=True):
    level: str
    previous: str


class RetryScheduled(Event, frozen=True, kw_only=True):
    """A request failed and will be retried."""

    attempt: int
    """The number of the failed attempt, from 1."""
    attempts: int
    """The maximum number of attempts."""
    delay: float
    """Seconds until the next attempt."""
    error: str

    @property
    def text(self) -> str:
        """The message for the user, without the delay."""
        return f"{self.error}. Retrying ({self.attempt} of {self.attempts - 1})"


class QueueChanged(Event, frozen=True, kw_only=True):
    steering: tuple[str, ...]
    follow_up: tuple[str, ...]


class SnapshotProgress(Event, frozen=True, kw_only=True):
    """Many files are being stored before a tool call, as in the first snapshot of a large folder."""

    done: int
    """The number of files that are stored."""
    total: int

    @property
    def text(self) -> str:
        """The message for the user."""
        return f"saving files: {self.done:,} of {self.total:,}"


class Notice(Event, frozen=True, kw_only=True):
    """A message for the user, such as the failure of a handler."""

    level: Literal["info", "warning", "error"]
    text: str


EVENTS: dict[str, type[Event]] = {
    re.sub(r"\B([A-Z])", r"_\1", event.__name__).lower(): event
    for event in Event.__subclasses__()
    if event is not ToolReturned
} | {"tool_result": ToolReturned}
"""Events by name: `BeforeFork` is `before_fork`. `ToolReturned` has the name that pi uses."""

EVENT_ALIASES: dict[str, str] = {
    "session_before_tree": "before_navigate",
    "session_tree": "navigated",
    "session_before_branch": "before_fork",
    "session_branch": "forked",
    "session_before_fork": "before_fork",
    "session_fork": "forked",
    "session_before_compact": "before_compact",
    "session.compacting": "before_compact",
    "session_compact": "compacted",
    "session_compact_failed": "compact_failed",
    "session_before_switch": "before_switch",
    "session_switch": "switched",
    "agent_start": "run_start",
    "agent_end": "run_end",
    "context": "before_request",
    "tool_call": "before_tool_call",
    "message_update": "message_delta",
    "tool_execution_start": "tool_start",
    "tool_execution_update": "tool_update",
    "tool_execution_end": "tool_end",
    "model_select": "model_changed",
    "thinking_level_select": "thinking_changed",
}
"""Names of the same events in other programs."""

EVENT_NAMES: dict[type[Event], str] = {event: name for name, event in EVENTS.items()}


def encode_event(event: Event) -> JsonObject | None:
    """Return an event as JSON, for programs that follow an agent; `None` for an event that asks handlers.

    Entries have the same form as in the session file.
    """
    if event.answer is not None:
        return None
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    encoded = {_camelize(name): _encode_value(value) for name, value in fields.items()}
    return {"type": EVENT_NAMES[type(event)], **encoded}


def _camelize(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _encode_value(value: Any) -> Any:
    match value:
        case Entry():
            return read_object(value.raw)
        case ToolCall():
            return {"id": value.id, "name": value.name, "arguments": value.arguments}
        case tuple():
            return [_encode_value(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return msgspec.to_builtins(value, enc_hook=str)
