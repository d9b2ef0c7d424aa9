"""Shared fixtures of hook tests."""

import pytest

from sessiontree.hooks.bus import Hooks


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()
