"""The Ui protocol: how a handler, a command or an extension asks and tells the person.

Each front end implements it. `NoUi` is for where nobody looks: its answers are the stated defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

Level: TypeAlias = Literal["info", "warning", "error"]


class Ui(Protocol):
    has_person: bool
    """Whether somebody can answer."""

    async def select(self, title: str, options: Sequence[str]) -> str | None:
        """One of `options`; `None` when nothing was chosen."""
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
        self.told: list[tuple[Level, str]] = []

    async def select(self, title: str, options: Sequence[str]) -> str | None:
        return None

    async def confirm(self, title: str, text: str = "", *, default: bool = False) -> bool:
        return default

    async def input(self, title: str, *, placeholder: str = "") -> str | None:
        return None

    async def editor(self, title: str, text: str = "") -> str | None:
        return None

    def notify(self, text: str, level: Level = "info") -> None:
        self.told.append((level, text))

    def status(self, key: str, text: str | None) -> None:
        pass

    async def custom(self, component: Any) -> Any:
        return None
