"""Model servers on this machine: where they are looked for, and what they say."""

import pytest

from sessiontree.model.local_servers import SERVERS, ServedModels, query_server
from tests.model.fake_server import FakeServer

OLLAMA, LLAMACPP = SERVERS["ollama"], SERVERS["llamacpp"]


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
def test_ollama_is_where_its_variable_says(monkeypatch: pytest.MonkeyPatch, said: str, address: str) -> None:
    monkeypatch.setenv("OLLAMA_HOST", said)

    assert OLLAMA.get_address() == address


def test_llamacpp_is_where_its_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_ARG_HOST", raising=False)
    monkeypatch.delenv("LLAMA_ARG_PORT", raising=False)
    assert LLAMACPP.get_address() == "http://127.0.0.1:8080"

    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    monkeypatch.setenv("LLAMA_ARG_PORT", "9090")
    assert LLAMACPP.get_address() == "http://127.0.0.1:9090"


def test_a_server_says_what_it_serves_and_its_window() -> None:
    with FakeServer(models=["a", "all-minilm-embed"], window=2048) as server:
        assert query_server(LLAMACPP, server.url) == ServedModels(("a",), 2048)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://box:no-port", "http://[", "nonsense"])
def test_an_address_where_nobody_answers_is_no_server(url: str) -> None:
    assert query_server(OLLAMA, url) is None


def test_something_else_at_the_address_is_no_server() -> None:
    with FakeServer(models=None) as server:
        assert query_server(LLAMACPP, server.url) is None
