"""Event streams that are open, counted by token, so that nobody who listens a lot keeps others from listening.

A page says which page it is. When it comes back for a stream before the server has noticed that the old connection is
dead, the new stream takes the place of the old one and counts once. For one event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from sessiontree.web.guard import Limits
from sessiontree.web.refusals import Refused
from sessiontree.web.tokens import Token

TOO_MANY = "too_many_streams"
"""The code of a refusal: whoever asked may show what happens by asking now and then."""


class Slot:
    """The place of one open stream."""

    def __init__(self, token: Token, page: tuple[str, str] | None) -> None:
        self.token = token.root
        self.page = page
        self.is_over = False
        """The same page has opened the stream again."""
        self.wake: Callable[[], None] = lambda: None
        """Has the stream look whether it is over."""


class Streams:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._slots: list[Slot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def take(self, token: Token, path: str, page: str | None) -> Slot:
        """Count one more stream of a token; `page` names the page that it is for, if one. Raises `Refused`."""
        slot = Slot(token, None if page is None else (page, path))
        if slot.page is not None:
            for old in [one for one in self._slots if (one.token, one.page) == (slot.token, slot.page)]:
                old.is_over = True
                self.free(old)
                old.wake()
        most = self._limits.token_streams
        if sum(one.token == token.root for one in self._slots) >= most:
            raise Refused(
                429, f"the limit of event streams for one token is {most}; close other pages that use it", code=TOO_MANY
            )
        if len(self._slots) >= self._limits.streams:
            raise Refused(429, f"the limit of event streams for all is {self._limits.streams}", code=TOO_MANY)
        self._slots.append(slot)
        return slot

    def free(self, slot: Slot) -> None:
        if slot in self._slots:
            self._slots.remove(slot)
