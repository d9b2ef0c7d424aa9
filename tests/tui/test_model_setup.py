"""Connecting models inside the app: keys, servers, favorites, and what is offered at the first start."""

from __future__ import annotations

import os

import pytest

from sessiontree.config import load_config
from sessiontree.model.selection import list_favorites, recall_model, remember_model
from sessiontree.model.stored_keys import read_stored_keys, store_key
from tests.model.fake_server import FakeServer

from .conftest import Running


@pytest.fixture(autouse=True)
def remove_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_BASE_URL"))]:
        monkeypatch.delenv(name)
    with FakeServer() as server:
        closed = server.port
    monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{closed}")
    monkeypatch.setenv("LLAMA_ARG_PORT", str(closed))


async def test_the_first_start_offers_to_connect_a_server_and_the_choice_lasts(running: Running) -> None:
    with FakeServer(["Hello back."], models=["one", "two"]) as server:
        async with running(configured=True) as app:
            await app.wait_for_text(
                "Connect a model", "Enter an API key", "Use a server", "Download a small", "Not now"
            )
            await app.press("down", "enter")
            await app.wait_for_text("Address of the server")
            await app.press(*f"127.0.0.1:{server.port}", "enter")
            await app.wait_for_text("server:one", "server:two")
            await app.press("down", "enter")
            await app.wait_for_text("Model: server:two")
            await app.submit("Hello")
            await app.wait_for_text("Hello back.")

        assert load_config().servers["server"].base_url == server.url
        assert recall_model(None) == "server:two"
        async with running(configured=True, settings=load_config()) as app:
            await app.wait_for_text("two")
            assert app.app.controller.model.info.name == "server:two"


async def test_an_address_where_nothing_answers_can_be_corrected(running: Running) -> None:
    with FakeServer() as server:
        closed = server.port
    async with running(configured=True) as app:
        await app.wait_for_text("Connect a model")
        await app.press("down", "enter")
        await app.wait_for_text("Address of the server")
        await app.press(*f"127.0.0.1:{closed}", "enter")

        await app.wait_for_text("no server answers there; try again", f"127.0.0.1:{closed}")
        await app.press("escape")
        await app.wait_for_text("no model")
        assert load_config().servers == {}


async def test_a_key_is_entered_unseen_and_stored(running: Running) -> None:
    async with running(configured=True) as app:
        await app.wait_for_text("Connect a model")
        await app.press("enter")
        await app.wait_for_text("Provider", "anthropic", "openai")
        await app.press(*"openai", "enter")
        await app.wait_for_text("API key for openai · stored in")
        await app.press(*"sk-4711")
        await app.wait_for_text("•••••")
        assert "4711" not in app.screen
        await app.press("enter")

        await app.wait_for_text("Model: openai:")
        assert read_stored_keys() == {"openai": "sk-4711"}
        await app.submit("/logout openai")
        await app.wait_for_text("Removed the key of openai.")
        assert read_stored_keys() == {}


async def test_setup_can_be_put_off_and_called_again(running: Running) -> None:
    async with running(configured=True) as app:
        await app.wait_for_text("Connect a model")
        await app.press("escape")
        await app.submit("Hello")
        await app.wait_for_text("no model: choose one with /model, or connect one with /login")
        assert app.editor.text == "Hello"

        await app.press(*"/login", "enter")  # typing replaces the prompt that failed
        await app.wait_for_text("Connect a model")


async def test_model_lists_the_models_of_providers_and_servers_with_favorites_first(running: Running) -> None:
    with FakeServer(models=["one", "two"]) as server:
        store_key("openai", "sk-1")
        home = os.environ["SESSIONTREE_HOME"]
        with open(os.path.join(home, "config.toml"), "w") as file:
            file.write(f'[servers.lab]\nbase_url = "{server.url}"\n')
        remember_model("lab:one", None)
        async with running(configured=True, settings=load_config()) as app:
            await app.press("ctrl+l")
            await app.wait_for_text("lab:one  (current)", "openai:")
            await app.press(*"two")
            await app.wait_until(lambda: "openai:" not in app.screen and "lab:two" in app.screen)
            await app.press("ctrl+f")
            await app.wait_for_text("★ lab:two")
            assert list_favorites() == ("lab:two",)
            await app.press("enter")
            await app.wait_for_text("Model: lab:two")

        assert recall_model(None) == "lab:two"
        assert list_favorites() == ("lab:two",)


async def test_a_server_that_needs_a_key_asks_for_it(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def list_models(url: str, key: str | None = None) -> tuple[str, ...] | None:
        asked.append(key)
        return ("one",)

    monkeypatch.setattr("sessiontree.tui.services.model_setup.requires_key", lambda url: True)
    monkeypatch.setattr("sessiontree.tui.services.model_setup.list_served_models", list_models)
    async with running(configured=True) as app:
        await app.wait_for_text("Connect a model")
        await app.press("down", "enter", *"lab.example/v1", "enter")
        await app.wait_for_text("API key for http://lab.example/v1")
        await app.press(*"k1", "enter")

        await app.wait_for_text("Model: lab:one")
        assert asked == ["k1", "k1"]
        assert read_stored_keys() == {"lab": "k1"}
