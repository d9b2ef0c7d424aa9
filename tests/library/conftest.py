"""Fixtures of the index tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def session_folder(tmp_path: Path) -> Path:
    """A folder for session files."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    return folder


@pytest.fixture
def index(home: Path) -> Path:
    return home / ".sessiontree" / "index.db"
