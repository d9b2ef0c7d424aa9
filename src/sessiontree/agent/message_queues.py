"""Queues of messages for the model.

Steering messages are sent together, after the tool calls of the current turn. Follow-ups are sent one at a time, when
the run would end. Messages for the next turn are sent with the next prompt. Deferred entries need no answer; they are
written when the current turn ends.

`RunHost` is the part of the agent that a run uses, with the queues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from sessiontree.agent.file_recorder import FileRecorder
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.run_writer import PendingWrite
from sessiontree.agent.tool import Tool, ToolProvider
from sessiontree.config import Config
from sessiontree.core.context import GrowingContext
from sessiontree.core.entries import Body, CustomMessage, Message
from sessiontree.core.messages import extract_text
from sessiontree.hooks.abort import AbortController
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import QueueChanged
from sessiontree.model.base import Model

QueuedMessage: TypeAlias = Message | CustomMessage
QueueName: TypeAlias = Literal["steering", "follow_up", "next_turn"]


class DueMessages(NamedTuple):
    """Messages to send now, and their queue."""

    queue: QueueName
    messages: Sequence[QueuedMessage]


class QueueSnapshot(Struct, frozen=True, kw_only=True):
    """The queued messages as text, oldest first."""

    steering: tuple[str, ...] = ()
    follow_up: tuple[str, ...] = ()
    next_turn: tuple[str, ...] = ()


class Queues:
    def __init__(self) -> None:
        self._queues: dict[QueueName, list[QueuedMessage]] = {"steering": [], "follow_up": [], "next_turn": []}
        self.deferred_entries: list[Body] = []

    def append(self, queue: QueueName, message: QueuedMessage) -> None:
        self._queues[queue].append(message)

    def pop_due(self, *, run_ends: bool) -> DueMessages:
        """Remove and return the messages to send now."""
        steering = self.pop_all("steering")
        if steering or not run_ends or not self._queues["follow_up"]:
            return DueMessages("steering", steering)
        return DueMessages("follow_up", [self._queues["follow_up"].pop(0)])

    @property
    def has_due(self) -> bool:
        """Whether there are messages that keep a run from ending."""
        return bool(self._queues["steering"] or self._queues["follow_up"])

    def pop_all(self, queue: QueueName) -> list[QueuedMessage]:
        """Remove and return all messages of one queue."""
        messages, self._queues[queue] = self._queues[queue], []
        return messages

    def requeue(self, due: DueMessages) -> None:
        """Put messages that could not be sent back at the front of their queue."""
        self._queues[due.queue][:0] = due.messages

    def build_snapshot(self) -> QueueSnapshot:
        return QueueSnapshot(**{name: tuple(map(get_message_text, waiting)) for name, waiting in self._queues.items()})

    def clear(self) -> QueueSnapshot:
        """Empty all queues and return their messages."""
        snapshot = self.build_snapshot()
        for waiting in self._queues.values():
            waiting.clear()
        return snapshot

    def build_changed_event(self) -> QueueChanged:
        snapshot = self.build_snapshot()
        return QueueChanged(steering=snapshot.steering, follow_up=snapshot.follow_up)


def get_message_text(message: QueuedMessage) -> str:
    return extract_text(message.message.get("content") if isinstance(message, Message) else message.content)


class RunHost(Protocol):
    """The agent as its run sees it.

    The model, the tools and the thinking level may change during a run, so the run reads them when it needs them.
    """

    model: Model
    thinking: str
    cwd: str
    settings: Config
    hooks: Hooks
    queues: Queues
    request_context: GrowingContext
    abort_controller: AbortController
    pending_writes: list[PendingWrite]
    permissions: Permissions | None
    file_recorder: FileRecorder | None
    tool_provider: ToolProvider | None

    @property
    def tools(self) -> Mapping[str, Tool]: ...

    async def update_provided_tools(self) -> None: ...
