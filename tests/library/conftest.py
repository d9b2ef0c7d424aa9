"""Fixtures of the tests of the index."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder to put session files into."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    return folder


@pytest.fixture
def index(home: Path) -> Path:
    return home / ".sessiontree" / "index.db"
