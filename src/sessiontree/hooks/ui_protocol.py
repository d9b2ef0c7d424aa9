"""The `Ui` protocol: how handlers, commands and extensions ask and notify the user.

Each front end implements it. `NoUi` is for programs without a user: it returns the defaults. The clock of a handler's
deadline stops while the handler waits for an answer.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Level: TypeAlias = Literal["info", "warning", "error"]


class Ui(Protocol):
    has_person: bool
    """Whether a user can answer."""

    async def select(self, title: str, options: Sequence[str], *, at: str | None = None) -> str | None:
        """Return one of `options`, or `None` if it was cancelled. `at` is selected first."""
        ...

    async def confirm(self, title: str, text: str = "", *, default: bool = False) -> bool: ...

    async def input(self, title: str, *, placeholder: str = "") -> str | None:
        """Return a line of text, or `None` if it was cancelled."""
        ...

    async def editor(self, title: str, text: str = "") -> str | None:
        """Return the text from an editor, or `None` if it was cancelled."""
        ...

    def notify(self, text: str, level: Level = "info") -> None: ...

    def status(self, key: str, text: str | None) -> None:
        """Show a short status text under `key`; `None` removes it."""
        ...

    async def custom(self, component: Any) -> Any:
        """Show a component of the front end, and return its result."""
        ...


class NoUi:
    """A front end without a user: it selects nothing, returns defaults and records notifications."""

    has_person = False

    def __init__(self) -> None:
        self.notices: list[tuple[Level, str]] = []

    async def select(self, title: str, options: Sequence[str], *, at: str | None = None) -> str | None:
        return None

    async def confirm(self, title: str, text: str = "", *, default: bool = False) -> bool:
        return default

    async def input(self, title: str, *, placeholder: str = "") -> str | None:
        return None

    async def editor(self, title: str, text: str = "") -> str | None:
        return None

    def notify(self, text: str, level: Level = "info") -> None:
        self.notices.append((level, text))

    def status(self, key: str, text: str | None) -> None:
        pass

    async def custom(self, component: Any) -> Any:
        return None


class DeadlineClock:
    """The remaining time of a handler. The clock stops while the handler waits for the user."""

    def __init__(self, seconds: float) -> None:
        self._remaining = seconds
        self._since = time.monotonic()
        self._questions = 0

    @property
    def remaining(self) -> float:
        """The remaining seconds; never zero while a question is open."""
        if self._questions:
            return max(self._remaining, 0.05)
        return self._remaining - (time.monotonic() - self._since)

    async def wait_stopped(self, answer: Awaitable[T]) -> T:
        """Wait for an answer of the user with the clock stopped."""
        if not self._questions:
            self._remaining = self.remaining
        self._questions += 1
        try:
            return await answer
        finally:
            self._questions -= 1
            self._since = time.monotonic()


class _ClockStoppingUi:
    def __init__(self, ui: Ui, clock: DeadlineClock) -> None:
        self._ui = ui
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ui, name)

    async def select(self, title: str, options: Sequence[str], *, at: str | None = None) -> str | None:
        return await self._clock.wait_stopped(self._ui.select(title, options, at=at))

    async def confirm(self, title: str, text: str = "", *, default: bool = False) -> bool:
        return await self._clock.wait_stopped(self._ui.confirm(title, text, default=default))

    async def input(self, title: str, *, placeholder: str = "") -> str | None:
        return await self._clock.wait_stopped(self._ui.input(title, placeholder=placeholder))

    async def editor(self, title: str, text: str = "") -> str | None:
        return await self._clock.wait_stopped(self._ui.editor(title, text))

    async def custom(self, component: Any) -> Any:
        return await self._clock.wait_stopped(self._ui.custom(component))


def stop_clock_during_questions(ui: Ui, clock: DeadlineClock) -> Any:
    """Return `ui` with the clock stopped while a question is open."""
    return _ClockStoppingUi(ui, clock)
