"""Models by name: where commands, handlers and extensions find one."""

from __future__ import annotations

from typing import Protocol

from sessiontree.config import Config
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import RetryScheduled
from sessiontree.model.base import Model
from sessiontree.model.retry import Retry, Retrying


class Models(Protocol):
    def find(self, name: str | None = None) -> Model:
        """The model of that name, or the usual one. Raises `NoModel` or `NotFound`."""
        ...

    def names(self) -> list[str]:
        """What can be used, the usual one first."""
        ...


class ConfiguredModels:
    """What the configuration and the environment give. They try again what may pass, and listeners are shown that."""

    def __init__(self, settings: Config, hooks: Hooks) -> None:
        self._settings = settings
        self._hooks = hooks

    def find(self, name: str | None = None) -> Model:
        from sessiontree.model.find import find

        retry = self._settings.retry
        found = find(name, self._settings)
        return Retrying(found, attempts=retry.attempts, base_delay=retry.base_delay, on_retry=self._told)

    def names(self) -> list[str]:
        from sessiontree.model.find import offers

        usable = [offer for offer in offers(self._settings) if offer.usable]
        return [offer.name for offer in sorted(usable, key=lambda offer: not offer.default)]

    def _told(self, retry: Retry) -> None:
        self._hooks.show(RetryScheduled(attempt=retry.attempt, delay=retry.delay, error=str(retry.error)))
