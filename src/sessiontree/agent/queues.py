"""Queues: what is to be said to the model later, and when.

Steering goes in after the tool calls of the turn that runs, all of it at once; follow-ups when the run would end,
one by one; messages for the next turn with the next prompt. Annexes are entries that have nobody to answer them:
they are written as soon as the turn that runs has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from sessiontree.core.entries import Body, CustomMessage, Message
from sessiontree.core.messages import extract_text
from sessiontree.hooks.events import QueueChanged

QueuedMessage: TypeAlias = Message | CustomMessage
QueueName: TypeAlias = Literal["steering", "follow_up", "next_turn"]


class DueMessages(NamedTuple):
    """What is to be said now, and where it waited."""

    queue: QueueName
    messages: Sequence[QueuedMessage]


class QueueSnapshot(Struct, frozen=True, kw_only=True):
    """What waits, as text, oldest first."""

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
        """Take what is to be said now."""
        steering = self.pop_all("steering")
        if steering or not run_ends or not self._queues["follow_up"]:
            return DueMessages("steering", steering)
        return DueMessages("follow_up", [self._queues["follow_up"].pop(0)])

    @property
    def has_due(self) -> bool:
        """Whether a run that would end has more to do."""
        return bool(self._queues["steering"] or self._queues["follow_up"])

    def pop_all(self, queue: QueueName) -> list[QueuedMessage]:
        """Take all of one queue."""
        taken, self._queues[queue] = self._queues[queue], []
        return taken

    def requeue(self, due: DueMessages) -> None:
        """Let what could not be said wait again, before all else."""
        self._queues[due.queue][:0] = due.messages

    def build_snapshot(self) -> QueueSnapshot:
        return QueueSnapshot(**{name: tuple(map(get_message_text, waiting)) for name, waiting in self._queues.items()})

    def clear(self) -> QueueSnapshot:
        """Take all that waits to be said."""
        taken = self.build_snapshot()
        for waiting in self._queues.values():
            waiting.clear()
        return taken

    def build_changed_event(self) -> QueueChanged:
        listed = self.build_snapshot()
        return QueueChanged(steering=listed.steering, follow_up=listed.follow_up)


def get_message_text(said: QueuedMessage) -> str:
    return extract_text(said.message.get("content") if isinstance(said, Message) else said.content)
