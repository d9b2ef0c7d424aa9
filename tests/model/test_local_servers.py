"""Model servers on this machine: their addresses and models."""

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
