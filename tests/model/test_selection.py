"""Finding a model by name, choosing the default, and the errors when none is available."""

import os
import stat
from pathlib import Path

import pytest

from sessiontree.config import Config, ModelSettings
from sessiontree.core.messages import extract_text
from sessiontree.errors import NotFound, StoreError
from sessiontree.model import local_model
from sessiontree.model.base import complete
from sessiontree.model.providers import PROVIDERS, find_limits
from sessiontree.model.selection import (
    ModelCandidate,
    NoModel,
    find_model,
    list_candidates,
    recall_model,
    remember_model,
)
from tests.model.fake_server import FakeServer
from tests.model.requests import HELLO

ADDRESSES = ("OLLAMA_HOST", "LLAMA_ARG_HOST", "LLAMA_ARG_PORT", "OLLAMA_CONTEXT_LENGTH")


@pytest.fixture(autouse=True)
def remove_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys, no servers, no weights."""
    for provider in PROVIDERS.values():
        for variable in (*provider.keys, provider.url_variable):
            monkeypatch.delenv(variable or "UNSET", raising=False)
    for variable in ADDRESSES:
        monkeypatch.delenv(variable, raising=False)
    with FakeServer() as server:
        closed = server.port
    monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{closed}")
    monkeypatch.setenv("LLAMA_ARG_PORT", str(closed))


def fake_download(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the weights of the local model are installed."""
    file = Path(local_model.get_weights_path())
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    monkeypatch.setattr(local_model, "SIZE", 1)


def find_candidate(name: str, settings: Config | None = None) -> ModelCandidate:
    (found,) = [offer for offer in list_candidates(settings or Config()) if offer.name == name]
    return found


# By name


def test_a_provider_is_found_by_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")

    info = find_model("anthropic:claude-sonnet-4-5").info

    assert (info.provider, info.model, info.api) == ("anthropic", "claude-sonnet-4-5", "anthropic-messages")
    assert info.context_window == 200_000


