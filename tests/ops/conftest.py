"""Shared helpers of operation tests: a session to summarize, hooks, and recorded events."""

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
def events(hooks: Hooks) -> list[Event]:
    """All events, in order."""
    seen: list[Event] = []
    hooks.listen(seen.append)
    return seen


def get_text(tokens: int, mark: str = "abc") -> str:
    return f"{mark} " * tokens


def append_messages(session: Session, *texts: str) -> list[str]:
    """Append user and assistant messages in turns. Return their ids."""
    speakers = [st.user, st.assistant]
    return [session.append(speakers[turn % 2](text)).id for turn, text in enumerate(texts)]


def get_prompt(request) -> str:
    """Return the prompt of a summary request."""
    (message,) = request.messages
    return message["content"]
