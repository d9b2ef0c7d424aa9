"""API keys that the user entered: where they are, who may read them, and which one is used."""

import os
import stat
from pathlib import Path

import pytest

from sessiontree.config import Config, ModelServerSettings
from sessiontree.errors import StoreError
from sessiontree.home import is_private
from sessiontree.model.base import ModelError, complete
from sessiontree.model.selection import NoModel, find_model, list_candidates, list_model_names, list_models
from sessiontree.model.stored_keys import get_keys_path, read_stored_keys, remove_key, store_key
from tests.model.fake_server import FakeServer, fail
from tests.model.requests import HELLO


@pytest.fixture(autouse=True)
def remove_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_BASE_URL"))]:
        monkeypatch.delenv(name)


def test_keys_are_stored_for_their_owner_alone_and_tools_cannot_read_them() -> None:
    store_key("openai", " sk-1\n")
    store_key("groq", "gsk-2")

    assert read_stored_keys() == {"openai": "sk-1", "groq": "gsk-2"}
    assert stat.S_IMODE(os.stat(get_keys_path()).st_mode) == 0o600
    assert is_private(get_keys_path())
    assert remove_key("openai")
    assert not remove_key("openai")
    assert read_stored_keys() == {"groq": "gsk-2"}


@pytest.mark.parametrize("key", ["", "  ", "two words", "schlüssel", "a\nb", "x" * 5000])
def test_what_cannot_be_a_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        store_key("openai", key)

    assert not Path(get_keys_path()).exists()


def test_a_damaged_file_is_reported_and_not_overwritten() -> None:
    store_key("openai", "sk-1")
    Path(get_keys_path()).write_text("{")

    with pytest.raises(StoreError, match="the stored keys cannot be read"):
        store_key("groq", "gsk-2")
    assert Path(get_keys_path()).read_text() == "{"
    with pytest.raises(NoModel, match="OPENAI_API_KEY is not set"):
        find_model("openai", Config())


def test_a_stored_key_makes_a_provider_usable() -> None:
    store_key("openai", "sk-1")

    assert find_model("openai", Config()).info.provider == "openai"
    (found,) = [candidate for candidate in list_candidates(Config()) if candidate.name.startswith("openai:")]
    assert (found.usable, found.reason) == (True, "its key is stored")


async def test_a_stored_key_is_sent_instead_of_the_one_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "from-environment")
    store_key("groq", "stored")
    with FakeServer(["Hello.", fail(401, "wrong key")]) as server:
        monkeypatch.setenv("GROQ_BASE_URL", server.url)
        model = find_model("groq:one", Config())

        await complete(model, HELLO)
        assert server.headers[0]["authorization"] == "Bearer stored"
        with pytest.raises(ModelError, match=r"refused the API key .*; enter a valid one with /login in the app"):
            await complete(model, HELLO)


async def test_all_models_of_a_server_can_be_listed_and_used() -> None:
    with FakeServer(["Hello."], models=["one", "two"]) as server:
        settings = Config(servers={"lab": ModelServerSettings(base_url=server.url)})
        store_key("lab", "secret")

        assert {"lab:one", "lab:two"} <= set(list_model_names(settings))
        assert [found.reason for found in list_models(settings) if found.name == "lab:two"] == [
            f"served at {server.url}"
        ]
        await complete(find_model("lab:two", settings), HELLO)
        assert server.headers[-1]["authorization"] == "Bearer secret"
        assert server.requests[-1]["model"] == "two"


def test_a_server_can_name_the_variable_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Config(servers={"lab": ModelServerSettings(base_url="http://127.0.0.1:9/v1", key_variable="LAB_KEY")})

    with pytest.raises(NoModel, match="LAB_KEY is not set"):
        find_model("lab:one", settings)
    assert settings.find_secret_reason("LAB_KEY") == "it contains the API key of servers.lab"
    monkeypatch.setenv("LAB_KEY", "x")
    assert find_model("lab:one", settings).info.name == "lab:one"
