"""Event streams that are open, counted by token, so that nobody who listens a lot keeps others from listening.

A page says which page it is. When it comes back for a stream before the server has noticed that the old connection is
dead, the new stream takes the place of the old one and counts once. For one event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from sessiontree.server.auth import Token
from sessiontree.server.http_errors import ApiError
from sessiontree.server.request_checks import ServerLimits

TOO_MANY_STREAMS = "too_many_streams"
"""The code of a refusal: whoever asked may show what happens by asking now and then."""


class StreamSlot:
    """The place of one open stream."""

    def __init__(self, token: Token, page: tuple[str, str] | None) -> None:
        self.token = token.root
        self.page = page
        self.is_replaced = False
        """The same page has opened the stream again."""
        self.wake: Callable[[], None] = lambda: None
        """Has the stream look whether it is over."""


class StreamRegistry:
    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._slots: list[StreamSlot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def open_slot(self, token: Token, path: str, page: str | None) -> StreamSlot:
        """Count one more stream of a token; `page` names the page that it is for, if one. Raises `Refused`."""
        slot = StreamSlot(token, None if page is None else (page, path))
        if slot.page is not None:
            for old in [one for one in self._slots if (one.token, one.page) == (slot.token, slot.page)]:
                old.is_replaced = True
                self.close_slot(old)
                old.wake()
        most = self._limits.token_streams
        if sum(one.token == token.root for one in self._slots) >= most:
            raise ApiError(
                429,
                f"the limit of event streams for one token is {most}; close other pages that use it",
                code=TOO_MANY_STREAMS,
            )
        if len(self._slots) >= self._limits.streams:
            raise ApiError(429, f"the limit of event streams for all is {self._limits.streams}", code=TOO_MANY_STREAMS)
        self._slots.append(slot)
        return slot

    def close_slot(self, slot: StreamSlot) -> None:
        if slot in self._slots:
            self._slots.remove(slot)
