"""The known models of providers, and the model servers on this machine."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from sessiontree.config import PROVIDER_KEY_VARIABLES, Config, ModelSettings
from sessiontree.model.providers import LOCAL_SERVERS, PROVIDERS, ServedModels, list_known_models, query_server
from sessiontree.model.selection import list_model_names
from tests.model.fake_server import FakeServer
from tests.model.test_selection import remove_all_models  # noqa: F401 - a fixture that is always used

OLLAMA, LLAMACPP = LOCAL_SERVERS["ollama"], LOCAL_SERVERS["llamacpp"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_has_known_models_and_all_of_them_can_chat(provider: str) -> None:
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


# Servers on this machine


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("box:9999", "http://box:9999"),
        ("https://ollama.example/", "https://ollama.example:443"),
        ("[::1]:5", "http://[::1]:5"),
        ("box:no-port", "http://box:no-port"),
    ],
)
def test_the_ollama_address_comes_from_its_variable(monkeypatch: pytest.MonkeyPatch, said: str, address: str) -> None:
    monkeypatch.setenv("OLLAMA_HOST", said)

    assert OLLAMA.get_address() == address


def test_the_llamacpp_address_comes_from_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_ARG_HOST", raising=False)
    monkeypatch.delenv("LLAMA_ARG_PORT", raising=False)
    assert LLAMACPP.get_address() == "http://127.0.0.1:8080"

    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    monkeypatch.setenv("LLAMA_ARG_PORT", "9090")
    assert LLAMACPP.get_address() == "http://127.0.0.1:9090"


def test_a_server_reports_its_models_and_window() -> None:
    with FakeServer(models=["a", "all-minilm-embed"], window=2048) as server:
        assert query_server(LLAMACPP, server.url) == ServedModels(("a",), 2048)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://box:no-port", "http://[", "nonsense"])
def test_an_address_without_an_answer_has_no_server(url: str) -> None:
    assert query_server(OLLAMA, url) is None


def test_another_program_at_the_address_is_not_a_server() -> None:
    with FakeServer(models=None) as server:
        assert query_server(LLAMACPP, server.url) is None


@pytest.mark.parametrize("name", PROVIDERS)
def test_the_environment_variables_are_those_of_the_provider_itself(name: str) -> None:
    module = find_spec(f"pydantic_ai.providers.{name}")
    assert module is not None
    assert module.origin is not None
    source = Path(module.origin).read_text()
    provider = PROVIDERS[name]

    if name in ("anthropic", "openai", "xai"):  # their own SDKs read the variable
        assert provider.keys == (f"{name.upper()}_API_KEY",)
    else:
        assert provider.keys[0] in source
    urls = set(re.findall(r"getenv\(['\"](\w+_BASE_URL)", source))
    assert urls <= {provider.url_variable}
    assert set(provider.keys) <= PROVIDER_KEY_VARIABLES
