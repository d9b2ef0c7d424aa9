"""The known models of providers."""

from __future__ import annotations

import pytest

from sessiontree.config import Config, ModelSettings
from sessiontree.model.providers import PROVIDERS, list_known_models
from sessiontree.model.selection import list_model_names
from tests.model.fake_server import FakeServer
from tests.model.test_selection import nothing_there  # noqa: F401 - a fixture that is always used


@pytest.mark.parametrize("provider", PROVIDERS)
def test_of_every_provider_some_models_are_known_and_only_those_that_converse(provider: str) -> None:
    models = list_known_models(provider)

    assert len(models) > 1
    assert not [name for name in models if "embed" in name or "whisper" in name or "image" in name]


def test_an_unknown_provider_has_no_known_models() -> None:
    assert list_known_models("vllm") == ()


def test_all_models_of_a_provider_with_a_key_can_be_chosen_its_default_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")

    listed = list_model_names(Config())

    assert listed[0] == "anthropic:claude-sonnet-5-5"
    assert "anthropic:claude-opus-5-5" in listed
    assert len(listed) == len(set(listed))
    assert not [name for name in listed if name.startswith("openai:")]


def test_a_server_at_the_url_of_a_provider_lists_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(models=["one", "two", "text-embedding"]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")

        assert list_model_names(Config()) == ["openai:gpt-5.5", "openai:one", "openai:two"]


def test_configured_models_can_be_chosen() -> None:
    settings = Config(models={"vllm:qwen3": ModelSettings(base_url="http://127.0.0.1:1/v1")})

    assert list_model_names(settings) == ["vllm:qwen3"]
