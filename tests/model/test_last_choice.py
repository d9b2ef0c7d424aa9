"""The model that was chosen last is the default, in other processes too."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sessiontree.config import Config
from sessiontree.errors import StoreError
from sessiontree.model.last_choice import recall_model, remember_model
from sessiontree.model.selection import find_model, list_candidates
from tests.model.test_selection import nothing_there  # noqa: F401 - a fixture that is always used


@pytest.fixture
def file(home: Path) -> Path:
    return home / ".sessiontree" / "state.json"


def test_the_choice_is_stored_in_a_private_file(file: Path) -> None:
    assert recall_model(None) is None

    remember_model("openai:gpt-5.5", None)

    assert recall_model(None) == "openai:gpt-5.5"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_configuration_that_names_another_model_since_then_wins() -> None:
    remember_model("openai:gpt-5.5", "anthropic:claude-sonnet-5-5")

    assert recall_model("anthropic:claude-sonnet-5-5") == "openai:gpt-5.5"
    assert recall_model("mistral:mistral-large-latest") is None
    assert recall_model(None) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"model": 1}', b'{"model": ""}', b"{" * 100_000])
def test_an_invalid_state_file_is_ignored(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(content)

    assert recall_model(None) is None


def test_a_pipe_or_folder_in_place_of_the_file_does_not_block(file: Path) -> None:
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    assert recall_model(None) is None
    file.unlink()
    file.mkdir()
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
