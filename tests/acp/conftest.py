"""Fixtures: a folder to work in, and a model server for the agent in the subprocess."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model.fake_server import FakeServer


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with FakeServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        config = Path(os.environ["SESSIONTREE_HOME"]) / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text('model = "openai:scripted"\nretry.base_delay = 0.01\n')
        yield server