@pytest.mark.parametrize("name", list(PROVIDERS))
def test_every_provider_works_with_its_key_and_default_model(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(PROVIDERS[name].keys[-1], "x")

    info = find_model(name).info

    assert info.name == f"{name}:{PROVIDERS[name].default}"
    assert info.context_window >= 100_000


def test_a_provider_without_a_key_names_the_variable() -> None:
    with pytest.raises(NoModel) as caught:
        find_model("openai:gpt-5")

    assert str(caught.value) == "openai:gpt-5 is not available: OPENAI_API_KEY is not set"


def test_a_provider_that_requires_a_key_is_not_used_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")

    with pytest.raises(NoModel, match=r"anthropic:claude-sonnet-5 is not available: .*ANTHROPIC_API_KEY"):
        find_model("anthropic:claude-sonnet-5")


def test_an_unknown_provider_needs_a_base_url() -> None:
    with pytest.raises(NotFound, match=r"provider .acme. not found.*any other provider needs a base_url"):
        find_model("acme:one")


def test_a_name_without_a_provider_explains_the_format() -> None:
    settings = Config(models={"acme:one": ModelSettings(base_url="http://127.0.0.1:9/v1")})

    with pytest.raises(NotFound, match=r"provider .gpt-5. not found; use provider:model; .*, local, acme;"):
        find_model("gpt-5", settings)


@pytest.mark.parametrize("name", ["acme:two", "acme"])
def test_an_unknown_configured_model_lists_the_known_ones(name: str) -> None:
    described = ModelSettings(base_url="http://127.0.0.1:9/v1")
    settings = Config(models={"acme:one": described, "acme:two": ModelSettings(context_window=4096)})

    with pytest.raises(NotFound, match=r"model .* not found; the configuration has a base_url for acme:one"):
        find_model(name, settings)


@pytest.mark.parametrize("name", ["acme", "local:other"])
def test_a_name_that_names_no_model_is_refused(name: str) -> None:
    with pytest.raises(NotFound):
        find_model(name)


async def test_a_server_of_the_configuration_is_asked_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", "secret")
    with FakeServer(["Fine."]) as server:
        described = ModelSettings(base_url=server.url, key_variable="ACME_KEY", context_window=4096)

        model = find_model("acme:one", Config(models={"acme:one": described}))
        await complete(model, HELLO)

    assert model.info.context_window == 4096
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert server.requests[0]["model"] == "one"


def test_an_unset_key_variable_is_reported() -> None:
    settings = Config(models={"acme:one": ModelSettings(base_url="http://127.0.0.1:9/v1", key_variable="ACME_KEY")})

    with pytest.raises(NoModel, match="ACME_KEY is not set"):
        find_model("acme:one", settings)


async def test_another_address_of_openai_is_an_openai_compatible_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(["Fine."]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "secret")

        model = find_model("openai:gpt-4o")
        await complete(model, HELLO)

    assert model.info.api == "openai-completions"
    assert server.headers[0]["authorization"] == "Bearer secret"


def test_openai_itself_uses_the_responses_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")

    assert find_model("openai:gpt-5").info.api == "openai-responses"


# Available models


def test_without_any_model_the_error_explains_the_setup() -> None:
    with pytest.raises(NoModel) as caught:
        find_model()

    assert str(caught.value).startswith("no model is available: set an API key, such as ANTHROPIC_API_KEY")
    assert "sessiontree models get local" in str(caught.value)


def test_the_configured_model_wins_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    monkeypatch.setenv("GROQ_API_KEY", "x")

    assert find_model(None, Config(model="groq:llama-3.3-70b-versatile")).info.name == "groq:llama-3.3-70b-versatile"


def test_a_key_wins_over_servers_and_the_local_model(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_download(monkeypatch)
    with FakeServer() as server:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{server.port}")
        monkeypatch.setenv("GEMINI_API_KEY", "x")

        assert find_model().info.provider == "google"


async def test_ollama_is_used_if_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_download(monkeypatch)
    with FakeServer(["Fine."], models=["nomic-embed-text", "llama3.2:3b"]) as server:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{server.port}")

        model = find_model()
        await complete(model, HELLO)

    assert model.info.name == "ollama:llama3.2:3b"
    assert model.info.context_window == 4096
    assert server.requests[0]["model"] == "llama3.2:3b"


def test_the_ollama_window_comes_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(models=["qwen3:8b"]) as server:
        monkeypatch.setenv("OLLAMA_HOST", f"http://0.0.0.0:{server.port}")
        monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", "32768")

        assert find_model("ollama").info.context_window == 32768


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
async def test_a_server_address_may_end_with_a_slash_or_v1(end: str) -> None:
    with FakeServer(["Fine."]) as server:
        url = f"{server.url.removesuffix('/v1')}{end}"
        settings = Config(models={"ollama:scripted": ModelSettings(base_url=url)})

        assert extract_text((await complete(find_model("ollama:scripted", settings), HELLO))["content"]) == "Fine."


def test_the_ollama_window_is_the_default_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(models=None) as server:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{server.port}")

        assert find_model("ollama:llama3.1").info.context_window == 4096


async def test_llamacpp_is_used_if_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(["Fine."], models=["qwen.gguf"], window=8192) as server:
        monkeypatch.setenv("LLAMA_ARG_PORT", str(server.port))

        model = find_model()
        await complete(model, HELLO)

    assert model.info.name == "llamacpp:qwen.gguf"
    assert model.info.context_window == 8192


def test_the_local_model_is_used_without_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_download(monkeypatch)

    assert find_model().info.name == find_model("local").info.name == "local:smollm2-135m"


def test_the_local_model_without_weights_explains_the_download() -> None:
    with pytest.raises(NoModel, match="run `sessiontree models get local`"):
        find_model("local")


@pytest.mark.parametrize("name", ["openai:gpt-5", "ollama:llama3", "acme:one"])
def test_a_missing_extra_names_the_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setattr("sessiontree.model.selection.find_spec", lambda name: None)
    settings = Config(models={"acme:one": ModelSettings(base_url="http://127.0.0.1:9/v1")})

    with pytest.raises(NoModel, match=r"it needs `pip install 'sessiontree\[agent\]'`"):
        find_model(name, settings)
    with pytest.raises(NoModel, match=r"run `pip install 'sessiontree\[agent\]'`"):
        find_model(None, settings)


def test_a_server_without_models_is_not_used() -> None:
    with FakeServer(models=[]) as server:
        described = Config(models={"ollama:x": ModelSettings(base_url=server.url)})

        assert find_candidate("ollama:x", described).reason == f"no server with this model answers at {server.url}"
    with pytest.raises(NoModel, match="no server with a model answers at"):
        find_model("ollama")


# Candidates


def test_every_provider_is_listed_with_its_missing_variable() -> None:
    for provider in PROVIDERS.values():
        told = find_candidate(f"{provider.name}:{provider.default}")

        assert not told.usable
        assert told.reason == f"{provider.keys[0]} is not set"


def test_servers_and_the_local_model_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(models=["a", "b"]) as server:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{server.port}")

        assert find_candidate("ollama:a") == ModelCandidate(
            name="ollama:a", usable=True, reason=f"served at http://127.0.0.1:{server.port}", default=True
        )
        assert find_candidate("ollama:b").usable
    assert find_candidate("llamacpp").reason.startswith("no server answers at http://127.0.0.1:")
    assert find_candidate("local:smollm2-135m").reason.startswith("its weights are not downloaded")


def test_exactly_one_candidate_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISTRAL_API_KEY", "x")
    monkeypatch.setenv("DEEPSEEK_API_KEY", "x")

    assert [offer.name for offer in list_candidates(Config()) if offer.default] == ["mistral:mistral-large-latest"]
    chosen = list_candidates(Config(model="deepseek"))
    assert [offer.name for offer in chosen if offer.default] == ["deepseek:deepseek-v4-flash"]


def test_configured_models_are_listed_with_missing_requirements() -> None:
    settings = Config(
        model="acme:two",
        models={
            "acme:one": ModelSettings(base_url="http://127.0.0.1:9/v1"),
            "acme:two": ModelSettings(base_url="http://127.0.0.1:9/v1", key_variable="ACME_KEY"),
            "ollama:x": ModelSettings(context_window=100),
        },
    )

    assert find_candidate("acme:one", settings).reason == "at http://127.0.0.1:9/v1"
    assert find_candidate("acme:two", settings) == ModelCandidate(
        name="acme:two", usable=False, reason="ACME_KEY is not set", default=True
    )
    assert find_candidate("ollama:x", settings).reason.startswith("no server with this model answers at")


def test_the_local_model_can_be_the_configured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_candidate("local:smollm2-135m", Config(model="local")).default

    fake_download(monkeypatch)
    assert find_candidate("local:smollm2-135m", Config(model="local")) == ModelCandidate(
        name="local:smollm2-135m", usable=True, reason="runs locally, without a network", default=True
    )


def test_a_configured_model_of_a_server_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(models=["a"]) as server:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{server.port}")

        assert find_candidate("ollama:a", Config(models={"ollama:a": ModelSettings(context_window=100)})).usable
        assert (
            find_model("ollama:a", Config(models={"ollama:a": ModelSettings(context_window=100)})).info.context_window
            == 100
        )


def test_a_configured_model_is_the_last_fallback() -> None:
    settings = Config(models={"acme:one": ModelSettings(base_url="http://127.0.0.1:9/v1")})

    assert find_model(None, settings).info.name == "acme:one"


def test_another_http_server_is_not_a_model_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(models=None) as server:
        monkeypatch.setenv("LLAMA_ARG_PORT", str(server.port))

        assert not find_candidate("llamacpp").usable


def test_limits_are_known_by_family() -> None:
    assert find_limits("meta-llama/Llama-3.3-70B").window == 131_072
    assert find_limits("gpt-4o-mini").output == 16_384
    assert find_limits("nobody-knows").window is None


def test_the_documentation_lists_every_provider() -> None:
    page = (Path(__file__).parents[2] / "docs" / "model.md").read_text()

    for provider in PROVIDERS.values():
        keys = " or ".join(f"`{variable}`" for variable in provider.keys)
        assert f"| `{provider.name}` | {keys} | `{provider.default}` |" in page
        assert provider.url_variable is None or f"`{provider.url_variable}`" in page


# The model that the user chose last


@pytest.fixture
def state_file(home: Path) -> Path:
    return home / ".sessiontree" / "state.json"


def test_the_choice_is_stored_in_a_private_file(state_file: Path) -> None:
    assert recall_model(None) is None

    remember_model("openai:gpt-5.5", None)

    assert recall_model(None) == "openai:gpt-5.5"
    assert stat.S_IMODE(state_file.stat().st_mode) == 0o600


def test_a_model_configured_after_the_choice_takes_precedence() -> None:
    remember_model("openai:gpt-5.5", "anthropic:claude-sonnet-5-5")

    assert recall_model("anthropic:claude-sonnet-5-5") == "openai:gpt-5.5"
    assert recall_model("mistral:mistral-large-latest") is None
    assert recall_model(None) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"model": 1}', b'{"model": ""}', b"{" * 100_000])
def test_an_invalid_state_file_is_ignored(state_file: Path, content: bytes) -> None:
    state_file.parent.mkdir(parents=True)
    state_file.write_bytes(content)

    assert recall_model(None) is None


def test_a_pipe_or_folder_in_place_of_the_file_does_not_block(state_file: Path) -> None:
    state_file.parent.mkdir(parents=True)
    os.mkfifo(state_file)
    assert recall_model(None) is None
    state_file.unlink()
    state_file.mkdir()
    assert recall_model(None) is None
    with pytest.raises(StoreError):
        remember_model("openai:gpt-5.5", None)


def test_without_a_name_the_last_choice_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    assert find_model(None, Config()).info.name == "anthropic:claude-sonnet-5-5"

    remember_model("openai:gpt-6-sol", None)

    assert find_model(None, Config()).info.name == "openai:gpt-6-sol"
    assert [offer.name for offer in list_candidates(Config()) if offer.default] == ["openai:gpt-6-sol"]
    assert find_model("anthropic", Config()).info.name == "anthropic:claude-sonnet-5-5"


def test_an_unavailable_choice_falls_back_to_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    remember_model("openai:gpt-6-sol", None)

    assert find_model(None, Config()).info.name == "anthropic:claude-sonnet-5-5"
    listed = {offer.name: offer for offer in list_candidates(Config())}
    assert listed["anthropic:claude-sonnet-5-5"].default
    assert listed["openai:gpt-6-sol"].reason == "OPENAI_API_KEY is not set"
