"""The real local model for tests. Its weights are downloaded once into a permanent folder.

from tests.model.local_weights import local_model  # a fixture; mark the test `local`
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiontree.model import local_model as local_module
from sessiontree.model.local_model import LocalModel

CACHE = Path(__file__).parents[2] / ".models"


@pytest.fixture
def local_model(home: Path, monkeypatch: pytest.MonkeyPatch) -> LocalModel:
    """The local model, ready for requests."""
    here = home / ".sessiontree" / "models"
    here.parent.mkdir(parents=True, exist_ok=True)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SESSIONTREE_HOME", str(CACHE))
        fetched = Path(local_module.download_weights())
    here.symlink_to(fetched.parent)
    return LocalModel()
