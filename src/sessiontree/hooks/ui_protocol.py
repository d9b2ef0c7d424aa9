"""The Ui protocol: how a handler, a command or an extension asks and tells the person.

Each front end implements it. `NoUi` is for where nobody looks: its answers are the stated defaults. `patient` stops a
handler's clock while it waits for a person.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Level: TypeAlias = Literal["info", "warning", "error"]


class Ui(Protocol):
    has_person: bool
    """Whether somebody can answer."""

    async def select(self, title: str, options: Sequence[str], *, at: str | None = None) -> str | None:
        """One of `options`; `None` when nothing was chosen. `at` is the one to begin at, such as what holds now."""
        ...

    async def confirm(self, title: str, text: str = "", *, default: bool = False) -> bool: ...

    async def input(self, title: str, *, placeholder: str = "") -> str | None:
        """A line of text; `None` when it was cancelled."""
        ...

    async def editor(self, title: str, text: str = "") -> str | None:
        """Text edited at length; `None` when it was cancelled."""
        ...

    def notify(self, text: str, level: Level = "info") -> None: ...

    def status(self, key: str, text: str | None) -> None:
        """Show a short text under `key` as long as it holds; `None` takes it away."""
        ...

    async def custom(self, component: Any) -> Any:
        """Show a component of the front end's own kind until it is done; what it returns."""
        ...


class NoUi:
    """Nobody is there: nothing is chosen, everything is declined, and what is told is kept."""

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
    """The time that a handler has left, which does not run while it waits for a person."""

    def __init__(self, seconds: float) -> None:
        self._remaining = seconds
        self._since = time.monotonic()
        self._questions = 0

    @property
    def remaining(self) -> float:
        """In seconds; a while from now where a person is being asked."""
        if self._questions:
            return max(self._remaining, 0.05)
        return self._remaining - (time.monotonic() - self._since)

    async def wait_stopped(self, answer: Awaitable[T]) -> T:
        """Wait for a person's answer with the clock stopped."""
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
    """`ui`, with the clock stopped while a question is open."""
    return _ClockStoppingUi(ui, clock)
