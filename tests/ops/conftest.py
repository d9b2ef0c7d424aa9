"""What tests of operations share: a session that has something to summarize, hooks, and what was told."""

from __future__ import annotations

import pytest

import sessiontree as st
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Event
from sessiontree.model.base import ModelInfo
from sessiontree.session import Session

SMALL = ModelInfo(provider="scripted", model="small", context_window=4096, output_limit=2000)


@pytest.fixture
def session() -> Session:
    return st.memory(name="auth", cwd="/project")


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


@pytest.fixture
def told(hooks: Hooks) -> list[Event]:
    """Every event, in order."""
    seen: list[Event] = []
    hooks.listen(seen.append)
    return seen


def words(tokens: int, mark: str = "abc") -> str:
    return f"{mark} " * tokens


def talk(session: Session, *texts: str) -> list[str]:
    """User and assistant in turns; the ids."""
    speakers = [st.user, st.assistant]
    return [session.append(speakers[turn % 2](text)).id for turn, text in enumerate(texts)]


def asked(request) -> str:
    """The prompt of a request for a summary."""
    (message,) = request.messages
    return message["content"]
