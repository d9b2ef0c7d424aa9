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
from sessiontree.core.messages import text
from sessiontree.hooks.events import QueueChanged

Said: TypeAlias = Message | CustomMessage
QueueName: TypeAlias = Literal["steering", "follow_up", "next_turn"]


class Due(NamedTuple):
    """What is to be said now, and where it waited."""

    queue: QueueName
    messages: Sequence[Said]


class Queued(Struct, frozen=True, kw_only=True):
    """What waits, as text, oldest first."""

    steering: tuple[str, ...] = ()
    follow_up: tuple[str, ...] = ()
    next_turn: tuple[str, ...] = ()


class Queues:
    def __init__(self) -> None:
        self._waiting: dict[QueueName, list[Said]] = {"steering": [], "follow_up": [], "next_turn": []}
        self.annexes: list[Body] = []

    def put(self, queue: QueueName, message: Said) -> None:
        self._waiting[queue].append(message)

    def due(self, *, run_ends: bool) -> Due:
        """Take what is to be said now."""
        steering = self.take("steering")
        if steering or not run_ends or not self._waiting["follow_up"]:
            return Due("steering", steering)
        return Due("follow_up", [self._waiting["follow_up"].pop(0)])

    @property
    def has_due(self) -> bool:
        """Whether a run that would end has more to do."""
        return bool(self._waiting["steering"] or self._waiting["follow_up"])

    def take(self, queue: QueueName) -> list[Said]:
        """Take all of one queue."""
        taken, self._waiting[queue] = self._waiting[queue], []
        return taken

    def put_back(self, due: Due) -> None:
        """Let what could not be said wait again, before all else."""
        self._waiting[due.queue][:0] = due.messages

    def listed(self) -> Queued:
        return Queued(**{name: tuple(map(words, waiting)) for name, waiting in self._waiting.items()})

    def take_back(self) -> Queued:
        """Take all that waits to be said."""
        taken = self.listed()
        for waiting in self._waiting.values():
            waiting.clear()
        return taken

    def changed(self) -> QueueChanged:
        listed = self.listed()
        return QueueChanged(steering=listed.steering, follow_up=listed.follow_up)


def words(said: Said) -> str:
    return text(said.message.get("content") if isinstance(said, Message) else said.content)
