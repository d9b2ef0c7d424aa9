"""Finds models for commands, handlers and extensions, and chooses the model of a conversation."""

from __future__ import annotations

from typing import Protocol

from sessiontree.agent.agent_input import find_retrying_model
from sessiontree.config import Config
from sessiontree.core.context import State
from sessiontree.errors import NotFound
from sessiontree.hooks.bus import Hooks
from sessiontree.model.base import Model


class Models(Protocol):
    def find(self, name: str | None = None) -> Model:
        """Return the model of that name, or the default model. Raises `NoModel` or `NotFound`."""
        ...

    def list_names(self) -> list[str]:
        """List the names of available models, the default first."""
        ...


class ConfiguredModels:
    """The models of the configuration and the environment. They retry failed requests and report each retry to the
    hooks."""

    def __init__(self, settings: Config, hooks: Hooks) -> None:
        self._settings = settings
        self._hooks = hooks

    def find(self, name: str | None = None) -> Model:
        return find_retrying_model(name, self._settings, self._hooks)

    def list_names(self) -> list[str]:
        from sessiontree.model.selection import list_model_names

        return list_model_names(self._settings)

    def remember(self, name: str) -> None:
        """Make this model the default, for other processes too. Raises `StoreError`."""
        from sessiontree.model.selection import remember_model

        remember_model(name, self._settings.model)

    def describe_fallback(self, found: Model) -> str | None:
        """Return a warning if the default model is not the one that was chosen last."""
        from sessiontree.model.selection import recall_model

        last = recall_model(self._settings.model)
        if last is None or last in (found.info.name, found.info.provider):
            return None
        return f"{last}, the model chosen last, is not available; using {found.info.name}"


def choose_model(models: Models, named: str | None, state: State | None) -> tuple[Model, str | None]:
    """Return the named model, the conversation's model or the default model, in this order, and a warning or `None`.

    The warning names the unavailable model: the conversation's, or the one chosen last. Raises `NoModel` or
    `NotFound`.
    """
    from sessiontree.model.selection import NoModel

    held = None if named or state is None else state.model_name
    try:
        found = models.find(named or held)
        if named or held or not isinstance(models, ConfiguredModels):
            return found, None
        return found, models.describe_fallback(found)
    except (NoModel, NotFound) as error:
        if held is None:
            raise
        return models.find(), f"{error}; using the default model"
