"""The choice of the model of a conversation."""

from __future__ import annotations

import pytest

from sessiontree.core.context import State
from sessiontree.errors import NotFound
from sessiontree.model.base import Model
from sessiontree.model.scripted import ScriptedModel
from sessiontree.slash_commands.models import choose_model
from tests.slash_commands.conftest import ScriptedModels


class DefaultModels(ScriptedModels):
    """Models by name, and a default model."""

    def __init__(self) -> None:
        super().__init__(old=ScriptedModel())
        self.default = ScriptedModel()

    def find(self, name: str | None = None) -> Model:
        return self.default if name is None else super().find(name)


USED_STATE = State(provider="scripted", model="old")
UNKNOWN_STATE = State(provider="vanished", model="x")


@pytest.mark.parametrize(
    "state",
    [
        State(),
        State(model="m"),
        State(provider="p"),
        State(provider="unknown", model="unknown"),
        State(provider="p", model="unknown"),
        State(provider="", model=""),
    ],
)
def test_without_a_stored_model_the_default_is_used_without_a_warning(state: State) -> None:
    models = DefaultModels()

    assert state.model_name is None
    assert choose_model(models, None, state) == (models.default, None)


def test_a_conversation_continues_with_its_model() -> None:
    models = DefaultModels()

    assert choose_model(models, None, USED_STATE) == (models.find("scripted:old"), None)
    assert choose_model(models, None, None) == (models.default, None)


def test_an_unavailable_model_falls_back_to_the_default_with_a_warning() -> None:
    models = DefaultModels()

    found, warning = choose_model(models, None, UNKNOWN_STATE)

    assert found is models.default
    assert warning is not None
    assert "vanished:x" in warning
    assert warning.endswith("; using the default model")


def test_a_named_model_has_no_fallback() -> None:
    models = DefaultModels()

    assert choose_model(models, "scripted:old", UNKNOWN_STATE) == (models.find("scripted:old"), None)
    with pytest.raises(NotFound):
        choose_model(models, "vanished:x", USED_STATE)
