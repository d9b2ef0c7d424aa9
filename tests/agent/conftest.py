"""Shared helpers of agent tests: a session in memory, an agent with a scripted model, and the written messages."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.core.entries import Entry, Message
from sessiontree.core.messages import extract_text, get_role
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import EVENT_NAMES, Event
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Branch, Session

MakeAgent = Callable[..., Agent]


@pytest.fixture
def session() -> Session:
    return st.memory()


@pytest.fixture
def agent(session: Session) -> MakeAgent:
    """Create an agent on the current branch with scripted answers."""

    def make(*answers: Any, **options: Any) -> Agent:
        options.setdefault("system", "Be brief.")
        options.setdefault("branch", session.head)
        return Agent(options.pop("branch"), options.pop("model", None) or ScriptedModel(answers), **options)

    return make


def get_scripted_model(agent: Agent) -> ScriptedModel:
    assert isinstance(agent.model, ScriptedModel)
    return agent.model


def format_messages(branch: Branch) -> list[str]:
    """Return the messages on the path of a branch as `role: text`."""
    return [f"{get_role(message)}: {extract_text(message.get('content'))}" for message in get_messages(branch.path())]


def get_messages(entries: list[Entry]) -> list[dict[str, Any]]:
    return [entry.body.message for entry in entries if isinstance(entry.body, Message)]


def get_last_message(branch: Branch) -> dict[str, Any]:
    return get_messages(branch.path())[-1]


def format_request(agent: Agent, index: int = -1) -> list[str]:
    """Return the messages of a request as `role: text`."""
    return [
        f"{get_role(message)}: {extract_text(message.get('content'))}"
        for message in get_scripted_model(agent).requests[index].messages
    ]


def record_events(hooks: Hooks) -> list[Event]:
    events: list[Event] = []
    hooks.listen(events.append)
    return events


def list_event_names(events: list[Event]) -> list[str]:
    """Return the names of events in order, without deltas."""
    return [name for event in events if (name := EVENT_NAMES[type(event)]) != "message_delta"]


def find_processes(mark: str) -> list[str]:
    """Return the command lines of running processes that contain `mark`."""
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if mark in command and int(pid) != os.getpid():
            found.append(command)
    return found
