"""Keys in the order they are typed.

Textual runs bindings that have priority at once, and hands every other key on to a widget, which takes it in when its
turn comes. So a quick enter would choose from a list before the letters that narrow it are taken in.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

from textual import events
from textual.app import App
from textual.message_pump import MessagePump

T = TypeVar("T")

MAX_WAIT_SECONDS = 0.5
"""How long a key waits at most for those before it: a widget that is busy does not stop the keyboard."""


class OrderedKeysApp(App[T]):
    """An app in which a key waits until those before it have been taken in."""

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not event.is_forwarded:
            with suppress(TimeoutError):
                async with asyncio.timeout(MAX_WAIT_SECONDS):
                    await self._wait_for_earlier_keys()
        await super().on_event(event)

    async def _wait_for_earlier_keys(self) -> None:
        """Wait for the widget with the keyboard, and then for those that it tells of it, up to the screen."""
        first = self.focused or self.screen
        await _wait_until_idle(first)
        for pump in first.ancestors_with_self:
            if pump is self:
                return
            await _wait_until_idle(pump)


async def _wait_until_idle(pump: MessagePump) -> None:
    """Wait until a widget has handled all that came to it so far."""
    done = asyncio.Event()
    if pump.call_later(done.set):
        await done.wait()
